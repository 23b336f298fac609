//! Pinned memory: registered, and allocated by the device's driver.

use spoc_driver::{CopyRange, HostBuffer, HostMemory, HostMemoryOptions, HostSource, Pin};

use crate::helpers::{Drops, pattern};
use crate::subject::{upload, whole};
use crate::{Subject, refused};

/// Nothing is pinned that nobody asked for.
pub fn rule_15_nothing_is_pinned_unasked(subject: &Subject) {
    let (stream, segment) = (subject.stream(), subject.zeroes(4096));
    upload(&stream, pattern(1, 4096), &segment);
    let back = stream.copy_to_host(&segment, 0, vec![0; 4096]).unwrap().wait().unwrap();
    segment.write(0, &back).unwrap();
    let memory = host_memory(&pattern(2, 4096));
    stream.copy_to_device(memory.clone(), &[whole(4096, &segment)]).unwrap();
    assert_eq!(subject.device.pinned_ranges(), 0);
    stream.synchronize().unwrap();
    assert_eq!(subject.device.pinned_ranges(), 0);
}

fn host_memory(bytes: &[u8]) -> HostMemory {
    let mut buffer = HostBuffer::allocate(bytes.len(), HostMemoryOptions::default()).unwrap();
    buffer.copy_from_slice(bytes);
    buffer.share()
}

/// Registers memory, or demands the refusal where the device cannot.
fn pin(subject: &Subject, memory: &HostMemory) -> Option<Pin> {
    let outcome = subject.device.pin(memory);
    if subject.device.capabilities().host_register.is_available() {
        return Some(outcome.unwrap());
    }
    let error = refused(outcome, "unsupported");
    assert!(error.to_string().contains("host_register"), "{error}");
    assert_eq!(subject.device.pinned_ranges(), 0);
    None
}

/// A part of host memory, as a chunk of a ring is one.
struct Part {
    memory: HostMemory,
    offset: usize,
    len: usize,
}

// SAFETY: the memory stays in place while this clone lives, and nothing in these checks writes it then.
unsafe impl HostSource for Part {
    fn as_ptr(&self) -> *const u8 {
        self.memory.as_ptr().wrapping_add(self.offset)
    }

    fn len_bytes(&self) -> usize {
        self.len
    }
}

/// Unregistering is refused while a copy from any part of the range is pending, and works after it.
pub fn rule_16_unregistering_is_refused_while_any_part_is_in_flight(subject: &Subject) {
    let memory = host_memory(&pattern(3, 16_384));
    for (offset, len) in [(0, 16_384), (0, 8), (8192, 64), (16_376, 8)] {
        let Some(mut pin) = pin(subject, &memory) else { return };
        let (stream, segment) = (subject.stream(), subject.zeroes(len));
        let hold = subject.hold(&stream);
        let part = Part { memory: memory.clone(), offset, len };
        stream.copy_to_device(part, &[whole(len, &segment)]).unwrap();
        match pin.release() {
            Ok(()) => {
                assert!(!hold.is_certain(), "unregistered under a pending copy");
                assert!(stream.query().unwrap(), "unregistered before the copy had run");
            }
            Err(error) => {
                assert_eq!(error.kind().as_str(), "in_flight");
                assert!(pin.is_live(), "a refused release killed the handle");
                assert_eq!(subject.device.pinned_ranges(), 1);
            }
        }
        hold.open();
        stream.synchronize().unwrap();
        pin.release().unwrap();
        assert!(!pin.is_live());
        assert_eq!(subject.device.pinned_ranges(), 0);
        assert_eq!(subject.contents(&segment), pattern(3, 16_384)[offset..][..len]);
    }
}

/// So it is while a read-back into it is pending.
pub fn rule_16_unregistering_is_refused_while_a_readback_is_in_flight(subject: &Subject) {
    let buffer = HostBuffer::allocate(4096, HostMemoryOptions::default()).unwrap();
    let shared = buffer.share();
    let Some(mut pin) = pin(subject, &shared) else { return };
    // A second owner would be unsound for a destination, so the buffer goes through driver memory.
    drop(shared);
    let (stream, segment) = (subject.stream(), subject.filled_with(&pattern(4, 4096)));
    let mut pinned = subject.device.alloc_pinned(4096).unwrap();
    pinned.as_mut_slice().unwrap().fill(1);
    let hold = subject.hold(&stream);
    let pending = stream.copy_to_host(&segment, 0, pinned).unwrap();
    pin.release().unwrap();
    assert_eq!(subject.device.pinned_ranges(), 1, "the destination is still registered");
    hold.open();
    let mut pinned = pending.wait().unwrap();
    assert_eq!(pinned.as_slice().unwrap(), pattern(4, 4096));
    pinned.release().unwrap();
    assert_eq!(subject.device.pinned_ranges(), 0);
}

