//! Readers against evictions, waits and resizing, under chosen interleavings of threads.
//!
//! Run with `RUSTFLAGS="--cfg shuttle" cargo test -p spoc-cache --lib interleavings`, best with a `--target-dir` of its
//! own. Seeds are fixed. Interleavings are sequentially consistent: that the protocol's orders are strong enough is
//! shown by `cache/tests/loom.rs`; what is shown here is that all that is around it uses it rightly.

use super::harness::{Harness, SLOT_BYTES, bytes_of};
use crate::Key;
use crate::cache::CacheOptions;
use crate::lease::Acquire;
use crate::policy::PolicyKind;
use crate::readers::Reader;
use crate::stats::layout::Counter;
use crate::sync::atomic::{AtomicUsize, Ordering};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, thread};
use spoc_driver::{PendingRead, Stream, StreamOptions};
use std::time::Instant;

const SEED: u64 = 0x5bd1_e995;
const ITERATIONS: usize = 200;
const PCT_DEPTH: usize = 3;

fn explore(scenario: impl Fn() + Send + Sync + Clone + 'static) {
    let config = || {
        let mut config = Config::new();
        config.stack_size = 1 << 20;
        config
    };
    Runner::new(RandomScheduler::new_from_seed(SEED, ITERATIONS), config()).run(scenario.clone());
    Runner::new(PctScheduler::new_from_seed(SEED, PCT_DEPTH, ITERATIONS), config()).run(scenario);
}

type Own = Reader<Box<Stream>>;

fn harness(slots: u32) -> Harness {
    let options =
        CacheOptions { policy: PolicyKind::Lru, segment_bytes: SLOT_BYTES, ..CacheOptions::default() };
    let harness = Harness::with(slots, options);
    for index in 0..slots as usize {
        let waiting = harness.cache.acquire(&harness.keys[index..=index], &harness.copies).unwrap();
        harness.finish_jobs();
        drop(waiting);
    }
    harness.control.run_all();
    harness
}

/// A reader that knows the model.
fn reader(harness: &Harness) -> Own {
    let stream = harness.device.create_stream(StreamOptions::default()).unwrap();
    let reader = harness.cache.reader(Box::new(stream)).unwrap();
    drop(reader.wait_acquire(&harness.keys[..1]).unwrap());
    reader.end_step().unwrap();
    reader
}

/// Finds a group a few times, launches a deferred read of it, ends its step now and then.
fn visits(reader: &Own, key: Key, times: usize) -> Vec<PendingRead<Vec<u8>>> {
    let mut reads = Vec::new();
    for round in 0..times {
        if let Some(lease) = reader.try_acquire(&[key]) {
            let (segment, base) = lease.memory(0).unwrap();
            let read = reader.stream().copy_to_host(&segment, base, vec![0; bytes_of(0).len()]);
            reads.push(read.unwrap());
        }
        if round % 2 == 1 {
            reader.end_step().unwrap();
        }
    }
    reader.end_step().unwrap();
    reads
}

fn settle(harness: &Harness) {
    harness.finish_jobs();
    harness.control.run_all();
}

fn end(harness: &Harness) {
    let _ = harness.cache.snapshot();
    let get = |counter| harness.cache.counters().get(counter);
    assert_eq!(get(Counter::Hits) + get(Counter::Misses), get(Counter::Requested));
    assert_eq!(get(Counter::LeasesGiven), get(Counter::LeasesReleased));
    harness.cache.shared().with(|core| {
        core.retire_all();
        assert!(core.is_quiet(), "something is left over");
    });
    assert_eq!(harness.control.violations(), Vec::<String>::new());
}

#[test]
fn no_slot_is_filled_while_a_readers_launch_may_read_it() {
    explore(|| {
        let harness = harness(2);
        let readers = [reader(&harness), reader(&harness)];
        let keys = harness.keys.clone();
        let threads: Vec<_> = readers
            .into_iter()
            .zip([0usize, 1])
            .map(|(reader, group)| {
                let key = keys[group];
                thread::spawn(move || (group, visits(&reader, key, 3)))
            })
            .collect();
        // Whatever leaves meanwhile is filled as fast as its copies can be enqueued; launches have not run.
        for group in 2..5 {
            let waiting = harness.cache.acquire(&keys[group..=group], &harness.copies).unwrap();
            for job in harness.jobs() {
                for _ in 0..4 {
                    harness.deliver(job, Ok(()));
                }
            }
            drop(waiting);
        }
        let found: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        settle(&harness);
        for (group, reads) in found {
            for read in reads {
                assert!(read.wait().unwrap() == bytes_of(u32::try_from(group).unwrap()), "group {group}");
            }
        }
        settle(&harness);
        end(&harness);
    });
}

