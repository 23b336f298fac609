//! Readers and everything that an engine wants beside sets: one rule a test.

use super::harness::{Harness, SLOT_BYTES, bytes_of, read_error};
use crate::cache::CacheOptions;
use crate::lease::Acquire;
use crate::policy::PolicyKind;
use crate::readers::Reader;
use crate::slots::NONE;
use crate::slots::state::State;
use crate::stats::layout::Counter;
use crate::stats::{Cause, LogKind};
use crate::{ErrorKind, Key, Profile};
use spoc_driver::{CaptureState, PendingRead, Stream, StreamOptions};
use spoc_io::ReadClass;
use std::time::{Duration, Instant};

fn stream(harness: &Harness) -> Stream {
    harness.device.create_stream(StreamOptions::default()).unwrap()
}

fn keys(harness: &Harness, groups: &[usize]) -> Vec<Key> {
    groups.iter().map(|&group| harness.keys[group]).collect()
}

/// Reads the groups in, one after another, and lets every copy run.
fn warm(harness: &Harness, groups: &[usize], stream: &Stream) {
    for &group in groups {
        let waiting = harness.cache.acquire(&[harness.keys[group]], stream).unwrap();
        harness.finish_jobs();
        let lease = match waiting {
            Acquire::Ready(lease) => lease,
            Acquire::Pending(pending) => pending.wait().unwrap(),
        };
        lease.release(&[]).unwrap();
    }
}

fn launch(stream: &Stream, memory: Option<(spoc_driver::Segment, u64)>) -> PendingRead<Vec<u8>> {
    let (segment, base) = memory.unwrap();
    stream.copy_to_host(&segment, base, vec![0; bytes_of(0).len()]).unwrap()
}

fn slot_of(harness: &Harness, group: usize) -> u32 {
    harness.cache.shared().with(|core| core.slot_of[group])
}

fn is_resident(harness: &Harness, group: usize) -> bool {
    slot_of(harness, group) != NONE
}

fn get(harness: &Harness, counter: Counter) -> u64 {
    harness.cache.counters().get(counter)
}

/// Takes the set through a reader that has met the model, by itself or not at all.
fn found<'r>(
    reader: &'r Reader<&'r Stream>,
    keys: &[Key],
) -> Option<crate::readers::ReaderLease<'r, &'r Stream>> {
    reader.try_acquire(keys)
}

/// A first acquire makes the reader know the model.
fn introduce(reader: &Reader<&Stream>, key: Key) {
    drop(reader.wait_acquire(&[key]).unwrap());
}

#[test]
fn what_a_reader_holds_does_not_leave_before_its_step_ends() {
    let harness = Harness::new(2, PolicyKind::Lru);
    let stream = stream(&harness);
    warm(&harness, &[0, 1], &stream);
    let reader = harness.cache.reader(&stream).unwrap();
    introduce(&reader, harness.keys[1]);
    let lease = found(&reader, &keys(&harness, &[0])).unwrap();
    assert_eq!((lease.len(), lease.slot_number(0)), (1, Some(slot_of(&harness, 0))));
    let read = launch(&stream, lease.memory(0));
    drop(lease);
    // Group 0 is the oldest, but held until the step ends: 1 leaves.
    let Ok(Acquire::Pending(other)) = harness.cache.acquire(&keys(&harness, &[2]), &stream) else {
        panic!("not pending")
    };
    assert!(is_resident(&harness, 0) && !is_resident(&harness, 1));
    drop(other);
    harness.finish_jobs();
    reader.end_step().unwrap();
    let other = harness.cache.acquire(&keys(&harness, &[2, 3]), &stream).unwrap();
    assert!(!is_resident(&harness, 0));
    harness.finish_jobs();
    assert_eq!(read.wait().unwrap(), bytes_of(0));
    drop(other.wait().unwrap());
}

#[test]
fn a_fill_waits_on_the_device_for_what_readers_launched() {
    let harness = Harness::new(1, PolicyKind::Lru);
    let stream = stream(&harness);
    warm(&harness, &[0], &stream);
    let reader = harness.cache.reader(&stream).unwrap();
    introduce(&reader, harness.keys[0]);
    harness.control.run_all();
    let lease = found(&reader, &keys(&harness, &[0])).unwrap();
    let read = launch(&stream, lease.memory(0));
    drop(lease);
    reader.end_step().unwrap();
    let waits = get(&harness, Counter::ReleaseWaits);
    let Ok(Acquire::Pending(pending)) = harness.cache.acquire(&keys(&harness, &[1]), &stream) else {
        panic!("not pending")
    };
    // Every chunk is delivered before the launch has run; nothing on the host waits.
    for _ in 0..4 {
        harness.deliver(harness.jobs()[0], Ok(()));
    }
    assert_eq!(get(&harness, Counter::ReleaseWaits), waits + 1);
    harness.finish_jobs();
    assert_eq!(read.wait().unwrap(), bytes_of(0));
    drop(pending);
}

