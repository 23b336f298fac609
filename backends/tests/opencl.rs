//! The OpenCL backend through the driver, on every device there is.
#![cfg(feature = "opencl")]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::print_stderr)]

#[path = "common/cl.rs"]
mod cl;
mod common;

use std::time::{Duration, Instant};

use cl::{Gate, Raw, lend};
use opencl_sys::CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE;
use spoc_backends::opencl::{self, Objects};
use spoc_driver::backend::Probed;
use spoc_driver::{
    BackendKind, CaptureState, CopyRange, Device, DeviceSelector, Driver, ErrorKind, HostMemory,
    HostMemoryOptions, Segment, Stream, StreamOptions,
};

const KIND: BackendKind = BackendKind::OpenCl;
const KIB: usize = 1 << 10;
const MIB: u64 = 1 << 20;
const BLOCKING: StreamOptions =
    StreamOptions { non_blocking: false, priority: spoc_driver::StreamPriority::Normal };
const NON_BLOCKING: StreamOptions = StreamOptions { non_blocking: true, ..BLOCKING };

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 31 + seed) % 251) as u8).collect()
}

/// Each device as another library's context that the driver borrows, so that the test can hold queues.
fn borrowed(check: impl Fn(&Raw, &Device)) {
    let Some(probed) = common::backend(KIND) else { return };
    for info in probed.devices() {
        let raw = Raw::new(info.index);
        let driver = Driver::new(vec![Probed::clone(&probed)]);
        // SAFETY: the context outlives the driver's use of it.
        let device = unsafe { driver.adopt(KIND, lend(raw.context, 0)) }.unwrap();
        eprintln!("on {}", info.name);
        check(&raw, &device);
    }
}

/// A stream that the test holds.
fn held<'r>(raw: &'r Raw, device: &Device, options: StreamOptions) -> (Stream, Gate<'r>) {
    let queue = raw.queue(0);
    let gate = raw.hold(queue);
    // SAFETY: a live queue of the device's context; the adoption keeps its own reference.
    let stream = unsafe { device.adopt_stream(lend(queue, options.non_blocking.into()), options) }.unwrap();
    raw.release_queue(queue);
    (stream, gate)
}

/// An ordinary stream that waits for one that the test holds.
fn held_by_event<'r>(raw: &'r Raw, device: &Device, stream: Stream) -> (Stream, Gate<'r>) {
    let (holder, gate) = held(raw, device, NON_BLOCKING);
    let event = device.create_event().unwrap();
    holder.record(&event).unwrap();
    stream.wait(&event).unwrap();
    (stream, gate)
}

fn upload(stream: &Stream, bytes: &[u8], dst: &Segment) {
    let range = CopyRange { src_offset: 0, dst, dst_offset: 0, len_bytes: bytes.len() };
    stream.copy_to_device(bytes.to_vec(), &[range]).unwrap();
}

fn contents(segment: &Segment) -> Vec<u8> {
    let mut bytes = vec![0; segment.len_bytes() as usize];
    segment.read(0, &mut bytes).unwrap();
    bytes
}

