//! Makes read plans.

use std::ops::Range;
use std::sync::Arc;

use super::{Piece, PlanOptions, PlannedRead, ReadPlan, SliceRuns};
use crate::file::WeightFile;
use crate::{BlockDigests, Error, ErrorKind, Extent, Result};

/// Alignment of reads in bytes: enough for every block device that is not told by the file itself.
const ALIGN_BYTES: u64 = 4096;

#[derive(Clone, Copy)]
struct Item {
    extent: Extent,
    device: u32,
    target: u32,
    target_offset: u64,
}

/// A stretch of one file that is read from end to end.
struct Run {
    file: u32,
    start: u64,
    end: u64,
    /// Where the grid that its reads are cut on begins, at or before `start`.
    base: u64,
    first_read: usize,
    items: Range<usize>,
}

/// Collects extents, then makes the plan.
pub struct PlanBuilder {
    files: Vec<Arc<WeightFile>>,
    options: PlanOptions,
    items: Vec<Item>,
    empty_targets: Vec<u32>,
    digests: Option<Arc<BlockDigests>>,
}

impl Run {
    fn read_count(&self, chunk: u64) -> u64 {
        (self.end - self.base).div_ceil(chunk)
    }
}

impl PlanBuilder {
    /// A builder for extents of these files.
    #[must_use]
    pub fn new(files: &[Arc<WeightFile>], options: PlanOptions) -> Self {
        Self { files: files.to_vec(), options, items: Vec::new(), empty_targets: Vec::new(), digests: None }
    }

