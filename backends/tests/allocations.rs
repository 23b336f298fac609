//! Copying allocates nothing in steady state: not for sources, events, read-backs or batches.
#![allow(clippy::unwrap_used)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use spoc_backends::native::{self, Options};
use spoc_driver::{
    BackendKind, CopyRange, Device, DeviceSelector, Driver, Event, HostBuffer, HostMemory, HostMemoryOptions,
    Segment, Stream, StreamOptions,
};

/// Counts allocations of the whole process, the streams' threads included.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is the system allocator's; counting touches no memory of the caller.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's duties are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

struct Bench {
    device: Device,
    streams: [Stream; 2],
    events: Vec<Event>,
    segments: [Segment; 2],
    memory: HostMemory,
}

impl Bench {
    fn native() -> Self {
        let options = Options { memory_bytes: Some(64 << 20), ..Options::default() };
        let driver = Driver::new(vec![native::backend(options)]);
        Self::on(driver.open(&DeviceSelector::index(BackendKind::Native, 0)).unwrap())
    }

    fn on(device: Device) -> Self {
        let stream = || device.create_stream(StreamOptions::default()).unwrap();
        let segment = || device.allocate(1 << 20).unwrap();
        let memory = HostMemory::allocate(1 << 20, HostMemoryOptions::default()).unwrap();
        Self {
            streams: [stream(), stream()],
            events: (0..16).map(|_| device.create_event().unwrap()).collect(),
            segments: [segment(), segment()],
            memory,
            device,
        }
    }

    /// What a pump does, `count` times: many ranges of a chunk, an event, and retiring what came before.
    fn pump(&self, count: usize) {
        for round in 0..count {
            let stream = &self.streams[round % 2];
            let event = &self.events[round % self.events.len()];
            // The event of sixteen rounds ago.
            if event.is_recorded() {
                event.synchronize().unwrap();
            }
            let range = |at: usize| CopyRange {
                src_offset: at * 4096,
                dst: &self.segments[at % 2],
                dst_offset: (at * 4096) as u64,
                len_bytes: 4096,
            };
            let ranges = [0, 1, 2, 3, 4, 5, 6, 7].map(range);
            stream.copy_to_device(self.memory.clone(), &ranges).unwrap();
            stream.record(event).unwrap();
            self.streams[(round + 1) % 2].wait(event).unwrap();
        }
        for event in &self.events {
            event.synchronize().unwrap();
        }
        self.streams.iter().for_each(|stream| stream.synchronize().unwrap());
    }

    fn read_back(&self, count: usize, mut buffer: HostBuffer) -> HostBuffer {
        for _ in 0..count {
            buffer = self.streams[0].copy_to_host(&self.segments[0], 0, buffer).unwrap().wait().unwrap();
        }
        buffer
    }
}

fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    work();
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

// One test: the counter sees every thread of the process.
#[test]
fn copying_allocates_nothing_in_steady_state() {
    let bench = Bench::native();
    let pin = bench.device.pin(&bench.memory).unwrap();
    check(&bench);
    drop(pin);
    // What a runtime allocates for itself is not counted.
    for kind in [BackendKind::OpenCl, BackendKind::Vulkan] {
        common::devices(kind).into_iter().for_each(|device| check(&Bench::on(device)));
    }
}

fn check(bench: &Bench) {
    bench.streams.iter().for_each(|stream| stream.reserve(1024, 8));
    bench.pump(100);
    assert_eq!(allocations(|| bench.pump(1000)), 0);
    assert_eq!(allocations(|| bench.pump(4000)), 0);
    let buffer = HostBuffer::allocate(4096, HostMemoryOptions::default()).unwrap();
    let buffer = bench.read_back(10, buffer);
    assert_eq!(allocations(|| drop(bench.read_back(1000, buffer))), 0);
    assert_eq!(bench.device.in_flight(), 0);
}
