//! Staged writes interleaved with launches: no launch is lost, on any device that launches.
#![allow(clippy::unwrap_used)]

use spoc_backends::{found, probe};
use spoc_driver::{
    Arguments, BuiltIn, Device, DeviceName, DeviceSelector, Driver, Grid, Kernel, PinnedHandle, Stream,
    StreamOptions, Vector,
};

/// Of each of the four variants: twenty a device.
const RUNS: usize = 5;
const WRITES: u32 = 300;
const SLOTS: usize = 8;
const GRID: Grid = Grid { groups: [1, 1, 1], group: [64, 1, 1] };

fn devices() -> Vec<Device> {
    let driver = Driver::new(found(&probe()));
    let open = |info: spoc_driver::DeviceInfo| {
        let device = DeviceName::Index(info.index);
        driver.open(&DeviceSelector { backend: info.backend, device }).unwrap()
    };
    let launches = |device: &Device| device.capabilities().launch.is_available();
    driver.devices().into_iter().map(open).filter(launches).collect()
}

/// Adds 1 … `WRITES` on the device, each number written just before the launch that adds it. Answers the sum.
fn run(device: &Device, stream: Option<&Stream>, own_ring: bool, frees: bool) -> u32 {
    let add = Kernel::built_in(BuiltIn::Add);
    let mut number = Vector::<u32>::device_only(device, 64).unwrap();
    number.copy_to_device(0, &[0; 64]).unwrap();
    let sums = [Vector::<u32>::zeroed(64).unwrap(), Vector::<u32>::zeroed(64).unwrap()];
    let [mut sum, mut next] = sums;
    sum.to_device(device).unwrap();
    next.to_device(device).unwrap();
    let default = device.default_stream();
    let mut ring: Vec<_> = (0..SLOTS).map(|_| PinnedHandle::alloc(device, 4).unwrap()).collect();
    for write in 1..=WRITES {
        if own_ring {
            let slot = &mut ring[write as usize % SLOTS];
            if slot.as_mut_slice().is_err() {
                stream.unwrap_or(&default).synchronize().unwrap();
            }
            slot.as_mut_elements::<u32>().unwrap()[0] = write;
            number.copy_to_device_on(stream.unwrap_or(&default), 0, slot.lend(0..4).unwrap()).unwrap();
        } else {
            match stream {
                Some(stream) => number.stage_to_device_on(stream, 0, &[write]).unwrap(),
                None => number.stage_to_device(0, &[write]).unwrap(),
            }
        }
        let arguments = Arguments::new().read(&sum).read(&number).write(&mut next);
        match stream {
            Some(stream) => stream.launch(&add, GRID, &arguments).unwrap(),
            None => device.launch(&add, GRID, &arguments).unwrap(),
        }
        std::mem::swap(&mut sum, &mut next);
        if frees {
            // What is freed while the loop runs must not disturb it.
            let other = Vector::<u8>::device_only(device, 4096).unwrap();
            drop((other, PinnedHandle::alloc(device, 64).unwrap()));
        }
    }
    if let Some(stream) = stream {
        stream.synchronize().unwrap();
    }
    sum.get(0).unwrap()
}

#[test]
fn no_launch_is_lost_among_staged_writes() {
    for device in devices() {
        let stream = device.create_stream(StreamOptions::default()).unwrap();
        for own_ring in [false, true] {
            for frees in [false, true] {
                for number in 0..RUNS {
                    let on = (number % 2 == 0).then_some(&stream);
                    let sum = run(&device, on, own_ring, frees);
                    assert_eq!(
                        sum,
                        WRITES * (WRITES + 1) / 2,
                        "{}, run {number}, own ring {own_ring}, frees {frees}",
                        device.info().name
                    );
                }
            }
        }
    }
}