#[test]
fn a_set_that_waits_for_a_reader_is_served_when_its_step_ends() {
    let harness = Harness::new(2, PolicyKind::Cycle);
    let stream = stream(&harness);
    warm(&harness, &[0, 1], &stream);
    let reader = harness.cache.reader(&stream).unwrap();
    introduce(&reader, harness.keys[1]);
    let lease = found(&reader, &keys(&harness, &[0, 1, 0])).unwrap();
    let Ok(Acquire::Pending(waiting)) = harness.cache.acquire(&keys(&harness, &[2, 3]), &stream) else {
        panic!("not pending")
    };
    assert!(harness.jobs().is_empty(), "nothing may be evicted");
    reader.end_step().unwrap();
    assert!(harness.jobs().is_empty(), "the lease is still out");
    drop(lease);
    reader.end_step().unwrap();
    assert_eq!(harness.jobs().len(), 2);
    harness.finish_jobs();
    drop(waiting.wait().unwrap());
    // Duplicates count once, and a set of a reader is all hits.
    let _ = harness.cache.snapshot();
    let (hits, misses) = (get(&harness, Counter::Hits), get(&harness, Counter::Misses));
    assert_eq!((hits, misses), (1 + 2, 4));
    assert_eq!(hits + misses, get(&harness, Counter::Requested));
    assert_eq!(get(&harness, Counter::LeasesGiven), get(&harness, Counter::LeasesReleased));
}

#[test]
fn the_next_acquire_ends_the_step_for_those_who_wait() {
    let harness = Harness::new(2, PolicyKind::Cycle);
    let stream = stream(&harness);
    warm(&harness, &[0, 1], &stream);
    let reader = harness.cache.reader(&stream).unwrap();
    introduce(&reader, harness.keys[1]);
    drop(found(&reader, &keys(&harness, &[0, 1])).unwrap());
    let waiting = harness.cache.acquire(&keys(&harness, &[2, 3]), &stream).unwrap();
    assert!(harness.jobs().is_empty());
    // The reader comes back for more: what it has done with is given to those who wait.
    let next = reader.acquire(&keys(&harness, &[0])).unwrap();
    assert_eq!(harness.jobs().len(), 2);
    harness.finish_jobs();
    drop(waiting.wait().unwrap());
    drop(next);
}

#[test]
fn a_reader_on_a_captured_stream_keeps_what_it_holds() {
    let harness = Harness::new(2, PolicyKind::Lru);
    let stream = stream(&harness);
    warm(&harness, &[0, 1], &stream);
    let reader = harness.cache.reader(&stream).unwrap();
    introduce(&reader, harness.keys[1]);
    drop(found(&reader, &keys(&harness, &[0])).unwrap());
    harness.control.set_capture(harness.control.stream(&stream), CaptureState::Active);
    assert!(matches!(reader.end_step().unwrap_err().kind(), ErrorKind::Capturing));
    assert_eq!(reader.acquire(&keys(&harness, &[2])).unwrap_err().kind().as_str(), "capturing");
    drop(reader);
    // No event is behind its launches: the slot is kept aside until the device was synchronised.
    let error = harness.cache.acquire(&keys(&harness, &[0, 1]), &stream).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TooWide { need: 2, have: 1 }), "{error}");
    harness.control.set_capture(harness.control.stream(&stream), CaptureState::None);
    harness.cache.recover().unwrap();
    drop(harness.cache.acquire(&keys(&harness, &[0, 1]), &stream).unwrap());
    harness.control.run_all();
    assert!(harness.cache.shared().with(|core| {
        core.retire_all();
        core.is_quiet()
    }));
}

#[test]
fn readers_feed_the_policy() {
    let harness = Harness::new(3, PolicyKind::Lru);
    let stream = stream(&harness);
    warm(&harness, &[0, 1, 2], &stream);
    let reader = harness.cache.reader(&stream).unwrap();
    introduce(&reader, harness.keys[2]);
    drop(found(&reader, &keys(&harness, &[0])).unwrap());
    reader.end_step().unwrap();
    drop(harness.cache.acquire(&keys(&harness, &[3]), &stream).unwrap());
    assert!(is_resident(&harness, 0) && !is_resident(&harness, 1), "1 is the least recently used");
}

#[test]
fn an_unregistered_model_is_gone_for_readers_and_not_before_they_let_go() {
    let harness = Harness::new(2, PolicyKind::Lru);
    let stream = stream(&harness);
    warm(&harness, &[0], &stream);
    let reader = harness.cache.reader(&stream).unwrap();
    let key = harness.keys[0];
    introduce(&reader, key);
    let lease = found(&reader, &[key]).unwrap();
    harness.control.run_all();
    assert_eq!(harness.cache.unregister(key.model).unwrap_err().kind().as_str(), "in_use");
    drop(lease);
    assert!(found(&reader, &[key]).is_some(), "the refusal changed nothing");
    reader.end_step().unwrap();
    harness.cache.unregister(key.model).unwrap();
    assert!(found(&reader, &[key]).is_none());
    assert_eq!(reader.wait_acquire(&[key]).unwrap_err().kind().as_str(), "stale_key");
    let mut slots = [0];
    assert_eq!((reader.look_up(&[key], &mut slots), slots), (0, [NONE]));
}

