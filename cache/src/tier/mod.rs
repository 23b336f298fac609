//! The host tier: groups that left their slots stay in pinned host memory, from where they come back over the link alone.
//!
//! A group that is evicted is copied out of its slot on a stream of the tier's own, behind the copies that filled it; the
//! slot's next fill waits for that copy's event, on the device. Launches that still read the slot need not be waited
//! for: weights are only read. A fill whose group is in the tier is one copy on the pump's stream; of one that is still on
//! its way there the pump's thread begins that copy as soon as it has arrived, so that a demand joins a demotion. All of
//! this is book-keeping under the cache's lock; berths (`spoc_bridge::Berths`) are charged until the last copy let go of them.

mod pinning;

pub use pinning::TierOptions;
pub(crate) use pinning::{Pinning, berths_for, check_room};

use crate::policy::Policy;
use crate::stats::Counters;
use crate::stats::layout::Counter;
use spoc_bridge::{Berths, GivenBack, Kept};
use spoc_driver::{Event, Segment, Stream};
use std::collections::VecDeque;
use std::sync::Arc;

/// Copies into the tier that may be under way, bytes: what leaves beyond that is dropped. They share the link with nothing
/// that a demand waits for but the fill of their own slot, which they hold up.
const DEMOTING_BYTES_MAX: u64 = 256 << 20;

/// What is left of a slot class in the tier.
struct Class {
    berths: Arc<Berths>,
    /// Asked for those that are kept, told of every visit.
    policy: Box<dyn Policy>,
    /// As the policy was told.
    capacity: usize,
}

/// One group in the tier.
struct Entry {
    kept: Arc<Kept>,
    class: usize,
}

/// The tier's book-keeping.
pub(crate) struct Tier {
    inclusive: bool,
    stream: Stream,
    classes: Vec<Class>,
    counters: Counters,
    /// Item → what is kept of it.
    entries: Vec<Option<Entry>>,
    /// Slot → the event behind the copy out of it, until its next fill waits for that.
    read_out: Vec<Option<Event>>,
    /// Copies under way, oldest first.
    demoting: VecDeque<(u32, Arc<Kept>)>,
    demoting_bytes: u64,
    /// The last event's items: they are wanted now, and leave for nothing.
    wanted: Vec<u32>,
    kept_bytes: u64,
}

/// A slot that a group is about to leave, or has come into.
pub(crate) struct Leaving<'a> {
    pub item: u32,
    pub slot: u32,
    pub class: usize,
    pub segment: &'a Segment,
    pub offset_bytes: u64,
    pub len_bytes: u64,
    /// The event behind the copies into the slot, if they may still run.
    pub ready: Option<&'a Event>,
}

impl Tier {
    /// A tier with a class of berths and a policy for each slot class; `stream` is its own.
    pub fn new(
        stream: Stream,
        classes: Vec<(Arc<Berths>, Box<dyn Policy>)>,
        inclusive: bool,
        counters: Counters,
    ) -> Tier {
        Tier {
            inclusive,
            stream,
            classes: classes
                .into_iter()
                .map(|(berths, policy)| Class { berths, policy, capacity: 0 })
                .collect(),
            counters,
            entries: Vec::new(),
            read_out: Vec::new(),
            demoting: VecDeque::new(),
            demoting_bytes: 0,
            wanted: Vec::new(),
            kept_bytes: 0,
        }
    }

    /// Whether groups stay in the tier while they are in a slot.
    pub fn is_inclusive(&self) -> bool {
        self.inclusive
    }

    /// Items of one more model, as [`Policy::add_model`] is told.
    pub fn add_model(&mut self, positions: &[u32]) {
        self.entries.resize_with(self.entries.len() + positions.len(), || None);
        self.classes.iter_mut().for_each(|class| class.policy.add_model(positions));
    }

    /// One event, for the policies.
    pub fn visit(&mut self, items: &[u32]) {
        self.wanted.clear();
        self.wanted.extend_from_slice(items);
        self.classes.iter_mut().for_each(|class| class.policy.visit(items));
    }

    /// What is kept of an item, to fill a slot with.
    pub fn find(&mut self, item: u32) -> Option<Arc<Kept>> {
        self.settle();
        self.entries.get(item as usize)?.as_ref().map(|entry| Arc::clone(&entry.kept))
    }

    /// Nothing is kept of an item any more; copies under way hold its berth until they have run.
    pub fn forget(&mut self, item: u32) {
        let Some(entry) = self.entries.get_mut(item as usize).and_then(Option::take) else { return };
        let class = &mut self.classes[entry.class];
        class.policy.remove(item);
        class.policy.left(item);
        self.kept_bytes -= entry.kept.len_bytes() as u64;
    }

    /// The event that the next fill of a slot is to wait for: the tier may still read it.
    pub fn take_read_out(&mut self, slot: u32) -> Option<Event> {
        self.read_out.get_mut(slot as usize)?.take()
    }

