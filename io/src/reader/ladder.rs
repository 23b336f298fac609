//! Which path a stretch of a file takes, and why.

use std::fmt;
use std::ops::Range;
use std::time::Instant;

use super::queue::{Lane, Span};
use super::report::{Counters, IoPath};
use super::{IoMode, ReaderOptions, Route};
use crate::ReadPlan;
use crate::file::{Residency, ResidencyMethod, WeightFile};

/// Share of the wanted bytes in the page cache above which it is used.
const RESIDENT_SHARE: f64 = 0.5;
/// Chunks begin at multiples of this in memory.
const CHUNK_ALIGN_BYTES: u32 = 4096;
/// Spans that are routed when a request comes; later ones when it gets near them.
const ROUTED_AT_ONCE: usize = 16;

/// The steps from the fastest path down, for one reader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ladder {
    mode: IoMode,
    ring: bool,
    range_bytes: u64,
}

/// Why a path is taken; text only when somebody keeps it.
enum Reason {
    Said(&'static str),
    Residency { found: Residency, from: u64, to: u64, before: Option<Route> },
}

impl Ladder {
    pub(super) fn new(options: &ReaderOptions, ring: bool) -> Self {
        Self { mode: options.mode, ring, range_bytes: options.residency_range_bytes }
    }

    /// For the ring thread, which there is when it asks.
    pub(crate) fn with_ring(options: &ReaderOptions) -> Self {
        Self::new(options, true)
    }

    pub(super) fn has_ring(&self) -> bool {
        self.ring
    }

    /// The reads of a plan in spans, the first of them routed.
    pub(super) fn spans(&self, plan: &ReadPlan, counters: &Counters) -> Box<[Span]> {
        let mut count = 0;
        self.each_span(plan, |_| count += 1);
        let mut spans = Vec::with_capacity(count);
        self.each_span(plan, |reads| spans.push(Span::new(reads.start, reads.end)));
        for span in spans.iter_mut().take(ROUTED_AT_ONCE) {
            span.decide(self.look(plan, span.reads(), None, counters), Some(Instant::now()));
        }
        spans.into_boxed_slice()
    }

    /// Spans end where a file ends, and where the next read would make them longer than the range that is judged.
    fn each_span(&self, plan: &ReadPlan, mut see: impl FnMut(Range<u32>)) {
        let reads = plan.reads();
        let Some(mut first) = reads.first() else { return };
        let mut start = 0;
        for (at, read) in (0u32..).zip(reads) {
            // Offsets rise within a file only: the next file begins anywhere.
            let same = read.file == first.file;
            let far = same && read.offset + u64::from(read.len_bytes) - first.offset > self.range_bytes;
            if !same || (far && at > start) {
                see(start..at);
                (start, first) = (at, read);
            }
        }
        see(start..u32::try_from(reads.len()).unwrap_or(u32::MAX));
    }

    /// The route of these reads, all of one file; `before` is the one they had.
    pub(super) fn look(
        &self,
        plan: &ReadPlan,
        reads: Range<u32>,
        before: Option<Route>,
        counters: &Counters,
    ) -> Route {
        let unused = Route { lane: Lane::Pool, direct: false };
        let reads = &plan.reads()[reads.start as usize..reads.end as usize];
        let (Some(first), Some(last)) = (reads.first(), reads.last()) else { return unused };
        let file = &plan.files()[first.file as usize];
        let range = first.offset..last.offset + u64::from(last.len_bytes);
        let (route, reason) = self.route(file, range, before);
        let path = IoPath::new(route.lane == Lane::Ring, route.direct);
        if before.is_some_and(|before| before != route) {
            counters.lane_changed(path, file.path(), reason);
        } else {
            counters.because(path, Some(file.path()), reason);
        }
        route
    }

    fn route(&self, file: &WeightFile, range: Range<u64>, before: Option<Route>) -> (Route, Reason) {
        let cold_lane = if self.ring && self.mode != IoMode::Pread { Lane::Ring } else { Lane::Pool };
        let buffered = Route { lane: cold_lane, direct: false };
        if file.is_fuse() {
            let reason = Reason::Said("the file is on FUSE, where only pread is trusted");
            return (Route { lane: Lane::Pool, direct: false }, reason);
        }
        if self.mode == IoMode::Buffered {
            return (buffered, Reason::Said("buffered reads were asked for"));
        }
        if let Some(obstacle) = obstacle(file) {
            return (buffered, Reason::Said(obstacle));
        }
        if self.mode == IoMode::Direct {
            return (Route { lane: cold_lane, direct: true }, Reason::Said("direct reads were asked for"));
        }
        let found = file.residency(range.start, range.end - range.start);
        let reason = Reason::Residency { found, from: range.start, to: range.end, before };
        if found.share > RESIDENT_SHARE {
            // Copying from the page cache needs cores, which one ring thread does not have.
            (Route { lane: Lane::Pool, direct: false }, reason)
        } else {
            (Route { lane: cold_lane, direct: true }, reason)
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (found, from, to, before) = match self {
            Self::Said(text) => return f.write_str(text),
            Self::Residency { found, from, to, before } => (found, from, to, before),
        };
        let method = match found.method {
            ResidencyMethod::Cachestat => "cachestat",
            ResidencyMethod::Sampled => "sampled",
            ResidencyMethod::Unknown => "unknown, taken as cold",
        };
        match before {
            Some(before) if before.direct => write!(f, "read into the page cache meanwhile: ")?,
            Some(_) => write!(f, "evicted from the page cache meanwhile: ")?,
            None => {}
        }
        let percent = found.share * 100.0;
        write!(f, "{percent:.0} % of bytes {from} to {to} were in the page cache ({method})")
    }
}

fn obstacle(file: &WeightFile) -> Option<&'static str> {
    let align = file.direct_align();
    if file.refuses_direct() {
        Some("the file refused direct reads before")
    } else if align.memory_bytes > CHUNK_ALIGN_BYTES {
        Some("direct reads of the file need memory aligned beyond 4096 bytes")
    } else {
        None
    }
}
