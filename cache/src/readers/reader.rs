//! What an engine thread holds.

use super::{Line, ReaderCell, Word};
use crate::cache::Shared;
use crate::engine::ModelWords;
use crate::lease::{Acquire, Lease, Pending, Slot};
use crate::slots::NONE;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::{Error, ErrorKind, Key, Result};
use spoc_driver::{CaptureState, Segment, Stream};
use std::cell::RefCell;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// One engine thread's way to what is resident: sets that are there as a whole are found and held without a lock,
/// without allocating, and without touching a cache line that another thread writes.
///
/// Launches go to the reader's streams, which it is made with and which stay the same. Ending a lease costs nothing on the
/// device; [`end_step`](Reader::end_step) records one event a stream behind everything launched since the last one, and
/// only then may the slots of ended leases be filled anew. A set that is not there as a whole is acquired through the
/// cache, which ends the step first, on every stream.
///
/// ```
/// # use spoc_cache::{CacheOptions, Catalogue, GroupRules, Pump, PumpOptions, SlotCache};
/// # use spoc_driver::{BackendKind, DeviceSelector, Driver, StreamOptions};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.safetensors");
/// # let header = r#"{"layers.0.w":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#;
/// # let mut file = (header.len() as u64).to_le_bytes().to_vec();
/// # file.extend(header.bytes().chain([1, 2, 3]));
/// # std::fs::write(&path, file)?;
/// # let found = spoc_backends::found(&spoc_backends::probe());
/// # let device = Driver::new(found).open(&DeviceSelector::index(BackendKind::Native, 0))?;
/// # let pump = Pump::start(&device, PumpOptions::default())?;
/// # let model = spoc_io::open_model(&path, &Default::default())?;
/// # let catalogue = std::sync::Arc::new(Catalogue::from_model(&model, &GroupRules::default())?);
/// # let cache = SlotCache::new(&pump, CacheOptions::for_catalogue(&catalogue, 1))?;
/// # let keys = cache.keys(cache.register(catalogue)?);
/// let stream = device.create_stream(StreamOptions::default())?;
/// let reader = cache.reader(&stream)?;
/// for _token in 0..3 {
///     for key in &keys {
///         let lease = reader.wait_acquire(&[*key])?;
///         let (segment, offset) = lease.memory(0).ok_or("a key")?;
///         // In the place of a launch.
///         assert_eq!(stream.copy_to_host(&segment, offset, vec![0; 3])?.wait()?, [1, 2, 3]);
///     }
///     reader.end_step()?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Reader<S: Deref<Target = Stream>> {
    shared: Arc<Shared>,
    cell: Arc<ReaderCell>,
    stream: S,
    /// Other streams that launch what it finds.
    others: Vec<S>,
    local: RefCell<Local>,
}

/// What only the reader's thread sees.
#[derive(Debug, Default)]
struct Local {
    tables: Vec<Option<Arc<ModelWords>>>,
    /// The last set, counted from 1.
    set: u64,
    /// The last set that was closed.
    closed: u64,
    seen: Vec<Seen>,
    items: Vec<u32>,
    /// Slots of the leases that are out, each in a place of its own; empty places keep their memory.
    leases: Vec<Vec<u32>>,
    unused: Vec<u32>,
}

/// One key of the set under way.
#[derive(Debug, Clone, Copy)]
struct Seen {
    word: Word,
    before: u64,
}

/// What a reader's acquire gives.
#[derive(Debug)]
#[must_use]
pub enum ReaderAcquire<'r, S: Deref<Target = Stream>> {
    /// Everything was there.
    Ready(ReaderLease<'r, S>),
    /// Something is being read, or the set waits its turn.
    Pending(ReaderPending<'r, S>),
}

/// A reader's set on its way, as a [`Pending`]: dropping it gives up.
#[derive(Debug)]
#[must_use]
pub struct ReaderPending<'r, S: Deref<Target = Stream>> {
    reader: &'r Reader<S>,
    pending: Pending<&'r Stream>,
}

impl<'r, S: Deref<Target = Stream>> ReaderPending<'r, S> {
    /// The lease if everything is there; itself again if not. Never blocks.
    ///
    /// # Errors
    /// As [`Pending::try_lease`].
    pub fn try_lease(self) -> Result<ReaderAcquire<'r, S>> {
        let ReaderPending { reader, pending } = self;
        reader.acquired(pending.try_lease()?)
    }

    /// Waits until everything has been read and its copies are enqueued.
    ///
    /// # Errors
    /// As [`Pending::wait`].
    pub fn wait(self) -> Result<ReaderLease<'r, S>> {
        self.reader.leased(self.pending.wait()?)
    }

    /// Like [`wait`](ReaderPending::wait), giving up after `timeout`.
    ///
    /// # Errors
    /// As [`Pending::wait_timeout`].
    pub fn wait_timeout(self, timeout: Duration) -> Result<ReaderLease<'r, S>> {
        self.reader.leased(self.pending.wait_timeout(timeout)?)
    }
}

