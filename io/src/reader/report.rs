//! What a reader did, and why that way.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::PlannedRead;

/// How bytes come from the file to the chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IoPath {
    /// io_uring, past the page cache.
    UringDirect = 0,
    /// io_uring, through the page cache.
    UringBuffered = 1,
    /// Threads that call pread, past the page cache.
    PreadDirect = 2,
    /// Threads that call pread, through the page cache.
    PreadBuffered = 3,
}

impl IoPath {
    const ALL: [Self; 4] = [Self::UringDirect, Self::UringBuffered, Self::PreadDirect, Self::PreadBuffered];

    pub(crate) fn new(uring: bool, direct: bool) -> Self {
        match (uring, direct) {
            (true, true) => Self::UringDirect,
            (true, false) => Self::UringBuffered,
            (false, true) => Self::PreadDirect,
            (false, false) => Self::PreadBuffered,
        }
    }

    /// Stable name in snake case.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::UringDirect => "uring_direct",
            Self::UringBuffered => "uring_buffered",
            Self::PreadDirect => "pread_direct",
            Self::PreadBuffered => "pread_buffered",
        }
    }
}

impl fmt::Display for IoPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a path was taken, for one file or for the whole reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathReason {
    /// The path that was taken.
    pub path: IoPath,
    /// The file it was taken for; `None` when it concerns every file.
    pub file: Option<PathBuf>,
    /// Why.
    pub reason: String,
}

/// A snapshot of a reader's work. All counts are since its start and only grow.
#[derive(Clone, Debug)]
pub struct ReaderReport {
    /// The path that most bytes took; before the first byte, the one that is expected.
    pub path: IoPath,
    /// Why that path, in words.
    pub reason: String,
    /// Every decision that was taken, oldest first; at most 64 are kept.
    pub reasons: Vec<PathReason>,
    /// Bytes by path, in the order of [`IoPath`].
    pub path_bytes: [u64; 4],
    /// Bytes that arrived, alignment slack included.
    pub read_bytes: u64,
    /// Bytes that plans needed, of the reads that completed.
    pub need_bytes: u64,
    /// Those of them that went straight to their targets.
    pub in_place_bytes: u64,
    /// Reads given to the kernel, repeated ones included.
    pub submissions: u64,
    /// Calls that gave reads to the kernel; below `submissions` when they were batched.
    pub submit_calls: u64,
    /// Completions delivered, failed ones included.
    pub completions: u64,
    /// Completions delivered with an error.
    pub failures: u64,
    /// Reads that returned less than was asked and needed.
    pub short_reads: u64,
    /// Reads repeated because the kernel was interrupted or busy.
    pub retries: u64,
    /// Files or buffers moved to a slower path at run time.
    pub demotions: u64,
    /// Stretches of a file whose pages came into the page cache, or left it, while they waited to be read, and that
    /// are read the other way for it.
    pub lane_changes: u64,
    /// Reads into registered buffers.
    pub fixed_reads: u64,
    /// Time the reader had reads in flight and nothing else to do, in nanoseconds (summed over the pool's threads).
    pub disk_wait_ns: u64,
    /// Time the reader had reads to start and no free chunk, in nanoseconds (summed over the pool's threads).
    pub chunk_wait_ns: u64,
    /// Time the ring had nothing in flight although reads were queued, in nanoseconds.
    pub disk_idle_ns: u64,
    /// Chunks of the region.
    pub chunks: usize,
    /// Chunks that nobody holds.
    pub chunks_free: usize,
    /// Length of a chunk in bytes.
    pub chunk_bytes: u32,
    /// Reads the ring kept in flight at most so far.
    pub depth: u32,
    /// Threads that call pread.
    pub threads: u32,
    /// Bytes compared with their digests.
    pub checked_bytes: u64,
    /// Time the checking threads computed digests, in nanoseconds.
    pub check_ns: u64,
    /// Threads, the ring's among them, that run on the NUMA node that was asked for.
    pub bound_threads: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) path_bytes: [AtomicU64; 4],
    need_bytes: AtomicU64,
    in_place_bytes: AtomicU64,
    pub(crate) submissions: AtomicU64,
    pub(crate) submit_calls: AtomicU64,
    pub(crate) completions: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) short_reads: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) demotions: AtomicU64,
    pub(crate) lane_changes: AtomicU64,
    pub(crate) fixed_reads: AtomicU64,
    pub(crate) disk_wait_ns: AtomicU64,
    pub(crate) chunk_wait_ns: AtomicU64,
    pub(crate) disk_idle_ns: AtomicU64,
    pub(crate) depth: AtomicU64,
    pub(crate) bound_threads: AtomicU64,
    pub(crate) checked_bytes: AtomicU64,
    pub(crate) check_ns: AtomicU64,
    reasons: Mutex<Vec<PathReason>>,
}

pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Counters {
    const REASONS_MAX: usize = 64;

    /// A planned read is done.
    pub(crate) fn brought(&self, read: &PlannedRead, in_place: bool) {
        let bytes = u64::from(read.need.end - read.need.start);
        add(&self.need_bytes, bytes);
        add(&self.in_place_bytes, if in_place { bytes } else { 0 });
    }

    pub(crate) fn waited_for_chunks(&self, time: Duration) {
        add(&self.chunk_wait_ns, nanoseconds(time));
    }

    pub(crate) fn waited_for_disk(&self, time: Duration) {
        add(&self.disk_wait_ns, nanoseconds(time));
    }

    pub(crate) fn disk_was_idle(&self, time: Duration) {
        add(&self.disk_idle_ns, nanoseconds(time));
    }

    /// Notes why a path is taken, once for each file and path.
    pub(crate) fn because(&self, path: IoPath, file: Option<&Path>, reason: impl fmt::Display) {
        let mut reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        if reasons.len() < Self::REASONS_MAX
            && !reasons.iter().any(|r| r.path == path && r.file.as_deref() == file)
        {
            reasons.push(PathReason { path, file: file.map(Path::to_path_buf), reason: reason.to_string() });
        }
    }

    /// Counts a stretch of a file that goes another way than was decided before; the first ones are noted.
    pub(crate) fn lane_changed(&self, path: IoPath, file: &Path, reason: impl fmt::Display) {
        add(&self.lane_changes, 1);
        let mut reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        if reasons.len() < Self::REASONS_MAX {
            let reason = reason.to_string();
            tracing::info!(%path, file = ?file, reason, "reads take another path");
            reasons.push(PathReason { path, file: Some(file.to_path_buf()), reason });
        }
    }

    /// Like [`Self::because`], for a step down at run time: counted and logged too.
    pub(crate) fn demoted(&self, path: IoPath, file: Option<&Path>, reason: &str) {
        add(&self.demotions, 1);
        tracing::warn!(%path, file = ?file, reason, "reads take a slower path");
        self.because(path, file, reason);
    }

    /// The report, as far as the counters know it.
    pub(crate) fn report(&self, expected: IoPath) -> ReaderReport {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let path_bytes = [0, 1, 2, 3].map(|i: usize| get(&self.path_bytes[i]));
        let most = IoPath::ALL.into_iter().max_by_key(|p| path_bytes[*p as usize]).unwrap_or(expected);
        let path = if path_bytes[most as usize] == 0 { expected } else { most };
        let reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let of_path = |about_file: bool| {
            let mut found = reasons.iter().filter(|r| r.path == path && r.file.is_some() == about_file);
            found.next().map(|r| r.reason.as_str())
        };
        let reason = [of_path(true), of_path(false)].into_iter().flatten().collect::<Vec<_>>().join("; ");
        ReaderReport {
            path,
            reason,
            path_bytes,
            read_bytes: path_bytes.iter().sum(),
            need_bytes: get(&self.need_bytes),
            in_place_bytes: get(&self.in_place_bytes),
            submissions: get(&self.submissions),
            submit_calls: get(&self.submit_calls),
            completions: get(&self.completions),
            failures: get(&self.failures),
            short_reads: get(&self.short_reads),
            retries: get(&self.retries),
            demotions: get(&self.demotions),
            lane_changes: get(&self.lane_changes),
            fixed_reads: get(&self.fixed_reads),
            disk_wait_ns: get(&self.disk_wait_ns),
            chunk_wait_ns: get(&self.chunk_wait_ns),
            disk_idle_ns: get(&self.disk_idle_ns),
            reasons,
            chunks: 0,
            chunks_free: 0,
            chunk_bytes: 0,
            depth: u32::try_from(get(&self.depth)).unwrap_or(u32::MAX),
            threads: 0,
            checked_bytes: get(&self.checked_bytes),
            check_ns: get(&self.check_ns),
            bound_threads: get(&self.bound_threads),
        }
    }
}