    /// Copies a group out of its slot, if that is worth it. A group that is kept already needs no copy.
    pub fn keep(&mut self, leaving: &Leaving<'_>) {
        self.settle();
        if leaving.len_bytes == 0 || self.entries.get(leaving.item as usize).is_none_or(Option::is_some) {
            return;
        }
        if self.demoting_bytes + leaving.len_bytes > DEMOTING_BYTES_MAX.max(leaving.len_bytes) {
            return self.counters.add(Counter::TierDroppedBusy, 1);
        }
        let Some(berth) = self.room(leaving.class, leaving.item) else {
            return self.counters.add(Counter::TierDroppedFull, 1);
        };
        let len_bytes = usize::try_from(leaving.len_bytes).unwrap_or(usize::MAX);
        let from = (leaving.segment, leaving.offset_bytes);
        let ordered = leaving.ready.map_or(Ok(()), |ready| self.stream.wait(ready));
        match ordered.and_then(|()| Kept::demote(&self.stream, from, len_bytes, berth)) {
            Ok(kept) => self.enter(leaving, Arc::new(kept)),
            Err(error) => {
                tracing::debug!(%error, item = leaving.item, "a group was not kept in the host tier");
                self.counters.add(Counter::TierDroppedFailed, 1);
            }
        }
    }

    fn enter(&mut self, leaving: &Leaving<'_>, kept: Arc<Kept>) {
        self.counters.add(Counter::TierInBytes, leaving.len_bytes);
        let slot = leaving.slot as usize;
        if self.read_out.len() <= slot {
            self.read_out.resize_with(slot + 1, || None);
        }
        self.read_out[slot] = Some(kept.written().clone());
        self.demoting_bytes += leaving.len_bytes;
        self.kept_bytes += leaving.len_bytes;
        self.demoting.push_back((leaving.item, Arc::clone(&kept)));
        self.entries[leaving.item as usize] = Some(Entry { kept, class: leaving.class });
        self.classes[leaving.class].policy.insert(leaving.item);
    }

    /// A free berth, or that of what the policy would have leave.
    fn room(&mut self, class: usize, item: u32) -> Option<spoc_bridge::Berth> {
        let own = &mut self.classes[class];
        let berths = Arc::clone(&own.berths);
        let count = berths.count();
        if own.capacity != count {
            own.capacity = count;
            own.policy.set_capacity(count);
        }
        if let Some(berth) = berths.take() {
            return Some(berth);
        }
        // What is wanted now is not asked for: it is about to be copied out of here.
        let own = &mut self.classes[class];
        let is_own = |item: &u32, entries: &[Option<Entry>]| {
            entries.get(*item as usize).and_then(Option::as_ref).is_some_and(|entry| entry.class == class)
        };
        let wanted: Vec<u32> =
            self.wanted.iter().copied().filter(|wanted| is_own(wanted, &self.entries)).collect();
        wanted.iter().for_each(|&wanted| own.policy.remove(wanted));
        // One that a copy still holds does not come free by leaving: the second choice may.
        let mut berth = None;
        for _ in 0..2 {
            let Some(victim) = self.classes[class].policy.victim_for(item) else { break };
            self.forget(victim);
            self.counters.add(Counter::TierEvictions, 1);
            berth = berths.take();
            if berth.is_some() {
                break;
            }
        }
        wanted.iter().for_each(|&wanted| self.classes[class].policy.insert(wanted));
        berth
    }

    /// Looks at copies into the tier: those that have run are done, those that failed are forgotten.
    pub fn settle(&mut self) {
        while let Some((item, kept)) = self.demoting.front() {
            let (item, failed) = match kept.is_there() {
                Ok(false) => return,
                Ok(true) => (*item, false),
                Err(error) => {
                    tracing::warn!(%error, item, "a copy into the host tier failed");
                    (*item, true)
                }
            };
            let Some((_, kept)) = self.demoting.pop_front() else { return };
            self.demoting_bytes -= kept.len_bytes() as u64;
            let own = self.entries[item as usize].as_ref();
            if failed && own.is_some_and(|entry| Arc::ptr_eq(&entry.kept, &kept)) {
                self.forget(item);
                self.counters.add(Counter::TierDroppedFailed, 1);
            }
        }
    }

    /// Gives back at least so many bytes of pinned memory, or all there is. What is kept there is forgotten. Drop the
    /// answer without the cache's lock: freeing pinned memory takes a while.
    pub fn give_back(&mut self, bytes: u64) -> Vec<GivenBack> {
        self.settle();
        let mut given: Vec<GivenBack> = Vec::new();
        for class in &self.classes {
            let done: u64 = given.iter().map(GivenBack::bytes).sum();
            given.push(class.berths.give_back(bytes.saturating_sub(done)));
        }
        for item in (0u32..).take(self.entries.len()) {
            if self.entries[item as usize].as_ref().is_some_and(|entry| entry.kept.is_leaving()) {
                self.forget(item);
            }
        }
        given
    }

    /// Whether an item is kept.
    #[cfg(test)]
    pub fn has(&self, item: u32) -> bool {
        self.entries.get(item as usize).is_some_and(Option::is_some)
    }

    /// Bytes of what is kept, and of all pinned memory.
    pub fn bytes(&self) -> (u64, u64) {
        (self.kept_bytes, self.classes.iter().map(|class| class.berths.bytes()).sum())
    }
}
