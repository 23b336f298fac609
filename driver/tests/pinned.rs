//! Pinned memory: what overlaps is refused, what is in flight stays, what was released is gone.
#![cfg(feature = "fake")]
#![allow(clippy::unwrap_used)]

mod common;

use common::{assert_clean, deferred, driven, driver_with, open, stream, whole};
use spoc_driver::fake::FakeOptions;
use spoc_driver::{CopyRange, ErrorKind, HostMemory, HostMemoryOptions, HostSource};

fn memory(len_bytes: usize) -> HostMemory {
    HostMemory::allocate(len_bytes, HostMemoryOptions::default()).unwrap()
}

#[test]
fn a_range_is_registered_once_a_device() {
    let (driver, control) = driver_with(FakeOptions { devices: 2, ..FakeOptions::default() });
    let (here, there) = (open(&driver, 0), open(&driver, 1));
    let memory = memory(8192);
    let mut pin = here.pin(&memory).unwrap();
    assert_eq!(*here.pin(&memory).unwrap_err().kind(), ErrorKind::Overlap);
    let elsewhere = there.pin(&memory).unwrap();
    assert_eq!((here.pinned_ranges(), there.pinned_ranges()), (1, 1));
    pin.release().unwrap();
    pin.release().unwrap();
    assert!(!pin.is_live());
    assert_eq!(here.pinned_ranges(), 0);
    let again = here.pin(&memory).unwrap();
    drop((again, elsewhere, pin, here, there, driver));
    assert_clean(&control);
}

#[test]
fn a_failed_pin_leaves_no_trace() {
    let (device, control) = deferred();
    let memory = memory(4096);
    control.fail_pin(1);
    assert!(matches!(device.pin(&memory).unwrap_err().kind(), ErrorKind::OutOfHostMemory { .. }));
    assert_eq!(device.pinned_ranges(), 0);
    let pin = device.pin(&memory).unwrap();
    drop((pin, device));
    assert_clean(&control);
}

#[test]
fn release_is_refused_in_flight_and_can_be_tried_again() {
    let (device, control) = deferred();
    let stream = stream(&device);
    let segment = device.allocate(8192).unwrap();
    let memory = memory(8192);
    let mut pin = device.pin(&memory).unwrap();
    // A part of the range is enough.
    let part = CopyRange { src_offset: 4000, dst: &segment, dst_offset: 0, len_bytes: 8 };
    stream.copy_to_device(memory.clone(), &[part]).unwrap();
    assert_eq!(*pin.release().unwrap_err().kind(), ErrorKind::InFlight);
    assert!(pin.is_live());
    control.run_all();
    pin.release().unwrap();
    assert_eq!(control.live().pinned, 0);
    assert_eq!(device.counters().pageable_copies, 0);
    drop((pin, stream, segment, device));
    assert_clean(&control);
}

#[test]
fn a_pin_dropped_in_flight_unregisters_after_the_copy() {
    let (device, control) = deferred();
    let stream = stream(&device);
    let segment = device.allocate(4096).unwrap();
    let memory = memory(4096);
    let pin = device.pin(&memory).unwrap();
    stream.copy_to_device(memory.clone(), &[whole(&segment, 4096)]).unwrap();
    drop(pin);
    assert_eq!(control.live().pinned, 1);
    assert_eq!(*device.pin(&memory).unwrap_err().kind(), ErrorKind::Overlap);
    control.run_all();
    device.collect();
    assert_eq!(control.live().pinned, 0);
    drop((device.pin(&memory).unwrap(), stream, segment, device));
    assert_clean(&control);
}

/// A source of all the bytes that are mapped, of which fewer are pinned.
struct Wider(HostMemory);

// SAFETY: a mapping is whole pages, so 8192 bytes are there; nothing writes them.
unsafe impl HostSource for Wider {
    fn as_ptr(&self) -> *const u8 {
        self.0.as_ptr()
    }

    fn len_bytes(&self) -> usize {
        8192
    }
}

#[test]
fn a_copy_across_the_edge_of_a_pinned_range_is_refused() {
    let (device, control) = driven();
    let stream = stream(&device);
    let segment = device.allocate(8192).unwrap();
    let memory = memory(5000);
    let pin = device.pin(&memory).unwrap();
    let copy = |src_offset, len_bytes| {
        let range = CopyRange { src_offset, dst: &segment, dst_offset: 0, len_bytes };
        stream
            .copy_to_device(Wider(memory.clone()), &[range])
            .map_err(|returned| returned.error.kind().clone())
    };
    assert_eq!(copy(0, 5001), Err(ErrorKind::Overlap));
    assert_eq!(copy(4999, 2), Err(ErrorKind::Overlap));
    copy(0, 5000).unwrap();
    copy(5000, 100).unwrap();
    assert_eq!(device.counters().pageable_copies, 1);
    drop((pin, stream, segment, device));
    assert_clean(&control);
}

#[test]
fn ordinary_memory_is_counted() {
    let (device, control) = driven();
    let stream = stream(&device);
    let segment = device.allocate(8).unwrap();
    stream.copy_to_device(vec![1; 8], &[whole(&segment, 8)]).unwrap();
    stream.copy_to_host(&segment, 0, vec![1; 8]).unwrap().wait().unwrap();
    let counters = device.counters();
    assert_eq!(counters.pageable_copies, 2);
    assert_eq!((counters.bytes_to_device, counters.bytes_to_host), (8, 8));
    drop((stream, segment, device));
    assert_clean(&control);
}

#[test]
fn pinned_memory_is_read_and_written_until_released() {
    let (device, control) = driven();
    assert!(device.pinned_available().unwrap());
    let stream = stream(&device);
    let segment = device.allocate(8).unwrap();
    let mut pinned = device.alloc_pinned(8).unwrap();
    assert_eq!(pinned.as_slice().unwrap(), [0; 8]);
    pinned.as_mut_slice().unwrap().fill(3);
    segment.write(0, pinned.as_slice().unwrap()).unwrap();
    let mut pinned = stream.copy_to_host(&segment, 0, pinned).unwrap().wait().unwrap();
    assert_eq!(pinned.as_slice().unwrap(), [3; 8]);
    stream.copy_to_device(device.alloc_pinned(4).unwrap(), &[whole(&segment, 4)]).unwrap();
    assert_eq!(device.counters().pageable_copies, 0);
    pinned.release().unwrap();
    pinned.release().unwrap();
    assert_eq!((pinned.is_live(), pinned.len_bytes()), (false, 0));
    assert_eq!(*pinned.as_slice().unwrap_err().kind(), ErrorKind::Released);
    assert_eq!(*pinned.as_mut_slice().unwrap_err().kind(), ErrorKind::Released);
    let returned = stream.copy_to_device(pinned, &[whole(&segment, 4)]).unwrap_err();
    assert!(matches!(returned.error.kind(), ErrorKind::OutOfBounds { .. }));
    drop((returned, stream, segment, device));
    assert_clean(&control);
}

#[test]
fn host_memory_is_exclusive_again_when_nobody_uses_it() {
    let (device, control) = deferred();
    let stream = stream(&device);
    let segment = device.allocate(4096).unwrap();
    let memory = memory(4096);
    stream.copy_to_device(memory.clone(), &[whole(&segment, 4096)]).unwrap();
    let memory = memory.unshare().unwrap_err();
    control.run_all();
    device.collect();
    memory.unshare().unwrap()[0] = 1;
    drop((stream, segment, device));
    assert_clean(&control);
}
