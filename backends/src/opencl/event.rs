//! Events: the signal of their latest record.

use std::sync::Mutex;

use spoc_driver::{Error, ErrorKind, Result};

use super::handle::Signal;
use super::stream::{Stream, lock};

/// An event. The API's own event is the end of one command, made by enqueuing it; so each record replaces
/// the last one, and a wait that was made keeps the one it saw.
#[derive(Default)]
pub(super) struct Event {
    record: Mutex<Option<Signal>>,
}

impl Event {
    /// Records it after everything the stream was given, and submits that.
    pub(super) fn record(&self, stream: &Stream) -> Result<()> {
        let mut record = lock(&self.record);
        let signal = stream.record()?;
        *record = Some(signal);
        Ok(())
    }

    /// The latest record, to hold while it is used.
    pub(super) fn signal(&self) -> Result<Signal> {
        match &*lock(&self.record) {
            Some(signal) => signal.share(),
            None => Err(Error::new(ErrorKind::NotRecorded, "using an OpenCL event")),
        }
    }

    /// Whether the latest record has been reached.
    pub(super) fn query(&self) -> Result<bool> {
        match &*lock(&self.record) {
            Some(signal) => signal.query(),
            None => Err(Error::new(ErrorKind::NotRecorded, "querying an OpenCL event")),
        }
    }
}
