//! The client for programs without an async runtime. One of its own drives it, on the calling thread.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use spoc_proto::v1 as pb;
use tokio::runtime::{Builder, Runtime};

use crate::error::{Error, Result};
use crate::lease::Lease;

/// A connection to a service. Must not be used on a thread of an async runtime.
#[derive(Clone, Debug)]
pub struct Client {
    client: crate::Client,
    runtime: Arc<Runtime>,
}

/// A session. Must not be used on a thread of an async runtime.
#[derive(Clone, Debug)]
pub struct Session {
    session: crate::Session,
    runtime: Arc<Runtime>,
}

impl Client {
    /// As [`crate::Client::connect`].
    ///
    /// # Errors
    /// As there.
    pub fn connect(path: impl AsRef<Path>) -> Result<Client> {
        let runtime =
            Builder::new_current_thread().enable_all().build().map_err(|error| Error::new("os", error))?;
        let client = runtime.block_on(crate::Client::connect(path))?;
        Ok(Client { client, runtime: Arc::new(runtime) })
    }

    /// Does something with the async client, and waits for it: for calls that have no method here.
    pub fn wait<T>(&self, call: impl AsyncFnOnce(&crate::Client) -> T) -> T {
        self.runtime.block_on(call(&self.client))
    }

    /// As [`crate::Client::session`].
    ///
    /// # Errors
    /// As there.
    pub fn session(&self, name: &str) -> Result<Session> {
        let session = self.runtime.block_on(self.client.session(name))?;
        Ok(Session { session, runtime: Arc::clone(&self.runtime) })
    }

    /// Registers a model; in an arena if one is named.
    ///
    /// # Errors
    /// As [`crate::Client::register`].
    pub fn register(&self, source: &str, name: &str, arena: &str) -> Result<pb::Model> {
        let request = pb::RegisterModelRequest {
            source: source.into(),
            name: name.into(),
            arena: arena.into(),
            ..pb::RegisterModelRequest::default()
        };
        self.wait(async |client| client.register(request).await)
    }

    /// Loads a whole model on the first device; `progress` is told how many of how many bytes are there.
    ///
    /// # Errors
    /// As [`crate::Client::load`].
    pub fn load(&self, model: &str, mut progress: impl FnMut(u64, u64) + Send) -> Result<pb::LoadDone> {
        let request = pb::LoadRequest { model: model.into(), ..pb::LoadRequest::default() };
        self.wait(async |client| client.load(request, &mut progress).await)
    }

    /// As [`crate::Client::stats`].
    ///
    /// # Errors
    /// As there.
    pub fn stats(&self) -> Result<pb::GetStatsResponse> {
        self.wait(async |client| client.stats().await)
    }
}

impl Session {
    /// As [`crate::Session::acquire`].
    ///
    /// # Errors
    /// As there.
    pub fn acquire(&self, model: &str, groups: &[u32], timeout: Option<Duration>) -> Result<Lease> {
        self.wait(async |session| session.acquire(model, groups, timeout).await)
    }

    /// As [`crate::Session::acquire_image`].
    ///
    /// # Errors
    /// As there.
    pub fn acquire_image(&self, image: &str) -> Result<Lease> {
        self.wait(async |session| session.acquire_image(image).await)
    }

    /// As [`crate::Session::reattach`].
    ///
    /// # Errors
    /// As there.
    pub fn reattach(&self) -> Result<()> {
        self.wait(async |session| session.reattach().await)
    }

    /// Does something with the async session, and waits for it.
    pub fn wait<T>(&self, call: impl AsyncFnOnce(&crate::Session) -> T) -> T {
        self.runtime.block_on(call(&self.session))
    }
}