impl Local {
    /// The words of a key's model, if this reader knows its registration.
    #[inline]
    fn table(&self, key: Key) -> Option<&Arc<ModelWords>> {
        self.tables.get(key.model.0 as usize)?.as_ref().filter(|table| table.generation == key.generation)
    }

    /// Looks at every word once. False if something is not there.
    #[inline]
    fn look(&mut self, keys: &[Key]) -> bool {
        let mut seen = std::mem::take(&mut self.seen);
        seen.clear();
        let mut found = true;
        let mut keys = keys.iter();
        while let Some(&first) = keys.as_slice().first() {
            let Some(table) = self.table(first) else {
                found = false;
                break;
            };
            // Keys of one model after another share the way to its words.
            let run = keys.as_slice().iter().take_while(|key| same_model(**key, first)).count();
            for key in keys.by_ref().take(run) {
                let Some(word) = table.words.load(key.group).filter(|word| word.is_there()) else {
                    found = false;
                    break;
                };
                seen.push(Seen { word, before: 0 });
            }
            if !found {
                break;
            }
        }
        self.seen = seen;
        found
    }

    /// Whether every word is what it was.
    #[inline]
    fn is_as_before(&self, keys: &[Key]) -> bool {
        keys.iter().zip(&self.seen).all(|(&key, seen)| {
            self.table(key).is_some_and(|table| table.words.load(key.group) == Some(seen.word))
        })
    }

    /// Holds what was seen. False if the words changed meanwhile; nothing is held then.
    #[inline]
    fn hold(&mut self, line: &Line, keys: &[Key]) -> bool {
        let (set, mut new) = (self.set + 1, false);
        self.items.clear();
        for (at, &key) in keys.iter().enumerate() {
            let Some(before) = line.hold(self.seen[at].word.slot(), set) else {
                self.let_go(line, at);
                return false;
            };
            self.seen[at].before = before;
            new |= before <= self.closed;
            if before != set
                && let Some(table) = self.table(key)
            {
                let item = table.first_item + key.group;
                self.items.push(item);
            }
        }
        // What an open set holds already cannot have left.
        if new {
            Line::publish_holds();
            if !self.is_as_before(keys) {
                self.let_go(line, self.seen.len());
                return false;
            }
        }
        self.set = set;
        true
    }

    /// A place for the slots of the set that was held.
    #[inline]
    fn open_lease(&mut self) -> u32 {
        let place = self.unused.pop().unwrap_or_else(|| {
            self.leases.push(Vec::new());
            // One place a lease that is out: far below the width of the number.
            u32::try_from(self.leases.len() - 1).unwrap_or(NONE)
        });
        self.leases[place as usize].extend(self.seen.iter().map(|seen| seen.word.slot()));
        place
    }

    /// Leases that are out.
    fn open(&self) -> usize {
        self.leases.len() - self.unused.len()
    }

    fn let_go(&self, line: &Line, held: usize) {
        // Backwards: of a slot held twice the first hold knows what was there.
        for seen in self.seen[..held].iter().rev() {
            line.restore(seen.word.slot(), seen.before);
        }
    }
}

#[inline]
fn same_model(a: Key, b: Key) -> bool {
    (a.model, a.generation) == (b.model, b.generation)
}

/// The reader is the only writer.
#[inline]
fn count(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed) + by, Ordering::Release);
}

impl<S: Deref<Target = Stream>> Reader<S> {
    pub(crate) fn new(shared: Arc<Shared>, cell: Arc<ReaderCell>, stream: S, others: Vec<S>) -> Reader<S> {
        Reader { shared, cell, stream, others, local: RefCell::new(Local::default()) }
    }

    fn streams(&self) -> impl Iterator<Item = &Stream> {
        std::iter::once(&*self.stream).chain(self.others.iter().map(|other| &**other))
    }

    /// Whether a stream of the reader is captured, where an event would belong to the graph.
    fn is_capturing(&self) -> bool {
        self.streams().any(|stream| stream.is_capturing().is_ok_and(|state| state == CaptureState::Active))
    }

