//! Question: how much of the disk's raw speed does a load reach?
//!
//! Three readers of one cold file, interleaved: fio (io_uring, `O_DIRECT`), `spoc-loader bench read`
//! (our reader, no device) and `spoc-loader load` (the whole path into device memory). The order rotates
//! from round to round. Ratios are formed within a round, since the disk drifts between rounds.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "printing its answer is what a measurement does")]

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Parser;
use serde_json::{Value, json};
use spoc_measurements::{cold, machine, stats::Summary};

/// How much of the disk's raw speed does a load reach?
#[derive(Debug, Parser)]
struct Args {
    /// A safetensors file on the disk in question.
    file: PathBuf,
    /// Rounds; in each, every reader runs once.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Holds the disk to this many bytes a second (cgroup v1, root).
    #[arg(long)]
    throttle: Option<u64>,
    /// The `spoc-loader` to measure.
    #[arg(long, default_value = "target/release/spoc-loader")]
    loader: PathBuf,
    /// fio's block size and depth, as the raw ceiling is defined.
    #[arg(long, default_value = "1M")]
    block: String,
    #[arg(long, default_value_t = 4)]
    depth: u32,
}

/// One run of one reader.
struct Run {
    gb_per_s: f64,
    /// Of the loader itself: on the native backend the device's copies are the processor's too, and left out.
    cpu_seconds: f64,
    device_cpu_seconds: f64,
    seconds: f64,
}

const READERS: [&str; 3] = ["fio", "bench_read", "load"];

fn main() -> Result<()> {
    let args = Args::parse();
    let throttle = args.throttle.map(|limit| cold::Throttle::new(&args.file, limit)).transpose()?;
    println!("{}", json!({"machine": machine::describe(), "command": std::env::args().collect::<Vec<_>>()}));
    let mut rates = [const { Vec::new() }; 3];
    let mut cores_per_gb = [const { Vec::new() }; 3];
    for round in 0..args.rounds {
        for turn in 0..READERS.len() {
            let reader = (round + turn) % READERS.len();
            cold::drop_caches()?;
            let run = measure(&args, throttle.as_ref(), reader)?;
            rates[reader].push(run.gb_per_s);
            cores_per_gb[reader].push(run.cpu_seconds / run.seconds / run.gb_per_s);
            let line = json!({"round": round, "reader": READERS[reader], "gb_per_s": run.gb_per_s,
                "cpu_seconds": run.cpu_seconds, "device_cpu_seconds": run.device_cpu_seconds, "seconds": run.seconds});
            println!("{line}");
        }
    }
    for (reader, name) in READERS.iter().enumerate() {
        summary(&format!("{name} GB/s"), &rates[reader]);
        summary(&format!("{name} cores per GB/s"), &cores_per_gb[reader]);
    }
    summary("bench_read / fio", &ratios(&rates[1], &rates[0]));
    summary("load / bench_read", &ratios(&rates[2], &rates[1]));
    summary("load / fio", &ratios(&rates[2], &rates[0]));
    Ok(())
}

fn ratios(above: &[f64], below: &[f64]) -> Vec<f64> {
    above.iter().zip(below).map(|(a, b)| a / b).collect()
}

fn summary(name: &str, values: &[f64]) {
    match Summary::of(values) {
        Some(summary) => println!("{name:28} {summary}"),
        None => println!("{name:28} no runs"),
    }
}

fn measure(args: &Args, throttle: Option<&cold::Throttle>, reader: usize) -> Result<Run> {
    match READERS[reader] {
        "fio" => fio(args, throttle),
        "bench_read" => spoc(args, throttle, &["bench", "read", "--io", "direct", "--json"]),
        _ => spoc(args, throttle, &["load", "--io", "direct", "--json"]),
    }
}

fn command(throttle: Option<&cold::Throttle>, program: &Path) -> Command {
    throttle.map_or_else(|| Command::new(program), |throttle| throttle.command(program))
}

fn output(mut command: Command) -> Result<Value> {
    let output = command.output().with_context(|| format!("starting {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    serde_json::from_slice(&output.stdout).with_context(|| format!("reading the answer of {command:?}"))
}

fn spoc(args: &Args, throttle: Option<&cold::Throttle>, words: &[&str]) -> Result<Run> {
    let mut command = command(throttle, &args.loader);
    command.args(words).arg(&args.file);
    let answer = output(command)?;
    let device_cpu_seconds = number(&answer, "/cpu_parts/device_seconds").unwrap_or(0.0);
    Ok(Run {
        gb_per_s: number(&answer, "/gb_per_s")?,
        cpu_seconds: number(&answer, "/cpu_seconds")? - device_cpu_seconds,
        device_cpu_seconds,
        seconds: number(&answer, "/seconds")?,
    })
}

fn fio(args: &Args, throttle: Option<&cold::Throttle>) -> Result<Run> {
    let mut command = command(throttle, Path::new("fio"));
    command.arg("--name=raw").arg(format!("--filename={}", args.file.display()));
    command.args(["--rw=read", "--direct=1", "--ioengine=io_uring", "--output-format=json", "--readonly"]);
    command.arg(format!("--bs={}", args.block)).arg(format!("--iodepth={}", args.depth));
    let answer = output(command)?;
    let seconds = number(&answer, "/jobs/0/read/runtime")? / 1e3;
    let cpu_percent = number(&answer, "/jobs/0/usr_cpu")? + number(&answer, "/jobs/0/sys_cpu")?;
    let gb_per_s = number(&answer, "/jobs/0/read/io_bytes")? / seconds / 1e9;
    Ok(Run { gb_per_s, cpu_seconds: cpu_percent / 100.0 * seconds, device_cpu_seconds: 0.0, seconds })
}

fn number(answer: &Value, pointer: &str) -> Result<f64> {
    answer.pointer(pointer).and_then(Value::as_f64).with_context(|| format!("no number at {pointer}"))
}