#[test]
fn a_claim_takes_what_is_there_and_reads_no_more_than_asked() {
    let harness = Harness::new(4, PolicyKind::Lru);
    let stream = stream(&harness);
    warm(&harness, &[0, 1], &stream);
    let set = keys(&harness, &[2, 0, 3, 1, 0, 2]);
    let claim = harness.cache.claim(&set, &stream, 1).unwrap();
    assert_eq!(claim.missing(), keys(&harness, &[2, 3]));
    assert_eq!(claim.inserts(), 1);
    let there: Vec<bool> = (0..set.len()).map(|index| claim.slot(index).is_some()).collect();
    assert_eq!(there, [false, true, false, true, true, false]);
    assert_eq!(claim.slot(1), claim.slot(4));
    assert_eq!(claim.slot(3).unwrap().slot, slot_of(&harness, 1));
    let read = launch(&stream, claim.memory(3));
    claim.release(&[&stream]).unwrap();
    harness.finish_jobs();
    assert_eq!(read.wait().unwrap(), bytes_of(1));
    assert!(is_resident(&harness, 2) && !is_resident(&harness, 3));
    let (hits, misses) = (get(&harness, Counter::Hits), get(&harness, Counter::Misses));
    assert_eq!((hits, misses, get(&harness, Counter::Requested)), (2, 4, 6));
    // Nobody waits for what a claim began, and it is not cancelled for that.
    assert_eq!(get(&harness, Counter::FillsCancelled), 0);
}

#[test]
fn pins_stay_are_read_when_missing_and_are_bounded() {
    let harness = Harness::new(3, PolicyKind::Lru);
    let stream = stream(&harness);
    warm(&harness, &[0], &stream);
    harness.cache.pin(&keys(&harness, &[0, 1])).unwrap();
    assert_eq!(harness.jobs().len(), 1, "the missing one is read");
    harness.finish_jobs();
    for group in [2, 3, 4, 5] {
        warm(&harness, &[group], &stream);
        assert!(is_resident(&harness, 0) && is_resident(&harness, 1));
    }
    let error = harness.cache.pin(&keys(&harness, &[2, 3])).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TooWide { need: 4, have: 3 }), "{error}");
    // A set that does not fit beside them is refused; one that has them as members is not.
    let error = harness.cache.acquire(&keys(&harness, &[2, 3]), &stream).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TooWide { need: 2, have: 1 }), "{error}");
    drop(harness.cache.acquire(&keys(&harness, &[0, 1, 2]), &stream).unwrap());
    harness.finish_jobs();
    harness.cache.pin(&keys(&harness, &[0])).unwrap();
    harness.cache.unpin(&keys(&harness, &[0, 1])).unwrap();
    warm(&harness, &[3, 4], &stream);
    assert!(is_resident(&harness, 0), "pinned twice, unpinned once");
    harness.cache.unpin(&keys(&harness, &[0])).unwrap();
    warm(&harness, &[5, 6, 2], &stream);
    assert!(!is_resident(&harness, 0));
}

#[test]
fn a_pin_makes_a_set_that_waits_too_wide() {
    let harness = Harness::new(2, PolicyKind::Lru);
    let stream = stream(&harness);
    warm(&harness, &[0, 1], &stream);
    let lease = harness.cache.wait_acquire(&keys(&harness, &[0]), &stream).unwrap();
    let Ok(Acquire::Pending(waiting)) = harness.cache.acquire(&keys(&harness, &[2, 3]), &stream) else {
        panic!("not pending")
    };
    harness.cache.pin(&keys(&harness, &[1])).unwrap();
    assert_eq!(waiting.wait().unwrap_err().kind().as_str(), "too_wide");
    drop(lease);
}

