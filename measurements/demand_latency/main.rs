//! Question: how long does a demand wait behind a prefetch?
//!
//! A demand read of 16 MiB, in turns: on a rested disk; on a disk that is idle but has just worked; and while 1 GiB of
//! prefetch is queued and under way. All reads are direct, so the page cache has no say. The second is what the third
//! is compared with: the limit hands bytes out ten times a second, and a disk that rested has a tenth of a second's
//! worth saved up, which is more than the demand.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "printing its answer is what a measurement does")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use serde_json::json;
use spoc_io::{
    AnonymousRegion, Extent, IoMode, PlanBuilder, PlanOptions, ReadClass, ReadPlan, ReadRequest, Reader,
    ReaderOptions, WeightFile,
};
use spoc_measurements::{cold, machine, stats::Summary};

/// How long does a demand wait behind a prefetch?
#[derive(Debug, Parser)]
struct Args {
    /// A file of at least 1 GiB and 32 MiB on the disk in question.
    file: PathBuf,
    /// Rounds; in each, one demand on the idle disk and one behind the prefetch.
    #[arg(long, default_value_t = 50)]
    rounds: u32,
    /// Holds the disk to this many bytes a second (cgroup v1, root). 0 leaves it alone.
    #[arg(long, default_value_t = 400_000_000)]
    throttle: u64,
    /// How the reader reads: direct (io_uring) or pread.
    #[arg(long, default_value = "direct")]
    mode: IoMode,
    /// Set by the program for its own child, inside the limit.
    #[arg(long, hide = true)]
    inside: bool,
}

const DEMAND_BYTES: u64 = 16 << 20;
const PREFETCH_BYTES: u64 = 1 << 30;
const DEMAND: u64 = 1;
const PREFETCH: u64 = 2;
/// Reads of the prefetch that complete before the demand comes, at least.
const UNDER_WAY: usize = 40;
/// Demands of a round, whose mean counts: they come at moments spread over the time between two of the limit's
/// handouts. One alone takes either what the disk needs or that time, and a median of such says nothing.
const MOMENTS: usize = 4;
/// Reads between two moments: a quarter of a handout of 40 MB.
const MOMENT_READS: usize = 10;
/// Between two parts, so that neither lives on what the limit saved up or owes.
const PAUSE: Duration = Duration::from_millis(250);

fn main() -> Result<()> {
    let args = Args::parse();
    if args.throttle == 0 || args.inside {
        return measure(&args);
    }
    println!("{}", json!({"machine": machine::describe(), "command": std::env::args().collect::<Vec<_>>()}));
    let throttle = cold::Throttle::new(&args.file, args.throttle)?;
    let mut command = throttle.command(&std::env::current_exe()?);
    let status = command.args(std::env::args_os().skip(1)).arg("--inside").status()?;
    if !status.success() {
        bail!("the measurement inside the limit failed");
    }
    Ok(())
}

#[allow(clippy::cast_precision_loss, reason = "four")]
fn measure(args: &Args) -> Result<()> {
    let file = Arc::new(WeightFile::open(&args.file)?);
    let options = ReaderOptions { mode: args.mode, ..ReaderOptions::default() };
    let reader = Reader::start(Arc::new(AnonymousRegion::new(64 << 20)?), options)?;
    let room =
        (file.len_bytes() - DEMAND_BYTES).checked_sub(PREFETCH_BYTES).context("the file is too short")?;
    let prefetch = plan(&file, 0, PREFETCH_BYTES)?;
    let mut times = [const { Vec::new() }; 3];
    for round in 0..args.rounds {
        // Another place each time: the disk, or its host, may keep what it has just read.
        let place = u64::from(round) * (1 << 20) % room.max(1);
        let demanded = plan(&file, PREFETCH_BYTES + place, DEMAND_BYTES)?;
        let mut sums = [0.0; 3];
        for moment in 0..MOMENTS {
            let under_way = UNDER_WAY + round as usize % MOMENT_READS + moment * MOMENT_READS;
            std::thread::sleep(PAUSE);
            sums[0] += demand(&reader, &demanded, &mut 0)?;
            std::thread::sleep(PAUSE);
            let work = plan(&file, 0, (under_way as u64) << 20)?;
            submit(&reader, &work, ReadClass::Prefetch, PREFETCH)?;
            take(&reader, under_way)?;
            sums[1] += demand(&reader, &demanded, &mut 0)?;
            std::thread::sleep(PAUSE);
            sums[2] += demand_behind(&reader, &demanded, &prefetch, under_way)?;
        }
        let [rested, idle, behind] = sums.map(|sum| sum / MOMENTS as f64);
        println!("{}", json!({"round": round, "rested_ms": rested, "idle_ms": idle, "behind_ms": behind}));
        times.iter_mut().zip([rested, idle, behind]).for_each(|(all, one)| all.push(one));
    }
    println!("path {}: {}", reader.report().path, reader.report().reason);
    for (name, values) in ["rested disk ms", "idle disk ms", "behind prefetch ms"].iter().zip(&times) {
        println!("{name:20} {}", Summary::of(values).context("no runs")?);
    }
    let median = |i: usize| Summary::of(&times[i]).map(|s| s.median).context("no runs");
    println!("ratio of the medians, behind / idle: {:.2}", median(2)? / median(1)?);
    Ok(())
}

fn plan(file: &Arc<WeightFile>, offset: u64, len_bytes: u64) -> Result<Arc<ReadPlan>> {
    let mut builder = PlanBuilder::new(std::slice::from_ref(file), PlanOptions::default());
    builder.add(0, Extent { file: 0, offset, len_bytes }, 0)?;
    Ok(Arc::new(builder.build()?))
}

fn submit(reader: &Reader, plan: &Arc<ReadPlan>, class: ReadClass, token: u64) -> Result<spoc_io::RequestId> {
    Ok(reader.submit(ReadRequest { plan: Arc::clone(plan), class, token })?)
}

/// Milliseconds from the submission of the demand to its last byte; the completions of a prefetch between are counted.
fn demand(reader: &Reader, plan: &Arc<ReadPlan>, prefetched: &mut usize) -> Result<f64> {
    let since = Instant::now();
    submit(reader, plan, ReadClass::Demand, DEMAND)?;
    let mut left = plan.reads().len();
    while left > 0 {
        let completion = reader.completions().recv()?;
        completion.outcome.map_err(|e| (*e).clone())?;
        if completion.token == DEMAND {
            left -= 1;
        } else {
            *prefetched += 1;
        }
    }
    Ok(since.elapsed().as_secs_f64() * 1e3)
}

fn take(reader: &Reader, count: usize) -> Result<()> {
    for _ in 0..count {
        reader.completions().recv()?.outcome.map_err(|e| (*e).clone())?;
    }
    Ok(())
}

fn demand_behind(
    reader: &Reader,
    plan: &Arc<ReadPlan>,
    prefetch: &Arc<ReadPlan>,
    under_way: usize,
) -> Result<f64> {
    let request = submit(reader, prefetch, ReadClass::Prefetch, PREFETCH)?;
    take(reader, under_way)?;
    let mut done = under_way;
    let took = demand(reader, plan, &mut done)?;
    reader.cancel(request);
    for _ in done..prefetch.reads().len() {
        // Cancelled, or already under way.
        drop(reader.completions().recv()?);
    }
    Ok(took)
}
