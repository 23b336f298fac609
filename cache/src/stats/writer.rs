//! The side that counts. Every method is a handful of relaxed stores and adds; none allocates or waits.

use super::layout as at;
use super::layout::Counter;
use super::reader::{Cause, CurvePoint, LogKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// Where counters live: zeroed words, at least [`layout::page_words`](at::page_words)`(0)` of them, whose
/// place does not change.
pub trait CounterStore: Send + Sync + 'static {
    /// The words, always the same ones.
    fn words(&self) -> &[AtomicU64];
}

/// Counters on the heap: nobody outside the process sees them.
#[derive(Debug)]
pub struct HeapStore(Box<[AtomicU64]>);

impl HeapStore {
    /// Room for `slots_max` slots.
    #[must_use]
    pub fn new(slots_max: usize) -> HeapStore {
        HeapStore((0..at::page_words(slots_max)).map(|_| AtomicU64::new(0)).collect())
    }
}

impl CounterStore for HeapStore {
    fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}

/// Who writes a page: lets a reader tell a live page from one whose process died or whose machine restarted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Identity {
    /// The machine's boot id; 0 if unknown.
    pub boot_id: u128,
    /// Process id.
    pub pid: u32,
    /// Start of the process, clock ticks since boot; 0 if unknown.
    pub process_start_ticks: u64,
}

impl Identity {
    /// This process, as far as `/proc` tells.
    #[must_use]
    pub fn of_this_process() -> Identity {
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .ok()
            .and_then(|text| u128::from_str_radix(&text.trim().replace('-', ""), 16).ok());
        // The name in field 2 may hold spaces and brackets; fields are counted after its closing one.
        let start = std::fs::read_to_string("/proc/self/stat").ok().and_then(|text| {
            let rest = text.rsplit_once(')')?.1;
            rest.split_whitespace().nth(19)?.parse().ok()
        });
        Identity {
            boot_id: boot_id.unwrap_or(0),
            pid: std::process::id(),
            process_start_ticks: start.unwrap_or(0),
        }
    }
}

/// The counters of one cache or load.
#[derive(Clone)]
pub struct Counters {
    store: Arc<dyn CounterStore>,
    created: Instant,
    slots_max: usize,
    /// Whether a cache writes the slots and the snapshots.
    has_cache: Arc<AtomicBool>,
}

/// The right to write the slots and the snapshots of a page: one cache has it.
#[derive(Debug)]
pub(crate) struct PageOwner(Arc<AtomicBool>);

impl Drop for PageOwner {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl std::fmt::Debug for Counters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Counters").field("slots_max", &self.slots_max).finish_non_exhaustive()
    }
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[allow(clippy::cast_possible_truncation)] // halves
fn halves(word: u128) -> [u64; 2] {
    [(word >> 64) as u64, word as u64]
}