/// What is registered cannot be registered again; once it is not, it can.
pub fn rule_16_registering_what_is_registered_is_refused(subject: &Subject) {
    let memory = host_memory(&pattern(5, 8192));
    let Some(mut first) = pin(subject, &memory) else { return };
    for _ in 0..2 {
        refused(subject.device.pin(&memory), "overlap");
    }
    assert_eq!(subject.device.pinned_ranges(), 1);
    first.release().unwrap();
    let second = pin(subject, &memory).unwrap();
    drop(second);
    assert_eq!(subject.device.pinned_ranges(), 0);
    // Neighbours are no overlap, however close.
    let pins: Vec<_> = (0..8).map(|_| pin(subject, &host_memory(&[1; 4096])).unwrap()).collect();
    assert_eq!(subject.device.pinned_ranges(), 8);
    drop(pins);
}

/// The handle may go while a copy is pending: the range stays registered until the copy has run.
pub fn rule_17_dropping_a_handle_in_flight_unregisters_after_the_copy(subject: &Subject) {
    let memory = host_memory(&pattern(6, 4096));
    let Some(handle) = pin(subject, &memory) else { return };
    let (stream, segment) = (subject.stream(), subject.zeroes(4096));
    let hold = subject.hold(&stream);
    stream.copy_to_device(memory.clone(), &[whole(4096, &segment)]).unwrap();
    drop(handle);
    if hold.is_certain() {
        assert_eq!(subject.device.pinned_ranges(), 1, "unregistered under a pending copy");
        refused(subject.device.pin(&memory), "overlap");
    }
    hold.open();
    stream.synchronize().unwrap();
    assert_eq!(subject.device.pinned_ranges(), 0);
    assert_eq!(subject.contents(&segment), pattern(6, 4096));
    drop(pin(subject, &memory));
}

/// A handle's life: allocated, written, read, released, released again; a released one cannot be read.
pub fn rule_17_a_released_handle_cannot_be_read(subject: &Subject) {
    let outcome = subject.device.alloc_pinned(10_000);
    if !subject.device.capabilities().pinned_alloc.is_available() {
        let error = refused(outcome, "unsupported");
        assert!(error.to_string().contains("pinned_alloc"), "{error}");
        return;
    }
    let mut pinned = outcome.unwrap();
    assert!(pinned.is_live());
    assert_eq!(pinned.len_bytes(), 10_000);
    assert!(pinned.as_slice().unwrap().iter().all(|byte| *byte == 0));
    pinned.as_mut_slice().unwrap().copy_from_slice(&pattern(7, 10_000));
    assert_eq!(pinned.as_slice().unwrap(), pattern(7, 10_000));
    assert_eq!(subject.device.pinned_ranges(), 1);
    pinned.release().unwrap();
    pinned.release().unwrap();
    assert!(!pinned.is_live());
    assert_eq!(pinned.len_bytes(), 0);
    refused(pinned.as_slice().map(<[u8]>::len), "released");
    refused(pinned.as_mut_slice().map(|bytes| bytes.len()), "released");
    assert_eq!(subject.device.pinned_ranges(), 0);
    let (stream, segment) = (subject.stream(), subject.zeroes(64));
    let returned = stream.copy_to_device(pinned, &[whole(64, &segment)]).unwrap_err();
    assert!(matches!(returned.error.kind().as_str(), "out_of_bounds" | "released"), "{returned}");
    assert!(!returned.source.is_live());
}