/// Whether the stream has become idle after a while that is plenty for what is not held.
fn has_passed(stream: &Stream, within: Duration) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < within {
        if stream.query().unwrap() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

const SHORT: Duration = Duration::from_millis(60);
const LONG: Duration = Duration::from_secs(20);

#[test]
fn probing_lists_devices_with_type_platform_and_limits() {
    for device in common::devices(KIND) {
        let (info, limits) = (device.info(), device.limits());
        eprintln!("{} {} stable={} {limits:?}", info.name, info.uuid, info.uuid_is_stable);
        assert!(["CPU)", "GPU)", "accelerator)", "other)"].iter().any(|kind| info.name.ends_with(kind)));
        assert!(info.memory_bytes >= limits.segment_bytes_max);
        // Given in bits by the API: as bytes it would be 1024 on the runtimes known.
        assert!(limits.address_align_bytes.is_power_of_two() && limits.address_align_bytes <= 512);
        let memory = device.memory().unwrap();
        assert!(memory.free_bytes > 0 && memory.free_bytes <= memory.total_bytes);
    }
}

#[test]
fn uuids_differ_and_stay() {
    let (Some(first), Some(second)) = (common::backend(KIND), common::backend(KIND)) else { return };
    let uuids = |probed: &Probed| probed.devices().iter().map(|info| info.uuid).collect::<Vec<_>>();
    assert_eq!(uuids(&first), uuids(&second));
    let mut all = uuids(&first);
    all.sort();
    all.dedup();
    assert_eq!(all.len(), first.devices().len());
}

#[test]
fn capabilities_are_those_of_the_table() {
    const OFFERED: [&str; 8] = [
        "launch",
        "async_copies",
        "pinned_alloc",
        "copy_many",
        "fill",
        "adopt_context",
        "adopt_stream",
        "adopt_memory",
    ];
    for device in common::devices(KIND) {
        for (name, verdict) in device.capabilities().iter() {
            let is_offered = match name {
                "pageable_async" | "host_buffer" => device.info().name.ends_with("CPU)"),
                "stable_uuid" => device.info().uuid_is_stable,
                name => OFFERED.contains(&name),
            };
            assert_eq!(verdict.is_available(), is_offered, "{name}: {verdict}");
            assert_eq!(verdict.is_available(), verdict.reason().is_none(), "{name}");
        }
    }
}

#[test]
fn what_is_not_offered_is_refused_by_name() {
    for device in common::devices(KIND) {
        let refused = |error: spoc_driver::Error, feature| {
            assert_eq!(*error.kind(), ErrorKind::Unsupported { backend: KIND, feature }, "{error}");
            assert!(error.to_string().contains("reason="), "{error}");
        };
        let memory = HostMemory::allocate(4096, HostMemoryOptions::default()).unwrap();
        refused(device.pin(&memory).unwrap_err(), "host_register");
        let segment = device.allocate(64).unwrap();
        refused(segment.export().unwrap_err(), "export_memory");
        assert_eq!((segment.address(), segment.host_pointer()), (None, None));
        let stream = device.create_stream(BLOCKING).unwrap();
        refused(stream.write_value(&segment, 0, 1).unwrap_err(), "write_value");
        refused(stream.wait_value(&segment, 0, 1).unwrap_err(), "wait_value");
        assert_eq!(stream.is_capturing().unwrap(), CaptureState::None);
        assert!(device.pinned_available().unwrap());
    }
}

#[test]
fn bytes_arrive_and_come_back() {
    for device in common::devices(KIND) {
        let stream = device.create_stream(BLOCKING).unwrap();
        let (a, b) = (device.allocate(MIB + 3).unwrap(), device.allocate(4096).unwrap());
        let bytes = pattern(10_000, 1);
        let ranges = [
            CopyRange { src_offset: 0, dst: &a, dst_offset: 5, len_bytes: 7000 },
            CopyRange { src_offset: 7000, dst: &b, dst_offset: 1000, len_bytes: 3000 },
        ];
        stream.copy_to_device(bytes.clone(), &ranges).unwrap();
        stream.copy_device_to_device(&b, 1000, &a, MIB - 3000, 3000).unwrap();
        // Within one buffer, not overlapping.
        stream.copy_device_to_device(&a, 5, &a, 8000, 7000).unwrap();
        let back = stream.copy_to_host(&a, 5, vec![0; 7000]).unwrap().wait().unwrap();
        assert_eq!(back, bytes[..7000]);
        let all = contents(&a);
        assert_eq!(all[8000..15_000], bytes[..7000]);
        assert_eq!(all[(MIB - 3000) as usize..MIB as usize], bytes[7000..]);
        assert_eq!((&all[..5], &all[MIB as usize..]), (&[0; 5][..], &[0; 3][..]));
        stream.synchronize().unwrap();
        assert_eq!(device.in_flight(), 0);
    }
}

#[test]
fn fills_of_any_place_and_length() {
    for device in common::devices(KIND) {
        let stream = device.create_stream(NON_BLOCKING).unwrap();
        for (offset, len) in [(0, 2000), (0, 1), (127, 2), (1, 126), (128, 128), (100, 300), (1999, 1)] {
            let segment = device.allocate(2000).unwrap();
            stream.fill(&segment, offset, len, 0x5A).unwrap();
            let (first, end) = (offset as usize, (offset + len) as usize);
            let is_right = |(i, byte): (usize, u8)| byte == if (first..end).contains(&i) { 0x5A } else { 0 };
            assert!(contents(&segment).into_iter().enumerate().all(is_right), "{offset} {len}");
        }
    }
}

#[test]
fn allocated_means_there() {
    for device in common::devices(KIND) {
        if !device.info().unified {
            eprintln!("not run: whether {} has touched its memory", device.info().name);
            continue;
        }
        let before = resident_bytes();
        let segment = device.allocate(192 * MIB).unwrap();
        let grown = resident_bytes().saturating_sub(before);
        assert!(grown > 160 * MIB, "{grown} bytes for a segment of {}", segment.len_bytes());
        assert_eq!(device.memory_in_use(), 192 * MIB);
    }
}

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn more_than_there_is_is_refused() {
    for device in common::devices(KIND) {
        let max = device.limits().segment_bytes_max;
        let error = device.allocate(max + 1).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::TooLarge { need: max + 1, max });
        let error = device.alloc_pinned(1 << 50).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::OutOfHostMemory { .. } | ErrorKind::TooLarge { .. }));
        let segment = device.allocate(4096).unwrap();
        assert_eq!(device.memory_in_use(), 4096);
        drop(segment);
        assert_eq!(device.memory_in_use(), 0);
    }
}

