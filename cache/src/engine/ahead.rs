//! Fills that nobody waits for: hints, pins, warm profiles.

use super::Core;
use crate::slots::NONE;
use crate::slots::state::State;
use crate::stats::Cause;
use crate::stats::layout::Counter;
use crate::{Key, ModelId, Result};
use spoc_io::ReadClass;

/// Hints that wait for room at most; more are refused.
const HINTS_MAX: usize = 4096;

/// What became of the keys of a hint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hinted {
    /// There already, or on their way.
    pub there: u32,
    /// Reads begun.
    pub begun: u32,
    /// Waiting for room that demand does not keep hot.
    pub waiting: u32,
    /// Not taken: reading ahead is turned off, the last read failed a moment ago, or too many wait.
    pub refused: u32,
}

#[derive(Debug, Clone, Copy)]
struct Hint {
    deadline_ns: u64,
    item: u32,
}

/// What is to be read when there is room.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// Soonest deadline last.
    hints: Vec<Hint>,
    /// Pinned items that are not there.
    pub owed: Vec<u32>,
}

impl Ahead {
    /// These items will not be there to be read.
    pub fn forget(&mut self, items: &std::ops::Range<u32>) {
        self.hints.retain(|hint| !items.contains(&hint.item));
        self.owed.retain(|item| !items.contains(item));
    }

    pub fn clear(&mut self) {
        self.hints.clear();
        self.owed.clear();
    }
}

/// There is no room for a fill that nobody waits for.
#[derive(Debug)]
pub(super) struct NoRoom;

impl Core {
    /// Begins a fill that nobody waits for, into a free slot or that of a victim that `may` leave.
    pub(super) fn bring(
        &mut self,
        item: u32,
        class: ReadClass,
        hinted_until: Option<u64>,
        may: impl FnMut(&Core, u32) -> bool,
    ) -> Result<(), NoRoom> {
        let pool = self.models.item(item).pool as usize;
        // What is free belongs to those who wait first.
        if self.closed || !self.queue.is_empty() || !self.choose(&[item], may) {
            self.keep_chosen();
            return Err(NoRoom);
        }
        self.evict_chosen(Cause::Ahead);
        let Some(slot) = self.pools[pool].free.pop() else { return Err(NoRoom) };
        self.take_for_fill(slot, item, Cause::Ahead);
        let entry = self.table.get_mut(slot);
        (entry.kept, entry.speculative) = (true, hinted_until.is_some());
        if let Some(until) = hinted_until {
            entry.hinted_until = until;
            self.counters.add(Counter::SpeculationIssued, 1);
        }
        if let Err(error) = self.start_fill(slot, class) {
            self.table.get_mut(slot).kept = false;
            self.fail(slot, &error, Cause::Read);
            self.reclaim_refused(slot);
        }
        Ok(())
    }

    /// Reading ahead takes the place of what demand does not keep hot, and of what was itself read ahead and not wanted
    /// in time.
    fn bring_hinted(&mut self, item: u32, deadline_ns: u64) -> Result<(), NoRoom> {
        self.bring(item, ReadClass::Prefetch, Some(deadline_ns), |core, victim| {
            let entry = core.table.get(core.slot_of[victim as usize]);
            let awaited = entry.speculative && entry.hinted_until > core.counters.now_ns();
            !awaited && core.models.may_take_place(item, victim)
        })
    }

    /// Takes hints: reads begin at once where there is room, the others wait for it until `deadline_ns`.
    pub fn hint(&mut self, keys: &[Key], deadline_ns: u64) -> Result<Hinted> {
        let mut hinted = Hinted::default();
        self.take_visits();
        self.look_aside();
        let now = self.counters.now_ns();
        for &key in keys {
            let item = self.models.find(key)?;
            if self.slot_of[item as usize] != NONE {
                hinted.there += 1;
            } else if self.models.is_blamed(item, now)
                || self.ahead.hints.len() >= HINTS_MAX
                || !self.governor.allows()
            {
                hinted.refused += 1;
                self.counters.add(Counter::SpeculationRefused, 1);
            } else if deadline_ns > now && self.bring_hinted(item, deadline_ns).is_ok() {
                hinted.begun += 1;
            } else {
                let at = self.ahead.hints.partition_point(|hint| hint.deadline_ns > deadline_ns);
                self.ahead.hints.insert(at, Hint { deadline_ns, item });
                hinted.waiting += 1;
            }
        }
        Ok(hinted)
    }

    /// Begins what waits for room: what is pinned, then hints, soonest deadline first.
    pub(super) fn serve_hints(&mut self) {
        self.end_retention();
        if !self.ahead.owed.is_empty() {
            self.serve_owed();
        }
        if self.ahead.hints.is_empty() {
            return;
        }
        let now = self.counters.now_ns();
        while let Some(&Hint { deadline_ns, item }) = self.ahead.hints.last() {
            let gone = self.slot_of[item as usize] != NONE;
            if !gone && deadline_ns > now && self.bring_hinted(item, deadline_ns).is_err() {
                return;
            }
            if !gone && deadline_ns <= now {
                self.counters.add(Counter::SpeculationRefused, 1);
            }
            self.ahead.hints.pop();
        }
    }

    /// Groups of a model that are resident, most used first, with their uses.
    pub fn hot(&mut self, model: ModelId) -> Vec<(u32, u64)> {
        self.take_visits();
        let mut hot: Vec<(u32, u64)> = self
            .models
            .items_of(model)
            .filter_map(|item| match self.slot_of[item as usize] {
                NONE => None,
                slot if self.table.state(slot) == State::Loading => None,
                slot => Some((self.models.item(item).key.group, self.table.get(slot).uses)),
            })
            .collect();
        hot.sort_by_key(|&(group, uses)| (std::cmp::Reverse(uses), group));
        hot
    }

    /// Reads groups into free slots, in their order, while there are any. Answers how many.
    pub fn warm(&mut self, keys: &[Key]) -> Result<u32> {
        let mut begun = 0;
        for &key in keys {
            let item = self.models.find(key)?;
            let pool = self.models.item(item).pool as usize;
            let room = !self.pools[pool].free.is_empty();
            if room && self.slot_of[item as usize] == NONE {
                begun += u32::from(self.bring(item, ReadClass::Refill, None, |_, _| false).is_ok());
            }
        }
        Ok(begun)
    }

    /// Ends running fills of these keys for everyone: whoever waits is told that they were cancelled.
    pub fn cancel(&mut self, keys: &[Key]) -> Result<u32> {
        let mut cancelled = 0;
        for &key in keys {
            let item = self.models.find(key)?;
            let slot = self.slot_of[item as usize];
            if slot == NONE || self.table.state(slot) != State::Loading {
                continue;
            }
            self.table.get_mut(slot).kept = false;
            let job = self.table.get(slot).job;
            self.fail(slot, &crate::ErrorKind::Cancelled.into(), Cause::Cancel);
            // Asked for, and so no reason to hold back.
            self.models.forgive(item);
            if let Some(job) = job {
                self.feed.cancel(job);
            }
            cancelled += 1;
        }
        self.serve_queue();
        Ok(cancelled)
    }
}
