//! A file's bytes in their order, at the speed of the reader: what a digest of a whole file or tensor needs.
//!
//! Reads come back in any order; those that are early wait as chunks. That cannot fill the ring with chunks that wait:
//! all reads of a file take one lane here, each lane starts them in order, so that the earliest one always has a chunk.

use std::sync::Arc;

use crate::file::WeightFile;
use crate::{
    AnonymousRegion, Chunk, Error, ErrorKind, Extent, IoMode, PlanBuilder, PlanOptions, ReadClass,
    ReadRequest, Reader, ReaderOptions, Result,
};

const CHUNK_BYTES: u32 = 1 << 20;
const CHUNKS: usize = 12;

/// Reads files one after the other, each in its order. Holds a ring of 12 MiB.
pub struct InOrder {
    direct: Option<Reader>,
    buffered: Option<Reader>,
}

impl InOrder {
    /// Starts nothing yet: a reader is started for the first file that needs it.
    #[must_use]
    pub fn new() -> Self {
        Self { direct: None, buffered: None }
    }

    /// Gives `each` every byte of the file from `start` on, in order: the position of the first, and the bytes.
    ///
    /// # Errors
    /// What reading or `each` says; `changed` or `truncated` when the file is not what it was when it was opened.
    pub fn read(
        &mut self,
        file: &Arc<WeightFile>,
        start: u64,
        each: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let len_bytes = file.len_bytes().saturating_sub(start);
        if len_bytes == 0 {
            return file.check_unchanged();
        }
        let cached = file.residency(start, len_bytes).share > 0.5;
        let (mode, other) =
            if cached { (IoMode::Buffered, &mut self.direct) } else { (IoMode::Direct, &mut self.buffered) };
        // One ring at a time.
        *other = None;
        let reader = if cached { &mut self.buffered } else { &mut self.direct };
        let reader = match reader {
            Some(reader) => reader,
            None => reader.insert(started(mode)?),
        };
        stream(reader, file, start, len_bytes, each)
    }
}

impl Default for InOrder {
    fn default() -> Self {
        Self::new()
    }
}

/// As [`InOrder::read`], for one file.
///
/// # Errors
/// As of [`InOrder::read`].
pub fn read_in_order(
    file: &Arc<WeightFile>,
    start: u64,
    each: impl FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    InOrder::new().read(file, start, each)
}

fn started(mode: IoMode) -> Result<Reader> {
    let region = AnonymousRegion::new(CHUNKS * CHUNK_BYTES as usize)?;
    let options = ReaderOptions { mode, chunk_bytes: CHUNK_BYTES, threads: 2, ..ReaderOptions::default() };
    Reader::start(Arc::new(region), options)
}

fn stream(
    reader: &Reader,
    file: &Arc<WeightFile>,
    start: u64,
    len_bytes: u64,
    mut each: impl FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let options = PlanOptions { chunk_bytes: CHUNK_BYTES, ..PlanOptions::default() };
    let mut builder = PlanBuilder::new(std::slice::from_ref(file), options);
    builder.add(0, Extent { file: 0, offset: start, len_bytes }, 0)?;
    let plan = Arc::new(builder.build()?);
    let request =
        reader.submit(ReadRequest { plan: Arc::clone(&plan), class: ReadClass::Demand, token: 0 })?;
    let mut early: Vec<(u32, Chunk)> = Vec::with_capacity(CHUNKS);
    let mut next = 0;
    let mut failed = None;
    for _ in plan.reads() {
        let Ok(completion) = reader.completions().recv() else {
            return Err(Error::new(ErrorKind::Cancelled, "the reader was closed"));
        };
        match completion.outcome {
            Ok(chunk) if failed.is_none() => early.push((completion.read, chunk)),
            Ok(_) => {}
            Err(error) => {
                if failed.is_none() {
                    early.clear();
                    reader.cancel(request);
                }
                failed.get_or_insert_with(|| (*error).clone());
            }
        }
        while let Some(at) = early.iter().position(|(read, _)| *read == next) {
            let (read, chunk) = early.swap_remove(at);
            let planned = &plan.reads()[read as usize];
            let (from, to) = (planned.need.start as usize, planned.need.end as usize);
            next += 1;
            if let Err(error) = each(planned.offset + from as u64, &chunk.bytes()[from..to]) {
                early.clear();
                reader.cancel(request);
                failed = Some(error);
            }
        }
    }
    failed.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn every_byte_comes_once_in_order_warm_and_cold() {
        let bytes: Vec<u8> =
            (0..40_000_003u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 11).to_le_bytes()[0]).collect();
        let mut temp = tempfile::NamedTempFile::new().unwrap();
        temp.write_all(&bytes).unwrap();
        temp.as_file().sync_all().unwrap();
        let file = Arc::new(WeightFile::open(temp.path()).unwrap());
        let mut in_order = InOrder::new();
        for (start, cold) in
            [(0u64, false), (12_345, true), (bytes.len() as u64 - 1, false), (bytes.len() as u64, true)]
        {
            if cold {
                // SAFETY: advice on an open descriptor.
                unsafe {
                    libc::posix_fadvise(
                        std::os::fd::AsRawFd::as_raw_fd(temp.as_file()),
                        0,
                        0,
                        libc::POSIX_FADV_DONTNEED,
                    )
                };
            }
            let mut found = Vec::new();
            in_order
                .read(&file, start, |at, part| {
                    assert_eq!(at, start + found.len() as u64);
                    found.extend_from_slice(part);
                    Ok(())
                })
                .unwrap();
            assert!(found == bytes[usize::try_from(start).unwrap()..], "from {start}");
        }
        let stop = in_order.read(&file, 0, |at, _| {
            if at < 5 << 20 { Ok(()) } else { Err(Error::new(ErrorKind::InvalidArgument, "enough")) }
        });
        assert_eq!(stop.unwrap_err().message(), "enough");
        temp.as_file().set_len(10).unwrap();
        let error = in_order.read(&file, 0, |_, _| Ok(())).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Truncated | ErrorKind::Changed), "{error}");
    }
}
