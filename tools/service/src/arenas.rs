//! Slot caches, and leases on their slots.

use crate::config::ArenaConfig;
use crate::error::{Error, Result};
use crate::host::{CountersFor, HostDevice};
use crate::models::Registered;
use crate::segments::{Numbered, SegmentBook};
use crate::session::{Held, Session};
use spoc_cache::{Acquire, CacheOptions, Catalogue, ErrorKind, Lease, Pending, SlotCache, SlotClass, State};
use spoc_driver::{Device, Stream, StreamOptions};
use spoc_proto::v1 as pb;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How often one that waits looks whether it is still waited for.
const GLANCE: Duration = Duration::from_millis(50);

/// A slot cache on one device.
pub struct Arena {
    pub name: String,
    pub device: String,
    pub cache: SlotCache,
    policy: String,
    classes: Vec<SlotClass>,
    streams: Streams,
    /// The cache's segments, by their index there.
    segments: Mutex<Vec<Option<Numbered>>>,
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Streams that leases are granted on: each waits for the copies of one lease's groups, and nothing is launched on it.
#[derive(Debug)]
struct Streams {
    device: Device,
    idle: Arc<Mutex<Vec<Stream>>>,
}

/// A stream that goes back when it is let go.
pub struct Borrowed {
    /// One, until it goes back.
    stream: Vec<Stream>,
    home: Arc<Mutex<Vec<Stream>>>,
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        self.home.lock().unwrap_or_else(PoisonError::into_inner).append(&mut self.stream);
    }
}

impl Streams {
    fn borrow(&self) -> Result<Borrowed> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let stream = match idle {
            Some(stream) => stream,
            None => self.device.create_stream(StreamOptions::default())?,
        };
        Ok(Borrowed { stream: vec![stream], home: Arc::clone(&self.idle) })
    }
}

impl Deref for Borrowed {
    type Target = Stream;

    fn deref(&self) -> &Stream {
        &self.stream[0]
    }
}

/// Widths for a model's own arena: each at most half as wide again as the groups in it need.
pub fn classes_for(catalogue: &Catalogue, bytes: u64) -> Vec<SlotClass> {
    let mut widths: Vec<u64> = catalogue.groups().iter().map(|group| group.slot_bytes.max(1)).collect();
    widths.sort_unstable_by(|a, b| b.cmp(a));
    let total: u64 = widths.iter().sum();
    let mut classes: Vec<SlotClass> = Vec::new();
    for width in widths {
        match classes.last_mut() {
            Some(class) if class.slot_bytes <= width.saturating_mul(3) / 2 => class.slots += 1,
            _ => classes.push(SlotClass { slots: 1, slot_bytes: width }),
        }
    }
    if bytes < total {
        for class in &mut classes {
            let share = u128::from(class.slots) * u128::from(bytes) / u128::from(total.max(1));
            class.slots = u32::try_from(share).unwrap_or(class.slots).max(1);
        }
    }
    classes
}

impl Arena {
    /// Allocates an arena.
    ///
    /// # Errors
    /// A slot wider than a segment; more memory than is free; the device's.
    pub fn new(config: &ArenaConfig, host: &HostDevice, counters: CountersFor<'_>) -> Result<Arena> {
        let policy = config.policy()?;
        let classes: Vec<SlotClass> = config
            .classes
            .iter()
            .map(|class| SlotClass { slots: class.slots, slot_bytes: class.slot.0 })
            .collect();
        let options = CacheOptions {
            policy,
            headroom_bytes: config.headroom.0,
            exportable: host.device.capabilities().export_memory.is_available(),
            // So many again may be added by `Resize`.
            slots_max: classes
                .iter()
                .fold(0u32, |sum, class| sum.saturating_add(class.slots))
                .saturating_mul(2),
            ..CacheOptions::default()
        };
        let counters = counters(&format!("arena {}", config.name), options.slots_max as usize);
        let cache = SlotCache::with_counters(&host.pump, &classes, options, counters)?;
        let streams = Streams { device: host.device.clone(), idle: Arc::default() };
        Ok(Arena {
            name: config.name.clone(),
            device: host.uuid.clone(),
            cache,
            policy: policy.to_string(),
            classes,
            streams,
            segments: Mutex::new(Vec::new()),
        })
    }

