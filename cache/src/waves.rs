//! Sets wider than the pool, served in parts.

use crate::lease::{Lease, Slot};
use crate::{Key, Result, SlotCache};
use spoc_driver::{Segment, Stream};

/// What is left of a set that is served part by part; see [`SlotCache::acquire_waves`].
#[derive(Debug)]
pub struct Waves<'c> {
    cache: &'c SlotCache,
    stream: &'c Stream,
    /// Keys not served yet, with their places in the set.
    left: Vec<(usize, Key)>,
}

/// One part of a set. It ends before the next is asked for: the borrow sees to that.
#[derive(Debug)]
#[must_use]
pub struct Wave<'w> {
    lease: Lease<&'w Stream>,
    places: Vec<usize>,
}

impl SlotCache {
    /// Serves a set of any width, in as many parts as it takes: each is acquired whole, and ends before the next
    /// begins. Every key is in exactly one part, what is there comes first. A set that fits comes as one.
    ///
    /// ```
    /// # use spoc_cache::{Key, Result, SlotCache};
    /// # use spoc_driver::Stream;
    /// fn run(cache: &SlotCache, keys: &[Key], stream: &Stream) -> Result<()> {
    ///     let mut waves = cache.acquire_waves(keys, stream);
    ///     while let Some(wave) = waves.wait_next()? {
    ///         for (place, slot) in wave.slots() {
    ///             println!("key {place} is in slot {}", slot.slot); // launch what reads it
    ///         }
    ///         wave.release(&[stream])?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    #[must_use]
    pub fn acquire_waves<'c>(&'c self, keys: &[Key], stream: &'c Stream) -> Waves<'c> {
        Waves { cache: self, stream, left: keys.iter().copied().enumerate().collect() }
    }

    /// Which keys of a set make its next part, by their places in it, rising: for callers that acquire it themselves.
    /// Empty for an empty set.
    ///
    /// # Errors
    /// As [`Waves::wait_next`], but for those of reading.
    pub fn next_wave(&self, keys: &[Key]) -> Result<Vec<usize>> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        self.shared().with(|core| core.wave(keys))
    }
}

impl Waves<'_> {
    /// The next part, waiting for the disk if need be; `None` behind the last.
    ///
    /// # Errors
    /// As [`SlotCache::wait_acquire`]; what was not served is still left.
    /// [`ErrorKind::TooWide`](crate::ErrorKind::TooWide) if no slot is left beside what is pinned or kept aside.
    pub fn wait_next(&mut self) -> Result<Option<Wave<'_>>> {
        if self.left.is_empty() {
            return Ok(None);
        }
        let keys: Vec<Key> = self.left.iter().map(|&(_, key)| key).collect();
        let chosen = self.cache.next_wave(&keys)?;
        let part: Vec<Key> = chosen.iter().map(|&index| keys[index]).collect();
        let lease = self.cache.wait_acquire(&part, self.stream)?;
        let places = chosen.iter().map(|&index| self.left[index].0).collect();
        for &index in chosen.iter().rev() {
            self.left.remove(index);
        }
        Ok(Some(Wave { lease, places }))
    }

    /// Keys that are left.
    #[must_use]
    pub fn left(&self) -> usize {
        self.left.len()
    }
}

impl Wave<'_> {
    /// Each key of this part: its place in the whole set, and where it is.
    pub fn slots(&self) -> impl Iterator<Item = (usize, Slot)> + '_ {
        self.places.iter().copied().zip(self.lease.slots())
    }

    /// The segment of this part's `index`-th key and its offset there.
    #[must_use]
    pub fn memory(&self, index: usize) -> Option<(Segment, u64)> {
        self.lease.memory(index)
    }

    /// Ends the part: see [`Lease::release`].
    ///
    /// # Errors
    /// As there.
    pub fn release(self, streams: &[&Stream]) -> Result<()> {
        self.lease.release(streams)
    }
}
