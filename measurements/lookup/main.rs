//! Question: what does it cost to find, to hold and to let go what is resident, and how does that scale over threads?
//!
//! In turns, round by round: look-up alone; look-up, lease and end; the same through the cache's lock; look-ups in two
//! general caches. Then the second of these by many threads at once, on disjoint sets and on the same hot set,
//! and the decision of a miss in a full pool. Sets of 8 keys, on the native device.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "printing its answer is what a measurement does")]
#![allow(clippy::cast_precision_loss, reason = "counts and times far below 2^52")]

mod rivals;
mod setup;

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;
use setup::{SET, Setup};
use spoc_cache::Key;
use spoc_driver::{Stream, StreamOptions};
use spoc_measurements::{machine, stats::Summary};

/// What does it cost to find, to hold and to let go what is resident?
#[derive(Debug, Parser)]
struct Args {
    /// Slots, all of them full.
    #[arg(long, default_value_t = 10_000)]
    slots: u32,
    /// Rounds; each does everything once.
    #[arg(long, default_value_t = 15)]
    rounds: u32,
    /// Sets a round.
    #[arg(long, default_value_t = 20_000)]
    sets: usize,
    /// Threads of the last part.
    #[arg(long, default_value_t = 16)]
    threads: usize,
    /// How long the threads run, ms.
    #[arg(long, default_value_t = 300)]
    run_ms: u64,
}

/// Sets between two ends of a step: a token of a model of 24 layers.
const STEP_SETS: usize = 24;

fn main() -> Result<()> {
    let args = Args::parse();
    println!("{}; {}", machine::describe(), topology());
    let setup = Setup::new(args.slots)?;
    one_thread(&args, &setup)?;
    threads(&args, &setup)?;
    // Last, for it takes the place of what the others look for.
    misses(&args, &setup)
}

/// Hardware threads and the cores they are on.
fn topology() -> String {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let siblings = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list");
    let shared = siblings.ok().is_some_and(|text| text.trim().contains([',', '-']));
    let each = if shared { "two hardware threads a core" } else { "one hardware thread a core" };
    format!("{cpus} hardware threads for this process, {each}")
}

/// ns a key of `sets` sets.
fn timed(sets: &[[Key; SET]], mut each: impl FnMut(usize, &[Key; SET])) -> f64 {
    let began = Instant::now();
    for (index, set) in sets.iter().enumerate() {
        each(index, set);
    }
    began.elapsed().as_nanos() as f64 / (sets.len() * SET) as f64
}

fn one_thread(args: &Args, setup: &Setup) -> Result<()> {
    let stream = setup.stream()?;
    let reader = setup.cache.reader(&stream)?;
    drop(reader.wait_acquire(&setup.resident[..1])?);
    let sets = setup.sets(args.sets, 0, setup.resident.len());
    let rivals = rivals::Rivals::new(&setup.resident);
    let mut found = [const { Vec::new() }; 6];
    for _ in 0..args.rounds {
        let mut slots = [0; SET];
        found[0].push(timed(&sets, |_, set| {
            black_box(reader.look_up(black_box(set), &mut slots));
        }));
        let mut steps = Vec::new();
        let mut missed = 0;
        let all = timed(&sets, |index, set| {
            match reader.try_acquire(black_box(set)) {
                Some(lease) => drop(black_box(lease)),
                None => missed += 1,
            }
            if (index + 1).is_multiple_of(STEP_SETS) {
                let began = Instant::now();
                // Nothing is captured, and the stream is sound.
                let _ = black_box(reader.end_step());
                steps.push(began.elapsed().as_nanos() as f64);
            }
        });
        anyhow::ensure!(missed == 0, "{missed} sets were not there");
        let ends: f64 = steps.iter().sum::<f64>() / (sets.len() * SET) as f64;
        found[1].push(all - ends);
        found[2].extend(Summary::of(&steps).map(|steps| steps.median / 1000.0));
        let few = &sets[..sets.len() / 20];
        found[3].push(timed(few, |_, set| {
            if let Ok(lease) = setup.cache.wait_acquire(black_box(set), &stream) {
                drop(black_box(lease.release(&[])));
            }
        }));
        found[4].push(timed(&sets, |_, set| rivals.quick_cache(black_box(set))));
        found[5].push(timed(&sets, |_, set| rivals.moka(black_box(set))));
    }
    for (name, unit, values) in [
        ("look-up alone", "ns a key", &found[0]),
        ("look-up + lease + end, reader", "ns a key", &found[1]),
        ("end of a step of 24 sets, with its event", "µs", &found[2]),
        ("look-up + lease + release, through the lock", "ns a key", &found[3]),
        ("quick_cache look-up", "ns a key", &found[4]),
        ("moka look-up", "ns a key", &found[5]),
    ] {
        print(name, unit, values);
    }
    Ok(())
}