    /// As clients are told of it.
    pub fn told(&self) -> pb::Arena {
        let snapshot = self.cache.snapshot();
        let classes = (0u32..).zip(&self.classes).map(|(class, made)| pb::SlotClass {
            slots: self.cache.slots(class).unwrap_or(made.slots),
            slot_bytes: made.slot_bytes,
        });
        let count = |state: State| u32::try_from(snapshot.states[state as usize]).unwrap_or(u32::MAX);
        pb::Arena {
            name: self.name.clone(),
            device: self.device.clone(),
            classes: classes.collect(),
            bytes: self.bytes(),
            policy: self.policy.clone(),
            free: count(State::Free),
            loading: count(State::Loading),
            resident: count(State::Resident),
            leased: count(State::Leased),
            draining: count(State::Draining),
            failed: count(State::Failed),
        }
    }

    pub fn bytes(&self) -> u64 {
        self.cache.segments().iter().flatten().map(|segment| segment.len_bytes()).sum()
    }

    /// The numbered segment at an index of the cache's own.
    fn numbered(&self, book: &SegmentBook, index: u32) -> Option<Numbered> {
        let mut known = self.segments.lock().unwrap_or_else(PoisonError::into_inner);
        let at = index as usize;
        if known.len() <= at {
            known.resize(at + 1, None);
        }
        let now = self.cache.segments().get(at).cloned().flatten()?;
        match &known[at] {
            Some(numbered) if numbered.segment.is(&now) => {}
            before => {
                if let Some(gone) = before {
                    book.remove(gone.id);
                }
                known[at] = Some(book.add(now));
            }
        }
        known[at].clone()
    }

    /// Lets go of segments that the cache has given back: while their numbers are known, their memory is not free.
    pub fn forget_gone(&self, book: &SegmentBook) {
        let mut known = self.segments.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.cache.segments();
        for (at, numbered) in known.iter_mut().enumerate() {
            let is_gone = |numbered: &Numbered| {
                !now.get(at).is_some_and(|now| now.as_ref().is_some_and(|now| numbered.segment.is(now)))
            };
            if let Some(gone) = numbered.take_if(|numbered| is_gone(numbered)) {
                book.remove(gone.id);
            }
        }
    }

    /// None of its segments can be asked for any more.
    fn forget_all(&self, book: &SegmentBook) {
        let mut known = self.segments.lock().unwrap_or_else(PoisonError::into_inner);
        known.drain(..).flatten().for_each(|numbered| book.remove(numbered.id));
    }

    /// Begins to acquire groups. `Ready` if all are resident and their copies have run.
    ///
    /// # Errors
    /// `too_wide`, a stale key, the stream's.
    pub fn begin(&self, model: &Registered, groups: &[u32]) -> Result<Begun> {
        let keys = model.keys(groups)?;
        Ok(match self.cache.acquire(&keys, self.streams.borrow()?)? {
            Acquire::Ready(lease) if lease.stream().query()? => Begun::Ready(lease),
            Acquire::Ready(lease) => Begun::Copying(lease),
            Acquire::Pending(pending) => Begun::Pending(pending),
        })
    }

