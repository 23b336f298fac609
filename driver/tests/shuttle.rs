//! The ledger and the registry under chosen interleavings: what is lent to work is dropped once, and not before the
//! work ran; nothing is lost, nobody waits for ever, and ranges that overlap are never registered together.
//!
//! Run with `RUSTFLAGS="--cfg shuttle" cargo test -p spoc-driver --features fake --test shuttle`, best with a
//! `--target-dir` of its own. Seeds are fixed; `SHUTTLE_RANDOM_SEED` chooses another. A failure prints its own.
//! Interleavings are sequentially consistent: a memory order that is too weak is not found here.
#![cfg(shuttle)]
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{NON_BLOCKING, assert_clean, deferred, driven, stream, whole};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, thread};
use spoc_driver::fake::{FakeControl, FakeSource};
use spoc_driver::{Device, ErrorKind, HostBuffer, HostMemoryOptions, HostSource, Segment, Stream};

const SEED: u64 = 0x5bd1_e995;
const RANDOM_ITERATIONS: usize = 2000;
const PCT_ITERATIONS: usize = 1000;
/// How many times a schedule goes against its threads' priorities.
const PCT_DEPTH: usize = 3;

fn explore(scenario: impl Fn() + Send + Sync + Clone + 'static) {
    let config = || {
        let mut config = Config::new();
        // Unoptimised frames are larger than the default allows for.
        config.stack_size = 1 << 18;
        config
    };
    let random = RandomScheduler::new_from_seed(SEED, RANDOM_ITERATIONS);
    Runner::new(random, config()).run(scenario.clone());
    let pct = PctScheduler::new_from_seed(SEED, PCT_DEPTH, PCT_ITERATIONS);
    Runner::new(pct, config()).run(scenario);
}

/// Watched by the fake, which notes a drop before the copy has run; counts its drops.
struct Counted {
    source: FakeSource,
    drops: Arc<AtomicUsize>,
}

// SAFETY: as the source, which it owns.
unsafe impl HostSource for Counted {
    fn as_ptr(&self) -> *const u8 {
        self.source.as_ptr()
    }

    fn len_bytes(&self) -> usize {
        self.source.len_bytes()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Ordering::Relaxed);
    }
}

/// Sources, and how many of them were dropped.
#[derive(Clone)]
struct Sources {
    control: FakeControl,
    drops: Arc<AtomicUsize>,
}

impl Sources {
    fn new(control: &FakeControl) -> Self {
        Self { control: control.clone(), drops: Arc::default() }
    }

    fn copy(&self, stream: &Stream, dst: &Segment, value: u8) {
        let source = Counted { source: self.control.source(vec![value; 4]), drops: Arc::clone(&self.drops) };
        stream.copy_to_device(source, &[whole(dst, 4)]).unwrap();
    }

    fn dropped(&self) -> usize {
        self.drops.load(Ordering::Relaxed)
    }
}

fn join(threads: impl IntoIterator<Item = thread::JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn sources_are_dropped_once_and_after_their_copies() {
    explore(|| {
        let (device, control) = deferred();
        let sources = Sources::new(&control);
        let segment = device.allocate(4).unwrap();
        let submitter = |value| {
            let (stream, segment, sources) = (stream(&device), segment.clone(), sources.clone());
            thread::spawn(move || {
                sources.copy(&stream, &segment, value);
                stream.query().unwrap();
                sources.copy(&stream, &segment, value);
            })
        };
        let threads = [submitter(1), submitter(2), stepping(&device, &control)];
        drop(segment);
        join(threads);
        control.run_all();
        device.flush().unwrap();
        assert_eq!(sources.dropped(), 4);
        assert_eq!(device.in_flight(), 0);
        assert_eq!(device.memory_in_use(), 0);
        drop(device);
        assert_clean(&control);
    });
}

/// Runs one operation after another, and lets go of what has run.
fn stepping(device: &Device, control: &FakeControl) -> thread::JoinHandle<()> {
    let (device, control) = (device.clone(), control.clone());
    thread::spawn(move || {
        for _ in 0..3 {
            for stream in control.busy_streams() {
                control.step(stream);
                device.collect();
            }
            thread::yield_now();
        }
    })
}

#[test]
fn waits_queries_and_collecting_retire_the_same_work() {
    explore(|| {
        let (device, control) = deferred();
        let sources = Sources::new(&control);
        let (segment, event) = (device.allocate(4).unwrap(), device.create_event().unwrap());
        let stream = stream(&device);
        sources.copy(&stream, &segment, 5);
        stream.record(&event).unwrap();
        let read = stream.copy_to_host(&segment, 0, vec![0_u8; 4]).unwrap();
        let waiter = thread::spawn(move || event.synchronize().unwrap());
        let reader = thread::spawn(move || {
            assert_eq!(read.wait().unwrap(), [5; 4]);
            stream.synchronize().unwrap();
        });
        device.collect();
        control.run_all();
        device.collect();
        join([waiter, reader]);
        assert_eq!(device.in_flight(), 0);
        assert_eq!(sources.dropped(), 1);
        drop((segment, device));
        assert_clean(&control);
    });
}

#[test]
fn the_last_handles_go_while_others_submit_and_wait() {
    explore(|| {
        let (device, control) = driven();
        let sources = Sources::new(&control);
        let segment = device.allocate(4).unwrap();
        segment.write(0, &[1; 4]).unwrap();
        let submitter = {
            let (stream, segment) = (device.create_stream(NON_BLOCKING).unwrap(), segment.clone());
            let sources = sources.clone();
            thread::spawn(move || sources.copy(&stream, &segment, 2))
        };
        let creator = {
            let (device, segment, sources) = (device.clone(), segment.clone(), sources.clone());
            thread::spawn(move || sources.copy(&stream(&device), &segment, 3))
        };
        // A default-stream read waits for the non-blocking streams that use the segment.
        let mut bytes = [0; 4];
        segment.read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == bytes[0] && (1..=3).contains(byte)), "{bytes:?}");
        drop((device, segment));
        join([submitter, creator]);
        assert_eq!(sources.dropped(), 2);
        assert_clean(&control);
    });
}

