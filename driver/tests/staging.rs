//! Small writes through the staging ring.
#![cfg(feature = "fake")]
#![allow(clippy::unwrap_used)]

mod common;

use common::{NON_BLOCKING, assert_clean, deferred, driven, stream, with};
use spoc_driver::backend::{CaptureState, Verdict};
use spoc_driver::fake::{FakeOptions, WaitMode};
use spoc_driver::{ErrorKind, Location, MAX_STAGED_BYTES, STAGING_RING_BYTES, Vector};

#[test]
fn the_source_can_be_overwritten_at_once() {
    let (device, control) = deferred();
    let stream = stream(&device);
    let mut vector = Vector::<i32>::device_only(&device, 8).unwrap();
    let mut source = [1, 2, 3];
    for turn in 0..3 {
        source[0] = turn;
        vector.stage_to_device_on(&stream, u64::try_from(turn).unwrap() * 2, &source[..2]).unwrap();
    }
    source.fill(99);
    assert_eq!(control.pending(), 3, "nobody has waited for the device");
    control.run_all();
    let mut seen = [0; 6];
    vector.copy_to_host(0, &mut seen).unwrap();
    assert_eq!(seen, [0, 2, 1, 2, 2, 2]);
    assert_eq!(device.counters().pageable_copies, 0);
    drop((vector, stream, device));
    assert_clean(&control);
}

#[test]
fn the_ring_is_made_on_first_use_and_kept() {
    let (device, control) = driven();
    assert_eq!(device.pinned_ranges(), 0);
    let mut vector = Vector::<u8>::device_only(&device, 8).unwrap();
    for _ in 0..3 {
        vector.stage_to_device(0, &[1]).unwrap();
        assert_eq!(device.pinned_ranges(), 1);
    }
    drop((vector, device));
    assert_clean(&control);
}

#[test]
fn sizes_and_preconditions_are_those_of_a_small_ranged_write() {
    let (device, control) = driven();
    let mut vector = Vector::<u8>::zeroed(MAX_STAGED_BYTES as u64 * 2).unwrap();
    assert_eq!(*vector.stage_to_device(0, &[1]).unwrap_err().kind(), ErrorKind::WrongLocation);
    vector.to_device(&device).unwrap();
    vector.stage_to_device(0, &vec![7; MAX_STAGED_BYTES]).unwrap();
    assert_eq!(vector.location(), Location::StaleCpu);
    let refused = vector.stage_bytes_to_device(0, &vec![7; MAX_STAGED_BYTES + 1]).unwrap_err();
    assert_eq!(*refused.kind(), ErrorKind::TooLarge { need: 65_537, max: 65_536 });
    let refused = vector.stage_to_device(u64::MAX, &[1]).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::OutOfBounds { .. }));
    vector.stage_to_device(0, &[]).unwrap();
    assert_eq!(vector.get(MAX_STAGED_BYTES as u64 - 1).unwrap(), 7);
    drop((vector, device));
    assert_clean(&control);
}

#[test]
fn a_full_ring_waits_for_the_oldest_write_alone() {
    let (device, control) = driven();
    let (first, second) = (stream(&device), device.create_stream(NON_BLOCKING).unwrap());
    let mut vector = Vector::<u8>::device_only(&device, MAX_STAGED_BYTES as u64).unwrap();
    let bytes = vec![5; MAX_STAGED_BYTES];
    let fits = usize::try_from(STAGING_RING_BYTES).unwrap() / MAX_STAGED_BYTES;
    vector.stage_to_device_on(&first, 0, &bytes).unwrap();
    for _ in 1..fits {
        vector.stage_to_device_on(&second, 0, &bytes).unwrap();
    }
    assert_eq!((device.counters().staging_waits, control.pending()), (0, fits));
    // Room appears behind the oldest, whose stream is waited for; twice, as head and tail may not meet.
    vector.stage_to_device_on(&second, 0, &bytes[..100]).unwrap();
    assert_eq!((device.counters().staging_waits, control.pending()), (1, fits));
    drop((vector, first, second, device));
    assert_clean(&control);
}

#[test]
fn many_more_writes_than_the_ring_holds_arrive_in_order() {
    let (device, control) = driven();
    let stream = device.create_stream(NON_BLOCKING).unwrap();
    let mut vector = Vector::<u64>::device_only(&device, 4096).unwrap();
    for turn in 0..200_u64 {
        let len = 1 + (turn * 977) % 4096;
        vector.stage_to_device_on(&stream, 0, &vec![turn; usize::try_from(len).unwrap()]).unwrap();
    }
    vector.stage_to_device(0, &[1000]).unwrap();
    let mut seen = [0; 2];
    vector.copy_to_host(0, &mut seen).unwrap();
    assert_eq!(seen, [1000, 199], "the default stream settles the other before its own write");
    drop((vector, stream, device));
    assert_clean(&control);
}

#[test]
fn a_capturing_stream_is_refused() {
    let (device, control) = driven();
    let stream = stream(&device);
    let mut vector = Vector::<u8>::device_only(&device, 8).unwrap();
    for state in [CaptureState::Active, CaptureState::Spoiled] {
        control.set_capture(control.stream(&stream), state);
        assert_eq!(*vector.stage_to_device_on(&stream, 0, &[1]).unwrap_err().kind(), ErrorKind::Capturing);
    }
    control.set_capture(control.stream(&stream), CaptureState::None);
    vector.stage_to_device_on(&stream, 0, &[1]).unwrap();
    drop((vector, stream, device));
    assert_clean(&control);
}

#[test]
fn without_asynchronous_copies_it_is_complete_on_return() {
    let mut options = FakeOptions { wait_mode: WaitMode::Drive, ..FakeOptions::default() };
    options.capabilities.async_copies = Verdict::unavailable("synchronous");
    let (device, control) = with(options);
    let stream = stream(&device);
    let mut vector = Vector::<u8>::device_only(&device, 8).unwrap();
    vector.stage_to_device_on(&stream, 0, &[1]).unwrap();
    vector.stage_to_device(1, &[2]).unwrap();
    assert_eq!((control.pending(), device.in_flight(), device.pinned_ranges()), (0, 0, 0));
    drop((vector, stream, device));
    assert_clean(&control);
}

#[test]
fn without_pinned_memory_the_source_can_be_overwritten_at_once_too() {
    let mut options = FakeOptions::default();
    options.capabilities.pinned_alloc = Verdict::unavailable("none here");
    let (device, control) = with(options);
    let stream = stream(&device);
    let mut vector = Vector::<u8>::device_only(&device, 8).unwrap();
    let mut source = [1, 2];
    vector.stage_to_device_on(&stream, 0, &source).unwrap();
    source.fill(99);
    assert_eq!((control.pending(), device.pinned_ranges()), (1, 0), "a copy of it waits, in ordinary memory");
    control.run_all();
    let mut seen = [0; 2];
    vector.copy_to_host(0, &mut seen).unwrap();
    assert_eq!(seen, [1, 2]);
    drop((vector, stream, device));
    assert_clean(&control);
}
