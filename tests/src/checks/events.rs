//! Events: recording, waiting, and what they let go.

use std::thread;

use crate::helpers::{Drops, pattern};
use crate::subject::{download, upload, whole};
use crate::{Subject, refused};

/// An event that was never recorded is refused by everything that looks at it.
pub fn events_never_recorded_are_refused(subject: &Subject) {
    let (event, stream) = (subject.device.create_event().unwrap(), subject.stream());
    assert!(!event.is_recorded());
    refused(event.query(), "not_recorded");
    refused(event.synchronize(), "not_recorded");
    refused(stream.wait(&event), "not_recorded");
    refused(subject.device.default_stream().wait(&event), "not_recorded");
    assert_eq!(subject.device.in_flight(), 0, "a refused wait was enqueued");
    stream.record(&event).unwrap();
    assert!(event.is_recorded());
    event.synchronize().unwrap();
    assert!(event.query().unwrap());
    stream.wait(&event).unwrap();
    stream.synchronize().unwrap();
}

/// An event stands for everything enqueued before its record, and for nothing after it.
pub fn events_stand_for_what_was_enqueued_before(subject: &Subject) {
    let (stream, segment) = (subject.stream(), subject.zeroes(64));
    let event = subject.device.create_event().unwrap();
    upload(&stream, pattern(1, 64), &segment);
    stream.record(&event).unwrap();
    event.synchronize().unwrap();
    let hold = subject.hold(&stream);
    assert!(event.query().unwrap(), "later work moved the event");
    event.synchronize().unwrap();
    upload(&stream, pattern(2, 64), &segment);
    stream.record(&event).unwrap();
    if hold.is_certain() {
        assert!(!event.query().unwrap(), "an event was reached before the work in front of it ran");
    }
    hold.open();
    event.synchronize().unwrap();
    assert!(event.query().unwrap());
    assert_eq!(subject.contents(&segment), pattern(2, 64));
}

/// Recording an event on an idle stream reaches it at once, or nearly.
pub fn events_on_an_idle_stream_are_reached(subject: &Subject) {
    for stream in [subject.stream(), subject.free_stream(), subject.device.default_stream()] {
        let event = subject.device.create_event().unwrap();
        stream.record(&event).unwrap();
        while !event.query().unwrap() {
            thread::yield_now();
        }
    }
}

/// A stream that waits for another's event sees what that one did, without the host.
pub fn events_order_streams_without_the_host(subject: &Subject) {
    let (copy, compute) = (subject.free_stream(), subject.free_stream());
    let ready = subject.device.create_event().unwrap();
    let (slot, result) = (subject.zeroes(4096), subject.zeroes(4096));
    for round in 0..32 {
        let hold = (round % 8 == 0).then(|| subject.hold(&copy));
        upload(&copy, pattern(round, 4096), &slot);
        copy.record(&ready).unwrap();
        compute.wait(&ready).unwrap();
        compute.copy_device_to_device(&slot, 0, &result, 0, 4096).unwrap();
        if let Some(hold) = hold {
            hold.assert_pending(&compute);
            hold.open();
        }
        assert_eq!(download(&compute, &result), pattern(round, 4096));
        // The slot is used again: the copy stream has to wait in turn.
        compute.record(&ready).unwrap();
        copy.wait(&ready).unwrap();
    }
    copy.synchronize().unwrap();
}

/// A wait binds to the record that was latest when it was enqueued; recording again does not move it.
pub fn events_a_wait_binds_to_the_latest_record_at_the_call(subject: &Subject) {
    let (held, idle, waiter) = (subject.free_stream(), subject.free_stream(), subject.free_stream());
    let event = subject.device.create_event().unwrap();
    let (segment, result) = (subject.zeroes(4096), subject.zeroes(4096));

    // Recorded behind a hold, then again on an idle stream: the wait still is for the first.
    let hold = subject.hold(&held);
    upload(&held, pattern(3, 4096), &segment);
    held.record(&event).unwrap();
    waiter.wait(&event).unwrap();
    waiter.copy_device_to_device(&segment, 0, &result, 0, 4096).unwrap();
    idle.record(&event).unwrap();
    event.synchronize().unwrap();
    hold.assert_pending(&waiter);
    hold.open();
    assert_eq!(download(&waiter, &result), pattern(3, 4096));

    // Recorded on an idle stream, then again behind a hold: the wait is over all the same.
    idle.record(&event).unwrap();
    waiter.wait(&event).unwrap();
    let hold = subject.hold(&held);
    held.record(&event).unwrap();
    waiter.synchronize().unwrap();
    if hold.is_certain() {
        assert!(!event.query().unwrap(), "the event did not move to its later record");
    }
    hold.open();
    event.synchronize().unwrap();
}