#[test]
fn pinned_memory_is_page_aligned_and_copied_both_ways() {
    for device in common::devices(KIND) {
        let stream = device.create_stream(BLOCKING).unwrap();
        let segment = device.allocate(MIB).unwrap();
        for len in [1_usize, 4095, 4097, MIB as usize] {
            let mut pinned = device.alloc_pinned(len as u64).unwrap();
            assert_eq!(pinned.as_slice().unwrap().as_ptr().addr() % 4096, 0);
            pinned.as_mut_slice().unwrap().copy_from_slice(&pattern(len, len));
            let range = CopyRange { src_offset: 0, dst: &segment, dst_offset: 0, len_bytes: len };
            stream.copy_to_device(pinned, &[range]).unwrap();
            let room = device.alloc_pinned(len as u64).unwrap();
            let back = stream.copy_to_host(&segment, 0, room).unwrap().wait().unwrap();
            assert_eq!(back.as_slice().unwrap(), pattern(len, len));
        }
        assert_eq!(device.counters().pageable_copies, 0);
        stream.synchronize().unwrap();
        assert_eq!(device.pinned_ranges(), 0);
    }
}

#[test]
fn copies_return_before_they_run_and_keep_their_memory() {
    borrowed(|raw, device| {
        let segment = device.allocate(64).unwrap();
        let (stream, gate) = held(raw, device, NON_BLOCKING);
        upload(&stream, &[7; 64], &segment);
        let read = stream.copy_to_host(&segment, 0, vec![0; 64]).unwrap();
        assert!(!read.query().unwrap());
        assert!(!stream.query().unwrap());
        // Entries: the copy, the read-back's event, the read-back.
        assert_eq!(device.in_flight(), 3);
        drop(stream);
        assert_eq!(device.in_flight(), 3);
        gate.open();
        assert_eq!(read.wait().unwrap(), vec![7; 64]);
        device.flush().unwrap();
        assert_eq!(device.in_flight(), 0);
    });
}

#[test]
fn a_wait_holds_another_stream_and_binds_to_the_record_it_saw() {
    borrowed(|raw, device| {
        let segment = device.allocate(64).unwrap();
        let event = device.create_event().unwrap();
        let other = device.create_stream(NON_BLOCKING).unwrap();
        assert_eq!(*other.wait(&event).unwrap_err().kind(), ErrorKind::NotRecorded);
        let (stream, gate) = held(raw, device, NON_BLOCKING);
        upload(&stream, &[1; 64], &segment);
        stream.record(&event).unwrap();
        assert!(!event.query().unwrap());
        other.wait(&event).unwrap();
        upload(&other, &[2; 64], &segment);
        // Recorded anew behind another gate: the wait is not held by that.
        let (second, second_gate) = held(raw, device, NON_BLOCKING);
        second.record(&event).unwrap();
        assert!(!has_passed(&other, SHORT));
        gate.open();
        assert!(has_passed(&other, LONG));
        assert!(!event.query().unwrap());
        second_gate.open();
        event.synchronize().unwrap();
        assert!(event.query().unwrap());
        assert_eq!(contents(&segment), [2; 64]);
    });
}

#[test]
fn the_default_stream_waits_for_blocking_streams_only() {
    borrowed(|raw, device| {
        let segment = device.allocate(64).unwrap();
        let check = |(stream, gate): (Stream, Gate<'_>), waits: bool| {
            let default = device.default_stream();
            upload(&default, &[9; 64], &segment);
            assert_eq!(has_passed(&default, if waits { SHORT } else { LONG }), !waits);
            gate.open();
            stream.synchronize().unwrap();
            default.synchronize().unwrap();
        };
        for (options, waits) in [(BLOCKING, true), (NON_BLOCKING, false)] {
            check(held(raw, device, options), waits);
            check(held_by_event(raw, device, device.create_stream(options).unwrap()), waits);
        }
    });
}

