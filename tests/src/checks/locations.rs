//! Where the newest copy of a vector is: every cell of the table, and nothing lost on the way.

use spoc_driver::{Device, Error, Location, Operation, Vector};

use crate::{Subject, refused};

const LEN: u64 = 64;

/// A vector with a known location, and what its newest copy holds.
struct Known {
    vector: Vector<i32>,
    newest: Vec<i32>,
}

fn numbers(seed: i32) -> Vec<i32> {
    (0..64).map(|index| seed * 1000 + index).collect()
}

/// Every copy but the newest holds something else, so that a wrong one is noticed.
fn known(location: Location, device: &Device) -> Known {
    let newest = numbers(7);
    let stale = || Vector::from_slice(&numbers(1)).unwrap();
    let vector = match location {
        Location::Cpu => Vector::from_slice(&newest).unwrap(),
        Location::Gpu => {
            let mut vector = Vector::on_device(device, LEN).unwrap();
            vector.copy_to_device(0, &newest).unwrap();
            vector
        }
        Location::Both => {
            let vector = Vector::from_slice(&newest).unwrap();
            vector.to_device(device).unwrap();
            vector
        }
        Location::StaleCpu => {
            let mut vector = stale();
            vector.to_device(device).unwrap();
            vector.copy_to_device(0, &newest).unwrap();
            vector
        }
        Location::StaleGpu => {
            let mut vector = stale();
            vector.to_device(device).unwrap();
            vector.as_mut_slice().unwrap().copy_from_slice(&newest);
            vector
        }
        Location::DeviceOnly => {
            let mut vector = Vector::device_only(device, LEN).unwrap();
            vector.copy_to_device(0, &newest).unwrap();
            vector
        }
    };
    assert_eq!(vector.location(), location, "making a vector at {location:?}");
    Known { vector, newest }
}

/// What the contract says of one cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cell {
    /// Done; the newest copy is here afterwards.
    Becomes(Location),
    /// Refused, and nothing has changed.
    Refused(&'static str),
    /// Done in place where the device is a CPU; elsewhere refused as `wrong_location`.
    OnCpuDevices,
    /// Nothing is left.
    Released,
}

/// The table, once more, by hand: what the driver says of itself is checked against this.
fn expected(location: Location, operation: Operation, is_home: bool) -> Cell {
    use Cell::{Becomes, OnCpuDevices, Refused, Released};
    use Location::{Both, Cpu, DeviceOnly, Gpu, StaleCpu, StaleGpu};
    match (operation, location) {
        (Operation::Get | Operation::Set | Operation::ToCpu, DeviceOnly) => OnCpuDevices,
        (Operation::Get | Operation::ToCpu, Gpu | StaleCpu) => Becomes(Both),
        (Operation::Get | Operation::ToCpu, unchanged) => Becomes(unchanged),
        (Operation::Set, Cpu) => Becomes(Cpu),
        (Operation::Set, _) => Becomes(StaleGpu),
        (Operation::ToDevice, DeviceOnly) if !is_home => Refused("wrong_device"),
        (Operation::ToDevice, Gpu | StaleCpu | DeviceOnly) if is_home => Becomes(location),
        (Operation::ToDevice, _) => Becomes(Both),
        (Operation::RangedRead | Operation::RangedWrite, Cpu) => Refused("wrong_location"),
        (Operation::RangedRead | Operation::RangedWrite, _) if !is_home => Refused("wrong_device"),
        (Operation::RangedRead | Operation::RangedWrite, StaleGpu) => Refused("wrong_location"),
        (Operation::RangedWrite, Both) => Becomes(StaleCpu),
        (Operation::RangedRead | Operation::RangedWrite, unchanged) => Becomes(unchanged),
        (Operation::FreeBuffer, _) if !is_home => Becomes(location),
        (Operation::FreeBuffer | Operation::FreeAll, DeviceOnly) => Released,
        (Operation::FreeBuffer | Operation::FreeAll, _) => Becomes(Cpu),
        (other, _) => unreachable!("{other:?} has a check of its own"),
    }
}

