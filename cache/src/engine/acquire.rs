//! Sets of keys: judged at once, reserved whole or not at all, first come first served.

use super::Core;
use super::pools::Pool;
use crate::slots::state::{State, Step};
use crate::slots::{Listed, NONE};
use crate::stats::Cause;
use crate::stats::layout::Counter;
use crate::{Error, ErrorKind, Key, Result};
use spoc_driver::Stream;
use spoc_io::ReadClass;

/// How far a set is.
#[derive(Debug, Clone, Default)]
pub(crate) enum TicketState {
    /// Waits for room, holding nothing.
    #[default]
    Queued,
    /// Its slots are its own; so many of them are still loading.
    Reserved {
        /// Fills that have not been published.
        loading: u32,
    },
    /// A fill of it failed, or the cache closed; it holds nothing.
    Failed(Error),
}

/// One set from its acquire until its lease is back. Entries are reused with their vectors.
#[derive(Debug, Default)]
pub(super) struct Ticket {
    pub state: TicketState,
    /// Distinct items, in the order in which they were first named.
    pub items: Vec<u32>,
    /// Their slots, once reserved.
    pub slots: Vec<u32>,
    /// For every key asked for, where its item is in `items`.
    pub wanted: Vec<u32>,
    began_ns: u64,
    stalled: bool,
    /// The policy was told of the set.
    visited: bool,
}

/// What a ready ticket hands to its lease; comes back to the ticket at release, so that nothing is allocated.
#[derive(Debug, Default)]
pub(crate) struct Grant {
    pub ticket: u32,
    pub slots: Vec<u32>,
    pub wanted: Vec<u32>,
}

impl Core {
    /// Opens a ticket for a set. Counts, reserves what it can, and starts the fills.
    pub fn open(&mut self, keys: &[Key]) -> Result<u32> {
        if self.closed {
            return Err(Error::new(ErrorKind::Closed));
        }
        // A few releases retired with every acquire keep their number bounded without a thread for it.
        self.retire(4);
        let index = self.new_ticket();
        let mut ticket = std::mem::take(&mut self.tickets[index as usize]);
        let listed = self.distinct(keys, &mut ticket);
        let refused = listed.and_then(|()| self.fits(&ticket.items)).err();
        ticket.state = TicketState::Queued;
        ticket.began_ns = self.counters.now_ns();
        (ticket.stalled, ticket.visited) = (false, false);
        self.tickets[index as usize] = ticket;
        self.counters.add(Counter::Acquires, 1);
        if let Some(error) = refused {
            self.recycle(index);
            return Err(error);
        }
        self.queue.push_back(index);
        self.serve_queue();
        if matches!(self.tickets[index as usize].state, TicketState::Queued) {
            self.counters.add(Counter::Queued, 1);
        }
        let ready = matches!(self.tickets[index as usize].state, TicketState::Reserved { loading: 0 });
        self.tickets[index as usize].stalled = !ready;
        Ok(index)
    }

    pub(super) fn new_ticket(&mut self) -> u32 {
        self.unused_tickets.pop().unwrap_or_else(|| {
            self.tickets.push(Ticket::default());
            u32::try_from(self.tickets.len() - 1).unwrap_or(NONE)
        })
    }

    /// Distinct items of a set, in one pass however wide it is.
    pub(super) fn distinct(&mut self, keys: &[Key], ticket: &mut Ticket) -> Result<()> {
        self.epoch += 1;
        ticket.items.clear();
        ticket.wanted.clear();
        ticket.slots.clear();
        for &key in keys {
            let item = self.models.find(key)?;
            let (epoch, mut place) = self.seen[item as usize];
            if epoch != self.epoch {
                place = u32::try_from(ticket.items.len()).unwrap_or(NONE);
                ticket.items.push(item);
                self.seen[item as usize] = (self.epoch, place);
            }
            ticket.wanted.push(place);
        }
        Ok(())
    }

