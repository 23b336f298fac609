//! Question: what does a launch cost in a chain of small dependent ones, and what does gathering them gain?
//!
//! A chain doubles a vector of 64 words again and again, each launch after the one before; it is waited for at its
//! end. On Vulkan the batch sizes take turns from run to run; a batch of 1 is waited for at every launch.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "printing its answer is what a measurement does")]

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use serde_json::json;
use spoc_backends::vulkan;
use spoc_driver::{
    Arguments, BackendKind, BuiltIn, Device, DeviceSelector, Driver, Grid, Kernel, StreamOptions, Vector,
};
use spoc_measurements::{device::DeviceArgs, machine, stats::Summary};

/// What does a launch cost in a chain of small dependent ones, and what does gathering them gain?
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    device: DeviceArgs,
    /// Launches of a chain.
    #[arg(long, default_value_t = 1000)]
    launches: u32,
    /// Chains of each way.
    #[arg(long, default_value_t = 15)]
    runs: usize,
    /// Vulkan's batch sizes; the first is what the others are compared with.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 32, 256])]
    batches: Vec<usize>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    println!("{}", machine::describe());
    let ways = open(&args)?;
    println!("device: {}", ways.first().context("no batch sizes")?.1.info().name);
    let mut times = vec![Vec::new(); ways.len()];
    for run in 0..=args.runs {
        for turn in 0..ways.len() {
            let way = (run + turn) % ways.len();
            let seconds = chain(&ways[way].1, args.launches)?;
            // The first run makes pipelines and fills caches.
            if run > 0 {
                times[way].push(seconds * 1e6 / f64::from(args.launches));
            }
        }
    }
    let medians: Vec<_> =
        times.iter().map(|times| Summary::of(times).map_or(f64::NAN, |all| all.median)).collect();
    for (((name, _), times), median) in ways.iter().zip(&times).zip(&medians) {
        let summary = Summary::of(times).context("no runs")?;
        println!("{name}: µs a launch: {summary}; {:.2} × the first", medians[0] / median);
        println!("{}", json!({ "way": name, "us_a_launch": times }));
    }
    Ok(())
}

/// The device by each batch size; where there are no batches, the device.
fn open(args: &Args) -> Result<Vec<(String, Device)>> {
    if args.device.backend != "vulkan" {
        return Ok(vec![(args.device.backend.clone(), args.device.open()?)]);
    }
    let open = |batch: &usize| {
        let options = vulkan::Options::from_env().map_err(anyhow::Error::msg)?;
        let backend = vulkan::backend(vulkan::Options { batch: Some(*batch), ..options })
            .map_err(anyhow::Error::msg)?;
        let selector = DeviceSelector::index(BackendKind::Vulkan, args.device.index);
        Ok((format!("batch {batch}"), Driver::new(vec![backend]).open(&selector)?))
    };
    args.batches.iter().map(open).collect()
}

/// Seconds that a chain takes; what it computes is checked.
fn chain(device: &Device, launches: u32) -> Result<f64> {
    let stream = device.create_stream(StreamOptions::default())?;
    let (mut a, mut b) = (Vector::from_slice(&[1_u32; 64])?, Vector::from_slice(&[0_u32; 64])?);
    a.to_device(device)?;
    b.to_device(device)?;
    let kernel = Kernel::built_in(BuiltIn::Scale);
    let begin = Instant::now();
    for turn in 0..launches {
        let (from, to) = if turn % 2 == 0 { (&a, &mut b) } else { (&b, &mut a) };
        stream.launch(&kernel, Grid::linear(64), &Arguments::new().read(from).scalar(3_u32).write(to))?;
    }
    stream.synchronize()?;
    let seconds = begin.elapsed().as_secs_f64();
    let last = if launches.is_multiple_of(2) { &a } else { &b };
    ensure!(last.get(63)? == 3_u32.wrapping_pow(launches), "the chain computed something else");
    Ok(seconds)
}
