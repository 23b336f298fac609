//! A manifest against an open model: all but the tensors' bytes.

use std::sync::Arc;

use super::blocks::Expected;
use super::make::header_bytes;
use super::{BLOCK_BYTES, BlockDigests, Manifest, ManifestTensor};
use crate::digest::Digester;
use crate::error::quoted;
use crate::{Error, ErrorKind, Model, Result, Tensor};

/// Longest text that a manifest of this model can have, in bytes: with the longest digests, the shortest blocks, and
/// every character of a name escaped.
pub(super) fn longest_bytes(model: &Model) -> u64 {
    const FIXED: u64 = 64 << 10;
    const OF_ENTRY: u64 = 1024;
    const OF_NUMBER: u64 = 24;
    const OF_BLOCK: u64 = 64;
    let names = |len: usize| 6 * len as u64;
    let files = model.files().iter().map(|file| OF_ENTRY + names(file.path().as_os_str().len()));
    let tensors = model.tensors().iter().map(|tensor| {
        let blocks = tensor.extent.len_bytes / BLOCK_BYTES.start() + 2;
        OF_ENTRY + names(tensor.name.len()) + OF_NUMBER * tensor.shape.len() as u64 + OF_BLOCK * blocks
    });
    files.chain(tensors).fold(FIXED, u64::saturating_add)
}

fn other(message: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::ManifestMismatch, format!("the manifest is of another model: {message}"))
}

impl Manifest {
    /// Compares everything but the tensors' bytes with an open model, the bytes before its tensors included, and makes
    /// what those of the tensors are compared with as they are read.
    ///
    /// # Errors
    /// `manifest_mismatch` for another number or length of files, other tensors, or tensors of other types, shapes or
    /// places; `digest_mismatch` for the bytes of a header; what reading says.
    pub fn expectations(self, model: &Model) -> Result<Arc<BlockDigests>> {
        self.same_files(model)?;
        self.same_tensors(model)?;
        self.same_headers(model)?;
        let kind = self.digest;
        let blocks = self.tensors.iter().map(|t| t.blocks.len().max(kind.len_bytes())).sum();
        let mut digests = Vec::with_capacity(blocks);
        let mut tensors = Vec::with_capacity(self.tensors.len());
        for tensor in self.tensors.into_iter().filter(|t| t.len_bytes > 0) {
            let ManifestTensor { name, file, offset, len_bytes, digest, blocks, .. } = tensor;
            tensors.push(Expected { name, file, offset, len_bytes, first: digests.len() / kind.len_bytes() });
            digests.extend_from_slice(if blocks.is_empty() { digest.bytes() } else { &blocks });
        }
        Ok(Arc::new(BlockDigests::new(kind, self.block_bytes, model.files().to_vec(), tensors, digests)))
    }

    fn same_files(&self, model: &Model) -> Result<()> {
        let format = model.format().to_string();
        if self.format != format {
            return Err(
                other(format!("expected {}, found {format}", quoted(&self.format))).in_file(model.root())
            );
        }
        let (expected, found) = (self.files.len(), model.files().len());
        if expected != found {
            return Err(other(format!("expected {expected} files, found {found}")).in_file(model.root()));
        }
        for (at, (entry, file)) in self.files.iter().zip(model.files()).enumerate() {
            if entry.len_bytes != file.len_bytes() {
                let (expected, found) = (entry.len_bytes, file.len_bytes());
                return Err(other(format!("expected {expected} bytes, found {found}")).in_file(file.path()));
            }
            let header = header_bytes(model, at);
            if entry.header_bytes != header {
                let expected = entry.header_bytes;
                let message = format!("expected its first tensor at byte {expected}, found it at {header}");
                return Err(other(message).in_file(file.path()));
            }
        }
        Ok(())
    }

    fn same_tensors(&self, model: &Model) -> Result<()> {
        // Both are in the order of file and offset, unless somebody wrote the manifest by hand.
        let pairs = self.tensors.iter().zip(model.tensors());
        if let Some(at) = pairs.clone().position(|(entry, tensor)| !same(entry, tensor)) {
            return Err(self.difference(at, model).in_file(model.root()));
        }
        let (expected, found) = (self.tensors.len(), model.tensors().len());
        if expected != found {
            return Err(self.difference(expected.min(found), model).in_file(model.root()));
        }
        Ok(())
    }

    /// What tells the lists of tensors apart, at the first place where they are not the same.
    fn difference(&self, at: usize, model: &Model) -> Error {
        let listed = |name: &str| self.tensors.iter().any(|entry| entry.name == name);
        if let Some(tensor) = model.tensors().get(at)
            && !listed(&tensor.name)
        {
            return other(format!("tensor {} is not in the manifest", quoted(&tensor.name)));
        }
        let Some(entry) = self.tensors.get(at) else {
            return other(format!(
                "expected {} tensors, found {}",
                self.tensors.len(),
                model.tensors().len()
            ));
        };
        let Some(tensor) = model.tensor(&entry.name) else {
            return other(format!("tensor {} is not in the model", self.tensor_name(at)));
        };
        if same(entry, tensor) {
            return other(format!("tensor {} is listed out of the order of the files", self.tensor_name(at)));
        }
        let (dtype, extent) = (tensor.dtype.name(), tensor.extent);
        other(format!(
            "tensor {}: expected {} {} of {} bytes at byte {} of file {}, found {dtype} {} of {} bytes at byte {} of file {}",
            self.tensor_name(at),
            quoted(&entry.dtype),
            shape(&entry.shape),
            entry.len_bytes,
            entry.offset,
            entry.file,
            shape(&tensor.shape),
            extent.len_bytes,
            extent.offset,
            extent.file,
        ))
    }

    fn same_headers(&self, model: &Model) -> Result<()> {
        const STEP_BYTES: usize = 1 << 20;
        let mut buffer = vec![0; STEP_BYTES];
        for (entry, file) in self.files.iter().zip(model.files()) {
            let mut digester = Digester::new(self.digest);
            let mut at = 0;
            while at < entry.header_bytes {
                let step = usize::try_from(entry.header_bytes - at).unwrap_or(STEP_BYTES).min(STEP_BYTES);
                file.read_exact_at(&mut buffer[..step], at)?;
                digester.update(&buffer[..step]);
                at += step as u64;
            }
            let (expected, found) = (entry.header, digester.finish());
            if expected != found {
                file.check_unchanged()?;
                let (kind, bytes) = (self.digest, entry.header_bytes);
                let message =
                    format!("the header of {bytes} bytes: expected {kind} {expected}, found {found}");
                return Err(Error::new(ErrorKind::DigestMismatch, message).in_file(file.path()).at(0));
            }
        }
        Ok(())
    }
}

fn same(entry: &ManifestTensor, tensor: &Tensor) -> bool {
    entry.name == tensor.name
        && entry.dtype == tensor.dtype.name()
        && entry.shape == tensor.shape
        && entry.file == tensor.extent.file
        && entry.offset == tensor.extent.offset
        && entry.len_bytes == tensor.extent.len_bytes
}

/// Long shapes are cut: a header can hold a hundred thousand dimensions.
fn shape(shape: &[u64]) -> String {
    const SHOWN: usize = 8;
    let more = if shape.len() > SHOWN { ", …" } else { "" };
    let shown = shape.iter().take(SHOWN).map(u64::to_string).collect::<Vec<_>>().join(", ");
    format!("[{shown}{more}]")
}
