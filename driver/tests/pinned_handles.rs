//! Pinned handles: lending, releasing, registering, and registrations by address.
#![cfg(feature = "fake")]
#![allow(clippy::unwrap_used)]

mod common;

use common::{assert_clean, deferred, driven, stream, whole, with};
use spoc_driver::backend::Verdict;
use spoc_driver::fake::FakeOptions;
use spoc_driver::{ErrorKind, HostBuffer, HostMemory, HostMemoryOptions, HostSource, PinnedHandle, Vector};

#[test]
fn what_is_on_loan_cannot_be_touched() {
    let (device, control) = deferred();
    let stream = stream(&device);
    let mut vector = Vector::<u8>::device_only(&device, 16).unwrap();
    let mut pinned = PinnedHandle::alloc(&device, 16).unwrap();
    pinned.as_mut_slice().unwrap().fill(7);
    vector.copy_to_device_on(&stream, 0, pinned.lend(0..8).unwrap()).unwrap();
    assert_eq!(pinned.as_slice().unwrap()[0], 7, "reading beside a reader is fine");
    assert_eq!(*pinned.as_mut_slice().unwrap_err().kind(), ErrorKind::InFlight);
    assert_eq!(*pinned.lend_mut(8..16).unwrap_err().kind(), ErrorKind::InFlight);
    assert_eq!(*pinned.release().unwrap_err().kind(), ErrorKind::InFlight);
    assert!(pinned.is_live());
    control.run_all();
    stream.query().unwrap();
    pinned.as_mut_slice().unwrap().fill(9);

    let pending = vector.copy_to_host_on(&stream, 0, pinned.lend_mut(4..8).unwrap()).unwrap();
    assert_eq!(*pinned.as_slice().unwrap_err().kind(), ErrorKind::InFlight);
    assert_eq!(*pinned.lend(0..1).unwrap_err().kind(), ErrorKind::InFlight);
    control.run_all();
    drop(pending.wait().unwrap());
    assert_eq!(pinned.as_slice().unwrap()[..9], [9, 9, 9, 9, 7, 7, 7, 7, 9]);
    assert_eq!(device.counters().pageable_copies, 0);
    drop((pinned, vector, stream, device));
    assert_clean(&control);
}

#[test]
fn release_is_idempotent_and_retried() {
    let (device, control) = deferred();
    let stream = stream(&device);
    let segment = device.allocate(8).unwrap();
    let mut pinned = PinnedHandle::alloc(&device, 8).unwrap();
    assert!(pinned.is_live());
    stream.copy_to_device(pinned.lend(0..8).unwrap(), &[whole(&segment, 8)]).unwrap();
    assert_eq!(*pinned.release().unwrap_err().kind(), ErrorKind::InFlight);
    control.run_all();
    pinned.release().unwrap();
    pinned.release().unwrap();
    assert_eq!((pinned.is_live(), pinned.len_bytes(), control.live().pinned), (false, 0, 0));
    assert_eq!(*pinned.as_slice().unwrap_err().kind(), ErrorKind::Released);
    assert_eq!(*pinned.as_mut_slice().unwrap_err().kind(), ErrorKind::Released);
    assert_eq!(*pinned.lend(0..1).unwrap_err().kind(), ErrorKind::Released);
    assert_eq!(*pinned.lend_mut(0..1).unwrap_err().kind(), ErrorKind::Released);
    drop((pinned, segment, stream, device));
    assert_clean(&control);
}

#[test]
fn with_alloc_synchronises_its_stream_before_the_release() {
    let (device, control) = driven();
    let stream = stream(&device);
    let segment = device.allocate(8).unwrap();
    let answer = PinnedHandle::with_alloc(&device, 8, Some(&stream), |pinned| {
        pinned.as_mut_slice().unwrap().fill(3);
        stream.copy_to_device(pinned.lend(0..8).unwrap(), &[whole(&segment, 8)]).unwrap();
        42
    });
    assert_eq!(answer.unwrap(), 42);
    assert_eq!((control.pending(), control.live().pinned), (0, 0));
    assert_eq!(control.peek(&segment, 0, 8), [3; 8]);
    drop((segment, stream, device));
    assert_clean(&control);
}

