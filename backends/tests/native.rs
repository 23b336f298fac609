//! The native backend through the driver: bytes, order, memory, lending.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

use spoc_backends::native::{self, Options};
use spoc_driver::{BackendKind, CopyRange, Device, DeviceSelector, Driver, StreamOptions};

const MIB: u64 = 1 << 20;

fn device() -> Device {
    device_of(256 * MIB)
}

fn device_of(memory_bytes: u64) -> Device {
    let driver = Driver::new(vec![native::backend(Options { memory_bytes: Some(memory_bytes) })]);
    driver.open(&DeviceSelector::index(BackendKind::Native, 0)).unwrap()
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 31 + seed) % 251) as u8).collect()
}

#[test]
fn bytes_arrive_and_come_back() {
    let device = device();
    let stream = device.create_stream(StreamOptions::default()).unwrap();
    let (a, b) = (device.allocate(MIB + 3).unwrap(), device.allocate(4096).unwrap());
    let bytes = pattern(10_000, 1);
    let ranges = [
        CopyRange { src_offset: 0, dst: &a, dst_offset: 5, len_bytes: 7000 },
        CopyRange { src_offset: 7000, dst: &b, dst_offset: 1000, len_bytes: 3000 },
        CopyRange { src_offset: 9, dst: &b, dst_offset: 0, len_bytes: 0 },
    ];
    stream.copy_to_device(bytes.clone(), &ranges).unwrap();
    stream.copy_device_to_device(&b, 1000, &a, MIB - 3000, 3000).unwrap();
    let back = stream.copy_to_host(&a, 5, vec![0; 7000]).unwrap().wait().unwrap();
    assert_eq!(back, bytes[..7000]);
    let mut tail = vec![0; 3000];
    a.read(MIB - 3000, &mut tail).unwrap();
    assert_eq!(tail, bytes[7000..]);
    stream.synchronize().unwrap();
    assert_eq!(device.in_flight(), 0);
}