#[test]
fn what_is_retained_leaves_last_and_only_for_its_while() {
    let harness = Harness::new(2, PolicyKind::Lru);
    let stream = stream(&harness);
    warm(&harness, &[0, 1], &stream);
    harness.cache.retain(&keys(&harness, &[0]), Duration::from_secs(3600)).unwrap();
    warm(&harness, &[2, 3], &stream);
    assert!(is_resident(&harness, 0));
    let both = harness.cache.acquire(&keys(&harness, &[4, 5]), &stream).unwrap();
    assert!(!is_resident(&harness, 0), "a set that needs the room gets it");
    drop(both);
    harness.finish_jobs();
    warm(&harness, &[0, 1], &stream);
    harness.cache.retain(&keys(&harness, &[0]), Duration::ZERO).unwrap();
    warm(&harness, &[2, 3], &stream);
    assert!(!is_resident(&harness, 0));
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

fn in_ms(ms: u64) -> Instant {
    Instant::now() + Duration::from_millis(ms)
}

#[test]
fn a_hint_takes_free_slots_and_cold_groups_never_hot_ones() {
    let harness = Harness::new(2, PolicyKind::Cycle);
    let stream = stream(&harness);
    warm(&harness, &[4], &stream);
    let hinted = harness.cache.hint(&keys(&harness, &[4, 5]), in_ms(40)).unwrap();
    assert_eq!((hinted.there, hinted.begun, hinted.waiting), (1, 1, 0));
    assert_eq!(harness.class_of_job(harness.jobs()[0]), Some(ReadClass::Prefetch));
    harness.finish_jobs();
    // Layer 3 is visited, elsewhere: layer 4 comes next, layer 2 last.
    drop(harness.cache.claim(&keys(&harness, &[3]), &stream, 0).unwrap());
    let hinted = harness.cache.hint(&keys(&harness, &[2]), in_ms(40)).unwrap();
    assert_eq!((hinted.begun, hinted.waiting), (0, 1), "4 comes sooner, 5 is awaited");
    std::thread::sleep(Duration::from_millis(60));
    harness.cache.shared().serve();
    assert_eq!(get(&harness, Counter::SpeculationRefused), 1, "its deadline has passed");
    // Nobody wanted group 5 in time: it makes room for the next hint.
    let hinted = harness.cache.hint(&keys(&harness, &[6]), soon()).unwrap();
    assert_eq!(hinted.begun, 1);
    assert!(is_resident(&harness, 4) && !is_resident(&harness, 5));
    let issued =
        [Counter::SpeculationIssued, Counter::SpeculationWasted].map(|counter| get(&harness, counter));
    assert_eq!(issued, [2, 1]);
    let late = harness.cache.hint(&keys(&harness, &[2]), Instant::now()).unwrap();
    assert_eq!((late.begun, late.waiting), (0, 1));
}

#[test]
fn the_next_layer_takes_the_place_of_the_one_that_comes_last() {
    let harness = Harness::new(3, PolicyKind::Cycle);
    let stream = stream(&harness);
    for layer in [0, 1, 2, 3, 4, 5, 6, 0, 1] {
        warm(&harness, &[layer], &stream);
    }
    let (before, next) = (1, 2);
    if is_resident(&harness, next) {
        panic!("the test wants layer 2 away");
    }
    let hinted = harness.cache.hint(&keys(&harness, &[next]), soon()).unwrap();
    assert_eq!(hinted.begun, 1);
    harness.finish_jobs();
    assert!(!is_resident(&harness, before), "the layer just visited comes last");
    // Demand for others does not push it out before it was wanted.
    warm(&harness, &[next], &stream);
    assert_eq!(get(&harness, Counter::SpeculationUseful), 1);
}

#[test]
fn a_demand_joins_a_running_prefetch_and_makes_it_urgent() {
    let harness = Harness::new(2, PolicyKind::Lru);
    let stream = stream(&harness);
    harness.cache.hint(&keys(&harness, &[0, 1]), soon()).unwrap();
    let jobs = harness.jobs();
    let waiting = harness.cache.acquire(&keys(&harness, &[0]), &stream).unwrap();
    assert_eq!(harness.jobs(), jobs, "no second read");
    assert_eq!(harness.class_of_job(jobs[0]), Some(ReadClass::Demand));
    assert_eq!(harness.class_of_job(jobs[1]), Some(ReadClass::Prefetch));
    harness.finish_jobs();
    drop(waiting.wait().unwrap());
    drop(harness.cache.wait_acquire(&keys(&harness, &[1]), &stream).unwrap());
    assert_eq!(get(&harness, Counter::SpeculationLate), 1);
    assert_eq!(get(&harness, Counter::SpeculationUseful), 1);
    assert_eq!(get(&harness, Counter::Joins), 1);
}

#[test]
fn a_prefetch_that_failed_is_not_begun_again_at_once_but_a_demand_is() {
    let harness = Harness::new(2, PolicyKind::Lru);
    let stream = stream(&harness);
    harness.cache.hint(&keys(&harness, &[0]), soon()).unwrap();
    harness.deliver(harness.jobs()[0], Err(read_error()));
    harness.finish_jobs();
    assert_eq!(harness.cache.hint(&keys(&harness, &[0]), soon()).unwrap().refused, 1);
    let demand = harness.cache.acquire(&keys(&harness, &[0]), &stream).unwrap();
    harness.finish_jobs();
    drop(demand.wait().unwrap());
}

#[test]
fn cancelling_tells_everyone_who_waits() {
    let harness = Harness::new(3, PolicyKind::Lru);
    let stream = stream(&harness);
    warm(&harness, &[5], &stream);
    let acquire = |groups: &[usize]| match harness.cache.acquire(&keys(&harness, groups), &stream).unwrap() {
        Acquire::Pending(pending) => pending,
        Acquire::Ready(_) => panic!("ready"),
    };
    let (first, second) = (acquire(&[0, 5]), acquire(&[0]));
    assert_eq!(harness.cache.cancel(&keys(&harness, &[0, 5, 1])).unwrap(), 1);
    for pending in [first, second] {
        assert_eq!(pending.wait().unwrap_err().kind().as_str(), "cancelled");
    }
    harness.finish_jobs();
    assert_eq!(harness.cache.snapshot().states[State::Free as usize], 2);
    let again = acquire(&[0]);
    harness.finish_jobs();
    drop(again.wait().unwrap());
}

#[test]
fn a_profile_brings_back_what_was_hot_into_free_slots_only() {
    let harness = Harness::new(3, PolicyKind::Lru);
    let stream = stream(&harness);
    warm(&harness, &[4, 2, 2, 2, 4, 6], &stream);
    let profile = harness.cache.profile(harness.keys[0].model);
    let names: Vec<&str> = profile.groups.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["layers.2", "layers.4", "layers.6"]);
    let text = profile.to_string();
    let profile: Profile = text.parse().unwrap();
    let other = Harness::new(2, PolicyKind::Lru);
    assert_eq!(other.cache.warm(other.keys[0].model, &profile).unwrap(), 2);
    assert_eq!(other.class_of_job(other.jobs()[0]), Some(ReadClass::Refill));
    other.finish_jobs();
    assert!(is_resident(&other, 2) && is_resident(&other, 4) && !is_resident(&other, 6));
    assert_eq!(other.cache.warm(other.keys[0].model, &profile).unwrap(), 0, "no free slot");
}

