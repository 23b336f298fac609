//! `spoc-loader plan`: what a load would read, and what would go over each link, before anything moves.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use spoc_driver::Device;
use spoc_io::{OpenOptions, PlanOptions, Traffic, open_model};

use super::args::PlacementArgs;
use crate::cli::DeviceArgs;
use crate::devices::Found;
use crate::failure::{Failure, Result};
use crate::out::Out;
use crate::units;

/// Arguments of `plan`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spoc-loader plan model.safetensors --layout tp --ranks 8
  spoc-loader plan ~/models/llama --map placement.json --devices all
  spoc-loader plan ~/models/llama --layout tp-fused --ranks 2 --out placement.json")]
pub struct PlanArgs {
    /// A weight file, a folder with an index, or a Hugging Face name or snapshot folder
    pub model: PathBuf,
    /// Devices to compare with, by index: 0,1, or all [default: none, and --ranks says how many]
    #[arg(long, env = "SPOC_DEVICES", value_name = "LIST")]
    pub devices: Option<String>,
    /// Whose devices.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// What goes where.
    #[command(flatten)]
    pub placement: PlacementArgs,
    /// Write the placement map to this file, which must not exist
    #[arg(long, env = "SPOC_PLAN_OUT", value_name = "FILE")]
    pub out: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Report {
    model: String,
    placement: String,
    /// Of the model's tensors.
    bytes: u64,
    /// From files, slack included, each byte once.
    read_bytes: u64,
    reads: u64,
    /// Over all links.
    link_bytes: u64,
    devices: Vec<Row>,
    /// The map that was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    map: Option<String>,
}

#[derive(Debug, Serialize)]
struct Row {
    device: u32,
    /// Over its link.
    link_bytes: u64,
    /// That no other device gets.
    own_bytes: u64,
    /// Device memory that targets take.
    target_bytes: u64,
    targets: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    free_bytes: Option<u64>,
    /// Whether its targets have room.
    #[serde(skip_serializing_if = "Option::is_none")]
    fits: Option<bool>,
}

/// Runs the command.
///
/// # Errors
/// What opening the model, the map and the devices say; `io_error` for a map that cannot be written. Device memory that is
/// too small is in the answer, and no error.
pub fn run(args: &PlanArgs, out: Out) -> Result<u8> {
    let model = open_model(&args.model, &OpenOptions::default())?;
    let devices = match &args.devices {
        Some(list) => Found::for_args(&args.device)?.open_several(&args.device, list)?,
        None => Vec::new(),
    };
    let known = (!devices.is_empty()).then_some(devices.len());
    let (map, checked, placement) = args.placement.map(&model, known)?;
    let traffic = checked.traffic(&model, PlanOptions::default())?;
    if let Some(path) = &args.out {
        let failed = |error: std::io::Error| Failure::io(path, "writing", &error);
        let file = std::fs::File::create_new(path).map_err(failed)?;
        let mut writer = std::io::BufWriter::new(file);
        map.write_to(&mut writer).and_then(|()| std::io::Write::flush(&mut writer)).map_err(failed)?;
    }
    let row = |number: u32| {
        let targets = map.targets.iter().filter(|target| target.device == number).count();
        row(number, &traffic, targets, devices.get(number as usize))
    };
    let report = Report {
        model: model.root().to_string_lossy().into_owned(),
        placement,
        bytes: model.tensor_bytes(),
        read_bytes: traffic.read_bytes,
        reads: traffic.reads,
        link_bytes: traffic.link_bytes.iter().sum(),
        devices: (0..checked.devices()).map(row).collect::<Result<Vec<_>>>()?,
        map: args.out.as_ref().map(|path| path.to_string_lossy().into_owned()),
    };
    out.answer(&report, render);
    Ok(0)
}

fn row(number: u32, traffic: &Traffic, targets: usize, device: Option<&Device>) -> Result<Row> {
    let place = number as usize;
    let target_bytes = traffic.target_bytes[place];
    let free_bytes = device.map(|device| Ok::<_, Failure>(device.memory()?.free_bytes)).transpose()?;
    Ok(Row {
        device: number,
        link_bytes: traffic.link_bytes[place],
        own_bytes: traffic.own_bytes[place],
        target_bytes,
        targets,
        name: device.map(|device| format!("{} {}", device.info().backend, device.info().name)),
        free_bytes,
        fits: free_bytes.map(|free| target_bytes <= free),
    })
}

fn render(report: &Report) -> String {
    let mut text = format!(
        "plan     {} ({}): {} read in {} reads, {} over {} links",
        units::bytes(report.bytes),
        report.placement,
        units::bytes(report.read_bytes),
        report.reads,
        units::bytes(report.link_bytes),
        report.devices.len()
    );
    for row in &report.devices {
        text.push_str(&format!(
            "\ndevice {} {} over its link, {} of it for no other; {} in {} targets",
            row.device,
            units::bytes(row.link_bytes),
            units::bytes(row.own_bytes),
            units::bytes(row.target_bytes),
            row.targets
        ));
        if let (Some(name), Some(free), Some(fits)) = (&row.name, row.free_bytes, row.fits) {
            let verdict = if fits { "fits" } else { "does not fit" };
            text.push_str(&format!("; {verdict} {name} with {} free", units::bytes(free)));
        }
    }
    if let Some(map) = &report.map {
        text.push_str(&format!("\nwrote    {map}"));
    }
    text
}
