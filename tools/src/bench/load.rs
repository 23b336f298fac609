//! `bench load`: a model end to end, against what its reader and the link reach alone, and when its first layer is there.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use spoc_cache::load::{LoadOptions, LoadReport, load_model};
use spoc_cache::{CacheOptions, Catalogue, GroupRules, Pump, PumpOptions, SlotCache};
use spoc_driver::{Device, StreamOptions};
use spoc_io::{Model, OpenOptions, bench_read, open_model};

use super::link::link_rate;
use super::{median, spread};
use crate::cli::BenchLoadArgs;
use crate::devices::Found;
use crate::failure::{Failure, Result};
use crate::out::Out;
use crate::{process, staging, units};

#[derive(Debug, Serialize)]
struct Report {
    model: String,
    backend: &'static str,
    device: String,
    tensors: usize,
    files: usize,
    bytes: u64,
    runs: usize,
    /// From opening the model to its last byte in device memory, the ring taken and pinned on the way; the device's
    /// context exists. The median run.
    seconds: f64,
    gb_per_s: f64,
    spread_gb_per_s: [f64; 2],
    /// While reads and copies run, without preparation.
    stream_gb_per_s: f64,
    /// Ring, reader and threads.
    start_seconds: f64,
    /// Planning, and device memory.
    prepare_seconds: f64,
    cpu_seconds: f64,
    cpu_seconds_per_10_gb: f64,
    chunk_bytes: usize,
    staging_bytes: usize,
    threads: u32,
    ring: &'static str,
    io_path: &'static str,
    chunks: u64,
    copies: u64,
    /// Time of the copy thread for each chunk: merging, enqueuing, recording.
    enqueue_us: f64,
    bottleneck: &'static str,
    wait_reads_seconds: f64,
    wait_copies_seconds: f64,
    wait_chunks_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ceilings: Option<Ceilings>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_layer: Option<FirstLayer>,
}

/// What the parts reach alone.
#[derive(Debug, Serialize)]
struct Ceilings {
    /// The reader, whose chunks nobody copies.
    reader_gb_per_s: f64,
    /// The link, with copies of a chunk.
    link_gb_per_s: f64,
    /// The load's streaming over the slower of the two.
    ratio: f64,
}

/// The first layer in a slot, from opening the model on.
#[derive(Debug, Serialize)]
struct FirstLayer {
    group: String,
    bytes: u64,
    milliseconds: f64,
    spread_milliseconds: [f64; 2],
}

/// One run.
struct Run {
    seconds: f64,
    start_seconds: f64,
    cpu_seconds: f64,
    load: LoadReport,
    tensors: usize,
    files: usize,
    ring: &'static str,
    chunk_bytes: usize,
    staging_bytes: usize,
}

/// Runs the command.
///
/// # Errors
/// What opening, reading and the device say.
pub fn run(args: &BenchLoadArgs, out: Out) -> Result<u8> {
    let device = Found::for_args(&args.device)?.open(&args.device)?;
    let options = pump_options(args)?;
    let runs = args.runs.max(1);
    let mut all = (0..runs).map(|_| once(args, &device, &options)).collect::<Result<Vec<_>>>()?;
    let ceilings = if args.quick { None } else { Some(ceilings(args, &device, &options)?) };
    let first_layer = if args.quick { None } else { first_layers(args, &device, &options, runs)? };
    all.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let report = report(args, &device, &all, ceilings, first_layer);
    out.answer(&report, render);
    Ok(0)
}

/// As `load` would choose them, unless the arguments say otherwise.
pub(super) fn pump_options(args: &BenchLoadArgs) -> Result<PumpOptions> {
    let staging_bytes = staging::budget(args.staging_bytes, staging::SMALLEST_BYTES, 2)?;
    let mut options =
        PumpOptions::new(args.io.into(), usize::try_from(staging_bytes).map_err(Failure::usage)?)?;
    if let Some(bytes) = args.chunk_bytes {
        let fits = u32::try_from(bytes).ok().filter(|bytes| *bytes > 0 && bytes.is_multiple_of(4096));
        options.reader.chunk_bytes = fits.ok_or_else(|| {
            Failure::usage(format_args!("--chunk-bytes {bytes}: expected a multiple of 4096 below 4 GiB"))
        })?;
    }
    options.reader.threads = args.threads.unwrap_or(options.reader.threads);
    options.reader.depth = args.depth.unwrap_or(options.reader.depth);
    Ok(options)
}

