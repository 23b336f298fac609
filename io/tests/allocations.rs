//! Nothing is allocated per chunk: a counting allocator sees the same number for N chunks and for 4 N.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use spoc_io::{
    AnonymousRegion, BlockDigests, DigestKind, IoMode, Manifest, Model, OpenOptions, PlanBuilder,
    PlanOptions, ReadClass, ReadRequest, Reader, ReaderOptions, open_model,
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

const CHUNK: u32 = 256 << 10;
const FEW: u64 = 25;
const MANY: u64 = 4 * FEW;

/// A file with a tensor of few chunks and one of many.
fn model(folder: &Path) -> Model {
    let (few, many) = (FEW * u64::from(CHUNK), MANY * u64::from(CHUNK));
    let header = format!(
        r#"{{"few":{{"dtype":"U8","shape":[{few}],"data_offsets":[0,{few}]}},"many":{{"dtype":"U8","shape":[{many}],"data_offsets":[{few},{}]}}}}"#,
        few + many
    );
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + usize::try_from(few + many).unwrap(), 1);
    let path = folder.join("m.safetensors");
    std::fs::write(&path, bytes).unwrap();
    open_model(&path, &OpenOptions::default()).unwrap()
}

/// Allocations of planning and reading one tensor, checked against digests if there are any.
fn allocations(reader: &Reader, model: &Model, tensor: &str, digests: Option<&Arc<BlockDigests>>) -> u64 {
    let before = ALLOCATIONS.load(Ordering::SeqCst);
    let mut builder = PlanBuilder::new(model.files(), PlanOptions { chunk_bytes: CHUNK, gap_bytes: 0 });
    if let Some(digests) = digests {
        builder.check_against(digests).unwrap();
    }
    builder.add(0, model.tensor(tensor).unwrap().extent, 0).unwrap();
    let plan = Arc::new(builder.build().unwrap());
    reader.submit(ReadRequest { plan: Arc::clone(&plan), class: ReadClass::Demand, token: 0 }).unwrap();
    for (_, completion) in plan.reads().iter().zip(reader.completions()) {
        drop(completion.outcome.unwrap());
    }
    ALLOCATIONS.load(Ordering::SeqCst) - before
}

/// One test: the allocator counts for all threads.
#[test]
fn four_times_the_chunks_take_no_more_allocations() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let model = model(folder.path());
    let digests = DigestKind::ALL.map(|kind| {
        let manifest = Manifest::of(&model, kind, &|_| {}).unwrap();
        Some(manifest.expectations(&model).unwrap())
    });
    for mode in [IoMode::Direct, IoMode::Buffered, IoMode::Pread] {
        for digests in std::iter::once(None).chain(digests.iter().map(Option::as_ref)) {
            let region = Arc::new(AnonymousRegion::new(8 * CHUNK as usize).unwrap());
            let check_threads = 2;
            let options =
                ReaderOptions { mode, chunk_bytes: CHUNK, check_threads, ..ReaderOptions::default() };
            let reader = Reader::start(region, options).unwrap();
            // The first loads open files, run the check of registered memory and give each thread its waiting place.
            for _ in 0..4 {
                allocations(&reader, &model, "few", digests);
            }
            let counts =
                ["few", "many", "few", "many"].map(|tensor| allocations(&reader, &model, tensor, digests));
            // A thread that waits on the channel for the first time may allocate its place there once.
            let (few, many) = (counts[0].min(counts[2]), counts[1].min(counts[3]));
            let kind = digests.map(|digests| digests.kind());
            assert!(
                many <= few + 4,
                "{mode:?} {kind:?}: {few} allocations for {FEW} chunks, {many} for {MANY}"
            );
        }
    }
}
