//! Events: a place in the one order.

use std::sync::Mutex;

use crate::sync::lock;

/// The place of the latest record.
#[derive(Debug, Default)]
pub(super) struct Event {
    ticket: Mutex<Option<u64>>,
}

impl Event {
    pub(super) fn record(&self, ticket: u64) {
        *lock(&self.ticket) = Some(ticket);
    }

    /// The latest record, if there was one.
    pub(super) fn ticket(&self) -> Option<u64> {
        *lock(&self.ticket)
    }
}
