//! Slots that come and go with their memory.

use super::Core;
use crate::slots::Listed;
use crate::slots::state::State;
use crate::{Error, ErrorKind, Result};
use spoc_driver::Event;
use std::ops::Range;

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

    /// Slots of a class go: nothing is read into them any more, and what is in them leaves as leases end.
    pub fn begin_leaving(&mut self, slots: Range<u32>) -> Result<()> {
        let pool = self.pool_of(slots.start);
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
        for slot in slots {
            self.unlist(slot);
            let entry = self.table.get_mut(slot);
            entry.leaving = true;
            if matches!(self.table.state(slot), State::Resident | State::Draining) {
                self.aside.push(slot);
            }
        }
        self.refuse_too_wide();
        self.serve_queue();
        Ok(())
    }

    /// Whether nothing uses these slots, nor launches that read them before.
    pub fn have_left(&mut self, slots: Range<u32>) -> bool {
        self.retire_all();
        self.serve_queue();
        slots.into_iter().all(|slot| {
            let entry = self.table.get(slot);
            self.table.state(slot) == State::Free && entry.drains.is_empty() && !self.readers.may_read(slot)
        })
    }

    /// They have left: their memory may go.
    pub fn remove_slots(&mut self, slots: Range<u32>) {
        for slot in slots {
            self.table.remove(slot);
        }
    }

    /// They did not leave in time: they stay.
    pub fn stop_leaving(&mut self, slots: Range<u32>) {
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