/// A pump, and beside its start the opened model.
fn start(path: &Path, device: &Device, options: &PumpOptions) -> Result<(Arc<Pump>, Model)> {
    std::thread::scope(|scope| {
        let model = scope.spawn(|| {
            let began = Instant::now();
            let model = open_model(path, &OpenOptions::default());
            tracing::debug!(elapsed_us = began.elapsed().as_micros(), "the model is open");
            model
        });
        let pump = Pump::start(device, options.clone())?;
        let model =
            model.join().map_err(|_| Failure::new("closed", "the thread that opens the model ended"))?;
        Ok((pump, model?))
    })
}

fn once(args: &BenchLoadArgs, device: &Device, options: &PumpOptions) -> Result<Run> {
    let (began, cpu) = (Instant::now(), process::cpu_seconds());
    let (pump, model) = start(&args.model, device, options)?;
    let loaded = load_model(&pump, &model, &LoadOptions::default())?;
    let (seconds, cpu_seconds) = (began.elapsed().as_secs_f64(), process::cpu_seconds() - cpu);
    if args.check {
        loaded.verify(&model)?;
    }
    Ok(Run {
        seconds,
        start_seconds: pump.prepare_time().as_secs_f64(),
        cpu_seconds,
        tensors: loaded.placements.len(),
        files: model.files().len(),
        ring: pump.ring().rung.as_str(),
        chunk_bytes: pump.ring().chunk_bytes,
        staging_bytes: pump.ring().bytes,
        load: loaded.report,
    })
}

fn ceilings(args: &BenchLoadArgs, device: &Device, options: &PumpOptions) -> Result<Ceilings> {
    let model = open_model(&args.model, &OpenOptions::default())?;
    let files: Vec<_> = model.files().iter().map(|file| file.path().to_path_buf()).collect();
    let mut reads = Vec::new();
    for _ in 0..args.runs.max(1) {
        let read = bench_read(&files, options.staging_bytes, options.reader.clone())?;
        reads.push(read.gb_per_s());
    }
    let reader_gb_per_s = median(&reads);
    let link_gb_per_s =
        link_rate(device, options.staging_bytes as u64, u64::from(options.reader.chunk_bytes))?;
    Ok(Ceilings { reader_gb_per_s, link_gb_per_s, ratio: 0.0 })
}

/// A model without layers, or one whose layers are wider than a slot may be, has none.
fn first_layers(
    args: &BenchLoadArgs,
    device: &Device,
    options: &PumpOptions,
    runs: usize,
) -> Result<Option<FirstLayer>> {
    let model = open_model(&args.model, &OpenOptions::default())?;
    let catalogue = Catalogue::from_model(&model, &GroupRules::default())?;
    let Some(number) = catalogue.groups().iter().position(|group| group.layer == Some(0)) else {
        return Ok(None);
    };
    let group = &catalogue.groups()[number];
    let limits = device.limits();
    if catalogue.widest_slot_bytes() > spoc_cache::arena::Geometry::segment_bytes(limits) {
        return Ok(None);
    }
    let mut times = Vec::new();
    for _ in 0..runs {
        times.push(first_layer(&args.model, device, options, number)? * 1e3);
    }
    Ok(Some(FirstLayer {
        group: group.name.clone(),
        bytes: group.tensor_bytes,
        milliseconds: median(&times),
        spread_milliseconds: spread(&times),
    }))
}

/// Everything anew: ring, reader, model, slots. Seconds until the layer's last byte is in its slot.
fn first_layer(path: &Path, device: &Device, options: &PumpOptions, group: usize) -> Result<f64> {
    let began = Instant::now();
    let (pump, model) = start(path, device, options)?;
    let catalogue = Arc::new(Catalogue::from_model(&model, &GroupRules::default())?);
    let cache = SlotCache::new(&pump, CacheOptions::for_catalogue(&catalogue, 1))?;
    let keys = cache.keys(cache.register(Arc::clone(&catalogue))?);
    let stream = device.create_stream(StreamOptions { non_blocking: true, ..StreamOptions::default() })?;
    let key =
        keys.get(group).ok_or_else(|| Failure::new("no_such_group", format_args!("no group {group}")))?;
    let lease = cache.wait_acquire(&[*key], &stream)?;
    stream.synchronize()?;
    let seconds = began.elapsed().as_secs_f64();
    lease.release(&[&stream])?;
    Ok(seconds)
}

