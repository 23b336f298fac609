//! Order within a stream, between streams, and against the default stream.

use std::thread;
use std::time::{Duration, Instant};

use spoc_driver::{CaptureState, Stream, StreamOptions, StreamPriority};

use crate::helpers::pattern;
use crate::subject::{download, upload};
use crate::{Hold, Subject, refused};

/// Long enough for a call to have returned if it did not wait.
const A_MOMENT: Duration = Duration::from_millis(20);

/// Work of one stream runs in the order in which it was enqueued.
pub fn streams_run_their_work_in_order(subject: &Subject) {
    let stream = subject.stream();
    let (a, b) = (subject.zeroes(4096), subject.zeroes(4096));
    for round in 0..64 {
        upload(&stream, pattern(round, 4096), &a);
        stream.copy_device_to_device(&a, 0, &b, 0, 4096).unwrap();
        upload(&stream, pattern(round + 1000, 4096), &a);
    }
    assert_eq!(download(&stream, &a), pattern(1063, 4096));
    assert_eq!(download(&stream, &b), pattern(63, 4096));
}

/// A copy on an explicit stream returns before it has run, where the device is asynchronous; otherwise it is
/// complete on return.
pub fn rule_13_stream_copies_are_enqueued_not_completed(subject: &Subject) {
    let (stream, segment) = (subject.stream(), subject.zeroes(4096));
    let hold = subject.hold(&stream);
    let is_asynchronous = subject.device.capabilities().async_copies.is_available();
    assert!(!hold.is_certain() || is_asynchronous, "a device that completes on return cannot be held");
    upload(&stream, pattern(1, 4096), &segment);
    let pending = stream.copy_to_host(&segment, 0, vec![0; 4096]).unwrap();
    hold.assert_pending(&stream);
    if hold.is_certain() {
        assert!(!pending.query().unwrap());
        assert!(subject.device.in_flight() >= 2);
    }
    if !is_asynchronous {
        assert!(stream.query().unwrap());
        assert!(pending.query().unwrap());
    }
    hold.open();
    assert_eq!(pending.wait().unwrap(), pattern(1, 4096));
}

/// The default stream's copies are complete on return.
pub fn rule_13_default_stream_copies_are_complete_on_return(subject: &Subject) {
    let segment = subject.zeroes(4096);
    for round in 0..16 {
        let bytes = pattern(round, 4096);
        segment.write(0, &bytes).unwrap();
        assert_eq!(subject.device.in_flight(), 0);
        assert_eq!(subject.contents(&segment), bytes);
    }
}

/// The default stream waits for blocking streams, whatever memory they work on.
pub fn rule_09_the_default_stream_waits_for_blocking_streams(subject: &Subject) {
    let (stream, segment) = (subject.stream(), subject.zeroes(4096));
    let hold = subject.hold(&stream);
    upload(&stream, pattern(2, 4096), &segment);
    let unrelated = subject.device.allocate(64).unwrap();
    let (read, written) = thread::scope(|scope| {
        let reader = scope.spawn(|| subject.contents(&segment));
        let writer = scope.spawn(|| unrelated.write(0, &[7; 64]));
        if hold.is_certain() {
            thread::sleep(A_MOMENT);
            assert!(!reader.is_finished(), "a read overtook a blocking stream");
            assert!(!writer.is_finished(), "a write overtook a blocking stream");
        }
        hold.open();
        (reader.join().unwrap(), writer.join().unwrap())
    });
    assert_eq!(read, pattern(2, 4096));
    written.unwrap();
}

/// Nothing has to be waited for by hand before the default stream sees what a blocking stream did.
pub fn rule_09_the_default_stream_sees_what_blocking_streams_did(subject: &Subject) {
    let segment = subject.zeroes(4096);
    let streams: Vec<_> = (0..3).map(|_| subject.stream()).collect();
    for round in 0..30 {
        let stream = &streams[round % 3];
        upload(stream, pattern(round as u64, 4096), &segment);
        assert_eq!(subject.contents(&segment), pattern(round as u64, 4096));
    }
}

/// Handles of the default stream, too, order themselves after blocking streams.
pub fn rule_09_default_stream_handles_order_themselves_after_blocking_streams(subject: &Subject) {
    let default = subject.device.default_stream();
    assert_eq!(default.id(), 0);
    let (stream, a, b) = (subject.stream(), subject.zeroes(1 << 20), subject.zeroes(1 << 20));
    for round in 0..8 {
        upload(&stream, pattern(round, 1 << 20), &a);
        default.copy_device_to_device(&a, 0, &b, 0, 1 << 20).unwrap();
        assert!(download(&default, &b) == pattern(round, 1 << 20), "the default stream ran too early");
    }
}