/// Does the operation with the device; ranged copies go by a stream of it.
fn perform(known: &mut Known, operation: Operation, device: &Device) -> Result<(), Error> {
    let Known { vector, newest } = known;
    match operation {
        Operation::Get => assert_eq!(vector.get(3)?, newest[3]),
        Operation::Set => {
            vector.set(5, -1)?;
            newest[5] = -1;
        }
        Operation::ToCpu => vector.to_cpu()?,
        Operation::ToDevice => vector.to_device(device)?,
        Operation::RangedRead => {
            let stream = device.create_stream(Default::default())?;
            let room = spoc_driver::Elements(vec![0; 16]);
            let read = vector.copy_to_host_on(&stream, 8, room)?.wait()?;
            assert_eq!(read.0, newest[8..24]);
        }
        Operation::RangedWrite => {
            let stream = device.create_stream(Default::default())?;
            vector.copy_to_device_on(&stream, 32, spoc_driver::Elements(vec![-2; 8]))?;
            newest[32..40].fill(-2);
            stream.synchronize()?;
        }
        Operation::FreeBuffer => vector.free_buffer(device)?,
        Operation::FreeAll => vector.free_all_buffers()?,
        other => unreachable!("{other:?} has a check of its own"),
    }
    Ok(())
}

const OPERATIONS: [Operation; 8] = [
    Operation::Get,
    Operation::Set,
    Operation::ToCpu,
    Operation::ToDevice,
    Operation::RangedRead,
    Operation::RangedWrite,
    Operation::FreeBuffer,
    Operation::FreeAll,
];

/// Whether host access to device-only vectors works there.
fn is_cpu(subject: &Subject) -> bool {
    use spoc_driver::BackendKind::{Interpreter, Native};
    matches!(subject.backend.id().kind, Native | Interpreter)
}

#[track_caller]
fn assert_newest(known: &Known) {
    let Known { vector, newest } = known;
    if vector.location() == Location::DeviceOnly {
        let mut read = vec![0; 64];
        vector.copy_to_host(0, &mut read).unwrap();
        assert_eq!(&read, newest);
    } else {
        assert_eq!(&vector.to_vec().unwrap(), newest);
    }
}

/// Every location, every operation, with the home device and with another: result, new location, contents.
pub fn rule_01_every_cell_of_the_location_table(subject: &Subject) {
    let other = subject.other_device();
    for location in Location::ALL {
        for operation in OPERATIONS {
            for (device, is_home) in [(&subject.device, true), (&other, false)] {
                if !is_home && !operation.names_device() {
                    continue;
                }
                let mut known = known(location, &subject.device);
                let outcome = perform(&mut known, operation, device);
                let context = format!("{operation:?} at {location:?} (home: {is_home}): {outcome:?}");
                let mut expected = expected(location, operation, is_home);
                if expected == Cell::OnCpuDevices {
                    expected = match is_cpu(subject) {
                        true => Cell::Becomes(location),
                        false => Cell::Refused("wrong_location"),
                    };
                }
                let next = match expected {
                    Cell::Becomes(next) => {
                        assert!(outcome.is_ok(), "{context}");
                        next
                    }
                    Cell::Refused(kind) => {
                        assert_eq!(outcome.map_err(|e| e.kind().as_str()), Err(kind), "{context}");
                        location
                    }
                    Cell::OnCpuDevices => unreachable!("decided just above"),
                    Cell::Released => {
                        assert!(outcome.is_ok(), "{context}");
                        refused(known.vector.copy_to_host(0, &mut [0]), "released");
                        refused(known.vector.get(0), "released");
                        continue;
                    }
                };
                assert_eq!(known.vector.location(), next, "{context}");
                let home = known.vector.home();
                let is_other = operation == Operation::ToDevice && !is_home && outcome_is_move(expected);
                let expected_home = if is_other { &other } else { &subject.device };
                assert_eq!(home.is_none(), next == Location::Cpu, "{context}");
                assert!(home.is_none_or(|home| home.is(expected_home)), "{context}");
                assert_newest(&known);
            }
        }
    }
    assert_eq!(subject.device.memory_in_use(), 0);
}

