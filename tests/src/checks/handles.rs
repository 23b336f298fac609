//! Pinned handles that lend their memory, and registrations by address.

use std::panic::{AssertUnwindSafe, catch_unwind};

use half::f16;
use spoc_driver::{Elements, HostBuffer, HostMemoryOptions, PinnedHandle, SourceLoan, Vector};

use crate::helpers::pattern;
use crate::subject::whole;
use crate::{Subject, refused};

/// A handle, or nothing where the device has no pinned memory: then the refusal was checked.
fn alloc(subject: &Subject, len: usize) -> Option<PinnedHandle> {
    let outcome = PinnedHandle::alloc(&subject.device, len as u64);
    if subject.device.capabilities().pinned_alloc.is_available() {
        return Some(outcome.unwrap());
    }
    let error = refused(outcome, "unsupported");
    assert!(error.to_string().contains("pinned_alloc"), "{error}");
    None
}

fn buffer(bytes: &[u8]) -> HostBuffer {
    let mut buffer = HostBuffer::allocate(bytes.len(), HostMemoryOptions::default()).unwrap();
    buffer.copy_from_slice(bytes);
    buffer
}

/// While a copy has any part on loan: nothing is written, nothing released; afterwards all of it works.
pub fn rule_17_release_is_refused_in_flight_and_can_be_retried(subject: &Subject) {
    let Some(mut pinned) = alloc(subject, 4096) else { return };
    let (stream, segment) = (subject.stream(), subject.zeroes(64));
    pinned.as_mut_slice().unwrap().copy_from_slice(&pattern(1, 4096));
    let hold = subject.hold(&stream);
    let loan = pinned.lend(1024..1088).unwrap();
    stream.copy_to_device(loan, &[whole(64, &segment)]).unwrap();
    if hold.is_certain() {
        refused(pinned.as_mut_slice().map(|bytes| bytes.len()), "in_flight");
        refused(pinned.lend_mut(0..8), "in_flight");
        assert_eq!(pinned.as_slice().unwrap(), pattern(1, 4096), "readers do not exclude each other");
        drop(pinned.lend(0..4096).unwrap());
        for _ in 0..2 {
            refused(pinned.release(), "in_flight");
            assert!(pinned.is_live());
        }
        assert_eq!(subject.device.pinned_ranges(), 1);
    }
    hold.open();
    stream.synchronize().unwrap();
    pinned.release().unwrap();
    pinned.release().unwrap();
    assert!(!pinned.is_live());
    assert_eq!((pinned.len_bytes(), subject.device.pinned_ranges()), (0, 0));
    refused(pinned.as_slice().map(<[u8]>::len), "released");
    refused(pinned.as_mut_slice().map(|bytes| bytes.len()), "released");
    refused(pinned.lend(0..1), "released");
    refused(pinned.lend_mut(0..1), "released");
    assert_eq!(subject.contents(&segment), pattern(1, 4096)[1024..1088]);
}

/// The destination of a read-back is out of sight until the copy has run and the loan has ended.
pub fn rule_11_a_lent_destination_cannot_be_read_before_the_loan_ends(subject: &Subject) {
    let Some(mut pinned) = alloc(subject, 4096) else { return };
    let (stream, segment) = (subject.stream(), subject.filled_with(&pattern(2, 64)));
    let hold = subject.hold(&stream);
    let loan = pinned.lend_mut(64..128).unwrap();
    let pending = stream.copy_to_host(&segment, 0, loan).unwrap();
    refused(pinned.as_slice().map(<[u8]>::len), "in_flight");
    refused(pinned.as_mut_slice().map(|bytes| bytes.len()), "in_flight");
    refused(pinned.lend(0..8), "in_flight");
    refused(pinned.release(), "in_flight");
    hold.open();
    let loan = pending.wait().unwrap();
    refused(pinned.as_slice().map(<[u8]>::len), "in_flight");
    drop(loan);
    assert_eq!(pinned.as_slice().unwrap()[64..128], pattern(2, 64));
    // An abandoned read-back ends its loan once it has run.
    drop(stream.copy_to_host(&segment, 0, pinned.lend_mut(0..64).unwrap()).unwrap());
    stream.synchronize().unwrap();
    assert_eq!(pinned.as_slice().unwrap()[..64], pattern(2, 64));
}

/// Parts are lent within the handle's bounds.
pub fn rule_17_loans_are_within_bounds(subject: &Subject) {
    let Some(mut pinned) = alloc(subject, 100) else { return };
    let backwards = std::ops::Range { start: 50, end: 10 };
    for range in [0..101, 100..101, 101..101, usize::MAX - 1..usize::MAX] {
        refused(pinned.lend(range.clone()), "out_of_bounds");
        refused(pinned.lend_mut(range), "out_of_bounds");
    }
    for range in [0..100, 100..100, 99..100, backwards] {
        drop::<SourceLoan>(pinned.lend(range.clone()).unwrap());
        drop(pinned.lend_mut(range).unwrap());
    }
    let segment = subject.zeroes(64);
    let short = pinned.lend(0..32).unwrap();
    refused(subject.stream().copy_to_device(short, &[whole(64, &segment)]), "out_of_bounds");
    pinned.release().unwrap();
}