#[test]
fn events_reach_subscribers_and_what_does_not_fit_is_counted() {
    let harness = Harness::new(1, PolicyKind::Lru);
    let stream = stream(&harness);
    let (wide, narrow) = (harness.cache.subscribe(64), harness.cache.subscribe(1));
    warm(&harness, &[0, 1], &stream);
    let seen: Vec<_> = wide.events().try_iter().map(|event| (event.kind, event.key.group)).collect();
    use LogKind::{Evicted, FillDone, FillStarted};
    assert_eq!(seen, [(FillStarted, 0), (FillDone, 0), (Evicted, 0), (FillStarted, 1), (FillDone, 1)]);
    assert_eq!((narrow.events().try_iter().count(), narrow.dropped(), wide.dropped()), (1, 4, 0));
    assert_eq!(get(&harness, Counter::EventsDropped), 4);
    drop(narrow);
    drop(harness);
    assert!(wide.events().recv().is_err(), "the channel closes with the cache");
}

fn sized(slots: u32, slots_max: u32, per_segment: u64) -> Harness {
    let options = CacheOptions {
        slots_max,
        segment_bytes: per_segment * 16 * 1024,
        policy: PolicyKind::Lru,
        ..CacheOptions::default()
    };
    Harness::with(slots, options)
}

#[test]
fn slots_come_and_go_with_their_memory() {
    let harness = sized(2, 6, 2);
    let stream = stream(&harness);
    warm(&harness, &[0, 1], &stream);
    let before = harness.device.memory_in_use();
    assert_eq!(harness.cache.resize(0, 6, None).unwrap(), 6);
    assert_eq!(harness.device.memory_in_use(), 3 * before);
    warm(&harness, &[2, 3, 4, 5], &stream);
    assert!((0..6).all(|group| is_resident(&harness, group)));
    let where_0 = slot_of(&harness, 0);
    assert_eq!(harness.cache.resize(0, 7, None).unwrap_err().kind().as_str(), "too_many_slots");
    // Whole segments: three would be one and a half.
    assert_eq!(harness.cache.resize(0, 3, None).unwrap(), 4);
    assert_eq!(harness.device.memory_in_use(), 2 * before);
    assert_eq!(slot_of(&harness, 0), where_0, "what stays is where it was");
    assert_eq!(harness.cache.snapshot().states.iter().sum::<u64>(), 4);
    assert_eq!(harness.cache.give_back(1, None).unwrap(), before);
    assert_eq!(harness.cache.slots(0).unwrap(), 2);
    assert_eq!(harness.cache.resize(0, 4, None).unwrap(), 4);
    warm(&harness, &[2, 3], &stream);
    assert!((0..4).all(|group| is_resident(&harness, group)));
    assert!(harness.cache.resize(1, 4, None).is_err());
}

