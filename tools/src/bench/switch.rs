//! `bench switch`: one model leaves the device, another comes from pinned host memory.

use std::time::Instant;

use serde::Serialize;
use spoc_cache::load::{LoadOptions, load_model};
use spoc_cache::{Pump, PumpOptions};
use spoc_driver::{CopyRange, Device, Segment, Stream, StreamOptions};
use spoc_io::{Model, OpenOptions, open_model};

use super::link::link_rate;
use super::tier::Tier;
use super::{median, spread};
use crate::cli::BenchSwitchArgs;
use crate::devices::Found;
use crate::failure::{Failure, Result};
use crate::out::Out;
use crate::units;

/// Segments of the model that comes.
const SEGMENT_BYTES: u64 = 1 << 31;
/// Longest copy: the link is at its best, and other streams get their turn.
const COPY_BYTES: u64 = 64 << 20;
/// Over the time that the link needs.
const ALLOWED_SECONDS: f64 = 0.3;

#[derive(Debug, Serialize)]
struct Report {
    backend: &'static str,
    device: String,
    /// Of the model that comes.
    bytes: u64,
    tensors: usize,
    /// Reading it into pinned memory, before.
    tier_seconds: f64,
    runs: usize,
    /// From dropping the one model to the last byte of the other.
    seconds: f64,
    spread_seconds: [f64; 2],
    /// Of that, giving memory back and taking it.
    memory_seconds: f64,
    link_gb_per_s: f64,
    /// What the link needs for the bytes, and 0.3 s.
    allowed_seconds: f64,
}

/// Runs the command.
///
/// # Errors
/// What files, host and device say.
pub fn run(args: &BenchSwitchArgs, out: Out) -> Result<u8> {
    let device = Found::for_args(&args.device)?.open(&args.device)?;
    let from = open_model(&args.from, &OpenOptions::default())?;
    let to = open_model(&args.to, &OpenOptions::default())?;
    let began = Instant::now();
    let tier = Tier::of(&device, &to)?;
    let tier_seconds = began.elapsed().as_secs_f64();
    let pump = Pump::start(&device, PumpOptions::default())?;
    let stream = device.create_stream(StreamOptions { non_blocking: true, ..StreamOptions::default() })?;
    let (mut times, mut memory_times) = (Vec::new(), Vec::new());
    for _ in 0..args.runs.max(1) {
        let leaving = load_model(&pump, &from, &LoadOptions::default())?;
        let began = Instant::now();
        drop(leaving);
        let segments = allocate(&device, tier.memory.len_bytes() as u64)?;
        memory_times.push(began.elapsed().as_secs_f64());
        copy(&stream, &tier, &segments)?;
        stream.synchronize()?;
        times.push(began.elapsed().as_secs_f64());
        check(&to, &tier, &segments)?;
    }
    let link_gb_per_s = link_rate(&device, COPY_BYTES, COPY_BYTES)?;
    let bytes = to.tensor_bytes();
    let report = Report {
        backend: device.info().backend.as_str(),
        device: device.info().name.clone(),
        bytes,
        tensors: to.tensors().len(),
        tier_seconds,
        runs: times.len(),
        seconds: median(&times),
        spread_seconds: spread(&times),
        memory_seconds: median(&memory_times),
        link_gb_per_s,
        allowed_seconds: bytes as f64 / 1e9 / link_gb_per_s + ALLOWED_SECONDS,
    };
    out.answer(&report, render);
    Ok(0)
}

/// Segments with room for `bytes`, cut where the host's copies are cut.
fn allocate(device: &Device, bytes: u64) -> Result<Vec<Segment>> {
    let starts = (0..bytes).step_by(usize::try_from(SEGMENT_BYTES).map_err(Failure::usage)?);
    let segments = starts.map(|start| device.allocate(SEGMENT_BYTES.min(bytes - start)));
    Ok(segments.collect::<spoc_driver::Result<Vec<_>>>()?)
}

/// Tensors lie on the host as they are to lie on the device: each stretch is one copy.
fn copy(stream: &Stream, tier: &Tier, segments: &[Segment]) -> Result<()> {
    let mut first = 0;
    for segment in segments {
        let bytes = segment.len_bytes();
        let range = |start: u64| -> Result<CopyRange<'_>> {
            Ok(CopyRange {
                src_offset: usize::try_from(start).map_err(Failure::usage)?,
                dst: segment,
                dst_offset: start,
                len_bytes: usize::try_from(COPY_BYTES.min(bytes - start)).map_err(Failure::usage)?,
            })
        };
        let starts = (0..bytes).step_by(usize::try_from(COPY_BYTES).map_err(Failure::usage)?);
        let ranges = starts.map(range).collect::<Result<Vec<_>>>()?;
        let end = first + usize::try_from(bytes).map_err(Failure::usage)?;
        let source = tier.memory.lend(first..end)?;
        stream.copy_to_device(source, &ranges).map_err(spoc_driver::Error::from)?;
        first = end;
    }
    Ok(())
}

/// The first bytes of the first and the last tensor are those of the file.
fn check(model: &Model, tier: &Tier, segments: &[Segment]) -> Result<()> {
    for (tensor, &(start, len)) in model.tensors().iter().zip(&tier.tensors) {
        let (number, offset) = (start / SEGMENT_BYTES, start % SEGMENT_BYTES);
        let Some(segment) = usize::try_from(number).ok().and_then(|number| segments.get(number)) else {
            continue;
        };
        let some = usize::try_from(len.min(64).min(segment.len_bytes() - offset)).map_err(Failure::usage)?;
        let (mut expected, mut found) = (vec![0; some], vec![0; some]);
        if let Some(file) = model.file_of(tensor) {
            file.read_exact_at(&mut expected, tensor.extent.offset)?;
            segment.read(offset, &mut found)?;
        }
        if expected != found {
            return Err(Failure::new(
                "mismatch",
                format_args!("tensor {} differs from its file", tensor.name),
            ));
        }
    }
    Ok(())
}

fn render(report: &Report) -> String {
    let [low, high] = report.spread_seconds;
    format!(
        "{} {}: {} in {} tensors from pinned memory after another model: {:.3} s ({low:.3} to {high:.3}), {:.3} s of it for memory; allowed {:.3} s (link {:.2} GB/s, and 0.3 s)",
        report.backend,
        report.device,
        units::bytes(report.bytes),
        report.tensors,
        report.seconds,
        report.memory_seconds,
        report.allowed_seconds,
        report.link_gb_per_s,
    )
}