    /// Whether a set can ever be resident at once: beside what is pinned, in what is not kept aside.
    pub(super) fn fits(&mut self, items: &[u32]) -> Result<()> {
        for pool in &mut self.pools {
            (pool.need, pool.listed_hits) = (0, 0);
        }
        for &item in items {
            let entry = self.models.item(item);
            let pool = &mut self.pools[entry.pool as usize];
            pool.need += 1;
            pool.listed_hits += usize::from(self.models.is_pinned(item));
        }
        for pool in 0..self.pools.len() {
            let Pool { need, listed_hits: pinned_members, pinned, .. } = self.pools[pool];
            let have = self.have(pool).saturating_sub(pinned.saturating_sub(pinned_members));
            if need > have {
                return Err(Error::new(ErrorKind::TooWide { need, have }));
            }
        }
        Ok(())
    }

    /// Reserves for those at the head of the queue while there is room for the first of them, then for what nobody
    /// waits for.
    pub fn serve_queue(&mut self) {
        self.look_aside();
        while let Some(&index) = self.queue.front() {
            let mut ticket = std::mem::take(&mut self.tickets[index as usize]);
            let reserved = self.reserve(index, &mut ticket);
            self.tickets[index as usize] = ticket;
            if reserved {
                self.queue.pop_front();
                self.start_fills(index);
                self.note_if_ready(index);
            } else if !self.aside.is_empty() && self.readers.announce() {
                // A reader that ended its step just before did not see that somebody waits.
                self.look_aside();
            } else {
                return;
            }
        }
        self.serve_hints();
        if self.aside.is_empty() {
            self.readers.nobody_waits();
        } else if self.readers.announce() {
            self.look_aside();
        }
    }

    /// One set against one snapshot: either every slot is its own afterwards, or nothing changed.
    fn reserve(&mut self, index: u32, ticket: &mut Ticket) -> bool {
        self.take_visits();
        if !self.has_room(&ticket.items) {
            return false;
        }
        if !std::mem::replace(&mut ticket.visited, true) {
            self.visit(&ticket.items);
        }
        // Members that are there cannot be chosen: they are not listed while victims are.
        let mut missing = std::mem::take(&mut self.missing);
        missing.clear();
        for &item in &ticket.items {
            match self.slot_of[item as usize] {
                NONE => missing.push(item),
                slot => self.unlist(slot),
            }
        }
        let all = self.choose(&missing, |_, _| true);
        self.missing = missing;
        if !all {
            // Readers hold too much of what looked free.
            self.keep_chosen();
            for &item in &ticket.items {
                let slot = self.slot_of[item as usize];
                if slot != NONE && matches!(self.table.state(slot), State::Resident | State::Draining) {
                    self.list(slot);
                }
            }
            return false;
        }
        self.evict_chosen(Cause::Demand);
        self.take(index, ticket);
        true
    }

    /// Whether the pools have enough that is free or listed. Leaves what each needs in `Pool::need`.
    fn has_room(&mut self, items: &[u32]) -> bool {
        for pool in &mut self.pools {
            (pool.need, pool.listed_hits) = (0, 0);
        }
        for &item in items {
            let pool = &mut self.pools[self.models.item(item).pool as usize];
            match self.slot_of[item as usize] {
                NONE => pool.need += 1,
                slot => pool.listed_hits += usize::from(self.table.get(slot).listed != Listed::No),
            }
        }
        self.pools.iter().all(|pool| pool.need + pool.listed_hits <= pool.free.len() + pool.evictable)
    }

    /// Every slot of the set becomes its own; there are free ones for those that are missing.
    fn take(&mut self, index: u32, ticket: &mut Ticket) {
        let mut loading = 0;
        for &item in &ticket.items {
            let slot = self.slot_of[item as usize];
            ticket.slots.push(slot);
            if slot == NONE {
                continue;
            }
            self.note_useful(slot);
            if self.table.state(slot) == State::Loading {
                self.table.get_mut(slot).waiters.push(index);
                self.counters.add(Counter::Joins, 1);
                self.promote(slot, ReadClass::Demand);
                loading += 1;
            } else {
                self.counters.add(Counter::Hits, 1);
                self.pin(slot);
            }
        }
        for place in 0..ticket.items.len() {
            if ticket.slots[place] == NONE {
                let item = ticket.items[place];
                let pool = self.models.item(item).pool as usize;
                // `choose` made room for every one of them.
                let Some(slot) = self.pools[pool].free.pop() else { unreachable!("no slot was chosen") };
                self.reuse.missed(item, &self.counters);
                self.take_for_fill(slot, item, Cause::Demand);
                self.table.get_mut(slot).waiters.push(index);
                ticket.slots[place] = slot;
                loading += 1;
            }
        }
        self.counters.add(Counter::Requested, ticket.items.len() as u64);
        self.counters.add(Counter::Misses, u64::from(loading));
        ticket.state = TicketState::Reserved { loading };
    }

