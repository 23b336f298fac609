//! The cache's book-keeping, all of it behind one lock: which key is in which slot, who waits for what, what
//! may leave. It enqueues device waits and event records and starts and cancels reads, none of which blocks.
//!
//! Readers find resident groups without this lock (`crate::readers`); what they found comes here when somebody needs
//! to know. Lock order: this one, then the pump's job table or a reader's releases. The pump calls in without holding
//! its own.

mod acquire;
mod ahead;
mod claims;
mod drains;
mod events;
mod fills;
mod governor;
mod keep;
mod leases;
mod models;
mod pools;
mod resize;
mod reuse;
#[cfg(test)]
mod tests;
mod tiers;
mod visits;
mod words;

pub(crate) use acquire::{Grant, TicketState};
pub use ahead::Hinted;
pub(crate) use claims::Claimed;
pub use events::{CacheEvent, Subscription};
pub use keep::Evicted;
pub(crate) use models::ModelWords;
pub(crate) use resize::Leaving;
pub use words::SequenceWord;

use crate::arena::Arena;
use crate::pump::{Feed, Sink};
use crate::readers::{ReaderCell, Registry};
use crate::slots::SlotTable;
use crate::slots::state::State;
use crate::stats::layout as at;
use crate::stats::{Counters, LogKind, PageOwner};
use crate::tier::Tier;
use acquire::Ticket;
use ahead::Ahead;
use drains::Drains;
use events::Subscribers;
use governor::Governor;
use models::Models;
use pools::Chosen;
pub(crate) use pools::Pool;
use reuse::Reuse;
use spoc_driver::{Device, Segment};
use std::collections::VecDeque;
use std::sync::Arc;
use words::{Awaiting, Mirror};

/// State of one cache.
pub(crate) struct Core {
    feed: Arc<dyn Feed>,
    /// What the pump is told to call for this cache's fills.
    sink: Arc<dyn Sink>,
    counters: Counters,
    models: Models,
    table: SlotTable,
    /// One a slot class.
    pools: Vec<Pool>,
    /// Item → slot that holds or loads it.
    slot_of: Vec<u32>,
    readers: Registry,
    /// Slots that could leave but for readers that hold them, or for being given back.
    aside: Vec<u32>,
    /// Victims of the reservation under way, marked absent.
    chosen: Vec<Chosen>,
    tickets: Vec<Ticket>,
    unused_tickets: Vec<u32>,
    queue: VecDeque<u32>,
    drains: Drains,
    /// Slots whose launches no event covers, kept until the device is synchronised.
    quarantined: Vec<u32>,
    ahead: Ahead,
    governor: Governor,
    reuse: Reuse,
    events: Subscribers,
    awaiting: Awaiting,
    /// The slot table in device memory, if one was asked for.
    mirror: Option<Mirror>,
    /// Where groups stay that left their slots, if anywhere.
    tier: Option<Tier>,
    leases: u64,
    in_flight_bytes: u64,
    /// Epoch in which an item was last seen in a set, and where: finds duplicates in one pass.
    seen: Vec<(u64, u32)>,
    epoch: u64,
    scratch: Vec<u32>,
    /// Items of the reservation under way that are in no slot.
    missing: Vec<u32>,
    /// Why the last fill failed.
    last_error: Option<crate::Error>,
    closed: bool,
    /// Someone may have become ready since the lock was taken.
    wake: bool,
    /// Slots and snapshots of the page are this cache's until its last lease is back.
    _page: PageOwner,
    /// Dropped behind everything that waits for launches: the memory goes with it.
    arena: Arc<Arena>,
}

/// What a core is made of.
pub(crate) struct Parts {
    pub device: Device,
    pub arena: Arc<Arena>,
    pub feed: Arc<dyn Feed>,
    pub sink: Arc<dyn Sink>,
    pub counters: Counters,
    pub page: PageOwner,
    pub pools: Vec<Pool>,
    pub readers: Registry,
    /// Device memory for the slot table, for how many items, and whether the device can write words by itself.
    pub table: Option<(Segment, u32, bool)>,
    pub tier: Option<Tier>,
}

