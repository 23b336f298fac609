//! `bench multi`: the same file to every device, and shares of it to each, against one device alone and against what all
//! links reach together.

use std::time::Instant;

use serde::Serialize;
use spoc_cache::load::{PlaceOptions, load_placed};
use spoc_cache::{PumpGroup, PumpOptions};
use spoc_driver::Device;
use spoc_io::{CheckedMap, Model, OpenOptions, open_model};

use super::link::link_rate;
use super::{median, spread};
use crate::cli::BenchMultiArgs;
use crate::devices::Found;
use crate::failure::{Failure, Result};
use crate::out::Out;
use crate::placed::args::{Layout, divided};
use crate::{staging, units};

#[derive(Debug, Serialize)]
struct Report {
    model: String,
    backend: &'static str,
    devices: Vec<String>,
    runs: usize,
    staging_bytes: usize,
    chunk_bytes: usize,
    /// Copies out of a pinned ring to each device alone; none with `--quick`.
    links_alone_gb_per_s: Vec<f64>,
    /// To all of them at once: what loads onto all cannot pass.
    links_together_gb_per_s: Option<f64>,
    /// The whole model to the first device.
    one: Kind,
    /// The whole model to every device.
    same: Kind,
    /// `same` over `one`, in seconds: 1 if the others come for nothing.
    same_over_one: f64,
    /// The layout, a share to each device.
    shares: Option<Kind>,
    shares_over_one: Option<f64>,
    /// Why there are no shares.
    no_shares: Option<String>,
}

#[derive(Debug, Serialize)]
struct Kind {
    placement: String,
    /// Over all links.
    bytes: u64,
    read_bytes: u64,
    /// Streaming, the median run.
    seconds: f64,
    spread_seconds: [f64; 2],
    /// Over all links.
    gb_per_s: f64,
    /// Of what all its links reach together.
    of_links: Option<f64>,
}

/// Runs the command.
///
/// # Errors
/// What files and devices say; `mismatch` with `--check`.
pub fn run(args: &BenchMultiArgs, out: Out) -> Result<u8> {
    let model = open_model(&args.model, &OpenOptions::default())?;
    let devices = Found::for_args(&args.device)?.open_several(&args.device, &args.devices)?;
    let staging_bytes = staging::budget(args.staging_bytes, staging::SMALLEST_BYTES, 2)?;
    let staging = usize::try_from(staging_bytes).map_err(Failure::usage)?;
    let options = PumpOptions::new(args.io.into(), staging)?;
    let chunk_bytes = options.reader.chunk_bytes as usize;
    let rate = |device: &Device| link_rate(device, staging_bytes, chunk_bytes as u64);
    let (links, together) = if args.quick {
        (Vec::new(), None)
    } else {
        let links = devices.iter().map(rate).collect::<Result<Vec<_>>>()?;
        (links, Some(together(&devices, staging_bytes, chunk_bytes as u64)?))
    };

    let bench = Bench { model: &model, options: &options, args };
    let whole = |ranks| divided(&model, Layout::Whole, ranks, &args.placement);
    let ranks = u32::try_from(devices.len()).map_err(Failure::usage)?;
    let first = links.first().copied();
    let one = bench.measure(&devices[..1], &whole(1)?.check(&model)?, "whole to the first".into(), first)?;
    let same = bench.measure(&devices, &whole(ranks)?.check(&model)?, "whole to each".into(), together)?;
    let (shares, no_shares) = match args.placement.map(&model, Some(devices.len())) {
        Ok((_, map, name)) => (Some(bench.measure(&devices, &map, name, together)?), None),
        Err(failure) => (None, Some(failure.message)),
    };
    let report = Report {
        model: model.root().to_string_lossy().into_owned(),
        backend: devices[0].info().backend.as_str(),
        devices: devices.iter().map(|device| device.info().uuid.to_string()).collect(),
        runs: args.runs.max(1),
        staging_bytes: staging,
        chunk_bytes,
        links_alone_gb_per_s: links,
        links_together_gb_per_s: together,
        same_over_one: same.seconds / one.seconds,
        shares_over_one: shares.as_ref().map(|shares| shares.seconds / one.seconds),
        one,
        same,
        shares,
        no_shares,
    };
    out.answer(&report, render);
    Ok(0)
}