    /// One lease more on a slot that holds its item.
    pub(super) fn pin(&mut self, slot: u32) {
        let item = self.table.get(slot).item;
        self.unlist(slot);
        self.table.step(slot, Step::Lease);
        self.table.get_mut(slot).leases += 1;
        self.table.used(slot, self.models.position(item));
    }

    /// Called when a ticket may have lost its last fill to wait for.
    pub(super) fn note_if_ready(&mut self, index: u32) {
        let ticket = &mut self.tickets[index as usize];
        if matches!(ticket.state, TicketState::Reserved { loading: 0 }) {
            self.wake = true;
            if std::mem::take(&mut ticket.stalled) {
                let stall = self.counters.now_ns().saturating_sub(ticket.began_ns);
                self.counters.add(Counter::StallNs, stall);
            }
        }
    }

    /// A fill that this ticket waits for is there: its slot is leased for it.
    pub(super) fn arrived(&mut self, index: u32) {
        if let TicketState::Reserved { loading } = &mut self.tickets[index as usize].state {
            *loading -= 1;
        }
        self.note_if_ready(index);
    }

    /// Takes everything from a ticket again; `state` is what its owner will find.
    pub(super) fn revoke(&mut self, index: u32, state: TicketState) {
        let ticket = &mut self.tickets[index as usize];
        let before = std::mem::replace(&mut ticket.state, state);
        let slots = std::mem::take(&mut ticket.slots);
        match before {
            TicketState::Queued => self.queue.retain(|&queued| queued != index),
            TicketState::Failed(_) => {}
            TicketState::Reserved { .. } => {
                for &slot in &slots {
                    let waiters = &mut self.table.get_mut(slot).waiters;
                    if let Some(place) = waiters.iter().position(|&waiter| waiter == index) {
                        waiters.remove(place);
                        self.lose_interest(slot);
                    } else if self.table.state(slot) != State::Failed || self.table.get(slot).leases > 0 {
                        self.unpin(slot, None);
                    }
                }
            }
        }
        let ticket = &mut self.tickets[index as usize];
        ticket.slots = slots;
        ticket.slots.clear();
    }

    /// Where a ticket stands, without its slots.
    pub fn look(&self, index: u32) -> TicketState {
        self.tickets[index as usize].state.clone()
    }

    /// Gives the owner of a ready ticket its slots, with the stream ordered behind every copy into them.
    pub fn grant(&mut self, index: u32, stream: &Stream) -> Result<Grant> {
        for place in 0..self.tickets[index as usize].slots.len() {
            let number = self.tickets[index as usize].slots[place];
            if self.table.state(number) == State::Failed {
                // The stream failed between the last copy and now.
                let error = self.last_error.clone();
                return Err(error.unwrap_or_else(|| Error::new(ErrorKind::Closed)));
            }
            let slot = self.table.get(number);
            if !slot.settled {
                stream.wait(&slot.ready)?;
            }
        }
        let ticket = &mut self.tickets[index as usize];
        self.leases += 1;
        self.counters.add(Counter::LeasesGiven, 1);
        Ok(Grant {
            ticket: index,
            slots: std::mem::take(&mut ticket.slots),
            wanted: std::mem::take(&mut ticket.wanted),
        })
    }

    /// The owner of a ticket goes away without a lease.
    pub fn abandon(&mut self, index: u32) {
        self.revoke(index, TicketState::Queued);
        self.recycle(index);
        self.serve_queue();
    }

    pub(super) fn recycle(&mut self, index: u32) {
        self.tickets[index as usize].state = TicketState::Queued;
        self.unused_tickets.push(index);
    }
}
