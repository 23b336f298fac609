//! The side that looks, possibly in another process and while the writer hangs.

use super::layout as at;
use super::layout::Counter;
use super::writer::Identity;
use crate::slots::state::State;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Why words are not a page that this reader understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    /// No page, or one that is not set up yet.
    #[error("not a statistics page (magic is {found:#018x})")]
    NotAPage {
        /// The first word.
        found: u64,
    },
    /// Written by another version.
    #[error("statistics page has version {found}, this reader knows version {known}")]
    Version {
        /// The page's version.
        found: u64,
        /// This reader's version.
        known: u64,
    },
    /// The page's own figures lead outside of it.
    #[error("statistics page is damaged: {what} lies outside its {words} words")]
    Damaged {
        /// Which part.
        what: &'static str,
        /// Words there are.
        words: usize,
    },
}

/// The fixed part of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Who writes it.
    pub who: Identity,
    /// Slots in use.
    pub slots: usize,
    /// Bytes of one slot.
    pub stride_bytes: u64,
    /// Number of the policy ([`PolicyKind`](crate::policy::PolicyKind)).
    pub policy: u64,
    /// Unix time in ns at which the page was set up.
    pub created_unix_ns: u64,
    /// Last sign of life, ns since then.
    pub heartbeat_ns: u64,
    /// Groups of the widest set so far; 0 until known.
    pub floor_layer: u64,
    /// Groups of the widest round of all layers so far; 0 until known.
    pub floor_round: u64,
    /// Reading ahead is turned off because it does not pay.
    pub governor_off: bool,
}

/// What so many slots would have found, by a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CurvePoint {
    /// Slots of the pool that was thought of.
    pub slots: u64,
    /// Followed requests.
    pub requested: u64,
    /// Those that it would have had.
    pub hits: u64,
}

/// Figures that agree with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// ns since creation.
    pub time_ns: u64,
    /// Slots in each state, indexed by its number.
    pub states: [u64; 6],
    /// Fills running.
    pub in_flight: u64,
    /// Bytes of the fills running.
    pub in_flight_bytes: u64,
    /// Sets waiting for room.
    pub queued: u64,
    /// Leases out.
    pub leases: u64,
    /// Bytes of the groups in the host tier, or on their way there.
    pub tier_bytes: u64,
    /// Bytes of the host tier's pinned memory.
    pub tier_room_bytes: u64,
}

/// One slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotRecord {
    /// Model id and group, if it holds or loads one.
    pub key: Option<(u32, u32)>,
    /// Fills of this slot so far.
    pub generation: u64,
    /// Its state.
    pub state: State,
    /// Last use, ns since creation.
    pub last_use_ns: u64,
    /// Bytes of the group.
    pub bytes: u64,
    /// Leases out.
    pub leases: u32,
    /// Place of the group's layer in its model.
    pub layer: u32,
    /// Leases given since it was filled.
    pub uses: u64,
}

/// What an entry of the event log tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum LogKind {
    /// A fill began.
    FillStarted = 1,
    /// Its last copy was enqueued.
    FillDone = 2,
    /// It failed.
    FillFailed = 3,
    /// Everyone who wanted it went away.
    FillCancelled = 4,
    /// A group left its slot.
    Evicted = 5,
}

/// Why it happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Cause {
    /// An acquire wanted it, or wanted the room.
    Demand = 1,
    /// Reading failed, or the file changed.
    Read = 2,
    /// A copy or the stream failed.
    Copy = 3,
    /// Its model was unregistered, or the cache is closing.
    Closed = 4,
    /// A hint, a claim, a pin or a warm profile wanted it, nobody waits for it.
    Ahead = 5,
    /// Its slot is given back.
    Resize = 6,
    /// Somebody cancelled it for everyone.
    Cancel = 7,
    /// Somebody asked for it.
    Asked = 8,
}

impl Cause {
    /// Every cause.
    pub const ALL: [Cause; 8] = [
        Cause::Demand,
        Cause::Read,
        Cause::Copy,
        Cause::Closed,
        Cause::Ahead,
        Cause::Resize,
        Cause::Cancel,
        Cause::Asked,
    ];
}

/// One entry of the event log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogEntry {
    /// Its number, counted from 0.
    pub number: u64,
    /// What happened; `None` for a kind this reader does not know.
    pub kind: Option<LogKind>,
    /// Why; `None` for a cause this reader does not know.
    pub cause: Option<Cause>,
    /// Model id and group.
    pub key: Option<(u32, u32)>,
    /// In which slot.
    pub slot: u32,
    /// When, ns since creation.
    pub time_ns: u64,
}

