//! Vectors on a device whose work runs only when somebody waits: locations, transfers, refusals.
#![cfg(feature = "fake")]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

use spoc_driver::backend::BackendKind;
use spoc_driver::fake::{self, FakeControl, FakeOptions, WaitMode};
use spoc_driver::{
    Device, DeviceSelector, Driver, Element, ErrorKind, HostBuffer, HostMemoryOptions, HostSlice, Item,
    Location, StreamOptions, VECTOR_ELEMENTS_MAX, Vector,
};

struct Machine {
    driver: Driver,
    control: FakeControl,
    a: Device,
    b: Device,
}

fn machine() -> Machine {
    let options = FakeOptions { devices: 2, wait_mode: WaitMode::Drive, ..FakeOptions::default() };
    let (probed, control) = fake::backend_with(options);
    let driver = Driver::new(vec![probed]);
    let open = |index| driver.open(&DeviceSelector::index(BackendKind::Fake, index)).unwrap();
    let (a, b) = (open(0), open(1));
    Machine { driver, control, a, b }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.control.violations(), Vec::<String>::new());
        }
    }
}

fn kinds_of<T: Vectors>(machine: &Machine) {
    let items = T::some();
    let mut vector = Vector::from_slice(&items).unwrap();
    vector.to_device(&machine.a).unwrap();
    assert_eq!(vector.location(), Location::Both);
    vector.set(0, items[1]).unwrap();
    assert_eq!(vector.location(), Location::StaleGpu);
    vector.to_device(&machine.a).unwrap();
    vector.to_device(&machine.b).unwrap();
    assert!(vector.home().unwrap().is(&machine.b));
    assert_eq!(vector.get(0).unwrap(), items[1]);
    assert_eq!(vector.to_vec().unwrap()[1..], items[1..]);
}

trait Vectors: Element + PartialEq + std::fmt::Debug {
    fn some() -> Vec<Self>;
}

macro_rules! some {
    ($($type:ty: $make:expr),* $(,)?) => {
        $(impl Vectors for $type {
            fn some() -> Vec<Self> {
                (1..=9_u8).map($make).collect()
            }
        })*
    };
}

some! {
    u8: |i| i, i8: |i| -i.cast_signed(), u16: |i| u16::from(i) << 8, i16: |i| -i16::from(i), u32: u32::from,
    i32: |i| -i32::from(i), u64: |i| u64::from(i) << 40, i64: |i| -i64::from(i),
    half::f16: |i| half::f16::from_f32(f32::from(i) / 4.0), half::bf16: |i| half::bf16::from_f32(f32::from(i)),
    f32: |i| f32::from(i) / 3.0, f64: |i| -f64::from(i) / 7.0,
}