/// Pinned memory is a source and a destination like any other, and comes back from a read-back.
pub fn rule_17_pinned_memory_carries_copies_both_ways(subject: &Subject) {
    if !subject.device.capabilities().pinned_alloc.is_available() {
        refused(subject.device.alloc_pinned(64), "unsupported");
        return;
    }
    let (stream, segment) = (subject.stream(), subject.zeroes(8192));
    let mut pinned = subject.device.alloc_pinned(8192).unwrap();
    pinned.as_mut_slice().unwrap().copy_from_slice(&pattern(8, 8192));
    let (first, second) = (
        CopyRange { src_offset: 4096, dst: &segment, dst_offset: 0, len_bytes: 4096 },
        CopyRange { src_offset: 0, dst: &segment, dst_offset: 4096, len_bytes: 4096 },
    );
    let hold = subject.hold(&stream);
    stream.copy_to_device(pinned, &[first, second]).unwrap();
    if hold.is_certain() {
        assert_eq!(subject.device.pinned_ranges(), 1, "freed under a pending copy");
    }
    hold.open();
    let room = subject.device.alloc_pinned(8192).unwrap();
    let back = stream.copy_to_host(&segment, 0, room).unwrap().wait().unwrap();
    let mut expected = pattern(8, 8192);
    expected.rotate_left(4096);
    assert_eq!(back.as_slice().unwrap(), expected);
    stream.synchronize().unwrap();
    drop(back);
    assert_eq!(subject.device.pinned_ranges(), 0);
}

/// Sizes of nothing, and of more than there can be, are refused; afterwards all is well.
pub fn rule_17_impossible_sizes_are_refused(subject: &Subject) {
    if !subject.device.capabilities().pinned_alloc.is_available() {
        refused(subject.device.alloc_pinned(0), "unsupported");
        return;
    }
    refused(subject.device.alloc_pinned(0), "zero_size");
    for len in [u64::MAX, 1 << 60] {
        let error = subject.device.alloc_pinned(len).unwrap_err();
        let kind = error.kind().as_str();
        assert!(matches!(kind, "out_of_host_memory" | "too_large"), "{error}");
    }
    assert_eq!(subject.device.pinned_ranges(), 0);
    assert!(subject.device.alloc_pinned(1).unwrap().is_live());
}

/// Whether pinned memory can be had is found by trying, agrees with the verdict, and leaves nothing behind.
pub fn rule_18_the_probe_agrees_with_the_verdict(subject: &Subject) {
    let verdict = subject.device.capabilities().pinned_alloc.is_available();
    for _ in 0..3 {
        assert_eq!(subject.device.pinned_available().unwrap(), verdict);
        assert_eq!(subject.device.pinned_ranges(), 0);
    }
}

/// Copies from ordinary memory are allowed and counted; those from pinned memory are not counted.
pub fn rule_12_pageable_stream_copies_are_allowed_and_counted(subject: &Subject) {
    let (stream, segment) = (subject.stream(), subject.zeroes(4096));
    let before = subject.device.counters();
    upload(&stream, pattern(9, 4096), &segment);
    drop(stream.copy_to_host(&segment, 0, vec![0; 1024]).unwrap().wait().unwrap());
    stream.synchronize().unwrap();
    let after = subject.device.counters();
    assert_eq!(after.pageable_copies, before.pageable_copies + 2);
    assert_eq!(after.bytes_to_device, before.bytes_to_device + 4096);
    assert_eq!(after.bytes_to_host, before.bytes_to_host + 1024);
    assert!(after.submissions >= before.submissions + 2);
    let memory = host_memory(&pattern(10, 4096));
    let mut pins = Vec::new();
    if let Some(pin) = pin(subject, &memory) {
        stream.copy_to_device(memory, &[whole(4096, &segment)]).unwrap();
        pins.push(pin);
    }
    if let Ok(pinned) = subject.device.alloc_pinned(4096) {
        stream.copy_to_device(pinned, &[whole(4096, &segment)]).unwrap();
    }
    stream.synchronize().unwrap();
    assert_eq!(subject.device.counters().pageable_copies, after.pageable_copies);
}

/// Two neighbouring mappings as one source.
struct Span {
    low: HostMemory,
    _high: HostMemory,
    len: usize,
}

// SAFETY: both mappings stay while this value lives, and the second begins where the first ends.
unsafe impl HostSource for Span {
    fn as_ptr(&self) -> *const u8 {
        self.low.as_ptr()
    }

    fn len_bytes(&self) -> usize {
        self.len
    }
}

const NEIGHBOUR_BYTES: usize = 64 << 10;

