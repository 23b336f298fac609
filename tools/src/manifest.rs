//! `spoc-loader manifest`: writes down what every byte of a model is.

use std::time::Instant;

use serde::Serialize;
use spoc_io::{Error, Manifest, OpenOptions, Unwritten, open_model};

use crate::cli::ManifestArgs;
use crate::failure::{Failure, Result};
use crate::out::Out;
use crate::process::Interrupt;
use crate::{progress, units};

#[derive(Debug, Serialize)]
struct Written {
    manifest: String,
    digest: &'static str,
    block_bytes: u64,
    files: usize,
    tensors: usize,
    /// Of the files.
    bytes: u64,
    seconds: f64,
}

/// Runs the command.
///
/// # Errors
/// What opening and reading the model, and writing the manifest, says.
pub fn run(args: &ManifestArgs, out: Out) -> Result<u8> {
    let interrupt = Interrupt::watch();
    let start = Instant::now();
    let model = open_model(&args.model, &OpenOptions::default())?;
    let path = args.out.clone().unwrap_or_else(|| Manifest::default_path(&model));
    let elsewhere = |error: Error| match &args.out {
        None => Failure { message: format!("{error}; --out puts it elsewhere"), ..error.into() },
        Some(_) => error.into(),
    };
    // Before a byte is read: a place that cannot be written to is not found out after hours of reading.
    let place = interrupt.temporary(|| Unwritten::at(&path), |place| place.temporary().to_path_buf());
    let place = place.map_err(elsewhere)?;
    let bytes = model.files().iter().map(|file| file.len_bytes()).sum();
    let bar = progress::bar("reading", bytes, out.is_json());
    let manifest = Manifest::of(&model, args.digest.into(), &|bytes| bar.inc(bytes))?;
    bar.finish_and_clear();
    interrupt.pause_if_stopping();
    place.write(&manifest).map_err(elsewhere)?;
    let written = Written {
        manifest: path.to_string_lossy().into_owned(),
        digest: manifest.digest.as_str(),
        block_bytes: manifest.block_bytes,
        files: manifest.files.len(),
        tensors: manifest.tensors.len(),
        bytes,
        seconds: start.elapsed().as_secs_f64(),
    };
    out.answer(&written, render);
    Ok(0)
}

fn render(written: &Written) -> String {
    format!(
        "wrote    {}: {} digests of {} tensors in blocks of {}, {} in {} files, {:.3} s ({:.2} GB/s)",
        written.manifest,
        written.digest,
        written.tensors,
        units::bytes(written.block_bytes),
        units::bytes(written.bytes),
        written.files,
        written.seconds,
        units::gb_per_s(written.bytes, written.seconds)
    )
}