    /// A lease from the cache is ordered on the first stream: so are the others, behind it.
    fn leased<'r>(&'r self, lease: Lease<&'r Stream>) -> Result<ReaderLease<'r, S>> {
        let held = ReaderLease { reader: self, held: Held::Leased(Some(lease)) };
        if !self.others.is_empty() {
            let event = self.stream.device().create_event()?;
            self.stream.record(&event)?;
            for other in &self.others {
                other.wait(&event)?;
            }
        }
        Ok(held)
    }

    fn acquired<'r>(&'r self, acquire: Acquire<&'r Stream>) -> Result<ReaderAcquire<'r, S>> {
        Ok(match acquire {
            Acquire::Ready(lease) => ReaderAcquire::Ready(self.leased(lease)?),
            Acquire::Pending(pending) => ReaderAcquire::Pending(ReaderPending { reader: self, pending }),
        })
    }

    /// The stream that its launches go to; of several, the one that it was made with first.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Where each key is at this moment: writes the slot of every key, `u32::MAX` for one that is not there, and says
    /// how many are. Holds nothing: it may be gone at once.
    pub fn look_up(&self, keys: &[Key], slots: &mut [u32]) -> usize {
        let local = self.local.borrow();
        let mut there = 0;
        let mut table: Option<(Key, &ModelWords)> = None;
        for (&key, slot) in keys.iter().zip(slots) {
            *slot = NONE;
            let words = match table {
                Some((of, words)) if same_model(of, key) => words,
                _ => match local.table(key) {
                    Some(words) => words,
                    None => continue,
                },
            };
            table = Some((key, words));
            if let Some(word) = words.words.load(key.group).filter(|word| word.is_there()) {
                *slot = word.slot();
                there += 1;
            }
        }
        there
    }

    /// The set, if all of it is there and its copies have run. Takes no lock and does not allocate.
    ///
    /// A set that is not given this way is not counted: it is expected to be asked for again by
    /// [`acquire`](Reader::acquire).
    pub fn try_acquire(&self, keys: &[Key]) -> Option<ReaderLease<'_, S>> {
        if self.shared.somebody_waits() {
            // For room that this reader may hold. An error is told by the call that ends the step.
            let _ = self.end_step();
        }
        let mut local = self.local.borrow_mut();
        let local = &mut *local;
        if !local.look(keys) {
            return None;
        }
        if !local.hold(&self.cell.line, keys) {
            // An eviction may have seen the holds that were taken back, and have set the slots aside.
            if self.shared.somebody_waits() {
                self.shared.serve();
            }
            return None;
        }
        self.cell.visits.push(&local.items);
        count(&self.cell.hits, local.items.len() as u64);
        count(&self.cell.sets, 1);
        let place = local.open_lease();
        Some(ReaderLease { reader: self, held: Held::Found { place, len: keys.len() } })
    }

    /// Wants a set: [`try_acquire`](Reader::try_acquire), and [`SlotCache::acquire`](crate::SlotCache::acquire) for
    /// one that is not there as a whole.
    ///
    /// # Errors
    /// As `SlotCache::acquire`, and as [`end_step`](Reader::end_step), which such a set begins with.
    pub fn acquire(&self, keys: &[Key]) -> Result<ReaderAcquire<'_, S>> {
        if let Some(lease) = self.try_acquire(keys) {
            return Ok(ReaderAcquire::Ready(lease));
        }
        self.end_step()?;
        self.learn(keys);
        self.acquired(self.shared.acquire(keys, &*self.stream)?)
    }

    /// [`acquire`](Reader::acquire), waiting for the disk if need be.
    ///
    /// # Errors
    /// As `acquire`, and why a fill failed.
    pub fn wait_acquire(&self, keys: &[Key]) -> Result<ReaderLease<'_, S>> {
        match self.acquire(keys)? {
            ReaderAcquire::Ready(lease) => Ok(lease),
            ReaderAcquire::Pending(pending) => pending.wait(),
        }
    }

    /// Ends the step: one event on each of the reader's streams, behind everything launched so far. The slots of leases that
    /// ended may be filled anew behind these. Leases that are out go on. Call it once a step, a token or a layer: what is
    /// held until then cannot leave. An acquire may end the step by itself, in the same way.
    ///
    /// # Errors
    /// [`ErrorKind::Capturing`] while one of the streams is captured; the streams' refusals. The step goes on then.
    pub fn end_step(&self) -> Result<()> {
        if self.close_sets()? && self.shared.somebody_waits() {
            self.shared.serve();
        }
        Ok(())
    }

    /// False if there was nothing to close.
    fn close_sets(&self) -> Result<bool> {
        let mut local = self.local.borrow_mut();
        let local = &mut *local;
        let upto = local.set;
        if upto == local.closed {
            return Ok(false);
        }
        if self.is_capturing() {
            return Err(Error::new(ErrorKind::Capturing));
        }
        let mut releases = self.cell.releases();
        releases.retire(2);
        for stream in self.streams() {
            releases.record(local.closed, stream)?;
        }
        drop(releases);
        if local.open() > 0 {
            // Moved before the sets are closed, so that at no moment they look free.
            local.set += 1;
            for &slot in local.leases.iter().flatten() {
                self.cell.line.hold(slot, local.set);
            }
        }
        self.cell.line.close(upto);
        local.closed = upto;
        // Whoever announced before this that it waits is seen; whoever does so later sees what was closed.
        Line::publish_holds();
        Ok(true)
    }

    /// Gets to know the registrations of these keys.
    fn learn(&self, keys: &[Key]) {
        let mut local = self.local.borrow_mut();
        if keys.iter().all(|&key| local.table(key).is_some()) {
            return;
        }
        local.tables = self.shared.with(|core| core.tables().map(|table| table.cloned()).collect());
    }

    fn end_lease(&self, place: u32) {
        let mut local = self.local.borrow_mut();
        local.leases[place as usize].clear();
        local.unused.push(place);
        count(&self.cell.ended, 1);
    }
}