impl Counters {
    /// Sets up a page in `store`, whose words must be zero. `None` if it has not even room for no slot.
    #[must_use]
    pub fn new(store: Arc<dyn CounterStore>, who: Identity) -> Option<Counters> {
        let words = store.words();
        if words.len() < at::page_words(0) {
            return None;
        }
        let slots_max = at::slots_max(words.len());
        let has_cache = Arc::default();
        let counters = Counters { store, created: Instant::now(), slots_max, has_cache };
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, ns);
        let [high, low] = halves(who.boot_id);
        for (field, value) in [
            (at::H_VERSION, at::VERSION),
            (at::H_WORDS, counters.words().len() as u64),
            (at::H_COUNTERS_AT, at::COUNTERS_AT as u64),
            (at::H_COUNTERS, Counter::ALL.len() as u64),
            (at::H_SNAPSHOTS_AT, at::SNAPSHOTS_AT as u64),
            (at::H_SNAPSHOT_WORDS, at::SNAPSHOT_WORDS as u64),
            (at::H_SLOTS_AT, at::SLOTS_AT as u64),
            (at::H_SLOTS_MAX, slots_max as u64),
            (at::H_SLOT_WORDS, at::SLOT_WORDS as u64),
            (at::H_LOG_AT, (at::SLOTS_AT + slots_max * at::SLOT_WORDS) as u64),
            (at::H_LOG_ENTRIES, at::LOG_ENTRIES as u64),
            (at::H_LOG_WORDS, at::LOG_WORDS as u64),
            (at::H_BOOT_ID_HIGH, high),
            (at::H_BOOT_ID_LOW, low),
            (at::H_PID, u64::from(who.pid)),
            (at::H_PROCESS_START, who.process_start_ticks),
            (at::H_CREATED_UNIX_NS, unix),
        ] {
            counters.put(field, value);
        }
        for slot in 0..slots_max {
            counters.put(at::SLOTS_AT + slot * at::SLOT_WORDS + at::R_KEY, at::NO_KEY);
        }
        counters.words()[at::H_MAGIC].store(at::MAGIC, Ordering::Release);
        Some(counters)
    }

    /// Counters on the heap with room for `slots_max` slots.
    #[must_use]
    pub fn on_heap(slots_max: usize) -> Counters {
        let store = HeapStore::new(slots_max);
        let who = Identity::of_this_process();
        // A heap store always has the words that `new` asks for.
        Counters::new(Arc::new(store), who).unwrap_or_else(|| unreachable!("heap store too small"))
    }

    /// Slots and snapshots for one cache; `None` while another has them.
    pub(crate) fn try_own(&self) -> Option<PageOwner> {
        (!self.has_cache.swap(true, Ordering::AcqRel)).then(|| PageOwner(Arc::clone(&self.has_cache)))
    }

    /// The page, for a [`Reader`](super::Reader) in the same process.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        self.store.words()
    }

    /// Slots there is room for.
    #[must_use]
    pub fn slots_max(&self) -> usize {
        self.slots_max
    }

    /// Says what is counted here, for people who choose among the pages of a process. What does not fit into
    /// [`LABEL_WORDS`](at::LABEL_WORDS) is cut off, between two characters.
    pub fn set_label(&self, label: &str) {
        let mut bytes = [0; at::LABEL_WORDS * 8];
        let len = label.floor_char_boundary(bytes.len());
        bytes[..len].copy_from_slice(&label.as_bytes()[..len]);
        for (number, word) in bytes.chunks_exact(8).enumerate() {
            let mut one = [0; 8];
            one.copy_from_slice(word);
            self.put(at::H_LABEL_AT + number, u64::from_le_bytes(one));
        }
    }

    /// ns since the page was set up.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        ns(self.created.elapsed())
    }

    /// The value of a counter.
    #[must_use]
    pub fn get(&self, counter: Counter) -> u64 {
        self.words()[at::COUNTERS_AT + counter as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, counter: Counter, by: u64) {
        self.words()[at::COUNTERS_AT + counter as usize].fetch_add(by, Ordering::Relaxed);
    }

    pub(crate) fn add_time(&self, counter: Counter, time: Duration) {
        self.add(counter, ns(time));
    }

    /// For figures kept elsewhere that only rise; single writer.
    pub(crate) fn raise_to(&self, counter: Counter, value: u64) {
        self.words()[at::COUNTERS_AT + counter as usize].fetch_max(value, Ordering::Relaxed);
    }

    pub(crate) fn beat(&self) {
        self.put(at::H_HEARTBEAT_NS, self.now_ns());
    }

    pub(crate) fn set_up_slots(&self, slots: usize, stride_bytes: u64, policy: u8) {
        self.put(at::H_STRIDE_BYTES, stride_bytes);
        self.put(at::H_POLICY, u64::from(policy));
        self.put(at::H_SLOTS, slots.min(self.slots_max) as u64);
    }

    /// Words of a slot; slots the page has no room for are left out.
    pub(crate) fn slot(&self, slot: u32, fields: &[(usize, u64)]) {
        if (slot as usize) < self.slots_max {
            let base = at::SLOTS_AT + slot as usize * at::SLOT_WORDS;
            for &(field, value) in fields {
                self.put(base + field, value);
            }
        }
    }

    pub(crate) fn log(&self, kind: LogKind, cause: Cause, key: u64, slot: u32) {
        let number = self.words()[at::H_LOG_HEAD].load(Ordering::Relaxed);
        let log_at = at::SLOTS_AT + self.slots_max * at::SLOT_WORDS;
        // The mask keeps it below the number of entries.
        #[allow(clippy::cast_possible_truncation)]
        let entry = log_at + (number as usize & (at::LOG_ENTRIES - 1)) * at::LOG_WORDS;
        let what = (u64::from(slot) << 32) | (u64::from(cause as u8) << 8) | u64::from(kind as u8);
        self.words()[entry + at::L_STAMP].swap(0, Ordering::AcqRel);
        self.put(entry + at::L_KEY, key);
        self.put(entry + at::L_WHAT, what);
        self.put(entry + at::L_TIME_NS, self.now_ns());
        self.words()[entry + at::L_STAMP].store(number + 1, Ordering::Release);
        self.words()[at::H_LOG_HEAD].store(number + 1, Ordering::Release);
    }

    /// Publishes the estimates: the curve and the floors.
    pub(crate) fn curve(&self, points: &[CurvePoint; at::CURVE_POINTS], floor_layer: u64, floor_round: u64) {
        for (number, point) in points.iter().enumerate() {
            let base = at::H_CURVE_AT + number * at::CURVE_WORDS;
            self.put(base, point.slots);
            self.put(base + 1, point.requested);
            self.put(base + 2, point.hits);
        }
        self.put(at::H_FLOOR_LAYER, floor_layer);
        self.put(at::H_FLOOR_ROUND, floor_round);
    }

    pub(crate) fn governor(&self, off: bool) {
        self.put(at::H_GOVERNOR_OFF, u64::from(off));
    }

    /// Publishes figures that must agree: fields of a snapshot, the time is added.
    pub(crate) fn snapshot(&self, fields: &[(usize, u64)]) {
        let sequence = self.words()[at::H_SNAPSHOT_SEQUENCE].load(Ordering::Relaxed) + 1;
        // The remainder is 0 or 1.
        #[allow(clippy::cast_possible_truncation)]
        let base = at::SNAPSHOTS_AT + (sequence & 1) as usize * at::SNAPSHOT_WORDS;
        for &(field, value) in fields {
            self.put(base + field, value);
        }
        self.put(base + at::S_TIME_NS, self.now_ns());
        self.words()[at::H_SNAPSHOT_SEQUENCE].store(sequence, Ordering::Release);
    }

    fn put(&self, word: usize, value: u64) {
        self.words()[word].store(value, Ordering::Relaxed);
    }
}
