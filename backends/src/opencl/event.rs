//! Events: where a stream stood at their latest record.

use std::sync::Mutex;

use spoc_driver::{Error, ErrorKind, Result};

use super::stream::{Mark, Stream};
use crate::sync::lock;

/// An event. The API's own event is the end of one command, made by enqueuing it; so each record replaces
/// the last one, and a wait that was made keeps the one it saw.
#[derive(Default)]
pub(super) struct Event {
    record: Mutex<Option<Mark>>,
}

impl Event {
    /// Records it after everything the stream was given, and submits that.
    pub(super) fn record(&self, stream: &Stream) -> Result<()> {
        let mut record = lock(&self.record);
        let mark = stream.record()?;
        *record = Some(mark);
        Ok(())
    }

    /// The latest record, to hold while it is used.
    pub(super) fn mark(&self) -> Result<Mark> {
        match &*lock(&self.record) {
            Some(mark) => mark.share(),
            None => Err(Error::new(ErrorKind::NotRecorded, "using an OpenCL event")),
        }
    }

    /// Whether the latest record has been reached.
    pub(super) fn query(&self) -> Result<bool> {
        match &*lock(&self.record) {
            Some(mark) => mark.is_reached(),
            None => Err(Error::new(ErrorKind::NotRecorded, "querying an OpenCL event")),
        }
    }
}
