//! One rule a test.

use super::harness::{Harness, bytes_of, read_error};
use crate::lease::{Acquire, Lease, Pending};
use crate::policy::PolicyKind;
use crate::slots::state::State;
use crate::stats::layout::Counter;
use crate::stats::{Cause, LogKind, Reader};
use crate::{Error, ErrorKind, Key, Result};
use spoc_driver::{CaptureState, Stream, StreamOptions};
use std::sync::atomic::Ordering;

fn stream(harness: &Harness) -> Stream {
    harness.device.create_stream(StreamOptions::default()).unwrap()
}

fn keys(harness: &Harness, groups: &[usize]) -> Vec<Key> {
    groups.iter().map(|&group| harness.keys[group]).collect()
}

fn pending<'s>(harness: &Harness, groups: &[usize], stream: &'s Stream) -> Pending<&'s Stream> {
    match harness.cache.acquire(&keys(harness, groups), stream).unwrap() {
        Acquire::Pending(pending) => pending,
        Acquire::Ready(_) => panic!("{groups:?} was ready"),
    }
}

fn ready(acquire: Result<Acquire<&Stream>>) -> Lease<&Stream> {
    match acquire.unwrap() {
        Acquire::Ready(lease) => lease,
        Acquire::Pending(_) => panic!("not ready"),
    }
}

/// Fills the groups and gives the leases back unused.
fn warm(harness: &Harness, groups: &[usize], stream: &Stream) {
    let waiting = pending(harness, groups, stream);
    harness.finish_jobs();
    ready(waiting.try_lease()).release(&[]).unwrap();
}

/// Every chunk of a job arrives; no copy runs.
fn deliver_all(harness: &Harness, index: usize) {
    for _ in 0..8 {
        harness.deliver(index, Ok(()));
    }
}

fn is_resident(harness: &Harness, group: usize) -> bool {
    harness.cache.shared().with(|core| core.slot_of[group] != crate::slots::NONE)
}

fn state_of(harness: &Harness, slot: u32) -> State {
    harness.cache.shared().with(|core| core.table.state(slot))
}

#[test]
fn a_lease_comes_when_copies_are_enqueued_not_when_they_have_run() {
    let harness = Harness::new(2, PolicyKind::Lru);
    let stream = stream(&harness);
    let waiting = pending(&harness, &[3], &stream);
    deliver_all(&harness, 0);
    let lease = ready(waiting.try_lease());
    // Nothing has run on the device: the launch is ordered behind the copies by the stream alone.
    let (segment, base) = lease.memory(0).unwrap();
    let len = bytes_of(3).len();
    let read = stream.copy_to_host(&segment, base, vec![0; len]).unwrap();
    assert_ne!(harness.control.peek(&segment, usize::try_from(base).unwrap(), len), bytes_of(3));
    lease.release(&[&stream]).unwrap();
    harness.control.run_all();
    assert_eq!(read.wait().unwrap(), bytes_of(3));
}

#[test]
fn no_member_of_a_set_leaves_for_another() {
    for policy in PolicyKind::ALL {
        let harness = Harness::new(2, policy);
        let stream = stream(&harness);
        warm(&harness, &[0, 1], &stream);
        // 0 is the oldest, and the one that cycle would evict; but it is wanted.
        let waiting = pending(&harness, &[0, 2], &stream);
        assert!(is_resident(&harness, 0) && !is_resident(&harness, 1));
        harness.finish_jobs();
        let lease = ready(waiting.try_lease());
        assert_ne!(lease.slot(0), lease.slot(1));
        let counters = harness.cache.counters();
        assert_eq!((counters.get(Counter::Hits), counters.get(Counter::Misses)), (1, 3));
    }
}

#[test]
fn wider_than_the_pool_is_refused_whole() {
    let harness = Harness::new(2, PolicyKind::Cycle);
    let stream = stream(&harness);
    let error = harness.cache.acquire(&keys(&harness, &[0, 1, 2]), &stream).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TooWide { need: 3, have: 2 }), "{error}");
    assert!(harness.jobs().is_empty());
    // Named twice is wanted once.
    let waiting = pending(&harness, &[0, 1, 0, 1], &stream);
    harness.finish_jobs();
    let lease = ready(waiting.try_lease());
    assert_eq!((lease.len(), lease.slot(0)), (4, lease.slot(2)));
}

#[test]
fn one_fill_a_key_and_its_error_reaches_everyone_once() {
    let harness = Harness::new(3, PolicyKind::Lru);
    let stream = stream(&harness);
    warm(&harness, &[5], &stream);
    let (first, second) = (pending(&harness, &[0, 5], &stream), pending(&harness, &[0], &stream));
    assert_eq!(harness.jobs().len(), 1);
    harness.deliver(1, Err(read_error()));
    let text = first.try_lease().unwrap_err().to_string();
    assert_eq!(second.try_lease().unwrap_err().to_string(), text);
    assert!(text.contains("the disk is gone"), "{text}");
    // Its other key stays, nothing is poisoned, and the next demand tries again in another slot.
    assert!(is_resident(&harness, 5));
    let third = pending(&harness, &[0], &stream);
    assert_eq!(harness.jobs().len(), 2);
    harness.finish_jobs();
    drop(ready(third.try_lease()));
    assert_eq!(harness.cache.counters().get(Counter::AcquiresFailed), 2);
}