#[test]
fn blocking_streams_wait_for_the_default_stream() {
    borrowed(|raw, device| {
        let segment = device.allocate(64).unwrap();
        let (default, gate) = held_by_event(raw, device, device.default_stream());
        upload(&default, &[1; 64], &segment);
        let free = device.create_stream(NON_BLOCKING).unwrap();
        let blocking = device.create_stream(BLOCKING).unwrap();
        let room = device.allocate(64).unwrap();
        upload(&free, &[3; 64], &room);
        upload(&blocking, &[2; 64], &segment);
        assert!(has_passed(&free, LONG));
        assert!(!has_passed(&blocking, SHORT));
        gate.open();
        assert!(has_passed(&blocking, LONG));
        assert_eq!(contents(&segment), [2; 64]);
    });
}

#[test]
fn failed_dependencies_are_noticed_or_do_no_harm() {
    borrowed(|raw, device| {
        let segment = device.allocate(64).unwrap();
        let queue = raw.queue(0);
        let gate = raw.hold_by_write(queue);
        // SAFETY: a live queue of the device's context; the adoption keeps its own reference.
        let stream = unsafe { device.adopt_stream(lend(queue, 1), NON_BLOCKING) }.unwrap();
        raw.release_queue(queue);
        let event = device.create_event().unwrap();
        upload(&stream, &[1; 64], &segment);
        stream.record(&event).unwrap();
        gate.fail();
        match event.synchronize() {
            // Some runtimes go on behind a failure. Then what the driver calls done was done.
            Ok(()) => {
                stream.synchronize().unwrap();
                assert_eq!(contents(&segment), [1; 64]);
            }
            Err(error) => {
                assert_eq!(*error.kind(), ErrorKind::AsyncFailure, "{error}");
                assert_eq!(*event.query().unwrap_err().kind(), ErrorKind::AsyncFailure);
                assert_eq!(*stream.synchronize().unwrap_err().kind(), ErrorKind::AsyncFailure);
                assert_eq!(*stream.query().unwrap_err().kind(), ErrorKind::AsyncFailure);
            }
        }
        assert_eq!(device.in_flight(), 0);
        // The device goes on.
        let after = device.create_stream(NON_BLOCKING).unwrap();
        upload(&after, &[4; 64], &segment);
        after.synchronize().unwrap();
        assert_eq!(contents(&segment), [4; 64]);
    });
}

#[test]
fn lent_memory_is_used_in_its_place() {
    borrowed(|raw, device| {
        let buffer = raw.buffer(8 * KIB);
        // SAFETY: a live buffer of the device's context; the adoption keeps its own reference.
        let segment = unsafe { device.adopt_memory(lend(buffer, 4096), 4000) }.unwrap();
        // SAFETY: as above.
        let whole = unsafe { device.adopt_memory(lend(buffer, 0), 8192) }.unwrap();
        // SAFETY: as above.
        let beyond = unsafe { device.adopt_memory(lend(buffer, 4096), 4097) }.unwrap_err();
        assert!(matches!(beyond.kind(), ErrorKind::OutOfBounds { .. }), "{beyond}");
        // SAFETY: no pointer at all is noticed.
        let wrong = unsafe { device.adopt_memory(lend(std::ptr::null_mut(), 0), 1) }.unwrap_err();
        assert_eq!(*wrong.kind(), ErrorKind::InvalidArgument);
        raw.release_buffer(buffer);
        whole.fill(0, 8192, 1).unwrap();
        segment.write(0, &[2; 4000]).unwrap();
        let mut expected = vec![1; 8192];
        expected[4096..8096].fill(2);
        assert_eq!(contents(&whole), expected);
    });
}

#[test]
fn what_cannot_be_adopted_is_refused() {
    borrowed(|raw, device| {
        let stranger = Raw::new(device.info().index);
        let (queue, buffer) = (stranger.queue(0), stranger.buffer(64));
        // SAFETY: live objects, of another context.
        let error = unsafe { device.adopt_stream(lend(queue, 0), BLOCKING) }.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::WrongDevice);
        // SAFETY: as above.
        let error = unsafe { device.adopt_memory(lend(buffer, 0), 64) }.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::WrongDevice);
        stranger.release_queue(queue);
        stranger.release_buffer(buffer);
        let unordered = raw.queue(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
        // SAFETY: a live queue of the context.
        let error = unsafe { device.adopt_stream(lend(unordered, 0), BLOCKING) }.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::InvalidArgument);
        raw.release_queue(unordered);
    });
}

