//! The pending table: which command buffers bind which memory, so that the host waits for these before it reaches there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use spoc_driver::Result;

use super::api::Api;
use super::lane::{Lane, Point};
use crate::sync::lock;

/// Entries of one memory beyond which those that are over are looked for.
const ENTRIES_KEPT: usize = 8;

/// Names a memory for as long as the device is open.
pub(super) type MemoryId = u64;

/// For each memory: the newest value of each lane that binds it.
pub(super) struct Pending<A: Api>(Mutex<HashMap<MemoryId, Entries<A>>>);

type Entries<A> = Vec<(Weak<Lane<A>>, u64)>;

impl<A: Api> Default for Pending<A> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<A: Api> Pending<A> {
    /// A launch that has run at `value` of the lane binds the memory.
    pub(super) fn bind(&self, id: MemoryId, lane: &Arc<Lane<A>>, value: u64) {
        let mut table = lock(&self.0);
        let entries = table.entry(id).or_default();
        let is_this = |known: &Weak<Lane<A>>| std::ptr::eq(known.as_ptr(), Arc::as_ptr(lane));
        match entries.iter_mut().find(|(known, _)| is_this(known)) {
            Some((_, newest)) => *newest = value.max(*newest),
            None => entries.push((Arc::downgrade(lane), value)),
        }
        if entries.len() > ENTRIES_KEPT {
            entries.retain(|(known, _)| known.strong_count() > 0);
        }
    }

    /// Waits until nothing that was launched so far binds the memory.
    ///
    /// # Errors
    /// `AsyncFailure` of a lane that binds it.
    pub(super) fn settle(&self, id: MemoryId) -> Result<()> {
        // Without the table's lock: another thread's launch must not wait for this.
        let Some(entries) = lock(&self.0).remove(&id) else { return Ok(()) };
        for (at, (lane, value)) in entries.iter().enumerate() {
            // A lane that is gone was waited for, by whoever let it go.
            let Some(lane) = lane.upgrade() else { continue };
            if let Err(error) = (Point { lane, value: *value }).wait() {
                lock(&self.0).entry(id).or_default().extend(entries[at..].iter().cloned());
                return Err(error);
            }
        }
        Ok(())
    }

    /// The memory is no more.
    pub(super) fn forget(&self, id: MemoryId) {
        lock(&self.0).remove(&id);
    }
}