#[test]
fn a_slot_whose_fill_failed_waits_for_copies_in_flight() {
    let harness = Harness::new(1, PolicyKind::Lru);
    let stream = stream(&harness);
    let first = pending(&harness, &[0], &stream);
    harness.deliver(0, Ok(()));
    harness.deliver(0, Err(read_error()));
    assert!(first.try_lease().is_err());
    assert_eq!(state_of(&harness, 0), State::Failed);
    // The only slot still has a copy in flight: the next set waits for it, then gets its turn.
    let second = pending(&harness, &[1], &stream);
    assert_eq!(harness.jobs().len(), 1);
    deliver_all(&harness, 0);
    assert!(!harness.retire(0));
    harness.control.run_all();
    assert!(harness.retire(0));
    assert_eq!(harness.jobs().len(), 1);
    harness.finish_jobs();
    drop(ready(second.try_lease()));
}

#[test]
fn a_fill_dies_with_its_last_interest() {
    let harness = Harness::new(2, PolicyKind::Lru);
    let stream = stream(&harness);
    let (first, second) = (pending(&harness, &[0], &stream), pending(&harness, &[0], &stream));
    drop(first);
    assert_eq!(state_of(&harness, 0), State::Loading);
    drop(second);
    assert_eq!(state_of(&harness, 0), State::Failed);
    assert_eq!(harness.cache.counters().get(Counter::FillsCancelled), 1);
    harness.finish_jobs();
    assert_eq!(state_of(&harness, 0), State::Free);
    assert!(!is_resident(&harness, 0));
}

#[test]
fn first_come_first_served_holding_nothing() {
    let harness = Harness::new(2, PolicyKind::Lru);
    let stream = stream(&harness);
    warm(&harness, &[0, 1], &stream);
    let lease = ready(harness.cache.acquire(&keys(&harness, &[0]), &stream));
    // Needs both slots, gets neither; the one that could be had at once waits behind it.
    let (wide, narrow) = (pending(&harness, &[2, 3], &stream), pending(&harness, &[1], &stream));
    assert!(is_resident(&harness, 1));
    lease.release(&[]).unwrap();
    assert!(!is_resident(&harness, 1));
    harness.finish_jobs();
    let wide = ready(wide.try_lease());
    let Ok(Acquire::Pending(narrow)) = narrow.try_lease() else { panic!("served before its turn") };
    wide.release(&[]).unwrap();
    harness.finish_jobs();
    drop(ready(narrow.try_lease()));
}

#[test]
fn a_draining_slot_is_hit_or_reused_in_stream_order() {
    let harness = Harness::new(1, PolicyKind::Lru);
    let stream = stream(&harness);
    warm(&harness, &[0], &stream);
    let lease = ready(harness.cache.acquire(&keys(&harness, &[0]), &stream));
    let (segment, base) = lease.memory(0).unwrap();
    let launch = stream.copy_to_host(&segment, base, vec![0; 100]).unwrap();
    lease.release(&[&stream]).unwrap();
    assert_eq!(state_of(&harness, 0), State::Draining);
    drop(ready(harness.cache.acquire(&keys(&harness, &[0]), &stream)));
    assert_eq!(harness.cache.counters().get(Counter::Hits), 1 + 1);
    let waiting = pending(&harness, &[1], &stream);
    assert_eq!(harness.cache.counters().get(Counter::EvictionsDraining), 1);
    deliver_all(&harness, 1);
    // Two releases were under way: two waits on the device, none on the host.
    assert_eq!(harness.cache.counters().get(Counter::ReleaseWaits), 2);
    drop(ready(waiting.try_lease()));
    assert_eq!(launch.wait().unwrap(), bytes_of(0)[..100]);
    let log = Reader::new(harness.cache.counters().words()).unwrap().log(10);
    assert!(log.iter().any(|entry| entry.kind == Some(LogKind::Evicted)
        && entry.cause == Some(Cause::Demand)
        && entry.key == Some((0, 0))));
}

#[test]
fn an_error_of_the_stream_spoils_what_was_not_seen_to_arrive() {
    let harness = Harness::new(2, PolicyKind::Lru);
    let stream = stream(&harness);
    let waiting = pending(&harness, &[0], &stream);
    deliver_all(&harness, 0);
    let lease = ready(waiting.try_lease());
    let late = pending(&harness, &[1, 0], &stream);
    let failed = |group: u64| {
        let error = Error::new(ErrorKind::Closed);
        harness.cache.shared().with(|core| core.failed(group | (1 << 32), &error, Cause::Copy));
    };
    failed(0);
    assert_eq!(state_of(&harness, 0), State::Failed);
    assert!(!is_resident(&harness, 0));
    harness.finish_jobs();
    // The slot is not reused before its lease is back, and the other set is not given bad data.
    assert_eq!(state_of(&harness, 0), State::Failed);
    assert!(late.try_lease().is_err());
    lease.release(&[&stream]).unwrap();
    assert_eq!(state_of(&harness, 0), State::Free);
}

