//! Ranged and byte copies of vectors, with and without a stream.
#![cfg(feature = "fake")]
#![allow(clippy::unwrap_used)]

mod common;

use common::{NON_BLOCKING, assert_clean, deferred, driven, stream, with};
use spoc_driver::fake::{FakeOptions, WaitMode};
use spoc_driver::{Elements, ErrorKind, Item, Location, Vector};

#[test]
fn copies_need_a_current_device_copy() {
    let (device, control) = driven();
    let stream = stream(&device);
    let mut vector = Vector::from_slice(&[1_i32, 2, 3]).unwrap();
    for stale in [false, true] {
        if stale {
            vector.to_device(&device).unwrap();
            vector.set(0, 5).unwrap();
            assert_eq!(vector.location(), Location::StaleGpu);
        }
        let at = vector.location();
        assert_eq!(*vector.copy_to_device(0, &[1]).unwrap_err().kind(), ErrorKind::WrongLocation);
        assert_eq!(*vector.copy_to_host(0, &mut [0]).unwrap_err().kind(), ErrorKind::WrongLocation);
        assert_eq!(*vector.copy_bytes_to_host(0, &mut [0]).unwrap_err().kind(), ErrorKind::WrongLocation);
        let refused = vector.copy_to_device_on(&stream, 0, Elements(vec![1])).unwrap_err();
        assert_eq!((refused.error.kind(), refused.source.0), (&ErrorKind::WrongLocation, vec![1]));
        let refused = vector.copy_to_host_on(&stream, 0, Elements(vec![9])).unwrap_err();
        assert_eq!((refused.error.kind(), refused.source.0), (&ErrorKind::WrongLocation, vec![9]));
        assert_eq!(vector.location(), at);
    }
    drop((vector, stream, device));
    assert_clean(&control);
}

#[test]
fn a_write_makes_the_host_stale_and_a_read_changes_nothing() {
    let (device, control) = driven();
    let stream = stream(&device);
    let mut vector = Vector::from_slice(&[0_i32; 8]).unwrap();
    vector.to_device(&device).unwrap();
    vector.copy_to_host(0, &mut [1; 8]).unwrap();
    let pending = vector.copy_to_host_on(&stream, 2, Elements(vec![1; 2])).unwrap();
    assert_eq!(pending.wait().unwrap().0, [0, 0]);
    assert_eq!(vector.location(), Location::Both);
    vector.copy_to_device(3, &[7, 8]).unwrap();
    assert_eq!(vector.location(), Location::StaleCpu);
    vector.copy_to_device_on(&stream, 5, Elements(vec![9])).unwrap();
    assert_eq!(vector.location(), Location::StaleCpu);
    stream.synchronize().unwrap();
    assert_eq!(vector.as_slice().unwrap(), [0, 0, 0, 7, 8, 9, 0, 0]);
    drop((vector, stream, device));
    assert_clean(&control);
}

#[test]
fn bytes_are_copied_as_many_as_the_destination_has_and_as_they_are() {
    let (device, control) = driven();
    let mut vector = Vector::<u32>::device_only(&device, 4).unwrap();
    vector.copy_to_device(0, &[0x0403_0201, 0x0807_0605, 0, 0]).unwrap();
    let mut bytes = [0; 3];
    vector.copy_bytes_to_host(3, &mut bytes).unwrap();
    let memory: Vec<u8> = [0x0403_0201_u32, 0x0807_0605].iter().flat_map(|word| word.to_ne_bytes()).collect();
    assert_eq!(bytes, memory[3..6]);
    vector.copy_bytes_to_device(14, &[1, 2]).unwrap();
    assert!(matches!(
        vector.copy_bytes_to_device(15, &[1, 2]).unwrap_err().kind(),
        ErrorKind::OutOfBounds { offset_bytes: 15, len_bytes: 2, size_bytes: 16 }
    ));
    assert!(matches!(vector.copy_to_device(4, &[1]).unwrap_err().kind(), ErrorKind::OutOfBounds { .. }));
    assert!(matches!(
        vector.copy_to_device(u64::MAX, &[1]).unwrap_err().kind(),
        ErrorKind::OutOfBounds { .. }
    ));
    vector.copy_to_device(4, &[]).unwrap();
    drop((vector, device));
    assert_clean(&control);
}