    /// Has every chunk checked against these digests after it was read: a read whose bytes differ completes with
    /// `digest_mismatch`. Extents must lie in tensors; of blocks that one wants in part, the rest is read along. Reads
    /// are then cut where blocks end, which costs at most one more for each stretch. The reader needs
    /// [`crate::ReaderOptions::check_threads`].
    ///
    /// # Errors
    /// `invalid_argument` when the digests are of other files, `staging_too_small` when a chunk holds no block.
    pub fn check_against(&mut self, digests: &Arc<BlockDigests>) -> Result<()> {
        if !digests.is_of(&self.files) {
            let message = "the digests to check against are of other files than the plan";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let (chunk, block) = (self.options.chunk_bytes, digests.block_bytes());
        if u64::from(chunk) < block {
            let message = format!("chunks of {chunk} bytes cannot hold the manifest's blocks of {block}");
            return Err(Error::new(ErrorKind::StagingTooSmall, message));
        }
        self.digests = Some(Arc::clone(digests));
        Ok(())
    }

    /// Wants `extent` in `target`, on device 0, from `target_offset` on. Extents may overlap: their bytes are read once.
    ///
    /// # Errors
    /// `offset_out_of_bounds` when the extent is not inside its file, or its place in the target passes 64 bits.
    pub fn add(&mut self, target: u32, extent: Extent, target_offset: u64) -> Result<()> {
        self.add_on(0, target, extent, target_offset)
    }

    /// Wants the runs of a slice in `target` of `device`, one after the other from `target_offset` on. Runs that lie
    /// close together are read along with what is between them, as [`PlanOptions::gap_bytes`] says; a run that is a
    /// copy of its own on the device costs what [`SliceRuns::is_cheaper_whole`] weighs.
    ///
    /// # Errors
    /// As of [`PlanBuilder::add_on`]; then the runs before it stay wanted.
    pub fn add_slice(
        &mut self,
        device: u32,
        target: u32,
        runs: &SliceRuns,
        target_offset: u64,
    ) -> Result<()> {
        let mut at = target_offset;
        self.items.reserve(usize::try_from(runs.count()).unwrap_or(0));
        for extent in runs.extents() {
            self.add_on(device, target, extent, at)?;
            at = at.saturating_add(extent.len_bytes);
        }
        if runs.count() == 0 {
            self.empty_targets.push(target);
        }
        Ok(())
    }

    /// Wants `extent` in `target` of `device`. What several devices want is read once and yields a piece for each.
    ///
    /// # Errors
    /// As of [`PlanBuilder::add`].
    pub fn add_on(&mut self, device: u32, target: u32, extent: Extent, target_offset: u64) -> Result<()> {
        let out = |message: String| Error::new(ErrorKind::OffsetOutOfBounds, message);
        let Some(file) = self.files.get(extent.file as usize) else {
            return Err(out(format!("file {} of a plan with {} files", extent.file, self.files.len())));
        };
        let inside = extent.offset.checked_add(extent.len_bytes).is_some_and(|end| end <= file.len_bytes());
        if !inside || target_offset.checked_add(extent.len_bytes).is_none() {
            let message = format!(
                "an extent of {} bytes does not fit, the file has {}",
                extent.len_bytes,
                file.len_bytes()
            );
            return Err(out(message).in_file(file.path()).at(extent.offset));
        }
        if extent.len_bytes == 0 {
            self.empty_targets.push(target);
        } else {
            self.items.push(Item { extent, device, target, target_offset });
        }
        Ok(())
    }

    /// Makes the plan.
    ///
    /// # Errors
    /// `invalid_argument` for a chunk that is 0 or no multiple of 4096, `too_large` beyond 2^32 reads or pieces.
    pub fn build(mut self) -> Result<ReadPlan> {
        let chunk = u64::from(self.options.chunk_bytes);
        let align = self.align();
        if chunk == 0 || chunk % align != 0 {
            let message = format!("chunks of {chunk} bytes, expected a multiple of {align}");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        // Blocks and alignments are powers of two: what is a multiple of the larger is one of both.
        let grid = self.digests.as_ref().map(|digests| digests.block_bytes().max(align));
        let chunk = grid.map_or(chunk, |grid| chunk / grid * grid);
        if chunk == 0 {
            let message = "chunks that cannot hold a block at the file's alignment";
            return Err(Error::new(ErrorKind::StagingTooSmall, message));
        }
        // The whole key, so that one set of extents makes one plan, in whatever order it was added.
        self.items.sort_unstable_by_key(|i| (i.extent, i.device, i.target, i.target_offset));
        let runs = self.runs(align, chunk, grid.is_some());
        let mut reads = blank_reads(&runs, chunk)?;
        let pieces = self.fill(&runs, &mut reads, chunk)?;
        Ok(ReadPlan {
            wanted_bytes: self.items.iter().map(|i| i.extent.len_bytes).sum(),
            files: self.files,
            reads,
            pieces,
            empty_targets: self.empty_targets,
            digests: self.digests,
            chunk_bytes: self.options.chunk_bytes,
        })
    }

    fn align(&self) -> u64 {
        let asked = self.files.iter().map(|f| u64::from(f.direct_align().offset_bytes));
        asked.filter(|a| a.is_power_of_two()).fold(ALIGN_BYTES, u64::max)
    }

    /// What must arrive so that a range of a file can be used.
    fn needed(&self, file: u32, range: Range<u64>) -> Range<u64> {
        self.digests.as_ref().map_or(range.clone(), |digests| digests.around(file, range))
    }

    /// Stretches that touch, overlap or leave only a small gap are one.
    fn runs(&self, align: u64, chunk: u64, on_grid: bool) -> Vec<Run> {
        let gap = u64::from(self.options.gap_bytes).min(chunk / 2);
        let bounds = |item: &Item| {
            let needed = self.needed(item.extent.file, item.extent.offset..item.extent.end());
            (needed.start / align * align, needed.end.next_multiple_of(align))
        };
        let joins = |run: &Run, item: &Item| {
            run.file == item.extent.file && bounds(item).0 <= run.end.saturating_add(gap)
        };
        // Counted first: the number of allocations must not grow with the number of runs.
        let mut count = 0;
        let mut current: Option<Run> = None;
        let mut runs = Vec::new();
        for pass in 0..2 {
            if pass == 1 {
                runs.reserve_exact(count);
            }
            for (i, item) in self.items.iter().enumerate() {
                let (start, end) = bounds(item);
                match &mut current {
                    Some(run) if joins(run, item) => {
                        run.end = run.end.max(end);
                        run.items.end = i + 1;
                    }
                    _ => {
                        let base = if on_grid { start / chunk * chunk } else { start };
                        let file = item.extent.file;
                        let new = Run { file, start, end, base, first_read: 0, items: i..i + 1 };
                        if let (1, Some(done)) = (pass, current.replace(new)) {
                            runs.push(done);
                        }
                        count += 1;
                    }
                }
            }
            if let (1, Some(done)) = (pass, current.take()) {
                runs.push(done);
            }
        }
        let mut first_read = 0;
        for run in &mut runs {
            run.first_read = first_read;
            first_read += usize::try_from(run.read_count(chunk)).unwrap_or(usize::MAX >> 1);
        }
        runs
    }

    /// Writes the pieces, grouped by read, and each read's need.
    fn fill(&self, runs: &[Run], reads: &mut [PlannedRead], chunk: u64) -> Result<Vec<Piece>> {
        // First the number of pieces of each read, kept where its range will stand.
        self.each_piece(runs, chunk, |read, _| reads[read].pieces.end += 1);
        let mut total = 0u32;
        for read in reads.iter_mut() {
            let count = read.pieces.end;
            read.pieces = total..total;
            total = total.checked_add(count).ok_or_else(|| too_large("pieces"))?;
        }
        let blank = Piece { chunk_offset: 0, len_bytes: 0, target: 0, device: 0, target_offset: 0 };
        let mut pieces = vec![blank; total as usize];
        self.each_piece(runs, chunk, |read, piece| {
            let read = &mut reads[read];
            let start = read.offset + u64::from(piece.chunk_offset);
            let needed = self.needed(read.file, start..start + u64::from(piece.len_bytes));
            let (start, end) = (narrow(needed.start - read.offset), narrow(needed.end - read.offset));
            let first = read.pieces.is_empty();
            read.need.start = if first { start } else { read.need.start.min(start) };
            read.need.end = read.need.end.max(end);
            pieces[read.pieces.end as usize] = piece;
            read.pieces.end += 1;
        });
        Ok(pieces)
    }

    fn each_piece(&self, runs: &[Run], chunk: u64, mut see: impl FnMut(usize, Piece)) {
        for run in runs {
            for item in &self.items[run.items.clone()] {
                let mut at = item.extent.offset;
                while at < item.extent.end() {
                    let number = (at - run.base) / chunk;
                    let grid_start = run.base + number * chunk;
                    let read_start = grid_start.max(run.start);
                    let len = item.extent.end().min(grid_start + chunk) - at;
                    let piece = Piece {
                        chunk_offset: narrow(at - read_start),
                        len_bytes: narrow(len),
                        target: item.target,
                        device: item.device,
                        target_offset: item.target_offset + (at - item.extent.offset),
                    };
                    see(run.first_read + usize::try_from(number).unwrap_or(usize::MAX), piece);
                    at += len;
                }
            }
        }
    }
}

/// Every read of the runs, without pieces.
fn blank_reads(runs: &[Run], chunk: u64) -> Result<Vec<PlannedRead>> {
    let count: u64 = runs.iter().map(|run| run.read_count(chunk)).sum();
    let count = u32::try_from(count).map_err(|_| too_large("reads"))?;
    let mut reads = Vec::with_capacity(count as usize);
    for run in runs {
        let mut offset = run.start;
        while offset < run.end {
            let grid_end = run.base + ((offset - run.base) / chunk + 1) * chunk;
            let len_bytes = narrow(grid_end.min(run.end) - offset);
            reads.push(PlannedRead { file: run.file, offset, len_bytes, need: 0..0, pieces: 0..0 });
            offset += u64::from(len_bytes);
        }
    }
    Ok(reads)
}

fn too_large(what: &str) -> Error {
    Error::new(
        ErrorKind::TooLarge,
        format!("a plan of more than 2^32 {what}: use larger chunks or several plans"),
    )
}

/// A number that a chunk's 32-bit length bounds.
fn narrow(within_chunk: u64) -> u32 {
    u32::try_from(within_chunk).unwrap_or(u32::MAX)
}
