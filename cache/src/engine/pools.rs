//! Slots of one class, and which of their items leaves.

use super::Core;
use crate::policy::Policy;
use crate::readers::Word;
use crate::slots::state::{State, Step};
use crate::slots::{Listed, NONE};
use crate::stats::Cause;
use crate::stats::LogKind;
use crate::stats::layout::{Counter, NO_KEY};

/// One slot in so many may hold what was read ahead against what the policy would keep.
const AHEAD_SHARE: usize = 8;

/// The slots of one class.
pub(crate) struct Pool {
    pub stride_bytes: u64,
    /// Slots of a segment.
    pub per_segment: u32,
    pub free: Vec<u32>,
    /// Sees every item, and is asked for those listed in this pool.
    pub policy: Box<dyn Policy>,
    /// Slots whose items are listed, with the policy or as retained.
    pub evictable: usize,
    /// Slots that are there and not to be given back.
    pub slots: usize,
    /// Items that are pinned, whether there or not.
    pub pinned: usize,
    /// Items listed as retained.
    pub retained: Vec<u32>,
    /// Scratch of a reservation: slots that it needs or may still use, and how many of its members are listed here.
    pub need: usize,
    pub listed_hits: usize,
}

impl Pool {
    pub fn new(stride_bytes: u64, per_segment: u32, policy: Box<dyn Policy>) -> Pool {
        Pool {
            stride_bytes,
            per_segment,
            free: Vec::new(),
            policy,
            evictable: 0,
            slots: 0,
            pinned: 0,
            retained: Vec::new(),
            need: 0,
            listed_hits: 0,
        }
    }
}

/// A victim that is marked absent and has not left.
pub(super) struct Chosen {
    pub slot: u32,
    pub word: Word,
}

impl Core {
    pub(super) fn pool_of(&self, slot: u32) -> usize {
        self.table.get(slot).class as usize
    }

    /// Slots of a pool that a set could have at best.
    pub(super) fn have(&self, pool: usize) -> usize {
        let slots = self.pools[pool].slots;
        if self.quarantined.is_empty() {
            return slots;
        }
        let own = |&&slot: &&u32| self.pool_of(slot) == pool && !self.table.get(slot).leaving;
        let mut aside: Vec<u32> = self.quarantined.iter().filter(own).copied().collect();
        aside.sort_unstable();
        aside.dedup();
        slots.saturating_sub(aside.len())
    }

    /// The slot's item may leave from now on, unless somebody keeps it.
    pub(super) fn list(&mut self, slot: u32) {
        let entry = self.table.get(slot);
        let (item, pool) = (entry.item, entry.class as usize);
        if entry.listed != Listed::No {
            return;
        }
        if entry.leaving {
            self.aside.push(slot);
            return;
        }
        if self.models.is_pinned(item) {
            return;
        }
        let retained = self.is_kept_ahead(slot)
            || (self.models.retained_until(item) > 0
                && self.models.retained_until(item) > self.counters.now_ns());
        let pool = &mut self.pools[pool];
        pool.evictable += 1;
        let listed = if retained {
            pool.retained.push(item);
            Listed::Retained
        } else {
            pool.policy.insert(item);
            Listed::Policy
        };
        self.table.get_mut(slot).listed = listed;
    }

    /// Whether what is in a slot was read ahead and is kept for that: a policy would let go first of what nobody has
    /// used yet. No more than an eighth of a pool is.
    fn is_kept_ahead(&self, slot: u32) -> bool {
        let entry = self.table.get(slot);
        if !entry.speculative {
            return false;
        }
        let pool = &self.pools[entry.class as usize];
        let ahead = pool.retained.iter().filter(|&&item| self.is_ahead(item)).count();
        ahead < (pool.slots / AHEAD_SHARE).max(1)
    }

    /// Whether an item that is there was read ahead and nobody has wanted it since.
    pub(super) fn is_ahead(&self, item: u32) -> bool {
        self.table.get(self.slot_of[item as usize]).speculative
    }

    /// The slot's item may not leave any more.
    pub(super) fn unlist(&mut self, slot: u32) {
        let entry = self.table.get_mut(slot);
        let item = entry.item;
        let listed = std::mem::replace(&mut entry.listed, Listed::No);
        let pool = &mut self.pools[entry.class as usize];
        match listed {
            Listed::No => return,
            Listed::Policy => pool.policy.remove(item),
            Listed::Retained => pool.retained.retain(|&retained| retained != item),
        }
        pool.evictable -= 1;
    }

    /// What should leave next for an item: what was read ahead and not wanted in time, then the policy's choice, and
    /// when that has none what was asked to be kept for a while, the shortest while first.
    fn victim(&mut self, item: u32) -> Option<u32> {
        let pool = self.models.item(item).pool as usize;
        let late = self.late(pool);
        late.or_else(|| self.pools[pool].policy.victim_for(item)).or_else(|| {
            let until = |&item: &u32| {
                let entry = self.table.get(self.slot_of[item as usize]);
                if entry.speculative { entry.hinted_until } else { self.models.retained_until(item) }
            };
            self.pools[pool].retained.iter().copied().min_by_key(until)
        })
    }

