//! The control plane: one method a call.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use spoc_proto::v1 as pb;
use spoc_proto::v1::spoc_client::SpocClient;
use tokio_stream::StreamExt;
use tonic::transport::{Channel, Endpoint};

use crate::error::{Error, Result};
use crate::process::OwnProcess;
use crate::session::Session;

/// A connection to a service. Clones share it. It connects again by itself when the service was restarted.
#[derive(Clone, Debug)]
pub struct Client {
    rpc: SpocClient<Channel>,
    path: Arc<Path>,
    own: OwnProcess,
}

/// What [`Client::load`] tells while it runs.
pub type Progress<'a> = &'a mut (dyn FnMut(u64, u64) + Send);

impl Client {
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// `service_unreachable` if nobody answers there.
    pub async fn connect(path: impl AsRef<Path>) -> Result<Client> {
        let path: Arc<Path> = Arc::from(path.as_ref());
        let unreachable = |error: &dyn std::fmt::Display| {
            Error::new("service_unreachable", format_args!("{}: {error}", path.display()))
        };
        // The name is never resolved: the connector knows the way.
        let endpoint = Endpoint::from_static("http://spoc.invalid").connect_timeout(Duration::from_secs(10));
        let to = PathBuf::from(&*path);
        let connector = tower::service_fn(move |_: tonic::transport::Uri| {
            let to = to.clone();
            async move { tokio::net::UnixStream::connect(to).await.map(hyper_util::rt::TokioIo::new) }
        });
        let channel = endpoint.connect_with_connector(connector).await.map_err(|error| {
            let source = std::error::Error::source(&error);
            unreachable(&source.map_or_else(|| error.to_string(), ToString::to_string))
        })?;
        // A model's tables may be long, and come from the service alone.
        let rpc = SpocClient::new(channel).max_decoding_message_size(usize::MAX);
        Ok(Client { rpc, path, own: OwnProcess::here() })
    }

    /// Where the service listens.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The generated client, for what has no method here.
    ///
    /// # Errors
    /// `forked` in a process forked after [`connect`](Client::connect).
    pub fn rpc(&self) -> Result<SpocClient<Channel>> {
        self.own.check()?;
        Ok(self.rpc.clone())
    }

    /// What runs there: versions, devices, arenas, limits.
    ///
    /// # Errors
    /// As every call: `service_unreachable`, or a kind of docs/errors.md.
    pub async fn info(&self) -> Result<pb::GetInfoResponse> {
        Ok(self.rpc()?.get_info(pb::GetInfoRequest {}).await?.into_inner())
    }

    /// Opens a session: what is acquired through it is held until it is released or this process ends.
    ///
    /// # Errors
    /// `draining`, `quota_exceeded`, `not_permitted`.
    pub async fn session(&self, name: &str) -> Result<Session> {
        Session::open(self.clone(), name).await
    }

    /// Models registered.
    ///
    /// # Errors
    /// As [`info`](Client::info).
    pub async fn models(&self) -> Result<Vec<pb::Model>> {
        Ok(self.rpc()?.list_models(pb::ListModelsRequest {}).await?.into_inner().models)
    }

    /// Registers a model. `name`, `arena` and the rest of `request` may be left out.
    ///
    /// # Errors
    /// What is wrong with the model's files, by kind; `path_not_allowed`; `already_registered`.
    pub async fn register(&self, request: pb::RegisterModelRequest) -> Result<pb::Model> {
        let answer = self.rpc()?.register_model(request).await?.into_inner();
        answer.model.ok_or_else(|| missing("the model"))
    }

    /// Forgets a model.
    ///
    /// # Errors
    /// `in_use` while somebody holds some of it.
    pub async fn unregister(&self, model: &str) -> Result<()> {
        self.rpc()?.unregister_model(pb::UnregisterModelRequest { model: model.into() }).await?;
        Ok(())
    }

    /// Tensors and groups of a registered model.
    ///
    /// # Errors
    /// `unknown_model`.
    pub async fn describe(&self, model: &str) -> Result<(Vec<pb::Tensor>, Vec<pb::Group>)> {
        let request = pb::DescribeModelRequest { model: model.into() };
        let mut pages = self.rpc()?.describe_model(request).await?.into_inner();
        let (mut tensors, mut groups) = (Vec::new(), Vec::new());
        while let Some(page) = pages.next().await {
            let page = page?;
            tensors.extend(page.tensors);
            groups.extend(page.groups);
        }
        Ok((tensors, groups))
    }