/// Decodes a page. Reads only; never waits, never trusts a figure to lie inside the page.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    words: &'a [AtomicU64],
    slots_max: usize,
}

impl fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("slots_max", &self.slots_max).finish_non_exhaustive()
    }
}

impl<'a> Reader<'a> {
    /// Checks magic, version and extents.
    ///
    /// # Errors
    /// [`PageError`] if the words are no page, of another version, or shorter than the page says.
    pub fn new(words: &'a [AtomicU64]) -> Result<Reader<'a>, PageError> {
        let found = words.first().map_or(0, |word| word.load(Ordering::Acquire));
        if found != at::MAGIC || words.len() < at::HEADER_WORDS {
            return Err(PageError::NotAPage { found });
        }
        let version = words[at::H_VERSION].load(Ordering::Relaxed);
        if version != at::VERSION {
            return Err(PageError::Version { found: version, known: at::VERSION });
        }
        let slots_max = usize::try_from(words[at::H_SLOTS_MAX].load(Ordering::Relaxed)).unwrap_or(usize::MAX);
        if slots_max > at::slots_max(words.len()) || words.len() < at::page_words(0) {
            return Err(PageError::Damaged { what: "the slot table", words: words.len() });
        }
        Ok(Reader { words, slots_max })
    }

    fn get(&self, word: usize) -> u64 {
        self.words[word].load(Ordering::Relaxed)
    }

    /// The fixed part.
    #[must_use]
    pub fn header(&self) -> Header {
        let boot = (u128::from(self.get(at::H_BOOT_ID_HIGH)) << 64) | u128::from(self.get(at::H_BOOT_ID_LOW));
        Header {
            who: Identity {
                boot_id: boot,
                pid: u32::try_from(self.get(at::H_PID)).unwrap_or(0),
                process_start_ticks: self.get(at::H_PROCESS_START),
            },
            slots: self.slots(),
            stride_bytes: self.get(at::H_STRIDE_BYTES),
            policy: self.get(at::H_POLICY),
            created_unix_ns: self.get(at::H_CREATED_UNIX_NS),
            heartbeat_ns: self.get(at::H_HEARTBEAT_NS),
            floor_layer: self.get(at::H_FLOOR_LAYER),
            floor_round: self.get(at::H_FLOOR_ROUND),
            governor_off: self.get(at::H_GOVERNOR_OFF) == 1,
        }
    }

    /// What the page counts, in its writer's words; empty if it does not say.
    #[must_use]
    pub fn label(&self) -> String {
        let words = (0..at::LABEL_WORDS).map(|word| self.get(at::H_LABEL_AT + word).to_le_bytes());
        let bytes: Vec<u8> = words.flatten().take_while(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The miss-ratio curve, fewest slots first; empty until enough was asked for. Points that cannot be are left out.
    #[must_use]
    pub fn curve(&self) -> Vec<CurvePoint> {
        let point = |number: usize| {
            let base = at::H_CURVE_AT + number * at::CURVE_WORDS;
            CurvePoint { slots: self.get(base), requested: self.get(base + 1), hits: self.get(base + 2) }
        };
        let mut points: Vec<CurvePoint> = (0..at::CURVE_POINTS)
            .map(point)
            .filter(|point| point.slots > 0 && point.requested > 0 && point.hits <= point.requested)
            .collect();
        points.sort_by_key(|point| point.slots);
        points
    }

    /// The value of one counter.
    #[must_use]
    pub fn counter(&self, counter: Counter) -> u64 {
        self.get(at::COUNTERS_AT + counter as usize)
    }

    /// The newest snapshot. If the writer publishes faster than this can read, the last attempt is returned,
    /// whose words may then be of neighbouring snapshots.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for _ in 0..16 {
            let sequence = self.words[at::H_SNAPSHOT_SEQUENCE].load(Ordering::Acquire);
            snapshot = self.snapshot_in(usize::from(sequence & 1 == 1));
            fence(Ordering::Acquire);
            // One publication later the other buffer was written, not this one.
            if self.get(at::H_SNAPSHOT_SEQUENCE) == sequence {
                break;
            }
        }
        snapshot
    }

    fn snapshot_in(&self, buffer: usize) -> Snapshot {
        let base = at::SNAPSHOTS_AT + buffer * at::SNAPSHOT_WORDS;
        let mut states = [0; 6];
        for (number, count) in states.iter_mut().enumerate() {
            *count = self.get(base + at::S_STATES + number);
        }
        Snapshot {
            time_ns: self.get(base + at::S_TIME_NS),
            states,
            in_flight: self.get(base + at::S_IN_FLIGHT),
            in_flight_bytes: self.get(base + at::S_IN_FLIGHT_BYTES),
            queued: self.get(base + at::S_QUEUED),
            leases: self.get(base + at::S_LEASES),
            tier_bytes: self.get(base + at::S_TIER_BYTES),
            tier_room_bytes: self.get(base + at::S_TIER_ROOM_BYTES),
        }
    }

    /// Slots in use.
    #[must_use]
    pub fn slots(&self) -> usize {
        usize::try_from(self.get(at::H_SLOTS)).unwrap_or(0).min(self.slots_max)
    }

    /// One slot; `None` if there is no such slot or its state is none that this reader knows. If the slot is
    /// filled anew while it is read, the record may mix two fills after a few attempts.
    #[must_use]
    pub fn slot(&self, slot: usize) -> Option<SlotRecord> {
        if slot >= self.slots() {
            return None;
        }
        let base = at::SLOTS_AT + slot * at::SLOT_WORDS;
        for attempt in 0..4 {
            let before = self.words[base + at::R_GENERATION_STATE].load(Ordering::Acquire);
            let leases_layer = self.get(base + at::R_LEASES_LAYER);
            let record = SlotRecord {
                key: split_key(self.get(base + at::R_KEY)),
                generation: before >> 8,
                state: State::from_number(low_byte(before))?,
                last_use_ns: self.get(base + at::R_LAST_USE_NS),
                bytes: self.get(base + at::R_BYTES),
                leases: high_half(leases_layer),
                layer: low_half(leases_layer),
                uses: self.get(base + at::R_USES),
            };
            fence(Ordering::Acquire);
            if self.get(base + at::R_GENERATION_STATE) == before || attempt == 3 {
                return Some(record);
            }
        }
        None
    }

    /// The newest entries of the event log, oldest first, at most `most`; entries that are being overwritten
    /// are left out.
    #[must_use]
    pub fn log(&self, most: usize) -> Vec<LogEntry> {
        let head = self.words[at::H_LOG_HEAD].load(Ordering::Acquire);
        let count = head.min(most.min(at::LOG_ENTRIES) as u64);
        (head - count..head).filter_map(|number| self.log_entry(number)).collect()
    }

    fn log_entry(&self, number: u64) -> Option<LogEntry> {
        let log_at = at::SLOTS_AT + self.slots_max * at::SLOT_WORDS;
        let index = usize::try_from(number % at::LOG_ENTRIES as u64).ok()?;
        let entry = log_at + index * at::LOG_WORDS;
        let stamp = self.words[entry + at::L_STAMP].load(Ordering::Acquire);
        let (key, what, time_ns) =
            (self.get(entry + at::L_KEY), self.get(entry + at::L_WHAT), self.get(entry + at::L_TIME_NS));
        fence(Ordering::Acquire);
        if stamp != number + 1 || self.get(entry + at::L_STAMP) != stamp {
            return None;
        }
        Some(LogEntry {
            number,
            kind: kind_of(low_byte(what)),
            cause: cause_of(low_byte(what >> 8)),
            key: split_key(key),
            slot: high_half(what),
            time_ns,
        })
    }
}

fn low_byte(word: u64) -> u8 {
    word.to_le_bytes()[0]
}

#[allow(clippy::cast_possible_truncation)] // 32 bits remain after the shift
fn high_half(word: u64) -> u32 {
    (word >> 32) as u32
}

#[allow(clippy::cast_possible_truncation)] // the lower half is meant
fn low_half(word: u64) -> u32 {
    word as u32
}

fn split_key(word: u64) -> Option<(u32, u32)> {
    (word != at::NO_KEY).then(|| (high_half(word), low_half(word)))
}

fn kind_of(number: u8) -> Option<LogKind> {
    [LogKind::FillStarted, LogKind::FillDone, LogKind::FillFailed, LogKind::FillCancelled, LogKind::Evicted]
        .into_iter()
        .find(|&kind| kind as u8 == number)
}

fn cause_of(number: u8) -> Option<Cause> {
    Cause::ALL.into_iter().find(|&cause| cause as u8 == number)
}

#[cfg(test)]
mod tests {
    use super::super::Counters;
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let counters = Counters::on_heap(4);
        counters.set_up_slots(3, 4096, 1);
        counters.add(Counter::Hits, 5);
        let key = (7u64 << 32) | 9;
        counters.slot(2, &[(at::R_KEY, key), (at::R_GENERATION_STATE, (3 << 8) | 2), (at::R_BYTES, 100)]);
        counters.slot(99, &[(at::R_KEY, 1)]);
        counters.snapshot(&[(at::S_STATES, 2), (at::S_STATES + 2, 1), (at::S_QUEUED, 4)]);
        counters.log(LogKind::Evicted, Cause::Demand, key, 2);

