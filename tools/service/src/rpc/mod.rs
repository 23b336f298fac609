//! The control plane: one method a call. What a method does lives in the module of what it is about; here is what
//! every call has in common, and the list.

mod arenas;
mod images;
mod leases;
pub(crate) mod models;
mod service;

use crate::access::Peer;
use crate::clients::Place;
use crate::error::{Error, Result};
use crate::session::Session;
use crate::state::State;
use spoc_proto::v1 as pb;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio_stream::{Stream, StreamExt};
use tonic::transport::server::UdsConnectInfo;
use tonic::{Request, Response, Status, Streaming};

/// The methods.
#[derive(Clone)]
pub struct Rpc {
    pub state: Arc<State>,
}

type Answer<T> = Result<Response<T>, Status>;
type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Who calls, with its place among the requests in flight.
struct Caller {
    peer: Peer,
    place: Place,
}

/// Who calls, if they may.
///
/// # Errors
/// `not_permitted`; `quota_exceeded` with too many requests in flight.
fn caller<T>(state: &State, request: &Request<T>) -> Result<Caller> {
    let unknown = || Error::new("not_permitted", "the kernel does not say who calls");
    let credentials =
        request.extensions().get::<UdsConnectInfo>().and_then(|info| info.peer_cred).ok_or_else(unknown)?;
    let pid = credentials.pid().and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0);
    let peer = Peer { pid, uid: credentials.uid(), gid: credentials.gid() };
    let config = state.config();
    config.access.check(peer)?;
    Ok(Caller { peer, place: state.clients.enter(peer, config.quota.in_flight)? })
}

/// Answers that take a place among the requests in flight until the last of them.
fn placed<T: 'static>(answers: Answers<T>, place: Place) -> Answers<T> {
    Box::pin(answers.map(move |answer| {
        let _in_flight = &place;
        answer
    }))
}

/// `None` for 0.
fn timeout(ms: u64) -> Option<Duration> {
    (ms > 0).then(|| Duration::from_millis(ms))
}

/// Work that waits for disk or device, on a thread that may.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(Error::new("internal", format!("a request's thread: {error}"))))
}

impl Rpc {
    fn session<T>(&self, request: &Request<T>, text: &str) -> Result<(Arc<Session>, Place)> {
        let Caller { peer, place } = caller(&self.state, request)?;
        Ok((self.state.sessions.get(text, peer.uid)?, place))
    }
}

/// Who calls is checked here; the methods of [`Rpc`] do the rest.
mod served {
    use super::*;
    use pb::spoc_server::Spoc;

    #[tonic::async_trait]
    impl Spoc for Rpc {
        async fn get_info(&self, request: Request<pb::GetInfoRequest>) -> Answer<pb::GetInfoResponse> {
            let _caller = caller(&self.state, &request)?;
            Ok(Response::new(self.info()))
        }

        async fn open_session(
            &self,
            request: Request<pb::OpenSessionRequest>,
        ) -> Answer<pb::OpenSessionResponse> {
            let Caller { peer, place: _place } = caller(&self.state, &request)?;
            Ok(Response::new(self.opened(peer, &request.into_inner())?))
        }

        async fn list_models(
            &self,
            request: Request<pb::ListModelsRequest>,
        ) -> Answer<pb::ListModelsResponse> {
            let _caller = caller(&self.state, &request)?;
            Ok(Response::new(self.models()))
        }

        async fn register_model(
            &self,
            request: Request<pb::RegisterModelRequest>,
        ) -> Answer<pb::RegisterModelResponse> {
            let _caller = caller(&self.state, &request)?;
            Ok(Response::new(self.register(request.into_inner()).await?))
        }

        async fn unregister_model(
            &self,
            request: Request<pb::UnregisterModelRequest>,
        ) -> Answer<pb::UnregisterModelResponse> {
            let _caller = caller(&self.state, &request)?;
            self.unregister(&request.into_inner().model).await?;
            Ok(Response::new(pb::UnregisterModelResponse {}))
        }

        type DescribeModelStream = Answers<pb::DescribeModelResponse>;

        async fn describe_model(
            &self,
            request: Request<pb::DescribeModelRequest>,
        ) -> Answer<Self::DescribeModelStream> {
            let Caller { place, .. } = caller(&self.state, &request)?;
            Ok(Response::new(placed(self.describe(&request.into_inner().model)?, place)))
        }

        type LoadStream = Answers<pb::LoadProgress>;