fn outcome_is_move(cell: Cell) -> bool {
    matches!(cell, Cell::Becomes(_))
}

/// With automatic transfers off, what would have moved a vector is refused and changes nothing; what asks for
/// a transfer still does it. Another driver is not concerned.
pub fn rule_01_automatic_transfers_can_be_turned_off_for_a_driver(subject: &Subject) {
    let stranger = subject.other_driver();
    subject.driver.set_automatic_transfers(false);
    assert!(stranger.automatic_transfers());
    for location in [Location::Gpu, Location::StaleCpu] {
        let mut known = known_without_transfers(subject, location);
        for operation in [Operation::Get, Operation::Set, Operation::FreeBuffer, Operation::FreeAll] {
            refused(perform(&mut known, operation, &subject.device), "wrong_location");
            assert_eq!(known.vector.location(), location, "{operation:?}");
        }
        refused(known.vector.to_vec(), "wrong_location");
        refused(known.vector.as_slice().map(<[i32]>::len), "wrong_location");
        known.vector.to_cpu().unwrap();
        assert_eq!(known.vector.location(), Location::Both);
        assert_newest(&known);
    }
    subject.driver.set_automatic_transfers(true);
    let known = known(Location::StaleCpu, &subject.device);
    assert_newest(&known);
}

/// As [`known`], by transfers that are asked for.
fn known_without_transfers(subject: &Subject, location: Location) -> Known {
    let known = known(location, &subject.device);
    assert!(!subject.driver.automatic_transfers());
    known
}

/// Ranged writes without a stream, too, leave the host behind; ranged reads leave everything as it is.
pub fn rule_01_copies_without_a_stream_change_the_location_alike(subject: &Subject) {
    for location in [Location::Gpu, Location::Both, Location::StaleCpu, Location::DeviceOnly] {
        let mut known = known(location, &subject.device);
        let mut read = vec![0; 64];
        known.vector.copy_to_host(0, &mut read).unwrap();
        assert_eq!(read, known.newest);
        let mut bytes = vec![0; 256];
        known.vector.copy_bytes_to_host(0, &mut bytes).unwrap();
        let pending = known.vector.copy_bytes_to_host_on(&subject.stream(), 0, vec![0; 256]).unwrap();
        assert_eq!(pending.wait().unwrap(), bytes);
        assert_eq!(known.vector.location(), location, "a read-back changed it");
        known.vector.copy_to_device(8, &[5; 8]).unwrap();
        known.vector.copy_bytes_to_device(64, &[0; 32]).unwrap();
        known.newest[8..16].fill(5);
        known.newest[16..24].fill(0);
        let next = if location == Location::Both { Location::StaleCpu } else { location };
        assert_eq!(known.vector.location(), next);
        assert_newest(&known);
    }
    for location in [Location::Cpu, Location::StaleGpu] {
        let mut known = known(location, &subject.device);
        refused(known.vector.copy_to_device(0, &[1; 8]), "wrong_location");
        refused(known.vector.copy_to_host(0, &mut [1; 8]), "wrong_location");
        refused(known.vector.copy_bytes_to_device(0, &[1; 8]), "wrong_location");
        refused(known.vector.copy_bytes_to_host(0, &mut [1; 8]), "wrong_location");
        assert_newest(&known);
    }
}

