//! Leases that end by words, and the table that kernels read.

use super::harness::{Harness, bytes_of};
use crate::cache::CacheOptions;
use crate::lease::Acquire;
use crate::policy::PolicyKind;
use crate::slots::NONE;
use crate::{ErrorKind, Key};
use spoc_driver::{Stream, StreamOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

fn stream(harness: &Harness) -> Stream {
    harness.device.create_stream(StreamOptions::default()).unwrap()
}

fn warm(harness: &Harness, group: usize, stream: &Stream) {
    let waiting = harness.cache.acquire(&harness.keys[group..=group], stream).unwrap();
    harness.finish_jobs();
    drop(waiting);
    harness.control.run_all();
}

#[test]
fn a_lease_ends_when_its_word_comes() {
    let harness = Harness::new(1, PolicyKind::Lru);
    let stream = stream(&harness);
    warm(&harness, 0, &stream);
    let word = Arc::new(AtomicU64::new(6));
    let lease = harness.cache.wait_acquire(&harness.keys[..1], &stream).unwrap();
    lease.release_at(Arc::clone(&word) as Arc<dyn crate::SequenceWord>, 7);
    let waiting = harness.cache.acquire(&harness.keys[1..2], &stream).unwrap();
    assert!(harness.jobs().is_empty(), "the slot is still leased");
    word.store(7, Ordering::Release);
    harness.cache.shared().with(crate::engine::Core::tick);
    assert_eq!(harness.jobs().len(), 1);
    harness.finish_jobs();
    drop(waiting);
    assert_eq!(harness.cache.shared().with(|core| core.words_awaited()), 0);
}

#[test]
fn a_fill_waits_on_the_device_for_a_word() {
    let harness = Harness::new(1, PolicyKind::Lru);
    let stream = stream(&harness);
    warm(&harness, 0, &stream);
    let word = harness.device.allocate(8).unwrap();
    word.write(0, &0u64.to_le_bytes()).unwrap();
    let lease = harness.cache.wait_acquire(&harness.keys[..1], &stream).unwrap();
    let (segment, base) = lease.memory(0).unwrap();
    let read = stream.copy_to_host(&segment, base, vec![0; bytes_of(0).len()]).unwrap();
    stream.write_value(&word, 0, 3).unwrap();
    lease.release_behind(&word, 0, 3).unwrap();
    let waiting = harness.cache.acquire(&harness.keys[1..2], &stream).unwrap();
    for _ in 0..4 {
        harness.deliver(harness.jobs()[0], Ok(()));
    }
    // The copies are enqueued and stand behind the word, which stands behind the launch.
    harness.control.run(harness.control.stream(&harness.copies));
    assert_ne!(harness.control.pending_on(harness.control.stream(&harness.copies)), 0);
    harness.finish_jobs();
    assert_eq!(read.wait().unwrap(), bytes_of(0));
    drop(waiting);
}

fn words(harness: &Harness) -> Vec<u64> {
    let table = harness.cache.device_table().unwrap();
    let bytes = harness.control.peek(&table.segment, 0, table.groups_max as usize * 8);
    bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

#[test]
fn the_device_sees_a_group_behind_its_copies_and_not_under_those_of_another() {
    let options = CacheOptions { policy: PolicyKind::Lru, table_groups: 8, ..CacheOptions::default() };
    let harness = Harness::with(1, options);
    let stream = stream(&harness);
    assert_eq!(words(&harness), [0; 8]);
    warm(&harness, 2, &stream);
    let at = |key: Key| harness.cache.table_index(key).unwrap() as usize;
    let first = words(&harness)[at(harness.keys[2])];
    assert_eq!((first & 0xff_ffff, first >> 24 & 0xff, first >> 32), (0, 3, 1));
    // The next fill, one operation of the copy stream after another: never both, and never one without its bytes.
    let waiting = harness.cache.acquire(&harness.keys[4..5], &stream).unwrap();
    for _ in 0..4 {
        harness.deliver(harness.jobs()[0], Ok(()));
    }
    let segment = harness.cache.segments()[0].clone().unwrap();
    let copies = harness.control.stream(&harness.copies);
    let mut seen_absent = false;
    while harness.control.step(copies) == spoc_driver::fake::Step::Ran {
        let now = words(&harness);
        let memory = harness.control.peek(&segment, 0, bytes_of(0).len());
        assert!(
            now[at(harness.keys[2])] == 0 || memory == bytes_of(2),
            "overwritten while it is in the table"
        );
        assert!(now[at(harness.keys[4])] == 0 || memory == bytes_of(4), "in the table before its bytes");
        seen_absent |= now.iter().all(|&word| word == 0);
    }
    assert!(seen_absent);
    assert_eq!(words(&harness)[at(harness.keys[4])] >> 32, 2, "the slot's second fill");
    harness.finish_jobs();
    drop(waiting);
    assert_eq!(harness.cache.resize(0, 0, None).unwrap_err().kind().as_str(), "in_use");
    let error = harness.cache.register(super::harness::catalogue()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TableTooSmall { need: 14, have: 8 }), "{error}");
    assert_ne!(harness.cache.shared().with(|core| core.slot_of[4]), NONE);
    let Acquire::Ready(lease) = harness.cache.acquire(&harness.keys[4..5], &stream).unwrap() else {
        panic!("not ready")
    };
    drop(lease);
}

#[test]
fn who_waits_is_served_when_a_word_had_come_already() {
    let harness = Harness::new(1, PolicyKind::Lru);
    let stream = stream(&harness);
    warm(&harness, 0, &stream);
    let lease = harness.cache.wait_acquire(&harness.keys[..1], &stream).unwrap();
    let waiting = harness.cache.acquire(&harness.keys[1..2], &stream).unwrap();
    assert!(harness.jobs().is_empty(), "the slot is leased");
    lease.release_at(Arc::new(AtomicU64::new(7)), 7);
    assert_eq!(harness.jobs().len(), 1);
    harness.finish_jobs();
    drop(waiting);
}

/// Whoever writes the word reads the slots until then, also when the cache has gone.
#[test]
fn memory_outlives_the_cache_until_the_word_comes() {
    for comes in [true, false] {
        let harness = Harness::new(1, PolicyKind::Lru);
        let stream = stream(&harness);
        warm(&harness, 0, &stream);
        let word = Arc::new(AtomicU64::new(0));
        let lease = harness.cache.wait_acquire(&harness.keys[..1], &stream).unwrap();
        lease.release_at(Arc::clone(&word) as Arc<dyn crate::SequenceWord>, 1);
        let Harness { control: _control, device, feed, cache, .. } = harness;
        drop(feed);
        let free = device.memory().unwrap().free_bytes;
        std::thread::scope(|scope| {
            let ending = scope.spawn(move || drop(cache));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!ending.is_finished(), "the word has not come");
            assert_eq!(device.memory().unwrap().free_bytes, free);
            if comes {
                word.store(1, Ordering::Release);
            }
            ending.join().unwrap();
        });
        assert_eq!(device.memory().unwrap().free_bytes > free, comes);
    }
}