    /// Hands a lease to a session: it ends by the session's word.
    ///
    /// # Errors
    /// `quota_exceeded`, `not_attached`; the lease is given back then.
    pub fn hand_over(
        &self,
        lease: Lease<Borrowed>,
        session: &Session,
        book: &SegmentBook,
        model: &Registered,
        groups: &[u32],
        tag: u64,
    ) -> Result<pb::Lease> {
        let (mut slots, mut segments) = (Vec::with_capacity(groups.len()), Vec::<pb::Segment>::new());
        let mut bytes = 0u64;
        for (slot, &group) in lease.slots().zip(groups) {
            if !segments.iter().any(|segment| segment.index == slot.segment) {
                let numbered = self.numbered(book, slot.segment);
                let numbered =
                    numbered.ok_or_else(|| Error::new("internal", "a leased slot has no segment"))?;
                segments.push(numbered.told(slot.segment));
            }
            let held = model.catalogue.group(group).map_or(0, |group| group.slot_bytes);
            bytes = bytes.saturating_add(held);
            slots.push(pb::Slot {
                segment: slot.segment,
                offset: slot.offset_bytes,
                bytes: held,
                slot: slot.slot,
                generation: model.generation(),
            });
        }
        let ids = segments.iter().map(|segment| segment.id).collect();
        let held = || Held::Slots { segments: ids, model: Arc::clone(&model.name), bytes };
        let grant = session.grant(bytes, tag, held)?;
        let told = grant.told();
        lease.release_at(grant.awaited, grant.value);
        Ok(pb::Lease { slots, segments, ..told })
    }
}

/// An acquire on its way.
pub enum Begun {
    /// Everything is there.
    Ready(Lease<Borrowed>),
    /// Read, and being copied.
    Copying(Lease<Borrowed>),
    /// Something is being read, or has to wait for room.
    Pending(Pending<Borrowed>),
}

impl Begun {
    /// Waits until the copies have run, or until nobody wants them any more. Blocks: not for a thread that serves
    /// others.
    ///
    /// # Errors
    /// `timed_out`, `cancelled`, why a fill failed.
    pub fn wait(self, timeout: Option<Duration>, wanted: &Weak<()>) -> Result<Lease<Borrowed>> {
        // A deadline beyond what the clock counts is none.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let lease = match self {
            Begun::Ready(lease) => return Ok(lease),
            Begun::Copying(lease) => lease,
            Begun::Pending(pending) => {
                loop {
                    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
                    let step = left.map_or(GLANCE, |left| left.min(GLANCE));
                    match pending.wait_ready(Some(step)) {
                        Err(error)
                            if matches!(error.kind(), ErrorKind::TimedOut)
                                && left.is_none_or(|left| left > step) => {}
                        other => break other?,
                    }
                    if wanted.strong_count() == 0 {
                        return Err(Error::new("cancelled", "nobody waits for it any more"));
                    }
                }
                pending.wait()?
            }
        };
        lease.stream().synchronize()?;
        Ok(lease)
    }
}

/// Every arena, by name.
#[derive(Debug, Default)]
pub struct ArenaBook(Mutex<Vec<Arc<Arena>>>);

impl ArenaBook {
    pub fn all(&self) -> Vec<Arc<Arena>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn add(&self, arena: Arena) -> Arc<Arena> {
        let arena = Arc::new(arena);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&arena));
        arena
    }

    /// Forgets an arena; its memory is free when whoever has it lets go.
    pub fn remove(&self, name: &str, book: &SegmentBook) {
        if let Ok(arena) = self.get(name) {
            self.remove_this(&arena, book);
        }
    }

    /// As [`remove`](ArenaBook::remove), and never another of its name.
    pub fn remove_this(&self, arena: &Arc<Arena>, book: &SegmentBook) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|other| !Arc::ptr_eq(other, arena));
        arena.forget_all(book);
    }

    /// # Errors
    /// `unknown_arena`, with those there are.
    pub fn get(&self, name: &str) -> Result<Arc<Arena>> {
        let all = self.all();
        all.iter().find(|arena| arena.name == name).cloned().ok_or_else(|| {
            let there: Vec<&str> = all.iter().map(|arena| arena.name.as_str()).collect();
            Error::new("unknown_arena", format!("there is no arena {name:?}; there are {there:?}"))
        })
    }
}
