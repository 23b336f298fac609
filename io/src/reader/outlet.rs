//! Where completions leave the reader.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{SendTimeoutError, Sender};

use super::checks::Check;
use super::queue::{Shared, Ticket};
use super::report::add;
use super::{Chunk, Completion, Faults};
use crate::file::WeightFile;
use crate::{Error, ErrorKind, Result};

/// Where the threads put completions.
#[derive(Clone)]
pub(crate) struct Outlet {
    pub(super) sender: Sender<Completion>,
    pub(super) faults: Option<Arc<dyn Faults>>,
    /// The way that chunks with digests take; none for the threads at its end.
    pub(super) checks: Option<Sender<Check>>,
}

impl Outlet {
    /// Sends the completion of a read.
    pub(crate) fn deliver(&self, shared: &Shared, ticket: Ticket, outcome: Result<Chunk>) {
        let Some((completion, plan)) = shared.finish(ticket, outcome) else { return };
        let completion = match (plan, &self.checks) {
            (Some(plan), Some(checks)) if completion.outcome.is_ok() => {
                match checks.send(Check { completion, plan }) {
                    Ok(()) => return,
                    Err(unsent) => unsent.0.completion,
                }
            }
            _ => completion,
        };
        self.send(shared, completion);
    }

    pub(super) fn send(&self, shared: &Shared, mut completion: Completion) {
        add(&shared.counters.completions, 1);
        add(&shared.counters.failures, u64::from(completion.outcome.is_err()));
        // Waits while the receiver is slow, but not after the reader was dropped: then nobody may be receiving.
        const LOOK_AGAIN: Duration = Duration::from_millis(20);
        loop {
            match self.sender.send_timeout(completion, LOOK_AGAIN) {
                Err(SendTimeoutError::Timeout(unsent)) if !shared.stopping() => completion = unsent,
                _ => return,
            }
        }
    }

    /// Sends the completion of a read whose request failed before it started.
    pub(crate) fn deliver_failed(&self, shared: &Shared, ticket: Ticket) {
        self.deliver(shared, ticket, Err(Error::new(ErrorKind::Cancelled, "the request was cancelled")));
    }

    pub(crate) fn disturb(
        &self,
        answer: std::io::Result<usize>,
        file: &WeightFile,
        offset: u64,
    ) -> std::io::Result<usize> {
        let Some(faults) = &self.faults else { return answer };
        let number = |e: std::io::Error| e.raw_os_error().unwrap_or(libc::EIO);
        faults.answer(answer.map_err(number), file, offset).map_err(std::io::Error::from_raw_os_error)
    }
}