/// Two branches from one event join in another stream: it sees both.
pub fn events_diamonds_join(subject: &Subject) {
    let streams: Vec<_> = (0..4).map(|_| subject.free_stream()).collect();
    let [top, left, right, bottom] = &streams[..] else { unreachable!() };
    let events: Vec<_> = (0..3).map(|_| subject.device.create_event().unwrap()).collect();
    let [forked, left_done, right_done] = &events[..] else { unreachable!() };
    let (source, halves, joined) = (subject.zeroes(8192), subject.zeroes(8192), subject.zeroes(8192));
    for round in 0..16 {
        let hold = (round % 5 == 0).then(|| subject.hold(top));
        upload(top, pattern(round, 8192), &source);
        top.record(forked).unwrap();
        for (branch, done, half) in [(left, left_done, 0), (right, right_done, 4096)] {
            branch.wait(forked).unwrap();
            branch.copy_device_to_device(&source, half, &halves, 4096 - half, 4096).unwrap();
            branch.record(done).unwrap();
            bottom.wait(done).unwrap();
        }
        bottom.copy_device_to_device(&halves, 0, &joined, 0, 8192).unwrap();
        drop(hold);
        let mut expected = pattern(round, 8192);
        expected.rotate_left(4096);
        assert_eq!(download(bottom, &joined), expected);
        // Everything of this round is over, so the next one may overwrite.
    }
}

/// A long chain of waits over a few streams.
pub fn events_chains_hand_on(subject: &Subject) {
    let streams: Vec<_> = (0..3).map(|_| subject.free_stream()).collect();
    let events: Vec<_> = (0..3).map(|_| subject.device.create_event().unwrap()).collect();
    let segments: Vec<_> = (0..3).map(|_| subject.zeroes(256)).collect();
    let hold = subject.hold(&streams[0]);
    upload(&streams[0], pattern(9, 256), &segments[0]);
    for link in 0..60 {
        let (here, next) = (link % 3, (link + 1) % 3);
        streams[here].record(&events[here]).unwrap();
        streams[next].wait(&events[here]).unwrap();
        streams[next].copy_device_to_device(&segments[here], 0, &segments[next], 0, 256).unwrap();
    }
    hold.assert_pending(&streams[0]);
    hold.open();
    subject.device.flush().unwrap();
    for segment in &segments {
        assert_eq!(subject.contents(segment), pattern(9, 256));
    }
}

/// Waiting for an event of one's own stream changes nothing.
pub fn events_of_the_own_stream_do_not_lock_it_up(subject: &Subject) {
    let (stream, segment) = (subject.stream(), subject.zeroes(64));
    let event = subject.device.create_event().unwrap();
    for round in 0..8 {
        upload(&stream, pattern(round, 64), &segment);
        stream.record(&event).unwrap();
        stream.wait(&event).unwrap();
        stream.wait(&event).unwrap();
    }
    assert_eq!(download(&stream, &segment), pattern(7, 64));
}

/// The default stream can wait for an event of a non-blocking stream.
pub fn events_the_default_stream_waits_for_them(subject: &Subject) {
    let (stream, segment) = (subject.free_stream(), subject.zeroes(4096));
    let event = subject.device.create_event().unwrap();
    let hold = subject.hold(&stream);
    upload(&stream, pattern(10, 4096), &segment);
    stream.record(&event).unwrap();
    let device = &subject.device;
    let read = thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let default = device.default_stream();
            default.wait(&event).unwrap();
            download(&default, &segment)
        });
        if hold.is_certain() {
            thread::sleep(std::time::Duration::from_millis(20));
            assert!(!reader.is_finished());
        }
        hold.open();
        reader.join().unwrap()
    });
    assert_eq!(read, pattern(10, 4096));
}

