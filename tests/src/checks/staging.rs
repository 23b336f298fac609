//! Small host writes through the staging ring.

use std::thread;
use std::time::Duration;

use spoc_driver::{
    CaptureState, Elements, Item, Location, MAX_STAGED_BYTES, PinnedHandle, STAGING_RING_BYTES, Stream,
    Vector,
};

use crate::helpers::pattern;
use crate::{Subject, refused};

/// Device-only bytes, all zero.
fn zeroes(subject: &Subject, len: usize) -> Vector<u8> {
    let mut vector = Vector::device_only(&subject.device, len as u64).unwrap();
    vector.copy_to_device(0, &vec![0; len]).unwrap();
    vector
}

fn contents(vector: &Vector<u8>) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(vector.len()).unwrap()];
    vector.copy_to_host(0, &mut bytes).unwrap();
    bytes
}

/// 65,536 bytes can be staged, and no byte more.
pub fn rule_21_staging_takes_65536_bytes_and_no_more(subject: &Subject) {
    assert_eq!((MAX_STAGED_BYTES, STAGING_RING_BYTES), (65_536, 1 << 20));
    let mut vector = zeroes(subject, 2 * MAX_STAGED_BYTES);
    let stream = subject.stream();
    let most = pattern(1, MAX_STAGED_BYTES);
    vector.stage_to_device(0, &most).unwrap();
    vector.stage_bytes_to_device_on(&stream, MAX_STAGED_BYTES as u64, &most).unwrap();
    stream.synchronize().unwrap();
    assert!(contents(&vector) == [most.clone(), most].concat());
    let too_much = vec![1; MAX_STAGED_BYTES + 1];
    refused(vector.stage_to_device(0, &too_much), "too_large");
    refused(vector.stage_to_device_on(&stream, 0, &too_much), "too_large");
    refused(vector.stage_bytes_to_device(0, &too_much), "too_large");
    let mut wide = Vector::<f64>::device_only(&subject.device, 9000).unwrap();
    wide.stage_to_device(0, &[1.0; 8192]).unwrap();
    refused(wide.stage_to_device(0, &[1.0; 8193]), "too_large");
    wide.stage_to_device(9000, &[]).unwrap();
}

/// The source can be overwritten as soon as the call returns, whenever the copy runs.
pub fn rule_21_the_source_may_be_overwritten_at_once(subject: &Subject) {
    let stream = subject.free_stream();
    let mut vector = zeroes(subject, 64 * 64);
    let hold = subject.hold(&stream);
    let mut source = vec![0; 64];
    for write in 0..64 {
        source.copy_from_slice(&pattern(write, 64));
        vector.stage_to_device_on(&stream, write * 64, &source).unwrap();
        source.fill(0xFF);
    }
    hold.assert_pending(&stream);
    hold.open();
    stream.synchronize().unwrap();
    let expected: Vec<u8> = (0..64).flat_map(|write| pattern(write, 64)).collect();
    assert_eq!(contents(&vector), expected);
}

/// Staging asks what a ranged copy asks, and leaves the location as one does.
pub fn rule_21_staging_has_the_conditions_of_a_ranged_copy(subject: &Subject) {
    let stream = subject.stream();
    let foreign = subject.other_device().create_stream(Default::default()).unwrap();
    let mut vector = Vector::from_slice(&[1_i32; 64]).unwrap();
    refused(vector.stage_to_device(0, &[2; 8]), "wrong_location");
    refused(vector.stage_to_device_on(&stream, 0, &[2; 8]), "wrong_location");
    vector.to_device(&subject.device).unwrap();
    refused(vector.stage_to_device_on(&foreign, 0, &[2; 8]), "wrong_device");
    for first in [60, 64, u64::MAX] {
        refused(vector.stage_to_device(first, &[2; 8]), "out_of_bounds");
        refused(vector.stage_to_device_on(&stream, first, &[2; 8]), "out_of_bounds");
    }
    refused(vector.stage_bytes_to_device(252, &[2; 8]), "out_of_bounds");
    assert_eq!(vector.location(), Location::Both, "a refused write changed the location");
    vector.stage_to_device(8, &[2; 8]).unwrap();
    assert_eq!(vector.location(), Location::StaleCpu);
    vector.stage_to_device_on(&stream, 16, &[3; 8]).unwrap();
    assert_eq!(vector.location(), Location::StaleCpu);
    let all = vector.to_vec().unwrap();
    assert_eq!((&all[..8], &all[8..16], &all[16..24]), (&[1; 8][..], &[2; 8][..], &[3; 8][..]));
    vector.set(0, 9).unwrap();
    refused(vector.stage_to_device(8, &[2; 8]), "wrong_location");
    let mut gone = zeroes(subject, 64);
    gone.free_all_buffers().unwrap();
    refused(gone.stage_to_device(0, &[1; 8]), "released");
}

