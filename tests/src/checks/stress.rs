//! Many small things.

use spoc_driver::CopyRange;

use crate::Subject;
use crate::helpers::{Drops, pattern};
use crate::subject::{upload, whole};

/// Thousands of small copies over a few streams: every byte arrives, every source is let go of once.
pub fn stress_many_small_copies(subject: &Subject) {
    const SLOTS: usize = 512;
    let streams = [subject.stream(), subject.free_stream(), subject.stream()];
    let (segment, drops) = (subject.zeroes(SLOTS * 64), Drops::default());
    for copy in 0..6000_usize {
        // Each stream has slots of its own, so that order between streams does not matter.
        let slot = copy % SLOTS;
        let stream = &streams[slot % 3];
        let range = CopyRange { dst_offset: slot as u64 * 64, ..whole(64, &segment) };
        stream.copy_to_device(drops.watch(pattern(copy as u64, 64)), &[range]).unwrap();
        if copy % 1000 == 999 {
            stream.synchronize().unwrap();
        }
    }
    subject.device.flush().unwrap();
    assert_eq!(drops.count(), 6000);
    assert_eq!(subject.device.in_flight(), 0);
    let contents = subject.contents(&segment);
    for slot in 0..SLOTS {
        let last = (0..6000).rev().find(|copy| copy % SLOTS == slot).unwrap();
        assert_eq!(contents[slot * 64..][..64], pattern(last as u64, 64), "slot {slot}");
    }
}

/// The same bytes by one batch as by one call each.
pub fn stress_a_batch_equals_its_copies(subject: &Subject) {
    let stream = subject.stream();
    let (batch, single) = (subject.zeroes(1 << 16), subject.zeroes(1 << 16));
    let bytes = pattern(1, 1 << 16);
    let ranges = |dst| {
        (0..2048_usize).map(move |piece| CopyRange {
            src_offset: piece * 32,
            dst,
            dst_offset: (piece as u64 * 1031 % 2048) * 32,
            len_bytes: 32,
        })
    };
    for range in ranges(&single) {
        stream.copy_to_device(bytes.clone()[..].to_vec(), &[range]).unwrap();
        if range.src_offset % 4096 == 0 {
            stream.synchronize().unwrap();
        }
    }
    let all: Vec<_> = ranges(&batch).collect();
    stream.copy_to_device(bytes, &all).unwrap();
    stream.synchronize().unwrap();
    assert!(subject.contents(&batch) == subject.contents(&single));
}

/// A ring of chunks feeds slots while another stream reads them: loading weights, in small.
pub fn stress_a_ring_of_chunks_feeds_slots(subject: &Subject) {
    const CHUNK: usize = 16 << 10;
    const RING: usize = 4;
    let (copy, compute) = (subject.free_stream(), subject.free_stream());
    let slots: Vec<_> = (0..RING).map(|_| subject.zeroes(CHUNK)).collect();
    let total = subject.zeroes(CHUNK * 64);
    let events: Vec<_> = (0..2 * RING).map(|_| subject.device.create_event().unwrap()).collect();
    for chunk in 0..64_usize {
        let slot = chunk % RING;
        let (filled, drained) = (&events[slot], &events[RING + slot]);
        if chunk >= RING {
            copy.wait(drained).unwrap();
        }
        upload(&copy, pattern(chunk as u64, CHUNK), &slots[slot]);
        copy.record(filled).unwrap();
        compute.wait(filled).unwrap();
        compute.copy_device_to_device(&slots[slot], 0, &total, (chunk * CHUNK) as u64, CHUNK as u64).unwrap();
        compute.record(drained).unwrap();
    }
    compute.synchronize().unwrap();
    let contents = subject.contents(&total);
    for chunk in 0..64 {
        assert!(contents[chunk * CHUNK..][..CHUNK] == pattern(chunk as u64, CHUNK), "chunk {chunk}");
    }
    copy.synchronize().unwrap();
    assert_eq!(subject.device.in_flight(), 0);
}

/// Segments and streams are made and dropped between copies: nothing is lost, nothing leaks.
pub fn stress_churn_of_segments_between_copies(subject: &Subject) {
    let stream = subject.stream();
    let kept = subject.zeroes(300 * 64);
    for round in 0..300_u64 {
        let len = 64 + round % 7 * 512;
        let scratch = subject.device.allocate(len).unwrap();
        upload(&stream, pattern(round, 64), &scratch);
        stream.copy_device_to_device(&scratch, 0, &kept, round * 64, 64).unwrap();
        drop(scratch);
        if round % 32 == 0 {
            let _ = stream.query().unwrap();
        }
    }
    stream.synchronize().unwrap();
    let contents = subject.contents(&kept);
    for round in 0..300 {
        assert_eq!(contents[round * 64..][..64], pattern(round as u64, 64), "round {round}");
    }
    assert_eq!(subject.device.memory_in_use(), 300 * 64);
}
