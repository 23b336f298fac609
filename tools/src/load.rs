//! `spoc-loader load`: a model into device memory, with a report of where the time went.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use serde::Serialize;
use spoc_cache::load::{LoadOptions, Loaded, load_model};
use spoc_cache::stats::Counters;
use spoc_cache::{Pump, PumpOptions, Stages};
use spoc_driver::Device;
use spoc_io::{BlockDigests, Manifest, Model, OpenOptions, ReaderOptions, ReaderReport, open_model};

use crate::cli::{Io, LoadArgs};
use crate::devices::Found;
use crate::failure::{Failure, Result};
use crate::out::Out;
use crate::process::{self, Interrupt};
use crate::{progress, publish, staging, units};

/// What a load did. Seconds and bytes; `seconds` is streaming alone.
#[derive(Debug, Serialize)]
pub struct Report {
    model: String,
    backend: &'static str,
    device: String,
    device_uuid: String,
    tensors: usize,
    files: usize,
    bytes: u64,
    seconds: f64,
    gb_per_s: f64,
    /// Of the whole process while streaming.
    cpu_seconds: f64,
    cpu_parts: CpuParts,
    /// Ring, reader and device memory.
    prepare_seconds: f64,
    /// From opening the model to its last byte in device memory.
    total_seconds: f64,
    staging_bytes: usize,
    chunk_bytes: usize,
    /// How the ring is known to the device.
    ring: &'static str,
    /// Bytes that were read into device memory itself, which then is the host's.
    in_place_bytes: u64,
    /// Why the others, or all, were copied there.
    #[serde(skip_serializing_if = "Option::is_none")]
    copied_because: Option<&'static str>,
    #[serde(flatten)]
    path: PathReport,
    stages: StagesReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<Check>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verify: Option<Verified>,
}

/// What was compared with a manifest on its way; a difference is a failure and no report.
#[derive(Debug, Serialize)]
struct Verified {
    digest: &'static str,
    /// Bytes compared.
    bytes: u64,
}

/// Where the processor's time went, in seconds.
#[derive(Debug, Serialize)]
struct CpuParts {
    /// The ring thread and the threads that call pread.
    reader_seconds: f64,
    /// The copy thread.
    pump_seconds: f64,
    /// The threads that compute digests for `--verify`.
    check_seconds: f64,
    /// The native device's streams, which copy with the processor; 0 where the device has an engine of its own.
    device_seconds: f64,
}

impl CpuParts {
    /// Of the threads that serve the pump of this load, which are still alive.
    fn now() -> CpuParts {
        CpuParts {
            reader_seconds: process::thread_cpu_seconds(&["spoc-ring", "spoc-read"]),
            pump_seconds: process::thread_cpu_seconds(&["spoc-pump"]),
            check_seconds: process::thread_cpu_seconds(&["spoc-check"]),
            device_seconds: process::thread_cpu_seconds(&["spoc-native"]),
        }
    }
}

/// Which way the bytes came.
#[derive(Debug, Serialize)]
pub struct PathReport {
    io_path: &'static str,
    io_path_reason: String,
    /// Every decision, in order, with the file it was taken for.
    io_decisions: Vec<Decision>,
}

#[derive(Debug, Serialize)]
struct Decision {
    path: &'static str,
    reason: String,
    file: Option<String>,
}

impl PathReport {
    /// From what the reader says.
    pub fn new(reader: &ReaderReport) -> PathReport {
        let decisions = reader.reasons.iter().map(|taken| Decision {
            path: taken.path.as_str(),
            reason: taken.reason.clone(),
            file: taken.file.as_deref().map(|file| file.to_string_lossy().into_owned()),
        });
        PathReport {
            io_path: reader.path.as_str(),
            io_path_reason: reader.reason.clone(),
            io_decisions: decisions.collect(),
        }
    }

    /// The way that most bytes came, and why.
    pub fn line(&self) -> String {
        format!("{}: {}", self.io_path, self.io_path_reason)
    }
}

/// What each stage did and how long it waited for the next one.
#[derive(Debug, Serialize)]
pub struct StagesReport {
    read_bytes: u64,
    copied_bytes: u64,
    chunks: u64,
    copies: u64,
    /// The pump had nothing to copy: the disk is slower.
    wait_reads_seconds: f64,
    /// The pump waited for copies to run: the link is slower.
    wait_copies_seconds: f64,
    /// The reader waited for a free chunk: so is the link, or the ring is small.
    wait_chunks_seconds: f64,
    enqueue_seconds: f64,
    bottleneck: &'static str,
}

