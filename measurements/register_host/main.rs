//! Question: how fast is the first copy from memory that was just registered, and what does pinning cost?
//!
//! Fifty first passes for each preparation of the memory (touched, untouched, populated), with and without memory
//! pressure, against memory that the driver allocates pinned. The preparations alternate from pass to pass.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "printing its answer is what a measurement does")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Parser;
use serde_json::json;
use spoc_driver::{
    CopyRange, Device, HostBuffer, HostMemoryOptions, PinnedHandle, Segment, Stream, StreamOptions,
};
use spoc_measurements::{device::DeviceArgs, machine, stats::Summary};

/// How fast is the first copy from memory that was just registered, and what does pinning cost?
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    device: DeviceArgs,
    /// First passes of each preparation.
    #[arg(long, default_value_t = 50)]
    passes: usize,
    /// Size of the memory in MiB.
    #[arg(long, default_value_t = 64)]
    mib: usize,
    /// Memory that the pressure walks over, in MiB; 0 leaves it out.
    #[arg(long, default_value_t = 512)]
    pressure_mib: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Preparation {
    /// Every page written before registering.
    Touched,
    /// Nothing: registering faults the pages in.
    Untouched,
    /// Faulted in when it was mapped.
    Populated,
    /// Not registered but allocated by the driver.
    Allocated,
}

const PREPARATIONS: [Preparation; 4] =
    [Preparation::Touched, Preparation::Untouched, Preparation::Populated, Preparation::Allocated];

struct Pass {
    pin_ms: f64,
    first_gb_s: f64,
    second_gb_s: f64,
    pinned: String,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let device = args.device.open()?;
    println!(
        "{}",
        json!({"machine": machine::describe(), "device": device.info().name,
               "host_register": device.capabilities().host_register.to_string(),
               "command": std::env::args().collect::<Vec<_>>()})
    );
    round(&args, &device, false)?;
    if args.pressure_mib > 0 {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let walker = scope.spawn(|| press(args.pressure_mib, &is_over));
            let outcome = round(&args, &device, true);
            is_over.store(true, Ordering::Relaxed);
            walker.join().map_err(|_| anyhow::anyhow!("the pressure panicked"))??;
            outcome
        })?;
    }
    Ok(())
}

fn round(args: &Args, device: &Device, pressed: bool) -> Result<()> {
    let stream = device.create_stream(StreamOptions::default())?;
    let segment = device.allocate((args.mib << 20) as u64)?;
    let mut passes = [const { Vec::new() }; PREPARATIONS.len()];
    for number in 0..args.passes {
        for turn in 0..PREPARATIONS.len() {
            let which = (number + turn) % PREPARATIONS.len();
            let pass = measure(args, device, &stream, &segment, PREPARATIONS[which])?;
            println!(
                "{}",
                json!({"pressure": pressed, "pass": number, "preparation": format!("{:?}", PREPARATIONS[which]),
                       "pin_ms": pass.pin_ms, "first_gb_s": pass.first_gb_s, "second_gb_s": pass.second_gb_s,
                       "pinned": pass.pinned})
            );
            passes[which].push(pass);
        }
    }
    for (preparation, passes) in PREPARATIONS.iter().zip(&passes) {
        let of = |field: fn(&Pass) -> f64| {
            Summary::of(&passes.iter().map(field).collect::<Vec<_>>()).map_or_else(String::new, |summary| {
                format!("{:.2} / {:.2} / {:.2}", summary.min, summary.median, summary.max)
            })
        };
        println!(
            "pressure {pressed}, {preparation:?}: pin {} ms, first copy {} GB/s, second {} GB/s (min / median / max)",
            of(|pass| pass.pin_ms),
            of(|pass| pass.first_gb_s),
            of(|pass| pass.second_gb_s)
        );
    }
    Ok(())
}

fn measure(
    args: &Args,
    device: &Device,
    stream: &Stream,
    segment: &Segment,
    preparation: Preparation,
) -> Result<Pass> {
    let len_bytes = args.mib << 20;
    let options =
        HostMemoryOptions { populate: preparation == Preparation::Populated, ..HostMemoryOptions::default() };
    let (mut pinned, pin_ms) = if preparation == Preparation::Allocated {
        timed(|| Ok(PinnedHandle::alloc(device, len_bytes as u64)?))?
    } else {
        let mut buffer = HostBuffer::allocate(len_bytes, options)?;
        if preparation == Preparation::Touched {
            buffer.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        }
        timed(|| PinnedHandle::register(device, buffer).map_err(|refused| refused.error.into()))?
    };
    let status = pinned_lines();
    let first_gb_s = copy(stream, segment, &pinned)?;
    let second_gb_s = copy(stream, segment, &pinned)?;
    pinned.release()?;
    Ok(Pass { pin_ms, first_gb_s, second_gb_s, pinned: status })
}

fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let begin = Instant::now();
    let value = work()?;
    Ok((value, begin.elapsed().as_secs_f64() * 1e3))
}

/// GB/s of one copy of all of it.
fn copy(stream: &Stream, segment: &Segment, pinned: &PinnedHandle) -> Result<f64> {
    let len_bytes = pinned.len_bytes();
    let range = CopyRange { src_offset: 0, dst: segment, dst_offset: 0, len_bytes };
    let begin = Instant::now();
    stream.copy_to_device(pinned.lend(0..len_bytes)?, &[range])?;
    stream.synchronize()?;
    #[allow(clippy::cast_precision_loss, reason = "sizes here are far below 2^52")]
    Ok(len_bytes as f64 / begin.elapsed().as_secs_f64() / 1e9)
}

/// What the kernel counts as pinned or locked.
fn pinned_lines() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let of = |name: &str| {
        status.lines().find(|line| line.starts_with(name)).unwrap_or("?").replace(char::is_whitespace, "")
    };
    format!("{} {}", of("VmPin"), of("VmLck"))
}

/// Walks over memory until told that it is over.
fn press(mib: usize, is_over: &AtomicBool) -> Result<()> {
    let mut memory = HostBuffer::allocate(mib << 20, HostMemoryOptions::default()).context("pressing")?;
    while !is_over.load(Ordering::Relaxed) {
        memory.iter_mut().step_by(64).for_each(|byte| *byte = byte.wrapping_add(1));
    }
    Ok(())
}
