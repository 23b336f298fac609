//! What enqueued work needs stays, what it does not need goes, in whatever order things are dropped.
#![cfg(feature = "fake")]
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{NON_BLOCKING, assert_clean, deferred, driven, stream, whole};
use spoc_driver::fake::Step;
use spoc_driver::{CopyRange, ErrorKind, HostSource, StreamOptions};

/// A source that counts its drops.
struct Counted {
    bytes: Vec<u8>,
    drops: Arc<AtomicUsize>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Ordering::SeqCst);
    }
}

// SAFETY: the vector's bytes stay in place and unmodified until the value is dropped.
unsafe impl HostSource for Counted {
    fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }

    fn len_bytes(&self) -> usize {
        self.bytes.len()
    }
}

#[test]
fn copies_run_when_the_test_lets_them_and_in_order() {
    let (device, control) = deferred();
    let stream = stream(&device);
    let segment = device.allocate(8).unwrap();
    stream.copy_to_device(control.source(vec![1; 8]), &[whole(&segment, 8)]).unwrap();
    stream.copy_to_device(control.source(vec![2; 4]), &[whole(&segment, 4)]).unwrap();
    let name = control.stream(&stream);
    assert_eq!(control.peek(&segment, 0, 8), [0xDB; 8]);
    assert_eq!(control.step(name), Step::Ran);
    assert_eq!(control.peek(&segment, 0, 8), [1; 8]);
    assert_eq!(control.step(name), Step::Ran);
    assert_eq!(control.peek(&segment, 0, 8), [2, 2, 2, 2, 1, 1, 1, 1]);
    assert_eq!(control.step(name), Step::Idle);
    drop((device, stream, segment));
    assert_clean(&control);
}

#[test]
fn an_event_retires_what_came_before_it_and_nothing_else() {
    let (device, control) = deferred();
    let stream = stream(&device);
    let segment = device.allocate(8).unwrap();
    let event = device.create_event().unwrap();
    let drops = Arc::new(AtomicUsize::new(0));
    let source = || Counted { bytes: vec![7; 8], drops: Arc::clone(&drops) };
    stream.copy_to_device(source(), &[whole(&segment, 8)]).unwrap();
    stream.copy_to_device(source(), &[whole(&segment, 8)]).unwrap();
    stream.record(&event).unwrap();
    stream.copy_to_device(source(), &[whole(&segment, 8)]).unwrap();
    assert!(!event.query().unwrap());
    assert_eq!(drops.load(Ordering::SeqCst), 0);
    assert!(control.run_until(&event));
    // Completion alone drops nothing: that is the retiring thread's to do.
    assert_eq!(drops.load(Ordering::SeqCst), 0);
    assert!(event.query().unwrap());
    assert_eq!(drops.load(Ordering::SeqCst), 2);
    assert_eq!(device.in_flight(), 1);
    control.run_all();
    assert!(stream.query().unwrap());
    assert_eq!(drops.load(Ordering::SeqCst), 3);
    assert_eq!(device.in_flight(), 0);
    drop((event, device, stream, segment));
    assert_clean(&control);
}

#[test]
fn a_dropped_stream_hands_its_work_over() {
    let (device, control) = deferred();
    let segment = device.allocate(4).unwrap();
    let stream = stream(&device);
    stream.copy_to_device(control.source(vec![9; 4]), &[whole(&segment, 4)]).unwrap();
    drop(stream);
    assert_eq!(control.live().streams, 1);
    assert_eq!(device.in_flight(), 1);
    control.run_all();
    assert_eq!(device.in_flight(), 0);
    assert_eq!(control.live().streams, 0);
    assert_eq!(control.peek(&segment, 0, 4), [9; 4]);
    drop((device, segment));
    assert_clean(&control);
}

#[test]
fn a_segment_lives_until_its_last_pending_copy() {
    let (device, control) = deferred();
    let stream = stream(&device);
    let segment = device.allocate(4096).unwrap();
    stream.copy_to_device(control.source(vec![9; 4]), &[whole(&segment, 4)]).unwrap();
    drop(segment);
    assert_eq!(control.live().segments, 1);
    assert_eq!(device.memory_in_use(), 4096);
    control.run_all();
    assert_eq!(device.memory_in_use(), 0);
    assert_eq!(control.live().segments, 0);
    drop((device, stream));
    assert_clean(&control);
}

#[test]
fn everything_dropped_at_once_waits_for_the_device() {
    let (device, control) = deferred();
    let stream = stream(&device);
    let segment = device.allocate(4).unwrap();
    let event = device.create_event().unwrap();
    stream.copy_to_device(control.source(vec![9; 4]), &[whole(&segment, 4)]).unwrap();
    stream.record(&event).unwrap();
    drop((segment, device, event, stream));
    assert_clean(&control);
}