#[test]
fn overlapping_ranges_are_never_registered_together() {
    explore(|| {
        let (device, control) = deferred();
        let mut memory = vec![0_u8; 64];
        let base = memory.as_mut_ptr();
        let holders = Arc::new(AtomicUsize::new(0));
        let register = |first: usize, len: usize| {
            let (device, control, holders) = (device.clone(), control.clone(), Arc::clone(&holders));
            let address = base.wrapping_add(first).expose_provenance();
            thread::spawn(move || {
                let ptr = std::ptr::with_exposed_provenance_mut(address);
                for _ in 0..2 {
                    // SAFETY: the memory outlives the threads, which are joined before it goes.
                    match unsafe { device.register_raw(ptr, len) } {
                        Ok(()) => {
                            assert_eq!(holders.fetch_add(1, Ordering::Relaxed), 0, "two ranges overlap");
                            assert_eq!(control.live().pinned, 1);
                            holders.fetch_sub(1, Ordering::Relaxed);
                            device.unregister_raw(address, len).unwrap();
                        }
                        Err(error) => assert_eq!(*error.kind(), ErrorKind::Overlap),
                    }
                }
            })
        };
        // Each shares bytes with both others.
        join([register(0, 40), register(16, 48), register(32, 4)]);
        assert_eq!(device.pinned_ranges(), 0);
        drop(device);
        assert_clean(&control);
    });
}

#[test]
fn release_is_refused_until_the_copy_has_run() {
    explore(|| {
        let (device, control) = deferred();
        let memory = HostBuffer::allocate(4096, HostMemoryOptions::default()).unwrap().share();
        let segment = device.allocate(4).unwrap();
        let stream = stream(&device);
        let mut pin = device.pin(&memory).unwrap();
        stream.copy_to_device(memory.clone(), &[whole(&segment, 4)]).unwrap();
        let releaser = {
            let control = control.clone();
            thread::spawn(move || {
                while let Err(error) = pin.release() {
                    assert_eq!(*error.kind(), ErrorKind::InFlight);
                    thread::yield_now();
                }
                assert_eq!(control.pending(), 0, "released in flight");
            })
        };
        let registrar = {
            let (device, control) = (device.clone(), control.clone());
            thread::spawn(move || match device.pin(&memory) {
                Ok(_) => assert_eq!(control.pending(), 0, "registered in flight"),
                Err(error) => assert_eq!(*error.kind(), ErrorKind::Overlap),
            })
        };
        control.run_all();
        stream.query().unwrap();
        join([releaser, registrar]);
        assert_eq!(device.pinned_ranges(), 0);
        drop((stream, segment, device));
        assert_clean(&control);
    });
}

#[test]
fn an_unregistered_range_is_in_no_copy_of_another_thread() {
    explore(|| {
        let (device, control) = deferred();
        let source = control.source(vec![0; 64]);
        let base = source.as_ptr().cast_mut();
        let segment = device.allocate(4).unwrap();
        let stream = stream(&device);
        // SAFETY: the bytes of a watched source live as long as the fake machine.
        unsafe { device.register_raw(base, 64) }.unwrap();
        let address = base.expose_provenance();
        let unregister = {
            let (device, control) = (device.clone(), control.clone());
            thread::spawn(move || match device.unregister_raw(address, 64) {
                Ok(()) => assert_eq!(control.live().pinned, 0, "still registered"),
                Err(error) => assert_eq!(*error.kind(), ErrorKind::InFlight),
            })
        };
        stream.copy_to_device(source, &[whole(&segment, 4)]).unwrap();
        join([unregister]);
        control.run_all();
        stream.query().unwrap();
        drop((stream, segment, device));
        assert_clean(&control);
    });
}
