//! `spoc-loader verify`: compares a model with its manifest, or with the digests that its blobs are named by.

mod blobs;
mod blocks;

use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use spoc_io::{Manifest, Model, OpenOptions, open_model};

use crate::cli::VerifyArgs;
use crate::failure::{Failure, Result};
use crate::out::Out;
use crate::units;

/// What agreed; a difference is a failure and no report.
#[derive(Debug, Serialize)]
struct Report {
    /// `manifest` or `blob_names`.
    against: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    manifest: Option<String>,
    /// The digest functions that were used.
    digests: Vec<&'static str>,
    files: usize,
    tensors: usize,
    /// Bytes compared.
    bytes: u64,
    /// Files of the model's folder that nothing says anything about.
    not_covered: Vec<String>,
    seconds: f64,
    gb_per_s: f64,
}

/// Runs the command.
///
/// # Errors
/// `digest_mismatch` (exit code 4) for the first block or file that differs, `no_manifest` where nothing says what the
/// weights must be, and what opening and reading says.
pub fn run(args: &VerifyArgs, out: Out) -> Result<u8> {
    let start = Instant::now();
    let model = open_model(&args.model, &OpenOptions::default())?;
    let beside = Manifest::default_path(&model);
    let named = args.manifest.clone();
    let mut report = match named.or_else(|| beside.exists().then(|| beside.clone())) {
        Some(path) => against_manifest(args, &model, &path, out)?,
        None => blobs::verify(&model, &beside, out)?,
    };
    report.seconds = start.elapsed().as_secs_f64();
    report.gb_per_s = units::gb_per_s(report.bytes, report.seconds);
    out.answer(&report, render);
    Ok(0)
}

fn against_manifest(args: &VerifyArgs, model: &Model, path: &Path, out: Out) -> Result<Report> {
    let manifest = Manifest::read(path, model)?;
    let digest = manifest.digest.as_str();
    let headers: u64 = manifest.files.iter().map(|file| file.header_bytes).sum();
    let digests = manifest.expectations(model)?;
    let bytes = blocks::verify(model, &digests, args.io, out).map_err(|bad| bad.failure())?;
    Ok(Report {
        against: "manifest",
        manifest: Some(path.to_string_lossy().into_owned()),
        digests: vec![digest],
        files: model.files().len(),
        tensors: model.tensors().len(),
        bytes: bytes + headers,
        not_covered: Vec::new(),
        seconds: 0.0,
        gb_per_s: 0.0,
    })
}

fn render(report: &Report) -> String {
    let against = match &report.manifest {
        Some(path) => format!("the manifest {}", crate::failure::one_line(path)),
        None => "the names of their blobs".to_owned(),
    };
    let mut text = format!(
        "verified {} in {} files agree with {against} ({}): {:.3} s, {:.2} GB/s",
        units::bytes(report.bytes),
        report.files,
        report.digests.join(", "),
        report.seconds,
        report.gb_per_s
    );
    for name in &report.not_covered {
        text.push_str(&format!("\nno word  {}", crate::failure::one_line(name)));
    }
    text
}

/// The first difference, and how many more there are.
struct Bad {
    first: Failure,
    more: usize,
}

impl Bad {
    fn failure(self) -> Failure {
        let Bad { first, more } = self;
        match more {
            0 => first,
            more => Failure { message: format!("{}; {more} more differ", first.message), ..first },
        }
    }
}

impl From<Failure> for Bad {
    fn from(first: Failure) -> Bad {
        Bad { first, more: 0 }
    }
}