        async fn load(&self, request: Request<pb::LoadRequest>) -> Answer<Self::LoadStream> {
            let Caller { place, .. } = caller(&self.state, &request)?;
            Ok(Response::new(placed(self.loading(&request.into_inner())?, place)))
        }

        async fn create_image(
            &self,
            request: Request<pb::CreateImageRequest>,
        ) -> Answer<pb::CreateImageResponse> {
            let (session, _place) = self.session(&request, &request.get_ref().session)?;
            Ok(Response::new(self.create(request.into_inner(), session).await?))
        }

        async fn seal_image(&self, request: Request<pb::SealImageRequest>) -> Answer<pb::SealImageResponse> {
            let (session, _place) = self.session(&request, &request.get_ref().session)?;
            Ok(Response::new(self.seal(&request.into_inner(), &session)?))
        }

        async fn list_images(
            &self,
            request: Request<pb::ListImagesRequest>,
        ) -> Answer<pb::ListImagesResponse> {
            let _caller = caller(&self.state, &request)?;
            Ok(Response::new(self.images()))
        }

        async fn acquire(&self, request: Request<pb::AcquireRequest>) -> Answer<pb::AcquireResponse> {
            let (session, _place) = self.session(&request, &request.get_ref().session)?;
            Ok(Response::new(self.acquired(request.into_inner(), &session).await?))
        }

        type AcquireStreamStream = Answers<pb::AcquireResponse>;

        async fn acquire_stream(
            &self,
            request: Request<Streaming<pb::AcquireRequest>>,
        ) -> Answer<Self::AcquireStreamStream> {
            let Caller { peer, place } = caller(&self.state, &request)?;
            Ok(Response::new(placed(self.acquiring(peer, request.into_inner()), place)))
        }

        async fn release(&self, request: Request<pb::ReleaseRequest>) -> Answer<pb::ReleaseResponse> {
            let (session, _place) = self.session(&request, &request.get_ref().session)?;
            Ok(Response::new(self.released(&request.into_inner(), &session)))
        }

        async fn prefetch(&self, request: Request<pb::PrefetchRequest>) -> Answer<pb::PrefetchResponse> {
            let _caller = caller(&self.state, &request)?;
            Ok(Response::new(self.prefetched(&request.into_inner())?))
        }

        async fn pin(&self, request: Request<pb::PinRequest>) -> Answer<pb::PinResponse> {
            let _caller = caller(&self.state, &request)?;
            self.pinned(request.into_inner())?;
            Ok(Response::new(pb::PinResponse {}))
        }

        async fn evict(&self, request: Request<pb::EvictRequest>) -> Answer<pb::EvictResponse> {
            let _caller = caller(&self.state, &request)?;
            Ok(Response::new(self.evicted(request.into_inner()).await?))
        }

        async fn list_arenas(
            &self,
            request: Request<pb::ListArenasRequest>,
        ) -> Answer<pb::ListArenasResponse> {
            let _caller = caller(&self.state, &request)?;
            Ok(Response::new(self.list_of_arenas()))
        }

        async fn resize(&self, request: Request<pb::ResizeRequest>) -> Answer<pb::ResizeResponse> {
            let _caller = caller(&self.state, &request)?;
            Ok(Response::new(self.resized(request.into_inner()).await?))
        }

        async fn give_back(&self, request: Request<pb::GiveBackRequest>) -> Answer<pb::GiveBackResponse> {
            let _caller = caller(&self.state, &request)?;
            Ok(Response::new(self.given_back(request.into_inner()).await?))
        }

        async fn get_stats(&self, request: Request<pb::GetStatsRequest>) -> Answer<pb::GetStatsResponse> {
            let _caller = caller(&self.state, &request)?;
            Ok(Response::new(self.stats().await?))
        }

        type WatchEventsStream = Answers<pb::Event>;

        async fn watch_events(
            &self,
            request: Request<pb::WatchEventsRequest>,
        ) -> Answer<Self::WatchEventsStream> {
            let Caller { place, .. } = caller(&self.state, &request)?;
            Ok(Response::new(placed(self.watching(), place)))
        }

        async fn drain(&self, request: Request<pb::DrainRequest>) -> Answer<pb::DrainResponse> {
            let Caller { peer, place: _place } = caller(&self.state, &request)?;
            Ok(Response::new(self.draining(peer, &request.into_inner()).await?))
        }

        async fn shutdown(&self, request: Request<pb::ShutdownRequest>) -> Answer<pb::ShutdownResponse> {
            let Caller { peer, place: _place } = caller(&self.state, &request)?;
            Ok(Response::new(self.shutting_down(peer, &request.into_inner()).await?))
        }
    }
}
