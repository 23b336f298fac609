//! Steady state allocates nothing per chunk: the whole process makes as many allocations for four times the
//! chunks.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests are tests

mod common;

use common::{native, open, pump, write_model};
use spoc_cache::load::{LoadOptions, load_model};
use spoc_cache::{CacheOptions, Catalogue, GroupRules, Pump, PumpOptions, SlotCache};
use spoc_driver::StreamOptions;
use spoc_io::IoMode;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The system's allocator, counting.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator unchanged, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises about the layout are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `System` above, with this layout.
        unsafe { System.dealloc(ptr, layout) };
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as in `dealloc`; the new size is the caller's promise.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn counted<R>(work: impl FnOnce() -> R) -> (u64, R) {
    let before = ALLOCATIONS.load(Ordering::SeqCst);
    let result = work();
    (ALLOCATIONS.load(Ordering::SeqCst) - before, result)
}

/// One test: a second one in parallel would be counted too.
#[test]
fn as_many_for_four_times_the_chunks() {
    let device = native();
    let folder = tempfile::tempdir().unwrap();
    // One model, read in large chunks and in small ones: everything but the chunks stays the same.
    let tensors: Vec<_> = (0..8).map(|n| (format!("t{n}"), 2 << 20)).collect();
    let model = open(&write_model(folder.path(), &tensors));
    for (mode, packed) in [IoMode::Pread, IoMode::Auto].into_iter().flat_map(|m| [(m, true), (m, false)]) {
        let counts = [256 << 10, 64 << 10].map(|chunk_bytes| {
            let mut options = PumpOptions { staging_bytes: 2 << 20, ..PumpOptions::default() };
            options.reader.mode = mode;
            options.reader.chunk_bytes = chunk_bytes;
            let pump = Pump::start(&device, options).unwrap();
            let load =
                || load_model(&pump, &model, &LoadOptions { packed, ..LoadOptions::default() }).unwrap();
            // Lists grow to the depth of the ring once; the least of three is without the system's own threads.
            load();
            let least = (0..3).map(|_| counted(load)).min_by_key(|(count, _)| *count).unwrap();
            let report = least.1.report;
            assert_eq!(report.copied_because.is_some(), packed);
            // Four loads so far.
            (least.0, report.reader.completions / 4)
        });
        println!("{mode:?}, packed {packed}: {counts:?} allocations, chunks");
        assert!(counts[1].1 >= 2 * counts[0].1);
        assert!(counts[1].0 <= counts[0].0 + 4, "{mode:?}: {counts:?} allocations, chunks");
    }

    let folder = tempfile::tempdir().unwrap();
    let model = open(&write_model(folder.path(), &common::layers(8, 400_000)));
    let catalogue = Arc::new(Catalogue::from_model(&model, &GroupRules::default()).unwrap());
    let pump = pump(&device, IoMode::Auto, 1 << 20);
    let cache = SlotCache::new(&pump, CacheOptions::for_catalogue(&catalogue, 8)).unwrap();
    let keys = cache.keys(cache.register(Arc::clone(&catalogue)).unwrap());
    let stream = device.create_stream(StreamOptions::default()).unwrap();
    let hits = |times: usize| {
        for _ in 0..times {
            cache.wait_acquire(&keys[..4], &stream).unwrap().release(&[&stream]).unwrap();
            stream.synchronize().unwrap();
        }
    };
    hits(50);
    let (few, ()) = counted(|| hits(100));
    let (many, ()) = counted(|| hits(400));
    println!("hits: {few} allocations in 100 sets, {many} in 400");
    assert!(many <= few + 4, "{few} allocations in 100 sets, {many} in 400");

    // A reader finds, holds, lets go and ends steps without any allocation at all.
    let side = device.create_stream(StreamOptions::default()).unwrap();
    let reader = cache.reader_on(&stream, vec![&side]).unwrap();
    drop(reader.wait_acquire(&keys[..4]).unwrap());
    let steps = |times: usize| {
        for _ in 0..times {
            let first = reader.try_acquire(&keys[..4]).expect("it is there");
            let second = reader.try_acquire(&keys[2..4]).expect("it is there");
            drop(first);
            reader.end_step().unwrap();
            drop(second);
            reader.end_step().unwrap();
            stream.synchronize().unwrap();
            side.synchronize().unwrap();
        }
    };
    steps(50);
    let found = || {
        for _ in 0..1000 {
            drop(reader.try_acquire(&keys[..4]).expect("it is there"));
        }
    };
    // The least of some, without what the system's own threads do.
    let (of_found, ()) = (0..5).map(|_| counted(found)).min_by_key(|(count, ())| *count).unwrap();
    let (few, ()) = counted(|| steps(50));
    let (many, ()) = counted(|| steps(400));
    println!("readers: {of_found} allocations in 1000 sets; {few} in 100 ends of a step, {many} in 800");
    assert_eq!(of_found, 0, "allocations in 1000 sets that a reader found");
    assert!(many <= few + 4, "{few} allocations in 100 ends of a step, {many} in 800");
}
