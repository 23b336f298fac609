//! What pending work needs stays, in whatever order handles go; then it goes, once.

use std::thread;
use std::time::Duration;

use spoc_driver::{CopyRange, Device, DeviceSelector, Event, Segment, Stream, StreamOptions};

use crate::Subject;
use crate::helpers::{Drops, pattern};
use crate::subject::{upload, whole};

/// A source lives until its copy has run and was retired, and is dropped once.
pub fn rule_08_sources_live_until_their_copy_has_run(subject: &Subject) {
    let (stream, segment, drops) = (subject.stream(), subject.zeroes(4096), Drops::default());
    let hold = subject.hold(&stream);
    for seed in 0..5 {
        stream.copy_to_device(drops.watch(pattern(seed, 4096)), &[whole(4096, &segment)]).unwrap();
    }
    if hold.is_certain() {
        subject.device.collect();
        assert_eq!(drops.count(), 0, "let go of before it ran");
        assert!(subject.device.in_flight() >= 5);
    }
    hold.open();
    stream.synchronize().unwrap();
    assert_eq!(drops.count(), 5);
    assert_eq!(subject.device.in_flight(), 0);
    assert_eq!(subject.contents(&segment), pattern(4, 4096));
    drop(stream);
    subject.device.flush().unwrap();
    assert_eq!(drops.count(), 5, "dropped twice");
}

/// Collecting lets go of what has run, without waiting for the rest.
pub fn rule_08_collecting_lets_go_of_what_has_run(subject: &Subject) {
    let (done, held, segment) = (subject.stream(), subject.stream(), subject.zeroes(64));
    let drops = Drops::default();
    let hold = subject.hold(&held);
    held.copy_to_device(drops.watch(pattern(1, 64)), &[whole(64, &segment)]).unwrap();
    done.copy_to_device(drops.watch(pattern(2, 64)), &[whole(64, &segment)]).unwrap();
    while drops.count() == 0 {
        subject.device.collect();
        thread::yield_now();
    }
    if hold.is_certain() {
        assert_eq!(drops.count(), 1);
    }
    hold.open();
    held.synchronize().unwrap();
    subject.device.collect();
    assert_eq!(drops.count(), 2);
}

/// Dropping a stream cancels nothing: the ledger finishes its work and lets go of it.
pub fn rule_08_a_dropped_stream_hands_its_work_to_the_ledger(subject: &Subject) {
    let (stream, segment, drops) = (subject.free_stream(), subject.zeroes(4096), Drops::default());
    let event = subject.device.create_event().unwrap();
    let hold = subject.hold(&stream);
    stream.copy_to_device(drops.watch(pattern(3, 4096)), &[whole(4096, &segment)]).unwrap();
    stream.record(&event).unwrap();
    drop(stream);
    if hold.is_certain() {
        assert_eq!(drops.count(), 0);
        assert!(!event.query().unwrap());
    }
    hold.open();
    event.synchronize().unwrap();
    assert_eq!(drops.count(), 1);
    assert_eq!(subject.contents(&segment), pattern(3, 4096));
    subject.device.flush().unwrap();
    assert_eq!(subject.device.in_flight(), 0);
}

/// The destination of a read-back is nobody's until the copy has run; then it comes back, filled.
pub fn rule_11_destination_of_a_stream_readback_is_not_readable_before_it_ran(subject: &Subject) {
    let (stream, segment, drops) =
        (subject.stream(), subject.filled_with(&pattern(4, 4096)), Drops::default());
    let hold = subject.hold(&stream);
    // Moved in: between here and `wait` there is no name for the bytes.
    let pending = stream.copy_to_host(&segment, 0, drops.watch(vec![0; 4096])).unwrap();
    if hold.is_certain() {
        assert!(!pending.query().unwrap());
        subject.device.collect();
    }
    assert_eq!(drops.count(), 0);
    hold.open();
    let back = pending.wait().unwrap();
    assert_eq!(back.bytes(), pattern(4, 4096));
    assert_eq!(drops.count(), 0);
    drop(back);
    assert_eq!(drops.count(), 1);
}

