//! Host memory as a buffer in place, on every CPU device there is.
#![allow(clippy::unwrap_used)]

use spoc_backends::{found, probe};
use spoc_driver::backend::BackendKind;
use spoc_driver::{
    Device, DeviceName, DeviceSelector, Driver, Elements, ErrorKind, HostBuffer, HostLink, HostMemoryOptions,
    HostSlice, Location, StreamOptions, Vector,
};

fn devices() -> Vec<Device> {
    let driver = Driver::new(found(&probe()));
    let open = |info: spoc_driver::DeviceInfo| {
        let name = DeviceName::Index(info.index);
        driver.open(&DeviceSelector { backend: info.backend, device: name }).unwrap()
    };
    driver.devices().into_iter().map(open).collect()
}

fn linkable() -> Vec<Device> {
    devices().into_iter().filter(|device| device.capabilities().host_buffer.is_available()).collect()
}

#[test]
fn native_is_linkable() {
    assert!(linkable().iter().any(|device| device.info().backend == BackendKind::Native));
}

#[test]
fn bytes_are_shared_through_maps() {
    for device in linkable() {
        let mut vector = Vector::from_slice(&[1_i32, 2, 3, 4]).unwrap();
        let before = device.memory_in_use();
        vector.attach(&device).unwrap();
        let link = vector.host_link(&device).unwrap();
        let is_cpu = matches!(device.info().backend, BackendKind::Native | BackendKind::Interpreter);
        assert_eq!(link, if is_cpu { HostLink::HostStorage } else { HostLink::HostPtr });
        assert_eq!((vector.location(), device.memory_in_use() - before), (Location::Both, 16));

        // Attached contents are what the device sees.
        let mut seen = [0; 2];
        vector.copy_to_host(1, &mut seen).unwrap();
        assert_eq!(seen, [2, 3]);
        // Device writes reach the host.
        let stream = device.create_stream(StreamOptions::default()).unwrap();
        vector.copy_to_device_on(&stream, 2, Elements(vec![30, 40])).unwrap();
        assert_eq!(vector.location(), Location::StaleCpu);
        vector.acquire_device_writes(&device).unwrap();
        assert_eq!((vector.location(), device.in_flight()), (Location::Both, 0));
        assert_eq!(vector.as_slice().unwrap(), [1, 2, 30, 40]);
        // Host writes reach the device, also by themselves.
        vector.as_mut_slice().unwrap()[0] = 10;
        assert_eq!(vector.location(), Location::StaleGpu);
        vector.publish_host_writes(&device).unwrap();
        vector.set(1, 20).unwrap();
        vector.to_device(&device).unwrap();
        let mut all = [0; 4];
        vector.copy_to_host(0, &mut all).unwrap();
        assert_eq!(all, [10, 20, 30, 40]);
        vector.copy_to_device(0, &[11]).unwrap();
        assert_eq!(vector.get(0).unwrap(), 11);

        vector.free_buffer(&device).unwrap();
        assert_eq!((vector.location(), device.memory_in_use()), (Location::Cpu, before));
        assert_eq!(vector.as_slice().unwrap(), [11, 20, 30, 40]);
    }
}

#[test]
fn what_cannot_be_attached_is_refused_by_kind() {
    for device in linkable() {
        let mut vector = Vector::from_slice(&[1_u8; 64]).unwrap();
        vector.to_device(&device).unwrap();
        assert_eq!(*vector.attach(&device).unwrap_err().kind(), ErrorKind::AlreadyAttached);
        assert_eq!(vector.host_link(&device), Some(HostLink::Separate));
        let refused = vector.acquire_device_writes(&device).unwrap_err();
        assert_eq!(*refused.kind(), ErrorKind::WrongLocation);
        let refused = vector.publish_host_writes(&device).unwrap_err();
        assert_eq!(*refused.kind(), ErrorKind::WrongLocation);
        vector.free_all_buffers().unwrap();
        vector.attach(&device).unwrap();
        assert_eq!(*vector.attach(&device).unwrap_err().kind(), ErrorKind::AlreadyAttached);
        let mut only = Vector::<u8>::device_only(&device, 4).unwrap();
        assert!(only.attach(&device).is_err());

        let buffer = HostBuffer::allocate(4096, HostMemoryOptions::default()).unwrap();
        let (_, odd) = HostSlice::from(buffer).split_at(1).unwrap();
        let mut odd = Vector::<u8>::over(odd).unwrap();
        match (device.info().backend, odd.attach(&device)) {
            // The API wants its own alignment; a CPU's own memory has none.
            (BackendKind::OpenCl, Err(refused)) => {
                assert!(matches!(refused.kind(), ErrorKind::Misaligned { .. }), "{refused}");
            }
            (_, attached) => attached.unwrap(),
        }
    }
}

#[test]
fn devices_that_are_no_cpu_refuse() {
    for device in devices().into_iter().filter(|device| !device.capabilities().host_buffer.is_available()) {
        let mut vector = Vector::from_slice(&[1_u8; 64]).unwrap();
        let refused = vector.attach(&device).unwrap_err();
        match device.info().backend {
            BackendKind::OpenCl => assert_eq!(*refused.kind(), ErrorKind::NotCpuDevice),
            backend => {
                assert_eq!(*refused.kind(), ErrorKind::Unsupported { backend, feature: "host_buffer" });
            }
        }
        assert_eq!(vector.location(), Location::Cpu);
    }
}

/// The memory belongs to the buffer as well: dropping the vector frees nothing that work still uses.
#[test]
fn pending_work_keeps_the_host_memory() {
    for device in linkable() {
        let stream = device.create_stream(StreamOptions::default()).unwrap();
        let mut back = Vec::new();
        for turn in 0..20_u8 {
            let mut vector = Vector::from_slice(&vec![turn; 1 << 16]).unwrap();
            vector.attach(&device).unwrap();
            back.push(vector.copy_to_host_on(&stream, 0, vec![0; 1 << 16]).unwrap());
            assert!(matches!(
                vector.free_buffer(&device).map_err(|error| error.kind().clone()),
                Ok(()) | Err(ErrorKind::InFlight)
            ));
        }
        for (turn, pending) in (0..20_u8).zip(back) {
            assert!(pending.wait().unwrap().iter().all(|&byte| byte == turn));
        }
    }
}

/// Resident memory of this process, in bytes.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn rule_24_a_buffer_over_host_memory_takes_no_second_copy() {
    const BYTES: u64 = 512 << 20;
    for device in linkable().into_iter().filter(|device| device.info().backend == BackendKind::OpenCl) {
        let mut vector = Vector::<u8>::zeroed(BYTES).unwrap();
        vector.as_mut_slice().unwrap().fill(7);
        let before = resident_bytes();
        vector.attach(&device).unwrap();
        vector.copy_to_device(BYTES / 2, &[8; 1000]).unwrap();
        assert_eq!(vector.get(BYTES / 2 + 999).unwrap(), 8);
        let in_place = resident_bytes().saturating_sub(before);
        vector.free_buffer(&device).unwrap();
        let before = resident_bytes();
        vector.to_device(&device).unwrap();
        let copied = resident_bytes().saturating_sub(before);
        // Other tests of this file run beside this one and take a few MiB.
        assert!(in_place < BYTES / 4, "{}: {in_place} bytes in place", device.info().name);
        assert!(copied > BYTES / 2, "{}: a buffer of its own took {copied} bytes", device.info().name);
    }
}
