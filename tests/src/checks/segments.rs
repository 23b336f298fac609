//! Device memory.

use spoc_driver::SegmentOptions;

use crate::helpers::{Drops, pattern};
use crate::subject::{upload, whole};
use crate::{Subject, refused};

/// Nothing at all cannot be allocated, and neither can more than the limit.
pub fn segments_have_a_size_within_the_limit(subject: &Subject) {
    let max = subject.device.limits().segment_bytes_max;
    refused(subject.device.allocate(0), "zero_size");
    for len in [max.checked_add(1), Some(u64::MAX)].into_iter().flatten() {
        let error = refused(subject.device.allocate(len), "too_large");
        assert!(error.to_string().contains(&max.to_string()), "{error} does not name the limit");
    }
    let segment = subject.device.allocate(1).unwrap();
    assert_eq!(segment.len_bytes(), 1);
    assert!(segment.device().is(&subject.device));
}

/// An address is aligned, stays the same, and belongs to one segment.
pub fn segments_stay_where_they_are(subject: &Subject) {
    let align = subject.device.limits().address_align_bytes;
    let has_addresses = subject.device.capabilities().device_address.is_available();
    let segments: Vec<_> =
        [1, 100, 4096, 65_537].iter().map(|len| subject.device.allocate(*len).unwrap()).collect();
    let before: Vec<_> = segments.iter().map(spoc_driver::Segment::address).collect();
    for (segment, address) in segments.iter().zip(&before) {
        assert_eq!(address.is_some(), has_addresses);
        let Some(address) = address else { continue };
        assert_eq!(address % align, 0);
        let end = address + segment.len_bytes();
        let overlaps = |other: &u64| *other > *address && *other < end;
        assert!(!before.iter().flatten().any(overlaps));
    }
    segments[3].write(0, &pattern(1, 65_536)).unwrap();
    let clone = segments[3].clone();
    assert!(clone.is(&segments[3]));
    assert_eq!(segments.iter().map(spoc_driver::Segment::address).collect::<Vec<_>>(), before);
}

/// Bytes in use rise with allocations and fall with the last clone.
pub fn rule_06_memory_in_use_counts_segments(subject: &Subject) {
    let device = &subject.device;
    assert_eq!(device.memory_in_use(), 0);
    let first = device.allocate(10_000).unwrap();
    let second = device.allocate(1).unwrap();
    assert_eq!(device.memory_in_use(), 10_001);
    let clone = first.clone();
    drop(first);
    assert_eq!(device.memory_in_use(), 10_001);
    drop(clone);
    assert_eq!(device.memory_in_use(), 1);
    drop(second);
    assert_eq!(device.memory_in_use(), 0);
    refused(device.allocate(0), "zero_size");
    assert_eq!(device.memory_in_use(), 0, "a refused allocation was counted");
}

/// Memory that pending work needs is in use, whether a handle is left or not.
pub fn rule_06_memory_in_use_counts_what_pending_work_needs(subject: &Subject) {
    let device = &subject.device;
    let stream = subject.stream();
    let hold = subject.hold(&stream);
    let before = device.memory_in_use();
    let segment = device.allocate(8192).unwrap();
    upload(&stream, pattern(2, 8192), &segment);
    drop(segment);
    if hold.is_certain() {
        assert_eq!(device.memory_in_use(), before + 8192);
    }
    hold.open();
    stream.synchronize().unwrap();
    assert_eq!(device.memory_in_use(), 0);
}

/// Running out of memory is an error like any other: afterwards the device works.
pub fn segments_out_of_memory_is_a_clean_error(subject: &Subject) {
    let device = &subject.device;
    let kept = subject.filled_with(&pattern(3, 4096));
    if let Some(total) = subject.memory_bytes {
        let mut taken = Vec::new();
        let error = loop {
            match device.allocate(total / 8) {
                Ok(segment) => taken.push(segment),
                Err(error) => break error,
            }
            assert!(taken.len() <= 8, "more than there is");
        };
        assert_eq!(error.kind().as_str(), "out_of_device_memory", "{error}");
        assert_eq!(device.memory_in_use(), 4096 + taken.len() as u64 * (total / 8));
        assert!(taken.len() >= 6, "only {} of 8 parts: {error}", taken.len());
    } else {
        too_much_at_once(subject);
    }
    assert_eq!(device.memory_in_use(), 4096);
    assert_eq!(subject.contents(&kept), pattern(3, 4096));
    let stream = subject.stream();
    let again = device.allocate(1 << 20).unwrap();
    upload(&stream, pattern(4, 1 << 20), &again);
    stream.synchronize().unwrap();
    assert_eq!(subject.contents(&again), pattern(4, 1 << 20));
}