#[test]
fn what_is_leased_stays_until_it_is_back_and_its_launches_have_run() {
    let harness = sized(4, 4, 2);
    let stream = stream(&harness);
    warm(&harness, &[0, 1, 2, 3], &stream);
    let lease = harness.cache.wait_acquire(&keys(&harness, &[3]), &stream).unwrap();
    let at_once = Some(Instant::now());
    assert_eq!(harness.cache.resize(0, 2, at_once).unwrap(), 4, "it did not leave in time and stays");
    assert!(is_resident(&harness, 3));
    let read = launch(&stream, lease.memory(0));
    lease.release(&[&stream]).unwrap();
    assert_eq!(harness.cache.resize(0, 2, at_once).unwrap(), 4, "its launch has not run");
    let waiting = harness.cache.wait_acquire(&keys(&harness, &[0]), &stream).unwrap();
    harness.control.run_all();
    assert_eq!(harness.cache.resize(0, 2, at_once).unwrap(), 2);
    assert_eq!(read.wait().unwrap(), bytes_of(3));
    drop(waiting);
}

#[test]
fn a_reader_keeps_a_segment_until_its_step_ends_and_has_run() {
    let harness = sized(2, 2, 1);
    let stream = stream(&harness);
    warm(&harness, &[0, 1], &stream);
    let last = (0..2).find(|&group| slot_of(&harness, group) == 1).unwrap();
    let reader = harness.cache.reader(&stream).unwrap();
    introduce(&reader, harness.keys[last]);
    harness.control.run_all();
    drop(found(&reader, &keys(&harness, &[last])).unwrap());
    let at_once = Some(Instant::now());
    assert_eq!(harness.cache.resize(0, 1, at_once).unwrap(), 2, "held");
    reader.end_step().unwrap();
    let read = stream.copy_to_host(&harness.cache.segments()[1].clone().unwrap(), 0, vec![0; 8]).unwrap();
    drop(found(&reader, &keys(&harness, &[last])).unwrap());
    reader.end_step().unwrap();
    assert_eq!(harness.cache.resize(0, 1, at_once).unwrap(), 2, "its event has not fired");
    harness.control.run_all();
    assert_eq!(harness.cache.resize(0, 1, at_once).unwrap(), 1);
    drop(read);
}

#[test]
fn what_is_pinned_moves_when_its_segment_goes() {
    let harness = sized(2, 2, 1);
    let stream = stream(&harness);
    warm(&harness, &[0, 1], &stream);
    let last = (0..2).find(|&group| slot_of(&harness, group) == 1).unwrap();
    harness.cache.pin(&keys(&harness, &[last])).unwrap();
    assert_eq!(harness.cache.resize(0, 1, Some(Instant::now())).unwrap(), 1);
    harness.finish_jobs();
    assert_eq!(slot_of(&harness, last), 0);
    let error = harness.cache.resize(0, 0, Some(Instant::now())).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TooWide { need: 1, have: 0 }), "{error}");
    let log = crate::stats::Reader::new(harness.cache.counters().words()).unwrap().log(10);
    assert!(log.iter().any(|entry| entry.cause == Some(Cause::Resize)));
}

/// The lease type is still the one of `SlotCache::acquire`.
#[test]
fn a_set_that_must_be_read_comes_through_the_cache() {
    let harness = Harness::new(2, PolicyKind::Lru);
    let stream = stream(&harness);
    let reader = harness.cache.reader(&stream).unwrap();
    let crate::readers::ReaderAcquire::Pending(pending) = reader.acquire(&keys(&harness, &[0, 1])).unwrap()
    else {
        panic!("not pending")
    };
    harness.finish_jobs();
    let lease = pending.wait().unwrap();
    assert_eq!(lease.len(), 2);
    drop(lease);
    let lease = reader.wait_acquire(&keys(&harness, &[0, 1])).unwrap();
    assert!(lease.was_found(), "the copies have run, nothing need be waited for");
}

/// A pipeline takes the next lease before it ends the one before: at no moment all of them are back.
#[test]
fn leases_that_overlap_hold_no_more_than_themselves() {
    let harness = Harness::new(4, PolicyKind::Lru);
    let stream = stream(&harness);
    warm(&harness, &[0, 1, 2, 3], &stream);
    let reader = harness.cache.reader(&stream).unwrap();
    introduce(&reader, harness.keys[0]);
    let mut held = found(&reader, &keys(&harness, &[0])).unwrap();
    for group in [1, 2, 3, 1, 2, 3, 1, 2, 3] {
        let next = found(&reader, &keys(&harness, &[group])).unwrap();
        assert_eq!(next.slot_number(0), Some(slot_of(&harness, group)));
        drop(std::mem::replace(&mut held, next));
        reader.end_step().unwrap();
    }
    harness.control.run_all();
    // Group 3 alone is held: three others fit.
    let waiting = harness.cache.acquire(&keys(&harness, &[4, 5, 6]), &stream).unwrap();
    assert_eq!(harness.jobs().len(), 3, "slots of ended leases may leave");
    harness.finish_jobs();
    drop(waiting);
    assert!(is_resident(&harness, 3));
    drop(held);
}

