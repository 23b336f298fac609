//! Layout of a statistics page: an array of 64-bit words, native byte order, every access one atomic word.
//!
//! ```text
//! header (64 words) | counters | two snapshots | slot records (room for slots_max) | event log
//! ```
//!
//! - **Header**: written once before the magic, except heartbeat, snapshot sequence, log head, floors, governor and the
//!   points of the miss-ratio curve (estimates: a reader may see a point half renewed).
//! - **Counters** only rise. Two counters read one after another may be a few events apart.
//! - **Snapshots** hold what must agree (how many slots are in each state). The writer fills the one that is
//!   not current, then publishes it by the sequence: `sequence & 1` names the current one, which stays
//!   readable if the writer hangs.
//! - **Slot records** change word by word. A reader that wants key and state of one fill reads the
//!   generation word before and after.
//! - **Event log**: a ring; an entry's first word is its number + 1 and is written last (0 while the rest
//!   changes), so that an entry that is being overwritten is recognised.

/// "SPOCSTAT" as a little-endian word; written last when a page is set up.
pub const MAGIC: u64 = u64::from_le_bytes(*b"SPOCSTAT");
/// Raised with every change that an old reader would misread.
pub const VERSION: u64 = 1;

/// Words of the header; fields below are indices into it.
pub const HEADER_WORDS: usize = 64;
/// [`MAGIC`].
pub const H_MAGIC: usize = 0;
/// [`VERSION`].
pub const H_VERSION: usize = 1;
/// Words of the whole page.
pub const H_WORDS: usize = 2;
/// First word and number of the counters.
pub const H_COUNTERS_AT: usize = 3;
/// Number of counters that the writer knows.
pub const H_COUNTERS: usize = 4;
/// First word of the two snapshots.
pub const H_SNAPSHOTS_AT: usize = 5;
/// Words of one snapshot.
pub const H_SNAPSHOT_WORDS: usize = 6;
/// First word of the slot records.
pub const H_SLOTS_AT: usize = 7;
/// Slot records there is room for.
pub const H_SLOTS_MAX: usize = 8;
/// Slots in use; records behind are zero.
pub const H_SLOTS: usize = 9;
/// Words of one slot record.
pub const H_SLOT_WORDS: usize = 10;
/// First word of the event log.
pub const H_LOG_AT: usize = 11;
/// Entries of the event log (a power of two).
pub const H_LOG_ENTRIES: usize = 12;
/// Words of one entry.
pub const H_LOG_WORDS: usize = 13;
/// Boot id of the machine, upper half.
pub const H_BOOT_ID_HIGH: usize = 14;
/// Boot id of the machine, lower half.
pub const H_BOOT_ID_LOW: usize = 15;
/// Process id of the writer, in its own namespace.
pub const H_PID: usize = 16;
/// Start time of that process in clock ticks since boot: with the pid, who wrote this.
pub const H_PROCESS_START: usize = 17;
/// Bytes of one slot.
pub const H_STRIDE_BYTES: usize = 18;
/// Number of the policy.
pub const H_POLICY: usize = 19;
/// Unix time in ns at which the page was set up; all other times are ns since then.
pub const H_CREATED_UNIX_NS: usize = 20;
/// First word of the page's label: UTF-8, ended by the first zero byte. What the words count, in the writer's terms.
pub const H_LABEL_AT: usize = 21;
/// Words of the label.
pub const LABEL_WORDS: usize = 8;
/// ns since creation at which the writer last showed life (at least once a second while it runs).
pub const H_HEARTBEAT_NS: usize = 32;
/// Snapshots published; `& 1` is the current one.
pub const H_SNAPSHOT_SEQUENCE: usize = 33;
/// Entries ever written to the event log.
pub const H_LOG_HEAD: usize = 34;
/// Groups that the widest set wanted, and that one round of all layers wanted at most; 0 until known.
pub const H_FLOOR_LAYER: usize = 36;
/// See [`H_FLOOR_LAYER`].
pub const H_FLOOR_ROUND: usize = 37;
/// 1 while reading ahead is turned off because it does not pay.
pub const H_GOVERNOR_OFF: usize = 38;
/// First word of the miss-ratio curve: [`CURVE_POINTS`] times slots, followed requests, hits. 0 slots: no point.
pub const H_CURVE_AT: usize = 40;
/// Points of the miss-ratio curve.
pub const CURVE_POINTS: usize = 8;
/// Words of one point.
pub const CURVE_WORDS: usize = 3;

