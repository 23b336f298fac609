//! Points in streams, to wait for.

use std::sync::Arc;

use crate::backend::Handle;
use crate::device::DeviceCore;
use crate::error::{Error, ErrorKind, Result};
use crate::ledger::{InFlight, is_asynchronous, is_over};
use crate::sync::Mutex;
use crate::util::lock;

/// A point in a stream. Recording it again moves it; a wait binds at the call to the latest record.
/// Clones are the same event.
#[derive(Clone)]
pub struct Event(Arc<Inner>);

struct Inner {
    handle: Handle,
    record: Mutex<Option<Record>>,
    core: Arc<DeviceCore>,
}

/// Where the event stands.
#[derive(Clone)]
pub(crate) struct Record {
    in_flight: Arc<InFlight>,
    sequence: u64,
    /// Tells this record from later ones.
    version: u64,
}

impl Event {
    pub(crate) fn create(core: &Arc<DeviceCore>) -> Result<Self> {
        let handle = core.backend.create_event(&core.handle)?;
        Ok(Self(Arc::new(Inner { handle, record: Mutex::new(None), core: Arc::clone(core) })))
    }

    #[cfg(feature = "fake")]
    pub(crate) fn handle(&self) -> &Handle {
        &self.0.handle
    }

    pub(crate) fn core(&self) -> &Arc<DeviceCore> {
        &self.0.core
    }

    /// Records with `enqueue` while nobody looks at the event, then moves it.
    pub(crate) fn record_with(
        &self,
        in_flight: &Arc<InFlight>,
        enqueue: impl FnOnce(&Handle) -> Result<u64>,
    ) -> Result<()> {
        let mut record = lock(&self.0.record);
        let sequence = enqueue(&self.0.handle)?;
        let version = record.as_ref().map_or(0, |record| record.version) + 1;
        *record = Some(Record { in_flight: Arc::clone(in_flight), sequence, version });
        Ok(())
    }

    /// Runs `enqueue` while the latest record cannot move.
    pub(crate) fn while_recorded<T>(
        &self,
        doing: &'static str,
        enqueue: impl FnOnce(&Handle) -> Result<T>,
    ) -> Result<T> {
        let record = lock(&self.0.record);
        if record.is_none() {
            return Err(Error::new(ErrorKind::NotRecorded, doing));
        }
        enqueue(&self.0.handle)
    }

    /// Whether it was ever recorded.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        lock(&self.0.record).is_some()
    }

    /// Whether the latest record has been reached. If so, what the ledger kept for work before it is let go.
    ///
    /// # Errors
    /// `NotRecorded`; the failure of work before the record (what it kept is let go then, too).
    pub fn query(&self) -> Result<bool> {
        let core = &self.0.core;
        let (outcome, record) = {
            let held = lock(&self.0.record);
            let record =
                held.clone().ok_or_else(|| Error::new(ErrorKind::NotRecorded, "querying an event"))?;
            // Under the lock, so that the answer belongs to this record and to no later one.
            (core.backend.query_event(&core.handle, &self.0.handle), record)
        };
        if is_over(&outcome) {
            record.in_flight.retire(record.sequence);
        }
        record.note(&outcome);
        outcome
    }

    /// Waits on the host for the latest record, then lets go as [`Event::query`].
    ///
    /// # Errors
    /// `NotRecorded`; the failure of work before the record.
    pub fn synchronize(&self) -> Result<()> {
        let core = &self.0.core;
        let record = lock(&self.0.record).clone();
        let record = record.ok_or_else(|| Error::new(ErrorKind::NotRecorded, "waiting for an event"))?;
        let outcome = core.backend.synchronize_event(&core.handle, &self.0.handle);
        let is_same = lock(&self.0.record).as_ref().is_some_and(|now| now.version == record.version);
        // Recorded anew meanwhile: which of the two was waited for is not known. Leave it to the next wait.
        if is_same {
            record.in_flight.retire(record.sequence);
            record.note(&outcome);
        }
        outcome
    }
}

impl Record {
    fn note<T>(&self, outcome: &Result<T>) {
        if let Err(error) = outcome
            && is_asynchronous(error)
        {
            self.in_flight.fail(error);
        }
    }
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Event").field("is_recorded", &self.is_recorded()).finish()
    }
}
