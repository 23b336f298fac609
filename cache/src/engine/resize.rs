//! Slots that come and go with their memory.

use super::Core;
use crate::slots::Listed;
use crate::slots::state::State;
use crate::{Error, ErrorKind, Result};
use spoc_driver::{Event, Segment};
use std::ops::Range;

/// How far slots are that began to leave.
pub(crate) enum Leaving {
    /// Something still uses them.
    Still,
    /// They have left: dropping this frees their memory, which may block.
    Left(Segment),
    /// Somebody wanted them to stay, or took them out.
    NotAnyMore,
}

impl Core {
    /// Slots whose memory is there from now on; `ready` are events for those that are new.
    pub fn add_slots(&mut self, class: u32, slots: Range<u32>, ready: Vec<Event>) -> Result<()> {
        let mut ready = ready.into_iter();
        for slot in slots.clone() {
            let missing = || Error::new(ErrorKind::TooManySlots { need: slot + 1, have: slot });
            self.table.add(slot, class, || ready.next().ok_or_else(missing))?;
        }
        let pool = &mut self.pools[class as usize];
        pool.slots += slots.len();
        pool.policy.set_capacity(pool.slots);
        // Taken from the end: the lowest number first.
        pool.free.splice(0..0, slots.rev());
        self.reuse.set_slots(self.pools.iter().map(|pool| pool.slots).sum());
        let strides = self.pools.iter().map(|pool| pool.stride_bytes).max();
        self.counters.set_up_slots(
            self.table.len(),
            strides.unwrap_or(0),
            self.pools.first().map_or(0, |pool| pool.policy.kind() as u8),
        );
        self.serve_queue();
        Ok(())
    }

    /// Slots there are of a class; `None` for a class that does not exist.
    pub fn slots_of_class(&self, class: u32) -> Option<usize> {
        self.pools.get(class as usize).map(|pool| pool.slots)
    }

    /// Bytes from slot to slot of a class, and slots of a whole segment.
    pub fn layout_of_class(&self, class: u32) -> Option<(u64, u32)> {
        self.pools.get(class as usize).map(|pool| (pool.stride_bytes, pool.per_segment))
    }

    /// The last segment of a class whose slots stay begins to leave, if at least `keep` slots stay after it: nothing is
    /// read into its slots any more, and what is in them leaves as leases end. Its slots; `None` if there is no such.
    pub fn begin_leaving(&mut self, class: u32, keep: usize) -> Result<Option<Range<u32>>> {
        // Chosen under the lock: a segment that another thread empties, or that has no slots yet, is not this one's.
        let stays = |slots: &Range<u32>| {
            self.table.find(slots.start).is_some_and(|entry| entry.exists && !entry.leaving)
        };
        let Some(slots) = self.arena.segments_of(class).into_iter().rfind(stays) else { return Ok(None) };
        let pool = class as usize;
        if self.pools[pool].slots < keep.saturating_add(slots.len()) {
            return Ok(None);
        }
        let (need, have) = (self.pools[pool].pinned, self.have(pool).saturating_sub(slots.len()));
        if need > have {
            return Err(Error::new(ErrorKind::TooWide { need, have }));
        }
        self.take_visits();
        self.pools[pool].slots -= slots.len();
        let left = self.pools[pool].slots;
        self.pools[pool].policy.set_capacity(left);
        self.reuse.set_slots(self.pools.iter().map(|pool| pool.slots).sum());
        self.pools[pool].free.retain(|free| !slots.contains(free));
        for slot in slots.clone() {
            self.unlist(slot);
            let entry = self.table.get_mut(slot);
            entry.leaving = true;
            if matches!(self.table.state(slot), State::Resident | State::Draining) {
                self.aside.push(slot);
            }
        }
        self.refuse_too_wide();
        self.serve_queue();
        Ok(Some(slots))
    }

    /// Takes slots out whose memory nothing uses any more, nor launches that read it before.
    pub fn try_remove_slots(&mut self, slots: Range<u32>) -> Leaving {
        if !self.leave(slots.start) {
            return Leaving::NotAnyMore;
        }
        self.retire_all();
        self.serve_queue();
        let left = slots.clone().all(|slot| {
            let entry = self.table.get(slot);
            self.table.state(slot) == State::Free && entry.drains.is_empty() && !self.readers.may_read(slot)
        });
        if !left {
            return Leaving::Still;
        }
        slots.clone().for_each(|slot| self.table.remove(slot));
        // Under the same lock, so that whoever sees the slots gone can have their numbers.
        self.arena.give_back(slots.start).map_or(Leaving::NotAnyMore, Leaving::Left)
    }

    fn leave(&self, slot: u32) -> bool {
        self.table.find(slot).is_some_and(|entry| entry.exists && entry.leaving)
    }

    /// Slots of a class that are about to leave stay: one segment of at most `most`. Answers how many these are, 0 if
    /// there is no such segment.
    pub fn keep_leaving(&mut self, class: u32, most: u32) -> u32 {
        let fits = |slots: &Range<u32>| slots.end - slots.start <= most && self.leave(slots.start);
        let Some(slots) = self.arena.segments_of(class).into_iter().find(fits) else { return 0 };
        self.stop_leaving(slots.clone());
        slots.end - slots.start
    }

    /// They did not leave in time: they stay.
    pub fn stop_leaving(&mut self, slots: Range<u32>) {
        if !self.leave(slots.start) {
            return;
        }
        let pool = self.pool_of(slots.start);
        self.pools[pool].slots += slots.len();
        let again = self.pools[pool].slots;
        self.pools[pool].policy.set_capacity(again);
        self.reuse.set_slots(self.pools.iter().map(|pool| pool.slots).sum());
        for slot in slots {
            self.table.get_mut(slot).leaving = false;
            match self.table.state(slot) {
                State::Free => self.pools[pool].free.push(slot),
                State::Resident | State::Draining if self.table.get(slot).listed == Listed::No => {
                    self.list(slot);
                }
                _ => {}
            }
        }
        self.serve_queue();
    }
}
