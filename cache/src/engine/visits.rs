//! What readers found by themselves reaches the policy and the counters here.

use super::Core;
use crate::readers::sets;
use crate::slots::{Listed, NONE};
use crate::stats::layout::Counter;

impl Core {
    /// One event: these items were wanted together.
    pub(super) fn visit(&mut self, items: &[u32]) {
        self.models.event += 1;
        for &item in items {
            self.models.note_visit(item);
        }
        for pool in &mut self.pools {
            pool.policy.visit(items);
        }
        if let Some(tier) = &mut self.tier {
            tier.visit(items);
        }
        let Some(&first) = items.first() else { return };
        let position = self.models.position(first);
        self.reuse.visit(items, position, &self.counters);
        self.warn_of_floor();
    }

    /// The sets that readers found, before anything is decided.
    pub(super) fn take_visits(&mut self) {
        if self.readers.is_empty() {
            return;
        }
        let mut fetched = std::mem::take(&mut self.scratch);
        let mut reader = 0;
        while self.readers.visits(reader, &mut fetched) {
            sets(&mut fetched, |set| self.take_set(set));
            reader += 1;
        }
        fetched.clear();
        self.scratch = fetched;
    }

    fn take_set(&mut self, set: &[u32]) {
        self.visit(set);
        for &item in set {
            let slot = self.slot_of[item as usize];
            if slot == NONE {
                continue;
            }
            self.note_useful(slot);
            self.table.used(slot, self.models.position(item));
            let entry = self.table.get(slot);
            if entry.listed == Listed::Policy {
                // As a lease would have: taken and given back.
                let policy = &mut self.pools[entry.class as usize].policy;
                policy.remove(item);
                policy.insert(item);
            }
        }
    }

    /// What readers counted reaches the page; every set of theirs was a hit as a whole.
    pub(super) fn count_readers(&mut self) {
        if self.readers.is_empty() {
            return;
        }
        let found = self.readers.found();
        if found.sets == 0 && found.ended == 0 {
            return;
        }
        for (counter, by) in [
            (Counter::Requested, found.hits),
            (Counter::Hits, found.hits),
            (Counter::Acquires, found.sets),
            (Counter::LeasesGiven, found.sets),
            (Counter::LeasesReleased, found.ended),
        ] {
            self.counters.add(counter, by);
        }
        self.leases = (self.leases + found.sets).saturating_sub(found.ended);
    }
}