/// A counter that only rises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Keys requested: hits + misses.
    Requested = 0,
    /// Keys that were resident when their set was judged.
    Hits,
    /// Keys that were not.
    Misses,
    /// Misses whose fill was already running; an acquire joins it.
    Joins,
    /// Sets served or refused for their width.
    Acquires,
    /// Sets that could not be reserved at once and had to queue.
    Queued,
    /// Sets that failed because a fill of theirs did.
    AcquiresFailed,
    /// Time between an acquire that was not ready at once and its readiness, ns.
    StallNs,
    /// Leases given.
    LeasesGiven,
    /// Leases back.
    LeasesReleased,
    /// Fills begun.
    FillsStarted,
    /// Fills whose last copy was enqueued.
    FillsDone,
    /// Fills that failed.
    FillsFailed,
    /// Fills abandoned by everyone who wanted them.
    FillsCancelled,
    /// Bytes of the fills done.
    FilledBytes,
    /// Groups evicted.
    Evictions,
    /// Groups evicted whose slot was still being read: the fill waits for it on the device.
    EvictionsDraining,
    /// Evicted bytes.
    EvictedBytes,
    /// Chunks whose copies were enqueued.
    Chunks,
    /// Bytes read into chunks, alignment slack included.
    ReadBytes,
    /// Bytes of which copies were enqueued.
    CopiedBytes,
    /// Copies enqueued.
    Copies,
    /// Time the pump had nothing on the device and waited for a read, ns.
    WaitReadsNs,
    /// Time the pump waited for copies to run, ns.
    WaitCopiesNs,
    /// Time the reader had work and waited for a free chunk, ns.
    WaitChunksNs,
    /// Time the pump spent enqueuing copies, ns.
    EnqueueNs,
    /// Device waits of the copy stream for releases of evicted slots.
    ReleaseWaits,
    /// Errors reported by the copy stream.
    StreamErrors,
    /// Fills begun on a hint.
    SpeculationIssued,
    /// Of those, how many were there when they were wanted.
    SpeculationUseful,
    /// How many were wanted while they were still loading.
    SpeculationLate,
    /// How many left, or failed, without having been wanted.
    SpeculationWasted,
    /// Bytes of those.
    SpeculationWastedBytes,
    /// Hinted keys that were not begun: no room that demand does not keep hot, too late, or turned off.
    SpeculationRefused,
    /// Events that a subscriber was too slow for.
    EventsDropped,
    /// Misses that were neither there nor loading, of keys never asked for before.
    MissesCold,
    /// Such misses of keys since whose last request at least as many loads went by as there are slots.
    MissesCapacity,
    /// Such misses with fewer loads since: another choice of what leaves would have kept them.
    MissesPolicy,
    /// Fills that the host tier serves: begun.
    TierHits,
    /// Bytes of which copies from the host tier into slots were enqueued.
    TierOutBytes,
    /// Bytes of which copies from slots into the host tier were enqueued.
    TierInBytes,
    /// Groups that left the host tier for others.
    TierEvictions,
    /// Groups that left their slot and were not kept: too much was on its way to the tier.
    TierDroppedBusy,
    /// Groups not kept because no berth was free: none is there yet, or copies hold them.
    TierDroppedFull,
    /// Groups not kept because their slot's memory was being given back.
    TierDroppedLeaving,
    /// Groups not kept because the copy into the tier was refused, or failed.
    TierDroppedFailed,
    /// Bytes that the host tier was to have and has not: they could not be had, or not be pinned.
    TierUnpinnedBytes,
}

impl Counter {
    /// Every counter, in the order of their words.
    pub const ALL: [Counter; 47] = [
        Counter::Requested,
        Counter::Hits,
        Counter::Misses,
        Counter::Joins,
        Counter::Acquires,
        Counter::Queued,
        Counter::AcquiresFailed,
        Counter::StallNs,
        Counter::LeasesGiven,
        Counter::LeasesReleased,
        Counter::FillsStarted,
        Counter::FillsDone,
        Counter::FillsFailed,
        Counter::FillsCancelled,
        Counter::FilledBytes,
        Counter::Evictions,
        Counter::EvictionsDraining,
        Counter::EvictedBytes,
        Counter::Chunks,
        Counter::ReadBytes,
        Counter::CopiedBytes,
        Counter::Copies,
        Counter::WaitReadsNs,
        Counter::WaitCopiesNs,
        Counter::WaitChunksNs,
        Counter::EnqueueNs,
        Counter::ReleaseWaits,
        Counter::StreamErrors,
        Counter::SpeculationIssued,
        Counter::SpeculationUseful,
        Counter::SpeculationLate,
        Counter::SpeculationWasted,
        Counter::SpeculationWastedBytes,
        Counter::SpeculationRefused,
        Counter::EventsDropped,
        Counter::MissesCold,
        Counter::MissesCapacity,
        Counter::MissesPolicy,
        Counter::TierHits,
        Counter::TierOutBytes,
        Counter::TierInBytes,
        Counter::TierEvictions,
        Counter::TierDroppedBusy,
        Counter::TierDroppedFull,
        Counter::TierDroppedLeaving,
        Counter::TierDroppedFailed,
        Counter::TierUnpinnedBytes,
    ];

