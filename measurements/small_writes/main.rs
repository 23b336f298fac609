//! Question: what does rewriting a few elements between launches cost, by each way there is?
//!
//! An iteration rewrites 8 `i32` and 8 `f32`, does 300 µs of host work and launches 4 kernels that read them. The ways
//! run one after the other in each run, and the order rotates from run to run.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "printing its answer is what a measurement does")]

use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;
use serde_json::json;
use spoc_driver::{Arguments, BuiltIn, Device, Grid, Kernel, PinnedHandle, Stream, StreamOptions, Vector};
use spoc_measurements::{device::DeviceArgs, machine, stats::Summary};

/// What does rewriting a few elements between launches cost, by each way there is?
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    device: DeviceArgs,
    /// Runs of each way.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Iterations of a run.
    #[arg(long, default_value_t = 500)]
    iterations: u32,
    /// Host work of an iteration, in microseconds.
    #[arg(long, default_value_t = 300)]
    work_us: u64,
    /// Elements of each of the two vectors.
    #[arg(long, default_value_t = 65_536)]
    elements: u64,
    /// Launch on a stream of its own instead of the default one.
    #[arg(long)]
    stream: bool,
}

/// How the elements are rewritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Not at all: what the rest costs.
    Nothing,
    /// Element by element on the host.
    Set,
    /// A ranged copy, complete on return.
    Copy,
    /// Through the driver's staging ring.
    Stage,
    /// Through a ring of pinned memory of the caller's.
    PinnedRing,
}

const WAYS: [Way; 5] = [Way::Nothing, Way::Set, Way::Copy, Way::Stage, Way::PinnedRing];
const LAUNCHES: usize = 4;
const WRITTEN: usize = 8;
/// Slots of the caller's ring.
const SLOTS: usize = 16;

struct Subject<'d> {
    device: &'d Device,
    stream: Option<Stream>,
    ids: Vector<i32>,
    weights: Vector<f32>,
    id_sums: Vector<i32>,
    weight_sums: Vector<f32>,
    ring: Vec<PinnedHandle>,
    add: Kernel,
    grid: Grid,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let device = args.device.open()?;
    println!(
        "{}",
        json!({"machine": machine::describe(), "device": device.info().name,
               "command": std::env::args().collect::<Vec<_>>()})
    );
    let mut times = [const { Vec::new() }; WAYS.len()];
    for run in 0..args.runs {
        for turn in 0..WAYS.len() {
            let way = (run + turn) % WAYS.len();
            let us = measure(&args, &device, WAYS[way])?;
            println!("{}", json!({"run": run, "way": format!("{:?}", WAYS[way]), "us_per_iteration": us}));
            times[way].push(us);
        }
    }
    for (way, times) in WAYS.iter().zip(&times) {
        if let Some(summary) = Summary::of(times) {
            println!("{way:?}: {:.1} to {:.1} us an iteration", summary.min, summary.max);
        }
    }
    Ok(())
}

/// Microseconds of an iteration, everything included.
fn measure(args: &Args, device: &Device, way: Way) -> Result<f64> {
    let mut subject = Subject::new(args, device)?;
    for iteration in 0..10 {
        subject.iterate(way, iteration, Duration::ZERO)?;
    }
    device.flush()?;
    let begin = Instant::now();
    for iteration in 0..args.iterations {
        subject.iterate(way, iteration, Duration::from_micros(args.work_us))?;
    }
    device.flush()?;
    Ok(begin.elapsed().as_secs_f64() * 1e6 / f64::from(args.iterations))
}

impl<'d> Subject<'d> {
    fn new(args: &Args, device: &'d Device) -> Result<Self> {
        let (ids, weights) = (Vector::zeroed(args.elements)?, Vector::zeroed(args.elements)?);
        ids.to_device(device)?;
        weights.to_device(device)?;
        let slot = || PinnedHandle::alloc(device, (WRITTEN * 8) as u64);
        Ok(Self {
            device,
            stream: args.stream.then(|| device.create_stream(StreamOptions::default())).transpose()?,
            ids,
            weights,
            id_sums: Vector::on_device(device, args.elements)?,
            weight_sums: Vector::on_device(device, args.elements)?,
            ring: (0..SLOTS).map(|_| slot()).collect::<spoc_driver::Result<_>>()?,
            add: Kernel::built_in(BuiltIn::Add),
            grid: Grid::linear(u32::try_from(args.elements)?),
        })
    }

    fn iterate(&mut self, way: Way, iteration: u32, work: Duration) -> Result<()> {
        let ids = [i32::try_from(iteration)?; WRITTEN];
        let weights = [f32::from(u16::try_from(iteration % 1000)?); WRITTEN];
        match way {
            Way::Nothing => {}
            Way::Set => {
                for (index, (id, weight)) in (0..).zip(ids.iter().zip(&weights)) {
                    self.ids.set(index, *id)?;
                    self.weights.set(index, *weight)?;
                }
            }
            Way::Copy => {
                self.ids.copy_to_device(0, &ids)?;
                self.weights.copy_to_device(0, &weights)?;
            }
            Way::Stage => self.stage(&ids, &weights)?,
            Way::PinnedRing => self.through_ring(iteration, &ids, &weights)?,
        }
        let begin = Instant::now();
        while begin.elapsed() < work {
            std::hint::spin_loop();
        }
        for _ in 0..LAUNCHES / 2 {
            let ids = Arguments::new().read(&self.ids).read(&self.ids).write(&mut self.id_sums);
            launch(self.device, self.stream.as_ref(), &self.add, self.grid, &ids)?;
            let weights =
                Arguments::new().read(&self.weights).read(&self.weights).write(&mut self.weight_sums);
            launch(self.device, self.stream.as_ref(), &self.add, self.grid, &weights)?;
        }
        Ok(())
    }

    fn stage(&mut self, ids: &[i32], weights: &[f32]) -> Result<()> {
        match &self.stream {
            Some(stream) => {
                self.ids.stage_to_device_on(stream, 0, ids)?;
                self.weights.stage_to_device_on(stream, 0, weights)?;
            }
            None => {
                self.ids.stage_to_device(0, ids)?;
                self.weights.stage_to_device(0, weights)?;
            }
        }
        Ok(())
    }

    /// The next slot is waited for if its last copy has not run: what a caller without a staging ring has to do.
    fn through_ring(&mut self, iteration: u32, ids: &[i32], weights: &[f32]) -> Result<()> {
        let default = self.device.default_stream();
        let stream = self.stream.as_ref().unwrap_or(&default);
        let slot = &mut self.ring[usize::try_from(iteration)? % SLOTS];
        if slot.as_mut_slice().is_err() {
            stream.synchronize()?;
        }
        slot.as_mut_elements::<i32>()?[..WRITTEN].copy_from_slice(ids);
        slot.as_mut_elements::<f32>()?[WRITTEN..2 * WRITTEN].copy_from_slice(weights);
        self.ids.copy_to_device_on(stream, 0, slot.lend(0..WRITTEN * 4)?)?;
        self.weights.copy_to_device_on(stream, 0, slot.lend(WRITTEN * 4..WRITTEN * 8)?)?;
        Ok(())
    }
}

fn launch(
    device: &Device,
    stream: Option<&Stream>,
    kernel: &Kernel,
    grid: Grid,
    arguments: &Arguments<'_>,
) -> Result<()> {
    match stream {
        Some(stream) => stream.launch(kernel, grid, arguments)?,
        None => device.launch(kernel, grid, arguments)?,
    }
    Ok(())
}