#[test]
fn every_element_kind_makes_the_round_trip() {
    let machine = machine();
    kinds_of::<u8>(&machine);
    kinds_of::<i8>(&machine);
    kinds_of::<u16>(&machine);
    kinds_of::<i16>(&machine);
    kinds_of::<u32>(&machine);
    kinds_of::<i32>(&machine);
    kinds_of::<u64>(&machine);
    kinds_of::<i64>(&machine);
    kinds_of::<half::f16>(&machine);
    kinds_of::<half::bf16>(&machine);
    kinds_of::<f32>(&machine);
    kinds_of::<f64>(&machine);
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Pair {
    count: u32,
    flag: bool,
}

impl Item for Pair {
    const LEN_BYTES: usize = 5;

    fn store(&self, out: &mut [u8]) {
        out[..4].copy_from_slice(&self.count.to_ne_bytes());
        out[4] = u8::from(self.flag);
    }

    fn load(from: &[u8]) -> Self {
        let count = u32::from_ne_bytes([from[0], from[1], from[2], from[3]]);
        Self { count, flag: from[4] != 0 }
    }
}

#[test]
fn records_move_whole_and_never_in_part() {
    let machine = machine();
    let pairs: Vec<Pair> = (0..7).map(|count| Pair { count, flag: count % 2 == 0 }).collect();
    let mut vector = Vector::from_slice(&pairs).unwrap();
    assert_eq!((vector.kind(), vector.len_bytes()), (None, 35));
    vector.to_device(&machine.a).unwrap();
    vector.set(6, Pair { count: 99, flag: true }).unwrap();
    vector.to_device(&machine.b).unwrap();
    assert_eq!(vector.get(6).unwrap().count, 99);
    assert_eq!(vector.to_vec().unwrap()[..6], pairs[..6]);
    let refused = Vector::<Pair>::device_only(&machine.a, 4).unwrap_err();
    assert_eq!(*refused.kind(), ErrorKind::WrongKind);
}

#[test]
fn lengths_are_bounded() {
    let machine = machine();
    assert_eq!(*Vector::<u8>::zeroed(0).unwrap_err().kind(), ErrorKind::ZeroSize);
    assert!(matches!(Vector::<u64>::zeroed(1 << 61).unwrap_err().kind(), ErrorKind::TooLarge { .. }));
    for (len, is_zero) in [(0, true), (VECTOR_ELEMENTS_MAX + 1, false)] {
        let refused = Vector::<u8>::device_only(&machine.a, len).unwrap_err();
        assert_eq!(*refused.kind() == ErrorKind::ZeroSize, is_zero, "{refused}");
    }
    let vector = Vector::from_slice(&[1_u8]).unwrap();
    assert!(matches!(vector.get(1).unwrap_err().kind(), ErrorKind::OutOfBounds { .. }));
    assert!(matches!(vector.get(u64::MAX).unwrap_err().kind(), ErrorKind::OutOfBounds { .. }));
}

/// The reference lost the other elements here: it wrote into a stale host copy.
#[test]
fn one_element_written_while_the_device_is_newer_loses_nothing() {
    let machine = machine();
    let mut vector = Vector::from_slice(&[1_i32, 2, 3]).unwrap();
    vector.to_device(&machine.a).unwrap();
    vector.copy_to_device(0, &[10, 20, 30]).unwrap();
    assert_eq!(vector.location(), Location::StaleCpu);
    vector.set(1, 99).unwrap();
    assert_eq!(vector.location(), Location::StaleGpu);
    assert_eq!(vector.as_slice().unwrap(), [10, 99, 30]);
}

/// The reference uploaded a stale host copy here.
#[test]
fn a_second_device_gets_the_newest_copy() {
    let machine = machine();
    let mut vector = Vector::from_slice(&[1_i32, 2, 3]).unwrap();
    vector.to_device(&machine.a).unwrap();
    vector.copy_to_device(0, &[10, 20, 30]).unwrap();
    vector.to_device(&machine.b).unwrap();
    assert!(vector.home().unwrap().is(&machine.b));
    assert_eq!(vector.location(), Location::Both);
    let mut seen = [0; 3];
    vector.copy_to_host(0, &mut seen).unwrap();
    assert_eq!(seen, [10, 20, 30]);
}

/// The reference dropped the only newest copy here.
#[test]
fn freeing_the_only_newest_copy_brings_it_back_or_is_refused() {
    let machine = machine();
    let mut vector = Vector::from_slice(&[1_i32, 2, 3]).unwrap();
    vector.to_device(&machine.a).unwrap();
    vector.copy_to_device(0, &[10, 20, 30]).unwrap();
    machine.driver.set_automatic_transfers(false);
    assert_eq!(*vector.free_buffer(&machine.a).unwrap_err().kind(), ErrorKind::WrongLocation);
    machine.driver.set_automatic_transfers(true);
    vector.free_buffer(&machine.a).unwrap();
    assert_eq!(vector.location(), Location::Cpu);
    assert_eq!(machine.a.memory_in_use(), 0);
    assert_eq!(vector.as_slice().unwrap(), [10, 20, 30]);
}

#[test]
fn freeing_counts_and_is_idempotent() {
    let machine = machine();
    let mut vector = Vector::from_slice(&[7_u64; 100]).unwrap();
    vector.to_device(&machine.a).unwrap();
    vector.to_device(&machine.b).unwrap();
    assert_eq!((machine.a.memory_in_use(), machine.b.memory_in_use()), (800, 800));
    vector.free_buffer(&machine.a).unwrap();
    vector.free_buffer(&machine.a).unwrap();
    assert_eq!((machine.a.memory_in_use(), machine.b.memory_in_use()), (0, 800));
    assert_eq!(vector.location(), Location::Both);
    vector.to_device(&machine.a).unwrap();
    vector.free_all_buffers().unwrap();
    assert_eq!((machine.a.memory_in_use(), machine.b.memory_in_use()), (0, 0));
    assert_eq!((vector.location(), vector.get(99).unwrap()), (Location::Cpu, 7));
}

#[test]
fn automatic_transfers_are_off_for_one_driver_alone() {
    let (machine, other) = (machine(), machine());
    machine.driver.set_automatic_transfers(false);
    assert!(!machine.a.automatic_transfers() && other.a.automatic_transfers());
    let make = |device: &Device| {
        let mut vector = Vector::from_slice(&[1_i32, 2]).unwrap();
        vector.to_device(device).unwrap();
        vector.copy_to_device(0, &[5]).unwrap();
        vector
    };
    let (mut here, there) = (make(&machine.a), make(&other.a));
    assert_eq!(there.get(0).unwrap(), 5);
    assert_eq!(*here.get(0).unwrap_err().kind(), ErrorKind::WrongLocation);
    assert_eq!(*here.set(0, 1).unwrap_err().kind(), ErrorKind::WrongLocation);
    assert_eq!(*here.as_slice().unwrap_err().kind(), ErrorKind::WrongLocation);
    assert_eq!(here.location(), Location::StaleCpu);
    // Asked for, it still moves.
    here.to_cpu().unwrap();
    assert_eq!(here.get(0).unwrap(), 5);
}

#[test]
fn a_device_only_vector_has_no_host_side_on_a_gpu() {
    let machine = machine();
    let mut vector = Vector::<i32>::device_only(&machine.a, 4).unwrap();
    assert_eq!(vector.location(), Location::DeviceOnly);
    vector.copy_to_device(1, &[1, 2, 3]).unwrap();
    assert_eq!(*vector.get(1).unwrap_err().kind(), ErrorKind::WrongLocation);
    assert_eq!(*vector.set(1, 0).unwrap_err().kind(), ErrorKind::WrongLocation);
    assert_eq!(*vector.to_cpu().unwrap_err().kind(), ErrorKind::WrongLocation);
    assert_eq!(*vector.as_slice().unwrap_err().kind(), ErrorKind::WrongLocation);
    assert_eq!(*vector.as_mut_slice().unwrap_err().kind(), ErrorKind::WrongLocation);
    assert_eq!(*vector.to_device(&machine.b).unwrap_err().kind(), ErrorKind::WrongDevice);
    vector.to_device(&machine.a).unwrap();
    let mut seen = [0; 3];
    vector.copy_to_host(1, &mut seen).unwrap();
    assert_eq!(seen, [1, 2, 3]);
    // Freeing discards; there is nothing left to use.
    vector.free_buffer(&machine.b).unwrap();
    vector.free_buffer(&machine.a).unwrap();
    assert_eq!(machine.a.memory_in_use(), 0);
    assert_eq!(*vector.copy_to_host(0, &mut seen).unwrap_err().kind(), ErrorKind::Released);
    assert_eq!(*vector.to_device(&machine.a).unwrap_err().kind(), ErrorKind::Released);
    vector.free_all_buffers().unwrap();
}

#[test]
fn a_vector_made_on_a_device_gets_a_host_side_when_it_comes_back() {
    let machine = machine();
    let mut vector = Vector::<u16>::on_device(&machine.a, 3).unwrap();
    assert_eq!(vector.location(), Location::Gpu);
    vector.copy_to_device(0, &[1, 2, 3]).unwrap();
    assert_eq!(vector.location(), Location::Gpu);
    assert_eq!(vector.as_slice().unwrap(), [1, 2, 3]);
    assert_eq!(vector.location(), Location::Both);
}

#[test]
fn a_transfer_that_fails_leaves_the_location_as_it_was() {
    let machine = machine();
    let vector = Vector::from_slice(&[1_i32, 2]).unwrap();
    machine.control.fail_allocation(1);
    let failed = vector.to_device(&machine.a).unwrap_err();
    assert!(matches!(failed.kind(), ErrorKind::OutOfDeviceMemory { .. }));
    assert_eq!(vector.location(), Location::Cpu);
    machine.control.refuse_copy(1);
    assert_eq!(*vector.to_device(&machine.a).unwrap_err().kind(), ErrorKind::Backend);
    assert_eq!(vector.location(), Location::Cpu);
    vector.to_device(&machine.a).unwrap();
    assert_eq!(vector.location(), Location::Both);
}

#[test]
fn whole_transfers_settle_non_blocking_streams() {
    let machine = machine();
    let stream = machine.a.create_stream(StreamOptions { non_blocking: true, ..Default::default() }).unwrap();
    let mut vector = Vector::from_slice(&[0_u8; 4]).unwrap();
    vector.to_device(&machine.a).unwrap();
    vector.copy_bytes_to_device_on(&stream, 0, vec![1_u8, 2, 3, 4]).unwrap();
    assert_eq!(machine.a.in_flight(), 1);
    // Coming back waits for the stream, although the default stream does not.
    assert_eq!(vector.as_slice().unwrap(), [1, 2, 3, 4]);
    assert_eq!(machine.a.in_flight(), 0);
}

#[test]
fn caller_memory_can_be_the_host_side() {
    let machine = machine();
    let buffer = HostBuffer::allocate(64, HostMemoryOptions::default()).unwrap();
    let (first, second) = HostSlice::from(buffer).split_at(30).unwrap();
    let mut a = Vector::<u16>::over(first).unwrap();
    let b = Vector::<u16>::over(second).unwrap();
    assert_eq!((a.len(), b.len()), (15, 17));
    a.as_mut_slice().unwrap().fill(0xffff);
    a.to_device(&machine.a).unwrap();
    assert!(b.as_slice().unwrap().iter().all(|&word| word == 0));
    let (_, odd) =
        HostSlice::from(HostBuffer::allocate(64, HostMemoryOptions::default()).unwrap()).split_at(3).unwrap();
    assert!(matches!(Vector::<u16>::over(odd).unwrap_err().kind(), ErrorKind::Misaligned { .. }));
}