    /// Its name in JSON and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Counter::Requested => "requested",
            Counter::Hits => "hits",
            Counter::Misses => "misses",
            Counter::Joins => "joins",
            Counter::Acquires => "acquires",
            Counter::Queued => "queued",
            Counter::AcquiresFailed => "acquires_failed",
            Counter::StallNs => "stall_ns",
            Counter::LeasesGiven => "leases_given",
            Counter::LeasesReleased => "leases_released",
            Counter::FillsStarted => "fills_started",
            Counter::FillsDone => "fills_done",
            Counter::FillsFailed => "fills_failed",
            Counter::FillsCancelled => "fills_cancelled",
            Counter::FilledBytes => "filled_bytes",
            Counter::Evictions => "evictions",
            Counter::EvictionsDraining => "evictions_draining",
            Counter::EvictedBytes => "evicted_bytes",
            Counter::Chunks => "chunks",
            Counter::ReadBytes => "read_bytes",
            Counter::CopiedBytes => "copied_bytes",
            Counter::Copies => "copies",
            Counter::WaitReadsNs => "wait_reads_ns",
            Counter::WaitCopiesNs => "wait_copies_ns",
            Counter::WaitChunksNs => "wait_chunks_ns",
            Counter::EnqueueNs => "enqueue_ns",
            Counter::ReleaseWaits => "release_waits",
            Counter::StreamErrors => "stream_errors",
            Counter::SpeculationIssued => "speculation_issued",
            Counter::SpeculationUseful => "speculation_useful",
            Counter::SpeculationLate => "speculation_late",
            Counter::SpeculationWasted => "speculation_wasted",
            Counter::SpeculationWastedBytes => "speculation_wasted_bytes",
            Counter::SpeculationRefused => "speculation_refused",
            Counter::EventsDropped => "events_dropped",
            Counter::MissesCold => "misses_cold",
            Counter::MissesCapacity => "misses_capacity",
            Counter::MissesPolicy => "misses_policy",
            Counter::TierHits => "tier_hits",
            Counter::TierOutBytes => "tier_out_bytes",
            Counter::TierInBytes => "tier_in_bytes",
            Counter::TierEvictions => "tier_evictions",
            Counter::TierDroppedBusy => "tier_dropped_busy",
            Counter::TierDroppedFull => "tier_dropped_full",
            Counter::TierDroppedLeaving => "tier_dropped_leaving",
            Counter::TierDroppedFailed => "tier_dropped_failed",
            Counter::TierUnpinnedBytes => "tier_unpinned_bytes",
        }
    }
}

/// Words reserved for counters; room for further ones without a new version.
pub const COUNTER_WORDS: usize = 64;

/// Words of one snapshot.
pub const SNAPSHOT_WORDS: usize = 16;
/// When it was taken, ns since creation.
pub const S_TIME_NS: usize = 0;
/// Slots in each state: six words in the order of the states' numbers.
pub const S_STATES: usize = 1;
/// Fills running.
pub const S_IN_FLIGHT: usize = 7;
/// Bytes of the fills running.
pub const S_IN_FLIGHT_BYTES: usize = 8;
/// Sets waiting for room.
pub const S_QUEUED: usize = 9;
/// Leases out.
pub const S_LEASES: usize = 10;
/// Bytes of the groups in the host tier, or on their way there.
pub const S_TIER_BYTES: usize = 11;
/// Bytes of the host tier's pinned memory.
pub const S_TIER_ROOM_BYTES: usize = 12;

/// Words of one slot record.
pub const SLOT_WORDS: usize = 8;
/// Model id in the upper half, group in the lower; [`NO_KEY`] if it holds nothing.
pub const R_KEY: usize = 0;
/// Generation of the slot in the upper 56 bits, state in the lower 8.
pub const R_GENERATION_STATE: usize = 1;
/// Last use, ns since creation.
pub const R_LAST_USE_NS: usize = 2;
/// Bytes of the group in the slot.
pub const R_BYTES: usize = 3;
/// Leases out in the upper half, place of the group's layer in its model in the lower.
pub const R_LEASES_LAYER: usize = 4;
/// Leases ever given on this fill of the slot.
pub const R_USES: usize = 5;

/// Key word of a slot that holds nothing.
pub const NO_KEY: u64 = u64::MAX;

/// Entries of the event log.
pub const LOG_ENTRIES: usize = 1024;
/// Words of one entry.
pub const LOG_WORDS: usize = 4;
/// Number of the entry + 1; 0 while it changes.
pub const L_STAMP: usize = 0;
/// Key word, as in a slot record.
pub const L_KEY: usize = 1;
/// Slot in the upper half, cause in bits 8..16, kind in bits 0..8.
pub const L_WHAT: usize = 2;
/// When, ns since creation.
pub const L_TIME_NS: usize = 3;

/// First word of the counters.
pub const COUNTERS_AT: usize = HEADER_WORDS;
/// First word of the snapshots.
pub const SNAPSHOTS_AT: usize = COUNTERS_AT + COUNTER_WORDS;
/// First word of the slot records.
pub const SLOTS_AT: usize = SNAPSHOTS_AT + 2 * SNAPSHOT_WORDS;

/// Words of a page with room for `slots_max` slots.
#[must_use]
pub const fn page_words(slots_max: usize) -> usize {
    SLOTS_AT + slots_max * SLOT_WORDS + LOG_ENTRIES * LOG_WORDS
}

/// Slots that a page of `words` has room for.
#[must_use]
pub const fn slots_max(words: usize) -> usize {
    words.saturating_sub(page_words(0)) / SLOT_WORDS
}
