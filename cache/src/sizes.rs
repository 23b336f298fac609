//! How many slots a cache has: growing, giving back, leaving room to others.

use crate::cache::room_for;
use crate::engine::Leaving;
use crate::sync::MutexGuard;
use crate::{Error, ErrorKind, Result, SlotCache};
use std::time::{Duration, Instant};

/// How often slots that are to be given back are looked at, at least.
const GLANCE: Duration = Duration::from_millis(5);

impl SlotCache {
    /// Slots there are of a class.
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchClass`].
    pub fn slots(&self, class: u32) -> Result<u32> {
        let slots = self.shared().with(|core| core.slots_of_class(class));
        let slots = slots.ok_or_else(|| Error::new(ErrorKind::NoSuchClass { class }))?;
        Ok(u32::try_from(slots).unwrap_or(u32::MAX))
    }

    /// Changes how many slots there are of a class, and says how many it are then.
    ///
    /// More slots are allocated at once. Fewer means whole segments, the last first, as long as at least `slots` stay:
    /// nothing is read into their slots any more, what is in them leaves as its leases end, and their memory goes when
    /// nothing launched before reads it. What has not left by `deadline` stays (`None` waits for ever). Pinned groups
    /// are read again elsewhere. Slots that stay keep their addresses.
    ///
    /// A thread that holds leases on what is to leave must not wait here without a deadline.
    ///
    /// # Errors
    /// [`ErrorKind::TooManySlots`] above what the cache was set up for, [`ErrorKind::DeviceTooSmall`], or
    /// [`ErrorKind::TooWide`] if more is pinned than would stay; the device's.
    pub fn resize(&self, class: u32, slots: u32, deadline: Option<Instant>) -> Result<u32> {
        if !self.grow_to(class, slots)? {
            while self.shrink(class, slots, deadline)?.is_some() {}
        }
        self.slots(class)
    }

    /// Gives at least `bytes` of device memory back, if segments can be emptied by `deadline`, widest class first.
    /// Says how many bytes it were.
    ///
    /// # Errors
    /// As [`resize`](SlotCache::resize).
    pub fn give_back(&self, bytes: u64, deadline: Option<Instant>) -> Result<u64> {
        let mut classes: Vec<(u64, u32)> =
            self.geometries().iter().map(|geometry| geometry.stride_bytes).zip(0u32..).collect();
        classes.sort_unstable_by(|a, b| b.cmp(a));
        // What this call gave: others may give and take at the same time.
        let mut given = 0;
        for (_, class) in classes {
            while given < bytes {
                let Some(freed) = self.shrink(class, 0, deadline)? else { break };
                given += freed;
            }
        }
        Ok(given)
    }

    /// Gives memory back until as much is free on the device as the cache was asked to leave to others. Says how many
    /// bytes it gave.
    ///
    /// # Errors
    /// As [`resize`](SlotCache::resize).
    pub fn keep_headroom(&self, deadline: Option<Instant>) -> Result<u64> {
        let free = self.device().memory()?.free_bytes;
        match self.headroom_bytes().saturating_sub(free) {
            0 => Ok(0),
            missing => self.give_back(missing, deadline),
        }
    }

    /// Allocates as many slots as are missing. False if there are more than that already.
    fn grow_to(&self, class: u32, slots: u32) -> Result<bool> {
        let growing = self.growing();
        let have = self.slots(class)?;
        if slots > have {
            self.grow(class, slots - have, &growing)?;
        }
        Ok(slots >= have)
    }

    /// Allocates slots, a segment at a time, and one caller at a time: slots get their numbers in the order in which the
    /// table learns of them.
    pub(crate) fn grow(&self, class: u32, slots: u32, _growing: &MutexGuard<'_, ()>) -> Result<()> {
        let found = self.shared().with(|core| core.layout_of_class(class));
        let (stride_bytes, per_segment) =
            found.ok_or_else(|| Error::new(ErrorKind::NoSuchClass { class }))?;
        room_for(self.device(), u64::from(slots).saturating_mul(stride_bytes), self.headroom_bytes())?;
        let mut left = slots;
        while left > 0 {
            // What another thread gives back has not gone yet: it stays.
            let mut kept = self.shared().with(|core| core.keep_leaving(class, left));
            if kept == 0 {
                kept = match self.add_segment(class, stride_bytes, left.min(per_segment)) {
                    Err(error) if matches!(error.kind(), ErrorKind::TooManySlots { .. }) => {
                        // A wider one that is leaving has the numbers.
                        match self.shared().with(|core| core.keep_leaving(class, u32::MAX)) {
                            0 => return Err(error),
                            kept => kept,
                        }
                    }
                    added => added?,
                };
            }
            left = left.saturating_sub(kept);
        }
        Ok(())
    }

    /// One segment of up to `most` slots. Says how many it has.
    fn add_segment(&self, class: u32, stride_bytes: u64, most: u32) -> Result<u32> {
        // Before the segment: one whose slots cannot be listed would have memory that nobody uses.
        let ready = (0..most).map(|_| self.device().create_event()).collect::<Result<Vec<_>, _>>()?;
        // Allocating may wait for the device: no lock of the book-keeping is held.
        let range = self.arena().grow(class, stride_bytes, most)?;
        let added = range.end - range.start;
        self.shared().with(|core| core.add_slots(class, range, ready))?;
        Ok(added)
    }

    /// Gives one segment of a class back as long as `keep` slots stay, and says how many bytes that were. `None` if there
    /// is none to give, or it was not empty in time.
    fn shrink(&self, class: u32, keep: u32, deadline: Option<Instant>) -> Result<Option<u64>> {
        if self.device_table().is_some() {
            // Kernels follow its words without asking whether the memory is still there.
            let error = Error::new(ErrorKind::InUse { slots: self.slots(class)? as usize });
            return Err(error.while_doing("giving slots back that a device table refers to"));
        }
        let Some(slots) = self.shared().with(|core| core.begin_leaving(class, keep as usize))? else {
            return Ok(None);
        };
        loop {
            match self.shared().with(|core| core.try_remove_slots(slots.clone())) {
                // Freed here, with no lock held: some APIs wait for the whole device.
                Leaving::Left(segment) => return Ok(Some(segment.len_bytes())),
                Leaving::NotAnyMore => return Ok(None),
                Leaving::Still => {}
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                self.shared().with(|core| core.stop_leaving(slots));
                return Ok(None);
            }
            self.shared().rest(left.map_or(GLANCE, |left| left.min(GLANCE)));
        }
    }
}