/// The memory of real devices is not used up for a test: one segment larger than all of it has to do.
fn too_much_at_once(subject: &Subject) {
    let total = subject.device.memory().unwrap().total_bytes;
    let max = subject.device.limits().segment_bytes_max;
    if total < max {
        refused(subject.device.allocate(total + 1), "out_of_device_memory");
    } else {
        refused(subject.device.allocate(max + 1), "too_large");
    }
}

/// Memory that is only kept for work that has run is there for the next allocation.
pub fn segments_allocation_retires_what_has_run(subject: &Subject) {
    // Where the memory is small, two of these do not fit.
    let len = subject.memory_bytes.map_or(4096, |total| total * 5 / 8);
    let (stream, other) = (subject.stream(), subject.stream());
    let event = subject.device.create_event().unwrap();
    for round in 0..3 {
        let drops = Drops::default();
        let segment = subject.device.allocate(len).unwrap();
        stream.copy_to_device(drops.watch(pattern(round, 64)), &[whole(64, &segment)]).unwrap();
        stream.record(&event).unwrap();
        drop(segment);
        // Now it has run, and nobody has retired it: only the other stream was waited for.
        other.wait(&event).unwrap();
        other.synchronize().unwrap();
        subject.device.allocate(len).unwrap();
        assert_eq!(drops.count(), 1, "an allocation did not retire what had run");
    }
}

/// Segments that will be exported are ordinary ones otherwise; where there is no export, refused by name.
pub fn segments_exportable_or_refused(subject: &Subject) {
    let outcome = subject.device.allocate_with(4096, SegmentOptions { exportable: true });
    if subject.device.capabilities().export_memory.is_available() {
        let segment = outcome.unwrap();
        segment.write(0, &pattern(5, 4096)).unwrap();
        assert_eq!(subject.contents(&segment), pattern(5, 4096));
    } else {
        refused(outcome, "unsupported");
        assert_eq!(subject.device.memory_in_use(), 0);
    }
}

/// Reserved addresses get memory and give it back part by part, and stay what they are; where the device has none,
/// refused by name.
pub fn segments_at_reserved_addresses_come_and_go(subject: &Subject) {
    let device = &subject.device;
    if !device.capabilities().reserve.is_available() {
        let error = refused(device.reserve(1 << 20), "unsupported");
        assert!(error.to_string().contains("reserve"), "{error}");
        return;
    }
    let granule = device.limits().export_granule_bytes;
    let plain = SegmentOptions::default();
    refused(device.reserve(0), "zero_size");
    let reservation = device.reserve(3 * granule + 1).unwrap();
    assert_eq!(reservation.len_bytes(), 4 * granule);
    assert_eq!((device.memory_in_use(), reservation.committed_bytes()), (0, 0));
    let first = reservation.commit(0, granule, plain).unwrap();
    let last = reservation.commit(2 * granule, 2 * granule, plain).unwrap();
    assert_eq!(last.address(), reservation.address().map(|address| address + 2 * granule));
    assert_eq!(device.memory_in_use(), 3 * granule);
    refused(reservation.commit(granule, 0, plain), "zero_size");
    refused(reservation.commit(granule, 2 * granule, plain), "overlap");
    refused(reservation.commit(0, granule, plain), "overlap");
    refused(reservation.commit(4 * granule, granule, plain), "out_of_bounds");
    refused(reservation.commit(0, u64::MAX - granule + 1, plain), "out_of_bounds");
    if granule > 1 {
        refused(reservation.commit(granule + 1, granule - 1, plain), "misaligned");
    }
    first.write(granule - 64, &pattern(6, 64)).unwrap();
    last.write(2 * granule - 64, &pattern(7, 64)).unwrap();
    // What pending work uses stays; then the part can have memory again, at the same address.
    let (stream, address) = (subject.stream(), first.address());
    let hold = subject.hold(&stream);
    upload(&stream, pattern(8, 64), &first);
    drop(first);
    if hold.is_certain() {
        refused(reservation.commit(0, granule, plain), "overlap");
    }
    hold.open();
    stream.synchronize().unwrap();
    assert_eq!((device.memory_in_use(), reservation.committed_bytes()), (2 * granule, 2 * granule));
    let again = reservation.commit(0, 2 * granule, plain).unwrap();
    assert_eq!(again.address(), address);
    again.write(2 * granule - 64, &pattern(9, 64)).unwrap();
    // Its segments keep the addresses.
    drop(reservation);
    let mut seen = vec![0; 64];
    last.read(2 * granule - 64, &mut seen).unwrap();
    assert_eq!(seen, pattern(7, 64));
    again.read(2 * granule - 64, &mut seen).unwrap();
    assert_eq!(seen, pattern(9, 64));
}