/// The sum of all links' rates while all copy.
fn together(devices: &[Device], staging_bytes: u64, chunk_bytes: u64) -> Result<f64> {
    let rates = std::thread::scope(|scope| {
        let rate = |device| scope.spawn(move || link_rate(device, staging_bytes, chunk_bytes));
        let threads: Vec<_> = devices.iter().map(rate).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<f64>>| {
            thread.join().unwrap_or_else(|_| Err(Failure::new("internal", "a measuring thread panicked")))
        };
        threads.into_iter().map(join).collect::<Result<Vec<_>>>()
    })?;
    Ok(rates.iter().sum())
}

struct Bench<'a> {
    model: &'a Model,
    options: &'a PumpOptions,
    args: &'a BenchMultiArgs,
}

impl Bench<'_> {
    /// Loads through a group of their own; the first load warms up and does not count.
    fn measure(
        &self,
        devices: &[Device],
        map: &CheckedMap,
        placement: String,
        links_gb_per_s: Option<f64>,
    ) -> Result<Kind> {
        let group = PumpGroup::start(devices, self.options)?;
        let (mut seconds, mut bytes, mut read) = (Vec::new(), 0, 0);
        for _ in 0..=self.args.runs.max(1) {
            let before = read_bytes(&group)?;
            let began = Instant::now();
            let placed = load_placed(&group, self.model, map, &PlaceOptions::default())?;
            tracing::debug!(total_seconds = began.elapsed().as_secs_f64(), placement, "a load");
            seconds.push(placed.report.stream_time.as_secs_f64());
            (bytes, read) = (placed.report.bytes, read_bytes(&group)? - before);
            for outcome in &placed.devices {
                if let Err(error) = outcome {
                    return Err(error.clone().into());
                }
            }
            if self.args.check {
                placed.verify(self.model, map)?;
            }
        }
        let middle = median(&seconds[1..]);
        let gb_per_s = units::gb_per_s(bytes, middle);
        Ok(Kind {
            placement,
            bytes,
            read_bytes: read,
            seconds: middle,
            spread_seconds: spread(&seconds[1..]),
            gb_per_s,
            of_links: links_gb_per_s.map(|links| gb_per_s / links),
        })
    }
}

fn read_bytes(group: &PumpGroup) -> Result<u64> {
    Ok(group.reader_reports()?.iter().map(|report| report.read_bytes).sum())
}

fn render(report: &Report) -> String {
    let links: Vec<String> = report.links_alone_gb_per_s.iter().map(|rate| format!("{rate:.2}")).collect();
    let mut text = match report.links_together_gb_per_s {
        Some(together) => format!("links    {} GB/s alone, {together:.2} GB/s together", links.join(" + ")),
        None => format!("{} devices, their links not measured", report.devices.len()),
    };
    let line = |kind: &Kind, over: Option<f64>| {
        let over = over.map_or_else(String::new, |over| format!(", {over:.3} of the time of one"));
        format!(
            "\n{}: {} over the links, {} read, {:.3} s, {:.2} GB/s{}{over}",
            kind.placement,
            units::bytes(kind.bytes),
            units::bytes(kind.read_bytes),
            kind.seconds,
            kind.gb_per_s,
            kind.of_links.map_or_else(String::new, |share| format!(" ({share:.2} of the links)")),
        )
    };
    text.push_str(&line(&report.one, None));
    text.push_str(&line(&report.same, Some(report.same_over_one)));
    match (&report.shares, &report.no_shares) {
        (Some(shares), _) => text.push_str(&line(shares, report.shares_over_one)),
        (None, Some(why)) => text.push_str(&format!("\nno shares: {why}")),
        (None, None) => {}
    }
    text
}