#[test]
fn with_alloc_leaves_the_memory_to_work_on_another_stream() {
    let (device, control) = deferred();
    let (stream, other) = (stream(&device), stream(&device));
    let segment = device.allocate(8).unwrap();
    let refused = PinnedHandle::with_alloc(&device, 8, Some(&stream), |pinned| {
        pinned.as_mut_slice().unwrap().fill(3);
        other.copy_to_device(pinned.lend(0..8).unwrap(), &[whole(&segment, 8)]).unwrap();
        42
    })
    .unwrap_err();
    assert_eq!((refused.error.kind(), refused.source), (&ErrorKind::InFlight, Some(42)));
    assert_eq!(control.live().pinned, 1, "not freed under the copy");
    control.run_all();
    device.collect();
    assert_eq!(control.live().pinned, 0);
    assert_eq!(control.peek(&segment, 0, 8), [3; 8]);
    drop((segment, stream, other, device));
    assert_clean(&control);
}

#[test]
fn a_panic_leaves_the_memory_to_the_copies() {
    let (device, control) = deferred();
    let stream = stream(&device);
    let segment = device.allocate(8).unwrap();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = PinnedHandle::with_alloc(&device, 8, Some(&stream), |pinned| {
            stream.copy_to_device(pinned.lend(0..8).unwrap(), &[whole(&segment, 8)]).unwrap();
            panic!("on purpose");
        });
    }));
    assert!(panicked.is_err());
    assert_eq!(control.live().pinned, 1);
    control.run_all();
    device.collect();
    assert_eq!(control.live().pinned, 0);
    drop((segment, stream, device));
    assert_clean(&control);
}

#[test]
fn availability_is_found_out_by_allocating() {
    let (device, control) = driven();
    assert!(PinnedHandle::is_available(&device).unwrap());
    assert_eq!(control.live().pinned, 0);
    control.fail_pin(1);
    let failed = device.pinned_available();
    drop(device);
    assert_clean(&control);
    let mut options = FakeOptions::default();
    options.capabilities.pinned_alloc = Verdict::unavailable("none here");
    let (device, _) = with(options);
    assert!(!PinnedHandle::is_available(&device).unwrap());
    assert!(failed.is_ok() || matches!(failed.unwrap_err().kind(), ErrorKind::OutOfHostMemory { .. }));
}

#[test]
fn registered_memory_comes_back() {
    let (device, control) = deferred();
    let stream = stream(&device);
    let segment = device.allocate(4096).unwrap();
    let mut buffer = HostBuffer::allocate(4096, HostMemoryOptions::default()).unwrap();
    buffer[5] = 1;
    let mut pinned = PinnedHandle::register(&device, buffer).unwrap();
    assert_eq!(pinned.as_elements::<half::f16>().unwrap().len(), 2048);
    pinned.as_mut_elements::<u64>().unwrap()[511] = 3;
    stream.copy_to_device(pinned.lend(0..4096).unwrap(), &[whole(&segment, 4096)]).unwrap();
    let refused = pinned.unregister().unwrap_err();
    assert_eq!(*refused.error.kind(), ErrorKind::InFlight);
    control.run_all();
    let buffer = refused.source.unregister().unwrap();
    assert_eq!((buffer[5], device.pinned_ranges()), (1, 0));
    control.fail_pin(1);
    let refused = PinnedHandle::register(&device, buffer).unwrap_err();
    assert!(matches!(refused.error.kind(), ErrorKind::OutOfHostMemory { .. }));
    assert_eq!(refused.source.unwrap()[5], 1);
    let allocated = PinnedHandle::alloc(&device, 8).unwrap();
    assert_eq!(*allocated.unregister().unwrap_err().error.kind(), ErrorKind::InvalidArgument);
    drop((segment, stream, device));
    assert_clean(&control);
}

