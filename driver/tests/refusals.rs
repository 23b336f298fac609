//! Everything a caller can get wrong has an error of its own kind, and leaves nothing behind.
#![cfg(feature = "fake")]
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{assert_clean, deferred, driver_with, open, stream, whole, with};
use spoc_driver::backend::Foreign;
use spoc_driver::fake::{self, FakeOptions};
use spoc_driver::{
    BackendKind, Capabilities, CaptureState, CopyRange, DeviceSelector, Driver, ErrorKind, Limits,
    SegmentOptions, StreamOptions, Verdict,
};

fn foreign() -> Foreign {
    Foreign { words: [0; 6], keep_alive: None }
}

#[test]
fn devices_are_found_by_index_and_uuid_or_named_as_missing() {
    let (driver, _control) = driver_with(FakeOptions { devices: 2, ..FakeOptions::default() });
    let infos = driver.devices();
    assert_eq!(infos.len(), 2);
    let second = driver.open(&DeviceSelector::uuid(BackendKind::Fake, infos[1].uuid)).unwrap();
    assert_eq!(second.info().index, 1);
    assert!(second.is(&open(&driver, 1)), "a device is opened once");
    assert!(!second.is(&open(&driver, 0)));
    let missing = driver.open(&DeviceSelector::index(BackendKind::Fake, 2)).unwrap_err();
    assert_eq!(*missing.kind(), ErrorKind::NoSuchDevice);
    assert!(missing.to_string().contains("devices_found=2"), "{missing}");
    let absent = driver.open(&DeviceSelector::index(BackendKind::Cuda, 0)).unwrap_err();
    assert_eq!(*absent.kind(), ErrorKind::NoSuchDevice);
    assert!(absent.to_string().contains("backends_found=fake"), "{absent}");
}

#[test]
fn ranges_that_leave_their_memory_are_refused() {
    let (device, control) = deferred();
    let stream = stream(&device);
    let (segment, other) = (device.allocate(16).unwrap(), device.allocate(16).unwrap());
    let out = |error: &spoc_driver::Error| matches!(error.kind(), ErrorKind::OutOfBounds { .. });
    let refuse = |range: CopyRange<'_>| {
        let returned = stream.copy_to_device(vec![0; 8], &[whole(&segment, 1), range]).unwrap_err();
        assert!(out(&returned.error), "{returned}");
    };
    refuse(CopyRange { src_offset: 1, dst: &segment, dst_offset: 0, len_bytes: 8 });
    refuse(CopyRange { src_offset: usize::MAX, dst: &segment, dst_offset: 0, len_bytes: 2 });
    refuse(CopyRange { src_offset: 0, dst: &segment, dst_offset: 9, len_bytes: 8 });
    refuse(CopyRange { src_offset: 0, dst: &segment, dst_offset: u64::MAX, len_bytes: 8 });
    refuse(CopyRange { src_offset: 0, dst: &segment, dst_offset: 17, len_bytes: 0 });
    assert!(out(&stream.copy_to_host(&segment, 9, vec![0; 8]).unwrap_err().error));
    assert!(out(&stream.copy_device_to_device(&segment, 9, &other, 0, 8).unwrap_err()));
    assert!(out(&stream.copy_device_to_device(&segment, 0, &other, 9, 8).unwrap_err()));
    assert!(out(&stream.copy_device_to_device(&segment, 1, &other, 0, u64::MAX).unwrap_err()));
    assert!(out(&stream.fill(&segment, 10, 7, 0).unwrap_err()));
    assert!(out(&stream.write_value(&segment, 16, 0).unwrap_err()));
    assert!(out(&stream.wait_value(&segment, 16, 0).unwrap_err()));
    assert!(out(&segment.read(16, &mut [0]).unwrap_err()));
    assert!(out(&segment.write(u64::MAX, &[0]).unwrap_err()));
    assert!(out(&segment.fill(0, 17, 0).unwrap_err()));
    assert_eq!((device.in_flight(), control.pending()), (0, 0));
    drop((stream, segment, other, device));
    assert_clean(&control);
}

