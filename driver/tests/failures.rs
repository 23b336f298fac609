//! Work that fails, devices that go, memory that runs out.
#![cfg(feature = "fake")]
#![allow(clippy::unwrap_used)]

mod common;

use std::thread;
use std::time::Duration;

use common::{assert_clean, deferred, driven, stream, whole, with};
use spoc_driver::fake::{FakeOptions, WaitMode};
use spoc_driver::{ErrorKind, HostMemory, HostMemoryOptions, StreamOptions};

#[test]
fn a_failed_copy_is_sticky_on_its_stream_alone() {
    let (device, control) = deferred();
    let (failing, sound) = (stream(&device), stream(&device));
    let segment = device.allocate(4).unwrap();
    let (before, after) = (device.create_event().unwrap(), device.create_event().unwrap());
    failing.copy_to_device(control.source(vec![1; 4]), &[whole(&segment, 4)]).unwrap();
    failing.record(&before).unwrap();
    failing.copy_to_device(control.source(vec![2; 4]), &[whole(&segment, 4)]).unwrap();
    failing.copy_to_device(control.source(vec![3; 4]), &[whole(&segment, 4)]).unwrap();
    failing.record(&after).unwrap();
    control.fail_copy(2);
    control.run_all();
    // What came before the failure did succeed; what came after did not run.
    assert!(before.query().unwrap());
    assert_eq!(*after.query().unwrap_err().kind(), ErrorKind::AsyncFailure);
    assert_eq!(control.peek(&segment, 0, 4), [1; 4]);
    assert_eq!(device.in_flight(), 0, "what a failed stream kept is let go");
    let refused = failing.copy_to_device(control.source(vec![4; 4]), &[whole(&segment, 4)]).unwrap_err();
    assert_eq!(*refused.error.kind(), ErrorKind::AsyncFailure);
    assert_eq!(refused.source.bytes(), [4; 4]);
    assert_eq!(*failing.synchronize().unwrap_err().kind(), ErrorKind::AsyncFailure);
    assert_eq!(*failing.query().unwrap_err().kind(), ErrorKind::AsyncFailure);
    assert_eq!(*failing.record(&before).unwrap_err().kind(), ErrorKind::AsyncFailure);
    sound.copy_to_device(vec![5; 4], &[whole(&segment, 4)]).unwrap();
    control.run_all();
    sound.synchronize().unwrap();
    drop((refused, failing, sound, before, after, device, segment));
    assert_clean(&control);
}

#[test]
fn a_failure_reaches_the_streams_that_wait_for_it() {
    let (device, control) = deferred();
    let (failing, waiting) = (stream(&device), stream(&device));
    let segment = device.allocate(4).unwrap();
    let event = device.create_event().unwrap();
    failing.copy_to_device(control.source(vec![1; 4]), &[whole(&segment, 4)]).unwrap();
    failing.record(&event).unwrap();
    waiting.wait(&event).unwrap();
    waiting.copy_to_device(control.source(vec![2; 4]), &[whole(&segment, 4)]).unwrap();
    control.fail_copy(1);
    control.run_all();
    assert_eq!(control.peek(&segment, 0, 4), [0xDB; 4]);
    assert_eq!(*waiting.synchronize().unwrap_err().kind(), ErrorKind::AsyncFailure);
    assert_eq!(device.in_flight(), 0);
    drop((failing, waiting, event, segment, device));
    assert_clean(&control);
}

#[test]
fn a_failed_read_back_returns_its_buffer_with_the_error() {
    let (device, control) = driven();
    let stream = stream(&device);
    let segment = device.allocate(4).unwrap();
    control.fail_copy(1);
    let pending = stream.copy_to_host(&segment, 0, vec![0; 4]).unwrap();
    let returned = pending.wait().unwrap_err();
    assert_eq!(*returned.error.kind(), ErrorKind::AsyncFailure);
    assert_eq!(returned.source, Some(vec![0; 4]));
    drop((stream, device, segment));
    assert_clean(&control);
}

