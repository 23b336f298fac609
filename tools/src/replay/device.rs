//! The trace for real: experts are read from a file into slots, leased, and multiplied by a kernel that is bound by device
//! memory. Every row's sum is compared, so that a slot with the wrong bytes, or with bytes too early, ends the run.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use spoc_backends::MatVec;
use spoc_cache::replay::Events;
use spoc_cache::stats::layout::Counter;
use spoc_cache::{Acquire, CacheOptions, Catalogue, GroupRules, Key, Lease, Pump, SlotCache, TierOptions};
use spoc_driver::{Device, DeviceVector, Segment, Stream, StreamOptions};
use spoc_io::{OpenOptions, open_model};

use super::args::ReplayArgs;
use super::experts::{COLUMNS, Experts};
use crate::cli::DeviceArgs;
use crate::devices::Found;
use crate::failure::{Failure, Result};
use crate::out::Out;
use crate::process::Interrupt;
use crate::{bench, load, progress, publish, staging, units};

/// Sums of rows that are kept until they are compared.
const RESULT_BYTES: u64 = 16 << 20;
/// Copies to measure the link with.
const LINK_CHUNK_BYTES: u64 = 4 << 20;
/// How often events whose experts are all resident are run, beside plain launches.
const HIT_RUNS: usize = 5;
const HIT_EVENTS: usize = 512;

/// What came of running a trace.
#[derive(Debug, Serialize)]
pub struct Report {
    backend: &'static str,
    device: String,
    expert_bytes_max: u64,
    model_bytes: u64,
    events: usize,
    ahead: u32,
    passes: u32,
    hits: u64,
    misses: u64,
    hit_rate: f64,
    /// Groups that went into slots, and their bytes, from the file or from the host tier.
    loads: u64,
    loaded_bytes: u64,
    tier_hits: u64,
    /// Of all events, without comparing.
    wall_seconds: f64,
    /// Part of it that the host waited for slots.
    stall_seconds: f64,
    /// The same launches on memory that is resident.
    compute_seconds: f64,
    link_gb_per_s: f64,
    /// What was loaded, at the link's rate.
    link_seconds: f64,
    /// The wall time over the longer of the two.
    wall_ratio: f64,
    /// Events whose experts are all resident, over the same launches on plain memory; none if the pool holds no event.
    all_hit_ratio: Option<f64>,
    /// Sums of rows that were compared, and equal.
    rows_checked: u64,
    io_path: &'static str,
}

/// Runs the events on the device that `args` name.
///
/// # Errors
/// What device, files and cache say; `mismatch` for a sum that is not its row's.
pub fn run(
    args: &ReplayArgs,
    events: &Events,
    (experts_a_layer, bytes_known): (usize, bool),
    slots: usize,
    out: Out,
) -> Result<Report> {
    let interrupt = Interrupt::watch();
    let device_args = DeviceArgs { backend: args.real.backend.clone(), device: args.device.clone() };
    let device = Found::for_args(&device_args)?.open(&device_args)?;
    let experts = Experts::of(events, bytes_known, args.real.expert_bytes);
    let parent = args.real.dir.clone().unwrap_or_else(std::env::temp_dir);
    let folder = interrupt.temporary(|| crate::demo::temporary(&parent), |dir| dir.path().to_path_buf())?;
    let path = folder.path().join("experts.safetensors");
    let bar = progress::bar("writing", experts.bytes(), out.is_json());
    let written = experts.write(&path, experts_a_layer, |bytes| {
        bar.inc(bytes);
        interrupt.pause_if_stopping();
    });
    written.map_err(|error| Failure::io(&path, "writing experts", &error))?;
    bar.finish_and_clear();

    let counters = publish::counters(slots, &interrupt)?;
    let staging_bytes = staging::budget(args.real.staging_bytes, staging::SMALLEST_BYTES, 2)?;
    let pump = load::start_pump(&device, args.real.io, staging_bytes, counters)?;
    let bench = Bench::new(&pump, args, events, experts, (&path, experts_a_layer), slots)?;
    let ran = bench.run(args, out)?;
    interrupt.keep(folder.path());
    drop(folder);
    Ok(ran)
}

struct Bench<'a> {
    events: &'a Events,
    experts: Experts,
    pump: Arc<Pump>,
    cache: SlotCache,
    /// By item.
    keys: Vec<Key>,
    stream: Stream,
    product: MatVec,
    ones: DeviceVector<f32>,
    results: Segment,
    passes: u32,
}