    fn late(&self, pool: usize) -> Option<u32> {
        let retained = &self.pools[pool].retained;
        if retained.is_empty() {
            return None;
        }
        let now = self.counters.now_ns();
        retained.iter().copied().find(|&item| {
            let entry = self.table.get(self.slot_of[item as usize]);
            entry.speculative && entry.hinted_until <= now
        })
    }

    /// Marks victims for items that are missing, besides what is free. False if there are not as many; those marked are
    /// in `chosen` either way. The members of the set must not be listed.
    pub(super) fn choose(&mut self, missing: &[u32], mut may: impl FnMut(&Core, u32) -> bool) -> bool {
        for pool in &mut self.pools {
            pool.need = pool.free.len();
        }
        for &item in missing {
            let unused = &mut self.pools[self.models.item(item).pool as usize].need;
            if *unused > 0 {
                *unused -= 1;
            } else if !self.choose_one(item, &mut may) {
                return false;
            }
        }
        true
    }

    fn choose_one(&mut self, item: u32, may: &mut impl FnMut(&Core, u32) -> bool) -> bool {
        while let Some(victim) = self.victim(item) {
            if !may(self, victim) {
                return false;
            }
            let slot = self.slot_of[victim as usize];
            self.unlist(slot);
            if let Some(word) = self.mark(slot) {
                self.chosen.push(Chosen { slot, word });
                return true;
            }
            // A reader holds it.
            self.aside.push(slot);
        }
        false
    }

    /// Marks the slot's item absent unless a reader holds it. Answers the word that stood there.
    pub(super) fn mark(&mut self, slot: u32) -> Option<Word> {
        let (words, group) = self.models.words(self.table.get(slot).item)?;
        let word = words.load(group)?;
        self.readers.try_take(words, group, word).then_some(word)
    }

    /// The reservation came to nothing: what was marked stays.
    pub(super) fn keep_chosen(&mut self) {
        while let Some(chosen) = self.chosen.pop() {
            if let Some((words, group)) = self.models.words(self.table.get(chosen.slot).item) {
                words.store(group, chosen.word);
            }
            self.list(chosen.slot);
        }
    }

    /// What was marked leaves.
    pub(super) fn evict_chosen(&mut self, cause: Cause) {
        while let Some(chosen) = self.chosen.pop() {
            self.evict(chosen.slot, cause);
        }
    }

    /// Takes an item that is marked absent and not listed out of its slot, which is free afterwards.
    pub(super) fn evict(&mut self, slot: u32, cause: Cause) {
        let (item, bytes) = (self.table.get(slot).item, self.table.get(slot).bytes);
        if cause != Cause::Closed {
            self.counters.add(Counter::Evictions, 1);
            self.counters.add(Counter::EvictedBytes, bytes);
            if self.table.state(slot) == State::Draining {
                self.counters.add(Counter::EvictionsDraining, 1);
            }
        }
        self.demote(slot, cause);
        self.note_wasted(slot);
        if self.models.is_pinned(item) && cause != Cause::Closed {
            // Only the slot goes: it is read again elsewhere.
            self.ahead.owed.push(item);
        }
        self.slot_of[item as usize] = NONE;
        self.note_moved(item);
        self.pools[self.table.get(slot).class as usize].policy.left(item);
        self.table.step(slot, Step::Evict);
        let entry = self.table.get_mut(slot);
        entry.item = NONE;
        entry.bytes = 0;
        self.table.describe(slot, NO_KEY, 0);
        self.log(LogKind::Evicted, cause, item, slot);
        self.freed(slot);
    }

    /// A slot holds nothing any more: it may be filled, or its memory may go.
    pub(super) fn freed(&mut self, slot: u32) {
        if self.table.get(slot).leaving {
            self.wake = true;
        } else {
            let pool = self.pool_of(slot);
            self.pools[pool].free.push(slot);
        }
    }

    /// Looks again at slots that readers held, or that are to be given back.
    pub(super) fn look_aside(&mut self) {
        let mut at = 0;
        while let Some(&slot) = self.aside.get(at) {
            let entry = self.table.get(slot);
            let idle = matches!(self.table.state(slot), State::Resident | State::Draining)
                && entry.listed == Listed::No
                && entry.exists;
            let failed = self.table.state(slot) == State::Failed;
            let stays = if failed && self.readers.holds(slot) {
                true
            } else if failed {
                self.reclaim(slot);
                false
            } else if !idle {
                // Leased, or gone: its end lists it again.
                false
            } else if entry.leaving {
                match self.mark(slot) {
                    Some(_) => {
                        self.evict(slot, Cause::Resize);
                        false
                    }
                    None => true,
                }
            } else if self.readers.holds(slot) {
                true
            } else {
                self.list(slot);
                false
            };
            if stays {
                at += 1;
            } else {
                self.aside.swap_remove(at);
            }
        }
    }
}