#[derive(Clone, Copy)]
struct Record;

impl Item for Record {
    const LEN_BYTES: usize = 4;
    fn store(&self, _: &mut [u8]) {}
    fn load(_: &[u8]) -> Self {
        Self
    }
}

#[test]
fn records_are_refused() {
    let (device, control) = driven();
    let stream = stream(&device);
    let mut vector = Vector::<Record>::zeroed(2).unwrap();
    vector.to_device(&device).unwrap();
    assert_eq!(*vector.copy_bytes_to_device(0, &[1]).unwrap_err().kind(), ErrorKind::WrongKind);
    assert_eq!(*vector.copy_bytes_to_host(0, &mut [1]).unwrap_err().kind(), ErrorKind::WrongKind);
    let refused = vector.copy_bytes_to_device_on(&stream, 0, vec![3]).unwrap_err();
    assert_eq!((refused.error.kind(), refused.source), (&ErrorKind::WrongKind, vec![3]));
    let refused = vector.copy_bytes_to_host_on(&stream, 0, vec![3]).unwrap_err();
    assert_eq!((refused.error.kind(), refused.source), (&ErrorKind::WrongKind, vec![3]));
    drop((vector, stream, device));
    assert_clean(&control);
}

#[test]
fn a_stream_of_another_device_is_refused() {
    let (driver, control) = common::driver_with(FakeOptions { devices: 2, ..FakeOptions::default() });
    let (a, b) = (common::open(&driver, 0), common::open(&driver, 1));
    let foreign = stream(&b);
    let mut vector = Vector::<u8>::device_only(&a, 4).unwrap();
    let refused = vector.copy_to_device_on(&foreign, 0, vec![1]).unwrap_err();
    assert_eq!(*refused.error.kind(), ErrorKind::WrongDevice);
    let refused = vector.copy_to_host_on(&foreign, 0, vec![1]).unwrap_err();
    assert_eq!(*refused.error.kind(), ErrorKind::WrongDevice);
    let there = Vector::<u8>::device_only(&b, 4).unwrap();
    assert_eq!(*vector.copy_from(0, &there, 0..4).unwrap_err().kind(), ErrorKind::WrongDevice);
    drop((vector, there, foreign, a, b));
    assert_clean(&control);
}

#[test]
fn vectors_copy_to_each_other_on_the_device() {
    let (device, control) = driven();
    let stream = stream(&device);
    let source = Vector::from_slice(&[1_u16, 2, 3, 4]).unwrap();
    let mut vector = Vector::<u16>::device_only(&device, 6).unwrap();
    assert_eq!(*vector.copy_from(0, &source, 0..4).unwrap_err().kind(), ErrorKind::WrongLocation);
    source.to_device(&device).unwrap();
    vector.copy_from(0, &source, 0..4).unwrap();
    vector.copy_from_on(&stream, 4, &source, 1..3).unwrap();
    stream.synchronize().unwrap();
    let mut seen = [0; 6];
    vector.copy_to_host(0, &mut seen).unwrap();
    assert_eq!(seen, [1, 2, 3, 4, 2, 3]);
    assert_eq!(source.location(), Location::Both);
    vector.copy_within(0, 3..5).unwrap();
    assert_eq!(*vector.copy_within(1, 0..2).unwrap_err().kind(), ErrorKind::Overlap);
    assert!(matches!(vector.copy_from(5, &source, 0..2).unwrap_err().kind(), ErrorKind::OutOfBounds { .. }));
    assert!(matches!(vector.copy_from(0, &source, 3..5).unwrap_err().kind(), ErrorKind::OutOfBounds { .. }));
    vector.copy_to_host(0, &mut seen).unwrap();
    assert_eq!(seen, [4, 2, 3, 4, 2, 3]);
    drop((vector, source, stream, device));
    assert_clean(&control);
}