#[test]
fn granules_and_words_must_be_kept() {
    let limits = Limits { copy_granule_bytes: 4, ..FakeOptions::default().limits };
    let (device, control) = with(FakeOptions { limits, ..FakeOptions::default() });
    let stream = stream(&device);
    let segment = device.allocate(32).unwrap();
    let misaligned = |error: &spoc_driver::Error| matches!(error.kind(), ErrorKind::Misaligned { .. });
    let range = CopyRange { src_offset: 1, dst: &segment, dst_offset: 2, len_bytes: 4 };
    assert!(misaligned(&stream.copy_to_device(vec![0; 8], &[range]).unwrap_err().error));
    assert!(misaligned(&stream.copy_to_host(&segment, 0, vec![0; 3]).unwrap_err().error));
    assert!(misaligned(&segment.write(0, &[0; 2]).unwrap_err()));
    assert!(misaligned(&stream.write_value(&segment, 4, 0).unwrap_err()));
    // The host's side is free.
    let range = CopyRange { src_offset: 1, dst: &segment, dst_offset: 4, len_bytes: 4 };
    stream.copy_to_device(vec![0; 8], &[range]).unwrap();
    drop((stream, segment, device));
    assert_clean(&control);
}

#[test]
fn overlapping_copies_within_the_device_are_refused() {
    let (device, control) = deferred();
    let stream = stream(&device);
    let (segment, other) = (device.allocate(16).unwrap(), device.allocate(16).unwrap());
    let overlap = |from, to| stream.copy_device_to_device(&segment, from, &segment, to, 8).unwrap_err();
    assert_eq!(*overlap(0, 7).kind(), ErrorKind::Overlap);
    assert_eq!(*overlap(7, 0).kind(), ErrorKind::Overlap);
    stream.copy_device_to_device(&segment, 0, &segment, 8, 8).unwrap();
    stream.copy_device_to_device(&segment, 0, &other, 4, 8).unwrap();
    stream.copy_device_to_device(&segment, 0, &segment, 0, 0).unwrap();
    assert_eq!(control.pending(), 2);
    drop((stream, segment, other, device));
    assert_clean(&control);
}

#[test]
fn an_event_that_was_never_recorded_is_refused_everywhere() {
    let (device, control) = deferred();
    let stream = stream(&device);
    let event = device.create_event().unwrap();
    assert!(!event.is_recorded());
    assert_eq!(*stream.wait(&event).unwrap_err().kind(), ErrorKind::NotRecorded);
    assert_eq!(*event.query().unwrap_err().kind(), ErrorKind::NotRecorded);
    assert_eq!(*event.synchronize().unwrap_err().kind(), ErrorKind::NotRecorded);
    stream.record(&event).unwrap();
    stream.wait(&event).unwrap();
    drop((stream, event, device));
    assert_clean(&control);
}

#[test]
fn objects_of_another_device_are_refused() {
    let (driver, control) = driver_with(FakeOptions { devices: 2, ..FakeOptions::default() });
    let (here, there) = (open(&driver, 0), open(&driver, 1));
    let stream = stream(&here);
    let (mine, strange) = (here.allocate(16).unwrap(), there.allocate(16).unwrap());
    let event = there.create_event().unwrap();
    let wrong = |error: &spoc_driver::Error| *error.kind() == ErrorKind::WrongDevice;
    let ranges = [whole(&mine, 1), whole(&strange, 1)];
    assert!(wrong(&stream.copy_to_device(vec![0; 8], &ranges).unwrap_err().error));
    assert!(wrong(&stream.copy_to_host(&strange, 0, vec![0; 8]).unwrap_err().error));
    assert!(wrong(&stream.copy_device_to_device(&mine, 0, &strange, 0, 1).unwrap_err()));
    assert!(wrong(&stream.copy_device_to_device(&strange, 0, &mine, 0, 1).unwrap_err()));
    assert!(wrong(&stream.fill(&strange, 0, 1, 0).unwrap_err()));
    assert!(wrong(&stream.write_value(&strange, 0, 0).unwrap_err()));
    assert!(wrong(&stream.wait_value(&strange, 0, 0).unwrap_err()));
    assert!(wrong(&stream.record(&event).unwrap_err()));
    assert!(wrong(&stream.wait(&event).unwrap_err()));
    assert_eq!(control.pending(), 0);
    drop((stream, mine, strange, event, here, there));
    assert_clean(&control);
}

