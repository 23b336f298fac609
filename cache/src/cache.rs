//! The cache as an engine sees it.

use crate::arena::{Arena, Geometry, SegmentRow};
use crate::catalogue::Catalogue;
use crate::engine::{Core, Parts, Pool, TicketState};
use crate::lease::{Acquire, Lease, Pending, Slot};
use crate::policy::{PolicyKind, Scope};
use crate::pump::{Begin, Feed, Pump, Sink};
use crate::readers::{Reader, Registry, SLOTS_MAX};
use crate::stats::{Cause, Counters, PageOwner, Reader as PageReader, Snapshot};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::tier::{Pinning, Tier, TierOptions, berths_for, check_room};
use crate::{Error, ErrorKind, Key, ModelId, Result};
use spoc_driver::{Device, Segment, Stream, StreamOptions};
use spoc_io::PlanOptions;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How a cache is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheOptions {
    /// How many slots.
    pub slots: u32,
    /// Bytes that a slot must hold: at least the widest group of every model to be registered.
    pub slot_bytes: u64,
    /// Which group leaves.
    pub policy: PolicyKind,
    /// Whether all groups compete for a slot, or those of a layer.
    pub scope: Scope,
    /// Slots that the cache can ever have, of all classes, for [`resize`](SlotCache::resize). At least those it begins
    /// with are counted; 0 for no more than these.
    pub slots_max: u32,
    /// Bytes of a segment at most: what is given back is whole segments. 0 for as many as the device serves.
    pub segment_bytes: u64,
    /// Device memory to leave to others when slots are allocated.
    pub headroom_bytes: u64,
    /// Groups, of all models ever registered, that a slot table in device memory has room for; 0 for no such table. A
    /// cache with one does not shrink.
    pub table_groups: u32,
    /// Slots lie in memory that can be lent to other processes ([`Segment::export`]).
    pub exportable: bool,
    /// Pinned host memory for groups that leave their slots.
    pub tier: TierOptions,
}

impl Default for CacheOptions {
    /// No slots: set some.
    fn default() -> CacheOptions {
        CacheOptions {
            slots: 0,
            slot_bytes: 0,
            policy: PolicyKind::default(),
            scope: Scope::default(),
            slots_max: 0,
            segment_bytes: 0,
            headroom_bytes: 0,
            table_groups: 0,
            exportable: false,
            tier: TierOptions::default(),
        }
    }
}

impl CacheOptions {
    /// `slots` slots as wide as this model's widest group, with the default policy.
    #[must_use]
    pub fn for_catalogue(catalogue: &Catalogue, slots: u32) -> CacheOptions {
        CacheOptions { slots, slot_bytes: catalogue.widest_slot_bytes(), ..CacheOptions::default() }
    }

    /// The one class of slots that these options describe.
    pub(crate) fn class(&self) -> SlotClass {
        SlotClass { slots: self.slots, slot_bytes: self.slot_bytes }
    }
}

/// Slots of one width. A group goes into the narrowest class that holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotClass {
    /// How many.
    pub slots: u32,
    /// Bytes that each must hold.
    pub slot_bytes: u64,
}

/// Slots that a pool needs, see [`SlotCache::min_capacity`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MinCapacity {
    /// Groups of the widest set: fewer slots cannot serve it at once.
    pub layer: usize,
    /// Groups of the widest round of all layers: with fewer slots LRU finds nothing, and every policy less.
    pub round: usize,
}

/// What the cache, its leases and the pump share.
pub(crate) struct Shared {
    device: Device,
    core: Mutex<Core>,
    ready: Condvar,
    /// Somebody waits for room that readers may hold.
    waiting: Arc<AtomicBool>,
    /// Dropped behind the core, which waits for launches.
    arena: Arc<Arena>,
}

impl Shared {
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Sleeps until somebody may have become ready, or for so long.
    pub fn rest(&self, time: Duration) {
        let core = self.lock();
        drop(self.ready.wait_timeout(core, time));
    }

    /// Where a slot is.
    pub fn slot(&self, slot: u32) -> Slot {
        let place = self.arena.place(slot);
        let address = self.arena.address(slot);
        Slot { slot, segment: place.segment, offset_bytes: place.offset_bytes, address }
    }

    /// A slot's segment and its offset there.
    pub fn memory(&self, slot: Slot) -> Option<(Segment, u64)> {
        Some((self.arena.segment(slot.segment)?, slot.offset_bytes))
    }