/// A true query lets go of what was kept for the work before the record, and of that alone.
pub fn rule_08_a_true_event_query_releases_what_was_kept(subject: &Subject) {
    let (stream, segment, drops) = (subject.stream(), subject.zeroes(64), Drops::default());
    let (first, second) = (subject.device.create_event().unwrap(), subject.device.create_event().unwrap());
    stream.copy_to_device(drops.watch(pattern(1, 64)), &[whole(64, &segment)]).unwrap();
    stream.record(&first).unwrap();
    let hold = subject.hold(&stream);
    stream.copy_to_device(drops.watch(pattern(2, 64)), &[whole(64, &segment)]).unwrap();
    stream.record(&second).unwrap();
    if hold.is_certain() {
        while !first.query().unwrap() {
            thread::yield_now();
        }
        assert_eq!(drops.count(), 1, "only the work before the record has run");
        assert!(!second.query().unwrap());
        assert_eq!(drops.count(), 1, "a false query let go of something");
    }
    hold.open();
    while !second.query().unwrap() {
        thread::yield_now();
    }
    assert_eq!(drops.count(), 2);
    assert_eq!(subject.device.in_flight(), 0);
}

/// So does waiting for an event on the host.
pub fn rule_08_synchronizing_an_event_releases_what_was_kept(subject: &Subject) {
    let (stream, segment, drops) = (subject.stream(), subject.zeroes(64), Drops::default());
    let event = subject.device.create_event().unwrap();
    for _ in 0..3 {
        stream.copy_to_device(drops.watch(pattern(1, 64)), &[whole(64, &segment)]).unwrap();
    }
    stream.record(&event).unwrap();
    let hold = subject.hold(&stream);
    stream.copy_to_device(drops.watch(pattern(2, 64)), &[whole(64, &segment)]).unwrap();
    event.synchronize().unwrap();
    assert!(drops.count() >= 3, "{} of 3 let go", drops.count());
    if hold.is_certain() {
        assert_eq!(drops.count(), 3, "what has not run was let go");
    }
    hold.open();
    stream.synchronize().unwrap();
    assert_eq!(drops.count(), 4);
}

/// Clones are the same event, and any thread may wait for them.
pub fn events_clones_are_the_same_event(subject: &Subject) {
    let (stream, segment) = (subject.stream(), subject.zeroes(4096));
    let event = subject.device.create_event().unwrap();
    let clone = event.clone();
    let hold = subject.hold(&stream);
    upload(&stream, pattern(11, 4096), &segment);
    stream.record(&event).unwrap();
    drop(event);
    assert!(clone.is_recorded());
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let event = clone.clone();
            thread::spawn(move || event.synchronize())
        })
        .collect();
    hold.open();
    for waiter in waiters {
        waiter.join().unwrap().unwrap();
    }
    assert!(clone.query().unwrap());
    assert_eq!(subject.contents(&segment), pattern(11, 4096));
}

/// Events of another device are refused.
pub fn events_of_another_device_are_refused(subject: &Subject) {
    let other = subject.other_device();
    let (stream, foreign_stream) = (subject.stream(), other.create_stream(Default::default()).unwrap());
    let (event, foreign) = (subject.device.create_event().unwrap(), other.create_event().unwrap());
    refused(stream.record(&foreign), "wrong_device");
    assert!(!foreign.is_recorded());
    foreign_stream.record(&foreign).unwrap();
    refused(stream.wait(&foreign), "wrong_device");
    refused(foreign_stream.record(&event), "wrong_device");
    foreign.synchronize().unwrap();
    stream.synchronize().unwrap();
}

/// Events come and go by the thousand.
pub fn events_come_and_go(subject: &Subject) {
    let (stream, waiter, segment) = (subject.stream(), subject.free_stream(), subject.zeroes(64));
    for round in 0..300 {
        let event = subject.device.create_event().unwrap();
        if round % 10 == 0 {
            upload(&stream, pattern(round, 64), &segment);
        }
        stream.record(&event).unwrap();
        waiter.wait(&event).unwrap();
        // Dropped while the waiting stream may still need it.
    }
    waiter.synchronize().unwrap();
    stream.synchronize().unwrap();
    assert_eq!(subject.device.in_flight(), 0);
    assert_eq!(subject.contents(&segment), pattern(290, 64));
}