/// Two mappings of which one begins where the other ends.
fn neighbours() -> (HostMemory, HostMemory) {
    let options = HostMemoryOptions { huge_pages: false, ..HostMemoryOptions::default() };
    let mut mappings: Vec<HostMemory> = Vec::new();
    for _ in 0..256 {
        let new = HostMemory::allocate(NEIGHBOUR_BYTES, options).unwrap();
        let (start, end) = (new.as_ptr().addr(), new.as_ptr().addr() + NEIGHBOUR_BYTES);
        if let Some(high) = mappings.iter().find(|other| other.as_ptr().addr() == end) {
            return (new, high.clone());
        }
        let ends_here = |other: &&HostMemory| other.as_ptr().addr() + NEIGHBOUR_BYTES == start;
        if let Some(low) = mappings.iter().find(ends_here) {
            return (low.clone(), new);
        }
        mappings.push(new);
    }
    panic!("the kernel placed no two of 256 mappings next to each other");
}

/// A copy across the edge of a registration is split where that is correct, else refused with an error that
/// says so; never half done, never wrong.
pub fn rule_20_copies_across_registrations_are_right_or_refused(subject: &Subject) {
    let (low, high) = neighbours();
    let len = 2 * NEIGHBOUR_BYTES;
    for pinned in 1..4 {
        let mut pins = Vec::new();
        for (bit, memory) in [&low, &high].into_iter().enumerate() {
            if pinned & (1 << bit) != 0 {
                let Some(pin) = pin(subject, memory) else { return };
                pins.push(pin);
            }
        }
        let (stream, segment) = (subject.stream(), subject.filled_with(&vec![0xAB; len]));
        let span = Span { low: low.clone(), _high: high.clone(), len };
        match stream.copy_to_device(span, &[whole(len, &segment)]) {
            Ok(()) => {
                for pin in &mut pins {
                    let _ = pin.release();
                }
                stream.synchronize().unwrap();
                assert_eq!(subject.contents(&segment), vec![0; len]);
            }
            Err(returned) => {
                assert_eq!(returned.error.kind().as_str(), "overlap");
                let text = returned.error.to_string();
                assert!(text.contains("pinned") || text.contains("registr"), "{text}");
                stream.synchronize().unwrap();
                assert_eq!(subject.contents(&segment), vec![0xAB; len]);
            }
        }
        // Each side alone is fine.
        for memory in [&low, &high] {
            let range = whole(NEIGHBOUR_BYTES, &segment);
            stream.copy_to_device(memory.clone(), &[range]).unwrap();
        }
        stream.synchronize().unwrap();
    }
}

/// Memory can be registered with two devices at once; each keeps its own account.
pub fn rule_07_every_device_has_its_own_registry(subject: &Subject) {
    let other = subject.other_device();
    let memory = host_memory(&pattern(11, 4096));
    let Some(mut here) = pin(subject, &memory) else { return };
    let mut there = other.pin(&memory).unwrap();
    let (stream, segment) = (subject.stream(), subject.zeroes(4096));
    let hold = subject.hold(&stream);
    stream.copy_to_device(memory.clone(), &[whole(4096, &segment)]).unwrap();
    there.release().unwrap();
    if hold.is_certain() {
        refused(here.release(), "in_flight");
    }
    hold.open();
    stream.synchronize().unwrap();
    here.release().unwrap();
}

/// The memory stays while it is registered, and while a copy uses it, whoever lets go of it.
pub fn rule_17_memory_outlives_its_handles_while_in_use(subject: &Subject) {
    let drops = Drops::default();
    let (stream, segment) = (subject.stream(), subject.zeroes(4096));
    for round in 0..8 {
        let memory = host_memory(&pattern(round, 4096));
        let pin = pin(subject, &memory);
        let hold = subject.hold(&stream);
        stream.copy_to_device(memory, &[whole(4096, &segment)]).unwrap();
        stream.copy_to_device(drops.watch(vec![1; 8]), &[]).unwrap();
        drop(pin);
        hold.open();
        stream.synchronize().unwrap();
        assert_eq!(subject.contents(&segment), pattern(round, 4096));
    }
    assert_eq!(drops.count(), 8);
    assert_eq!(subject.device.pinned_ranges(), 0);
}