#[test]
fn whoever_waits_for_room_that_readers_hold_gets_it() {
    explore(|| {
        let harness = harness(2);
        let readers = [reader(&harness), reader(&harness)];
        let keys = harness.keys.clone();
        let threads: Vec<_> = readers
            .into_iter()
            .map(|reader| {
                let pair = [keys[0], keys[1]];
                thread::spawn(move || {
                    drop(reader.try_acquire(&pair));
                    reader.end_step().unwrap();
                    drop(reader.try_acquire(&pair[..1]));
                    // Its end closes what is left.
                })
            })
            .collect();
        let waiting = harness.cache.acquire(&keys[2..4], &harness.copies).unwrap();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        settle(&harness);
        match waiting {
            Acquire::Ready(lease) => drop(lease),
            Acquire::Pending(pending) => {
                let lease = pending.try_lease();
                assert!(matches!(&lease, Ok(Acquire::Ready(_))), "still waiting");
                drop(lease);
            }
        }
        settle(&harness);
        end(&harness);
    });
}

#[test]
fn a_segment_goes_when_no_reader_holds_it() {
    explore(|| {
        let harness = harness(2);
        let reader = reader(&harness);
        let key = harness.keys[1];
        let thread = thread::spawn(move || visits(&reader, key, 2));
        let first = harness.cache.resize(0, 1, Some(Instant::now())).unwrap();
        let reads = thread.join().unwrap();
        settle(&harness);
        for read in reads {
            assert!(read.wait().unwrap() == bytes_of(1));
        }
        let last = harness.cache.resize(0, 1, Some(Instant::now())).unwrap();
        assert!(last <= first);
        assert_eq!(last, 1, "nobody holds it any more");
        end(&harness);
    });
}

/// Threads acquire through the lock while a third thread plays the pump.
#[test]
fn sets_through_the_lock_are_served_and_told_of_errors() {
    explore(|| {
        let harness = harness(2);
        let keys = harness.keys.clone();
        let shared = std::sync::Arc::clone(harness.cache.shared());
        let done = std::sync::Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = [2usize, 3]
            .into_iter()
            .map(|group| {
                let (shared, set) = (std::sync::Arc::clone(&shared), [keys[group], keys[group - 1]]);
                let stream = Box::new(harness.device.create_stream(StreamOptions::default()).unwrap());
                let done = std::sync::Arc::clone(&done);
                thread::spawn(move || {
                    let lease = match shared.acquire(&set, stream).unwrap() {
                        Acquire::Ready(lease) => Ok(lease),
                        Acquire::Pending(pending) => pending.wait(),
                    };
                    match lease {
                        Ok(lease) => assert_eq!(lease.len(), 2),
                        Err(error) => assert_eq!(error.kind().as_str(), "cancelled"),
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                })
            })
            .collect();
        for _ in 0..3 {
            harness.finish_jobs();
            thread::yield_now();
        }
        harness.cache.cancel(&keys[2..3]).unwrap();
        // Until both have been served there may be jobs to come.
        while done.load(Ordering::Relaxed) < threads.len() {
            harness.finish_jobs();
            thread::yield_now();
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        settle(&harness);
        end(&harness);
    });
}

/// Two that shrink and one that grows: every segment leaves once, and what there is agrees with what is counted.
#[test]
fn threads_that_resize_at_once_count_every_segment_once() {
    explore(|| {
        let harness = harness(3);
        let cache = &harness.cache;
        thread::scope(|scope| {
            for slots in [1, 2, 3] {
                scope.spawn(move || {
                    let got = cache.resize(0, slots, Some(Instant::now())).unwrap();
                    assert!((1..=3).contains(&got));
                });
            }
        });
        let rows: u32 = harness.cache.segment_table().iter().map(|row| row.slots).sum();
        let states: u64 = harness.cache.snapshot().states.iter().sum();
        let slots = harness.cache.slots(0).unwrap();
        assert_eq!((u64::from(rows), states), (u64::from(slots), u64::from(slots)));
        assert_eq!(harness.cache.resize(0, 3, None).unwrap(), 3, "numbers are not lost");
        end(&harness);
    });
}