/// What a reader did in its last moments is counted although it is let go of at once.
#[test]
fn a_reader_that_left_is_counted_to_the_end() {
    let harness = Harness::new(2, PolicyKind::Lru);
    warm(&harness, &[0], &stream(&harness));
    let before = get(&harness, Counter::LeasesGiven);
    let (cache, device, key) = (&harness.cache, &harness.device, harness.keys[0]);
    let retire = || cache.shared().with(crate::engine::Core::retire_all);
    std::thread::scope(|scope| {
        let reading = scope.spawn(move || {
            let stream = device.create_stream(StreamOptions::default()).unwrap();
            for _ in 0..300 {
                let reader = cache.reader(&stream).unwrap();
                introduce(&reader, key);
                drop(found(&reader, &[key]).unwrap());
            }
        });
        while !reading.is_finished() {
            retire();
            harness.control.run_all();
        }
    });
    harness.control.run_all();
    retire();
    assert_eq!(get(&harness, Counter::LeasesGiven) - before, 600);
    assert_eq!(cache.snapshot().leases, 0);
}

/// Engines, watchers of memory and operators may change the number of slots at once.
#[test]
fn threads_that_resize_at_once_agree() {
    let harness = sized(4, 16, 2);
    let wanted = [[2, 12, 0], [16, 4, 6], [8, 2, 10]];
    std::thread::scope(|scope| {
        for numbers in wanted {
            let cache = &harness.cache;
            scope.spawn(move || {
                for slots in numbers.into_iter().cycle().take(300) {
                    let given = cache.resize(0, slots, Some(in_ms(20)));
                    assert!(given.as_ref().is_ok_and(|&given| given <= 16), "{given:?}");
                    cache.give_back(SLOT_BYTES, Some(in_ms(5))).unwrap();
                }
            });
        }
    });
    assert_eq!(harness.cache.resize(0, 7, None).unwrap().next_multiple_of(2), 8, "whole segments");
    let stream = stream(&harness);
    let listed: u32 = harness.cache.segment_table().iter().map(|row| row.slots).sum();
    let states: u64 = harness.cache.snapshot().states.iter().sum();
    assert_eq!((u64::from(listed), states), (states, u64::from(harness.cache.slots(0).unwrap())));
    let waiting = harness.cache.acquire(&keys(&harness, &[0, 1, 2, 3, 4, 5, 6]), &stream).unwrap();
    harness.finish_jobs();
    let Acquire::Pending(waiting) = waiting else { panic!("nothing was there") };
    let lease = waiting.wait().unwrap();
    for group in 0..7u32 {
        let read = launch(&stream, lease.memory(group as usize));
        harness.control.run_all();
        assert_eq!(read.wait().unwrap(), bytes_of(group));
    }
}

/// Numbers of slots that were given back are good for segments of any width, and of any class.
#[test]
fn as_many_slots_as_there_were_numbers_for() {
    let harness = sized(16, 16, 8);
    for slots in [8, 12, 15, 16, 5, 16, 0, 3, 9, 16, 1, 13, 16] {
        let now = harness.cache.slots(0).unwrap();
        let got = harness.cache.resize(0, slots, None).unwrap();
        assert!(if slots >= now { got == slots } else { got >= slots }, "{slots} of {now}: {got}");
        let rows = harness.cache.segment_table();
        let mut numbers: Vec<u32> =
            rows.iter().flat_map(|row| row.first_slot..row.first_slot + row.slots).collect();
        numbers.sort_unstable();
        assert_eq!(numbers.len(), got as usize, "{rows:?}");
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]) && numbers.iter().all(|&slot| slot < 16));
    }
    let stream = stream(&harness);
    warm(&harness, &[0, 1, 2, 3, 4, 5, 6], &stream);
    for group in 0..7 {
        let lease = harness.cache.wait_acquire(&keys(&harness, &[group]), &stream).unwrap();
        let read = launch(&stream, lease.memory(0));
        harness.control.run_all();
        assert_eq!(read.wait().unwrap(), bytes_of(u32::try_from(group).unwrap()));
    }
}

/// An engine that switches models for weeks keeps no more books than one that does not.
#[test]
fn models_that_come_and_go_take_no_new_numbers() {
    let harness = Harness::new(2, PolicyKind::default());
    let stream = stream(&harness);
    let first = harness.keys[0];
    let items = |harness: &Harness| harness.cache.shared().with(|core| core.slot_of.len());
    let before = items(&harness);
    let mut model = first.model;
    for _ in 0..20 {
        harness.cache.unregister(model).unwrap();
        assert!(harness.cache.acquire(&[first], &stream).is_err(), "its keys are stale");
        model = harness.cache.register(super::harness::catalogue()).unwrap();
        let keys = harness.cache.keys(model);
        let cold = get(&harness, Counter::MissesCold);
        harness.cache.hint(&keys[1..2], in_ms(60_000)).unwrap();
        let waiting = harness.cache.acquire(&keys[..1], &stream).unwrap();
        harness.finish_jobs();
        drop(waiting);
        harness.control.run_all();
        assert_eq!(get(&harness, Counter::MissesCold), cold + 1, "nobody asked for it under this key");
        assert_eq!(items(&harness), before);
    }
}