#[test]
fn a_segment_alone_still_reads_and_writes() {
    let (device, control) = driven();
    let segment = device.allocate(4).unwrap();
    let id = device.info().uuid;
    drop(device);
    segment.write(0, &[1, 2, 3, 4]).unwrap();
    let mut bytes = [0; 2];
    segment.read(1, &mut bytes).unwrap();
    assert_eq!(bytes, [2, 3]);
    assert_eq!(segment.device().info().uuid, id);
    drop(segment);
    assert_clean(&control);
}

#[test]
fn a_wait_keeps_the_record_it_saw() {
    let (device, control) = deferred();
    let (a, b, c) = (stream(&device), stream(&device), stream(&device));
    let segment = device.allocate(4).unwrap();
    let event = device.create_event().unwrap();
    a.copy_to_device(vec![1; 4], &[whole(&segment, 4)]).unwrap();
    a.record(&event).unwrap();
    b.wait(&event).unwrap();
    b.copy_to_device(vec![2; 4], &[whole(&segment, 4)]).unwrap();
    // Recorded again on an idle stream: reached at once, which must not release `b`.
    c.record(&event).unwrap();
    assert!(event.query().unwrap());
    assert_eq!(control.step(control.stream(&b)), Step::Blocked);
    assert_eq!(control.run(control.stream(&a)), 1);
    assert_eq!(control.run(control.stream(&b)), 2);
    assert_eq!(control.peek(&segment, 0, 4), [2; 4]);
    // The first record's work was on `a`: the second record has not retired it.
    drop(event);
    assert_eq!(device.in_flight(), 0);
    drop((a, b, c, device, segment));
    assert_clean(&control);
}

#[test]
fn a_read_back_comes_back_only_when_it_has_run() {
    let (device, control) = deferred();
    let stream = stream(&device);
    let segment = device.allocate(4).unwrap();
    stream.copy_to_device(vec![1, 2, 3, 4], &[whole(&segment, 4)]).unwrap();
    let pending = stream.copy_to_host(&segment, 1, control.source(vec![0; 3])).unwrap();
    assert!(!pending.query().unwrap());
    control.run_all();
    assert!(pending.query().unwrap());
    assert_eq!(pending.wait().unwrap().bytes(), [2, 3, 4]);
    assert_eq!(device.in_flight(), 0);
    drop((stream, device, segment));
    assert_clean(&control);
}

#[test]
fn an_abandoned_read_back_keeps_its_memory_until_it_has_run() {
    let (device, control) = deferred();
    let stream = stream(&device);
    let segment = device.allocate(4).unwrap();
    drop(stream.copy_to_host(&segment, 0, control.source(vec![0; 4])).unwrap());
    let after_the_run = stream.copy_to_host(&segment, 0, control.source(vec![0; 4])).unwrap();
    control.run_all();
    assert!(stream.query().unwrap());
    drop(after_the_run);
    assert_eq!(device.in_flight(), 0);
    drop((stream, device, segment));
    assert_clean(&control);
}

#[test]
fn a_read_back_that_others_retired_is_kept_for_its_owner() {
    let (device, control) = deferred();
    let stream = stream(&device);
    let segment = device.allocate(4).unwrap();
    let first = stream.copy_to_host(&segment, 0, vec![0; 4]).unwrap();
    let second = stream.copy_to_host(&segment, 0, vec![0; 2]).unwrap();
    control.run_all();
    stream.synchronize().unwrap();
    assert_eq!(device.in_flight(), 0);
    assert_eq!(second.wait().unwrap(), [0xDB; 2]);
    assert_eq!(first.wait().unwrap(), [0xDB; 4]);
    drop((stream, device, segment));
    assert_clean(&control);
}

#[test]
fn flush_waits_for_every_stream() {
    let (device, control) = driven();
    let (a, b) = (stream(&device), device.create_stream(NON_BLOCKING).unwrap());
    let segment = device.allocate(8).unwrap();
    for stream in [&a, &b] {
        stream.copy_to_device(control.source(vec![1; 8]), &[whole(&segment, 8)]).unwrap();
    }
    device.flush().unwrap();
    assert_eq!((device.in_flight(), control.pending()), (0, 0));
    drop((a, b, device, segment));
    assert_clean(&control);
}