    pub fn somebody_waits(&self) -> bool {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Gives those who wait what has become free.
    pub fn serve(&self) {
        self.with(Core::serve_queue);
    }

    /// See [`SlotCache::acquire`].
    pub fn acquire<S: Deref<Target = Stream>>(
        self: &Arc<Shared>,
        keys: &[Key],
        stream: S,
    ) -> Result<Acquire<S>> {
        if !stream.device().is(&self.device) {
            return Err(Error::new(ErrorKind::WrongDevice));
        }
        let (ticket, granted) = self.with(|core| {
            let ticket = core.open(keys)?;
            let ready = matches!(core.look(ticket), TicketState::Reserved { loading: 0 });
            Ok::<_, Error>((ticket, ready.then(|| core.grant(ticket, &stream))))
        })?;
        match granted {
            Some(Ok(grant)) => Ok(Acquire::Ready(Lease::new(Arc::clone(self), grant, stream))),
            // Dropping what is pending gives the slots back.
            Some(Err(error)) => {
                drop(Pending::new(Arc::clone(self), ticket, stream));
                Err(error)
            }
            None => Pending::new(Arc::clone(self), ticket, stream).try_lease(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        // The core panics only on its own defects, and tests stop there; an engine is better served by slots
        // that may be lost than by a cache that panics for ever.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the core, then tells those who may have become ready.
    pub fn with<R>(&self, use_core: impl FnOnce(&mut Core) -> R) -> R {
        let mut core = self.lock();
        let result = use_core(&mut core);
        let wake = core.finish();
        drop(core);
        if wake {
            self.ready.notify_all();
        }
        result
    }

    /// Waits until a ticket is ready, or says why it never will be.
    pub fn wait_until(&self, ticket: u32, deadline: Option<Instant>) -> Result<()> {
        let mut core = self.lock();
        loop {
            match core.look(ticket) {
                TicketState::Reserved { loading: 0 } => return Ok(()),
                TicketState::Failed(error) => return Err(error),
                TicketState::Queued | TicketState::Reserved { .. } => {}
            }
            core = match deadline {
                None => self.ready.wait(core).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(Error::new(ErrorKind::TimedOut));
                    }
                    self.ready.wait_timeout(core, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

/// What the pump calls. Weak, so that a running job does not keep a cache that nobody wants: its reads are
/// dropped, and copies that are enqueued own their memory.
struct FillSink(Weak<Shared>);

impl Sink for FillSink {
    fn begin(&self, tag: u64, copies: &Stream) -> Result<Begin> {
        self.0.upgrade().map_or(Ok(Begin::Skip), |shared| shared.with(|core| core.begin(tag, copies)))
    }

    fn published(&self, tag: u64, copies: &Stream) -> Result<()> {
        self.0.upgrade().map_or(Ok(()), |shared| shared.with(|core| core.published(tag, copies)))
    }

    fn failed(&self, tag: u64, error: &Error, in_copy: bool) {
        if let Some(shared) = self.0.upgrade() {
            let cause = if in_copy { Cause::Copy } else { Cause::Read };
            shared.with(|core| core.failed(tag, error, cause));
        }
    }

    fn ended(&self, tag: u64) {
        if let Some(shared) = self.0.upgrade() {
            shared.with(|core| core.ended(tag));
        }
    }

    fn tick(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.with(Core::tick);
        }
    }
}

/// Groups of registered models in slots of device memory, filled from disk, evicted by a policy.
///
/// Shared by reference between threads; every call but the waiting ones returns without waiting for disk or
/// device. Dropping it cancels what is being read; leases that are out stay valid, and the memory lives until
/// the last of them is back and its launches have run.
pub struct SlotCache {
    shared: Arc<Shared>,
    device: Device,
    counters: Counters,
    plan_options: PlanOptions,
    geometries: Vec<Geometry>,
    headroom_bytes: u64,
    /// Held while slots are added.
    growing: Mutex<()>,
    pinning: Option<Pinning>,
    /// Keeps the tick alive, and its pump.
    _sink: Arc<dyn Sink>,
}

/// Whether so much memory is free, beside what is to be left to others.
pub(crate) fn room_for(device: &Device, bytes: u64, headroom_bytes: u64) -> Result<()> {
    let have_bytes = device.memory()?.free_bytes.saturating_sub(headroom_bytes);
    if bytes > have_bytes {
        return Err(Error::new(ErrorKind::DeviceTooSmall { need_bytes: bytes, have_bytes }));
    }
    Ok(())
}

/// Memory for the slot table: every group is absent.
fn device_table(device: &Device, groups: u32) -> Result<Option<(Segment, u32, bool)>> {
    if groups == 0 {
        return Ok(None);
    }
    let bytes = u64::from(groups) * 8;
    let segment = device.allocate(bytes)?;
    let zeros = vec![0; usize::try_from(bytes.min(1 << 20)).unwrap_or(1 << 20)];
    let mut at = 0;
    while at < bytes {
        let part = usize::try_from(bytes - at).unwrap_or(zeros.len()).min(zeros.len());
        segment.write(at, &zeros[..part])?;
        at += part as u64;
    }
    let by_value = device.capabilities().write_value.is_available();
    Ok(Some((segment, groups, by_value)))
}

/// The page with the right to write a cache's slots there; another one, on the heap, if some cache has that right already:
/// two that write the same words are both misread.
fn own_page(counters: Counters, slots_max: u32) -> (Counters, PageOwner) {
    if let Some(page) = counters.try_own() {
        return (counters, page);
    }
    tracing::warn!("another cache counts on this page: this one counts on the heap, where nobody sees it");
    let own = Counters::on_heap(slots_max as usize);
    let page = own.try_own().unwrap_or_else(|| unreachable!("a page that nobody else knows"));
    (own, page)
}

/// The host tier that the options ask for, without memory as yet.
fn host_tier(
    device: &Device,
    berths: &[Arc<spoc_bridge::Berths>],
    options: &CacheOptions,
    counters: &Counters,
) -> Result<Option<Tier>> {
    if options.tier.bytes == 0 {
        return Ok(None);
    }
    let stream = device.create_stream(StreamOptions { non_blocking: true, ..StreamOptions::default() })?;
    let policy = || options.policy.create_for(options.scope);
    let classes = berths.iter().map(|berths| (Arc::clone(berths), policy())).collect();
    Ok(Some(Tier::new(stream, classes, options.tier.inclusive, counters.clone())))
}

fn per_segment(geometry: &Geometry, segment_bytes: u64) -> u32 {
    u32::try_from(segment_bytes / geometry.stride_bytes).unwrap_or(u32::MAX)
}

impl SlotCache {
    /// Allocates the slots on the pump's device.
    ///
    /// # Errors
    /// A slot wider than a segment, or more memory than is free, by name; the device's refusals.
    pub fn new(pump: &Arc<Pump>, options: CacheOptions) -> Result<SlotCache> {
        SlotCache::with_classes(pump, &[options.class()], options)
    }

    /// [`new`](SlotCache::new) with slots of several widths, so that narrow groups do not take wide slots.
    /// `options.slots` and `options.slot_bytes` do not count. Each class has a policy and a queue position of its own:
    /// a group is evicted for one of its class only.
    ///
    /// # Errors
    /// As `new`.
    pub fn with_classes(pump: &Arc<Pump>, classes: &[SlotClass], options: CacheOptions) -> Result<SlotCache> {
        SlotCache::with_counters(pump, classes, options, pump.counters().clone())
    }

    /// [`with_classes`](SlotCache::with_classes) with counters of its own instead of the pump's, where several caches
    /// share a pump. What the pump itself does (chunks, copies and what it waits for) it counts on its own. A page has the
    /// slots of one cache: while another one writes them, this cache counts on the heap, and says so in the log;
    /// [`counters`](SlotCache::counters) are those that it has.
    ///
    /// # Errors
    /// As `new`.
    pub fn with_counters(
        pump: &Arc<Pump>,
        classes: &[SlotClass],
        options: CacheOptions,
        counters: Counters,
    ) -> Result<SlotCache> {
        let cache = SlotCache::build(
            pump.device(),
            Arc::clone(pump) as Arc<dyn Feed>,
            counters,
            *pump.plan_options(),
            classes,
            options,
        )?;
        pump.watch(Arc::downgrade(&cache._sink));
        Ok(cache)
    }

    pub(crate) fn build(
        device: &Device,
        feed: Arc<dyn Feed>,
        counters: Counters,
        plan_options: PlanOptions,
        classes: &[SlotClass],
        options: CacheOptions,
    ) -> Result<SlotCache> {
        let limits = device.limits();
        let align = limits.address_align_bytes.max(limits.copy_granule_bytes);
        let segment_bytes = match options.segment_bytes {
            0 => Geometry::segment_bytes(limits),
            asked => Geometry::segment_bytes(limits).min(asked),
        };
        let mut geometries = Vec::with_capacity(classes.len());
        for class in classes {
            geometries.push(Geometry::new(class.slot_bytes, class.slots, align, segment_bytes)?);
        }
        let bytes = geometries.iter().fold(0u64, |sum, geometry| sum.saturating_add(geometry.bytes()));
        room_for(device, bytes, options.headroom_bytes)?;
        let slots = geometries.iter().fold(0u32, |sum, geometry| sum.saturating_add(geometry.slots));
        let slots_max = slots.max(options.slots_max).min(SLOTS_MAX);
        check_room(&options.tier)?;
        let berths = berths_for(&geometries);
        let table = device_table(device, options.table_groups)?;
        let (counters, page) = own_page(counters, slots_max);
        let tier = host_tier(device, &berths, &options, &counters)?;
        let arena = Arc::new(Arena::new(device, slots_max, options.exportable));
        let waiting = Arc::new(AtomicBool::new(false));
        let pools = geometries.iter().map(|geometry| {
            Pool::new(
                geometry.stride_bytes,
                per_segment(geometry, segment_bytes),
                options.policy.create_for(options.scope),
            )
        });
        let mut made: Option<Arc<dyn Sink>> = None;
        let shared = Arc::new_cyclic(|shared: &Weak<Shared>| {
            let sink: Arc<dyn Sink> = Arc::new(FillSink(shared.clone()));
            made = Some(Arc::clone(&sink));
            let core = Core::new(Parts {
                device: device.clone(),
                arena: Arc::clone(&arena),
                feed,
                sink,
                counters: counters.clone(),
                page,
                pools: pools.collect(),
                readers: Registry::new(slots_max as usize, Arc::clone(&waiting)),
                table,
                tier,
            });
            Shared { arena, device: device.clone(), core: Mutex::new(core), ready: Condvar::new(), waiting }
        });
        let sink = made.unwrap_or_else(|| Arc::new(FillSink(Arc::downgrade(&shared))));
        let headroom_bytes = options.headroom_bytes;
        let pinning = match options.tier.bytes {
            0 => None,
            bytes => Some(Pinning::start(device, &geometries, &berths, bytes, &counters)?),
        };
        let cache = SlotCache {
            shared,
            device: device.clone(),
            counters,
            plan_options,
            geometries,
            headroom_bytes,
            growing: Mutex::default(),
            pinning,
            _sink: sink,
        };
        for (class, geometry) in (0u32..).zip(&cache.geometries) {
            cache.grow(class, geometry.slots, &cache.growing())?;
        }
        Ok(cache)
    }

    /// Takes a model in. Plans how each group is read.
    ///
    /// # Errors
    /// A group wider than the slots, by name; a group that cannot be planned.
    pub fn register(&self, catalogue: Arc<Catalogue>) -> Result<ModelId> {
        let plans = (0u32..)
            .take(catalogue.groups().len())
            .map(|group| catalogue.plan(group, &self.plan_options))
            .collect::<Result<Vec<_>>>()?;
        self.shared.with(|core| core.register(catalogue, plans))
    }

    /// Forgets a model: its groups leave, its keys are refused from now on.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] while something of it is loading, leased or queued for.
    pub fn unregister(&self, model: ModelId) -> Result<()> {
        self.shared.with(|core| core.unregister(model))
    }

    /// The key of a group of a registered model.
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchGroup`], also for a model that is not registered.
    pub fn key(&self, model: ModelId, group: u32) -> Result<Key> {
        let found = self.shared.with(|core| core.model(model));
        match found {
            Some((generation, catalogue)) if (group as usize) < catalogue.groups().len() => {
                Ok(Key { model, generation, group })
            }
            _ => Err(Error::new(ErrorKind::NoSuchGroup { group })),
        }
    }

    /// The keys of every group of a registered model, in the order of its catalogue.
    #[must_use]
    pub fn keys(&self, model: ModelId) -> Vec<Key> {
        let found = self.shared.with(|core| core.model(model));
        found.map_or_else(Vec::new, |(generation, catalogue)| {
            (0u32..).take(catalogue.groups().len()).map(|group| Key { model, generation, group }).collect()
        })
    }

    /// Wants a set of groups, for launches on `stream` (a `&Stream`, or an `Rc` or `Box` of one).
    ///
    /// The set is judged at once, against one snapshot, and none of its members leaves for another of them.
    /// Slots are reserved for all of it or for nothing, first come first served. Members that others are
    /// already having read are joined. Keys named twice count once.
    ///
    /// # Errors
    /// [`ErrorKind::TooWide`] for a set that can never fit; a stale or unknown key; a stream of another device.
    pub fn acquire<S: Deref<Target = Stream>>(&self, keys: &[Key], stream: S) -> Result<Acquire<S>> {
        self.shared.acquire(keys, stream)
    }

    /// A reader for one engine thread, whose launches go to `stream`.
    ///
    /// # Errors
    /// A stream of another device.
    pub fn reader<S: Deref<Target = Stream>>(&self, stream: S) -> Result<Reader<S>> {
        self.reader_on(stream, Vec::new())
    }

    /// A reader for one engine thread, whose launches go to `stream` and to `others`, and to no other stream. The end of a
    /// step records an event on each.
    ///
    /// # Errors
    /// A stream of another device.
    pub fn reader_on<S: Deref<Target = Stream>>(&self, stream: S, others: Vec<S>) -> Result<Reader<S>> {
        if !std::iter::once(&stream).chain(&others).all(|stream| stream.device().is(&self.device)) {
            return Err(Error::new(ErrorKind::WrongDevice));
        }
        let cell = self.shared.with(Core::join_reader);
        Ok(Reader::new(Arc::clone(&self.shared), cell, stream, others))
    }

    /// [`acquire`](SlotCache::acquire), waiting for the disk if need be.
    ///
    /// # Errors
    /// As `acquire`, and why a fill failed.
    pub fn wait_acquire<S: Deref<Target = Stream>>(&self, keys: &[Key], stream: S) -> Result<Lease<S>> {
        self.acquire(keys, stream)?.wait()
    }

    /// Looks at everything that others end without a call: words that leases wait for, events that have fired. Who waits
    /// for room is served. The pump does this now and then by itself, and every acquire does.
    pub fn poll(&self) {
        self.shared.with(Core::tick);
    }

    /// Synchronises the device and takes back slots of leases that no event could order.
    ///
    /// # Errors
    /// The device's; nothing is taken back then.
    pub fn recover(&self) -> Result<()> {
        self.device.flush()?;
        self.shared.with(Core::recover);
        Ok(())
    }

    /// The segment table: addresses of all slots, for good.
    #[must_use]
    pub fn segment_table(&self) -> Vec<SegmentRow> {
        self.shared.arena.table()
    }

    /// The segments themselves, as [`Slot::segment`] counts them; `None` for one that was given back.
    #[must_use]
    pub fn segments(&self) -> Vec<Option<Segment>> {
        self.shared.arena.segments()
    }

    /// How the slots of the first class were laid out at first.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        let none = Geometry { stride_bytes: 0, slots: 0, slots_per_segment: 1 };
        self.geometries.first().copied().unwrap_or(none)
    }

    /// How slots of each class were laid out at first.
    #[must_use]
    pub fn geometries(&self) -> &[Geometry] {
        &self.geometries
    }

    /// What is counted; also a statistics page, if its store is one.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The floors of the pool, as far as requests have shown: below them hits collapse. Zeros before the first request;
    /// they rise while wider sets and rounds are seen. See also `cachestat advise`.
    #[must_use]
    pub fn min_capacity(&self) -> MinCapacity {
        let (layer, round) = self.shared.with(Core::floors);
        MinCapacity { layer, round }
    }

    /// How many slots are in which state, now: releases whose events have fired are retired first.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.shared.with(Core::retire_all);
        PageReader::new(self.counters.words()).map(|page| page.snapshot()).unwrap_or_default()
    }

    /// Waits until the host tier has all the memory that it will have; at once without one. Nothing else needs to wait for
    /// that: what does not fit yet is dropped, and counted.
    pub fn wait_tier(&self) {
        if let Some(pinning) = &self.pinning {
            pinning.wait();
        }
    }

    /// Gives back pinned memory of the host tier, in whole pieces, at least `bytes` or all there is, and takes no more.
    /// Groups there are forgotten; copies under way hold their piece until they have run. Answers how many bytes are on
    /// their way back to the system.
    pub fn give_back_tier(&self, bytes: u64) -> u64 {
        if let Some(pinning) = &self.pinning {
            pinning.stop();
        }
        let given = self.shared.with(|core| core.give_back_tier(bytes));
        given.iter().map(spoc_bridge::GivenBack::bytes).sum()
    }

    pub(crate) fn arena(&self) -> &Arena {
        self.shared.arena()
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Slots are added by one caller at a time.
    pub(crate) fn growing(&self) -> MutexGuard<'_, ()> {
        self.growing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn headroom_bytes(&self) -> u64 {
        self.headroom_bytes
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for SlotCache {
    fn drop(&mut self) {
        let closed = Error::new(ErrorKind::Closed);
        self.shared.with(|core| core.close(&closed));
    }
}

impl fmt::Debug for SlotCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotCache").field("geometries", &self.geometries).finish_non_exhaustive()
    }
}
