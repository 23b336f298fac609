//! `bench slices`: what tensor-parallel ranks take of a model, against the whole of it.
//!
//! Column slices are stretches of rows, and one rank's are read alone. Row slices are many short runs: the whole tensor
//! goes to the device and is cut there, here for every rank, as on a node where one read serves them all.

use std::sync::Arc;

use serde::Serialize;
use spoc_cache::load::{LoadOptions, Slice, load_model, load_slices};
use spoc_cache::{Pump, PumpOptions};
use spoc_io::{Model, OpenOptions, open_model};

use super::{median, spread};
use crate::cli::BenchSlicesArgs;
use crate::devices::Found;
use crate::failure::{Failure, Result};
use crate::out::Out;
use crate::units;

#[derive(Debug, Serialize)]
struct Report {
    backend: &'static str,
    device: String,
    ranks: u64,
    /// Every tensor whole.
    whole_gb_per_s: f64,
    column: Kind,
    row: Kind,
}

#[derive(Debug, Serialize)]
struct Kind {
    slices: usize,
    /// Bytes of the slices.
    bytes: u64,
    /// Slices that were cut on the device, and the bytes that went there for them.
    cut: usize,
    cut_from_bytes: u64,
    /// Bytes of slices while streaming.
    gb_per_s: f64,
    spread_gb_per_s: [f64; 2],
    /// Over the whole tensors' rate.
    ratio: f64,
}

/// Runs the command.
///
/// # Errors
/// `no_tensor` if no tensor can be cut in so many, and what files and device say.
pub fn run(args: &BenchSlicesArgs, out: Out) -> Result<u8> {
    let device = Found::for_args(&args.device)?.open(&args.device)?;
    let model = open_model(&args.model, &OpenOptions::default())?;
    let pump = Pump::start(&device, PumpOptions::default())?;
    let ranks = u64::from(args.ranks);
    let (columns, rows) = (slices(&model, ranks, 0, 0..1), slices(&model, ranks, 1, 0..ranks));
    if rows.is_empty() {
        let message = format!("no tensor of two dimensions can be cut in {ranks} both ways");
        return Err(Failure::new("no_tensor", message));
    }
    let mut whole = Vec::new();
    for _ in 0..=args.runs.max(1) {
        whole.push(load_model(&pump, &model, &LoadOptions::default())?.report.gb_per_s());
    }
    let whole_gb_per_s = median(&whole[1..]);
    let report = Report {
        backend: device.info().backend.as_str(),
        device: device.info().name.clone(),
        ranks,
        whole_gb_per_s,
        column: measure(&pump, &model, &columns, args, whole_gb_per_s)?,
        row: measure(&pump, &model, &rows, args, whole_gb_per_s)?,
    };
    out.answer(&report, render);
    Ok(0)
}

/// Of each matrix that can be cut evenly, the parts of these ranks along a dimension.
fn slices(model: &Model, ranks: u64, along: usize, of: std::ops::Range<u64>) -> Vec<Slice> {
    let even = |tensor: &spoc_io::Tensor| {
        tensor.shape.len() == 2 && tensor.shape.iter().all(|side| *side > 0 && side.is_multiple_of(ranks))
    };
    let numbered = (0u32..).zip(model.tensors()).filter(|(_, tensor)| even(tensor));
    let part = |number: u32, shape: &[u64], rank: u64| {
        let side = shape[along] / ranks;
        let mut ranges: Vec<_> = shape.iter().map(|side| 0..*side).collect();
        ranges[along] = rank * side..(rank + 1) * side;
        Slice { tensor: number, ranges }
    };
    numbered
        .flat_map(|(number, tensor)| of.clone().map(move |rank| part(number, &tensor.shape, rank)))
        .collect()
}

fn measure(
    pump: &Arc<Pump>,
    model: &Model,
    slices: &[Slice],
    args: &BenchSlicesArgs,
    whole_gb_per_s: f64,
) -> Result<Kind> {
    let (mut rates, mut last) = (Vec::new(), None);
    for _ in 0..=args.runs.max(1) {
        drop(last.take());
        let loaded = load_slices(pump, model, slices)?;
        rates.push(loaded.report.gb_per_s());
        last = Some(loaded);
    }
    let loaded = last.ok_or_else(|| Failure::new("closed", "nothing was loaded"))?;
    if args.check {
        loaded.verify(model, slices)?;
    }
    let gb_per_s = median(&rates[1..]);
    Ok(Kind {
        slices: slices.len(),
        bytes: loaded.report.bytes,
        cut: loaded.cut,
        cut_from_bytes: loaded.cut_from_bytes,
        gb_per_s,
        spread_gb_per_s: spread(&rates[1..]),
        ratio: gb_per_s / whole_gb_per_s,
    })
}

fn render(report: &Report) -> String {
    let line = |name: &str, kind: &Kind| {
        format!(
            "\n{name} {} slices, {}: {:.2} GB/s, {:.3} of whole tensors ({} cut on the device)",
            kind.slices,
            units::bytes(kind.bytes),
            kind.gb_per_s,
            kind.ratio,
            kind.cut,
        )
    };
    format!(
        "{} {}: {} ranks, whole tensors {:.2} GB/s{}{}",
        report.backend,
        report.device,
        report.ranks,
        report.whole_gb_per_s,
        line("column, one rank: ", &report.column),
        line("row, every rank:  ", &report.row),
    )
}
