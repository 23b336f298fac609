//! Fills: one a key, shared by everyone who wants it, ended by its last interest, its end or an error.

use super::Core;
use super::acquire::TicketState;
use crate::pump::{Begin, Job, Places};
use crate::readers::{Standing, Word};
use crate::slots::NONE;
use crate::slots::state::{State, Step};
use crate::stats::layout::{Counter, NO_KEY};
use crate::stats::{Cause, LogKind};
use crate::{Error, ErrorKind, Result};
use spoc_driver::Stream;
use spoc_io::ReadClass;

/// Names one fill of one slot towards the pump.
fn tag(slot: u32, generation: u64) -> u64 {
    u64::from(slot) | (generation << 32)
}

impl Core {
    /// The slot of a tag, if the fill that it names is still the slot's newest.
    #[allow(clippy::cast_possible_truncation)] // the lower half is the slot
    fn slot_of_tag(&self, wanted: u64) -> Option<u32> {
        let slot = wanted as u32;
        ((slot as usize) < self.table.len() && tag(slot, self.table.get(slot).generation) == wanted)
            .then_some(slot)
    }

    /// Free → Loading; the item is found under this slot from now on, so that later demands join.
    pub(super) fn take_for_fill(&mut self, slot: u32, item: u32, cause: Cause) {
        self.table.step(slot, Step::Reserve);
        let bytes = self.models.item(item).bytes;
        let entry = self.table.get_mut(slot);
        entry.item = item;
        entry.bytes = bytes;
        entry.settled = false;
        (entry.kept, entry.speculative) = (false, false);
        // An earlier fill may be published and not ended: its copies are ahead on the same stream.
        entry.job = None;
        self.slot_of[item as usize] = slot;
        self.say(slot, Standing::Loading);
        self.in_flight_bytes += bytes;
        self.table.describe(slot, self.models.key_word(item), self.models.position(item));
        self.counters.add(Counter::FillsStarted, 1);
        self.log(LogKind::FillStarted, cause, item, slot);
    }

    /// Writes the word of the slot's item.
    fn say(&mut self, slot: u32, standing: Standing) {
        let entry = self.table.get(slot);
        if let Some((words, group)) = self.models.words(entry.item) {
            words.store(group, Word::new(slot, entry.generation, standing));
        }
    }

    /// Somebody wants a running fill sooner.
    pub(super) fn promote(&self, slot: u32, class: ReadClass) {
        if let Some(job) = self.table.get(slot).job {
            self.feed.promote(job, class);
        }
    }

    /// Hands the fills that a reservation made to the pump.
    pub(super) fn start_fills(&mut self, index: u32) {
        for place in 0..self.tickets[index as usize].slots.len() {
            let slot = self.tickets[index as usize].slots[place];
            let entry = self.table.get(slot);
            if self.table.state(slot) != State::Loading || entry.job.is_some() {
                continue;
            }
            if let Err(error) = self.start_fill(slot, ReadClass::Demand) {
                // Fails the ticket too, which empties its list of slots.
                self.fail(slot, &error, Cause::Read);
                self.end(slot);
                return;
            }
        }
    }

    pub(super) fn start_fill(&mut self, slot: u32, class: ReadClass) -> Result<()> {
        let entry = self.table.get(slot);
        let (entry_item, generation) = (entry.item, entry.generation);
        let item = self.models.item(entry_item);
        if item.plan.reads().is_empty() {
            // Nothing but empty tensors: there is nothing to wait for, on the disk or on the device.
            self.table.get_mut(slot).settled = true;
            self.publish(slot);
            return Ok(());
        }
        let plan = std::sync::Arc::clone(&item.plan);
        let place = self.arena.place(slot);
        let Some(segment) = self.arena.segment(place.segment) else { return Err(ErrorKind::Closed.into()) };
        let held = self.held(entry_item);
        self.table.get_mut(slot).from_tier = held.is_some();
        let job = self.feed.submit(Job {
            plan,
            places: Places::One { segment, offset_bytes: place.offset_bytes },
            sink: std::sync::Arc::clone(&self.sink),
            tag: tag(slot, generation),
            class,
            // A slot's last users may not have ended yet; the copy stream knows, the disk does not.
            in_place: None,
            held,
        })?;
        self.table.get_mut(slot).job = Some(job);
        Ok(())
    }

