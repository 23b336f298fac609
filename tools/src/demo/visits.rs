//! Visiting layers in order with fewer slots than layers, as decoding a model that does not fit does.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use spoc_cache::catalogue::GroupTensor;
use spoc_cache::stats::Counters;
use spoc_cache::stats::layout::Counter;
use spoc_cache::{CacheOptions, Catalogue, GroupRules, Lease, Pump, SlotCache};
use spoc_driver::{Stream, StreamOptions};
use spoc_io::Model;

use crate::cli::DemoArgs;
use crate::failure::{Failure, Result};
use crate::load::{Check, StagesReport};
use crate::out::Out;
use crate::{progress, units};

/// Bytes compared at a time.
const PIECE_BYTES: usize = 1 << 20;

/// What the cache did.
#[derive(Debug, Serialize)]
pub struct Report {
    policy: &'static str,
    slots: u32,
    slot_bytes: u64,
    layers: usize,
    rounds: u32,
    hits: u64,
    misses: u64,
    hit_percent: f64,
    evictions: u64,
    loads: u64,
    loaded_bytes: u64,
    /// Of all visits, without comparing.
    seconds: f64,
    /// Part of it that was waiting for a layer.
    stall_seconds: f64,
    stages: StagesReport,
}

/// Visits every layer `args.rounds` times and compares what is leased with the files, byte by byte.
///
/// # Errors
/// `mismatch` with the first tensor that differs; what the cache says.
pub fn run(
    pump: &Arc<Pump>,
    model: &Model,
    args: &DemoArgs,
    slots: u32,
    out: Out,
) -> Result<(Report, Check)> {
    let catalogue = Arc::new(Catalogue::from_model(model, &GroupRules::default())?);
    let policy = args.policy;
    let options = CacheOptions { policy, ..CacheOptions::for_catalogue(&catalogue, slots) };
    let cache = SlotCache::new(pump, options)?;
    let keys = cache.keys(cache.register(Arc::clone(&catalogue))?);
    let stream =
        pump.device().create_stream(StreamOptions { non_blocking: true, ..StreamOptions::default() })?;

    let before = Tally::of(cache.counters());
    let stages_before = pump.stages();
    let bar = progress::bar("visiting", u64::from(args.rounds) * catalogue.tensor_bytes(), out.is_json());
    let (mut comparing, mut compared) = (Duration::ZERO, 0);
    let mut visiting = Duration::ZERO;
    for _ in 0..args.rounds {
        for key in &keys {
            let start = Instant::now();
            let lease = cache.wait_acquire(&[*key], &stream)?;
            // The compute stream waits for the copies on the device; a launch would be ordered behind them too.
            stream.synchronize()?;
            visiting += start.elapsed();
            let start = Instant::now();
            let bytes = compare(&lease, model, catalogue.tensors(key.group))?;
            comparing += start.elapsed();
            compared += bytes;
            lease.release(&[&stream])?;
            bar.inc(bytes);
            std::thread::sleep(Duration::from_millis(args.pace_ms));
        }
    }
    bar.finish_and_clear();
    for file in model.files() {
        file.check_unchanged()?;
    }
    let did = Tally::of(cache.counters()).since(&before);
    let report = Report {
        policy: policy.as_str(),
        slots,
        slot_bytes: cache.geometry().stride_bytes,
        layers: keys.len(),
        rounds: args.rounds,
        hits: did.hits,
        misses: did.misses,
        hit_percent: did.hits as f64 * 100.0 / did.hits.saturating_add(did.misses).max(1) as f64,
        evictions: did.evictions,
        loads: did.loads,
        loaded_bytes: did.loaded_bytes,
        seconds: visiting.as_secs_f64(),
        stall_seconds: units::seconds(did.stall_ns),
        stages: StagesReport::new(&pump.stages().since(&stages_before)),
    };
    Ok((report, Check { equal: true, bytes: compared, seconds: comparing.as_secs_f64() }))
}

/// Reads a leased layer back from the device and compares it with its file.
fn compare(lease: &Lease<&Stream>, model: &Model, tensors: &[GroupTensor]) -> Result<u64> {
    let (segment, base) =
        lease.memory(0).ok_or_else(|| Failure::new("internal", "a lease without a slot"))?;
    let (mut expected, mut found) = (vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]);
    let mut compared = 0;
    for member in tensors {
        let tensor = &model.tensors()[member.tensor as usize];
        let Some(file) = model.file_of(tensor) else { continue };
        let mut at = 0;
        while at < member.extent.len_bytes {
            let left = usize::try_from(member.extent.len_bytes - at).unwrap_or(PIECE_BYTES);
            let len = left.min(PIECE_BYTES);
            file.read_exact_at(&mut expected[..len], member.extent.offset + at)?;
            segment.read(base + member.offset_bytes + at, &mut found[..len])?;
            if expected[..len] != found[..len] {
                let message =
                    format!("tensor {} differs from its file within {len} bytes of byte {at}", tensor.name);
                return Err(Failure::new("mismatch", message).at(file.path()));
            }
            at += len as u64;
        }
        compared += member.extent.len_bytes;
    }
    Ok(compared)
}

/// The counters that the report needs.
struct Tally {
    hits: u64,
    misses: u64,
    evictions: u64,
    loads: u64,
    loaded_bytes: u64,
    stall_ns: u64,
}

impl Tally {
    fn of(counters: &Counters) -> Tally {
        Tally {
            hits: counters.get(Counter::Hits),
            misses: counters.get(Counter::Misses),
            evictions: counters.get(Counter::Evictions),
            loads: counters.get(Counter::FillsDone),
            loaded_bytes: counters.get(Counter::FilledBytes),
            stall_ns: counters.get(Counter::StallNs),
        }
    }

    fn since(&self, before: &Tally) -> Tally {
        Tally {
            hits: self.hits.saturating_sub(before.hits),
            misses: self.misses.saturating_sub(before.misses),
            evictions: self.evictions.saturating_sub(before.evictions),
            loads: self.loads.saturating_sub(before.loads),
            loaded_bytes: self.loaded_bytes.saturating_sub(before.loaded_bytes),
            stall_ns: self.stall_ns.saturating_sub(before.stall_ns),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "visited  {} layers {} times with {} slots of {} ({}): {:.3} s, {:.3} s of it waiting",
            self.layers,
            self.rounds,
            self.slots,
            units::bytes(self.slot_bytes),
            self.policy,
            self.seconds,
            self.stall_seconds
        )?;
        writeln!(
            f,
            "cache    {} hits, {} misses ({:.1} % hits), {} evictions, {} loads, {} loaded",
            self.hits,
            self.misses,
            self.hit_percent,
            self.evictions,
            self.loads,
            units::bytes(self.loaded_bytes)
        )?;
        write!(f, "waiting  {}", self.stages.line())
    }
}
