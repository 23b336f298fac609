//! Making a manifest: every file is read once, from its first byte to its last; several files at once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{Manifest, ManifestFile, ManifestTensor};
use crate::digest::{Digest, DigestKind, Digester, InOrder};
use crate::{Error, ErrorKind, Model, Result, Tensor};

/// What one file yields.
struct Made {
    file: ManifestFile,
    tensors: Vec<ManifestTensor>,
}

impl Manifest {
    /// Reads every byte of the model's files and makes their manifest. `progress` is told of bytes as they were read, by
    /// several threads.
    ///
    /// # Errors
    /// What reading says; `changed` when a file is written to meanwhile.
    pub fn of(model: &Model, kind: DigestKind, progress: &(dyn Fn(u64) + Sync)) -> Result<Self> {
        let count = model.files().len();
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let made = Mutex::new((0..count).map(|_| None).collect::<Vec<Option<Result<Made>>>>());
        let work = || {
            let mut in_order = InOrder::new();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                if at >= count || stop.load(Ordering::Relaxed) {
                    return;
                }
                let one = of_file(model, at, kind, &mut in_order, progress);
                stop.fetch_or(one.is_err(), Ordering::Relaxed);
                made.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(one);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..cores.min(count).min(8) {
                scope.spawn(work);
            }
        });
        let mut manifest = Self {
            digest: kind,
            block_bytes: Self::DEFAULT_BLOCK_BYTES,
            format: model.format().to_string(),
            files: Vec::with_capacity(count),
            tensors: Vec::with_capacity(model.tensors().len()),
        };
        let made = made.into_inner().unwrap_or_else(PoisonError::into_inner);
        // A file that was left out because of an error comes without an answer, and the error follows or came before.
        for one in made.into_iter().flatten() {
            let Made { file, tensors } = one?;
            manifest.files.push(file);
            manifest.tensors.extend(tensors);
        }
        Ok(manifest)
    }
}

/// The tensors of one file, in order.
pub(super) fn tensors_of(model: &Model, file: usize) -> &[Tensor] {
    let tensors = model.tensors();
    let start = tensors.partition_point(|t| (t.extent.file as usize) < file);
    let end = tensors.partition_point(|t| t.extent.file as usize <= file);
    &tensors[start..end]
}

/// Length of what precedes the first tensor with bytes.
pub(super) fn header_bytes(model: &Model, file: usize) -> u64 {
    let first = tensors_of(model, file).iter().find(|t| t.extent.len_bytes > 0);
    first.map_or(model.files()[file].len_bytes(), |t| t.extent.offset)
}

/// The digests of one tensor in the making.
struct Making {
    whole: Digester,
    block: Digester,
    blocks: Vec<u8>,
}

impl Making {
    fn new(kind: DigestKind) -> Self {
        Self { whole: Digester::new(kind), block: Digester::new(kind), blocks: Vec::new() }
    }

    fn end_block(&mut self, kind: DigestKind) {
        let done = std::mem::replace(&mut self.block, Digester::new(kind)).finish();
        self.blocks.extend_from_slice(done.bytes());
    }

    /// Takes bytes that begin at `at` in the file; the tensor ends at `end`.
    fn take(&mut self, kind: DigestKind, mut at: u64, mut bytes: &[u8], end: u64) {
        self.whole.update(bytes);
        while !bytes.is_empty() {
            let block_end =
                ((at / Manifest::DEFAULT_BLOCK_BYTES + 1) * Manifest::DEFAULT_BLOCK_BYTES).min(end);
            let len = usize::try_from(block_end - at).unwrap_or(usize::MAX).min(bytes.len());
            self.block.update(&bytes[..len]);
            at += len as u64;
            bytes = &bytes[len..];
            if at == block_end {
                self.end_block(kind);
            }
        }
    }

    fn finish(mut self, kind: DigestKind) -> (Digest, Vec<u8>) {
        if self.blocks.len() <= kind.len_bytes() {
            self.blocks = Vec::new();
        }
        (self.whole.finish(), self.blocks)
    }
}

fn of_file(
    model: &Model,
    at: usize,
    kind: DigestKind,
    in_order: &mut InOrder,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Made> {
    let (file, tensors) = (&model.files()[at], tensors_of(model, at));
    let header_bytes = header_bytes(model, at);
    let mut header = Digester::new(kind);
    let mut making = Making::new(kind);
    let mut made = Vec::with_capacity(tensors.len());
    in_order.read(file, 0, |place, bytes| {
        let end = place + bytes.len() as u64;
        let within = |from: u64, to: u64| {
            let index = |at: u64| usize::try_from(at.clamp(place, end) - place).unwrap_or(0);
            &bytes[index(from)..index(to)]
        };
        header.update(within(0, header_bytes));
        while let Some(tensor) = tensors.get(made.len()).filter(|t| t.extent.offset < end) {
            let part = within(tensor.extent.offset, tensor.extent.end());
            making.take(kind, place.max(tensor.extent.offset), part, tensor.extent.end());
            if tensor.extent.end() > end {
                break;
            }
            made.push(entry(tensor, std::mem::replace(&mut making, Making::new(kind)).finish(kind)));
        }
        progress(bytes.len() as u64);
        Ok(())
    })?;
    // Empty ones may lie where the file ends.
    for tensor in &tensors[made.len()..] {
        if tensor.extent.len_bytes > 0 {
            let message = format!("tensor {} was not read to its end", crate::error::quoted(&tensor.name));
            return Err(Error::new(ErrorKind::Truncated, message).in_file(file.path()));
        }
        made.push(entry(tensor, Making::new(kind).finish(kind)));
    }
    let name = file.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
    let file = ManifestFile { name, len_bytes: file.len_bytes(), header_bytes, header: header.finish() };
    Ok(Made { file, tensors: made })
}

fn entry(tensor: &Tensor, (digest, blocks): (Digest, Vec<u8>)) -> ManifestTensor {
    ManifestTensor {
        name: tensor.name.clone(),
        dtype: tensor.dtype.name().to_owned(),
        shape: tensor.shape.clone(),
        file: tensor.extent.file,
        offset: tensor.extent.offset,
        len_bytes: tensor.extent.len_bytes,
        digest,
        blocks,
    }
}
