//! Which way many copies go, and that they arrive.

use std::time::{Duration, Instant};

use spoc_driver::{CopyRange, HostMemory, HostMemoryOptions, Segment, Stream};

use super::{Bench, MIB, bytes_of, filled, on_every_device, pattern, read};

/// Ranges of `len` bytes, each put where another one was.
fn shuffled(target: &Segment, count: usize, len: usize, skew: usize) -> Vec<CopyRange<'_>> {
    let place = |index: usize| index * len * 2 + skew;
    (0..count)
        .map(|index| CopyRange {
            src_offset: index * len,
            dst: target,
            dst_offset: place((index * 7 + 3) % count) as u64,
            len_bytes: len,
        })
        .collect()
}

/// The kernel that carries small copies is loaded beside the first work of a backend.
fn until_carried(bench: &Bench, stream: &Stream, memory: &HostMemory, target: &Segment) {
    let start = Instant::now();
    let copy = || stream.copy_to_device(memory.clone(), &shuffled(target, 2, 64, 0)).unwrap();
    while bench.added(|counters| counters.carried_copies, copy) == 0 {
        assert!(start.elapsed() < Duration::from_secs(10), "the kernel is never there");
        std::thread::sleep(Duration::from_millis(5));
    }
    eprintln!("small copies are carried after {:?}", start.elapsed());
    stream.synchronize().unwrap();
}

fn check(source: &[u8], ranges: &[CopyRange<'_>], target: &Segment) {
    let seen = read(target);
    for range in ranges {
        let (from, to) = (range.src_offset, range.dst_offset as usize);
        assert!(
            seen[to..to + range.len_bytes] == source[from..from + range.len_bytes],
            "{} bytes at {to}",
            range.len_bytes
        );
    }
}

/// What a count of copies of a length goes by, from pinned memory.
#[test]
fn copies_go_the_way_that_suits_them() {
    on_every_device(|bench| {
        let memory = filled(64 * MIB, 4);
        let _pin = bench.device.pin(&memory).unwrap();
        let target = bench.device.allocate(129 * MIB as u64).unwrap();
        let stream = bench.stream();
        until_carried(bench, &stream, &memory, &target);
        // Count, length, skew of the destination; carried, batched.
        let cases = [
            (1000, 16 << 10, 0, true, false),
            (778, 1000, 4, true, false),
            (3, 100, 8, true, false),
            (300, 48 << 10, 256, true, false),
            // Longer than one launch's list, whichever it is.
            (7001, 8 << 10, 4, true, false),
            (300, 64 << 10, 256, false, true),
            (100, 200 << 10, 12, false, true),
            (24, 1 << 20, 0, false, true),
            (400, 64 << 10, 1, false, true),
            (1000, 1 << 10, 1, false, false),
            (1, 16 << 10, 0, false, false),
        ];
        for (count, len, skew, is_carried, is_batched) in cases {
            let ranges = shuffled(&target, count, len, skew);
            let before = bench.counters.read();
            stream.copy_to_device(memory.clone(), &ranges).unwrap();
            stream.synchronize().unwrap();
            let after = bench.counters.read();
            check(bytes_of(&memory), &ranges, &target);
            let carried = after.carried_copies - before.carried_copies;
            let batched = after.batched_copies - before.batched_copies;
            assert_eq!(carried == count as u64, is_carried, "{count} copies of {len}: {carried} carried");
            assert_eq!(batched == count as u64, is_batched, "{count} copies of {len}: {batched} batched");
        }
    });
}

#[test]
fn the_default_stream_takes_many_copies_too() {
    on_every_device(|bench| {
        let memory = filled(8 * MIB, 5);
        let _pin = bench.device.pin(&memory).unwrap();
        let target = bench.device.allocate(17 * MIB as u64).unwrap();
        let stream = bench.device.default_stream();
        for (count, len) in [(100, 16 << 10), (8, MIB)] {
            let ranges = shuffled(&target, count, len, 0);
            stream.copy_to_device(memory.clone(), &ranges).unwrap();
            stream.synchronize().unwrap();
            check(bytes_of(&memory), &ranges, &target);
        }
    });
}

#[test]
fn ordinary_memory_is_never_left_to_the_kernel() {
    on_every_device(|bench| {
        let target = bench.device.allocate(2 * MIB as u64).unwrap();
        let stream = bench.stream();
        let source = pattern(MIB, 6);
        let ranges = shuffled(&target, 64, 16 << 10, 0);
        let carried = bench.added(
            |counters| counters.carried_copies,
            || {
                stream.copy_to_device(source.clone(), &ranges).unwrap();
                stream.synchronize().unwrap();
            },
        );
        assert_eq!(carried, 0);
        check(&source, &ranges, &target);
        // Neither is a list of which one part is not pinned.
        let memory = filled(MIB, 7);
        let spare = HostMemory::allocate(4096, HostMemoryOptions::default()).unwrap();
        let _pin = bench.device.pin(&spare).unwrap();
        let carried = bench.added(
            |counters| counters.carried_copies,
            || {
                stream.copy_to_device(memory.clone(), &ranges).unwrap();
                stream.synchronize().unwrap();
            },
        );
        assert_eq!(carried, 0);
        check(bytes_of(&memory), &ranges, &target);
    });
}

/// Prints rates, and asserts none: other work may use the machine.
#[test]
fn rates_of_pinned_copies() {
    const TOTAL: usize = 256 * MIB;
    on_every_device(|bench| {
        let memory = filled(TOTAL, 8);
        let _pin = bench.device.pin(&memory).unwrap();
        let target = bench.device.allocate(2 * TOTAL as u64).unwrap();
        let stream = bench.stream();
        until_carried(bench, &stream, &memory, &target);
        let rate = |ranges: &[CopyRange<'_>], stream: &Stream| {
            let mut best = f64::MAX;
            let mut call = f64::MAX;
            for _ in 0..4 {
                let start = Instant::now();
                stream.copy_to_device(memory.clone(), ranges).unwrap();
                call = call.min(start.elapsed().as_secs_f64());
                stream.synchronize().unwrap();
                best = best.min(start.elapsed().as_secs_f64());
            }
            let count = ranges.len() as f64;
            (TOTAL as f64 / best / 1e9, call * 1e6 / count)
        };
        for len in [4 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, MIB, 4 * MIB, 16 * MIB] {
            let (together, call) = rate(&shuffled(&target, TOTAL / len, len, 0), &stream);
            eprintln!("scattered copies of {len:>9}: {together:5.1} GB/s, {call:6.2} us of host time each");
        }
        let one = CopyRange { src_offset: 0, dst: &target, dst_offset: 0, len_bytes: TOTAL };
        let (alone, _) = rate(&[one], &stream);
        eprintln!("one copy of {TOTAL:>9}: {alone:5.1} GB/s");
        for len in [4 << 10, 64 << 10, MIB] {
            let start = Instant::now();
            for index in 0..64 {
                let range =
                    CopyRange { src_offset: index * len, dst: &target, dst_offset: 0, len_bytes: len };
                stream.copy_to_device(memory.clone(), &[range]).unwrap();
            }
            let each = start.elapsed().as_secs_f64() * 1e6 / 64.0;
            stream.synchronize().unwrap();
            eprintln!("enqueueing a copy of {len:>9}: {each:6.2} us");
        }
    });
}
