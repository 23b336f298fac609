//! Leases coming back: slots drain behind the events that were recorded for them.

use super::{Core, Grant};
use crate::readers::{ReaderCell, Registry};
use crate::slots::NONE;
use crate::slots::state::{State, Step};
use crate::stats::layout::Counter;
use spoc_driver::Stream;

impl Core {
    /// Gives slots back behind everything enqueued so far on these streams. No stream: nothing was launched.
    ///
    /// If an event cannot be recorded the slots are kept aside until [`recover`](Core::recover): nothing else
    /// says when they will have been read.
    pub fn release(&mut self, slots: &[u32], streams: &[&Stream]) -> Result<(), spoc_driver::Error> {
        self.retire(4);
        let recorded = match streams {
            [] => Ok(None),
            streams => self.drains.record(slots, streams).map(Some),
        };
        match recorded {
            Ok(drain) => {
                for &slot in slots {
                    self.unpin(slot, drain);
                }
                self.serve_queue();
                Ok(())
            }
            Err(error) => {
                self.quarantine(slots);
                Err(error)
            }
        }
    }

    /// Keeps slots whose streams are being captured, where an event would belong to the graph.
    pub fn quarantine(&mut self, slots: &[u32]) {
        self.quarantined.extend_from_slice(slots);
        self.refuse_too_wide();
    }

    /// A reader leaves without an event behind its launches: what it holds is kept aside.
    pub fn set_reader_aside(&mut self, cell: &ReaderCell) {
        let slots = u32::try_from(self.table.len()).unwrap_or(NONE);
        for slot in Registry::held_by(cell, slots) {
            if matches!(self.table.state(slot), State::Resident | State::Draining | State::Leased) {
                self.pin(slot);
                self.quarantined.push(slot);
            }
        }
        cell.line.close(u64::MAX);
        self.refuse_too_wide();
    }

    /// After the device was synchronised: nothing launched before reads a slot any more.
    pub fn recover(&mut self) {
        let mut slots = std::mem::take(&mut self.quarantined);
        for slot in slots.drain(..) {
            self.unpin(slot, None);
        }
        self.quarantined = slots;
        self.retire_all();
        self.serve_queue();
    }

    /// A part of a lease that was split off counts as one of its own.
    /// `shared` are the slots that both parts have.
    pub fn split<'a>(&mut self, shared: impl Iterator<Item = &'a u32>) {
        for &slot in shared {
            if self.table.state(slot) == State::Failed {
                // Its data is bad, but its launches must still be waited for by both parts.
                self.table.get_mut(slot).leases += 1;
            } else {
                self.pin(slot);
            }
        }
        self.leases += 1;
        self.counters.add(Counter::LeasesGiven, 1);
    }

    /// A lease is back: its vectors return to the ticket, if it is not a part that was split off.
    pub fn retire_grant(&mut self, mut grant: Grant) {
        self.leases -= 1;
        self.counters.add(Counter::LeasesReleased, 1);
        if grant.ticket == NONE {
            return;
        }
        grant.slots.clear();
        grant.wanted.clear();
        let ticket = &mut self.tickets[grant.ticket as usize];
        ticket.slots = grant.slots;
        ticket.wanted = grant.wanted;
        self.recycle(grant.ticket);
    }

    /// One lease less on a slot.
    pub(super) fn unpin(&mut self, slot: u32, drain: Option<u32>) {
        let entry = self.table.get_mut(slot);
        entry.drains.extend(drain);
        entry.leases -= 1;
        let (item, last, drains) = (entry.item, entry.leases == 0, !entry.drains.is_empty());
        let step = match (last, drains) {
            (false, _) => Step::ReleaseShared,
            (true, true) => Step::ReleaseLast,
            (true, false) => Step::ReleaseUnused,
        };
        self.table.step(slot, step);
        if self.table.state(slot) == State::Failed {
            self.reclaim(slot);
            return;
        }
        if last {
            self.list(slot);
        }
        self.table.describe(slot, self.models.key_word(item), self.models.position(item));
    }

    /// A release has ended: what this slot held may not be read by it any more.
    pub(super) fn drained(&mut self, slot: u32, drain: u32) {
        let entry = self.table.get_mut(slot);
        let Some(place) = entry.drains.iter().position(|&own| own == drain) else { return };
        entry.drains.swap_remove(place);
        if entry.drains.is_empty() && self.table.state(slot) == State::Draining {
            self.table.step(slot, Step::Drained);
        }
    }
}