    /// Before the first copy into the slot: the copy stream waits, on the device, for launches that may still
    /// read what was there.
    pub fn begin(&mut self, tag: u64, copies: &Stream) -> Result<Begin> {
        let Some(slot) = self.slot_of_tag(tag) else { return Ok(Begin::Skip) };
        if self.table.state(slot) != State::Loading {
            return Ok(Begin::Skip);
        }
        let mut waits = !self.table.get(slot).drains.is_empty();
        for place in 0..self.table.get(slot).drains.len() {
            let drain = self.table.get(slot).drains[place];
            for event in self.drains.events(drain) {
                copies.wait(event)?;
                self.counters.add(Counter::ReleaseWaits, 1);
            }
        }
        if !self.readers.is_empty() {
            let read = self.readers.wait_for(slot, copies)?;
            self.counters.add(Counter::ReleaseWaits, read);
            waits |= read > 0;
        }
        if let Some(read_out) = self.tier.as_mut().and_then(|tier| tier.take_read_out(slot)) {
            // An event that reports an error belongs to a stream that failed: what it had to do no longer runs.
            if let Ok(false) = read_out.query() {
                copies.wait(&read_out)?;
                waits = true;
            }
        }
        self.tell_device(copies)?;
        // From here on the copy stream carries the order; a later fill comes behind it on the same stream.
        self.table.get_mut(slot).drains.clear();
        Ok(if waits { Begin::GoBehindReleases } else { Begin::Go })
    }

    /// Every copy of the fill is enqueued: its event is recorded behind them, then it may be leased.
    pub fn published(&mut self, tag: u64, copies: &Stream) -> Result<()> {
        let Some(slot) = self.slot_of_tag(tag) else { return Ok(()) };
        if self.table.state(slot) != State::Loading {
            return Ok(());
        }
        copies.record(&self.table.get(slot).ready)?;
        let item = self.table.get(slot).item;
        self.publish(slot);
        self.promoted(slot);
        self.note_moved(item);
        self.tell_device(copies)?;
        if self.table.state(slot) == State::Resident {
            // Nobody waited for it, so it may leave: perhaps a set waits for that.
            self.serve_queue();
        }
        Ok(())
    }

    fn publish(&mut self, slot: u32) {
        self.table.step(slot, Step::Publish);
        let (item, bytes) = (self.table.get(slot).item, self.table.get(slot).bytes);
        self.in_flight_bytes -= bytes;
        self.counters.add(Counter::FillsDone, 1);
        self.counters.add(Counter::FilledBytes, bytes);
        self.log(LogKind::FillDone, Cause::Demand, item, slot);
        self.models.forgive(item);
        let entry = self.table.get_mut(slot);
        entry.kept = false;
        let standing = if entry.settled { Standing::There } else { Standing::Ordered };
        self.say(slot, standing);
        if self.table.get(slot).waiters.is_empty() {
            self.list(slot);
        }
        let mut waiters = std::mem::take(&mut self.table.get_mut(slot).waiters);
        for ticket in waiters.drain(..) {
            self.pin(slot);
            self.arrived(ticket);
        }
        self.table.get_mut(slot).waiters = waiters;
    }

    /// The fill went wrong, in a read, in a copy, or (after it was published) on the stream.
    pub fn failed(&mut self, tag: u64, error: &Error, cause: Cause) {
        if let Some(slot) = self.slot_of_tag(tag) {
            self.fail(slot, error, cause);
            self.serve_queue();
        }
    }

    pub(super) fn fail(&mut self, slot: u32, error: &Error, cause: Cause) {
        let (item, bytes) = (self.table.get(slot).item, self.table.get(slot).bytes);
        match self.table.state(slot) {
            State::Loading => {
                self.table.step(slot, Step::Abandon);
                self.in_flight_bytes -= bytes;
                self.counters.add(Counter::FillsFailed, 1);
            }
            // The stream failed after the slot was given out.
            State::Resident | State::Draining => {
                self.unlist(slot);
                self.table.step(slot, Step::Corrupt);
            }
            State::Leased => self.table.step(slot, Step::Corrupt),
            State::Free | State::Failed => return,
        }
        self.last_error = Some(error.clone());
        self.log(LogKind::FillFailed, cause, item, slot);
        self.note_wasted(slot);
        if cause == Cause::Copy {
            self.distrust(item);
        }
        let now = self.counters.now_ns();
        self.models.blame(item, now);
        self.forget(slot);
        let mut waiters = std::mem::take(&mut self.table.get_mut(slot).waiters);
        for ticket in waiters.drain(..) {
            self.counters.add(Counter::AcquiresFailed, 1);
            self.revoke(ticket, TicketState::Failed(error.clone()));
            self.wake = true;
        }
        self.table.get_mut(slot).waiters = waiters;
    }