/// A read-back that nobody fetches is abandoned; its memory stays until the copy has run.
pub fn rule_11_an_abandoned_readback_keeps_its_memory_until_it_ran(subject: &Subject) {
    let (stream, segment, drops) =
        (subject.stream(), subject.filled_with(&pattern(5, 4096)), Drops::default());
    let hold = subject.hold(&stream);
    drop(stream.copy_to_host(&segment, 0, drops.watch(vec![0; 4096])).unwrap());
    if hold.is_certain() {
        subject.device.collect();
        assert_eq!(drops.count(), 0, "freed under a pending copy");
    }
    hold.open();
    stream.synchronize().unwrap();
    assert_eq!(drops.count(), 1);
    // Abandoned after it ran and was retired: then it goes with the handle.
    let pending = stream.copy_to_host(&segment, 0, drops.watch(vec![0; 4096])).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(drops.count(), 1, "thrown away although it could still be fetched");
    drop(pending);
    assert_eq!(drops.count(), 2);
}

/// Forgetting a pending read-back leaks at most memory: nothing is written into freed bytes.
pub fn rule_11_a_forgotten_readback_is_sound(subject: &Subject) {
    subject.forgets();
    let (stream, segment, drops) =
        (subject.stream(), subject.filled_with(&pattern(6, 4096)), Drops::default());
    let hold = subject.hold(&stream);
    std::mem::forget(stream.copy_to_host(&segment, 0, drops.watch(vec![0; 4096])).unwrap());
    hold.open();
    stream.synchronize().unwrap();
    assert_eq!(drops.count(), 0, "the ledger dropped what a handle could still ask for");
}

/// Read-backs can be fetched in any order, after any wait.
pub fn rule_11_readbacks_are_fetched_in_any_order(subject: &Subject) {
    let (stream, segment) = (subject.stream(), subject.filled_with(&pattern(7, 8 * 64)));
    for turn in 0..8 {
        let mut pending: Vec<_> = (0..8_u64)
            .map(|part| Some(stream.copy_to_host(&segment, part * 64, vec![0; 64]).unwrap()))
            .collect();
        if turn % 2 == 0 {
            stream.synchronize().unwrap();
        }
        for step in 0..8 {
            // 5 is coprime to 8: every part once, in another order each turn.
            let part = (step * 5 + turn) % 8;
            let back = pending[part].take().unwrap().wait().unwrap();
            assert_eq!(back, pattern(7, 8 * 64)[part * 64..][..64]);
        }
    }
    assert_eq!(subject.device.in_flight(), 0);
}

/// A segment outlives its handles while copies from, to, or within it are pending.
pub fn ledger_segments_outlive_their_handles_while_copies_are_pending(subject: &Subject) {
    let stream = subject.stream();
    let (from, via, to) =
        (subject.filled_with(&pattern(8, 4096)), subject.zeroes(4096), subject.zeroes(4096));
    let hold = subject.hold(&stream);
    stream.copy_device_to_device(&from, 0, &via, 0, 4096).unwrap();
    stream.copy_device_to_device(&via, 0, &to, 0, 4096).unwrap();
    let back = stream.copy_to_host(&via, 0, vec![0; 4096]).unwrap();
    drop((from, via));
    // Whoever gets the freed memory, if it were, would write into it here.
    let strangers: Vec<_> = (0..4).map(|_| subject.device.allocate(4096).unwrap()).collect();
    let other = subject.free_stream();
    for stranger in &strangers {
        upload(&other, vec![0xFF; 4096], stranger);
    }
    other.synchronize().unwrap();
    hold.open();
    assert_eq!(back.wait().unwrap(), pattern(8, 4096));
    assert_eq!(subject.contents(&to), pattern(8, 4096));
    drop((to, strangers));
    stream.synchronize().unwrap();
    assert_eq!(subject.device.memory_in_use(), 0);
}

/// Everything a pending copy needs, in one bag, to be dropped in any order.
struct Handles {
    device: Option<Device>,
    stream: Option<Stream>,
    event: Option<Event>,
    segment: Option<Segment>,
}

