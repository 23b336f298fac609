//! Which path a file's reads take, and why.

use super::queue::Lane;
use super::report::{Counters, IoPath};
use super::{IoMode, Route};
use crate::ReadPlan;
use crate::file::{ResidencyMethod, WeightFile};

/// Share of the wanted bytes in the page cache above which it is used.
const RESIDENT_SHARE: f64 = 0.5;
/// Chunks begin at multiples of this in memory.
const CHUNK_ALIGN_BYTES: u32 = 4096;

/// A route for every file of a plan that has reads.
pub(super) fn routes(plan: &ReadPlan, mode: IoMode, ring: bool, counters: &Counters) -> Box<[Route]> {
    let unused = Route { lane: Lane::Pool, direct: false };
    let mut routes = vec![unused; plan.files().len()].into_boxed_slice();
    for reads in plan.reads().chunk_by(|a, b| a.file == b.file) {
        let (Some(first), Some(last)) = (reads.first(), reads.last()) else { continue };
        let file = &plan.files()[first.file as usize];
        let len_bytes = last.offset + u64::from(last.len_bytes) - first.offset;
        let (route, reason) = route(file, first.offset, len_bytes, mode, ring);
        counters.because(IoPath::new(route.lane == Lane::Ring, route.direct), Some(file.path()), &reason);
        routes[first.file as usize] = route;
    }
    routes
}

fn route(file: &WeightFile, offset: u64, len_bytes: u64, mode: IoMode, ring: bool) -> (Route, String) {
    let cold_lane = if ring && mode != IoMode::Pread { Lane::Ring } else { Lane::Pool };
    if file.is_fuse() {
        let reason = "the file is on FUSE, where only pread is trusted".to_owned();
        return (Route { lane: Lane::Pool, direct: false }, reason);
    }
    if mode == IoMode::Buffered {
        return (Route { lane: cold_lane, direct: false }, "buffered reads were asked for".to_owned());
    }
    if let Some(obstacle) = obstacle(file) {
        return (Route { lane: cold_lane, direct: false }, obstacle.to_owned());
    }
    if mode == IoMode::Direct {
        return (Route { lane: cold_lane, direct: true }, "direct reads were asked for".to_owned());
    }
    let found = file.residency(offset, len_bytes);
    let percent = found.share * 100.0;
    let method = match found.method {
        ResidencyMethod::Cachestat => "cachestat",
        ResidencyMethod::Sampled => "sampled",
        ResidencyMethod::Unknown => "unknown, taken as cold",
    };
    let reason = format!("{percent:.0} % of the wanted bytes were in the page cache ({method})");
    if found.share > RESIDENT_SHARE {
        // Copying from the page cache needs cores, which one ring thread does not have.
        (Route { lane: Lane::Pool, direct: false }, reason)
    } else {
        (Route { lane: cold_lane, direct: true }, reason)
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