impl StagesReport {
    /// From what the pump counted.
    pub fn new(stages: &Stages) -> StagesReport {
        StagesReport {
            read_bytes: stages.read_bytes,
            copied_bytes: stages.copied_bytes,
            chunks: stages.chunks,
            copies: stages.copies,
            wait_reads_seconds: units::seconds(stages.wait_reads_ns),
            wait_copies_seconds: units::seconds(stages.wait_copies_ns),
            wait_chunks_seconds: units::seconds(stages.wait_chunks_ns),
            enqueue_seconds: units::seconds(stages.enqueue_ns),
            bottleneck: stages.bottleneck(),
        }
    }

    /// One line for people.
    pub fn line(&self) -> String {
        format!(
            "for reads {:.3} s, for copies {:.3} s, for a free chunk {:.3} s, enqueuing {:.3} s; the slowest stage is {}",
            self.wait_reads_seconds,
            self.wait_copies_seconds,
            self.wait_chunks_seconds,
            self.enqueue_seconds,
            self.bottleneck
        )
    }
}

/// What reading back found; a difference is a failure and no report.
#[derive(Debug, Serialize)]
pub struct Check {
    /// Always true.
    pub equal: bool,
    /// Bytes compared.
    pub bytes: u64,
    /// How long it took.
    pub seconds: f64,
}

/// Runs the command.
///
/// # Errors
/// What opening, reading, the device or the check says.
pub fn run(args: &LoadArgs, out: Out) -> Result<u8> {
    if let Some(list) = &args.devices {
        return crate::placed::run(args, list, out);
    }
    if args.placement.is_set() {
        return Err(Failure::usage("--map, --layout and --ranks need --devices"));
    }
    let interrupt = Interrupt::watch();
    let start = Instant::now();
    let model = open_model(&args.model, &OpenOptions::default())?;
    let device = Found::for_args(&args.device)?.open(&args.device)?;
    let staging_bytes = staging::budget(args.staging_bytes, staging::SMALLEST_BYTES, 2)?;
    let verify = if args.verify || args.manifest.is_some() {
        let path = args.manifest.clone().unwrap_or_else(|| Manifest::default_path(&model));
        Some(Manifest::read(&path, &model)?.expectations(&model)?)
    } else {
        None
    };
    let counters = publish::counters(0, &interrupt)?;
    let mut options = pump_options(args.io, staging_bytes, counters)?;
    options.reader.check_threads = if verify.is_some() { ReaderOptions::CHECK_THREADS } else { 0 };
    if let Some(deadline) = args.read_deadline {
        options.reader.read_deadline = Some(deadline);
        // Who does not wait for a read does not want to wait for its end either.
        options.reader.drain_timeout = options.reader.drain_timeout.min(deadline);
    }
    let pump = Pump::start(&device, options)?;
    let what = What { tensors: args.tensors.clone(), verify };
    let (loaded, mut report) = load(&pump, &model, what, start, out)?;
    if args.check {
        report.check = Some(check(&loaded, &model)?);
    }
    out.answer(&report, render);
    Ok(0)
}

/// A pump with this budget, counting on this page.
///
/// # Errors
/// `staging_too_small`, and what host and device say.
pub fn start_pump(device: &Device, io: Io, staging_bytes: u64, counters: Counters) -> Result<Arc<Pump>> {
    Ok(Pump::start(device, pump_options(io, staging_bytes, counters)?)?)
}

fn pump_options(io: Io, staging_bytes: u64, counters: Counters) -> Result<PumpOptions> {
    let staging = usize::try_from(staging_bytes).map_err(Failure::usage)?;
    Ok(PumpOptions { counters: Some(counters), ..PumpOptions::new(io.into(), staging)? })
}

/// What of a model to load.
#[derive(Debug, Default)]
pub struct What {
    /// Only the tensors that match.
    pub tensors: Option<String>,
    /// What their bytes must be.
    pub verify: Option<Arc<BlockDigests>>,
}

