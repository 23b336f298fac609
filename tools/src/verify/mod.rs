//! `spoc-loader verify`: compares a model with its manifest, or with the digests that its blobs are named by.

mod blobs;
mod blocks;
mod whole;

use std::path::{Path, PathBuf};
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
    let digests = manifest.clone().expectations(model)?;
    let bytes = blocks::verify(model, &manifest, &digests, args.io, out).map_err(|bad| bad.failure())?;
    Ok(Report {
        against: "manifest",
        manifest: Some(path.to_string_lossy().into_owned()),
        digests: vec![digest],
        files: model.files().len(),
        tensors: model.tensors().len(),
        bytes: bytes + headers,
        not_covered: not_covered(model, path)?,
        seconds: 0.0,
        gb_per_s: 0.0,
    })
}

/// What lies in the model's folder, is none of its weight files, and not the manifest at `path`.
fn not_covered(model: &Model, path: &Path) -> Result<Vec<String>> {
    let itself = std::fs::canonicalize(path).ok();
    let mut paths = others(model)?;
    paths.retain(|other| itself.is_none() || std::fs::canonicalize(other).ok() != itself);
    Ok(paths.iter().map(|path| path.to_string_lossy().into_owned()).collect())
}

/// The other files of a model's folder; none where the model is a file by itself. Folders in it are left alone.
fn others(model: &Model) -> Result<Vec<PathBuf>> {
    let root = model.root();
    let is_index = root.extension().is_some_and(|e| e.eq_ignore_ascii_case("json"));
    let folder = match root.parent() {
        _ if root.is_dir() => root,
        Some(parent) if is_index && parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) if is_index => parent,
        _ => return Ok(Vec::new()),
    };
    let failed = |error: std::io::Error| Failure::io(folder, "listing the folder", &error);
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        // A link to nothing is a file that is missing; the weights were opened, it is none of them.
        let known = |path: &Path| model.files().iter().any(|file| file.path() == path);
        if !path.is_dir() && !known(&path) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
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