/// `with_alloc` releases on return, after its stream.
pub fn rule_17_with_alloc_synchronises_its_stream_and_releases(subject: &Subject) {
    let (stream, segment) = (subject.stream(), subject.zeroes(4096));
    let outcome = PinnedHandle::with_alloc(&subject.device, 4096, Some(&stream), |pinned| {
        pinned.as_mut_slice().unwrap().copy_from_slice(&pattern(3, 4096));
        stream.copy_to_device(pinned.lend(0..4096).unwrap(), &[whole(4096, &segment)]).unwrap();
        42
    });
    if !subject.device.capabilities().pinned_alloc.is_available() {
        let returned = outcome.unwrap_err();
        assert_eq!((returned.error.kind().as_str(), returned.source), ("unsupported", None));
        return;
    }
    assert_eq!(outcome.unwrap(), 42);
    assert!(stream.query().unwrap());
    assert_eq!(subject.device.pinned_ranges(), 0);
    assert_eq!(subject.contents(&segment), pattern(3, 4096));
    // Nothing pending, no stream to wait for.
    let len = PinnedHandle::with_alloc(&subject.device, 10, None, |pinned| pinned.len_bytes()).unwrap();
    assert_eq!((len, subject.device.pinned_ranges()), (10, 0));
}

/// Work pending on another stream: `InFlight` with the result, and the memory goes after that work.
pub fn rule_17_with_alloc_leaves_memory_in_flight_to_the_ledger(subject: &Subject) {
    if !subject.device.capabilities().pinned_alloc.is_available() {
        refused(subject.device.alloc_pinned(1), "unsupported");
        return;
    }
    let (other, segment) = (subject.free_stream(), subject.zeroes(4096));
    for stream in [None, Some(subject.stream())] {
        let hold = subject.hold(&other);
        let outcome = PinnedHandle::with_alloc(&subject.device, 4096, stream.as_ref(), |pinned| {
            pinned.as_mut_slice().unwrap().copy_from_slice(&pattern(4, 4096));
            other.copy_to_device(pinned.lend(0..4096).unwrap(), &[whole(4096, &segment)]).unwrap();
            "result"
        });
        match outcome {
            Ok(result) => {
                assert!(!hold.is_certain(), "released under a pending copy");
                assert_eq!(result, "result");
            }
            Err(returned) => {
                assert_eq!(returned.error.kind().as_str(), "in_flight");
                assert_eq!(returned.source, Some("result"));
                if hold.is_certain() {
                    assert_eq!(subject.device.pinned_ranges(), 1, "freed under a pending copy");
                }
            }
        }
        hold.open();
        other.synchronize().unwrap();
        assert_eq!(subject.device.pinned_ranges(), 0);
        assert_eq!(subject.contents(&segment), pattern(4, 4096));
    }
}

/// A panic in `with_alloc` releases, too; what is pending keeps the memory until it has run.
pub fn rule_17_with_alloc_releases_on_a_panic(subject: &Subject) {
    if !subject.device.capabilities().pinned_alloc.is_available() {
        refused(subject.device.alloc_pinned(1), "unsupported");
        return;
    }
    let (stream, segment) = (subject.stream(), subject.zeroes(64));
    let hold = subject.hold(&stream);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        PinnedHandle::with_alloc(&subject.device, 64, Some(&stream), |pinned| {
            pinned.as_mut_slice().unwrap().copy_from_slice(&pattern(5, 64));
            stream.copy_to_device(pinned.lend(0..64).unwrap(), &[whole(64, &segment)]).unwrap();
            std::panic::resume_unwind(Box::new("on purpose"));
        })
    }));
    assert!(panicked.is_err());
    hold.open();
    stream.synchronize().unwrap();
    assert_eq!(subject.contents(&segment), pattern(5, 64));
    assert_eq!(subject.device.pinned_ranges(), 0);
}

/// Registered memory comes back when it is unregistered, and when registering fails.
pub fn rule_17_registered_memory_comes_back(subject: &Subject) {
    let outcome = PinnedHandle::register(&subject.device, buffer(&pattern(6, 8192)));
    if !subject.device.capabilities().host_register.is_available() {
        let returned = outcome.unwrap_err();
        assert_eq!(returned.error.kind().as_str(), "unsupported");
        assert_eq!(&returned.source.unwrap()[..], pattern(6, 8192));
        return;
    }
    let handle = outcome.unwrap();
    let (stream, segment) = (subject.stream(), subject.zeroes(8192));
    let hold = subject.hold(&stream);
    stream.copy_to_device(handle.lend(0..8192).unwrap(), &[whole(8192, &segment)]).unwrap();
    let handle = match handle.unregister() {
        Ok(_) => {
            assert!(!hold.is_certain(), "unregistered under a pending copy");
            return;
        }
        Err(returned) => {
            assert_eq!(returned.error.kind().as_str(), "in_flight");
            returned.source
        }
    };
    hold.open();
    stream.synchronize().unwrap();
    let back = handle.unregister().unwrap();
    assert_eq!(&back[..], pattern(6, 8192));
    assert_eq!(subject.device.pinned_ranges(), 0);
    assert_eq!(subject.contents(&segment), pattern(6, 8192));
    let allocated = alloc(subject, 64).unwrap();
    refused(allocated.unregister().map_err(|returned| returned.error), "invalid_argument");
}

