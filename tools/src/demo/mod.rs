//! `spoc-loader demo`: the whole way of a byte, on any machine, in a few seconds.

pub(crate) mod model;
mod visits;

use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use spoc_driver::BackendKind;
use spoc_io::{OpenOptions, open_model};
use tempfile::TempDir;

use crate::cli::{DemoArgs, DeviceArgs, Io};
use crate::devices::Found;
use crate::failure::{Failure, Result};
use crate::load::{self, Check};
use crate::out::Out;
use crate::process::Interrupt;
use crate::{progress, publish, staging, units};

/// Any number; the same one shows the same model.
const SEED: u64 = 2026;

#[derive(Debug, Serialize)]
struct Report {
    bytes: u64,
    tensors: u32,
    layers: u32,
    write_seconds: f64,
    load: load::Report,
    cache: visits::Report,
    /// Both ways of reading back, added up.
    check: Check,
    /// Where the model is, if it was to be kept.
    kept: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// What writing, loading, visiting or comparing says. The model is removed all the same.
pub fn run(args: &DemoArgs, out: Out) -> Result<u8> {
    let staging_bytes = staging::budget(None, staging::SMALLEST_BYTES, 2)?;
    let interrupt = Interrupt::watch();
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let dir = interrupt.temporary(|| temporary(&parent), |dir| dir.path().to_path_buf())?;

    let (written, write_seconds) = write(dir.path(), &interrupt, out)?;
    let start = Instant::now();
    let files = open_model(dir.path(), &OpenOptions::default())?;
    let native = DeviceArgs { backend: Some(BackendKind::Native.to_string()), device: None };
    let device = Found::for_args(&native)?.open(&native)?;
    let slots = args.slots.unwrap_or(model::LAYERS * 3 / 4);
    let counters = publish::counters(slots as usize, &interrupt)?;
    let pump = load::start_pump(&device, Io::Auto, staging_bytes, counters)?;

    let (loaded, load) = load::load(&pump, &files, load::What::default(), start, out)?;
    out.line(load::render(&load));
    let check_loaded = load::check(&loaded, &files)?;
    drop(loaded);
    out.line(format_args!("check    {} read back and equal to the files", units::bytes(check_loaded.bytes)));

    let (cache, check_visits) = visits::run(&pump, &files, args, slots, out)?;
    out.line(&cache);
    out.line(format_args!(
        "check    {} read back from slots and equal to the files",
        units::bytes(check_visits.bytes)
    ));
    let check = Check {
        equal: check_loaded.equal && check_visits.equal,
        bytes: check_loaded.bytes + check_visits.bytes,
        seconds: check_loaded.seconds + check_visits.seconds,
    };
    let kept = finish(dir, args.keep, &interrupt)?;
    if let Some(path) = &kept {
        out.line(format_args!("kept     {path}"));
    }
    let model::Written { tensor_bytes: bytes, tensors } = written;
    if out.is_json() {
        let report =
            Report { bytes, tensors, layers: model::LAYERS, write_seconds, load, cache, check, kept };
        crate::out::json_line(&report);
    }
    Ok(0)
}

pub(crate) fn temporary(parent: &Path) -> Result<TempDir> {
    let made = tempfile::Builder::new().prefix("spoc-demo-").tempdir_in(parent);
    // The system's error names a random folder; the user gave the one above it.
    made.map_err(|error| {
        let cause = match std::fs::metadata(parent) {
            Err(error) => error,
            Ok(_) => std::io::Error::from(error.kind()),
        };
        Failure::io(parent, "making a temporary folder", &cause)
    })
}

fn write(dir: &Path, interrupt: &Interrupt, out: Out) -> Result<(model::Written, f64)> {
    let bar = progress::bar("writing", model::tensor_bytes(), out.is_json());
    let start = Instant::now();
    let written = model::write(dir, SEED, |bytes| {
        bar.inc(bytes);
        interrupt.pause_if_stopping();
        Ok(())
    });
    let written = written.map_err(|error| Failure::io(dir, "writing the model", &error))?;
    let seconds = start.elapsed().as_secs_f64();
    bar.finish_and_clear();
    out.line(format_args!(
        "wrote    {} in {} tensors of {} layers to {} in {seconds:.2} s",
        units::bytes(written.tensor_bytes),
        written.tensors,
        model::LAYERS,
        dir.display()
    ));
    Ok((written, seconds))
}

/// Removes the model, or keeps it and says where it is.
fn finish(dir: TempDir, keep: bool, interrupt: &Interrupt) -> Result<Option<String>> {
    interrupt.keep(dir.path());
    if keep {
        return Ok(Some(dir.keep().to_string_lossy().into_owned()));
    }
    let path = dir.path().to_path_buf();
    dir.close().map_err(|error| Failure::io(&path, "removing the model", &error))?;
    Ok(None)
}