#[test]
fn a_lost_device_lets_everything_go_and_says_so() {
    let (device, control) = deferred();
    let stream = stream(&device);
    let segment = device.allocate(4).unwrap();
    let event = device.create_event().unwrap();
    let memory = HostMemory::allocate(4096, HostMemoryOptions::default()).unwrap();
    stream.copy_to_device(control.source(vec![1; 4]), &[whole(&segment, 4)]).unwrap();
    stream.record(&event).unwrap();
    let pending = stream.copy_to_host(&segment, 0, vec![0; 4]).unwrap();
    control.lose_device();
    assert!(event.query().unwrap_err().is_device_lost());
    assert!(event.synchronize().unwrap_err().is_device_lost());
    assert_eq!(pending.wait().unwrap_err().source, Some(vec![0; 4]));
    assert!(stream.synchronize().unwrap_err().is_device_lost());
    assert!(stream.record(&event).unwrap_err().is_device_lost());
    assert!(device.allocate(1).unwrap_err().is_device_lost());
    assert!(device.create_stream(StreamOptions::default()).unwrap_err().is_device_lost());
    assert!(device.create_event().unwrap_err().is_device_lost());
    assert!(device.pin(&memory).unwrap_err().is_device_lost());
    assert!(device.memory().unwrap_err().is_device_lost());
    assert!(segment.read(0, &mut [0; 4]).unwrap_err().is_device_lost());
    assert!(device.flush().unwrap_err().is_device_lost());
    assert_eq!(device.in_flight(), 0);
    assert_eq!(device.pinned_ranges(), 0, "a failed pin leaves no trace");
    drop((event, stream, device, segment));
    assert_clean(&control);
}

#[test]
fn device_memory_runs_out_with_numbers() {
    let (device, control) = with(FakeOptions { memory_bytes: 1000, ..FakeOptions::default() });
    let first = device.allocate(600).unwrap();
    let error = device.allocate(500).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::OutOfDeviceMemory { need_bytes: 500, have_bytes: 400 });
    assert_eq!(device.memory().unwrap().free_bytes, 400);
    drop(first);
    control.fail_allocation(2);
    let second = device.allocate(1000).unwrap();
    drop(second);
    assert!(matches!(device.allocate(1).unwrap_err().kind(), ErrorKind::OutOfDeviceMemory { .. }));
    let third = device.allocate(1).unwrap();
    drop((third, device));
    assert_clean(&control);
}

#[test]
fn memory_that_pending_work_held_is_found_by_the_next_allocation() {
    let (device, control) = with(FakeOptions { memory_bytes: 1000, ..FakeOptions::default() });
    let stream = stream(&device);
    let segment = device.allocate(1000).unwrap();
    stream.copy_to_device(vec![1; 4], &[whole(&segment, 4)]).unwrap();
    drop(segment);
    assert!(device.allocate(1000).is_err());
    control.run_all();
    let again = device.allocate(1000).unwrap();
    drop((again, stream, device));
    assert_clean(&control);
}

#[test]
fn a_host_wait_blocks_until_the_test_lets_the_work_run() {
    let (device, control) = deferred();
    let stream = stream(&device);
    let segment = device.allocate(4).unwrap();
    let event = device.create_event().unwrap();
    stream.copy_to_device(control.source(vec![1; 4]), &[whole(&segment, 4)]).unwrap();
    stream.record(&event).unwrap();
    let waiter = thread::spawn(move || event.synchronize());
    while control.blocked_threads() == 0 {
        thread::sleep(Duration::from_millis(1));
    }
    assert!(!waiter.is_finished());
    assert!(control.wait_pending(1, Duration::from_secs(5)));
    control.run_all();
    waiter.join().unwrap().unwrap();
    assert_eq!(device.in_flight(), 0);
    drop((stream, device, segment));
    assert_clean(&control);
}

#[test]
fn work_that_can_never_run_is_a_finding_and_not_a_hang() {
    let (device, control) = driven();
    let stream = stream(&device);
    let segment = device.allocate(8).unwrap();
    segment.fill(0, 8, 0).unwrap();
    stream.wait_value(&segment, 0, 1).unwrap();
    assert_eq!(*stream.synchronize().unwrap_err().kind(), ErrorKind::AsyncFailure);
    assert_eq!(control.violations().len(), 1);
    drop((stream, device, segment));
}

#[test]
fn words_order_streams() {
    let (device, control) = driven();
    control.set_wait_mode(WaitMode::Drive);
    let (writer, waiter) = (stream(&device), stream(&device));
    let (word, data) = (device.allocate(16).unwrap(), device.allocate(4).unwrap());
    word.fill(0, 16, 0).unwrap();
    waiter.wait_value(&word, 8, 5).unwrap();
    waiter.copy_to_device(vec![2; 4], &[whole(&data, 4)]).unwrap();
    writer.copy_to_device(vec![1; 4], &[whole(&data, 4)]).unwrap();
    writer.write_value(&word, 8, 4).unwrap();
    control.run_all();
    assert_eq!(control.peek(&data, 0, 4), [1; 4]);
    writer.write_value(&word, 8, 6).unwrap();
    control.run_all();
    assert_eq!(control.peek(&data, 0, 4), [2; 4]);
    drop((writer, waiter, word, data, device));
    assert_clean(&control);
}
