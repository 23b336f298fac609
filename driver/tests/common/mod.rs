//! What the tests of this folder share.
#![allow(dead_code)]

use spoc_driver::fake::{self, FakeControl, FakeOptions, WaitMode};
use spoc_driver::{BackendKind, CopyRange, Device, DeviceSelector, Driver, Segment, Stream, StreamOptions};

pub const NON_BLOCKING: StreamOptions =
    StreamOptions { non_blocking: true, priority: spoc_driver::StreamPriority::Normal };

/// A fake device whose host waits block until the test lets work run.
pub fn deferred() -> (Device, FakeControl) {
    with(FakeOptions::default())
}

/// A fake device whose host waits run the work they wait for.
pub fn driven() -> (Device, FakeControl) {
    with(FakeOptions { wait_mode: WaitMode::Drive, ..FakeOptions::default() })
}

pub fn with(options: FakeOptions) -> (Device, FakeControl) {
    let (driver, control) = driver_with(options);
    (open(&driver, 0), control)
}

pub fn driver_with(options: FakeOptions) -> (Driver, FakeControl) {
    let (probed, control) = fake::backend_with(options);
    (Driver::new(vec![probed]), control)
}

pub fn open(driver: &Driver, index: u32) -> Device {
    driver.open(&DeviceSelector::index(BackendKind::Fake, index)).unwrap()
}

pub fn stream(device: &Device) -> Stream {
    device.create_stream(StreamOptions::default()).unwrap()
}

/// The whole of a source to the beginning of a segment.
pub fn whole(dst: &Segment, len_bytes: usize) -> CopyRange<'_> {
    CopyRange { src_offset: 0, dst, dst_offset: 0, len_bytes }
}

/// Ends a test: nothing is left, and nothing was done wrong.
pub fn assert_clean(control: &FakeControl) {
    assert_eq!(control.violations(), Vec::<String>::new());
    assert_eq!(control.live(), fake::Live::default());
}
