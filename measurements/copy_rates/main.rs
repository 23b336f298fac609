//! Question: how fast do chunks stream between pinned memory and a device, by chunk and by API?
//!
//! Every API in turn, over the same memory sizes: a pass enqueues copies of one chunk each on one stream until so many
//! bytes are on their way, and waits for the last. The first API named is what the others are compared with.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "printing its answer is what a measurement does")]

use std::time::Instant;

use anyhow::{Result, anyhow, ensure};
use clap::Parser;
use serde_json::json;
use spoc_driver::{CopyRange, Device, PinnedHandle, Segment, Stream, StreamOptions};
use spoc_measurements::{device::DeviceArgs, machine, stats::Summary};

/// How fast do chunks stream between pinned memory and a device, by chunk and by API?
#[derive(Debug, Parser)]
struct Args {
    /// Backends, each with its device's index where it is not 0: cuda,opencl:1,vulkan
    #[arg(long, value_delimiter = ',', default_values_t = ["native".to_owned()])]
    backend: Vec<String>,
    /// Sizes of a chunk in KiB.
    #[arg(long, value_delimiter = ',', default_values_t = [1024, 4096, 16384, 65536])]
    chunk_kib: Vec<usize>,
    /// MiB of pinned memory, and of a pass.
    #[arg(long, default_value_t = 256)]
    mib: usize,
    /// Passes of each way.
    #[arg(long, default_value_t = 7)]
    passes: usize,
}

struct Bench {
    name: String,
    stream: Stream,
    device: Device,
    segment: Segment,
    /// One a chunk.
    pinned: Vec<PinnedHandle>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    println!("{}", machine::describe());
    let mut benches = Vec::new();
    for name in &args.backend {
        let (backend, index) = name.split_once(':').unwrap_or((name, "0"));
        let device = DeviceArgs { backend: backend.to_owned(), index: index.parse()? }.open()?;
        println!("{name}: {}, {}", device.info().name, device.driver_name()?);
        benches.push(Bench::new(name.clone(), &device, args.mib << 20)?);
    }
    for &kib in &args.chunk_kib {
        benches.iter_mut().try_for_each(|bench| bench.pin(kib << 10))?;
        for is_up in [true, false] {
            measure(&mut benches, kib << 10, is_up, args.passes)?;
        }
    }
    Ok(())
}

fn measure(benches: &mut [Bench], chunk: usize, is_up: bool, passes: usize) -> Result<()> {
    let mut rates = vec![Vec::new(); benches.len()];
    // The first pass of each warms up.
    for pass in 0..=passes {
        for turn in 0..benches.len() {
            let which = (pass + turn) % benches.len();
            let gb_s = if is_up { benches[which].up(chunk)? } else { benches[which].down(chunk)? };
            if pass > 0 {
                rates[which].push(gb_s);
            }
        }
    }
    let way = if is_up { "up" } else { "down" };
    let first = Summary::of(&rates[0]).map_or(f64::NAN, |summary| summary.median);
    for (bench, rates) in benches.iter().zip(&rates) {
        let summary = Summary::of(rates).ok_or_else(|| anyhow!("no passes"))?;
        let ratio = summary.median / first;
        println!("{} KiB {way} {}: GB/s {summary}; {ratio:.3} of the first", chunk >> 10, bench.name);
        println!("{}", json!({"chunk": chunk, "way": way, "backend": bench.name, "gb_s": rates}));
    }
    Ok(())
}

impl Bench {
    fn new(name: String, device: &Device, len_bytes: usize) -> Result<Self> {
        let segment = device.allocate(len_bytes as u64)?;
        let stream =
            device.create_stream(StreamOptions { non_blocking: true, ..StreamOptions::default() })?;
        Ok(Self { name, stream, segment, device: device.clone(), pinned: Vec::new() })
    }

    /// Memory for chunks of a size, each with its number in it.
    fn pin(&mut self, chunk: usize) -> Result<()> {
        self.pinned.clear();
        for number in 0..self.segment.len_bytes() / chunk as u64 {
            let mut pinned = PinnedHandle::alloc(&self.device, chunk as u64)?;
            pinned.as_mut_elements::<u64>()?.fill(number);
            self.pinned.push(pinned);
        }
        Ok(())
    }

    fn rate(&self, chunk: usize, since: Instant) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "sizes here are far below 2^52")]
        let bytes = (self.pinned.len() * chunk) as f64;
        bytes / since.elapsed().as_secs_f64() / 1e9
    }

    fn up(&self, chunk: usize) -> Result<f64> {
        let since = Instant::now();
        for (pinned, dst_offset) in self.pinned.iter().zip((0..).step_by(chunk)) {
            let range = CopyRange { src_offset: 0, dst: &self.segment, dst_offset, len_bytes: chunk };
            self.stream.copy_to_device(pinned.lend(0..chunk)?, &[range]).map_err(|back| back.error)?;
        }
        self.stream.synchronize()?;
        Ok(self.rate(chunk, since))
    }

    /// The chunks come back to where they went up from.
    fn down(&mut self, chunk: usize) -> Result<f64> {
        let mut pending = Vec::with_capacity(self.pinned.len());
        let since = Instant::now();
        for (pinned, offset) in self.pinned.iter_mut().zip((0..).step_by(chunk)) {
            let copy = self.stream.copy_to_host(&self.segment, offset, pinned.lend_mut(0..chunk)?);
            pending.push(copy.map_err(|back| back.error)?);
        }
        self.stream.synchronize()?;
        let rate = self.rate(chunk, since);
        for copy in pending {
            drop(copy.wait().map_err(|back| back.error)?);
        }
        for (number, pinned) in (0_u64..).zip(&self.pinned) {
            let words = pinned.as_elements::<u64>()?;
            ensure!(words.iter().all(|word| *word == number), "{}: other bytes came back", self.name);
        }
        Ok(rate)
    }
}