/// Launches whose results nobody has looked at yet.
#[derive(Default)]
struct Unchecked {
    rows: u64,
    /// Item, and the first of its rows among the results.
    launches: Vec<(u32, u64)>,
}

/// Host seconds of a run.
#[derive(Default)]
struct Clock {
    wall: f64,
    stalled: f64,
    rows_checked: u64,
}

impl<'a> Bench<'a> {
    fn new(
        pump: &Arc<Pump>,
        args: &ReplayArgs,
        events: &'a Events,
        experts: Experts,
        (path, experts_a_layer): (&Path, usize),
        slots: usize,
    ) -> Result<Bench<'a>> {
        let device = pump.device();
        let model = open_model(path, &OpenOptions::default())?;
        let catalogue = Arc::new(Catalogue::from_model(&model, &GroupRules::default().per_expert())?);
        let mut options =
            CacheOptions::for_catalogue(&catalogue, u32::try_from(slots).map_err(Failure::usage)?);
        (options.policy, options.scope) = (args.policy, args.scope);
        let host_free_bytes = spoc_backends::host_memory_available();
        let bytes = args.real.tier_bytes.unwrap_or(0);
        options.tier = TierOptions { bytes, host_free_bytes, ..TierOptions::default() };
        let cache = SlotCache::new(pump, options)?;
        let model = cache.register(Arc::clone(&catalogue))?;
        let key = |item| {
            let name = Experts::group_name(item, experts_a_layer);
            let group = catalogue.group_named(&name);
            let group = group.ok_or_else(|| Failure::new("internal", format!("no group {name}")))?;
            Ok(cache.key(model, group)?)
        };
        let keys = (0..u32::try_from(experts.count()).map_err(Failure::usage)?).map(key);
        let keys = keys.collect::<Result<Vec<_>>>()?;
        cache.wait_tier();
        let ones = DeviceVector::allocate(device, COLUMNS)?;
        ones.write(0, &vec![1.0; usize::try_from(COLUMNS).map_err(Failure::usage)?])?;
        Ok(Bench {
            events,
            experts,
            pump: Arc::clone(pump),
            keys,
            stream: device.create_stream(StreamOptions { non_blocking: true, ..StreamOptions::default() })?,
            product: MatVec::new(device)?,
            ones,
            results: device.allocate(RESULT_BYTES)?,
            passes: args.real.passes,
            cache,
        })
    }

    fn device(&self) -> &Device {
        self.pump.device()
    }

    fn run(&self, args: &ReplayArgs, out: Out) -> Result<Report> {
        let plain = self.plain()?;
        // Once unmeasured: the kernel is compiled, memory is touched.
        self.launch(0, &plain[0], &mut Unchecked::default())?;
        self.stream.synchronize()?;
        let compute_seconds = self.compute_alone(&plain)?;
        let counters = self.cache.counters();
        let count = |counter| counters.get(counter);
        let counted =
            [Counter::Hits, Counter::Misses, Counter::FillsDone, Counter::FilledBytes, Counter::TierHits];
        let before = counted.map(count);
        let clock = self.stream_events(args.real.ahead, out)?;
        let after = counted.map(count);
        let [hits, misses, loads, loaded_bytes, tier_hits] =
            std::array::from_fn(|at| after[at].saturating_sub(before[at]));
        let link_gb_per_s = bench::link::link_rate(self.device(), 64 << 20, LINK_CHUNK_BYTES)?;
        let link_seconds = loaded_bytes as f64 / 1e9 / link_gb_per_s;
        let info = self.device().info();
        Ok(Report {
            backend: info.backend.as_str(),
            device: info.name.clone(),
            expert_bytes_max: self.cache.geometry().stride_bytes,
            model_bytes: self.experts.bytes(),
            events: self.events.len(),
            ahead: args.real.ahead,
            passes: self.passes,
            hits,
            misses,
            hit_rate: hits as f64 / (hits + misses).max(1) as f64,
            loads,
            loaded_bytes,
            tier_hits,
            wall_seconds: clock.wall,
            stall_seconds: clock.stalled,
            compute_seconds,
            link_gb_per_s,
            link_seconds,
            wall_ratio: clock.wall / compute_seconds.max(link_seconds),
            all_hit_ratio: self.all_hit_ratio(&plain)?,
            rows_checked: clock.rows_checked,
            io_path: self.pump.reader_report()?.path.as_str(),
        })
    }

    /// Every event: its set is acquired, its experts are multiplied, its lease ends behind them. `ahead` acquires are
    /// begun before the one that is waited for, as an engine does that knows its routing so far ahead.
    fn stream_events(&self, ahead: u32, out: Out) -> Result<Clock> {
        let bar = progress::bar("replaying", self.events.len() as u64, out.is_json());
        let (mut clock, mut unchecked) = (Clock::default(), Unchecked::default());
        let mut pending: VecDeque<(&[u32], Acquire<&Stream>)> = VecDeque::new();
        let mut sets = self.events.sets();
        let mut since = Instant::now();
        loop {
            while pending.len() <= ahead as usize
                && let Some(set) = sets.next()
            {
                pending.push_back((set, self.cache.acquire(&self.keys_of(set), &self.stream)?));
            }
            let Some((set, acquire)) = pending.pop_front() else { break };
            let waiting = Instant::now();
            let lease = acquire.wait()?;
            clock.stalled += waiting.elapsed().as_secs_f64();
            if unchecked.rows + set.iter().map(|&item| self.experts.rows(item)).sum::<u64>()
                > RESULT_BYTES / 4
            {
                self.check(&mut unchecked, &mut clock, &mut since)?;
            }
            self.compute(set, &lease, &mut unchecked)?;
            lease.release(&[&self.stream])?;
            bar.inc(1);
        }
        self.check(&mut unchecked, &mut clock, &mut since)?;
        bar.finish_and_clear();
        Ok(clock)
    }

    fn keys_of(&self, set: &[u32]) -> Vec<Key> {
        set.iter().map(|&item| self.keys[item as usize]).collect()
    }

    fn compute(&self, set: &[u32], lease: &Lease<&Stream>, unchecked: &mut Unchecked) -> Result<()> {
        for (index, &item) in set.iter().enumerate() {
            let memory = lease.memory(index);
            let memory = memory.ok_or_else(|| Failure::new("internal", "a lease without a slot"))?;
            self.launch(item, &memory, unchecked)?;
        }
        Ok(())
    }

    /// The product of an expert that lies there.
    fn launch(&self, item: u32, (segment, offset): &(Segment, u64), unchecked: &mut Unchecked) -> Result<()> {
        let rows = self.experts.rows(item);
        let matrix = DeviceVector::view(segment, *offset, rows * COLUMNS)?;
        let mut sums = DeviceVector::view(&self.results, unchecked.rows * 4, rows)?;
        for _ in 0..self.passes {
            self.product.launch(&self.stream, &matrix, &self.ones, &mut sums)?;
        }
        unchecked.launches.push((item, unchecked.rows));
        unchecked.rows += rows;
        Ok(())
    }

    /// Waits for what was launched, stops the clock, and compares every sum.
    fn check(&self, unchecked: &mut Unchecked, clock: &mut Clock, since: &mut Instant) -> Result<()> {
        self.stream.synchronize()?;
        clock.wall += since.elapsed().as_secs_f64();
        let mut found = vec![0; usize::try_from(unchecked.rows * 4).map_err(Failure::usage)?];
        self.results.read(0, &mut found)?;
        let (sums, _) = found.as_chunks::<4>();
        for &(item, first) in &unchecked.launches {
            for (row, found) in (0..self.experts.rows(item))
                .zip(sums.iter().skip(usize::try_from(first).unwrap_or(usize::MAX)))
            {
                let (expected, found) = (self.experts.sum(item, row), f32::from_le_bytes(*found));
                if found.to_bits() != expected.to_bits() {
                    let message =
                        format!("expert {item}, row {row}: the sum is {found}, {expected} is in its file");
                    return Err(Failure::new("mismatch", message));
                }
            }
        }
        clock.rows_checked += unchecked.rows;
        *unchecked = Unchecked::default();
        *since = Instant::now();
        Ok(())
    }

    /// Memory beside the cache, as much as it has or as there is room for.
    fn plain(&self) -> Result<Vec<(Segment, u64)>> {
        let geometry = self.cache.geometry();
        let room = self.device().memory()?.free_bytes / 2 / geometry.stride_bytes;
        let slots = room.clamp(1, geometry.slots.into()).min(1024);
        (0..slots).map(|_| Ok((self.device().allocate(geometry.stride_bytes)?, 0))).collect()
    }

    /// The launches of every event, on memory that stays as it is.
    fn compute_alone(&self, plain: &[(Segment, u64)]) -> Result<f64> {
        let began = Instant::now();
        let mut places = plain.iter().cycle();
        for set in self.events.sets() {
            self.compute_on(set, &mut places)?;
        }
        self.stream.synchronize()?;
        Ok(began.elapsed().as_secs_f64())
    }

    fn compute_on<'p>(
        &self,
        set: &[u32],
        places: &mut impl Iterator<Item = &'p (Segment, u64)>,
    ) -> Result<()> {
        let mut unchecked = Unchecked::default();
        for (&item, place) in set.iter().zip(places) {
            if unchecked.rows + self.experts.rows(item) > RESULT_BYTES / 4 {
                unchecked = Unchecked::default();
            }
            self.launch(item, place, &mut unchecked)?;
        }
        Ok(())
    }

    /// The last events that fit the pool together, again and again, beside the same launches on plain memory.
    fn all_hit_ratio(&self, plain: &[(Segment, u64)]) -> Result<Option<f64>> {
        let slots = self.cache.geometry().slots as usize;
        let (mut members, mut sets) = (Vec::new(), Vec::new());
        for set in self.events.sets().rev().take(self.events.layers()) {
            members.extend_from_slice(set);
            members.sort_unstable();
            members.dedup();
            if members.len() > slots {
                break;
            }
            sets.push(set);
        }
        if sets.is_empty() {
            return Ok(None);
        }
        let reader = self.cache.reader(&self.stream)?;
        let step = |set: &[u32]| -> Result<()> {
            let lease = reader.wait_acquire(&self.keys_of(set))?;
            let mut unchecked = Unchecked::default();
            for (index, &item) in set.iter().enumerate() {
                let memory =
                    lease.memory(index).ok_or_else(|| Failure::new("internal", "a lease without a slot"))?;
                self.launch(item, &memory, &mut unchecked)?;
            }
            Ok(())
        };
        // Twice, so that what a policy lets go of at first is there.
        for set in sets.iter().chain(&sets) {
            step(set)?;
            reader.end_step()?;
        }
        let misses = self.cache.counters().get(Counter::Misses);
        let mut ratios = Vec::new();
        for _ in 0..HIT_RUNS {
            let (mut leased, mut alone) = (0.0, 0.0);
            for _ in 0..HIT_EVENTS.div_ceil(sets.len()) {
                let began = Instant::now();
                sets.iter().try_for_each(|set| step(set))?;
                reader.end_step()?;
                self.stream.synchronize()?;
                leased += began.elapsed().as_secs_f64();
                let began = Instant::now();
                let mut places = plain.iter().cycle();
                sets.iter().try_for_each(|set| self.compute_on(set, &mut places))?;
                self.stream.synchronize()?;
                alone += began.elapsed().as_secs_f64();
            }
            ratios.push(leased / alone);
        }
        let all_hit = self.cache.counters().get(Counter::Misses) == misses;
        Ok(all_hit.then(|| bench::median(&ratios)))
    }
}

impl Report {
    /// Lines for people.
    pub fn lines(&self) -> String {
        let mut text = format!(
            "device    {} ({}): {} events, {} of experts, each up to {} ({}), {} rows equal to their file\n",
            self.backend,
            self.device,
            self.events,
            units::bytes(self.model_bytes),
            units::bytes(self.expert_bytes_max),
            self.io_path,
            self.rows_checked
        );
        text += &format!(
            "hit rate  {:.2} %; {} loads, {} ({} from the host tier)\n",
            100.0 * self.hit_rate,
            self.loads,
            units::bytes(self.loaded_bytes),
            self.tier_hits
        );
        text += &format!(
            "wall      {:.3} s, {:.3} s of it waiting; compute alone {:.3} s, the link {:.3} s at {:.2} GB/s: {:.3} of the longer",
            self.wall_seconds,
            self.stall_seconds,
            self.compute_seconds,
            self.link_seconds,
            self.link_gb_per_s,
            self.wall_ratio
        );
        if let Some(ratio) = self.all_hit_ratio {
            text += &format!("\nall hits  {ratio:.3} of the same launches on plain memory");
        }
        text
    }
}
