//! Nothing is allocated per chunk: a counting allocator sees the same number for N chunks and for 4 N.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use spoc_io::{
    AnonymousRegion, Extent, IoMode, PlanBuilder, PlanOptions, ReadClass, ReadRequest, Reader, ReaderOptions,
    WeightFile,
};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is handed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is the one asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is the one asked for.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is the one asked for.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const CHUNK: u32 = 64 << 10;

/// Allocations of planning and reading this many chunks of the file.
fn allocations(reader: &Reader, files: &[Arc<WeightFile>], chunks: u64) -> u64 {
    let before = ALLOCATIONS.load(Ordering::SeqCst);
    let mut builder = PlanBuilder::new(files, PlanOptions { chunk_bytes: CHUNK, gap_bytes: 0 });
    builder.add(0, Extent { file: 0, offset: 0, len_bytes: chunks * u64::from(CHUNK) }, 0).unwrap();
    let plan = Arc::new(builder.build().unwrap());
    assert_eq!(plan.reads().len() as u64, chunks);
    reader.submit(ReadRequest { plan: Arc::clone(&plan), class: ReadClass::Demand, token: 0 }).unwrap();
    for (_, completion) in plan.reads().iter().zip(reader.completions()) {
        drop(completion.outcome.unwrap());
    }
    ALLOCATIONS.load(Ordering::SeqCst) - before
}

#[test]
fn four_times_the_chunks_take_no_more_allocations() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("f");
    std::fs::write(&path, vec![1; 400 * CHUNK as usize]).unwrap();
    let files = [Arc::new(WeightFile::open(&path).unwrap())];
    for mode in [IoMode::Direct, IoMode::Buffered, IoMode::Pread] {
        let region = Arc::new(AnonymousRegion::new(8 * CHUNK as usize).unwrap());
        let options = ReaderOptions { mode, chunk_bytes: CHUNK, ..ReaderOptions::default() };
        let reader = Reader::start(region, options).unwrap();
        // The first loads open files, run the check of registered memory and give each thread its waiting place.
        for _ in 0..4 {
            allocations(&reader, &files, 100);
        }
        let counts = [100, 400, 100, 400].map(|chunks| allocations(&reader, &files, chunks));
        // A thread that waits on the channel for the first time may allocate its place there once.
        let (few, many) = (counts[0].min(counts[2]), counts[1].min(counts[3]));
        assert!(many <= few + 4, "{mode:?}: {few} allocations for 100 chunks, {many} for 400");
    }
}