/// Half-precision elements live in pinned memory as any others do.
pub fn rule_19_half_precision_elements_may_be_pinned(subject: &Subject) {
    let Some(mut pinned) = alloc(subject, 128) else { return };
    let halves: Vec<f16> = (0..64_u8).map(|index| f16::from_f32(f32::from(index) / 4.0)).collect();
    pinned.as_mut_elements::<f16>().unwrap().copy_from_slice(&halves);
    assert_eq!(pinned.as_elements::<f16>().unwrap(), halves);
    let stream = subject.stream();
    let mut vector = Vector::<f16>::device_only(&subject.device, 64).unwrap();
    vector.copy_to_device_on(&stream, 0, pinned.lend(0..128).unwrap()).unwrap();
    let back = vector.copy_to_host_on(&stream, 0, Elements(vec![f16::ZERO; 64])).unwrap().wait().unwrap();
    assert_eq!(back.0, halves);
    stream.synchronize().unwrap();
    pinned.release().unwrap();
}

/// By address: what overlaps a registered range, in whole or in part, is refused; so is freeing a part, what is
/// in flight, and what a handle owns.
pub fn rule_16_registrations_by_address_refuse_overlaps_parts_and_handles(subject: &Subject) {
    let mut memory = buffer(&pattern(7, 16_384));
    let base = memory.as_mut_ptr();
    let register = |offset: usize, len: usize| {
        // SAFETY: inside `memory`, which outlives every registration of this check.
        unsafe { subject.device.register_raw(base.wrapping_add(offset), len) }
    };
    let unregister = |offset: usize, len| subject.device.unregister_raw(base.addr() + offset, len);
    if !subject.device.capabilities().host_register.is_available() {
        refused(register(0, 4096), "unsupported");
        return;
    }
    refused(register(0, 0), "zero_size");
    register(4096, 4096).unwrap();
    for (offset, len) in [(4096, 4096), (0, 4097), (8191, 8193), (0, 16_384), (5000, 8)] {
        refused(register(offset, len), "overlap");
    }
    register(8192, 4096).unwrap();
    register(0, 4096).unwrap();
    assert_eq!(subject.device.pinned_ranges(), 3);
    for (offset, len) in [(4096, 8), (4096, 4095), (5000, 100), (12_288, 4096)] {
        refused(unregister(offset, len), "invalid_argument");
    }
    for offset in [0, 4096, 8192] {
        unregister(offset, 4096).unwrap();
        refused(unregister(offset, 4096), "invalid_argument");
    }
    assert_eq!(subject.device.pinned_ranges(), 0);
    let handle = PinnedHandle::register(&subject.device, memory).unwrap();
    for (offset, len) in [(0, 16_384), (64, 64)] {
        refused(unregister(offset, len), "handle_owned");
        refused(register(offset, len), "overlap");
    }
    let (stream, segment) = (subject.stream(), subject.zeroes(64));
    let hold = subject.hold(&stream);
    stream.copy_to_device(handle.lend(128..192).unwrap(), &[whole(64, &segment)]).unwrap();
    let error = unregister(0, 16_384).unwrap_err();
    let kind = error.kind().as_str();
    assert!(kind == "in_flight" || (kind == "handle_owned" && !hold.is_certain()), "{error}");
    hold.open();
    stream.synchronize().unwrap();
    assert_eq!(&handle.unregister().unwrap()[..], pattern(7, 16_384));
}

/// A handle may be dropped while its memory is on loan: the memory stays until the copy has run.
pub fn rule_17_a_dropped_handle_leaves_its_memory_to_the_copies(subject: &Subject) {
    let Some(mut pinned) = alloc(subject, 4096) else { return };
    let (stream, segment) = (subject.stream(), subject.zeroes(4096));
    pinned.as_mut_slice().unwrap().copy_from_slice(&pattern(8, 4096));
    let hold = subject.hold(&stream);
    stream.copy_to_device(pinned.lend(0..4096).unwrap(), &[whole(4096, &segment)]).unwrap();
    drop(pinned);
    if hold.is_certain() {
        assert_eq!(subject.device.pinned_ranges(), 1, "freed under a pending copy");
    }
    hold.open();
    stream.synchronize().unwrap();
    assert_eq!(subject.device.pinned_ranges(), 0);
    assert_eq!(subject.contents(&segment), pattern(8, 4096));
}