/// A hint of a model that went is not read for whoever has its numbers next.
#[test]
fn hints_go_with_their_model() {
    let harness = Harness::new(1, PolicyKind::Lru);
    let stream = stream(&harness);
    warm(&harness, &[0], &stream);
    let lease = harness.cache.wait_acquire(&harness.keys[..1], &stream).unwrap();
    let hinted = harness.cache.hint(&harness.keys[1..3], in_ms(60_000)).unwrap();
    assert_eq!(hinted.waiting, 2);
    lease.release(&[]).unwrap();
    let begun = harness.jobs().len();
    harness.finish_jobs();
    harness.cache.unregister(harness.keys[0].model).unwrap();
    harness.cache.poll();
    assert_eq!(harness.jobs().len(), 0, "{begun} had begun");
}

/// The stream of the copies fails while a reader has what they brought: the slot is not filled under its launches.
#[test]
fn what_failed_under_a_reader_is_not_filled_under_its_launches() {
    let harness = Harness::new(1, PolicyKind::Lru);
    let stream = stream(&harness);
    warm(&harness, &[0], &stream);
    let reader = harness.cache.reader(&stream).unwrap();
    introduce(&reader, harness.keys[0]);
    let lease = found(&reader, &keys(&harness, &[0])).unwrap();
    let slot = lease.slot_number(0).unwrap();
    harness.cache.shared().with(|core| {
        core.fail(slot, &read_error(), Cause::Copy);
        core.reclaim(slot);
    });
    let other = harness.device.create_stream(StreamOptions::default()).unwrap();
    let waiting = harness.cache.acquire(&keys(&harness, &[1]), &other).unwrap();
    assert!(harness.jobs().is_empty(), "the reader has the only slot");
    drop(lease);
    reader.end_step().unwrap();
    assert_eq!(harness.jobs().len(), 1, "recovered by the end of the step");
    harness.finish_jobs();
    drop(waiting);
}

/// Two caches on one page would each write over what the other says.
#[test]
fn a_page_has_the_slots_of_one_cache() {
    let harness = Harness::new(2, PolicyKind::Lru);
    let build = || {
        let catalogue = super::harness::catalogue();
        crate::SlotCache::build(
            &harness.device,
            std::sync::Arc::clone(&harness.feed) as std::sync::Arc<dyn crate::pump::Feed>,
            harness.cache.counters().clone(),
            spoc_io::PlanOptions { chunk_bytes: 4096, gap_bytes: 0 },
            &[CacheOptions::for_catalogue(&catalogue, 3).class()],
            CacheOptions::default(),
        )
        .unwrap()
    };
    let second = build();
    assert_eq!(second.snapshot().states.iter().sum::<u64>(), 3);
    assert_eq!(harness.cache.snapshot().states.iter().sum::<u64>(), 2);
    drop(second);
    let page = harness.cache.counters().clone();
    assert_eq!(build().counters().slots_max(), 3, "the first one is still there");
    let Harness { cache, device, feed, .. } = harness;
    drop(cache);
    assert!(page.try_own().is_some(), "and then it is not");
    drop((device, feed));
}

/// Every chunk of a job arrives; no copy runs.
fn deliver_all(harness: &Harness, job: usize) {
    for _ in 0..8 {
        harness.deliver(job, Ok(()));
    }
}

/// An acquire may end the step by itself: it knows every stream that the reader launches on, and so do leases that had to
/// be read.
#[test]
fn every_stream_of_a_reader_is_waited_for() {
    for read_in in [false, true] {
        let harness = Harness::new(1, PolicyKind::Lru);
        let (stream, other) = (stream(&harness), stream(&harness));
        if !read_in {
            warm(&harness, &[0], &stream);
        }
        let reader = harness.cache.reader_on(&stream, vec![&other]).unwrap();
        let lease = match reader.acquire(&keys(&harness, &[0])).unwrap() {
            crate::readers::ReaderAcquire::Ready(lease) => lease,
            crate::readers::ReaderAcquire::Pending(pending) => {
                // Every copy is enqueued, none has run: the other stream is behind them as well.
                let job = harness.jobs()[0];
                deliver_all(&harness, job);
                pending.wait().unwrap()
            }
        };
        let read = launch(&other, lease.memory(0));
        drop(lease);
        // Ends the step, evicts, and is filled at once: behind the launch on the other stream.
        let waiting = reader.acquire(&keys(&harness, &[1])).unwrap();
        for job in harness.jobs() {
            deliver_all(&harness, job);
        }
        harness.control.run_all();
        assert_eq!(read.wait().unwrap(), bytes_of(0));
        harness.finish_jobs();
        drop(waiting);
        drop(reader);
        harness.control.run_all();
        assert_eq!(harness.control.violations(), Vec::<String>::new());
    }
}