#[derive(Debug, Clone, Copy)]
struct Record(u64);

impl Item for Record {
    const LEN_BYTES: usize = 8;

    fn store(&self, out: &mut [u8]) {
        out.copy_from_slice(&self.0.to_ne_bytes());
    }

    fn load(from: &[u8]) -> Self {
        Self(u64::from_ne_bytes(from.try_into().unwrap()))
    }
}

/// Records cannot be staged.
pub fn rule_02_records_cannot_be_staged(subject: &Subject) {
    let mut records = Vector::from_slice(&[Record(1), Record(2)]).unwrap();
    records.to_device(&subject.device).unwrap();
    refused(records.stage_bytes_to_device(0, &[0; 8]), "wrong_kind");
    refused(records.stage_bytes_to_device_on(&subject.stream(), 0, &[0; 8]), "wrong_kind");
    assert_eq!(records.get(1).unwrap().0, 2);
}

/// The ring is the one thing pinned unasked, on the first use, and it stays.
pub fn rule_15_the_staging_ring_is_pinned_on_first_use_alone(subject: &Subject) {
    let mut vector = zeroes(subject, 4096);
    let mut ranges = vec![subject.device.pinned_ranges()];
    for write in 0..50 {
        vector.stage_to_device(0, &pattern(write, 64)).unwrap();
        ranges.push(subject.device.pinned_ranges());
    }
    assert_eq!(ranges[0], 0, "pinned before the first use");
    assert!(ranges[1] <= 1 && ranges[1..].iter().all(|count| *count == ranges[1]), "{ranges:?}");
    drop(vector);
    assert_eq!(subject.device.pinned_ranges(), ranges[1], "the ring went with a vector");
}

/// The host waits for the device only when the ring is full; what was staged arrives in order all the same.
pub fn rule_21_the_host_waits_only_for_room_in_the_ring(subject: &Subject) {
    let stream = subject.free_stream();
    let mut vector = zeroes(subject, MAX_STAGED_BYTES);
    // Fills the ring but for one block, so that there is room for each.
    let fitting = (1 << 20) / MAX_STAGED_BYTES as u64 - 1;
    let hold = subject.hold(&stream);
    let waits = subject.device.counters().staging_waits;
    for write in 0..fitting {
        vector.stage_to_device_on(&stream, 0, &pattern(write, MAX_STAGED_BYTES)).unwrap();
    }
    hold.assert_pending(&stream);
    assert_eq!(subject.device.counters().staging_waits, waits, "waited although there was room");
    let opener = thread::spawn(move || {
        thread::sleep(Duration::from_millis(10));
        hold.open();
    });
    for write in fitting..3 * fitting {
        vector.stage_to_device_on(&stream, 0, &pattern(write, MAX_STAGED_BYTES)).unwrap();
    }
    opener.join().unwrap();
    stream.synchronize().unwrap();
    assert!(contents(&vector) == pattern(3 * fitting - 1, MAX_STAGED_BYTES));
}

/// Without a stream, staging comes after non-blocking streams that still use the vector; with one, it does not
/// wait for others.
pub fn rule_10_staging_settles_non_blocking_streams(subject: &Subject) {
    let stream = subject.free_stream();
    let mut vector = zeroes(subject, 64);
    let hold = subject.hold(&stream);
    vector.copy_to_device_on(&stream, 0, Elements(pattern(1, 64))).unwrap();
    if hold.is_certain() {
        let other = subject.free_stream();
        vector.stage_to_device_on(&other, 0, &[5; 8]).unwrap();
        other.synchronize().unwrap();
        hold.assert_pending(&stream);
    }
    thread::scope(|scope| {
        let stager = scope.spawn(|| vector.stage_to_device(0, &[9; 8]).unwrap());
        if hold.is_certain() {
            thread::sleep(Duration::from_millis(10));
            assert!(!stager.is_finished(), "staging did not settle");
        }
        hold.open();
        stager.join().unwrap();
    });
    let mut expected = pattern(1, 64);
    expected[..8].fill(9);
    assert_eq!(contents(&vector), expected);
}