/// Rule 10: only what names no stream waits for non-blocking ones.
#[test]
fn default_copies_settle_and_explicit_ones_do_not() {
    let (device, control) = driven();
    let other = device.create_stream(NON_BLOCKING).unwrap();
    let mut vector = Vector::<u8>::device_only(&device, 4).unwrap();
    let mut unrelated = Vector::<u8>::device_only(&device, 4).unwrap();

    vector.copy_to_device_on(&other, 0, vec![1; 4]).unwrap();
    unrelated.copy_to_device(0, &[9; 4]).unwrap();
    assert_eq!(control.pending(), 1, "a vector that the stream does not use is not waited for");
    vector.copy_to_device_on(&device.default_stream(), 0, vec![2; 4]).unwrap();
    assert_eq!(control.pending(), 1, "a stream was named: never settled");
    let mut seen = [0; 4];
    vector.copy_to_host(0, &mut seen).unwrap();
    assert_eq!((seen, control.pending()), ([1; 4], 0));

    vector.copy_to_device_on(&other, 0, vec![3; 4]).unwrap();
    vector.copy_to_device(0, &[4; 4]).unwrap();
    assert_eq!(control.pending(), 0);
    vector.copy_to_host(0, &mut seen).unwrap();
    assert_eq!(seen, [4; 4]);

    vector.copy_to_device_on(&other, 0, vec![5; 4]).unwrap();
    unrelated.copy_from(0, &vector, 0..4).unwrap();
    unrelated.copy_to_host(0, &mut seen).unwrap();
    assert_eq!(seen, [5; 4]);
    drop((vector, unrelated, other, device));
    assert_clean(&control);
}

#[test]
fn a_buffer_that_enqueued_work_uses_is_not_freed() {
    let (device, control) = deferred();
    let stream = stream(&device);
    let mut vector = Vector::<u8>::device_only(&device, 4).unwrap();
    vector.copy_to_device_on(&stream, 0, vec![1; 4]).unwrap();
    assert_eq!(*vector.free_buffer(&device).unwrap_err().kind(), ErrorKind::InFlight);
    assert_eq!(*vector.free_all_buffers().unwrap_err().kind(), ErrorKind::InFlight);
    control.run_all();
    vector.free_all_buffers().unwrap();
    assert_eq!(device.memory_in_use(), 0);
    drop((vector, stream, device));
    assert_clean(&control);
}

#[test]
fn dropping_a_vector_leaves_its_memory_to_pending_work() {
    let (device, control) = deferred();
    let stream = stream(&device);
    let mut vector = Vector::<u8>::device_only(&device, 4).unwrap();
    vector.copy_to_device_on(&stream, 0, vec![1; 4]).unwrap();
    drop(vector);
    assert_eq!(device.memory_in_use(), 4);
    control.run_all();
    assert_eq!(device.memory_in_use(), 0);
    drop((stream, device));
    assert_clean(&control);
}

#[test]
fn whole_granules_are_required_of_parts_and_made_for_wholes() {
    let mut options = FakeOptions { wait_mode: WaitMode::Drive, ..FakeOptions::default() };
    options.limits.copy_granule_bytes = 4;
    let (device, control) = with(options);
    let mut vector = Vector::from_slice(&[1_u8, 2, 3, 4, 5]).unwrap();
    vector.to_device(&device).unwrap();
    assert_eq!(device.memory_in_use(), 8);
    vector.copy_to_device(0, &[9; 4]).unwrap();
    let refused = vector.copy_to_device(1, &[9; 4]).unwrap_err();
    assert_eq!(*refused.kind(), ErrorKind::Misaligned { value: 1, align: 4 });
    assert_eq!(vector.as_slice().unwrap(), [9, 9, 9, 9, 5]);
    drop((vector, device));
    assert_clean(&control);
}