#[test]
fn sizes_are_checked_against_the_limits() {
    let limits = Limits { segment_bytes_max: 100, ..FakeOptions::default().limits };
    let (device, control) = with(FakeOptions { limits, ..FakeOptions::default() });
    assert_eq!(*device.allocate(0).unwrap_err().kind(), ErrorKind::ZeroSize);
    assert_eq!(*device.allocate(101).unwrap_err().kind(), ErrorKind::TooLarge { need: 101, max: 100 });
    assert_eq!(*device.alloc_pinned(0).unwrap_err().kind(), ErrorKind::ZeroSize);
    drop(device);
    assert_clean(&control);
}

#[test]
fn what_is_not_available_for_certain_is_refused_by_name() {
    let capabilities = Capabilities::all(&Verdict::unknown("nobody looked"));
    let (driver, control) = driver_with(FakeOptions { capabilities, ..FakeOptions::default() });
    let device = open(&driver, 0);
    let stream = stream(&device);
    let segment = device.allocate(16).unwrap();
    let refused = |error: spoc_driver::Error, name: &str| {
        let ErrorKind::Unsupported { backend, feature } = *error.kind() else { panic!("{error}") };
        assert_eq!((backend, feature), (BackendKind::Fake, name));
        assert!(error.to_string().contains("nobody looked"), "{error}");
    };
    let exportable = SegmentOptions { exportable: true };
    refused(device.allocate_with(16, exportable).unwrap_err(), "export_memory");
    refused(segment.export().unwrap_err(), "export_memory");
    refused(segment.fill(0, 1, 0).unwrap_err(), "fill");
    refused(stream.fill(&segment, 0, 1, 0).unwrap_err(), "fill");
    refused(stream.write_value(&segment, 0, 0).unwrap_err(), "write_value");
    refused(stream.wait_value(&segment, 0, 0).unwrap_err(), "wait_value");
    refused(device.alloc_pinned(1).unwrap_err(), "pinned_alloc");
    assert!(!device.pinned_available().unwrap());
    // SAFETY: refused before the words are looked at.
    refused(unsafe { device.adopt_stream(foreign(), StreamOptions::default()) }.unwrap_err(), "adopt_stream");
    // SAFETY: as above.
    refused(unsafe { device.adopt_memory(foreign(), 16) }.unwrap_err(), "adopt_memory");
    // SAFETY: as above.
    let adopted = unsafe { driver.adopt(BackendKind::Fake, foreign()) }.unwrap_err();
    assert!(matches!(adopted.kind(), ErrorKind::Unsupported { feature: "adopt_context", .. }));
    // Many ranges go one by one where there is no batch.
    let ranges = [whole(&segment, 1), whole(&segment, 2)];
    stream.copy_to_device(vec![1; 2], &ranges).unwrap();
    drop((stream, segment, device, driver));
    assert_clean(&control);
}

#[test]
fn a_stream_says_whether_it_is_captured() {
    let (device, control) = deferred();
    let stream = stream(&device);
    assert_eq!(stream.is_capturing().unwrap(), CaptureState::None);
    control.set_capture(control.stream(&stream), CaptureState::Active);
    assert_eq!(stream.is_capturing().unwrap(), CaptureState::Active);
    drop((stream, device));
    assert_clean(&control);
}

#[test]
fn two_drivers_know_nothing_of_each_other() {
    let ((first, _a), (second, _b)) = (fake::backend(), fake::backend());
    assert_ne!(first.id(), second.id());
    let (one, two) = (Driver::new(vec![first]), Driver::new(vec![second]));
    let (here, there) = (open(&one, 0), open(&two, 0));
    let segment = there.allocate(4).unwrap();
    let returned = stream(&here).copy_to_device(vec![1; 4], &[whole(&segment, 4)]).unwrap_err();
    assert_eq!(*returned.error.kind(), ErrorKind::WrongDevice);
    assert_eq!(returned.source, [1; 4]);
}
