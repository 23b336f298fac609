//! The cache's book-keeping, all of it behind one lock: which key is in which slot, who waits for what, what
//! may leave. It enqueues device waits and event records and starts and cancels reads, none of which blocks.
//!
//! Lock order: this one, then the pump's job table. The pump calls in without holding its own.

mod acquire;
mod drains;
mod fills;
mod leases;
mod models;
#[cfg(test)]
mod tests;

pub(crate) use acquire::{Grant, TicketState};

use crate::arena::Arena;
use crate::policy::Policy;
use crate::pump::{Feed, Sink};
use crate::slots::state::State;
use crate::slots::{NONE, SlotTable};
use crate::stats::layout as at;
use crate::stats::{Counters, LogKind};
use acquire::Ticket;
use drains::Drains;
use models::Models;
use spoc_driver::{Device, Event};
use std::collections::VecDeque;
use std::sync::Arc;

/// State of one cache.
pub(crate) struct Core {
    arena: Arc<Arena>,
    feed: Arc<dyn Feed>,
    /// What the pump is told to call for this cache's fills.
    sink: Arc<dyn Sink>,
    counters: Counters,
    models: Models,
    table: SlotTable,
    free: Vec<u32>,
    /// Item → slot that holds or loads it.
    slot_of: Vec<u32>,
    policy: Box<dyn Policy>,
    /// Slots whose items the policy may choose.
    evictable: usize,
    tickets: Vec<Ticket>,
    unused_tickets: Vec<u32>,
    queue: VecDeque<u32>,
    drains: Drains,
    /// Slots whose launches no event covers, kept until the device is synchronised.
    quarantined: Vec<u32>,
    leases: u64,
    in_flight_bytes: u64,
    /// Epoch in which an item was last seen in a set, and where: finds duplicates in one pass.
    seen: Vec<(u64, u32)>,
    epoch: u64,
    scratch: Vec<u32>,
    /// Why the last fill failed.
    last_error: Option<crate::Error>,
    closed: bool,
    /// Someone may have become ready since the lock was taken.
    wake: bool,
}

/// What a core is made of.
pub(crate) struct Parts {
    pub device: Device,
    pub arena: Arc<Arena>,
    pub feed: Arc<dyn Feed>,
    pub sink: Arc<dyn Sink>,
    pub counters: Counters,
    pub policy: Box<dyn Policy>,
    /// One event a slot.
    pub ready: Vec<Event>,
}

impl Core {
    pub fn new(parts: Parts) -> Core {
        let slots = u32::try_from(parts.ready.len()).unwrap_or(NONE);
        parts.counters.set_up_slots(
            parts.ready.len(),
            parts.arena.geometry().stride_bytes,
            parts.policy.kind() as u8,
        );
        let core = Core {
            table: SlotTable::new(parts.ready, parts.counters.clone()),
            // Taken from the end: slot 0 first.
            free: (0..slots).rev().collect(),
            arena: parts.arena,
            feed: parts.feed,
            sink: parts.sink,
            counters: parts.counters,
            models: Models::default(),
            slot_of: Vec::new(),
            policy: parts.policy,
            evictable: 0,
            tickets: Vec::new(),
            unused_tickets: Vec::new(),
            queue: VecDeque::new(),
            drains: Drains::new(parts.device),
            quarantined: Vec::new(),
            leases: 0,
            in_flight_bytes: 0,
            seen: Vec::new(),
            epoch: 0,
            scratch: Vec::new(),
            last_error: None,
            closed: false,
            wake: false,
        };
        core.publish_snapshot();
        core
    }

    /// Ends one use of the core: figures that must agree are published, and whether somebody is to be woken.
    pub fn finish(&mut self) -> bool {
        self.publish_snapshot();
        std::mem::take(&mut self.wake)
    }

    fn publish_snapshot(&self) {
        let counts = self.table.counts();
        let states = |state: State| (at::S_STATES + state as usize, counts[state as usize]);
        self.counters.snapshot(&[
            states(State::Free),
            states(State::Loading),
            states(State::Resident),
            states(State::Leased),
            states(State::Draining),
            states(State::Failed),
            (at::S_IN_FLIGHT, counts[State::Loading as usize]),
            (at::S_IN_FLIGHT_BYTES, self.in_flight_bytes),
            (at::S_QUEUED, self.queue.len() as u64),
            (at::S_LEASES, self.leases),
        ]);
    }

    fn log(&self, kind: LogKind, cause: crate::stats::Cause, item: u32, slot: u32) {
        self.counters.log(kind, cause, self.models.key_word(item), slot);
    }

    /// Retires releases whose events have fired, looking at no more than `most`.
    pub fn retire(&mut self, mut most: usize) {
        let mut ended = std::mem::take(&mut self.scratch);
        while let Some(drain) = self.drains.poll(&mut most, &mut ended) {
            for &slot in &ended {
                self.drained(slot, drain);
            }
        }
        self.scratch = ended;
    }

    /// Retires whatever can be.
    pub fn retire_all(&mut self) {
        self.retire(self.drains.active());
    }

    /// Whether anything still refers to a slot beyond its contents: for tests of leaks.
    #[cfg(test)]
    pub fn is_quiet(&self) -> bool {
        self.queue.is_empty()
            && self.leases == 0
            && self.unused_tickets.len() == self.tickets.len()
            && self.drains.active() == 0
            && self.table.iter().all(|slot| {
                slot.leases == 0 && slot.job.is_none() && slot.waiters.is_empty() && slot.drains.is_empty()
            })
    }
}
