//! `bench overlap`: slots are filled on one stream while a kernel bound by device memory reads all the others on a
//! second one. Events order them; the host enqueues everything and waits once, at the end.

use std::time::Instant;

use serde::Serialize;
use spoc_backends::{MATVEC_COLUMNS, MatVec};
use spoc_bridge::{RingMemory, StillRing};
use spoc_cache::arena::Geometry;
use spoc_driver::{CopyRange, Device, DeviceVector, Event, HostSource, Segment, Stream, StreamOptions};

use crate::cli::BenchOverlapArgs;
use crate::devices::Found;
use crate::failure::{Failure, Result};
use crate::out::Out;
use crate::{staging, units};

/// Columns of the matrices: rows of 16 KiB.
const COLUMNS: u64 = 32 * MATVEC_COLUMNS;
const ROW_BYTES: u64 = COLUMNS * 4;
const COPY_BYTES: usize = 4 << 20;
/// Slots that are being filled while the others are read: with one, whichever side is late in a step delays the other.
const AHEAD: usize = 2;
const FILLING: u64 = AHEAD as u64;
/// Steps that one event of a kind serves before it is recorded again.
const EVENTS: usize = AHEAD + 2;
/// Slots at least.
const SLOTS_MIN: u64 = FILLING + 3;
/// Slots that the kernel's speed is found with, and steps: a launch of few slots, or waiting for few launches, would
/// make it seem slower than it is beside a long copy.
const TRIAL_SLOTS: u64 = 8;
const TRIAL_STEPS: usize = 16;

#[derive(Debug, Serialize)]
struct Report {
    backend: &'static str,
    device: String,
    slots: u64,
    slot_bytes: u64,
    /// Times that the kernel reads the resident slots in a step.
    passes: u64,
    steps: usize,
    runs: usize,
    copy_seconds: f64,
    compute_seconds: f64,
    together_seconds: f64,
    /// Together over the slower of the two alone: 1 is perfect.
    wall_ratio: f64,
    wall_ratio_min: f64,
    wall_ratio_max: f64,
    /// Copy alone over compute alone.
    balance: f64,
    copy_gb_per_s: f64,
    compute_gb_per_s: f64,
    /// Of a copy within the device, bytes read and written.
    device_copy_gb_per_s: f64,
    /// The kernel's rate over that.
    compute_ratio: f64,
}

/// Runs the command.
///
/// # Errors
/// `no_device`, `device_too_small`, a device that runs no kernels, and what the device says.
pub fn run(args: &BenchOverlapArgs, out: Out) -> Result<u8> {
    let device = Found::for_args(&args.device)?.open(&args.device)?;
    let staging_bytes = staging::budget(None, COPY_BYTES as u64, 4)?;
    let ring = RingMemory::allocate(&device, usize::try_from(staging_bytes).map_err(Failure::usage)?)?;
    let slot_bytes = args.slot_bytes / ROW_BYTES * ROW_BYTES;
    if slot_bytes == 0 {
        return Err(Failure::usage(format_args!("--slot-bytes {}: at least {ROW_BYTES}", args.slot_bytes)));
    }
    let plan = size(&device, StillRing::new(ring), slot_bytes)?;
    let bench = Bench::new(&device, plan)?;
    // Once unmeasured: kernels are compiled, memory is touched.
    bench.steps(2, true, true)?;
    let runs = args.runs.max(1);
    let (mut copies, mut computes, mut both) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..runs {
        copies.push(bench.steps(args.steps, true, false)?);
        computes.push(bench.steps(args.steps, false, true)?);
        both.push(bench.steps(args.steps, true, true)?);
    }
    let report = report(&bench, args.steps, &copies, &computes, &both, device_copy_rate(&device)?);
    out.answer(&report, render);
    Ok(0)
}

/// What is moved and read in a step.
struct Plan {
    ring: StillRing,
    geometry: Geometry,
    passes: u64,
}

