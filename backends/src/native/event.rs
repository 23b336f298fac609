//! Events: where a stream stood when it was recorded.

use std::sync::Mutex;

use super::queue::{Mark, lock};

/// An event. Its record is a mark in a stream, so recording enqueues nothing and a wait that was made
/// keeps the mark it saw.
#[derive(Default)]
pub(super) struct Event {
    record: Mutex<Record>,
}

#[derive(Default, Clone)]
enum Record {
    /// Reached, or never made (which the driver does not ask about).
    #[default]
    Reached,
    At(Mark),
}

impl Event {
    pub(super) fn record(&self, mark: Option<Mark>) {
        *lock(&self.record) = mark.map_or(Record::Reached, Record::At);
    }

    /// The latest record, unless it is reached in any case.
    pub(super) fn mark(&self) -> Option<Mark> {
        match &*lock(&self.record) {
            Record::Reached => None,
            Record::At(mark) => Some(mark.clone()),
        }
    }
}
