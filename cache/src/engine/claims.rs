//! Sets of which only what is there is wanted, and the parts of sets wider than the pool.

use super::Core;
use super::acquire::{Grant, TicketState};
use crate::slots::NONE;
use crate::slots::state::State;
use crate::stats::layout::Counter;
use crate::{Error, ErrorKind, Key, Result};
use spoc_driver::Stream;
use spoc_io::ReadClass;

/// What a claim found.
#[derive(Debug, Default)]
pub(crate) struct Claimed {
    /// The lease of what is there.
    pub grant: Grant,
    /// For every key asked for, its place in the grant; [`NONE`] for one that is missing.
    pub places: Vec<u32>,
    /// Distinct keys that are missing.
    pub missing: Vec<Key>,
    /// Fills begun for some of these.
    pub inserts: u32,
}

impl Core {
    /// Leases what is there of a set and begins to read at most `inserts_max` of what is not. Never waits, and never
    /// evicts a member of the set.
    pub fn claim(&mut self, keys: &[Key], stream: &Stream, inserts_max: usize) -> Result<Claimed> {
        if self.closed {
            return Err(Error::new(ErrorKind::Closed));
        }
        self.retire(4);
        if !self.queue.is_empty() {
            // What came back with that belongs to those who wait.
            self.serve_queue();
        }
        let index = self.new_ticket();
        let mut ticket = std::mem::take(&mut self.tickets[index as usize]);
        if let Err(error) = self.distinct(keys, &mut ticket) {
            self.tickets[index as usize] = ticket;
            self.recycle(index);
            return Err(error);
        }
        self.take_visits();
        self.visit(&ticket.items);
        let (items, wanted) = (std::mem::take(&mut ticket.items), std::mem::take(&mut ticket.wanted));
        let mut claimed = Claimed::default();
        // Place of every distinct item among those that are there.
        let mut place_of = Vec::with_capacity(items.len());
        for &item in &items {
            let slot = self.slot_of[item as usize];
            if slot == NONE || self.table.state(slot) == State::Loading {
                place_of.push(NONE);
                if slot == NONE {
                    self.reuse.missed(item, &self.counters);
                } else {
                    self.counters.add(Counter::Joins, 1);
                }
                claimed.missing.extend(self.models.key_of(item));
                continue;
            }
            self.note_useful(slot);
            self.pin(slot);
            place_of.push(u32::try_from(ticket.slots.len()).unwrap_or(NONE));
            ticket.slots.push(slot);
        }
        self.counters.add(Counter::Acquires, 1);
        self.counters.add(Counter::Requested, items.len() as u64);
        self.counters.add(Counter::Hits, ticket.slots.len() as u64);
        self.counters.add(Counter::Misses, claimed.missing.len() as u64);
        claimed.places = wanted.iter().map(|&at| place_of[at as usize]).collect();
        // The lease counts the keys that it has, in the order of the claim.
        ticket.wanted = claimed.places.iter().copied().filter(|&place| place != NONE).collect();
        ticket.state = TicketState::Reserved { loading: 0 };
        self.tickets[index as usize] = ticket;
        match self.grant(index, stream) {
            Ok(grant) => claimed.grant = grant,
            Err(error) => {
                self.abandon(index);
                return Err(error);
            }
        }
        claimed.inserts = self.insert(&items, inserts_max);
        let ticket = &mut self.tickets[index as usize];
        ticket.items = items;
        Ok(claimed)
    }

    /// Begins up to `most` fills of items that are missing. Sets that wait for room go first.
    fn insert(&mut self, items: &[u32], most: usize) -> u32 {
        let mut begun = 0;
        for &item in items {
            if begun as usize >= most || !self.queue.is_empty() {
                break;
            }
            if self.slot_of[item as usize] == NONE {
                begun += u32::from(self.bring(item, ReadClass::Demand, None, |_, _| true).is_ok());
            }
        }
        begun
    }

    /// Which of these keys make the next part of a set that is wider than the pool: as many as fit at once, what is
    /// there before what is not.
    pub fn wave(&mut self, keys: &[Key]) -> Result<Vec<usize>> {
        let mut room: Vec<usize> = (0..self.pools.len())
            .map(|pool| self.have(pool).saturating_sub(self.pools[pool].pinned))
            .collect();
        self.epoch += 1;
        let mut chosen = Vec::new();
        for there in [true, false] {
            for (index, &key) in keys.iter().enumerate() {
                let item = self.models.find(key)?;
                if (self.slot_of[item as usize] != NONE) != there {
                    continue;
                }
                let repeated = self.seen[item as usize].0 == self.epoch;
                let room = &mut room[self.models.item(item).pool as usize];
                // What is pinned has a slot of its own; what is named again has it already.
                if !repeated && !self.models.is_pinned(item) {
                    if *room == 0 {
                        continue;
                    }
                    *room -= 1;
                }
                self.seen[item as usize].0 = self.epoch;
                chosen.push(index);
            }
        }
        if chosen.is_empty() && !keys.is_empty() {
            return Err(Error::new(ErrorKind::TooWide { need: 1, have: 0 }));
        }
        chosen.sort_unstable();
        Ok(chosen)
    }
}