/// Between vectors on the device: the source stays as it is, the destination's host copy is left behind.
pub fn rule_01_copies_between_vectors_change_the_destination_alone(subject: &Subject) {
    let stream = subject.stream();
    let source = known(Location::Both, &subject.device);
    for location in [Location::Gpu, Location::Both, Location::StaleCpu, Location::DeviceOnly] {
        let mut to = known(location, &subject.device);
        to.vector.copy_from(0, &source.vector, 32..48).unwrap();
        to.vector.copy_from_on(&stream, 48, &source.vector, 0..16).unwrap();
        stream.synchronize().unwrap();
        to.vector.copy_within(24, 0..8).unwrap();
        to.newest.copy_within(0..16, 48);
        to.newest[..16].copy_from_slice(&source.newest[32..48]);
        to.newest[48..].copy_from_slice(&source.newest[..16]);
        to.newest.copy_within(0..8, 24);
        let next = if location == Location::Both { Location::StaleCpu } else { location };
        assert_eq!(to.vector.location(), next);
        assert_newest(&to);
    }
    assert_eq!(source.vector.location(), Location::Both);
    let mut on_host = known(Location::Cpu, &subject.device);
    refused(on_host.vector.copy_from(0, &source.vector, 0..8), "wrong_location");
    let mut elsewhere = known(Location::Both, &subject.other_device());
    refused(elsewhere.vector.copy_from(0, &source.vector, 0..8), "wrong_device");
    let mut here = known(Location::Gpu, &subject.device);
    refused(here.vector.copy_from(0, &on_host.vector, 0..8), "wrong_location");
    refused(here.vector.copy_within(4, 0..8), "overlap");
    for (first, range) in [(60, 0..8), (0, 60..68), (u64::MAX, 0..8), (0, u64::MAX - 4..u64::MAX)] {
        refused(here.vector.copy_from(first, &source.vector, range), "out_of_bounds");
    }
    assert_newest(&here);
}

/// Host access to a device-only vector works on CPU devices alone, and never gives a slice to keep.
pub fn rule_03_host_access_to_device_only_vectors(subject: &Subject) {
    let Known { mut vector, newest } = known(Location::DeviceOnly, &subject.device);
    if is_cpu(subject) {
        assert_eq!(vector.get(9).unwrap(), newest[9]);
        vector.set(9, 99).unwrap();
        assert_eq!(vector.get(9).unwrap(), 99);
        assert_eq!(vector.to_vec().unwrap()[10..], newest[10..]);
        vector.to_cpu().unwrap();
    } else {
        refused(vector.get(9), "wrong_location");
        refused(vector.set(9, 99), "wrong_location");
        refused(vector.to_vec(), "wrong_location");
        refused(vector.to_cpu(), "wrong_location");
    }
    refused(vector.as_slice().map(<[i32]>::len), "wrong_location");
    refused(vector.as_mut_slice().map(|slice| slice.len()), "wrong_location");
    assert_eq!(vector.location(), Location::DeviceOnly);
    for index in [LEN, u64::MAX] {
        refused(vector.get(index), "out_of_bounds");
        refused(vector.set(index, 0), "out_of_bounds");
    }
}

/// One element written while the device is newer: the rest comes back first and is not lost.
pub fn rule_05_writing_one_element_loses_nothing(subject: &Subject) {
    for location in [Location::Gpu, Location::StaleCpu] {
        let mut known = known(location, &subject.device);
        known.vector.set(0, 1).unwrap();
        known.newest[0] = 1;
        assert_newest(&known);
        known.vector.to_device(&subject.device).unwrap();
        let mut on_device = vec![0; 64];
        known.vector.copy_to_host(0, &mut on_device).unwrap();
        assert_eq!(on_device, known.newest);
    }
}

/// Moving on to a second device takes the newest copy along, never a stale one.
pub fn rule_05_a_second_device_gets_the_newest_copy(subject: &Subject) {
    let other = subject.other_device();
    for location in [Location::Cpu, Location::Gpu, Location::Both, Location::StaleCpu, Location::StaleGpu] {
        let mut known = known(location, &subject.device);
        known.vector.to_device(&other).unwrap();
        let mut there = vec![0; 64];
        known.vector.copy_to_host(0, &mut there).unwrap();
        assert_eq!(there, known.newest, "{location:?}");
        // Written there, and back here: the buffer that is still here is stale.
        known.vector.copy_to_device(0, &[-9; 16]).unwrap();
        known.newest[..16].fill(-9);
        known.vector.to_device(&subject.device).unwrap();
        let mut here = vec![0; 64];
        known.vector.copy_to_host(0, &mut here).unwrap();
        assert_eq!(here, known.newest, "{location:?}");
        assert_newest(&known);
    }
    assert_eq!(other.memory_in_use(), 0);
}