    /// The item is not found in this slot any more: the next demand fills another one.
    fn forget(&mut self, slot: u32) {
        if let Some((words, group)) = self.models.words(self.table.get(slot).item) {
            words.store(group, Word::ABSENT);
        }
        let entry = self.table.get_mut(slot);
        let item = std::mem::replace(&mut entry.item, NONE);
        entry.bytes = 0;
        self.note_moved(item);
        if item != NONE && self.slot_of[item as usize] == slot {
            self.slot_of[item as usize] = NONE;
            // Also of what failed a policy must not go on counting that it is there.
            let pool = self.pool_of(slot);
            self.pools[pool].policy.left(item);
        }
        self.table.describe(slot, NO_KEY, 0);
    }

    /// One set less waits for a fill: without any, it is cancelled, and its slot waits for the fill's end.
    pub(super) fn lose_interest(&mut self, slot: u32) {
        let entry = self.table.get(slot);
        if self.table.state(slot) != State::Loading || !entry.waiters.is_empty() || entry.kept {
            return;
        }
        self.give_up(slot);
    }

    /// Cancels a fill that nobody waits for any more.
    pub(super) fn give_up(&mut self, slot: u32) {
        let (item, bytes) = (self.table.get(slot).item, self.table.get(slot).bytes);
        self.table.step(slot, Step::Abandon);
        self.in_flight_bytes -= bytes;
        self.counters.add(Counter::FillsCancelled, 1);
        self.log(LogKind::FillCancelled, Cause::Demand, item, slot);
        self.note_wasted(slot);
        self.forget(slot);
        match self.table.get(slot).job {
            Some(job) => self.feed.cancel(job),
            None => self.reclaim(slot),
        }
    }

    /// Nothing of the fill is in flight any more: no read, no copy.
    pub fn ended(&mut self, tag: u64) {
        if let Some(slot) = self.slot_of_tag(tag) {
            self.end(slot);
        }
    }

    /// A fill that the pump did not take: nothing of it is in flight.
    pub(super) fn reclaim_refused(&mut self, slot: u32) {
        let entry = self.table.get_mut(slot);
        (entry.job, entry.settled) = (None, true);
        self.reclaim(slot);
    }

    fn end(&mut self, slot: u32) {
        let entry = self.table.get_mut(slot);
        entry.job = None;
        entry.settled = true;
        if matches!(self.table.state(slot), State::Resident | State::Leased | State::Draining) {
            self.say(slot, Standing::There);
        }
        self.reclaim(slot);
        self.serve_queue();
    }

    /// A failed slot is free once neither a fill nor a lease nor a reader can touch it. Launches that still read it are
    /// in its drains or behind readers' events, which the next fill waits for.
    pub(super) fn reclaim(&mut self, slot: u32) {
        let entry = self.table.get(slot);
        if self.table.state(slot) != State::Failed || entry.job.is_some() || entry.leases > 0 {
            return;
        }
        if self.readers.holds(slot) {
            // Its stream failed while a reader had it: looked at again when readers end their steps.
            self.aside.push(slot);
            return;
        }
        self.table.step(slot, Step::Reclaim);
        self.freed(slot);
    }

    /// The pump serves no more: every set that waits is told.
    pub fn close(&mut self, error: &Error) {
        self.closed = true;
        self.ahead.clear();
        self.events.close();
        for index in 0..u32::try_from(self.tickets.len()).unwrap_or(NONE) {
            let waits = match self.tickets[index as usize].state {
                TicketState::Reserved { loading } => loading > 0,
                TicketState::Queued => self.queue.contains(&index),
                TicketState::Failed(_) => false,
            };
            if waits {
                self.revoke(index, TicketState::Failed(error.clone()));
            }
        }
        // What nobody waits for would go on without anybody to notice its end.
        for slot in 0..u32::try_from(self.table.len()).unwrap_or(NONE) {
            if std::mem::take(&mut self.table.get_mut(slot).kept) {
                self.lose_interest(slot);
            }
        }
        self.wake = true;
    }
}