    /// Loads a whole model and waits for it; `progress` is told how many of how many bytes are there. Dropping the future
    /// cancels the load, unless somebody else waits for it too.
    ///
    /// # Errors
    /// `device_too_small`, what is wrong with the files, `digest_mismatch` with `verify`.
    pub async fn load(&self, request: pb::LoadRequest, progress: Progress<'_>) -> Result<pb::LoadDone> {
        let mut steps = self.rpc()?.load(request).await?.into_inner();
        while let Some(step) = steps.next().await {
            let step = step?;
            progress(step.done_bytes, step.total_bytes);
            if let Some(done) = step.done {
                return Ok(done);
            }
        }
        Err(missing("the end of the load"))
    }

    /// Images there are.
    ///
    /// # Errors
    /// As [`info`](Client::info).
    pub async fn images(&self) -> Result<Vec<pb::Image>> {
        Ok(self.rpc()?.list_images(pb::ListImagesRequest {}).await?.into_inner().images)
    }

    /// Arenas there are.
    ///
    /// # Errors
    /// As [`info`](Client::info).
    pub async fn arenas(&self) -> Result<Vec<pb::Arena>> {
        Ok(self.rpc()?.list_arenas(pb::ListArenasRequest {}).await?.into_inner().arenas)
    }

    /// Makes groups or an image leave now, if nobody holds them.
    ///
    /// # Errors
    /// `in_use` for an image that is held.
    pub async fn evict(&self, what: pb::evict_request::What) -> Result<pb::EvictResponse> {
        Ok(self.rpc()?.evict(pb::EvictRequest { what: Some(what) }).await?.into_inner())
    }

    /// Gives an arena another number of slots.
    ///
    /// # Errors
    /// `unknown_arena`, `timed_out` while what is to go is held.
    pub async fn resize(&self, arena: &str, slots: u32, timeout: Duration) -> Result<pb::Arena> {
        let request = pb::ResizeRequest { arena: arena.into(), slots, timeout_ms: ms(timeout) };
        let answer = self.rpc()?.resize(request).await?.into_inner();
        answer.arena.ok_or_else(|| missing("the arena"))
    }

    /// Gives memory of an arena back to the device; how many bytes.
    ///
    /// # Errors
    /// As [`resize`](Client::resize).
    pub async fn give_back(&self, arena: &str, bytes: u64, timeout: Duration) -> Result<u64> {
        let request = pb::GiveBackRequest { arena: arena.into(), bytes, timeout_ms: ms(timeout) };
        Ok(self.rpc()?.give_back(request).await?.into_inner().freed_bytes)
    }

    /// Counters, arenas and sessions.
    ///
    /// # Errors
    /// As [`info`](Client::info).
    pub async fn stats(&self) -> Result<pb::GetStatsResponse> {
        Ok(self.rpc()?.get_stats(pb::GetStatsRequest {}).await?.into_inner())
    }

    /// What happens, as it happens.
    ///
    /// # Errors
    /// As [`info`](Client::info); then at each event.
    pub async fn events(&self) -> Result<impl tokio_stream::Stream<Item = Result<pb::Event>> + use<>> {
        let events = self.rpc()?.watch_events(pb::WatchEventsRequest {}).await?.into_inner();
        Ok(events.map(|event| event.map_err(Error::from)))
    }

    /// Ends the taking of new work; answers when nothing is held any more or at the deadline, with the leases left.
    ///
    /// # Errors
    /// `not_permitted`.
    pub async fn drain(&self, timeout: Duration) -> Result<u32> {
        let request = pb::DrainRequest { timeout_ms: ms(timeout) };
        Ok(self.rpc()?.drain(request).await?.into_inner().leases_left)
    }

    /// Drains and ends the service.
    ///
    /// # Errors
    /// `not_permitted`.
    pub async fn shutdown(&self, timeout: Duration) -> Result<()> {
        self.rpc()?.shutdown(pb::ShutdownRequest { timeout_ms: ms(timeout) }).await?;
        Ok(())
    }
}

/// Milliseconds as the protocol wants them.
#[must_use]
pub fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// An answer without what it must have.
pub(crate) fn missing(what: &str) -> Error {
    Error::new("protocol", format_args!("the service's answer lacks {what}"))
}
