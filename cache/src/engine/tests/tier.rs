//! The host tier beside one cache, step by step.

use super::harness::{Did, GROUP_BYTES, Harness, SLOT_BYTES, bytes_of};
use crate::cache::CacheOptions;
use crate::lease::Acquire;
use crate::policy::PolicyKind;
use crate::stats::layout::Counter;
use crate::tier::TierOptions;
use spoc_driver::{Stream, StreamOptions};

const TIER: TierOptions = TierOptions { bytes: 2 * SLOT_BYTES, host_free_bytes: u64::MAX, inclusive: false };

fn harness(slots: u32, tier: TierOptions) -> Harness {
    Harness::with(slots, CacheOptions { policy: PolicyKind::Lru, tier, ..CacheOptions::default() })
}

fn stream(harness: &Harness) -> Stream {
    harness.device.create_stream(StreamOptions::default()).unwrap()
}

/// Acquires one group, lets everything run, and answers what a launch finds in its slot.
fn visit(harness: &Harness, group: usize) -> Vec<u8> {
    let stream = stream(harness);
    let acquired = harness.cache.acquire(&[harness.keys[group]], &stream).unwrap();
    harness.finish_jobs();
    let lease = match acquired {
        Acquire::Ready(lease) => lease,
        Acquire::Pending(pending) => pending.wait().unwrap(),
    };
    let (segment, base) = lease.memory(0).unwrap();
    let read = stream.copy_to_host(&segment, base, vec![0; GROUP_BYTES]).unwrap();
    lease.release(&[&stream]).unwrap();
    harness.control.run_all();
    read.wait().unwrap()
}

fn get(harness: &Harness, counter: Counter) -> u64 {
    harness.cache.counters().get(counter)
}

#[test]
fn what_left_a_slot_comes_back_from_the_tier() {
    let harness = harness(1, TIER);
    for group in [0, 1, 0, 1, 2, 0] {
        assert!(visit(&harness, group) == bytes_of(u32::try_from(group).unwrap()), "group {group}");
    }
    // 0 and 1 came back once each, then 0 again: both fit beside the slot.
    assert_eq!(get(&harness, Counter::TierHits), 3);
    assert_eq!(get(&harness, Counter::FillsDone), 6);
    let snapshot = harness.cache.snapshot();
    assert_eq!(snapshot.tier_room_bytes, 2 * SLOT_BYTES);
    assert!(snapshot.tier_bytes > 0);
    assert_eq!(harness.control.violations(), Vec::<String>::new());
}

#[test]
fn a_demand_joins_a_demotion_that_has_not_run() {
    let harness = harness(1, TIER);
    visit(&harness, 0);
    let stream = stream(&harness);
    // 0 leaves for 1, whose fill is given up; then 0 is wanted again. Nothing has run on the device.
    drop(harness.cache.acquire(&[harness.keys[1]], &stream).unwrap());
    assert_eq!(get(&harness, Counter::TierInBytes).div_ceil(SLOT_BYTES), 1);
    for index in harness.jobs() {
        while harness.jobs().contains(&index) && !harness.retire(index) {
            harness.deliver(index, Ok(()));
        }
    }
    let acquired = harness.cache.acquire(&[harness.keys[0]], &stream).unwrap();
    assert_eq!(get(&harness, Counter::TierHits), 1);
    let index = harness.jobs()[0];
    assert_eq!(harness.deliver(index, Ok(())), Did::Nothing, "an adapter may look at a source at once");
    harness.control.run_all();
    assert_eq!(harness.deliver(index, Ok(())), Did::Published);
    let Acquire::Pending(pending) = acquired else { panic!("it was loading") };
    let Acquire::Ready(lease) = pending.try_lease().unwrap() else { panic!("its copy is enqueued") };
    let (segment, base) = lease.memory(0).unwrap();
    let read = stream.copy_to_host(&segment, base, vec![0; GROUP_BYTES]).unwrap();
    harness.control.run_all();
    assert!(read.wait().unwrap() == bytes_of(0));
}

#[test]
fn an_inclusive_tier_copies_a_group_once() {
    let harness = harness(1, TierOptions { inclusive: true, bytes: 4 * SLOT_BYTES, ..TIER });
    for group in [0, 1, 0, 1, 0, 1] {
        assert!(visit(&harness, group) == bytes_of(u32::try_from(group).unwrap()), "group {group}");
    }
    assert_eq!(get(&harness, Counter::TierHits), 4);
    assert_eq!(get(&harness, Counter::TierInBytes).div_ceil(SLOT_BYTES), 2);
}

#[test]
fn a_copy_into_the_tier_that_fails_is_found_out_and_read_again() {
    let harness = harness(1, TIER);
    visit(&harness, 0);
    let stream = stream(&harness);
    let acquired = harness.cache.acquire(&[harness.keys[1]], &stream).unwrap();
    // The copy out of the slot is the next to run.
    harness.control.fail_copy(1);
    harness.control.run_all();
    harness.cache.poll();
    assert_eq!(get(&harness, Counter::TierDroppedFailed), 1);
    harness.finish_jobs();
    drop(acquired);
    harness.control.run_all();
    // From disk, whole; the tier's stream has failed for good, which costs the tier and nothing else.
    assert!(visit(&harness, 0) == bytes_of(0));
    assert!(visit(&harness, 1) == bytes_of(1));
    assert_eq!(get(&harness, Counter::TierHits), 0);
}

#[test]
fn a_pin_that_fails_makes_a_smaller_tier() {
    let (probed, control) = spoc_driver::fake::backend();
    let selector = spoc_driver::DeviceSelector::index(spoc_driver::BackendKind::Fake, 0);
    let device = spoc_driver::Driver::new(vec![probed]).open(&selector).unwrap();
    // Neither a registration nor memory of the driver's.
    control.fail_pin(1);
    let counters = crate::stats::Counters::on_heap(1);
    let geometry = crate::arena::Geometry::new(200 << 20, 1, 256, 1 << 30).unwrap();
    let berths = crate::tier::berths_for(&[geometry]);
    let bytes = 3 * geometry.stride_bytes;
    let pinning = crate::tier::Pinning::start(&device, &[geometry], &berths, bytes, &counters).unwrap();
    pinning.wait();
    let missing = counters.get(Counter::TierUnpinnedBytes);
    assert_eq!(berths[0].bytes() + missing, bytes);
    drop((pinning, berths));
    assert_eq!(control.live().pinned, 0);
}

#[test]
fn a_tier_larger_than_the_host_is_refused_with_both_figures() {
    let tier = TierOptions { host_free_bytes: 1000, ..TIER };
    let error = crate::tier::check_room(&tier).unwrap_err();
    assert!(error.to_string().contains(&format!("{} bytes needed", 2 * SLOT_BYTES)), "{error}");
    assert!(error.to_string().contains("1000 may be taken"), "{error}");
}

#[test]
fn memory_given_back_goes_and_what_was_kept_is_read_again() {
    let harness = harness(1, TIER);
    visit(&harness, 0);
    visit(&harness, 1);
    assert_eq!(harness.cache.give_back_tier(1), 2 * SLOT_BYTES);
    assert_eq!(harness.cache.snapshot().tier_room_bytes, 0);
    assert_eq!(harness.control.live().pinned, 0);
    assert!(visit(&harness, 0) == bytes_of(0));
    assert_eq!(get(&harness, Counter::TierHits), 0);
    assert_eq!(get(&harness, Counter::TierDroppedFull), 1);
}
