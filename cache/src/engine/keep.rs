//! Wishes that groups stay: pins, which are kept, and retained ones, which are kept while anything else can leave.

use super::Core;
use crate::slots::state::State;
use crate::slots::{Listed, NONE};
use crate::stats::Cause;
use crate::{Error, ErrorKind, Key, Result};
use spoc_io::ReadClass;

/// What became of groups that were to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Evicted {
    /// Left their slots.
    pub left: u32,
    /// Stay: leased, being read, or pinned.
    pub held: u32,
    /// Bytes of those that left.
    pub bytes: u64,
}

impl Core {
    /// Keeps groups for good, and begins to read those that are missing.
    pub fn pin_keys(&mut self, keys: &[Key]) -> Result<()> {
        let items = self.items(keys)?;
        // All or nothing: first whether there is room beside what is pinned already.
        let mut new = vec![0usize; self.pools.len()];
        let mut distinct = items.clone();
        distinct.sort_unstable();
        distinct.dedup();
        for &item in distinct.iter().filter(|&&item| !self.models.is_pinned(item)) {
            new[self.models.item(item).pool as usize] += 1;
        }
        for (pool, new) in new.into_iter().enumerate() {
            let (need, have) = (self.pools[pool].pinned + new, self.have(pool));
            if need > have {
                return Err(Error::new(ErrorKind::TooWide { need, have }));
            }
        }
        for item in items {
            if !self.models.pin(item, true) {
                continue;
            }
            self.pools[self.models.item(item).pool as usize].pinned += 1;
            match self.slot_of[item as usize] {
                NONE => self.ahead.owed.push(item),
                slot => self.unlist(slot),
            }
        }
        self.refuse_too_wide();
        self.serve_queue();
        Ok(())
    }

    /// Ends one pin of each.
    pub fn unpin_keys(&mut self, keys: &[Key]) -> Result<()> {
        for item in self.items(keys)? {
            if self.models.pin(item, false) {
                self.pools[self.models.item(item).pool as usize].pinned -= 1;
                self.relist(item);
            }
        }
        self.serve_queue();
        Ok(())
    }

    /// Makes groups leave that nobody holds, reads, or has pinned.
    pub fn evict_keys(&mut self, keys: &[Key]) -> Result<Evicted> {
        let mut items = self.items(keys)?;
        items.sort_unstable();
        items.dedup();
        self.retire_all();
        let mut evicted = Evicted::default();
        for item in items {
            let slot = self.slot_of[item as usize];
            if slot == NONE {
                continue;
            }
            let is_idle = matches!(self.table.state(slot), State::Resident | State::Draining);
            if !is_idle || self.models.is_pinned(item) || self.mark(slot).is_none() {
                evicted.held += 1;
                continue;
            }
            evicted.left += 1;
            evicted.bytes += self.table.get(slot).bytes;
            self.unlist(slot);
            self.evict(slot, Cause::Asked);
        }
        self.serve_queue();
        Ok(evicted)
    }

    /// Keeps groups until `until_ns` as long as anything else can leave.
    pub fn retain_keys(&mut self, keys: &[Key], until_ns: u64) -> Result<()> {
        for item in self.items(keys)? {
            self.models.retain(item, until_ns);
            let slot = self.slot_of[item as usize];
            if slot != NONE && self.table.get(slot).listed != Listed::No {
                self.unlist(slot);
                self.list(slot);
            }
        }
        Ok(())
    }

    /// What was retained long enough is listed like anything else.
    pub(super) fn end_retention(&mut self) {
        if self.pools.iter().all(|pool| pool.retained.is_empty()) {
            return;
        }
        let now = self.counters.now_ns();
        for pool in 0..self.pools.len() {
            while let Some(item) = self.ended_in(pool, now) {
                self.unlist(self.slot_of[item as usize]);
                self.list(self.slot_of[item as usize]);
            }
        }
    }

    /// One item that was asked to be kept until a moment that has passed.
    fn ended_in(&self, pool: usize, now_ns: u64) -> Option<u32> {
        let ended = |&item: &u32| !self.is_ahead(item) && self.models.retained_until(item) <= now_ns;
        self.pools[pool].retained.iter().copied().find(ended)
    }

    fn items(&self, keys: &[Key]) -> Result<Vec<u32>> {
        keys.iter().map(|&key| self.models.find(key)).collect()
    }

    /// An item that may leave again, if it is there and nobody leases it.
    fn relist(&mut self, item: u32) {
        let slot = self.slot_of[item as usize];
        if slot != NONE && matches!(self.table.state(slot), State::Resident | State::Draining) {
            self.list(slot);
        }
    }

    /// Sets that wait and can never be served any more are told.
    pub(super) fn refuse_too_wide(&mut self) {
        let mut at = 0;
        while let Some(&index) = self.queue.get(at) {
            let items = std::mem::take(&mut self.tickets[index as usize].items);
            let fits = self.fits(&items);
            self.tickets[index as usize].items = items;
            match fits {
                Ok(()) => at += 1,
                Err(error) => {
                    self.revoke(index, super::TicketState::Failed(error));
                    self.wake = true;
                }
            }
        }
    }

    /// Reads pinned items that are not there, into free slots or those of victims.
    pub(super) fn serve_owed(&mut self) {
        let mut owed = std::mem::take(&mut self.ahead.owed);
        let now = self.counters.now_ns();
        owed.retain(|&item| {
            if self.slot_of[item as usize] != NONE || !self.models.is_pinned(item) {
                return false;
            }
            // A read that failed is tried again after a while.
            self.models.is_blamed(item, now)
                || self.bring(item, ReadClass::Prefetch, None, |_, _| true).is_err()
        });
        owed.append(&mut self.ahead.owed);
        self.ahead.owed = owed;
    }
}