/// Waiting for an event, and recording one, are work of the default stream like any other: after blocking
/// streams, even if the event has long been reached.
pub fn rule_09_waits_and_records_of_the_default_stream_come_after_blocking_streams(subject: &Subject) {
    for is_wait in [true, false] {
        let (stream, next) = (subject.stream(), subject.stream());
        let event = subject.device.create_event().unwrap();
        let (a, b) = (subject.zeroes(4096), subject.zeroes(4096));
        subject.device.default_stream().record(&event).unwrap();
        event.synchronize().unwrap();
        let hold = subject.hold(&stream);
        upload(&stream, pattern(20, 4096), &a);
        thread::scope(|scope| {
            let device = &subject.device;
            let event = &event;
            // On devices whose default stream runs on the caller, the call itself waits.
            let caller = scope.spawn(move || {
                let default = device.default_stream();
                match is_wait {
                    true => default.wait(event).unwrap(),
                    false => default.record(event).unwrap(),
                }
            });
            thread::sleep(A_MOMENT);
            hold.open();
            caller.join().unwrap();
        });
        // Blocking streams come after the default stream, and so after the upload.
        next.copy_device_to_device(&a, 0, &b, 0, 4096).unwrap();
        assert_eq!(download(&next, &b), pattern(20, 4096), "wait: {is_wait}");
    }
}

/// Work of blocking streams that is enqueued after default-stream work runs after it.
pub fn rule_09_blocking_streams_wait_for_the_default_stream(subject: &Subject) {
    let default = subject.device.default_stream();
    let (stream, a, b) = (subject.stream(), subject.zeroes(1 << 20), subject.zeroes(1 << 20));
    for round in 0..8 {
        upload(&default, pattern(round, 1 << 20), &a);
        stream.copy_device_to_device(&a, 0, &b, 0, 1 << 20).unwrap();
        assert!(download(&stream, &b) == pattern(round, 1 << 20), "a blocking stream ran too early");
    }
}

/// The default stream does not wait for non-blocking streams that do not concern it.
pub fn rule_09_the_default_stream_does_not_wait_for_non_blocking_streams(subject: &Subject) {
    let (stream, segment) = (subject.free_stream(), subject.filled_with(&pattern(3, 64)));
    let (held, hold) = held_segment(subject, &stream);
    assert_eq!(subject.contents(&segment), pattern(3, 64));
    segment.write(0, &pattern(4, 64)).unwrap();
    assert_eq!(subject.contents(&segment), pattern(4, 64));
    hold.assert_pending(&stream);
    hold.open();
    assert_eq!(download(&stream, &held), pattern(50, 4096));
}

/// A segment with a pending upload of `pattern(50, 4096)` on a held stream.
fn held_segment(subject: &Subject, stream: &Stream) -> (spoc_driver::Segment, Hold) {
    let segment = subject.filled_with(&pattern(49, 4096));
    let hold = subject.hold(stream);
    upload(stream, pattern(50, 4096), &segment);
    (segment, hold)
}

/// A copy without a stream waits on the host for non-blocking streams whose work uses the same memory.
pub fn rule_10_copies_without_a_stream_settle_non_blocking_streams(subject: &Subject) {
    for is_read in [true, false] {
        let stream = subject.free_stream();
        let (segment, hold) = held_segment(subject, &stream);
        thread::scope(|scope| {
            let user = scope.spawn(|| match is_read {
                true => assert_eq!(subject.contents(&segment), pattern(50, 4096)),
                false => segment.write(0, &pattern(51, 4096)).unwrap(),
            });
            if hold.is_certain() {
                thread::sleep(A_MOMENT);
                assert!(!user.is_finished(), "not settled (read: {is_read})");
            }
            hold.open();
            user.join().unwrap();
        });
        let last = if is_read { 50 } else { 51 };
        assert_eq!(download(&stream, &segment), pattern(last, 4096));
    }
}

/// A stream passed explicitly is never settled, the default stream included: order is the caller's.
pub fn rule_10_explicit_streams_are_never_settled(subject: &Subject) {
    let (stream, other) = (subject.free_stream(), subject.free_stream());
    let (segment, hold) = held_segment(subject, &stream);
    if hold.is_certain() {
        assert_eq!(download(&other, &segment), pattern(49, 4096));
        assert_eq!(download(&subject.device.default_stream(), &segment), pattern(49, 4096));
        hold.assert_pending(&stream);
    }
    hold.open();
    assert_eq!(download(&stream, &segment), pattern(50, 4096));
}

