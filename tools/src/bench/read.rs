//! `bench read`: files through the reader into the staging ring, and no further.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use indicatif::ProgressBar;
use serde::Serialize;
use spoc_io::{
    AnonymousRegion, Extent, PlanBuilder, PlanOptions, ReadClass, ReadPlan, ReadRequest, Reader,
    ReaderOptions, WeightFile,
};

use crate::cli::BenchReadArgs;
use crate::failure::{Failure, Result};
use crate::out::Out;
use crate::{process, progress, staging, units};

#[derive(Debug, Serialize)]
struct Report {
    files: usize,
    bytes: u64,
    seconds: f64,
    gb_per_s: f64,
    cpu_seconds: f64,
    prepare_seconds: f64,
    io_path: &'static str,
    io_path_reason: String,
    chunk_bytes: u32,
    depth: u32,
    threads: u32,
    staging_bytes: u64,
    disk_wait_seconds: f64,
    /// The ring had reads to start, and none with the disk.
    disk_idle_seconds: f64,
    chunk_wait_seconds: f64,
}

/// Runs the command.
///
/// # Errors
/// What opening and reading the files says.
pub fn run(args: &BenchReadArgs, out: Out) -> Result<u8> {
    let preparing = Instant::now();
    let options = reader_options(args)?;
    let chunk_bytes = options.chunk_bytes;
    let plan = Arc::new(whole_files(&args.files, chunk_bytes)?);
    let staging_bytes = staging::budget(args.staging_bytes, 2 * u64::from(chunk_bytes), 2)?;
    let staging = usize::try_from(staging_bytes).map_err(Failure::usage)?;
    let reader = Reader::start(Arc::new(AnonymousRegion::new(staging)?), options)?;
    let prepare_seconds = preparing.elapsed().as_secs_f64();

    let bytes = plan.wanted_bytes();
    let bar = progress::bar("reading", bytes, out.is_json());
    let (start, cpu_before) = (Instant::now(), process::cpu_seconds());
    read_all(&reader, &plan, &bar)?;
    let seconds = start.elapsed().as_secs_f64();
    let cpu_seconds = process::cpu_seconds() - cpu_before;
    bar.finish_and_clear();
    for file in plan.files() {
        file.check_unchanged()?;
    }
    let did = reader.report();
    let report = Report {
        files: plan.files().len(),
        bytes,
        seconds,
        gb_per_s: units::gb_per_s(bytes, seconds),
        cpu_seconds,
        prepare_seconds,
        io_path: did.path.as_str(),
        io_path_reason: did.reason,
        chunk_bytes,
        depth: did.depth,
        threads: did.threads,
        staging_bytes,
        disk_wait_seconds: units::seconds(did.disk_wait_ns),
        disk_idle_seconds: units::seconds(did.disk_idle_ns),
        chunk_wait_seconds: units::seconds(did.chunk_wait_ns),
    };
    out.answer(&report, render);
    Ok(0)
}

fn reader_options(args: &BenchReadArgs) -> Result<ReaderOptions> {
    let mut options = ReaderOptions { mode: args.io.into(), ..ReaderOptions::default() };
    if let Some(bytes) = args.chunk_bytes {
        let fits = u32::try_from(bytes).ok().filter(|bytes| *bytes > 0 && bytes.is_multiple_of(4096));
        options.chunk_bytes = fits.ok_or_else(|| {
            Failure::usage(format_args!("--chunk-bytes {bytes}: expected a multiple of 4096 below 4 GiB"))
        })?;
    }
    if let Some(depth) = args.depth {
        options.depth = depth;
    }
    Ok(options)
}

fn whole_files(paths: &[PathBuf], chunk_bytes: u32) -> Result<ReadPlan> {
    let files =
        paths.iter().map(|path| WeightFile::open(path).map(Arc::new)).collect::<spoc_io::Result<Vec<_>>>()?;
    let mut builder = PlanBuilder::new(&files, PlanOptions { chunk_bytes, ..PlanOptions::default() });
    for (number, file) in (0..).zip(&files) {
        builder.add(number, Extent { file: number, offset: 0, len_bytes: file.len_bytes() }, 0)?;
    }
    Ok(builder.build()?)
}

/// Chunks are dropped where a load would copy them.
fn read_all(reader: &Reader, plan: &Arc<ReadPlan>, bar: &ProgressBar) -> Result<()> {
    reader.submit(ReadRequest { plan: Arc::clone(plan), class: ReadClass::Demand, token: 0 })?;
    for _ in plan.reads() {
        let completion =
            reader.completions().recv().map_err(|_| Failure::new("closed", "the reader ended early"))?;
        match completion.outcome {
            Ok(chunk) => bar.inc(chunk.len_bytes() as u64),
            Err(error) => return Err((*error).clone().into()),
        }
    }
    Ok(())
}

fn render(report: &Report) -> String {
    format!(
        "{} in {:.3} s: {:.2} GB/s, {:.3} CPU-seconds\n{} ({}); chunks of {}, {} in flight",
        units::bytes(report.bytes),
        report.seconds,
        report.gb_per_s,
        report.cpu_seconds,
        report.io_path,
        report.io_path_reason,
        units::bytes(report.chunk_bytes.into()),
        report.depth,
    )
}