/// As many slots as the kernel reads while one is filled, if the device has room for them.
fn size(device: &Device, ring: StillRing, slot_bytes: u64) -> Result<Plan> {
    let limits = device.limits();
    // A view counts elements by i32, of four bytes each.
    let most = limits.segment_bytes_max.min(limits.binding_bytes_max).min(4 * u64::from(i32::MAX as u32));
    let geometry = |slots: u64| {
        let slots = u32::try_from(slots).unwrap_or(u32::MAX);
        Geometry::new(slot_bytes, slots, limits.address_align_bytes, most)
    };
    let have_bytes = device.memory()?.free_bytes;
    let slots_max = have_bytes / 10 * 7 / slot_bytes;
    if slots_max < SLOTS_MIN {
        let message =
            format!("{SLOTS_MIN} slots of {slot_bytes} bytes are needed, {have_bytes} bytes are free");
        return Err(Failure::new("device_too_small", message));
    }
    let trial_slots = TRIAL_SLOTS.min(slots_max);
    let trial = Plan { ring, geometry: geometry(trial_slots)?, passes: 1 };
    let bench = Bench::new(device, trial)?;
    bench.steps(2, true, true)?;
    let read = (trial_slots - FILLING) as f64;
    let slot_seconds = bench.steps(TRIAL_STEPS, false, true)? / TRIAL_STEPS as f64 / read;
    let copy_seconds = bench.steps(TRIAL_STEPS, true, false)? / TRIAL_STEPS as f64;
    let ring = bench.plan.ring.clone();
    drop(bench);
    let wanted = at_least_once(copy_seconds / slot_seconds);
    let slots = (wanted + FILLING).clamp(SLOTS_MIN, slots_max);
    let passes = at_least_once(copy_seconds / slot_seconds / (slots - FILLING) as f64);
    Ok(Plan { ring, geometry: geometry(slots)?, passes })
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // not below 1, and the cast saturates
fn at_least_once(times: f64) -> u64 {
    times.round().max(1.0) as u64
}

struct Bench {
    plan: Plan,
    segments: Vec<Segment>,
    vector: DeviceVector<f32>,
    results: Segment,
    product: MatVec,
    copy: Stream,
    compute: Stream,
    /// The slot of a step is there.
    ready: Vec<Event>,
    /// The kernels of a step have run.
    done: Vec<Event>,
}

impl Bench {
    fn new(device: &Device, plan: Plan) -> Result<Bench> {
        let geometry = plan.geometry;
        let allocate =
            |segment| device.allocate(u64::from(geometry.slots_of(segment)) * geometry.stride_bytes);
        let segments = (0..geometry.segments()).map(allocate).collect::<spoc_driver::Result<Vec<_>>>()?;
        let vector = DeviceVector::allocate(device, COLUMNS)?;
        vector.write(0, &vec![1.0; usize::try_from(COLUMNS).map_err(Failure::usage)?])?;
        let rows = geometry.bytes() / ROW_BYTES;
        let streams = StreamOptions { non_blocking: true, ..StreamOptions::default() };
        let events = || (0..EVENTS).map(|_| device.create_event()).collect::<spoc_driver::Result<Vec<_>>>();
        Ok(Bench {
            segments,
            vector,
            results: device.allocate(rows * 4)?,
            product: MatVec::new(device)?,
            copy: device.create_stream(streams)?,
            compute: device.create_stream(streams)?,
            ready: events()?,
            done: events()?,
            plan,
        })
    }

    /// Enqueues `steps` steps and waits for them. Seconds.
    fn steps(&self, steps: usize, copies: bool, computes: bool) -> Result<f64> {
        let began = Instant::now();
        for step in 0..steps {
            let (event, slots) = (step % EVENTS, u64::from(self.plan.geometry.slots));
            if copies {
                // The last kernels to read this slot: those after them leave it out.
                if let Some(readers) = step.checked_sub(AHEAD + 1).filter(|_| computes) {
                    self.copy.wait(&self.done[readers % EVENTS])?;
                }
                self.fill(step as u64 % slots)?;
                self.copy.record(&self.ready[event])?;
            }
            if computes {
                if copies {
                    self.compute.wait(&self.ready[event])?;
                }
                for _ in 0..self.plan.passes {
                    self.read_resident((step as u64 + 1) % slots)?;
                }
                self.compute.record(&self.done[event])?;
            }
        }
        self.copy.synchronize()?;
        self.compute.synchronize()?;
        Ok(began.elapsed().as_secs_f64())
    }

    /// Copies a slot's bytes out of the ring, round and round.
    fn fill(&self, slot: u64) -> Result<()> {
        let place = self.plan.geometry.place(u32::try_from(slot).map_err(Failure::usage)?);
        let (ring_bytes, bytes) = (self.plan.ring.len_bytes(), self.plan.geometry.stride_bytes);
        let bytes = usize::try_from(bytes).map_err(Failure::usage)?;
        let starts = (0..bytes).step_by(COPY_BYTES);
        let ranges: Vec<_> = starts
            .map(|start| CopyRange {
                src_offset: start % (ring_bytes / COPY_BYTES * COPY_BYTES),
                dst: &self.segments[place.segment as usize],
                dst_offset: place.offset_bytes + start as u64,
                len_bytes: COPY_BYTES.min(bytes - start),
            })
            .collect();
        self.copy.copy_to_device(self.plan.ring.clone(), &ranges).map_err(spoc_driver::Error::from)?;
        Ok(())
    }

    /// All slots but those that are being filled, from `filling` on. One launch for each stretch of slots that lie together.
    fn read_resident(&self, filling: u64) -> Result<()> {
        let geometry = self.plan.geometry;
        let all = u64::from(geometry.slots);
        let filled = |slot: u64| (slot + all - filling) % all < FILLING;
        let mut first = 0;
        for (number, segment) in self.segments.iter().enumerate() {
            let end = first + u64::from(geometry.slots_of(u32::try_from(number).map_err(Failure::usage)?));
            let mut slot = first;
            while slot < end {
                let stretch_end = (slot..end).find(|slot| filled(*slot)).unwrap_or(end);
                if slot < stretch_end {
                    self.read(segment, slot, stretch_end, first)?;
                }
                slot = stretch_end + 1;
            }
            first = end;
        }
        Ok(())
    }

    /// One launch over slots `from..to` of a segment whose first slot is `first`.
    fn read(&self, segment: &Segment, from: u64, to: u64, first: u64) -> Result<()> {
        let stride_bytes = self.plan.geometry.stride_bytes;
        let bytes = (to - from) * stride_bytes;
        let matrix = DeviceVector::view(segment, (from - first) * stride_bytes, bytes / 4)?;
        let row = from * stride_bytes / ROW_BYTES;
        let mut rows = DeviceVector::view(&self.results, row * 4, bytes / ROW_BYTES)?;
        self.product.launch(&self.compute, &matrix, &self.vector, &mut rows)?;
        Ok(())
    }
}

/// Bytes read and written by a copy within the device, GB/s.
fn device_copy_rate(device: &Device) -> Result<f64> {
    let bytes = (device.memory()?.free_bytes / 8).clamp(1 << 20, 1 << 30) / 4096 * 4096;
    let (from, to) = (device.allocate(bytes)?, device.allocate(bytes)?);
    let stream = device.create_stream(StreamOptions { non_blocking: true, ..StreamOptions::default() })?;
    let mut best = 0.0_f64;
    for _ in 0..4 {
        let began = Instant::now();
        for _ in 0..4 {
            stream.copy_device_to_device(&from, 0, &to, 0, bytes)?;
        }
        stream.synchronize()?;
        best = best.max(units::gb_per_s(4 * 2 * bytes, began.elapsed().as_secs_f64()));
    }
    Ok(best)
}

fn report(
    bench: &Bench,
    steps: usize,
    copies: &[f64],
    computes: &[f64],
    both: &[f64],
    device_copy_gb_per_s: f64,
) -> Report {
    let geometry = bench.plan.geometry;
    let (copy, compute, together) = (super::median(copies), super::median(computes), super::median(both));
    let ratios: Vec<f64> =
        both.iter().zip(copies).zip(computes).map(|((both, a), b)| both / a.max(*b)).collect();
    let read =
        geometry.stride_bytes * (u64::from(geometry.slots) - FILLING) * bench.plan.passes * steps as u64;
    let compute_gb_per_s = units::gb_per_s(read, compute);
    let device = bench.copy.device();
    Report {
        backend: device.info().backend.as_str(),
        device: device.info().name.clone(),
        slots: geometry.slots.into(),
        slot_bytes: geometry.stride_bytes,
        passes: bench.plan.passes,
        steps,
        runs: both.len(),
        copy_seconds: copy,
        compute_seconds: compute,
        together_seconds: together,
        wall_ratio: super::median(&ratios),
        wall_ratio_min: ratios.iter().copied().fold(f64::INFINITY, f64::min),
        wall_ratio_max: ratios.iter().copied().fold(0.0, f64::max),
        balance: copy / compute,
        copy_gb_per_s: units::gb_per_s(geometry.stride_bytes * steps as u64, copy),
        compute_gb_per_s,
        device_copy_gb_per_s,
        compute_ratio: compute_gb_per_s / device_copy_gb_per_s,
    }
}

fn render(report: &Report) -> String {
    format!(
        "{} {}: {} slots of {}, {} steps\ncopy alone    {:.4} s ({:.2} GB/s)\ncompute alone {:.4} s ({:.1} GB/s, {:.2} of a copy within the device)\ntogether      {:.4} s: {:.3} of the slower alone ({:.3} to {:.3}); copy over compute {:.2}",
        report.backend,
        report.device,
        report.slots,
        units::bytes(report.slot_bytes),
        report.steps,
        report.copy_seconds,
        report.copy_gb_per_s,
        report.compute_seconds,
        report.compute_gb_per_s,
        report.compute_ratio,
        report.together_seconds,
        report.wall_ratio,
        report.wall_ratio_min,
        report.wall_ratio_max,
        report.balance,
    )
}