/// A stream waits for no other stream that nobody told it to wait for.
pub fn streams_are_independent_of_each_other(subject: &Subject) {
    let (held, other) = (subject.stream(), subject.stream());
    let segment = subject.zeroes(64);
    let hold = subject.hold(&held);
    upload(&other, pattern(5, 64), &segment);
    other.synchronize().unwrap();
    hold.assert_pending(&held);
    assert!(other.query().unwrap());
    hold.open();
    held.synchronize().unwrap();
    assert_eq!(subject.contents(&segment), pattern(5, 64));
}

/// Querying never waits; synchronizing does, and afterwards the stream is idle.
pub fn streams_query_and_synchronize(subject: &Subject) {
    let (stream, segment) = (subject.stream(), subject.zeroes(64));
    assert!(stream.query().unwrap(), "a new stream is idle");
    stream.synchronize().unwrap();
    let hold = subject.hold(&stream);
    upload(&stream, pattern(6, 64), &segment);
    let before = Instant::now();
    let _ = stream.query().unwrap();
    assert!(before.elapsed() < Duration::from_secs(5), "a query waited");
    hold.assert_pending(&stream);
    hold.open();
    stream.synchronize().unwrap();
    assert!(stream.query().unwrap());
    assert_eq!(subject.device.in_flight(), 0);
}

/// Flushing waits for every stream of the device, dropped ones included, and retires everything.
pub fn rule_08_flush_waits_for_every_stream_and_retires(subject: &Subject) {
    let (blocking, free, dropped) = (subject.stream(), subject.free_stream(), subject.stream());
    let segments: Vec<_> = (0..3).map(|_| subject.zeroes(4096)).collect();
    let hold = subject.hold(&free);
    for (seed, stream) in [&blocking, &free, &dropped].into_iter().enumerate() {
        upload(stream, pattern(60 + seed as u64, 4096), &segments[seed]);
    }
    drop(dropped);
    thread::scope(|scope| {
        let flusher = scope.spawn(|| subject.device.flush());
        if hold.is_certain() {
            thread::sleep(A_MOMENT);
            assert!(!flusher.is_finished(), "flush did not wait for a non-blocking stream");
        }
        hold.open();
        flusher.join().unwrap().unwrap();
    });
    assert_eq!(subject.device.in_flight(), 0);
    assert!(blocking.query().unwrap() && free.query().unwrap());
    for (seed, segment) in segments.iter().enumerate() {
        assert_eq!(subject.contents(segment), pattern(60 + seed as u64, 4096));
    }
}

/// Streams have numbers of their own and remember how they were made; priority is a hint.
pub fn streams_are_told_apart_and_remember_their_options(subject: &Subject) {
    let mut ids = vec![subject.device.default_stream().id()];
    for priority in [StreamPriority::Low, StreamPriority::Normal, StreamPriority::High] {
        for non_blocking in [false, true] {
            let options = StreamOptions { non_blocking, priority };
            let stream = subject.device.create_stream(options).unwrap();
            assert_eq!(stream.options(), options);
            assert!(stream.device().is(&subject.device));
            assert!(!ids.contains(&stream.id()));
            ids.push(stream.id());
            let segment = subject.zeroes(64);
            upload(&stream, pattern(7, 64), &segment);
            assert_eq!(download(&stream, &segment), pattern(7, 64));
        }
    }
}

/// Whether a stream is captured is answered, or refused by name.
pub fn streams_say_whether_they_are_captured(subject: &Subject) {
    let stream = subject.stream();
    match stream.is_capturing() {
        Ok(state) => assert_eq!(state, CaptureState::None),
        Err(error) => {
            assert!(!subject.device.capabilities().stream_capture.is_available());
            refused::<(), _>(Err(error), "unsupported");
        }
    }
}

/// Streams can be made and dropped all day.
pub fn streams_come_and_go(subject: &Subject) {
    let segment = subject.zeroes(512);
    for round in 0..48_u64 {
        let stream = if round % 2 == 0 { subject.stream() } else { subject.free_stream() };
        upload(&stream, pattern(round, 512), &segment);
        if round % 3 == 0 {
            stream.synchronize().unwrap();
        }
        drop(stream);
        assert_eq!(subject.contents(&segment), pattern(round, 512));
    }
    subject.device.flush().unwrap();
    assert_eq!(subject.device.in_flight(), 0);
}
