//! Pinned and registered memory.

use std::ffi::c_void;

use cudarc::driver::sys as raw;
use spoc_driver::{CopyRange, ErrorKind, HostMemory, HostMemoryOptions};

use super::{Held, MIB, at_once, bytes_of, filled, on_every_device, pattern, read, whole};

#[test]
fn pinned_and_registered_copies_return_before_they_run() {
    on_every_device(|bench| {
        let memory = filled(16 * MIB, 1);
        let _pin = bench.device.pin(&memory).unwrap();
        let target = bench.device.allocate(16 * MIB as u64).unwrap();
        let mut pinned = bench.device.alloc_pinned(MIB as u64).unwrap();
        pinned.as_mut_slice().unwrap().copy_from_slice(&pattern(MIB, 2));
        let room = bench.device.alloc_pinned(MIB as u64).unwrap();
        let held = Held::on(bench);
        at_once("a copy from registered memory", || {
            held.stream.copy_to_device(memory.clone(), &[whole(&target, 16 * MIB)]).unwrap();
        });
        at_once("a copy from pinned memory", || {
            held.stream.copy_to_device(pinned, &[whole(&target, MIB)]).unwrap();
        });
        let back =
            at_once("a read-back to pinned memory", || held.stream.copy_to_host(&target, 0, room).unwrap());
        assert!(!held.stream.query().unwrap());
        held.open();
        assert!(back.wait().unwrap().as_slice().unwrap() == pattern(MIB, 2));
        assert!(read(&target)[MIB..] == bytes_of(&memory)[MIB..]);
        assert_eq!(bench.device.counters().pageable_copies, 0);
    });
}

/// What somebody else registered, or freed while it was registered, is not registered again: copies from it would
/// read whatever pages it named then.
#[test]
fn memory_that_others_registered_is_refused() {
    on_every_device(|bench| {
        let memory = filled(MIB, 3);
        let mut context = std::ptr::null_mut();
        let ordinal = bench.device.info().index.cast_signed();
        // SAFETY: plain calls on the context that the device uses, and on memory that stays.
        let outcomes = unsafe {
            [
                raw::cuDevicePrimaryCtxRetain(&raw mut context, ordinal),
                raw::cuCtxPushCurrent_v2(context),
                raw::cuMemHostRegister_v2(memory.as_ptr().cast::<c_void>(), MIB / 2, 0),
            ]
        };
        assert_eq!(outcomes, [raw::CUresult::CUDA_SUCCESS; 3]);
        let error = bench.device.pin(&memory).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Overlap, "{error}");
        assert!(error.to_string().contains("another library"), "{error}");
        assert_eq!(bench.device.pinned_ranges(), 0);
        // SAFETY: registered above; nothing uses it.
        let outcomes = unsafe {
            [
                raw::cuMemHostUnregister(memory.as_ptr().cast::<c_void>()),
                raw::cuCtxPopCurrent_v2(&raw mut context),
                raw::cuDevicePrimaryCtxRelease_v2(ordinal),
            ]
        };
        assert_eq!(outcomes, [raw::CUresult::CUDA_SUCCESS; 3]);
        drop(bench.device.pin(&memory).unwrap());
    });
}

/// A failed registration leaves nothing behind: neither a part of it, nor an error for an innocent call.
#[test]
fn a_failed_registration_leaves_nothing_behind() {
    on_every_device(|bench| {
        let len = 2 * MIB;
        // SAFETY: a fresh mapping that nobody may touch.
        let hidden = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0)
        };
        assert_ne!(hidden, libc::MAP_FAILED);
        for _ in 0..2 {
            // SAFETY: it stays mapped until the end.
            let error = unsafe { bench.device.register_raw(hidden.cast(), len) }.unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
        // SAFETY: as above.
        let nothing = unsafe { bench.device.register_raw(hidden.cast(), 0) }.unwrap_err();
        assert_eq!(*nothing.kind(), ErrorKind::ZeroSize);
        assert_eq!(bench.device.pinned_ranges(), 0);
        let segment = bench.device.allocate(64).unwrap();
        segment.write(0, &[5; 64]).unwrap();
        assert_eq!(read(&segment), [5; 64]);
        // SAFETY: mapped above, used by nothing.
        assert_eq!(unsafe { libc::munmap(hidden, len) }, 0);
    });
}

/// Unregistered before it is unmapped: a new mapping at the same address is new memory to the device.
#[test]
fn addresses_that_are_used_again_are_new_memory() {
    on_every_device(|bench| {
        let segment = bench.device.allocate(MIB as u64).unwrap();
        let stream = bench.stream();
        let mut addresses = std::collections::BTreeSet::new();
        let mut is_again = false;
        for round in 0..16 {
            let memory = filled(MIB, round);
            is_again |= !addresses.insert(memory.as_ptr().addr());
            let pin = bench.device.pin(&memory).unwrap();
            stream.copy_to_device(memory.clone(), &[whole(&segment, MIB)]).unwrap();
            stream.synchronize().unwrap();
            assert!(read(&segment) == pattern(MIB, round), "round {round}");
            drop((pin, memory));
        }
        assert!(is_again, "the kernel gave no address twice, so this proved nothing");
    });
}

/// Registered in one piece or in parts, and copied across the places where parts would meet.
#[test]
fn large_ranges_are_registered() {
    const LEN: usize = 640 << 20;
    on_every_device(|bench| {
        let memory = HostMemory::allocate(LEN, HostMemoryOptions::default()).unwrap();
        let marks = [0, 256 << 20, 512 << 20, LEN - 16];
        for (mark, value) in marks.iter().zip(1_u8..) {
            for at in mark.saturating_sub(8)..(mark + 8).min(LEN) {
                // SAFETY: inside the memory, which nobody else uses yet.
                unsafe { memory.as_ptr().add(at).write(value) };
            }
        }
        let _pin = bench.device.pin(&memory).unwrap();
        let (stream, segment) = (bench.stream(), bench.device.allocate(4096).unwrap());
        for (mark, value) in marks.iter().zip(1_u8..) {
            let first = mark.saturating_sub(8);
            let len_bytes = (mark + 8).min(LEN) - first;
            let range = CopyRange { src_offset: first, dst: &segment, dst_offset: 0, len_bytes };
            stream.copy_to_device(memory.clone(), &[range]).unwrap();
            stream.synchronize().unwrap();
            let mut bytes = vec![0; len_bytes];
            segment.read(0, &mut bytes).unwrap();
            assert_eq!(bytes, vec![value; len_bytes], "at {mark}");
        }
    });
}
