//! Every cell of the location table, done: the answer, the new location and home, and the bytes.
#![allow(clippy::unwrap_used)]

use spoc_backends::{interpreter, native};
use spoc_driver::backend::{BackendKind, Probed};
use spoc_driver::fake::{self, FakeOptions, WaitMode};
use spoc_driver::location::{Moves, Next, Outcome, Refusal, Relation, outcome};
use spoc_driver::{
    Arguments, BuiltIn, Device, DeviceSelector, Driver, ErrorKind, Grid, Kernel, Location, Operation, Result,
    Vector,
};

const OLD: [u32; 4] = [1, 2, 3, 4];
const NEWEST: [u32; 4] = [10, 20, 30, 40];
const WRITTEN: u32 = 99;
const GRID: Grid = Grid { groups: [1, 1, 1], group: [64, 1, 1] };

/// A vector whose newest contents are `NEWEST`, at a location of `home`; linked to its host memory if asked.
fn at(location: Location, home: &Device, linked: bool) -> Vector<u32> {
    let make = |vector: &mut Vector<u32>| {
        if linked { vector.attach(home).unwrap() } else { vector.to_device(home).unwrap() }
    };
    let mut vector = match location {
        Location::Cpu | Location::Both => Vector::from_slice(&NEWEST).unwrap(),
        Location::StaleCpu | Location::StaleGpu => Vector::from_slice(&OLD).unwrap(),
        Location::Gpu => Vector::on_device(home, 4).unwrap(),
        Location::DeviceOnly => Vector::device_only(home, 4).unwrap(),
    };
    match location {
        Location::Cpu => {}
        Location::Both => make(&mut vector),
        Location::StaleCpu => {
            make(&mut vector);
            vector.copy_to_device(0, &NEWEST).unwrap();
        }
        Location::StaleGpu => {
            make(&mut vector);
            vector.as_mut_slice().unwrap().copy_from_slice(&NEWEST);
        }
        Location::Gpu | Location::DeviceOnly => vector.copy_to_device(0, &NEWEST).unwrap(),
    }
    assert_eq!(vector.location(), location);
    vector
}

/// Does the operation; writing ones write `WRITTEN` to the first element.
fn perform(vector: &mut Vector<u32>, operation: Operation, named: &Device, is_home: bool) -> Result<()> {
    let stream = named.create_stream(spoc_driver::StreamOptions::default())?;
    match operation {
        Operation::Get => vector.get(0).map(|first| assert_eq!(first, NEWEST[0])),
        Operation::Set => vector.set(0, WRITTEN),
        Operation::ToCpu => vector.to_cpu(),
        Operation::ToDevice => vector.to_device(named),
        Operation::RangedRead if is_home => {
            let mut seen = [0];
            vector.copy_to_host(0, &mut seen).map(|()| assert_eq!(seen[0], NEWEST[0]))
        }
        Operation::RangedRead => {
            let pending = vector.copy_bytes_to_host_on(&stream, 0, vec![0; 4])?;
            assert_eq!(pending.wait()?, NEWEST[0].to_ne_bytes());
            Ok(())
        }
        Operation::RangedWrite if is_home => vector.copy_to_device(0, &[WRITTEN]),
        Operation::RangedWrite => {
            vector.copy_bytes_to_device_on(&stream, 0, WRITTEN.to_ne_bytes().to_vec())?;
            stream.synchronize()
        }
        Operation::Stage if is_home => vector.stage_to_device(0, &[WRITTEN]),
        Operation::Stage => vector.stage_to_device_on(&stream, 0, &[WRITTEN]),
        Operation::LaunchRead => {
            let mut copy = Vector::<u32>::on_device(named, 4)?;
            let kernel = Kernel::built_in(BuiltIn::Copy);
            named.launch(&kernel, GRID, &Arguments::new().read(vector).write(&mut copy))?;
            let mut seen = [0; 4];
            copy.copy_to_host(0, &mut seen).map(|()| assert_eq!(seen, NEWEST))
        }
        Operation::LaunchWrite => {
            let mut first = Vector::<u32>::on_device(named, 1)?;
            first.copy_to_device(0, &[WRITTEN])?;
            let kernel = Kernel::built_in(BuiltIn::Copy);
            named.launch(&kernel, GRID, &Arguments::new().read(&first).write(vector))
        }
        Operation::FreeBuffer => vector.free_buffer(named),
        Operation::FreeAll => vector.free_all_buffers(),
        Operation::Attach => vector.attach(named),
        Operation::Acquire => vector.acquire_device_writes(named),
        Operation::Publish => vector.publish_host_writes(named),
    }
}

fn refusal_kind(refusal: Refusal) -> ErrorKind {
    match refusal {
        Refusal::WrongLocation => ErrorKind::WrongLocation,
        Refusal::WrongDevice => ErrorKind::WrongDevice,
        Refusal::AlreadyAttached => ErrorKind::AlreadyAttached,
    }
}

fn can(device: &Device, operation: Operation) -> bool {
    match operation {
        Operation::LaunchRead | Operation::LaunchWrite => device.capabilities().launch.is_available(),
        Operation::Attach | Operation::Acquire | Operation::Publish => {
            device.capabilities().host_buffer.is_available()
        }
        _ => true,
    }
}

fn is_cpu(device: &Device) -> bool {
    matches!(device.info().backend, BackendKind::Native | BackendKind::Interpreter)
}