impl Core {
    /// A core without slots: [`add_slots`](Core::add_slots) brings them.
    pub fn new(parts: Parts) -> Core {
        Core {
            table: SlotTable::new(parts.counters.clone()),
            arena: parts.arena,
            feed: parts.feed,
            sink: parts.sink,
            counters: parts.counters,
            models: Models::default(),
            pools: parts.pools,
            slot_of: Vec::new(),
            readers: parts.readers,
            aside: Vec::new(),
            chosen: Vec::new(),
            tickets: Vec::new(),
            unused_tickets: Vec::new(),
            queue: VecDeque::new(),
            drains: Drains::new(parts.device),
            quarantined: Vec::new(),
            ahead: Ahead::default(),
            governor: Governor::default(),
            reuse: Reuse::default(),
            events: Subscribers::default(),
            awaiting: Awaiting::default(),
            mirror: parts
                .table
                .map(|(segment, items_max, by_value)| Mirror::new(segment, items_max, by_value)),
            tier: parts.tier,
            leases: 0,
            in_flight_bytes: 0,
            seen: Vec::new(),
            epoch: 0,
            scratch: Vec::new(),
            missing: Vec::new(),
            last_error: None,
            closed: false,
            wake: false,
            _page: parts.page,
        }
    }

    /// Ends one use of the core: figures that must agree are published, and whether somebody is to be woken.
    pub fn finish(&mut self) -> bool {
        self.count_readers();
        self.publish_snapshot();
        std::mem::take(&mut self.wake)
    }

    fn publish_snapshot(&self) {
        let counts = self.table.counts();
        self.counters.governor(self.governor.is_off());
        let (tier_bytes, tier_room) = self.tier.as_ref().map_or((0, 0), Tier::bytes);
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
            (at::S_TIER_BYTES, tier_bytes),
            (at::S_TIER_ROOM_BYTES, tier_room),
        ]);
    }

    fn log(&mut self, kind: LogKind, cause: crate::stats::Cause, item: u32, slot: u32) {
        self.counters.log(kind, cause, self.models.key_word(item), slot);
        if let Some(key) = self.models.key_of(item) {
            self.events.tell(&self.counters, kind, cause, key, slot);
        }
    }

    /// Retires releases whose events have fired, looking at no more than `most`.
    pub fn retire(&mut self, mut most: usize) {
        self.look_at_words();
        let mut ended = std::mem::take(&mut self.scratch);
        while let Some(drain) = self.drains.poll(&mut most, &mut ended) {
            for &slot in &ended {
                self.drained(slot, drain);
            }
        }
        self.scratch = ended;
    }

    /// A reader more.
    pub fn join_reader(&mut self) -> Arc<ReaderCell> {
        self.readers.join()
    }

    /// Retires whatever can be.
    pub fn retire_all(&mut self) {
        self.retire(self.drains.active());
        if !self.readers.is_empty() {
            self.readers.note_gone();
            self.take_visits();
            self.count_readers();
            self.readers.retire();
        }
    }

    /// What is to be looked at now and then, while little happens.
    pub fn tick(&mut self) {
        if let Some(tier) = &mut self.tier {
            tier.settle();
        }
        // The pump's own page beats by itself; this one may be another.
        self.counters.beat();
        self.retire_all();
        self.serve_queue();
    }

    /// Whether anything still refers to a slot beyond its contents: for tests of leaks.
    #[cfg(test)]
    pub fn is_quiet(&self) -> bool {
        self.queue.is_empty()
            && self.leases == 0
            && self.unused_tickets.len() == self.tickets.len()
            && self.drains.active() == 0
            && self.chosen.is_empty()
            && self.table.iter().all(|slot| {
                slot.leases == 0 && slot.job.is_none() && slot.waiters.is_empty() && slot.drains.is_empty()
            })
    }
}
