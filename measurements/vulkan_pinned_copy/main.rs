//! Question: what does pinned memory gain over ordinary memory in copies of 64 MiB, in each direction?
//!
//! Four ways in turns: up and down, from and to memory that the driver allocated pinned, and from and to ordinary
//! memory, which Vulkan stages. Any backend runs it; the name is that of the page's own measurement.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "printing its answer is what a measurement does")]

use std::time::Instant;

use anyhow::Result;
use clap::Parser;
use serde_json::json;
use spoc_driver::{
    CopyRange, Device, HostBuffer, HostMemoryOptions, HostSink, HostSource, PinnedHandle, Returned, Segment,
    Stream, StreamOptions,
};
use spoc_measurements::{device::DeviceArgs, machine, stats::Summary};

/// What does pinned memory gain over ordinary memory in copies of 64 MiB, in each direction?
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    device: DeviceArgs,
    /// Copies of each way.
    #[arg(long, default_value_t = 15)]
    passes: usize,
    /// Size of a copy in MiB.
    #[arg(long, default_value_t = 64)]
    mib: usize,
}

const WAYS: [&str; 4] = ["up pinned", "up ordinary", "down pinned", "down ordinary"];

struct Bench {
    stream: Stream,
    segment: Segment,
    pinned: PinnedHandle,
    ordinary: Option<HostBuffer>,
    len_bytes: usize,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let device = args.device.open()?;
    println!(
        "{}",
        json!({"machine": machine::describe(), "device": device.info().name,
               "command": std::env::args().collect::<Vec<_>>()})
    );
    let mut bench = Bench::new(&device, args.mib << 20)?;
    let mut rates = [const { Vec::new() }; WAYS.len()];
    // The first round warms up: lazy set-up is not the link.
    for pass in 0..=args.passes {
        for turn in 0..WAYS.len() {
            let way = (pass + turn) % WAYS.len();
            let gb_s = bench.copy(way)?;
            if pass > 0 {
                println!("{}", json!({"pass": pass, "way": WAYS[way], "gb_s": gb_s}));
                rates[way].push(gb_s);
            }
        }
    }
    for (way, rates) in WAYS.iter().zip(&rates) {
        println!("{way:14} GB/s {}", Summary::of(rates).map_or_else(String::new, |s| s.to_string()));
    }
    for (way, (pinned, ordinary)) in [("up", (&rates[0], &rates[1])), ("down", (&rates[2], &rates[3]))] {
        let ratios: Vec<f64> = pinned.iter().zip(ordinary).map(|(p, o)| p / o).collect();
        println!(
            "{way:4} pinned / ordinary {}",
            Summary::of(&ratios).map_or_else(String::new, |s| s.to_string())
        );
    }
    Ok(())
}

impl Bench {
    fn new(device: &Device, len_bytes: usize) -> Result<Self> {
        Ok(Self {
            stream: device.create_stream(StreamOptions::default())?,
            segment: device.allocate(len_bytes as u64)?,
            pinned: PinnedHandle::alloc(device, len_bytes as u64)?,
            ordinary: Some(HostBuffer::allocate(len_bytes, HostMemoryOptions::default())?),
            len_bytes,
        })
    }

    /// GB/s of one copy.
    fn copy(&mut self, way: usize) -> Result<f64> {
        let everything = 0..self.len_bytes;
        let begin = Instant::now();
        match way {
            0 => self.up(self.pinned.lend(everything)?)?,
            2 => {
                let target = self.pinned.lend_mut(everything)?;
                drop(self.down(target)?);
            }
            _ => {
                let Some(buffer) = self.ordinary.take() else { return Ok(0.0) };
                let buffer = if way == 3 { self.down(buffer)? } else { self.up_and_back(buffer)? };
                self.ordinary = Some(buffer);
            }
        }
        #[allow(clippy::cast_precision_loss, reason = "sizes here are far below 2^52")]
        Ok(self.len_bytes as f64 / begin.elapsed().as_secs_f64() / 1e9)
    }

    fn range(&self) -> CopyRange<'_> {
        CopyRange { src_offset: 0, dst: &self.segment, dst_offset: 0, len_bytes: self.len_bytes }
    }

    fn up<S: HostSource>(&self, source: S) -> Result<()> {
        self.stream
            .copy_to_device(source, &[self.range()])
            .map_err(|returned: Returned<S>| returned.error)?;
        Ok(self.stream.synchronize()?)
    }

    /// Shared for the copy, its own again afterwards.
    fn up_and_back(&self, buffer: HostBuffer) -> Result<HostBuffer> {
        let shared = buffer.share();
        self.up(shared.clone())?;
        shared.unshare().map_err(|_| anyhow::anyhow!("the copy still holds its source"))
    }

    fn down<D: HostSink>(&self, target: D) -> Result<D> {
        let pending =
            self.stream.copy_to_host(&self.segment, 0, target).map_err(|returned| returned.error)?;
        pending.wait().map_err(|returned| returned.error.into())
    }
}
