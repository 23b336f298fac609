//! `spoc-loader load --devices` and `plan`: a model onto several devices, and what that moves.

pub mod args;
pub mod plan;

use std::time::Instant;

use serde::Serialize;
use spoc_cache::load::{PlaceOptions, Placed, load_placed};
use spoc_cache::{PumpGroup, PumpOptions};
use spoc_driver::Device;
use spoc_io::{Manifest, Model, OpenOptions, ReaderOptions, open_model};

use crate::cli::LoadArgs;
use crate::devices::Found;
use crate::failure::{Failure, Result};
use crate::load::{Check, PathReport, StagesReport};
use crate::out::Out;
use crate::process::Interrupt;
use crate::{progress, publish, staging, units};

/// What a load onto several devices did. Seconds and bytes; `seconds` is streaming alone.
#[derive(Debug, Serialize)]
struct Report {
    model: String,
    placement: String,
    files: usize,
    /// Over all links.
    bytes: u64,
    /// Of the files, slack included.
    read_bytes: u64,
    seconds: f64,
    /// Over all links.
    gb_per_s: f64,
    prepare_seconds: f64,
    total_seconds: f64,
    /// One a NUMA node.
    rings: usize,
    staging_bytes: usize,
    devices: Vec<OfDevice>,
    #[serde(flatten)]
    path: PathReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<Check>,
}

#[derive(Debug, Serialize)]
struct OfDevice {
    backend: &'static str,
    index: u32,
    uuid: String,
    name: String,
    targets: usize,
    bytes: u64,
    ring: &'static str,
    stages: StagesReport,
}

/// Runs `load --devices`.
///
/// # Errors
/// What opening, reading, the devices or the check say; the first device's that failed, after which the others are given
/// back too.
pub fn run(args: &LoadArgs, list: &str, out: Out) -> Result<u8> {
    let interrupt = Interrupt::watch();
    let start = Instant::now();
    let model = open_model(&args.model, &OpenOptions::default())?;
    let devices = Found::for_args(&args.device)?.open_several(&args.device, list)?;
    let (_, map, placement) = args.placement.map(&model, Some(devices.len()))?;
    let staging_bytes = staging::budget(args.staging_bytes, staging::SMALLEST_BYTES, 2)?;
    let staging = usize::try_from(staging_bytes).map_err(Failure::usage)?;
    let verify = if args.verify || args.manifest.is_some() {
        let path = args.manifest.clone().unwrap_or_else(|| Manifest::default_path(&model));
        Some(Manifest::read(&path, &model)?.expectations(&model)?)
    } else {
        None
    };
    let counters = publish::counters(0, &interrupt)?;
    let mut options = PumpOptions { counters: Some(counters), ..PumpOptions::new(args.io.into(), staging)? };
    options.reader.check_threads = if verify.is_some() { ReaderOptions::CHECK_THREADS } else { 0 };
    if let Some(deadline) = args.read_deadline {
        options.reader.read_deadline = Some(deadline);
        options.reader.drain_timeout = options.reader.drain_timeout.min(deadline);
    }
    let starting = Instant::now();
    let group = PumpGroup::start(&devices, &options)?;
    let start_seconds = starting.elapsed().as_secs_f64();
    let bar = progress::bar("loading", 0, out.is_json());
    let moved = bar.clone();
    let progress = move |copied, bytes| {
        moved.set_length(bytes);
        moved.set_position(copied);
    };
    let options =
        PlaceOptions { verify, progress: Some(std::sync::Arc::new(progress)), ..PlaceOptions::default() };
    let placed = load_placed(&group, &model, &map, &options)?;
    let total_seconds = start.elapsed().as_secs_f64();
    bar.finish_and_clear();
    let check = if args.check { Some(checked(&placed, &model, &map)?) } else { None };
    let did = placed.report.clone();
    let readers = &did.readers;
    let path = readers.first().map(PathReport::new).ok_or_else(|| Failure::new("closed", "no reader"))?;
    let report = Report {
        model: model.root().to_string_lossy().into_owned(),
        placement,
        files: model.files().len(),
        bytes: did.bytes,
        read_bytes: readers.iter().map(|reader| reader.read_bytes).sum(),
        seconds: did.stream_time.as_secs_f64(),
        gb_per_s: did.gb_per_s(),
        prepare_seconds: start_seconds + did.prepare_time.as_secs_f64(),
        total_seconds,
        rings: group.rings(),
        staging_bytes: staging,
        devices: of_devices(placed, &group, &devices)?,
        path,
        check,
    };
    out.answer(&report, render);
    Ok(0)
}

fn of_devices(placed: Placed, group: &PumpGroup, devices: &[Device]) -> Result<Vec<OfDevice>> {
    let mut rows = Vec::with_capacity(devices.len());
    for ((outcome, device), pump) in placed.devices.into_iter().zip(devices).zip(group.pumps()) {
        let info = device.info();
        let placed = outcome.map_err(|error| {
            let failure = Failure::from(error);
            let message = format!("{} {}: {}", info.backend, info.index, failure.message);
            Failure { message, ..failure }
        })?;
        rows.push(OfDevice {
            backend: info.backend.as_str(),
            index: info.index,
            uuid: info.uuid.to_string(),
            name: info.name.clone(),
            targets: placed.placements.len(),
            bytes: placed.bytes,
            ring: pump.ring().rung.as_str(),
            stages: StagesReport::new(&placed.stages),
        });
    }
    Ok(rows)
}

fn checked(placed: &Placed, model: &Model, map: &spoc_io::CheckedMap) -> Result<Check> {
    let start = Instant::now();
    let bytes = placed.verify(model, map)?;
    Ok(Check { equal: true, bytes, seconds: start.elapsed().as_secs_f64() })
}

fn render(report: &Report) -> String {
    let mut text = format!(
        "loaded   {} ({}) over {} links: {:.3} s, {:.2} GB/s; {} read",
        units::bytes(report.bytes),
        report.placement,
        report.devices.len(),
        report.seconds,
        report.gb_per_s,
        units::bytes(report.read_bytes),
    );
    for device in &report.devices {
        text.push_str(&format!(
            "\ndevice   {} {} ({}): {} in {} targets; {}",
            device.backend,
            device.index,
            device.name,
            units::bytes(device.bytes),
            device.targets,
            device.stages.line()
        ));
    }
    text.push_str(&format!(
        "\npath     {}: {}",
        report.path.line(),
        units::bytes(report.staging_bytes as u64)
    ));
    text.push_str(&format!(
        " of ring, {} of them; {:.3} s of preparation, {:.3} s in all",
        report.rings, report.prepare_seconds, report.total_seconds
    ));
    if let Some(check) = &report.check {
        let bytes = units::bytes(check.bytes);
        text.push_str(&format!(
            "\ncheck    {bytes} read back and equal to the files, {:.3} s",
            check.seconds
        ));
    }
    text
}
