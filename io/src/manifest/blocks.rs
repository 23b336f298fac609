//! Expected digests of blocks, and the check of a chunk against them.
//!
//! Blocks are cut by the file: block n of a tensor ends where the file's position is a multiple of the block's length.
//! A plan that is checked cuts its reads at such positions too, so that every block lies in one chunk: chunks can be
//! checked in any order, by any number of threads, without a state.

use std::sync::Arc;

use crate::digest::{Digest, DigestKind};
use crate::file::WeightFile;
use crate::{Error, ErrorKind, PlannedRead, ReadPlan, Result};

/// What every block of a model's tensors must be. Made by [`crate::Manifest::expectations`].
#[derive(Debug)]
pub struct BlockDigests {
    kind: DigestKind,
    block_bytes: u64,
    files: Vec<Arc<WeightFile>>,
    /// In the order of file and offset; without the empty ones.
    tensors: Vec<Expected>,
    digests: Vec<u8>,
}

/// One tensor.
#[derive(Debug)]
pub(crate) struct Expected {
    pub(crate) name: String,
    pub(crate) file: u32,
    pub(crate) offset: u64,
    pub(crate) len_bytes: u64,
    /// Position of its first block's digest.
    pub(crate) first: usize,
}

impl Expected {
    fn end(&self) -> u64 {
        self.offset + self.len_bytes
    }
}

/// Blocks of an extent: those of the file that it touches.
pub(crate) fn block_count(offset: u64, len_bytes: u64, block_bytes: u64) -> u64 {
    if len_bytes == 0 { 0 } else { (offset + len_bytes - 1) / block_bytes - offset / block_bytes + 1 }
}

impl BlockDigests {
    /// `digests` holds the digests of all blocks, one after the other; `tensors` are sorted and not empty.
    pub(crate) fn new(
        kind: DigestKind,
        block_bytes: u64,
        files: Vec<Arc<WeightFile>>,
        tensors: Vec<Expected>,
        digests: Vec<u8>,
    ) -> Self {
        Self { kind, block_bytes, files, tensors, digests }
    }

    /// The digest function.
    #[must_use]
    pub fn kind(&self) -> DigestKind {
        self.kind
    }

    /// Longest block in bytes, a power of two.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Whether it is about these files.
    pub(crate) fn is_of(&self, files: &[Arc<WeightFile>]) -> bool {
        self.files.len() == files.len() && self.files.iter().zip(files).all(|(a, b)| Arc::ptr_eq(a, b))
    }

    /// Compares every wanted byte of a read with what it must be.
    ///
    /// # Errors
    /// `digest_mismatch` for the first block that differs, or `changed` if the file did; `invalid_argument` for a piece
    /// that is no tensor, or leaves out parts of blocks.
    pub(crate) fn check(&self, plan: &ReadPlan, read: &PlannedRead, chunk: &[u8]) -> Result<()> {
        // Pieces of one read are in the order of the file; what several targets want follows each other.
        let mut before = None;
        for piece in plan.pieces_of(read) {
            let start = read.offset + u64::from(piece.chunk_offset);
            let end = start + u64::from(piece.len_bytes);
            if before.replace((start, end)) != Some((start, end)) {
                self.check_range(read, chunk, start, end)?;
            }
        }
        Ok(())
    }

    fn check_range(&self, read: &PlannedRead, chunk: &[u8], start: u64, end: u64) -> Result<()> {
        let file = &self.files[read.file as usize];
        let at = self.tensors.partition_point(|t| (t.file, t.end()) <= (read.file, start));
        let not_whole = || {
            let message = "only whole tensors can be checked against a manifest, and this range is a part of one, or none: read the tensor whole, or compare the model beforehand (`spoc-loader verify`) and read this without digests";
            Error::new(ErrorKind::InvalidArgument, message).in_file(file.path()).at(start)
        };
        let tensor =
            self.tensors.get(at).filter(|t| t.file == read.file && t.offset <= start && end <= t.end());
        let tensor = tensor.ok_or_else(not_whole)?;
        let first_block = tensor.offset / self.block_bytes;
        let mut from = start;
        while from < end {
            let block = from / self.block_bytes;
            let opens = (block * self.block_bytes).max(tensor.offset);
            let to = ((block + 1) * self.block_bytes).min(tensor.end());
            let bytes = (from == opens && to <= end).then(|| {
                let within = |place: u64| usize::try_from(place - read.offset).unwrap_or(usize::MAX);
                chunk.get(within(from)..within(to))
            });
            let bytes = bytes.flatten().ok_or_else(not_whole)?;
            let number = tensor.first + usize::try_from(block - first_block).unwrap_or(usize::MAX);
            let expected = self.digest(number).ok_or_else(not_whole)?;
            let found = self.kind.of(bytes);
            if found != expected {
                return Err(self.mismatch(tensor, file, from, to, expected, found));
            }
            from = to;
        }
        Ok(())
    }

    fn digest(&self, number: usize) -> Option<Digest> {
        let len = self.kind.len_bytes();
        let start = number.checked_mul(len)?;
        self.digests.get(start..start.checked_add(len)?).map(Digest::new)
    }

    fn mismatch(
        &self,
        tensor: &Expected,
        file: &WeightFile,
        from: u64,
        to: u64,
        expected: Digest,
        found: Digest,
    ) -> Error {
        // A file that was written to since it was opened says more than the digest.
        if let Err(changed) = file.check_unchanged() {
            return changed.at(from);
        }
        let message = format!(
            "tensor {}: the block of {} bytes at byte {} of the tensor: expected {} {expected}, found {found}",
            crate::error::quoted(&tensor.name),
            to - from,
            from - tensor.offset,
            self.kind,
        );
        Error::new(ErrorKind::DigestMismatch, message).in_file(file.path()).at(from)
    }
}