#[test]
fn a_captured_stream_keeps_its_slots_aside() {
    let harness = Harness::new(2, PolicyKind::Lru);
    let stream = stream(&harness);
    warm(&harness, &[0], &stream);
    let lease = ready(harness.cache.acquire(&keys(&harness, &[0]), &stream));
    harness.control.set_capture(harness.control.stream(&stream), CaptureState::Active);
    drop(lease);
    assert_eq!(state_of(&harness, 0), State::Leased);
    let error = harness.cache.acquire(&keys(&harness, &[0, 1]), &stream).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TooWide { need: 2, have: 1 }));
    harness.control.set_capture(harness.control.stream(&stream), CaptureState::None);
    harness.cache.recover().unwrap();
    assert_eq!(state_of(&harness, 0), State::Resident);
}

#[test]
fn parts_of_a_lease_end_at_different_times() {
    let harness = Harness::new(3, PolicyKind::Lru);
    let stream = stream(&harness);
    warm(&harness, &[0, 1, 2], &stream);
    let mut left = ready(harness.cache.acquire(&keys(&harness, &[0, 1, 2, 0]), &stream));
    let whole: Vec<_> = left.slots().collect();
    let right = left.split_off(1);
    assert_eq!(left.slots().chain(right.slots()).collect::<Vec<_>>(), whole);
    right.release(&[]).unwrap();
    let states = |slot: u32| state_of(&harness, slot);
    let slots: Vec<u32> = whole.iter().map(|slot| slot.slot).collect();
    assert_eq!(states(slots[1]), State::Resident);
    assert_eq!(states(slots[0]), State::Leased);
    left.release(&[]).unwrap();
    assert_eq!(states(slots[0]), State::Resident);
    assert!(harness.cache.shared().with(|core| core.is_quiet()));
}

#[test]
fn an_unregistered_model_leaves_and_its_keys_go_stale() {
    let harness = Harness::new(2, PolicyKind::Cycle);
    let stream = stream(&harness);
    warm(&harness, &[0], &stream);
    let old = harness.keys[0];
    let lease = ready(harness.cache.acquire(&[old], &stream));
    assert_eq!(harness.cache.unregister(old.model).unwrap_err().kind().as_str(), "in_use");
    drop(lease);
    harness.control.run_all();
    harness.cache.unregister(old.model).unwrap();
    assert_eq!(harness.cache.snapshot().states[State::Free as usize], 2);
    let again = harness.cache.register(super::harness::catalogue()).unwrap();
    assert_eq!(again, old.model);
    assert_eq!(harness.cache.acquire(&[old], &stream).unwrap_err().kind().as_str(), "stale_key");
    let new = harness.cache.key(again, 0).unwrap();
    assert_eq!(new.generation, old.generation + 1);
    assert!(matches!(harness.cache.acquire(&[new], &stream).unwrap(), Acquire::Pending(_)));
    assert!(harness.cache.key(again, 99).is_err());
}

#[test]
fn a_pump_that_takes_no_job_fails_the_set_and_frees_its_slots() {
    let harness = Harness::new(2, PolicyKind::Lru);
    let stream = stream(&harness);
    harness.feed.refuse.store(true, Ordering::Relaxed);
    assert_eq!(
        harness.cache.acquire(&keys(&harness, &[0, 1]), &stream).unwrap_err().kind().as_str(),
        "closed"
    );
    assert_eq!(harness.cache.snapshot().states[State::Free as usize], 2);
    assert!(harness.cache.shared().with(|core| core.is_quiet()));
    harness.feed.refuse.store(false, Ordering::Relaxed);
    warm(&harness, &[0, 1], &stream);
}

#[test]
fn closing_tells_those_who_wait_and_leaves_leases_valid() {
    let harness = Harness::new(2, PolicyKind::Lru);
    let stream = stream(&harness);
    warm(&harness, &[0], &stream);
    let lease = ready(harness.cache.acquire(&keys(&harness, &[0]), &stream));
    let (loading, queued) = (pending(&harness, &[1], &stream), pending(&harness, &[2, 3], &stream));
    let Harness { cache, device, control, feed, .. } = harness;
    drop((cache, feed));
    assert_eq!(loading.wait().unwrap_err().kind().as_str(), "closed");
    assert_eq!(queued.wait().unwrap_err().kind().as_str(), "closed");
    let (segment, base) = lease.memory(0).unwrap();
    let read = stream.copy_to_host(&segment, base, vec![0; bytes_of(0).len()]).unwrap();
    // The memory outlives the cache until this lease is back and its launch has run.
    drop((lease, segment));
    assert_eq!(read.wait().unwrap(), bytes_of(0));
    assert_eq!(device.memory_in_use(), 0);
    assert_eq!(control.violations(), Vec::<String>::new());
}
