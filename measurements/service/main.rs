//! Question: what does the service in between cost, and how fast does it start, answer and come back?
//!
//! In turns, round by round: a call that acquires what is resident against a message to and fro on a plain socket, both
//! 2,000 times a second; acquires on a stream; a load through the service against the same in this process. Then what it
//! costs while nobody asks, how long a client takes to attach, a start, and the first answer after SIGKILL.
//! The service is the program itself, `spoc-loader` from the folder of this one.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "printing its answer is what a measurement does")]
#![allow(clippy::cast_precision_loss, reason = "counts and times far below 2^52")]

mod calls;
mod life;
mod loads;
mod program;

use anyhow::{Context, Result};
use clap::Parser;
use spoc_measurements::{machine, stats::Summary};

/// What does the service in between cost?
#[derive(Debug, Parser)]
struct Args {
    /// The backend: native, cuda, …
    #[arg(long, default_value = "native")]
    backend: String,
    /// Rounds; each does everything that is compared once.
    #[arg(long, default_value_t = 9)]
    rounds: u32,
    /// Calls of a round and kind, 2,000 a second.
    #[arg(long, default_value_t = 2000)]
    calls: u32,
    /// Messages of a round on the stream.
    #[arg(long, default_value_t = 4000)]
    messages: u32,
    /// Size of the model that is loaded, MiB.
    #[arg(long, default_value_t = 512)]
    model_mib: u64,
    /// How long the idle service is watched, s.
    #[arg(long, default_value_t = 10)]
    idle_s: u64,
    /// Starts, and restarts.
    #[arg(long, default_value_t = 9)]
    starts: u32,
    /// In a role of its own: answers what it reads. Not for people.
    #[arg(long, hide = true)]
    echo: Option<std::path::PathBuf>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(socket) = &args.echo {
        return calls::echo(socket);
    }
    println!("{}; {}", machine::describe(), load_average());
    let place = program::Place::new(&args.backend, args.model_mib)?;
    calls::measure(&args, &place)?;
    loads::measure(&args, &place)?;
    life::measure(&args, &place)?;
    println!("{}", load_average());
    Ok(())
}

fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    format!("load average {}", text.split(' ').take(3).collect::<Vec<_>>().join(" "))
}

/// A figure of several rounds, and the rounds themselves.
fn tell(what: &str, unit: &str, values: &[f64]) -> Result<f64> {
    let summary = Summary::of(values).context("no rounds")?;
    println!("{what}, {unit}: {summary}");
    let all: Vec<String> = values.iter().map(|value| format!("{value:.4}")).collect();
    println!("    raw {}", all.join(" "));
    Ok(summary.median)
}

/// A figure against what it is to be.
fn judge(what: &str, value: f64, is_good: bool, wanted: &str) {
    println!("{} {what}: {value:.3}, wanted {wanted}", if is_good { "ok   " } else { "short" });
}