        let reader = Reader::new(counters.words()).unwrap();
        assert_eq!(reader.counter(Counter::Hits), 5);
        let header = reader.header();
        assert_eq!((header.slots, header.stride_bytes, header.policy), (3, 4096, 1));
        assert_eq!(header.who, Identity::of_this_process());
        let slot = reader.slot(2).unwrap();
        assert_eq!((slot.key, slot.generation, slot.state), (Some((7, 9)), 3, State::Resident));
        assert_eq!(reader.slot(0).unwrap().key, None);
        assert_eq!(reader.slot(3), None);
        let snapshot = reader.snapshot();
        assert_eq!((snapshot.states, snapshot.queued), ([2, 0, 1, 0, 0, 0], 4));
        let log = reader.log(10);
        assert_eq!(log.len(), 1);
        assert_eq!((log[0].kind, log[0].key, log[0].slot), (Some(LogKind::Evicted), Some((7, 9)), 2));
    }

    #[test]
    fn a_label_is_cut_between_characters_and_any_bytes_are_read() {
        let counters = Counters::on_heap(0);
        let label = || Reader::new(counters.words()).unwrap().label();
        assert_eq!(label(), "");
        counters.set_label("arena default");
        assert_eq!(label(), "arena default");
        counters.set_label(&"ä".repeat(40));
        assert_eq!(label(), "ä".repeat(32));
        counters.set_label(&format!("x{}", "ä".repeat(40)));
        assert_eq!(label(), format!("x{}", "ä".repeat(31)));
        counters.set_label("short");
        assert_eq!(label(), "short");
        counters.words()[at::H_LABEL_AT].store(u64::MAX, Ordering::Relaxed);
        assert!(label().starts_with(char::REPLACEMENT_CHARACTER));
    }