#[test]
fn nothing_leaks() {
    let Ok((probed, census)) = opencl::backend() else {
        common::backend(KIND);
        return;
    };
    for info in probed.devices() {
        let driver = Driver::new(vec![Probed::clone(&probed)]);
        let device = driver.open(&DeviceSelector::index(KIND, info.index)).unwrap();
        let idle = census.objects();
        assert_eq!(idle, Objects { contexts: 1, queues: 2, buffers: 0, events: 0, programs: 0, kernels: 0 });
        for round in 0..3 {
            let (stream, free) =
                (device.create_stream(BLOCKING).unwrap(), device.create_stream(NON_BLOCKING).unwrap());
            let segment = device.allocate(4096).unwrap();
            let pinned = device.alloc_pinned(4096).unwrap();
            let event = device.create_event().unwrap();
            for _ in 0..200 {
                upload(&stream, &[round; 64], &segment);
                stream.record(&event).unwrap();
                free.wait(&event).unwrap();
                upload(&free, &[round; 64], &segment);
                segment.write(64, &[round; 8]).unwrap();
            }
            // As many as there are things to remember, however often they were recorded.
            assert!(census.objects().events <= 8, "{:?}", census.objects());
            drop(stream.copy_to_host(&segment, 0, pinned).unwrap());
            assert!(device.alloc_pinned(u64::MAX / 4).is_err());
        }
        device.flush().unwrap();
        drop(device);
        assert_eq!(census.objects(), Objects::default());
    }
}

#[test]
fn what_was_retained_is_released() {
    let Some(probed) = common::backend(KIND) else { return };
    for info in probed.devices() {
        let raw = Raw::new(info.index);
        let (queue, buffer) = (raw.queue(0), raw.buffer(4096));
        let before = raw.references(queue, buffer);
        {
            let driver = Driver::new(vec![Probed::clone(&probed)]);
            // SAFETY: the context outlives the driver's use of it.
            let device = unsafe { driver.adopt(KIND, lend(raw.context, 0)) }.unwrap();
            // SAFETY: as above.
            let stream = unsafe { device.adopt_stream(lend(queue, 0), BLOCKING) }.unwrap();
            // SAFETY: as above.
            let segment = unsafe { device.adopt_memory(lend(buffer, 0), 4096) }.unwrap();
            let (other, own) = (device.create_stream(BLOCKING).unwrap(), device.allocate(4096).unwrap());
            let event = device.create_event().unwrap();
            for _ in 0..20 {
                upload(&stream, &[1; 64], &segment);
                stream.record(&event).unwrap();
                other.wait(&event).unwrap();
                upload(&other, &[1; 64], &own);
                own.write(0, &[2; 64]).unwrap();
            }
            drop(device.alloc_pinned(4096).unwrap());
            device.flush().unwrap();
            assert_ne!(raw.references(queue, buffer), before);
        }
        // A runtime lets go of what it has finished on threads of its own. On a queue that was used, PoCL was
        // seen to keep one reference, however much it was used.
        let is_released = || {
            let after = raw.references(queue, buffer);
            (after[0], after[2]) == (before[0], before[2]) && after[1] <= before[1] + 1
        };
        let begun = Instant::now();
        while !is_released() && begun.elapsed() < LONG {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(is_released(), "{}: {:?}, was {before:?}", info.name, raw.references(queue, buffer));
        raw.release_queue(queue);
        raw.release_buffer(buffer);
    }
}

#[test]
fn handles_may_be_dropped_in_any_order() {
    for device in common::devices(KIND) {
        let stream = device.create_stream(BLOCKING).unwrap();
        let segment = device.allocate(MIB).unwrap();
        drop(device);
        upload(&stream, &pattern(MIB as usize, 3), &segment);
        let read = stream.copy_to_host(&segment, 0, vec![0; MIB as usize]).unwrap();
        drop(stream);
        drop(segment);
        assert_eq!(read.wait().unwrap(), pattern(MIB as usize, 3));
    }
}

#[test]
fn threads_share_a_device() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 200;
    for device in common::devices(KIND) {
        let segments: Vec<_> = (0..THREADS).map(|_| device.allocate(4096).unwrap()).collect();
        std::thread::scope(|scope| {
            for (thread, segment) in segments.iter().enumerate() {
                let device = &device;
                scope.spawn(move || {
                    let options = StreamOptions { non_blocking: thread % 2 == 0, ..BLOCKING };
                    let stream = device.create_stream(options).unwrap();
                    for round in 0..ROUNDS {
                        let bytes = pattern(4096, thread * 1000 + round);
                        upload(&stream, &bytes, segment);
                        if round % 50 == 0 {
                            segment.write(0, &[0; 16]).unwrap();
                            upload(&stream, &bytes, segment);
                        }
                    }
                    stream.synchronize().unwrap();
                });
            }
        });
        for (thread, segment) in segments.iter().enumerate() {
            assert_eq!(contents(segment), pattern(4096, thread * 1000 + ROUNDS - 1));
        }
    }
}
