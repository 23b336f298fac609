//! Streams: how far each has come in the one order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use spoc_driver::Result;

use super::queue::{Batch, Queue};

/// How a stream stands to the default stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// It is the default stream.
    Default,
    /// The default stream comes after it, and it after the default stream.
    Blocking,
    /// Neither. The queue puts it somewhere all the same; nobody waits for it on the host.
    NonBlocking,
}

/// The newest tickets of the default stream and of the blocking ones.
#[derive(Debug, Default)]
pub(super) struct Newest {
    default: AtomicU64,
    blocking: AtomicU64,
}

/// A stream. All share the device's queue; each knows the last of what it was given.
pub(super) struct Stream {
    queue: Arc<Queue>,
    newest: Arc<Newest>,
    role: Role,
    last: Arc<AtomicU64>,
}

impl Stream {
    pub(super) fn new(queue: &Arc<Queue>, newest: &Arc<Newest>, role: Role, last: Arc<AtomicU64>) -> Self {
        Self { queue: Arc::clone(queue), newest: Arc::clone(newest), role, last }
    }

    /// Records something in the stream's turn.
    pub(super) fn record<T>(&self, record: impl FnOnce(&mut Batch<'_>) -> Result<T>) -> Result<T> {
        let (ticket, outcome) = self.queue.record(record)?;
        self.given(ticket);
        Ok(outcome)
    }

    /// Notes what it was given.
    pub(super) fn given(&self, ticket: u64) {
        self.last.fetch_max(ticket, Ordering::AcqRel);
        match self.role {
            Role::Default => _ = self.newest.default.fetch_max(ticket, Ordering::AcqRel),
            Role::Blocking => _ = self.newest.blocking.fetch_max(ticket, Ordering::AcqRel),
            Role::NonBlocking => {}
        }
    }

    /// What it does next comes after this.
    pub(super) fn wait(&self, ticket: u64) {
        self.last.fetch_max(ticket, Ordering::AcqRel);
    }

    /// The point at which all that it was given has run, and what is before it by its role: submitted.
    pub(super) fn point(&self) -> Result<u64> {
        let before = match self.role {
            Role::Default => self.newest.blocking.load(Ordering::Acquire),
            Role::Blocking => self.newest.default.load(Ordering::Acquire),
            Role::NonBlocking => 0,
        };
        self.wait(before);
        self.queue.flush()?;
        Ok(self.last.load(Ordering::Acquire))
    }

    /// Whether what it was given has run.
    pub(super) fn is_idle(&self) -> Result<bool> {
        self.queue.is_reached(self.last.load(Ordering::Acquire))
    }

    /// Waits on the host until it has.
    pub(super) fn synchronize(&self) -> Result<()> {
        self.queue.wait(self.last.load(Ordering::Acquire))
    }

    pub(super) fn queue(&self) -> &Queue {
        &self.queue
    }
}
