//! The threads that compare chunks with their digests, while nobody else touches the bytes.
//!
//! They stand between the threads that read and the receiver of completions: a chunk that is not what it must be never
//! reaches the receiver. Nothing is allocated for a chunk. The queue has an entry for each chunk of the ring; with reads
//! in place it can fill up, and then the threads that read wait for these.

use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::queue::Shared;
use super::report::{add, nanoseconds};
use super::{Completion, Outlet};
use crate::ReadPlan;

/// A completion with a chunk, and the plan that says what it must be.
pub(super) struct Check {
    pub(super) completion: Completion,
    pub(super) plan: Arc<ReadPlan>,
}

/// The queue to the threads.
pub(super) fn queue(shared: &Shared) -> (Sender<Check>, Receiver<Check>) {
    bounded(shared.chunks())
}

/// The loop of one thread; ends when the last thread that reads has ended.
pub(super) fn run(shared: &Shared, checks: &Receiver<Check>, outlet: &Outlet) {
    for Check { mut completion, plan } in checks {
        let since = Instant::now();
        if let (Ok(chunk), Some(digests)) = (&completion.outcome, plan.digests()) {
            let read = &plan.reads()[completion.read as usize];
            add(&shared.counters.checked_bytes, u64::from(read.need.end - read.need.start));
            if let Err(error) = digests.check(&plan, read, chunk.bytes()) {
                completion.outcome = Err(Arc::new(error));
            }
        }
        add(&shared.counters.check_ns, nanoseconds(since.elapsed()));
        outlet.send(shared, completion);
    }
}
