//! Question: what does checking bytes on their way cost?
//!
//! Two parts. One core, warm: how fast each digest takes blocks of 256 KiB out of chunks of 1 MiB in a ring of 64 MiB, and
//! so how many cores a GB/s needs. And a load of a cold file with `--verify` against one without, interleaved, in pairs:
//! the ratio of their rates, and the processor time that verifying adds.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "printing its answer is what a measurement does")]

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;
use serde_json::{Value, json};
use spoc_io::DigestKind;
use spoc_measurements::{cold, machine, stats::Summary};

/// What does checking bytes on their way cost?
#[derive(Debug, Parser)]
struct Args {
    /// A weight file or folder to load; without it, only the digests are measured.
    model: Option<PathBuf>,
    /// Rounds; in each, every digest and both loads run once.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Digest of the loads.
    #[arg(long, default_value = "xxh3")]
    digest: DigestKind,
    /// Leaves the files in the page cache: a load at warm speed instead of the disk's.
    #[arg(long)]
    warm: bool,
    /// Holds the disk to this many bytes a second (cgroup v1, root).
    #[arg(long)]
    throttle: Option<u64>,
    /// The `spoc-loader` to measure.
    #[arg(long, default_value = "target/release/spoc-loader")]
    loader: PathBuf,
}

const BLOCK_BYTES: usize = 256 << 10;
const RING_BYTES: usize = 64 << 20;
/// Each digest runs for this long in a round, at least.
const TIME: Duration = Duration::from_millis(200);

fn main() -> Result<()> {
    let args = Args::parse();
    println!("{}", json!({"machine": machine::describe(), "command": std::env::args().collect::<Vec<_>>()}));
    digests(args.rounds);
    if let Some(model) = &args.model {
        loads(&args, model)?;
    }
    Ok(())
}

fn digests(rounds: usize) {
    let ring: Vec<u8> =
        (0..RING_BYTES as u64).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()[7]).collect();
    let mut rates = DigestKind::ALL.map(|_| Vec::new());
    for _ in 0..rounds {
        for (kind, rates) in DigestKind::ALL.into_iter().zip(&mut rates) {
            rates.push(rate(kind, &ring));
        }
    }
    for (kind, rates) in DigestKind::ALL.into_iter().zip(&rates) {
        summary(&format!("{kind} GB/s a core"), rates);
        summary(&format!("{kind} cores per GB/s"), &rates.iter().map(|rate| 1.0 / rate).collect::<Vec<_>>());
    }
}

/// 10⁹ bytes a second of processor time, which a busy machine stretches less than a clock.
fn rate(kind: DigestKind, ring: &[u8]) -> f64 {
    let (since, cpu_before, mut bytes) = (Instant::now(), thread_cpu_seconds(), 0);
    while since.elapsed() < TIME {
        for block in ring.chunks(BLOCK_BYTES) {
            std::hint::black_box(kind.of(std::hint::black_box(block)));
        }
        bytes += ring.len();
    }
    bytes as f64 / (thread_cpu_seconds() - cpu_before) / 1e9
}

/// Of the calling thread. The first field is its time on a processor, in nanoseconds; what runs now is counted when the
/// thread next leaves the processor or a tick passes, so that 200 ms are known to a few.
fn thread_cpu_seconds() -> f64 {
    std::thread::yield_now();
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(f64::NAN) / 1e9
}

/// One load.
struct Run {
    gb_per_s: f64,
    /// Of the whole process but the device's copies, which a device with a copy engine does itself.
    cpu_seconds: f64,
    check_seconds: f64,
}

fn loads(args: &Args, model: &PathBuf) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let manifest = folder.path().join("manifest.json");
    let mut command = Command::new(&args.loader);
    command.args(["manifest", "--json", "--digest", args.digest.as_str(), "--out"]).arg(&manifest).arg(model);
    println!("{}", json!({"manifest": answer(command)?}));
    let throttle = args.throttle.map(|limit| cold::Throttle::new(model, limit)).transpose()?;
    let (mut rates, mut ratios, mut added, mut checked) =
        ([Vec::new(), Vec::new()], Vec::new(), Vec::new(), Vec::new());
    for round in 0..args.rounds {
        let mut pair = [None, None];
        for turn in 0..2 {
            let verify = (round + turn) % 2;
            if args.warm {
                // A file that is not there is read past the cache, and would be again in the next round.
                std::io::copy(&mut std::fs::File::open(model)?, &mut std::io::sink())?;
            } else {
                cold::drop_caches()?;
            }
            let mut command = throttle
                .as_ref()
                .map_or_else(|| Command::new(&args.loader), |limit| limit.command(&args.loader));
            command.args(["load", "--json", "--io", if args.warm { "auto" } else { "direct" }]).arg(model);
            if verify == 1 {
                command.arg("--manifest").arg(&manifest);
            }
            let run = run(&answer(command)?)?;
            println!(
                "{}",
                json!({"round": round, "verify": verify == 1, "gb_per_s": run.gb_per_s,
                    "cpu_seconds": run.cpu_seconds, "check_seconds": run.check_seconds})
            );
            rates[verify].push(run.gb_per_s);
            pair[verify] = Some(run);
        }
        if let [Some(plain), Some(verified)] = pair {
            ratios.push(verified.gb_per_s / plain.gb_per_s);
            added.push(verified.cpu_seconds - plain.cpu_seconds);
            checked.push(verified.check_seconds);
        }
    }
    summary("load GB/s", &rates[0]);
    summary("load --verify GB/s", &rates[1]);
    summary("load --verify / load", &ratios);
    summary("CPU-seconds of digests", &checked);
    summary("CPU-seconds that verify adds", &added);
    Ok(())
}

fn answer(mut command: Command) -> Result<Value> {
    let output = command.output().with_context(|| format!("starting {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    serde_json::from_slice(&output.stdout).with_context(|| format!("reading the answer of {command:?}"))
}

fn run(answer: &Value) -> Result<Run> {
    let number = |pointer: &str| {
        answer.pointer(pointer).and_then(Value::as_f64).with_context(|| format!("no number at {pointer}"))
    };
    Ok(Run {
        gb_per_s: number("/gb_per_s")?,
        cpu_seconds: number("/cpu_seconds")? - number("/cpu_parts/device_seconds")?,
        check_seconds: number("/cpu_parts/check_seconds")?,
    })
}

fn summary(name: &str, values: &[f64]) {
    match Summary::of(values) {
        Some(summary) => println!("{name:30} {summary}"),
        None => println!("{name:30} no runs"),
    }
}