fn report(
    args: &BenchLoadArgs,
    device: &Device,
    sorted: &[Run],
    ceilings: Option<Ceilings>,
    first_layer: Option<FirstLayer>,
) -> Report {
    let run = &sorted[(sorted.len() - 1) / 2];
    let rates: Vec<f64> = sorted.iter().map(|run| units::gb_per_s(run.load.bytes, run.seconds)).collect();
    let (stages, bytes) = (&run.load.stages, run.load.bytes);
    let stream_gb_per_s = run.load.gb_per_s();
    let ceilings = ceilings.map(|parts| Ceilings {
        ratio: stream_gb_per_s / parts.reader_gb_per_s.min(parts.link_gb_per_s),
        ..parts
    });
    Report {
        model: args.model.to_string_lossy().into_owned(),
        backend: device.info().backend.as_str(),
        device: device.info().name.clone(),
        tensors: run.tensors,
        files: run.files,
        bytes,
        runs: sorted.len(),
        seconds: run.seconds,
        gb_per_s: units::gb_per_s(bytes, run.seconds),
        spread_gb_per_s: spread(&rates),
        stream_gb_per_s,
        start_seconds: run.start_seconds,
        prepare_seconds: run.load.prepare_time.as_secs_f64(),
        cpu_seconds: run.cpu_seconds,
        cpu_seconds_per_10_gb: run.cpu_seconds / (bytes.max(1) as f64 / 1e10),
        chunk_bytes: run.chunk_bytes,
        staging_bytes: run.staging_bytes,
        threads: run.load.reader.threads,
        ring: run.ring,
        io_path: run.load.reader.path.as_str(),
        chunks: stages.chunks,
        copies: stages.copies,
        enqueue_us: stages.enqueue_ns as f64 / 1e3 / stages.chunks.max(1) as f64,
        bottleneck: stages.bottleneck(),
        wait_reads_seconds: units::seconds(stages.wait_reads_ns),
        wait_copies_seconds: units::seconds(stages.wait_copies_ns),
        wait_chunks_seconds: units::seconds(stages.wait_chunks_ns),
        ceilings,
        first_layer,
    }
}

fn render(report: &Report) -> String {
    let [low, high] = report.spread_gb_per_s;
    let mut text = format!(
        "{} in {} tensors to {} ({}): {:.3} s, {:.2} GB/s ({low:.2} to {high:.2}) end to end, {:.2} GB/s streaming",
        units::bytes(report.bytes),
        report.tensors,
        report.backend,
        report.device,
        report.seconds,
        report.gb_per_s,
        report.stream_gb_per_s,
    );
    let mut line = |what: String| text.push_str(&format!("\n{what}"));
    line(format!(
        "{}; {} chunks of {} ({} ring), {} copies, {:.2} µs of the copy thread a chunk; the slowest stage is {}",
        report.io_path,
        report.chunks,
        units::bytes(report.chunk_bytes as u64),
        report.ring,
        report.copies,
        report.enqueue_us,
        report.bottleneck,
    ));
    line(format!(
        "{:.2} CPU-seconds for 10 GB; ring and threads {:.1} ms, plan and device memory {:.1} ms",
        report.cpu_seconds_per_10_gb,
        report.start_seconds * 1e3,
        report.prepare_seconds * 1e3,
    ));
    if let Some(parts) = &report.ceilings {
        line(format!(
            "the reader alone {:.2} GB/s, the link {:.2} GB/s: streaming reaches {:.3} of the slower",
            parts.reader_gb_per_s, parts.link_gb_per_s, parts.ratio
        ));
    }
    if let Some(first) = &report.first_layer {
        let [low, high] = first.spread_milliseconds;
        line(format!(
            "{} ({}) in its slot {:.1} ms ({low:.1} to {high:.1}) after opening",
            first.group,
            units::bytes(first.bytes),
            first.milliseconds,
        ));
    }
    text
}