fn print(name: &str, unit: &str, values: &[f64]) {
    if let Some(summary) = Summary::of(values) {
        println!("{name}: {summary} {unit}");
    }
}

/// A set of one missing key in a full pool: judged, a victim chosen and evicted, the read handed over.
fn misses(args: &Args, setup: &Setup) -> Result<()> {
    let stream = setup.stream()?;
    let (mut calls, mut decisions) = (Vec::new(), Vec::new());
    for index in 0..(args.rounds as usize * 40) {
        let key = setup.missing(index);
        let began = Instant::now();
        let acquire = setup.cache.acquire(black_box(&[key]), &stream)?;
        calls.push(began.elapsed().as_nanos() as f64 / 1000.0);
        acquire.wait()?.release(&[])?;
        decisions.push(setup.decision_us(index));
    }
    print("miss: the call, with the read handed to the reader", "µs", &calls);
    print("miss: the policy's decision alone", "µs", &decisions);
    Ok(())
}

/// Sets a second of `threads` threads, each with a reader of its own.
fn rate(args: &Args, setup: &Setup, threads: usize, disjoint: bool) -> Result<f64> {
    let (sets, began) = (AtomicU64::new(0), Barrier::new(threads + 1));
    let stop = AtomicBool::new(false);
    let mut seconds = 0.0;
    std::thread::scope(|scope| -> Result<()> {
        let mut running = Vec::new();
        for thread in 0..threads {
            let (sets, began, stop) = (&sets, &began, &stop);
            running.push(scope.spawn(move || -> Result<()> {
                let stream: Stream = setup.device.create_stream(StreamOptions::default())?;
                let reader = setup.cache.reader(&stream)?;
                drop(reader.wait_acquire(&setup.resident[..1])?);
                let width = setup.resident.len() / args.threads.max(threads);
                let own = match disjoint {
                    true => setup.sets(2_000, thread * width, width),
                    false => setup.sets(2_000, 0, SET * STEP_SETS),
                };
                began.wait();
                let mut done = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    for step in own.chunks(STEP_SETS) {
                        for set in step {
                            done += u64::from(black_box(reader.try_acquire(set)).is_some());
                        }
                        reader.end_step()?;
                    }
                }
                sets.fetch_add(done, Ordering::Relaxed);
                Ok(())
            }));
        }
        began.wait();
        let clock = Instant::now();
        std::thread::sleep(Duration::from_millis(args.run_ms));
        stop.store(true, Ordering::Relaxed);
        for thread in running {
            thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        }
        seconds = clock.elapsed().as_secs_f64();
        Ok(())
    })?;
    Ok(sets.load(Ordering::Relaxed) as f64 / seconds)
}

fn threads(args: &Args, setup: &Setup) -> Result<()> {
    let mut ratios = [const { Vec::new() }; 2];
    for _ in 0..args.rounds.min(7) {
        for (disjoint, ratios) in [true, false].into_iter().zip(&mut ratios) {
            let one = rate(args, setup, 1, disjoint)?;
            ratios.push(rate(args, setup, args.threads, disjoint)? / one);
        }
    }
    print(&format!("{} threads over one, disjoint sets", args.threads), "×", &ratios[0]);
    print(&format!("{} threads over one, the same hot set", args.threads), "×", &ratios[1]);
    Ok(())
}