/// Visits every cell with the location on `home`; answers how many.
fn visit(driver: &Driver, home: &Device, other: &Device) -> usize {
    let mut visited = 0;
    for location in Location::ALL {
        for operation in Operation::ALL {
            for relation in [Relation::Same, Relation::Other, Relation::None] {
                for automatic in [true, false] {
                    visited +=
                        usize::from(cell(driver, home, other, (location, operation, relation), automatic));
                }
            }
        }
    }
    visited
}

fn cell(
    driver: &Driver,
    home: &Device,
    other: &Device,
    (location, operation, relation): (Location, Operation, Relation),
    automatic: bool,
) -> bool {
    let expected = outcome(location, operation, relation);
    let named = if relation == Relation::Other { other } else { home };
    let is_linking = matches!(operation, Operation::Acquire | Operation::Publish);
    // A link needs a host side from the beginning.
    let cannot_link = is_linking && location == Location::Gpu;
    if expected == Outcome::Impossible || !can(named, operation) || cannot_link {
        return false;
    }
    let is_linked =
        is_linking && !matches!(location, Location::Cpu | Location::DeviceOnly) && can(home, operation);
    let mut vector = at(location, home, is_linked);
    driver.set_automatic_transfers(automatic);
    let is_home = relation != Relation::Other;
    let answer = perform(&mut vector, operation, named, is_home).map_err(|error| error.kind().clone());
    driver.set_automatic_transfers(true);
    let name = format!("{operation:?} at {location}, {relation:?}, automatic {automatic}");
    let (moves, next) = match expected {
        Outcome::Done(moves, next) => (moves, next),
        Outcome::HostBacked if is_cpu(home) => (Moves::Nothing, Next::Stays),
        Outcome::HostBacked => {
            assert_eq!(answer, Err(ErrorKind::WrongLocation), "{name}");
            return check(&vector, location, home, &NEWEST, &name);
        }
        Outcome::Refused(refusal) => {
            assert_eq!(answer, Err(refusal_kind(refusal)), "{name}");
            return check(&vector, location, home, &NEWEST, &name);
        }
        Outcome::Impossible => return false,
    };
    if !automatic && moves.is_transfer() && !operation.asks_for_transfer() {
        assert_eq!(answer, Err(ErrorKind::WrongLocation), "{name}");
        return check(&vector, location, home, &NEWEST, &name);
    }
    assert_eq!(answer, Ok(()), "{name}");
    let mut contents = NEWEST;
    if matches!(
        operation,
        Operation::Set | Operation::RangedWrite | Operation::Stage | Operation::LaunchWrite
    ) {
        contents[0] = WRITTEN;
    }
    match next {
        Next::Stays => check(&vector, location, home, &contents, &name),
        Next::Becomes(location) => {
            let home = if operation.names_device() { named } else { home };
            check(&vector, location, home, &contents, &name)
        }
        Next::Released => {
            assert_eq!(*vector.copy_to_host(0, &mut [0]).unwrap_err().kind(), ErrorKind::Released, "{name}");
            true
        }
    }
}

fn check(vector: &Vector<u32>, location: Location, home: &Device, contents: &[u32; 4], name: &str) -> bool {
    assert_eq!(vector.location(), location, "{name}");
    match vector.home() {
        Some(found) => assert!(found.is(home) && location != Location::Cpu, "{name}"),
        None => assert_eq!(location, Location::Cpu, "{name}"),
    }
    if location == Location::DeviceOnly {
        let mut seen = [0; 4];
        vector.copy_to_host(0, &mut seen).unwrap();
        assert_eq!(seen, *contents, "{name}");
    } else {
        assert_eq!(vector.to_vec().unwrap(), contents, "{name}");
    }
    true
}

fn open(driver: &Driver, kind: BackendKind, index: u32) -> Device {
    driver.open(&DeviceSelector::index(kind, index)).unwrap()
}

fn cpu_backends() -> Vec<Probed> {
    vec![native::backend(native::Options::default()), interpreter::backend(interpreter::Options::default())]
}

/// Cells that occur: 14 operations at 6 locations, with one relation or two; some need a link that cannot be.
const CELLS: usize = 2 * (4 * 6 + 10 * (1 + 5 * 2) - 2 * 2);

#[test]
fn every_cell_on_native() {
    let driver = Driver::new(cpu_backends());
    let (home, other) = (open(&driver, BackendKind::Native, 0), open(&driver, BackendKind::Interpreter, 0));
    assert_eq!(visit(&driver, &home, &other), CELLS);
}

#[test]
fn every_cell_on_the_interpreter() {
    let driver = Driver::new(cpu_backends());
    let (home, other) = (open(&driver, BackendKind::Interpreter, 0), open(&driver, BackendKind::Native, 0));
    assert_eq!(visit(&driver, &home, &other), CELLS);
}

#[test]
fn every_cell_on_the_deferred_fake() {
    let options = FakeOptions { devices: 2, wait_mode: WaitMode::Drive, ..FakeOptions::default() };
    let (probed, control) = fake::backend_with(options);
    let driver = Driver::new(vec![probed]);
    let (home, other) = (open(&driver, BackendKind::Fake, 0), open(&driver, BackendKind::Fake, 1));
    assert!(visit(&driver, &home, &other) > 0);
    assert_eq!(control.violations(), Vec::<String>::new());
}

#[test]
fn every_cell_on_what_else_was_found() {
    let driver = Driver::new(spoc_backends::found(&spoc_backends::probe()));
    let interpreter = open(&driver, BackendKind::Interpreter, 0);
    for info in driver.devices() {
        let home = open(&driver, info.backend, info.index);
        if !is_cpu(&home) {
            assert!(visit(&driver, &home, &interpreter) > 0, "{}", info.name);
        }
    }
}