#[test]
fn odd_ranges_are_refused() {
    let (device, control) = driven();
    let stream = stream(&device);
    let mut vector = Vector::<u32>::device_only(&device, 8).unwrap();
    let mut pinned = PinnedHandle::alloc(&device, 16).unwrap();
    assert!(matches!(pinned.lend(0..17).unwrap_err().kind(), ErrorKind::OutOfBounds { .. }));
    assert!(matches!(pinned.lend_mut(17..17).unwrap_err().kind(), ErrorKind::OutOfBounds { .. }));
    let refused = vector.copy_to_device_on(&stream, 0, pinned.lend(0..6).unwrap()).unwrap_err();
    assert_eq!(*refused.error.kind(), ErrorKind::Misaligned { value: 6, align: 4 });
    assert_eq!(*PinnedHandle::alloc(&device, 0).unwrap_err().kind(), ErrorKind::ZeroSize);
    drop((refused, vector, pinned, stream, device));
    assert_clean(&control);
}

/// A host range that is registered by address in two parts: copies stay inside one.
#[test]
fn registrations_by_address_are_kept_apart_from_handles() {
    let (device, control) = deferred();
    let stream = stream(&device);
    let segment = device.allocate(8192).unwrap();
    let memory = HostMemory::allocate(8192, HostMemoryOptions::default()).unwrap();
    let (first, second) = (memory.as_ptr(), memory.as_ptr().wrapping_add(4096));
    // SAFETY: the memory outlives the registrations: it is dropped at the end of the test, after them.
    unsafe { device.register_raw(first, 4096) }.unwrap();
    // SAFETY: as above.
    unsafe { device.register_raw(second, 4096) }.unwrap();
    // SAFETY: as above.
    let overlapping = unsafe { device.register_raw(first.wrapping_add(4000), 200) }.unwrap_err();
    assert_eq!(*overlapping.kind(), ErrorKind::Overlap);
    // SAFETY: as above.
    assert_eq!(*unsafe { device.register_raw(first, 0) }.unwrap_err().kind(), ErrorKind::ZeroSize);
    assert_eq!(*device.pin(&memory).unwrap_err().kind(), ErrorKind::Overlap);

    let spanning = stream.copy_to_device(memory.clone(), &[whole(&segment, 8192)]).unwrap_err();
    assert_eq!(*spanning.error.kind(), ErrorKind::Overlap);
    stream.copy_to_device(memory.clone(), &[whole(&segment, 4096)]).unwrap();
    let part = device.unregister_raw(first.addr() + 100, 8).unwrap_err();
    assert_eq!(*part.kind(), ErrorKind::InFlight, "a part of what is in flight");
    assert_eq!(*device.unregister_raw(first.addr(), 4096).unwrap_err().kind(), ErrorKind::InFlight);
    device.unregister_raw(second.addr(), 4096).unwrap();
    control.run_all();
    let part = device.unregister_raw(first.addr() + 100, 8).unwrap_err();
    assert_eq!(*part.kind(), ErrorKind::InvalidArgument);
    device.unregister_raw(first.addr(), 4096).unwrap();
    let gone = device.unregister_raw(first.addr(), 4096).unwrap_err();
    assert_eq!(*gone.kind(), ErrorKind::InvalidArgument);

    let pinned = PinnedHandle::alloc(&device, 4096).unwrap();
    let loan = pinned.lend(0..1).unwrap();
    let address = HostSource::as_ptr(&loan).addr();
    assert_eq!(*device.unregister_raw(address, 4096).unwrap_err().kind(), ErrorKind::HandleOwned);
    drop((loan, pinned, segment, stream, device, memory));
    assert_clean(&control);
}