/// Device, stream, event and segment dropped in all 24 orders while copies are pending.
pub fn ledger_handles_may_be_dropped_in_every_order(subject: &Subject) {
    let info = subject.device.info();
    for order in orders() {
        let drops = Drops::default();
        let driver = subject.other_driver();
        let device = driver.open(&DeviceSelector::index(info.backend, info.index)).unwrap();
        let stream =
            device.create_stream(StreamOptions { non_blocking: true, ..Default::default() }).unwrap();
        let (event, segment) = (device.create_event().unwrap(), device.allocate(4096).unwrap());
        let hold = subject.hold(&stream);
        stream.copy_to_device(drops.watch(pattern(9, 4096)), &[whole(4096, &segment)]).unwrap();
        drop(stream.copy_to_host(&segment, 0, drops.watch(vec![0; 4096])).unwrap());
        stream.record(&event).unwrap();
        // The last of device and stream waits for what is pending, so somebody has to let it run.
        let opener = thread::spawn(move || {
            thread::sleep(Duration::from_millis(1));
            hold.open();
        });
        let mut handles = Handles {
            device: Some(device),
            stream: Some(stream),
            event: Some(event),
            segment: Some(segment),
        };
        for handle in order {
            match handle {
                0 => drop(handles.device.take()),
                1 => drop(handles.stream.take()),
                2 => drop(handles.event.take()),
                _ => drop(handles.segment.take()),
            }
        }
        assert_eq!(drops.count(), 2, "order {order:?}");
        opener.join().unwrap();
    }
}

/// All orders of four things.
fn orders() -> impl Iterator<Item = [usize; 4]> {
    (0..256).map(|code| [code % 4, code / 4 % 4, code / 16 % 4, code / 64]).filter(|order| {
        let mut sorted = *order;
        sorted.sort_unstable();
        sorted == [0, 1, 2, 3]
    })
}

/// Reserving room changes nothing but where memory comes from.
pub fn ledger_reserving_changes_nothing(subject: &Subject) {
    let (stream, segment) = (subject.stream(), subject.zeroes(4096));
    stream.reserve(0, 0);
    stream.reserve(500, 2);
    for seed in 0..700 {
        upload(&stream, pattern(seed, 64), &segment);
    }
    stream.reserve(10, 1);
    stream.synchronize().unwrap();
    assert_eq!(&subject.contents(&segment)[..64], pattern(699, 64));
}

/// A source whose drop uses the driver is dropped with no lock held.
pub fn ledger_drops_of_sources_may_use_the_driver(subject: &Subject) {
    struct Nosy {
        bytes: Vec<u8>,
        device: Device,
        segment: Segment,
    }
    impl Drop for Nosy {
        fn drop(&mut self) {
            self.device.collect();
            assert!(self.device.in_flight() < 1000);
            let stream = self.device.create_stream(StreamOptions::default()).unwrap();
            upload(&stream, pattern(11, 64), &self.segment);
            let event = self.device.create_event().unwrap();
            stream.record(&event).unwrap();
            assert!(self.device.allocate(64).is_ok());
        }
    }
    // SAFETY: a vector's bytes stay in place when it moves, and nothing writes them.
    unsafe impl spoc_driver::HostSource for Nosy {
        fn as_ptr(&self) -> *const u8 {
            self.bytes.as_ptr()
        }
        fn len_bytes(&self) -> usize {
            self.bytes.len()
        }
    }
    let (stream, segment) = (subject.stream(), subject.zeroes(64));
    for wait in 0..4 {
        let source =
            Nosy { bytes: pattern(10, 64), device: subject.device.clone(), segment: segment.clone() };
        stream.copy_to_device(source, &[CopyRange { dst_offset: 0, ..whole(64, &segment) }]).unwrap();
        match wait {
            0 => stream.synchronize().unwrap(),
            1 => subject.device.flush().unwrap(),
            2 => {
                let event = subject.device.create_event().unwrap();
                stream.record(&event).unwrap();
                event.synchronize().unwrap();
            }
            _ => while subject.device.in_flight() > 0 {},
        }
    }
    subject.device.flush().unwrap();
    assert_eq!(subject.contents(&segment), pattern(11, 64));
}
