//! Expected digests of blocks, and the check of a chunk against them.
//!
//! Blocks are cut by the file: block n of a tensor ends where the file's position is a multiple of the block's length.
//! A plan that is checked cuts its reads at such positions too, and reads whole blocks where a part of one is wanted, so
//! that every block lies in one chunk: chunks can be checked in any order, by any number of threads, without a state.

use std::ops::Range;
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

    /// The whole blocks that a range of a file touches, within the tensors that it begins and ends in: what must be read
    /// for it to be checked. The range itself where no tensor has its ends.
    pub(crate) fn around(&self, file: u32, range: Range<u64>) -> Range<u64> {
        let block = self.block_bytes;
        let start = self
            .tensor_at(file, range.start)
            .map_or(range.start, |tensor| (range.start / block * block).max(tensor.offset));
        let end = range
            .end
            .checked_sub(1)
            .and_then(|last| self.tensor_at(file, last))
            .map_or(range.end, |tensor| range.end.next_multiple_of(block).min(tensor.end()));
        start..end
    }

    /// The tensor that this byte of a file belongs to.
    fn tensor_at(&self, file: u32, offset: u64) -> Option<&Expected> {
        let at = self.tensors.partition_point(|t| (t.file, t.end()) <= (file, offset));
        self.tensors.get(at).filter(|t| t.file == file && t.offset <= offset)
    }

    /// Compares every block that a wanted byte of a read lies in with what it must be.
    ///
    /// # Errors
    /// `digest_mismatch` for the first block that differs, or `changed` if the file did; `invalid_argument` for a piece
    /// that is outside of tensors.
    pub(crate) fn check(&self, plan: &ReadPlan, read: &PlannedRead, chunk: &[u8]) -> Result<()> {
        // Pieces of one read are in the order of the file: what was compared for one is not compared for the next.
        let mut compared = 0;
        for piece in plan.pieces_of(read) {
            let start = read.offset + u64::from(piece.chunk_offset);
            let end = start + u64::from(piece.len_bytes);
            if end > compared {
                compared = self.check_range(read, chunk, start.max(compared), end)?;
            }
        }
        Ok(())
    }

    /// Compares the blocks of a range; where the last of them ends in the file.
    fn check_range(&self, read: &PlannedRead, chunk: &[u8], start: u64, end: u64) -> Result<u64> {
        let file = &self.files[read.file as usize];
        let outside = |place: u64| {
            let message = "bytes that belong to no tensor cannot be checked against a manifest: read tensors, or parts of them";
            Error::new(ErrorKind::InvalidArgument, message).in_file(file.path()).at(place)
        };
        let mut from = start;
        while from < end {
            let tensor = self.tensor_at(read.file, from).ok_or_else(|| outside(from))?;
            let block = from / self.block_bytes;
            let opens = (block * self.block_bytes).max(tensor.offset);
            let to = ((block + 1) * self.block_bytes).min(tensor.end());
            let within = |place: u64| place.checked_sub(read.offset).and_then(|at| usize::try_from(at).ok());
            let bytes = within(opens).zip(within(to)).and_then(|(opens, to)| chunk.get(opens..to));
            let number = tensor.first
                + usize::try_from(block - tensor.offset / self.block_bytes).unwrap_or(usize::MAX);
            let (bytes, expected) = bytes.zip(self.digest(number)).ok_or_else(|| outside(opens))?;
            let found = self.kind.of(bytes);
            if found != expected {
                return Err(self.mismatch(tensor, file, opens, to, expected, found));
            }
            from = to;
        }
        Ok(from)
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
