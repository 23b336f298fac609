//! Manifests: what every byte of a model must be, in a file beside it. `docs/manifest.md` describes the format.

mod blocks;
mod compare;
mod make;
mod parse;
mod write;

use std::path::{Path, PathBuf};

pub use blocks::BlockDigests;
pub use write::Unwritten;

use crate::digest::{Digest, DigestKind};
use crate::{Error, ErrorKind, Model, Result};

/// The format's version, as in the field `spoc_manifest`.
pub(crate) const VERSION: u64 = 1;
/// Block lengths that are read.
pub(crate) const BLOCK_BYTES: std::ops::RangeInclusive<u64> = 64 << 10..=64 << 20;
/// What follows a weight file's name, and what a folder's manifest is called.
const BESIDE_A_FILE: &str = ".spoc-manifest.json";
const IN_A_FOLDER: &str = "spoc-manifest.json";

/// What a model's files and tensors must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The digest function of all its digests.
    pub digest: DigestKind,
    /// Longest block in bytes, a power of two from 64 KiB to 64 MiB.
    pub block_bytes: u64,
    /// Format of the weight files, such as `safetensors`.
    pub format: String,
    /// The weight files, in the model's order.
    pub files: Vec<ManifestFile>,
    /// The tensors, in the order of file and offset.
    pub tensors: Vec<ManifestTensor>,
}

/// A weight file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestFile {
    /// Its name, for people: a model may be renamed.
    pub name: String,
    /// Its length in bytes.
    pub len_bytes: u64,
    /// Length in bytes of what precedes the first tensor that has bytes; the file's length if there is none.
    pub header_bytes: u64,
    /// Digest of those bytes.
    pub header: Digest,
}

/// A tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestTensor {
    /// Its name.
    pub name: String,
    /// Its element type, in the format's terms.
    pub dtype: String,
    /// Its dimensions, in the order of the file.
    pub shape: Vec<u64>,
    /// Position of its file.
    pub file: u32,
    /// Its first byte, from the start of the file.
    pub offset: u64,
    /// Its length in bytes.
    pub len_bytes: u64,
    /// Digest of all its bytes.
    pub digest: Digest,
    /// Digests of its blocks, one after the other; empty where all its bytes are one block, or none.
    pub blocks: Vec<u8>,
}

impl Manifest {
    /// Block length of manifests that are made, in bytes. A reader's chunks must be as long at least.
    pub const DEFAULT_BLOCK_BYTES: u64 = 256 << 10;

    /// Where the manifest of a model lies unless somebody says otherwise: beside a single file or the first part of a
    /// split one, in the folder of a model with an index.
    #[must_use]
    pub fn default_path(model: &Model) -> PathBuf {
        let root = model.root();
        let is_index = root.extension().is_some_and(|e| e.eq_ignore_ascii_case("json"));
        if root.is_dir() {
            return root.join(IN_A_FOLDER);
        }
        if is_index {
            return root.parent().unwrap_or(Path::new("")).join(IN_A_FOLDER);
        }
        let mut name = root.as_os_str().to_owned();
        name.push(BESIDE_A_FILE);
        PathBuf::from(name)
    }

    /// Reads the manifest of `model` at `path`. A file that is longer than any manifest of this model is not read.
    ///
    /// # Errors
    /// `no_manifest` if there is no such file, `not_a_regular_file`, `io_error`, `manifest_mismatch` if it is too long,
    /// and as of [`Manifest::parse`].
    pub fn read(path: &Path, model: &Model) -> Result<Self> {
        let file = crate::WeightFile::open(path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                let message = "there is no manifest; `spoc-loader manifest` writes one";
                Error::new(ErrorKind::NoManifest, message).in_file(path)
            }
            _ => error,
        })?;
        let longest = compare::longest_bytes(model);
        if file.len_bytes() > longest {
            let found = file.len_bytes();
            let message =
                format!("expected the manifest of this model, at most {longest} bytes, found {found}");
            return Err(Error::new(ErrorKind::ManifestMismatch, message).in_file(path));
        }
        let mut bytes = vec![0; usize::try_from(file.len_bytes()).unwrap_or(0)];
        file.read_exact_at(&mut bytes, 0)?;
        file.check_unchanged()?;
        Self::parse(&bytes).map_err(|error| error.in_file(path))
    }

    fn tensor_name(&self, at: usize) -> String {
        self.tensors.get(at).map_or_else(String::new, |tensor| crate::error::quoted(&tensor.name))
    }
}
