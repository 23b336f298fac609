//! Read-backs that have not been fetched.

use std::marker::PhantomData;
use std::sync::Arc;

use crate::device::Device;
use crate::error::{Error, ErrorKind, Result, Returned};
use crate::event::Event;
use crate::host::HostSink;
use crate::ledger::InFlight;

/// A copy to the host on its way. Dropping it abandons the result, never the memory: the ledger owns the
/// destination until the copy has run.
pub struct PendingRead<D: HostSink> {
    /// Recorded right after the copy; empty once given back.
    event: Option<Event>,
    device: Device,
    in_flight: Arc<InFlight>,
    sequence: u64,
    is_fetched: bool,
    _destination: PhantomData<D>,
}

impl<D: HostSink> PendingRead<D> {
    pub(crate) fn new(device: Device, event: Event, in_flight: &Arc<InFlight>, sequence: u64) -> Self {
        let in_flight = Arc::clone(in_flight);
        Self { event: Some(event), device, in_flight, sequence, is_fetched: false, _destination: PhantomData }
    }

    /// Whether the copy has run.
    ///
    /// # Errors
    /// The failure of enqueued work.
    pub fn query(&self) -> Result<bool> {
        self.event.as_ref().map_or(Ok(true), Event::query)
    }

    /// Waits for the copy and gives the destination back.
    ///
    /// # Errors
    /// The failure of enqueued work, with the destination: its contents are then unspecified. If the
    /// destination itself cannot be had, the error has none.
    pub fn wait(mut self) -> Result<D, Returned<Option<D>>> {
        let outcome = self.event.as_ref().map_or(Ok(()), Event::synchronize);
        // The event was recorded after the copy, so the copy is over too.
        self.in_flight.retire(self.sequence);
        self.is_fetched = true;
        let fetched = self.in_flight.fetch(self.sequence).and_then(|payload| payload.take::<D>().ok());
        match (outcome, fetched) {
            (Ok(()), Some(destination)) => Ok(destination),
            (Err(error), fetched) => Err(Returned::new(fetched, error)),
            (Ok(()), None) => {
                Err(Returned::new(None, Error::new(ErrorKind::Released, "fetching a read-back")))
            }
        }
    }
}

impl<D: HostSink> Drop for PendingRead<D> {
    fn drop(&mut self) {
        if !self.is_fetched {
            self.in_flight.forget(self.sequence);
        }
        if let Some(event) = self.event.take() {
            self.device.ledger().give_event(event);
        }
    }
}

impl<D: HostSink> std::fmt::Debug for PendingRead<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PendingRead").field("sequence", &self.sequence).finish()
    }
}