#[test]
fn the_default_stream_waits_for_blocking_streams_only() {
    let (device, control) = driven();
    let (blocking, other) = (stream(&device), device.create_stream(NON_BLOCKING).unwrap());
    let (segment, elsewhere) = (device.allocate(4).unwrap(), device.allocate(4).unwrap());
    blocking.copy_to_device(vec![1; 4], &[whole(&segment, 4)]).unwrap();
    other.copy_to_device(vec![2; 4], &[whole(&elsewhere, 4)]).unwrap();
    let mut bytes = [0; 4];
    segment.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [1; 4]);
    assert_eq!(control.pending_on(control.stream(&other)), 1);
    // Settled: the non-blocking stream's work uses this segment.
    elsewhere.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [2; 4]);
    drop((blocking, other, device, segment, elsewhere));
    assert_clean(&control);
}

#[test]
fn a_passed_default_stream_is_not_settled() {
    let (device, control) = driven();
    let other = device.create_stream(NON_BLOCKING).unwrap();
    let segment = device.allocate(4).unwrap();
    other.copy_to_device(vec![2; 4], &[whole(&segment, 4)]).unwrap();
    let default = device.default_stream();
    default.copy_to_device(vec![1; 4], &[whole(&segment, 4)]).unwrap();
    assert_eq!(control.peek(&segment, 0, 4), [1; 4]);
    assert_eq!(control.pending_on(control.stream(&other)), 1);
    drop((other, default, device, segment));
    assert_clean(&control);
}

#[test]
fn ranges_of_one_source_go_where_they_belong() {
    let (device, control) = deferred();
    let stream = stream(&device);
    let (a, b) = (device.allocate(8).unwrap(), device.allocate(8).unwrap());
    let ranges = [
        CopyRange { src_offset: 0, dst: &a, dst_offset: 4, len_bytes: 2 },
        CopyRange { src_offset: 2, dst: &b, dst_offset: 0, len_bytes: 3 },
        CopyRange { src_offset: 5, dst: &a, dst_offset: 0, len_bytes: 1 },
    ];
    stream.copy_to_device(control.source((0..6).collect()), &ranges).unwrap();
    assert_eq!(device.in_flight(), 1);
    control.run_all();
    assert_eq!(control.peek(&a, 0, 8), [5, 0xDB, 0xDB, 0xDB, 0, 1, 0xDB, 0xDB]);
    assert_eq!(control.peek(&b, 0, 3), [2, 3, 4]);
    drop((stream, device, a, b));
    assert_clean(&control);
}

#[test]
fn a_refused_copy_gives_its_source_back_unused() {
    let (device, control) = driven();
    let stream = stream(&device);
    let segment = device.allocate(8).unwrap();
    // The second of three is refused when the first is on its way: nothing may be left running on it.
    control.refuse_copy(2);
    let ranges = [0, 1, 2].map(|at| CopyRange { src_offset: at, dst: &segment, dst_offset: 0, len_bytes: 1 });
    let returned = stream.copy_to_device(control.source(vec![3; 8]), &ranges).unwrap_err();
    assert_eq!(*returned.error.kind(), ErrorKind::Backend);
    assert_eq!(control.pending(), 0);
    assert_eq!(returned.source.bytes(), [3; 8]);
    assert_eq!(device.in_flight(), 0);
    // And the stream goes on.
    stream.copy_to_device(returned.source, &[whole(&segment, 8)]).unwrap();
    stream.synchronize().unwrap();
    drop((stream, device, segment));
    assert_clean(&control);
}

#[test]
fn a_stream_that_nobody_watches_does_not_keep_everything() {
    let (device, control) = deferred();
    let segment = device.allocate(4).unwrap();
    for stream in [stream(&device), device.default_stream()] {
        let name = control.stream(&stream);
        let drops = Arc::new(AtomicUsize::new(0));
        for round in 1..=20_000 {
            let source = Counted { bytes: vec![7; 4], drops: Arc::clone(&drops) };
            stream.copy_to_device(source, &[whole(&segment, 4)]).unwrap();
            // The device keeps up but for the last few; nobody waits, queries or collects.
            while control.pending_on(name) > 10 {
                control.step(name);
            }
            let kept = round - drops.load(Ordering::SeqCst);
            assert!(kept < 2200, "{kept} kept after {round}");
        }
        control.run(name);
    }
    drop((segment, device));
    assert_clean(&control);
}

#[test]
fn reserved_streams_take_as_much_as_they_were_told() {
    let (device, control) = deferred();
    let stream = device.create_stream(StreamOptions::default()).unwrap();
    stream.reserve(1000, 1);
    let segment = device.allocate(4).unwrap();
    for _ in 0..1000 {
        stream.copy_to_device(vec![1; 4], &[whole(&segment, 4)]).unwrap();
    }
    assert_eq!(device.in_flight(), 1000);
    control.run_all();
    assert_eq!(device.in_flight(), 0);
    drop((stream, device, segment));
    assert_clean(&control);
}