/// Freeing the buffer with the only newest copy brings it back.
pub fn rule_05_freeing_the_newest_copy_brings_it_back(subject: &Subject) {
    for location in [Location::Gpu, Location::Both, Location::StaleCpu, Location::StaleGpu] {
        for is_all in [false, true] {
            let mut known = known(location, &subject.device);
            assert!(known.vector.has_buffer(&subject.device));
            match is_all {
                true => known.vector.free_all_buffers().unwrap(),
                false => known.vector.free_buffer(&subject.device).unwrap(),
            }
            assert!(!known.vector.has_buffer(&subject.device));
            assert_eq!(subject.device.memory_in_use(), 0);
            assert_newest(&known);
            // Nothing there is fine, and so is going there again.
            known.vector.free_buffer(&subject.device).unwrap();
            known.vector.to_device(&subject.device).unwrap();
            assert_newest(&known);
        }
    }
}

/// Freeing a device-only vector discards it; afterwards nothing works but freeing it again.
pub fn rule_05_freeing_a_device_only_vector_discards_it(subject: &Subject) {
    let Known { mut vector, .. } = known(Location::DeviceOnly, &subject.device);
    vector.free_buffer(&subject.other_device()).unwrap();
    assert_eq!(subject.device.memory_in_use(), 256);
    vector.free_buffer(&subject.device).unwrap();
    assert_eq!(subject.device.memory_in_use(), 0);
    refused(vector.get(0), "released");
    refused(vector.copy_to_device(0, &[1; 8]), "released");
    refused(vector.to_device(&subject.device), "released");
    vector.free_all_buffers().unwrap();
}

/// Freeing what a pending stream operation references is refused, until it has run.
pub fn rule_05_freeing_in_flight_is_refused(subject: &Subject) {
    for location in [Location::Gpu, Location::Both, Location::DeviceOnly] {
        let mut known = known(location, &subject.device);
        let stream = subject.free_stream();
        let hold = subject.hold(&stream);
        known.vector.copy_to_device_on(&stream, 0, spoc_driver::Elements(vec![3; 64])).unwrap();
        for is_all in [true, false] {
            let outcome = match is_all {
                true => known.vector.free_all_buffers(),
                false => known.vector.free_buffer(&subject.device),
            };
            match outcome {
                Ok(()) => {
                    assert!(!hold.is_certain(), "freed under a pending copy");
                    assert!(stream.query().unwrap(), "freed before the copy had run");
                }
                Err(error) => assert_eq!(error.kind().as_str(), "in_flight"),
            }
        }
        if hold.is_certain() {
            assert!(known.vector.has_buffer(&subject.device));
        }
        hold.open();
        stream.synchronize().unwrap();
        known.vector.free_all_buffers().unwrap();
        assert!(!known.vector.has_buffer(&subject.device));
    }
}

/// Buffers of vectors count, on every device that has one.
pub fn rule_06_memory_in_use_counts_buffers_of_vectors(subject: &Subject) {
    let other = subject.other_device();
    let mut vector = Vector::from_slice(&numbers(1)).unwrap();
    assert_eq!(subject.device.memory_in_use(), 0);
    vector.to_device(&subject.device).unwrap();
    assert_eq!(subject.device.memory_in_use(), 256);
    vector.to_device(&other).unwrap();
    assert_eq!((subject.device.memory_in_use(), other.memory_in_use()), (256, 256));
    vector.free_buffer(&subject.device).unwrap();
    assert_eq!((subject.device.memory_in_use(), other.memory_in_use()), (0, 256));
    let only = Vector::<f64>::device_only(&subject.device, 100).unwrap();
    assert_eq!(subject.device.memory_in_use(), 800);
    drop((vector, only));
    assert_eq!((subject.device.memory_in_use(), other.memory_in_use()), (0, 0));
}