/// Loads `model`, or the tensors of it that match, with a bar for people; `start` is when the command began.
///
/// # Errors
/// What the cache says.
pub fn load(
    pump: &Arc<Pump>,
    model: &Model,
    what: What,
    start: Instant,
    out: Out,
) -> Result<(Loaded, Report)> {
    let bar = progress::bar("loading", 0, out.is_json());
    let cpu_at_first_byte = Arc::new(OnceLock::new());
    let progress = {
        let (bar, first) = (bar.clone(), Arc::clone(&cpu_at_first_byte));
        move |copied, bytes| {
            // Device memory is there and the first chunk has arrived: what the processor does from here on is streaming.
            first.get_or_init(process::cpu_seconds);
            bar.set_length(bytes);
            bar.set_position(copied);
        }
    };
    let What { tensors, verify } = what;
    let digest = verify.as_ref().map(|digests| digests.kind().as_str());
    let options =
        LoadOptions { tensors, verify, progress: Some(Arc::new(progress)), ..LoadOptions::default() };
    let loaded = load_model(pump, model, &options)?;
    let total_seconds = start.elapsed().as_secs_f64();
    let (cpu_now, cpu_parts) = (process::cpu_seconds(), CpuParts::now());
    bar.finish_and_clear();
    let did = &loaded.report;
    let info = pump.device().info();
    let report = Report {
        model: shown(model.root()),
        backend: info.backend.as_str(),
        device: info.name.clone(),
        device_uuid: info.uuid.to_string(),
        tensors: loaded.placements.len(),
        files: model.files().len(),
        bytes: did.bytes,
        seconds: did.stream_time.as_secs_f64(),
        gb_per_s: did.gb_per_s(),
        cpu_seconds: cpu_at_first_byte.get().map_or(0.0, |before| cpu_now - before),
        cpu_parts,
        prepare_seconds: (pump.prepare_time() + did.prepare_time).as_secs_f64(),
        total_seconds,
        staging_bytes: pump.ring().bytes,
        chunk_bytes: pump.ring().chunk_bytes,
        ring: pump.ring().rung.as_str(),
        in_place_bytes: did.reader.in_place_bytes,
        copied_because: did.copied_because,
        path: PathReport::new(&did.reader),
        stages: StagesReport::new(&did.stages),
        check: None,
        verify: digest.map(|digest| Verified { digest, bytes: did.reader.checked_bytes }),
    };
    Ok((loaded, report))
}

/// Reads everything back from the device and compares it with the files.
///
/// # Errors
/// `mismatch` for the first byte that differs, and what either side says.
pub fn check(loaded: &Loaded, model: &Model) -> Result<Check> {
    let start = Instant::now();
    let bytes = loaded.verify(model)?;
    Ok(Check { equal: true, bytes, seconds: start.elapsed().as_secs_f64() })
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Whether reads ended in device memory itself, and if not, why.
fn where_to(report: &Report) -> String {
    let in_place = units::bytes(report.in_place_bytes);
    match report.copied_because {
        Some(reason) => format!("copied to the device from the ring: {reason}"),
        None if report.in_place_bytes >= report.bytes => {
            format!("{in_place} were read into device memory itself, past the ring")
        }
        None => format!(
            "{in_place} were read into device memory itself, past the ring; the rest was copied: its reads did not fit there"
        ),
    }
}

/// The report for people.
pub fn render(report: &Report) -> String {
    let mut text = format!(
        "loaded   {} in {} tensors to {} ({}): {:.3} s, {:.2} GB/s",
        units::bytes(report.bytes),
        report.tensors,
        report.backend,
        report.device,
        report.seconds,
        report.gb_per_s,
    );
    let mut line = |name: &str, what: String| text.push_str(&format!("\n{name:8} {what}"));
    line("path", report.path.line());
    line("memory", where_to(report));
    line("waiting", report.stages.line());
    line(
        "cost",
        format!(
            "{:.3} CPU-seconds ({:.3} of them the device's), ring of {} ({} with the device), {:.3} s of preparation, {:.3} s in all",
            report.cpu_seconds,
            report.cpu_parts.device_seconds,
            units::bytes(report.staging_bytes as u64),
            report.ring,
            report.prepare_seconds,
            report.total_seconds
        ),
    );
    if let Some(verified) = &report.verify {
        let bytes = units::bytes(verified.bytes);
        let (digest, seconds) = (verified.digest, report.cpu_parts.check_seconds);
        line(
            "verify",
            format!("{bytes} agree with the manifest ({digest}), {seconds:.3} CPU-seconds of digests"),
        );
    }
    if let Some(check) = &report.check {
        line(
            "check",
            format!("{} read back and equal to the files, {:.3} s", units::bytes(check.bytes), check.seconds),
        );
    }
    text
}
