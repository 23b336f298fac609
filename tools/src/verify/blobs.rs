//! A model in a Hugging Face cache against the names of its blobs: 64 digits are the file's SHA-256, 40 are git's
//! SHA-1 of it, which covers the small files. Both want a file's bytes in order, so that one thread reads one file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha1::Digest as _;
use spoc_io::{DigestKind, Digester, InOrder, Model, WeightFile};

use super::Report;
use crate::failure::{EXIT_DAMAGED, Failure, Result};
use crate::out::Out;
use crate::progress;

/// A file, and the name of what it links to.
struct Blob {
    path: PathBuf,
    name: String,
}

impl Blob {
    /// If the file is a link to something that is named by a digest, or is that itself.
    fn of(path: &Path) -> Option<Blob> {
        let name = std::fs::canonicalize(path).ok()?.file_name()?.to_str()?.to_owned();
        let digits = name.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        (digits && matches!(name.len(), 40 | 64)).then(|| Blob { path: path.to_path_buf(), name })
    }
}

/// Compares the model's files, and whatever else lies in its folder.
pub(super) fn verify(model: &Model, beside: &Path, out: Out) -> Result<Report> {
    let mut paths: Vec<PathBuf> = model.files().iter().map(|file| file.path().to_path_buf()).collect();
    paths.extend(super::others(model)?);
    let weights = model.files().len();
    let (mut blobs, mut not_covered) = (Vec::new(), Vec::new());
    for (at, path) in paths.iter().enumerate() {
        match Blob::of(path) {
            Some(blob) => blobs.push(blob),
            None if at < weights => {
                let message = format!(
                    "{}: nothing says what it must be: there is no manifest at {} (`spoc-loader manifest` writes one), and it is no blob of a Hugging Face cache",
                    path.display(),
                    beside.display()
                );
                return Err(Failure::new("no_manifest", message).at(path));
            }
            None => not_covered.push(path.to_string_lossy().into_owned()),
        }
    }
    let mut digests: Vec<&'static str> = blobs.iter().map(|blob| function(blob)).collect();
    digests.sort_unstable();
    digests.dedup();
    Ok(Report {
        against: "blob_names",
        manifest: None,
        digests,
        files: blobs.len(),
        tensors: model.tensors().len(),
        bytes: compare(&blobs, out)?,
        not_covered,
        seconds: 0.0,
        gb_per_s: 0.0,
    })
}

fn function(blob: &Blob) -> &'static str {
    if blob.name.len() == 64 { "sha256" } else { "git-sha1" }
}

fn compare(blobs: &[Blob], out: Out) -> Result<u64> {
    let mut files = Vec::with_capacity(blobs.len());
    for blob in blobs {
        files.push(Arc::new(WeightFile::open(&blob.path)?));
    }
    let bytes = files.iter().map(|file| file.len_bytes()).sum();
    let bar = progress::bar("verifying", bytes, out.is_json());
    let mut in_order = InOrder::new();
    for (blob, file) in blobs.iter().zip(&files) {
        let found = digest(blob, file, &mut in_order, |bytes| bar.inc(bytes))?;
        if found != blob.name {
            let message = format!(
                "{}: digest_mismatch: the file of {} bytes: expected {} {} (the blob's name), found {found}",
                blob.path.display(),
                file.len_bytes(),
                function(blob),
                blob.name
            );
            return Err(Failure::new("digest_mismatch", message).at(&blob.path).exit(EXIT_DAMAGED));
        }
    }
    bar.finish_and_clear();
    Ok(bytes)
}

fn digest(blob: &Blob, file: &Arc<WeightFile>, in_order: &mut InOrder, read: impl Fn(u64)) -> Result<String> {
    if function(blob) == "sha256" {
        let mut digester = Digester::new(DigestKind::Sha256);
        in_order.read(file, 0, |_, bytes| {
            digester.update(bytes);
            read(bytes.len() as u64);
            Ok(())
        })?;
        return Ok(digester.finish().to_string());
    }
    // What git hashes: the object's kind and length come first.
    let mut digester = sha1::Sha1::new_with_prefix(format!("blob {}\0", file.len_bytes()));
    in_order.read(file, 0, |_, bytes| {
        digester.update(bytes);
        read(bytes.len() as u64);
        Ok(())
    })?;
    Ok(digester.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
