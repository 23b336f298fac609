//! Files on a disk, readers over small rings, and putting pieces together again.

#![allow(dead_code, reason = "each test takes what it needs")]

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use spoc_io::{
    AnonymousRegion, Completion, Extent, PlanBuilder, PlanOptions, ReadClass, ReadPlan, ReadRequest, Reader,
    ReaderOptions, RequestId, WeightFile,
};

pub const CHUNK: u32 = 64 << 10;

pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = vec![0; len];
    for byte in &mut bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *byte = state.to_le_bytes()[3];
    }
    bytes
}

/// One file on the file system of the build folder.
pub struct Fixture {
    _folder: tempfile::TempDir,
    pub path: PathBuf,
    pub files: Vec<Arc<WeightFile>>,
    pub bytes: Vec<u8>,
}

impl Fixture {
    pub fn new(chunks: u32) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let bytes = noise((chunks * CHUNK) as usize, u64::from(chunks));
        let path = folder.path().join("f");
        let mut file = std::fs::File::create(&path).unwrap();
        file.write_all(&bytes).unwrap();
        file.sync_all().unwrap();
        let files = vec![Arc::new(WeightFile::open(&path).unwrap())];
        Self { _folder: folder, path, files, bytes }
    }

    /// A plan of chunks `first .. first + count`.
    pub fn plan(&self, first: u32, count: u32) -> Arc<ReadPlan> {
        let options = PlanOptions { chunk_bytes: CHUNK, gap_bytes: 0 };
        let mut builder = PlanBuilder::new(&self.files, options);
        let at = |chunks: u32| u64::from(chunks) * u64::from(CHUNK);
        let extent = Extent { file: 0, offset: at(first), len_bytes: at(count) };
        builder.add(0, extent, 0).unwrap();
        Arc::new(builder.build().unwrap())
    }

    /// Asks the kernel to forget the pages from this chunk on. False where it keeps them.
    pub fn evict(&self, first: u32) -> bool {
        let start = u64::from(first) * u64::from(CHUNK);
        let file = std::fs::File::open(&self.path).unwrap();
        let offset = i64::try_from(start).unwrap();
        // SAFETY: advice on an open descriptor.
        unsafe {
            libc::posix_fadvise(std::os::fd::AsRawFd::as_raw_fd(&file), offset, 0, libc::POSIX_FADV_DONTNEED)
        };
        self.files[0].residency(start, self.bytes.len() as u64 - start).share < 0.1
    }

    /// Whether a completed read brought its bytes.
    pub fn holds(&self, plan: &ReadPlan, completion: &Completion) -> bool {
        let read = &plan.reads()[completion.read as usize];
        let start = usize::try_from(read.offset).unwrap();
        let chunk = completion.outcome.as_ref().unwrap();
        chunk.bytes() == &self.bytes[start..start + chunk.len_bytes()]
    }
}

pub fn reader(chunks: u32, options: ReaderOptions) -> Reader {
    let options = ReaderOptions { chunk_bytes: CHUNK, ..options };
    Reader::start(Arc::new(AnonymousRegion::new((chunks * CHUNK) as usize).unwrap()), options).unwrap()
}

pub fn submit(reader: &Reader, plan: &Arc<ReadPlan>, class: ReadClass, token: u64) -> RequestId {
    reader.submit(ReadRequest { plan: Arc::clone(plan), class, token }).unwrap()
}

pub fn next(reader: &Reader) -> Completion {
    reader.completions().recv_timeout(Duration::from_secs(20)).expect("a completion within 20 s")
}