impl<S: Deref<Target = Stream>> Drop for Reader<S> {
    fn drop(&mut self) {
        let local = self.local.get_mut();
        // Leases that were forgotten: what they launched is behind the event, too.
        let forgotten = local.open() as u64;
        local.leases.clear();
        local.unused.clear();
        count(&self.cell.ended, forgotten);
        if let Err(error) = self.end_step() {
            tracing::warn!(%error, "a reader left without an event behind its launches: its slots are kept aside");
            self.shared.with(|core| core.set_reader_aside(&self.cell));
        }
        self.cell.leave();
    }
}

impl<S: Deref<Target = Stream>> fmt::Debug for Reader<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("stream", &self.stream.id()).finish_non_exhaustive()
    }
}

/// The right to read slots in launches on the reader's streams, as a [`Lease`]. Dropping it ends it.
#[must_use]
pub struct ReaderLease<'r, S: Deref<Target = Stream>> {
    reader: &'r Reader<S>,
    held: Held<'r>,
}

enum Held<'r> {
    /// Found by the reader: these slots of its own.
    Found { place: u32, len: usize },
    /// Acquired through the cache; empty once it ends.
    Leased(Option<Lease<&'r Stream>>),
}

impl<S: Deref<Target = Stream>> ReaderLease<'_, S> {
    /// How many keys were asked for (duplicates count).
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.held {
            Held::Found { len, .. } => *len,
            Held::Leased(lease) => lease.as_ref().map_or(0, Lease::len),
        }
    }

    /// Whether no key was asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the reader found it by itself.
    #[must_use]
    pub fn was_found(&self) -> bool {
        matches!(self.held, Held::Found { .. })
    }

    #[cfg(test)]
    pub(crate) fn is_of(&self, reader: &Reader<S>) -> bool {
        std::ptr::eq(self.reader, reader)
    }

    /// The number of the slot of the `index`-th key.
    #[must_use]
    pub fn slot_number(&self, index: usize) -> Option<u32> {
        match &self.held {
            Held::Found { place, .. } => {
                self.reader.local.borrow().leases.get(*place as usize)?.get(index).copied()
            }
            Held::Leased(lease) => lease.as_ref()?.slot(index).map(|slot| slot.slot),
        }
    }

    /// Where the `index`-th key of the acquire is.
    #[must_use]
    pub fn slot(&self, index: usize) -> Option<Slot> {
        self.slot_number(index).map(|slot| self.reader.shared.slot(slot))
    }

    /// Where each key is, in the order of the acquire.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        (0..self.len()).filter_map(|index| self.slot(index))
    }

    /// The segment of the `index`-th key and its offset there, for copies and views.
    #[must_use]
    pub fn memory(&self, index: usize) -> Option<(Segment, u64)> {
        self.reader.shared.memory(self.slot(index)?)
    }
}

impl<S: Deref<Target = Stream>> Drop for ReaderLease<'_, S> {
    fn drop(&mut self) {
        match &mut self.held {
            Held::Found { place, .. } => self.reader.end_lease(*place),
            Held::Leased(lease) => {
                let Some(lease) = lease.take() else { return };
                if self.reader.others.is_empty() {
                    return;
                }
                let capturing = self.reader.is_capturing();
                let streams: Vec<&Stream> = self.reader.streams().collect();
                lease.end_on(&streams, capturing);
            }
        }
    }
}

impl<S: Deref<Target = Stream>> fmt::Debug for ReaderLease<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.slots().map(|slot| slot.slot)).finish()
    }
}
