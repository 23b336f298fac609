//! Chunks whose copies are enqueued together: one submission, one copy for each run that is contiguous on both sides.

use spoc_driver::{CopyRange, HostSource, Result, Segment, Stream};
use spoc_io::Chunk;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Copies that there is room for before a larger list is made (and kept).
const COPIES: usize = 64;

/// Lists of chunks that came back, to be used again.
#[derive(Default)]
struct Spare(Mutex<Vec<Vec<Chunk>>>);

impl Spare {
    fn take(&self, chunks_max: usize) -> Vec<Chunk> {
        let spare = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        spare.unwrap_or_else(|| Vec::with_capacity(chunks_max))
    }
}

/// The chunks of one submission while their copies run. Goes to the ledger; its end gives them back to the ring.
struct InFlight {
    chunks: Vec<Chunk>,
    start: *const u8,
    len_bytes: usize,
    spare: Arc<Spare>,
}

// SAFETY: the pointer is never read through here, and points into memory that the chunks, which are Send, keep.
unsafe impl Send for InFlight {}

// SAFETY: from `start` on lie the chunks, all of one ring, which keeps its memory mapped and in place while one of
// them lives. Of these bytes only those inside the chunks are ever copied (`Batch::copy` checks each range, and
// nobody else can name one, because this type does not leave the module); they are initialised, and belong to the
// chunks alone until this value is dropped. Bytes between two chunks may change meanwhile, and no copy reads them.
unsafe impl HostSource for InFlight {
    fn as_ptr(&self) -> *const u8 {
        self.start
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut chunks = std::mem::take(&mut self.chunks);
        chunks.clear();
        self.spare.0.lock().unwrap_or_else(PoisonError::into_inner).push(chunks);
    }
}

/// One copy of a batch.
struct Copy {
    /// First byte, as an address.
    src: usize,
    chunk: usize,
    dst: Segment,
    dst_offset: u64,
    len_bytes: usize,
}

/// Collects chunks of one ring and copies out of them, then enqueues all at once.
pub struct Batch {
    chunks: Vec<Chunk>,
    copies: Vec<Copy>,
    ranges: Vec<CopyRange<'static>>,
    chunks_max: usize,
    spare: Arc<Spare>,
}

impl Batch {
    /// One for up to `chunks_max` chunks at a time, of which up to `in_flight_max` batches have not run yet.
    #[must_use]
    pub fn new(chunks_max: usize, in_flight_max: usize) -> Batch {
        let spare = Spare(Mutex::new((0..in_flight_max).map(|_| Vec::with_capacity(chunks_max)).collect()));
        Batch {
            chunks: Vec::with_capacity(chunks_max),
            copies: Vec::with_capacity(COPIES),
            ranges: Vec::with_capacity(COPIES),
            chunks_max,
            spare: Arc::new(spare),
        }
    }

    /// How many chunks it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Takes a chunk; [`copy`](Batch::copy) then names parts of it.
    pub fn hold(&mut self, chunk: Chunk) {
        self.chunks.push(chunk);
    }

    /// Wants `len_bytes` bytes of the chunk taken last, from `src_offset` on, at `dst_offset` of `dst`. False if the
    /// chunk has not that many.
    #[must_use]
    pub fn copy(&mut self, src_offset: usize, dst: &Segment, dst_offset: u64, len_bytes: usize) -> bool {
        let Some(chunk) = self.chunks.last() else { return false };
        if src_offset.checked_add(len_bytes).is_none_or(|end| end > chunk.len_bytes()) {
            return false;
        }
        let src = chunk.as_ptr().addr() + src_offset;
        let chunk = self.chunks.len() - 1;
        self.copies.push(Copy { src, chunk, dst: dst.clone(), dst_offset, len_bytes });
        true
    }

    /// Enqueues everything in one submission and is empty afterwards. Answers how many copies that were.
    ///
    /// # Errors
    /// What the driver says; then everything is still here, and nothing of it in use.
    pub fn enqueue(&mut self, stream: &Stream) -> Result<u64> {
        if self.chunks.len() > 1 {
            // Neighbours in the ring are mostly neighbours in the file, but come in any order.
            self.copies.sort_unstable_by_key(|copy| copy.src);
        }
        let chunks = std::mem::replace(&mut self.chunks, self.spare.take(self.chunks_max));
        match submit(stream, &self.spare, chunks, &self.copies, &mut self.ranges) {
            Ok(copies) => {
                self.copies.clear();
                Ok(copies)
            }
            Err((error, chunks)) => {
                self.chunks = chunks;
                Err(error)
            }
        }
    }

    /// Gives every chunk back to its ring.
    pub fn clear(&mut self) {
        self.copies.clear();
        self.chunks.clear();
    }

    /// Enqueues each chunk in a submission of its own, tells `each` how that went, in the order in which they were
    /// taken, and is empty afterwards.
    pub fn enqueue_each(&mut self, stream: &Stream, mut each: impl FnMut(Result<u64>)) {
        let chunks = std::mem::replace(&mut self.chunks, self.spare.take(self.chunks_max));
        for (number, chunk) in chunks.into_iter().enumerate() {
            let mut alone = self.spare.take(self.chunks_max);
            alone.push(chunk);
            let mut own: Vec<Copy> = self.copies.extract_if(.., |copy| copy.chunk == number).collect();
            own.sort_unstable_by_key(|copy| copy.src);
            let outcome = submit(stream, &self.spare, alone, &own, &mut self.ranges);
            each(outcome.map_err(|(error, _chunks)| error));
        }
    }
}

/// One submission. On an error the chunks come back.
fn submit(
    stream: &Stream,
    spare: &Arc<Spare>,
    chunks: Vec<Chunk>,
    copies: &[Copy],
    scratch: &mut Vec<CopyRange<'static>>,
) -> Result<u64, (spoc_driver::Error, Vec<Chunk>)> {
    let start = chunks.iter().map(Chunk::as_ptr).min().unwrap_or(std::ptr::null());
    let end = chunks.iter().map(|chunk| chunk.as_ptr().addr() + chunk.len_bytes()).max().unwrap_or(0);
    let mut ranges: Vec<CopyRange<'_>> = std::mem::take(scratch);
    for copy in copies {
        let src_offset = copy.src - start.addr();
        match ranges.last_mut() {
            Some(last)
                if last.src_offset + last.len_bytes == src_offset
                    && last.dst_offset + last.len_bytes as u64 == copy.dst_offset
                    && last.dst.is(&copy.dst) =>
            {
                last.len_bytes += copy.len_bytes;
            }
            _ => ranges.push(CopyRange {
                src_offset,
                dst: &copy.dst,
                dst_offset: copy.dst_offset,
                len_bytes: copy.len_bytes,
            }),
        }
    }
    let source = InFlight { chunks, start, len_bytes: end - start.addr(), spare: Arc::clone(spare) };
    let count = ranges.len() as u64;
    let outcome = stream.copy_to_device(source, &ranges);
    *scratch = emptied(ranges);
    match outcome {
        Ok(()) => Ok(count),
        Err(returned) => {
            let mut source = returned.source;
            Err((returned.error, std::mem::take(&mut source.chunks)))
        }
    }
}

/// The same allocation for ranges of another lifetime: an empty list has none to outlive.
fn emptied(mut ranges: Vec<CopyRange<'_>>) -> Vec<CopyRange<'static>> {
    ranges.clear();
    ranges.into_iter().map(|_| -> CopyRange<'static> { unreachable!("the list is empty") }).collect()
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("chunks", &self.chunks.len())
            .field("copies", &self.copies.len())
            .finish()
    }
}
