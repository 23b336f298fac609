//! Devices, segments and events are shared by threads; streams move between them.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use spoc_driver::{Device, DeviceVector, Driver, Event, HostMemory, HostMemoryOptions, Segment, Stream};

use crate::Subject;
use crate::helpers::{Drops, pattern};
use crate::subject::{download, upload, whole};

/// What may be shared is, and what may move does, by type.
pub fn rule_07_types_say_what_threads_may_share(_: &Subject) {
    fn shared<T: Send + Sync>() {}
    fn moved<T: Send>() {}
    shared::<Driver>();
    shared::<Device>();
    shared::<Segment>();
    shared::<Event>();
    shared::<HostMemory>();
    moved::<Stream>();
    moved::<DeviceVector<f32>>();
}

/// Every thread has its own stream and works on its own part of one segment.
pub fn threads_work_on_parts_of_one_segment(subject: &Subject) {
    const PART: usize = 4096;
    let segment = subject.zeroes(4 * PART);
    let barrier = Barrier::new(4);
    thread::scope(|scope| {
        for worker in 0..4_u64 {
            let (segment, barrier) = (&segment, &barrier);
            scope.spawn(move || {
                let stream = if worker % 2 == 0 { subject.stream() } else { subject.free_stream() };
                let offset = worker * PART as u64;
                barrier.wait();
                for round in 0..40 {
                    let bytes = pattern(worker * 1000 + round, PART);
                    let range = spoc_driver::CopyRange { dst_offset: offset, ..whole(PART, segment) };
                    stream.copy_to_device(bytes.clone(), &[range]).unwrap();
                    let back = stream.copy_to_host(segment, offset, vec![0; PART]).unwrap();
                    assert_eq!(back.wait().unwrap(), bytes);
                }
            });
        }
    });
    let contents = subject.contents(&segment);
    for worker in 0..4 {
        assert_eq!(contents[worker * PART..][..PART], pattern(worker as u64 * 1000 + 39, PART));
    }
}

/// A stream goes on in another thread where it was left.
pub fn threads_streams_move(subject: &Subject) {
    let (mut stream, segment) = (subject.stream(), subject.zeroes(64));
    for round in 0..8 {
        upload(&stream, pattern(round, 64), &segment);
        stream = thread::scope(|scope| {
            let next = scope.spawn(|| {
                assert_eq!(download(&stream, &segment), pattern(round, 64));
                stream
            });
            next.join().unwrap()
        });
    }
}

/// Events hand work from thread to thread.
pub fn threads_hand_work_over_by_events(subject: &Subject) {
    let (producer, consumer) = (subject.free_stream(), subject.free_stream());
    let (segment, result) = (subject.zeroes(4096), subject.zeroes(4096));
    let (ready, done) = (subject.device.create_event().unwrap(), subject.device.create_event().unwrap());
    let (to_consumer, from_producer) = std::sync::mpsc::sync_channel::<u64>(0);
    let (to_producer, from_consumer) = std::sync::mpsc::sync_channel::<()>(0);
    thread::scope(|scope| {
        let (segment, result, ready, done) = (&segment, &result, &ready, &done);
        scope.spawn(move || {
            for round in 0..30 {
                upload(&producer, pattern(round, 4096), segment);
                producer.record(ready).unwrap();
                to_consumer.send(round).unwrap();
                from_consumer.recv().unwrap();
                producer.wait(done).unwrap();
            }
            producer.synchronize().unwrap();
        });
        scope.spawn(move || {
            for round in from_producer {
                consumer.wait(ready).unwrap();
                consumer.copy_device_to_device(segment, 0, result, 0, 4096).unwrap();
                consumer.record(done).unwrap();
                to_producer.send(()).unwrap();
                assert_eq!(download(&consumer, result), pattern(round, 4096));
            }
        });
    });
}

/// Allocating, pinning, querying, collecting and flushing in the middle of others' copies.
pub fn threads_ledger_and_registry_are_shared(subject: &Subject) {
    let device = &subject.device;
    let (is_over, drops) = (AtomicBool::new(false), Drops::default());
    let has_pin = device.capabilities().host_register.is_available();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                device.flush().unwrap();
                device.collect();
                let _ = (device.in_flight(), device.memory_in_use(), device.pinned_ranges());
                thread::yield_now();
            }
        });
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let memory = HostMemory::allocate(4096, HostMemoryOptions::default()).unwrap();
                if has_pin {
                    drop(device.pin(&memory).unwrap());
                }
                drop(device.allocate(4096).unwrap());
                drop(subject.stream());
            }
        });
        let workers: Vec<_> = (0..2)
            .map(|worker| {
                let (drops, segment) = (&drops, subject.zeroes(4096));
                scope.spawn(move || {
                    let stream = subject.stream();
                    for round in 0..150 {
                        let bytes = pattern(worker * 500 + round, 4096);
                        stream.copy_to_device(drops.watch(bytes), &[whole(4096, &segment)]).unwrap();
                        if round % 10 == 0 {
                            let back = download(&stream, &segment);
                            assert_eq!(back, pattern(worker * 500 + round, 4096));
                        }
                    }
                    stream.synchronize().unwrap();
                })
            })
            .collect();
        let failed = workers.into_iter().filter_map(|worker| worker.join().err()).count();
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(failed, 0);
    });
    assert_eq!(drops.count(), 300);
    assert_eq!(device.in_flight(), 0);
    assert_eq!(device.pinned_ranges(), 0);
}

/// Two threads use the default stream at once: each call is whole.
pub fn threads_share_the_default_stream(subject: &Subject) {
    let segments = [subject.zeroes(8192), subject.zeroes(8192)];
    thread::scope(|scope| {
        for (worker, segment) in segments.iter().enumerate() {
            scope.spawn(move || {
                for round in 0..50 {
                    let bytes = pattern(worker as u64 * 100 + round, 8192);
                    segment.write(0, &bytes).unwrap();
                    let mut back = vec![0; 8192];
                    segment.read(0, &mut back).unwrap();
                    assert_eq!(back, bytes);
                }
            });
        }
    });
}