/// A stream that is being captured is refused: each replay would read what the ring then holds.
pub fn rule_21_staging_on_a_captured_stream_is_refused(subject: &Subject) {
    let stream = subject.stream();
    let mut vector = zeroes(subject, 64);
    if let Some(control) = &subject.control {
        let name = control.stream(&stream);
        for state in [CaptureState::Active, CaptureState::Spoiled] {
            control.set_capture(name, state);
            refused(vector.stage_to_device_on(&stream, 0, &[1; 8]), "capturing");
        }
        control.set_capture(name, CaptureState::None);
    }
    // Nobody captures this one, or nobody can.
    vector.stage_to_device_on(&stream, 0, &[1; 8]).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(contents(&vector)[..8], [1; 8]);
}

/// Staged writes, and what follows them on their stream, are in order with everything else there.
pub fn rule_21_staged_writes_keep_the_order_of_their_stream(subject: &Subject) {
    let stream = subject.stream();
    let (mut vector, mut log) = (zeroes(subject, 64), zeroes(subject, 64 * 100));
    for write in 0..100_u64 {
        if write % 3 == 0 {
            vector.copy_to_device_on(&stream, 0, Elements(pattern(write, 64))).unwrap();
        } else {
            vector.stage_to_device_on(&stream, 0, &pattern(write, 64)).unwrap();
        }
        log.copy_from_on(&stream, write * 64, &vector, 0..64).unwrap();
    }
    stream.synchronize().unwrap();
    let expected: Vec<u8> = (0..100).flat_map(|write| pattern(write, 64)).collect();
    assert_eq!(contents(&log), expected);
}

/// A device without asynchronous copies, and the default stream where it runs on the caller, have staged when
/// the call returns.
pub fn rule_21_staging_is_complete_on_return_where_copies_are(subject: &Subject) {
    let mut vector = zeroes(subject, 64);
    let stream = subject.stream();
    vector.stage_to_device_on(&stream, 0, &[3; 64]).unwrap();
    if !subject.device.capabilities().async_copies.is_available() {
        assert!(stream.query().unwrap());
        assert_eq!(subject.device.in_flight(), 0);
    }
    vector.stage_to_device(0, &[4; 32]).unwrap();
    assert_eq!(contents(&vector), [[4; 32], [3; 32]].concat());
}

/// A write and its use, as often as the stress asks, by the device's ring or by one of the caller's.
fn interleave(subject: &Subject, stream: &Stream, is_own_ring: bool, is_freeing: bool) {
    const WRITES: u64 = 300;
    const SLOTS: usize = 8;
    let (mut input, mut log) = (zeroes(subject, 64), zeroes(subject, 64 * 300));
    let rings = (0..SLOTS).map(|_| PinnedHandle::alloc(&subject.device, 64));
    let mut ring: Vec<_> = rings.filter_map(Result::ok).collect();
    let events: Vec<_> = (0..SLOTS).map(|_| subject.device.create_event().unwrap()).collect();
    for write in 0..WRITES {
        let bytes = pattern(write, 64);
        if is_own_ring || ring.is_empty() {
            input.stage_to_device_on(stream, 0, &bytes).unwrap();
        } else {
            let slot = usize::try_from(write).unwrap() % SLOTS;
            if events[slot].is_recorded() {
                events[slot].synchronize().unwrap();
            }
            ring[slot].as_mut_slice().unwrap().copy_from_slice(&bytes);
            let loan = ring[slot].lend(0..64).unwrap();
            input.copy_to_device_on(stream, 0, loan).unwrap();
            stream.record(&events[slot]).unwrap();
        }
        log.copy_from_on(stream, write * 64, &input, 0..64).unwrap();
        if is_freeing {
            let mut garbage = Vector::from_slice(&bytes).unwrap();
            garbage.to_device(&subject.device).unwrap();
            garbage.free_all_buffers().unwrap();
        }
    }
    stream.synchronize().unwrap();
    let expected: Vec<u8> = (0..WRITES).flat_map(|write| pattern(write, 64)).collect();
    assert!(contents(&log) == expected, "a write was lost (own ring: {is_own_ring}, freeing: {is_freeing})");
}

/// 300 writes, each used before the next, through the device's ring and the caller's, with and without buffers
/// being freed meanwhile: none is lost. Device copies stand for launches.
pub fn rule_22_staged_writes_interleaved_with_copies_lose_nothing(subject: &Subject) {
    for is_own_ring in [true, false] {
        for is_freeing in [true, false] {
            interleave(subject, &subject.stream(), is_own_ring, is_freeing);
        }
    }
}