    #[test]
    fn a_writer_that_hangs_in_a_snapshot_or_entry_leaves_the_rest_readable() {
        let counters = Counters::on_heap(1);
        counters.snapshot(&[(at::S_QUEUED, 1)]);
        counters.log(LogKind::FillDone, Cause::Demand, 1, 0);
        // The next snapshot half written, the next entry half written: sequence and stamp not published.
        let words = counters.words();
        words[at::SNAPSHOTS_AT + at::S_QUEUED].store(77, Ordering::Relaxed);
        let log_at = at::SLOTS_AT + at::SLOT_WORDS;
        words[log_at + at::LOG_WORDS + at::L_KEY].store(77, Ordering::Relaxed);
        let reader = Reader::new(words).unwrap();
        assert_eq!(reader.snapshot().queued, 1);
        assert_eq!(reader.log(10).len(), 1);
    }

    #[test]
    fn the_log_keeps_its_newest_entries() {
        let counters = Counters::on_heap(1);
        for key in 0..at::LOG_ENTRIES as u64 + 10 {
            counters.log(LogKind::FillStarted, Cause::Demand, key, 0);
        }
        let log = Reader::new(counters.words()).unwrap().log(usize::MAX);
        assert_eq!(log.len(), at::LOG_ENTRIES);
        assert_eq!(log[0].number, 10);
        assert_eq!(log[0].key, Some((0, 10)));
    }

    #[test]
    fn foreign_words_are_refused() {
        let zero: Vec<AtomicU64> = (0..at::page_words(1)).map(|_| AtomicU64::new(0)).collect();
        assert_eq!(Reader::new(&zero).unwrap_err(), PageError::NotAPage { found: 0 });
        assert!(Reader::new(&[]).is_err());
        let counters = Counters::on_heap(2);
        assert!(matches!(Reader::new(&counters.words()[..80]), Err(PageError::Damaged { .. })));
        counters.words()[at::H_SLOTS_MAX].store(u64::MAX, Ordering::Relaxed);
        assert!(matches!(Reader::new(counters.words()), Err(PageError::Damaged { .. })));
        counters.words()[at::H_VERSION].store(2, Ordering::Relaxed);
        assert_eq!(Reader::new(counters.words()).unwrap_err(), PageError::Version { found: 2, known: 1 });
    }
}
