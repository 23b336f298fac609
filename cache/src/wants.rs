//! What an engine tells the cache beside the sets that it waits for: claims, pins, hints, profiles.

use crate::engine::{CacheEvent, Claimed, Evicted, Hinted, Subscription};
use crate::lease::{Lease, Slot};
use crate::{Error, ErrorKind, Key, ModelId, Profile, Result, SlotCache};
use spoc_driver::{Segment, Stream};
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a claim got: a lease of what is there, and what is missing.
#[derive(Debug)]
#[must_use]
pub struct Claim<S: Deref<Target = Stream>> {
    lease: Lease<S>,
    places: Vec<Option<u32>>,
    missing: Vec<Key>,
    inserts: u32,
}

impl<S: Deref<Target = Stream>> Claim<S> {
    /// Where the `index`-th key of the claim is; `None` if it is missing.
    #[must_use]
    pub fn slot(&self, index: usize) -> Option<Slot> {
        self.lease.slot((*self.places.get(index)?)? as usize)
    }

    /// The segment of the `index`-th key and its offset there; `None` if it is missing.
    #[must_use]
    pub fn memory(&self, index: usize) -> Option<(Segment, u64)> {
        self.lease.memory((*self.places.get(index)?)? as usize)
    }

    /// Distinct keys that are not there.
    #[must_use]
    pub fn missing(&self) -> &[Key] {
        &self.missing
    }

    /// How many of these are being read now, for the next time.
    #[must_use]
    pub fn inserts(&self) -> u32 {
        self.inserts
    }

    /// The lease alone, of the keys that are there, in the order of the claim.
    pub fn into_lease(self) -> Lease<S> {
        self.lease
    }

    /// Ends the lease: see [`Lease::release`].
    ///
    /// # Errors
    /// As there.
    pub fn release(self, streams: &[&Stream]) -> Result<()> {
        self.lease.release(streams)
    }
}

impl SlotCache {
    /// Leases what is there of a set, for launches on `stream`, and begins to read at most `inserts_max` of what is
    /// not: for engines that compute the missing ones elsewhere. Never waits; no member of the set leaves for another.
    ///
    /// # Errors
    /// A stale or unknown key; a stream of another device, and its refusals.
    pub fn claim<S: Deref<Target = Stream>>(
        &self,
        keys: &[Key],
        stream: S,
        inserts_max: usize,
    ) -> Result<Claim<S>> {
        if !stream.device().is(self.device()) {
            return Err(Error::new(ErrorKind::WrongDevice));
        }
        let Claimed { grant, places, missing, inserts } =
            self.shared().with(|core| core.claim(keys, &stream, inserts_max))?;
        // Places count distinct groups; the lease counts the keys that are there.
        let mut there = 0..u32::MAX;
        let places =
            places.iter().map(|&place| if place == u32::MAX { None } else { there.next() }).collect();
        let lease = Lease::new(Arc::clone(self.shared()), grant, stream);
        Ok(Claim { lease, places, missing, inserts })
    }

    /// Keeps groups until as many [`unpin`](SlotCache::unpin)s: they do not leave, and those that are not there are
    /// read, into free slots or those of victims. Does not wait for that.
    ///
    /// # Errors
    /// [`ErrorKind::TooWide`] if they and what is pinned already do not fit; nothing is pinned then. A stale or
    /// unknown key.
    pub fn pin(&self, keys: &[Key]) -> Result<()> {
        self.shared().with(|core| core.pin_keys(keys))
    }

    /// Ends one pin of each.
    ///
    /// # Errors
    /// A stale or unknown key.
    pub fn unpin(&self, keys: &[Key]) -> Result<()> {
        self.shared().with(|core| core.unpin_keys(keys))
    }

    /// Makes groups leave their slots now; those that are leased, being read or pinned stay. Groups that are not there
    /// count as neither.
    ///
    /// # Errors
    /// A stale or unknown key; nothing has left then.
    pub fn evict(&self, keys: &[Key]) -> Result<Evicted> {
        self.shared().with(|core| core.evict_keys(keys))
    }

    /// Keeps groups for a while as long as anything else can leave. Zero takes the wish back.
    ///
    /// # Errors
    /// A stale or unknown key.
    pub fn retain(&self, keys: &[Key], time: Duration) -> Result<()> {
        let until = if time.is_zero() { 0 } else { self.after_ns(time) };
        self.shared().with(|core| core.retain_keys(keys, until))
    }

    /// Says that groups will probably be wanted by `deadline`. They are read behind every demand, into free slots or
    /// those of groups that demand has not wanted for two rounds of the layers; what finds no room waits for some, the
    /// soonest deadline first, and is forgotten when that has passed. A demand for one that is being read joins the
    /// read and makes it urgent. What reading ahead was good for is counted; below break-even it is turned off, but
    /// for one key in sixteen, until it is worth while again.
    ///
    /// # Errors
    /// A stale or unknown key; those before it were taken.
    pub fn hint(&self, keys: &[Key], deadline: Instant) -> Result<Hinted> {
        let deadline_ns = self.after_ns(deadline.saturating_duration_since(Instant::now()));
        self.shared().with(|core| core.hint(keys, deadline_ns))
    }

    /// Whether reading ahead is turned off, and the share of it that was of use lately (`None` before enough is
    /// known).
    #[must_use]
    pub fn speculation(&self) -> (bool, Option<f64>) {
        self.shared().with(|core| core.speculation())
    }

    /// Ends running reads of these groups for everyone: every set that waits for one fails with
    /// [`ErrorKind::Cancelled`]. Says how many reads it ended.
    ///
    /// # Errors
    /// A stale or unknown key.
    pub fn cancel(&self, keys: &[Key]) -> Result<u32> {
        self.shared().with(|core| core.cancel(keys))
    }

    /// What of a model is resident, most used first, by name: to be kept beside the model and given to
    /// [`warm`](SlotCache::warm) next time. Empty for a model that is not registered.
    #[must_use]
    pub fn profile(&self, model: ModelId) -> Profile {
        let (hot, found) = self.shared().with(|core| (core.hot(model), core.model(model)));
        let Some((_, catalogue)) = found else { return Profile::default() };
        let name = |group| catalogue.group(group).map(|group| group.name.clone());
        Profile { groups: hot.into_iter().filter_map(|(group, uses)| Some((name(group)?, uses))).collect() }
    }

    /// Reads the groups of a profile into slots that are free, in its order, behind everything else that is read.
    /// Names that the model does not have are left out. Says how many reads it began; does not wait for them.
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchGroup`] for a model that is not registered.
    pub fn warm(&self, model: ModelId, profile: &Profile) -> Result<u32> {
        let found = self.shared().with(|core| core.model(model));
        let (generation, catalogue) = found.ok_or_else(|| Error::new(ErrorKind::NoSuchGroup { group: 0 }))?;
        let groups = profile.groups.iter().filter_map(|(name, _)| catalogue.group_named(name));
        let keys: Vec<Key> = groups.map(|group| Key { model, generation, group }).collect();
        self.shared().with(|core| core.warm(&keys))
    }

    /// What happens from now on, in a channel that holds up to `capacity` events; those that do not fit are dropped
    /// and counted.
    #[must_use]
    pub fn subscribe(&self, capacity: usize) -> Subscription {
        self.shared().with(|core| core.subscribe(capacity))
    }

    fn after_ns(&self, time: Duration) -> u64 {
        self.counters().now_ns().saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }
}

const _: () = assert!(size_of::<CacheEvent>() <= 40, "events are copied into every subscriber's channel");
