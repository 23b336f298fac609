//! How fast files come off their storage: `read_rate [--mode M] [--chunk-bytes N] [--depth N] [--depth-max N] [--staging-bytes N]
//! [--plain] FILE…` reads them through the reader and prints one line.

#![allow(clippy::print_stdout, reason = "an example prints")]

use spoc_io::{ReaderOptions, bench_read};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut options = ReaderOptions::default();
    let (mut staging_bytes, mut files) = (64 << 20, Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--mode" => options.mode = value()?.parse()?,
            "--chunk-bytes" => options.chunk_bytes = value()?.parse()?,
            "--depth" => options.depth = value()?.parse()?,
            "--depth-max" => options.depth_max = Some(value()?.parse()?),
            "--threads" => options.threads = value()?.parse()?,
            "--staging-bytes" => staging_bytes = value()?.parse()?,
            "--plain" => options.fixed_buffers = false,
            _ => files.push(argument),
        }
    }
    let before = cpu_seconds()?;
    let bench = bench_read(&files, staging_bytes, options)?;
    let report = &bench.report;
    println!(
        "{:.3} GB/s, {:.3} core per GB/s, path {} ({}), disk wait {:.0} ms, chunk wait {:.0} ms, {} reads in {} calls, depth {}",
        bench.gb_per_s(),
        (cpu_seconds()? - before) / (bench.gb_per_s() * bench.elapsed.as_secs_f64()),
        report.path,
        report.reason,
        milliseconds(report.disk_wait_ns),
        milliseconds(report.chunk_wait_ns),
        report.submissions,
        report.submit_calls,
        report.depth,
    );
    Ok(())
}

#[allow(clippy::cast_precision_loss, reason = "for people to read")]
fn milliseconds(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// User and system time of this process so far.
fn cpu_seconds() -> Result<f64, Box<dyn std::error::Error>> {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF)?;
    let seconds = |time: nix::sys::time::TimeVal| {
        let fraction = u32::try_from(time.tv_usec()).unwrap_or(0);
        let whole = u32::try_from(time.tv_sec()).unwrap_or(0);
        f64::from(whole) + f64::from(fraction) / 1e6
    };
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}
