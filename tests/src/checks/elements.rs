//! Vectors with a host side: kinds, records, bounds, streams.

use std::thread;
use std::time::Duration;

use half::{bf16, f16};
use spoc_driver::{Element, ElementKind, Elements, Item, Location, Stream, VECTOR_ELEMENTS_MAX, Vector};

use crate::helpers::pattern;
use crate::{Hold, Subject, refused};

/// Elements with the bytes of a pattern.
fn elements<T: Element>(seed: u64, len: usize) -> Vec<T> {
    pattern(seed, len * size_of::<T>()).chunks_exact(size_of::<T>()).map(T::load).collect()
}

fn bytes_of<T: Element>(elements: &[T]) -> Vec<u8> {
    let mut bytes = vec![0; size_of_val(elements)];
    for (element, place) in elements.iter().zip(bytes.chunks_exact_mut(size_of::<T>())) {
        element.store(place);
    }
    bytes
}

fn for_every_kind(mut check: impl Check) {
    check.check::<u8>(ElementKind::U8);
    check.check::<i8>(ElementKind::I8);
    check.check::<u16>(ElementKind::U16);
    check.check::<i16>(ElementKind::I16);
    check.check::<u32>(ElementKind::U32);
    check.check::<i32>(ElementKind::I32);
    check.check::<u64>(ElementKind::U64);
    check.check::<i64>(ElementKind::I64);
    check.check::<f16>(ElementKind::F16);
    check.check::<bf16>(ElementKind::Bf16);
    check.check::<f32>(ElementKind::F32);
    check.check::<f64>(ElementKind::F64);
}

trait Check {
    fn check<T: Element>(&mut self, kind: ElementKind);
}

struct RoundTrip<'a>(&'a Subject);

impl Check for RoundTrip<'_> {
    fn check<T: Element>(&mut self, kind: ElementKind) {
        let Self(subject) = self;
        let stream = subject.stream();
        let mut expected = bytes_of(&elements::<T>(1, 200));
        let mut vector = Vector::from_slice(&elements::<T>(1, 200)).unwrap();
        assert_eq!((vector.kind(), vector.len()), (Some(kind), 200));
        assert_eq!(vector.len_bytes(), expected.len() as u64);
        vector.to_device(&subject.device).unwrap();
        // Parts at multiples of eight elements, which are multiples of every granule.
        let (first, second) = (elements::<T>(2, 24), elements::<T>(3, 40));
        vector.copy_to_device(16, &first).unwrap();
        vector.copy_to_device_on(&stream, 120, Elements(second.clone())).unwrap();
        let size = size_of::<T>();
        expected[16 * size..40 * size].copy_from_slice(&bytes_of(&first));
        expected[120 * size..160 * size].copy_from_slice(&bytes_of(&second));
        let back = vector.copy_to_host_on(&stream, 8, Elements(vec![T::default(); 160])).unwrap();
        assert_eq!(bytes_of(&back.wait().unwrap().0), expected[8 * size..168 * size], "{kind}");
        assert_eq!(bytes_of(&vector.to_vec().unwrap()), expected, "{kind}");
        assert_eq!(bytes_of(vector.as_slice().unwrap()), expected, "{kind}");
        vector.set(7, elements::<T>(4, 1)[0]).unwrap();
        assert_eq!(bytes_of(&[vector.get(7).unwrap()]), bytes_of(&elements::<T>(4, 1)));
    }
}

/// Vectors of every kind make the round trip bit by bit.
pub fn rule_04_vectors_of_every_kind_make_the_round_trip(subject: &Subject) {
    for_every_kind(RoundTrip(subject));
}

struct Bounds<'a>(&'a Subject);

impl Check for Bounds<'_> {
    fn check<T: Element>(&mut self, _: ElementKind) {
        let Self(subject) = self;
        let stream = subject.stream();
        let values = elements::<T>(5, 64);
        let mut vector = Vector::from_slice(&values).unwrap();
        vector.to_device(&subject.device).unwrap();
        for (first, count) in [(64, 8), (60, 8), (0, 72), (u64::MAX, 8), (u64::MAX / 2, 8)] {
            let some = vec![T::default(); count];
            refused(vector.copy_to_device(first, &some), "out_of_bounds");
            refused(vector.copy_to_host(first, &mut some.clone()), "out_of_bounds");
            refused(vector.copy_to_device_on(&stream, first, Elements(some.clone())), "out_of_bounds");
            let returned = vector.copy_to_host_on(&stream, first, Elements(some)).unwrap_err();
            assert_eq!(returned.error.kind().as_str(), "out_of_bounds");
            assert_eq!(returned.source.0.len(), count, "the destination did not come back");
        }
        let len_bytes = vector.len_bytes();
        for offset in [len_bytes, u64::MAX, u64::MAX - 7] {
            refused(vector.copy_bytes_to_device(offset, &[0; 8]), "out_of_bounds");
            refused(vector.copy_bytes_to_host(offset, &mut [0; 8]), "out_of_bounds");
            refused(vector.copy_bytes_to_device_on(&stream, offset, vec![0; 8]), "out_of_bounds");
            refused(vector.copy_bytes_to_host_on(&stream, offset, vec![0; 8]), "out_of_bounds");
        }
        vector.copy_to_device(64, &[]).unwrap();
        vector.copy_to_host(64, &mut []).unwrap();
        vector.copy_to_device_on(&stream, 64, Elements(Vec::<T>::new())).unwrap();
        for index in [64, u64::MAX] {
            refused(vector.get(index).map(|_| ()), "out_of_bounds");
            refused(vector.set(index, T::default()), "out_of_bounds");
        }
        assert_eq!(bytes_of(&vector.to_vec().unwrap()), bytes_of(&values));
    }
}

/// Every access to a vector checks its bounds, in elements or bytes, overflow included.
pub fn vectors_every_access_checks_its_bounds(subject: &Subject) {
    for_every_kind(Bounds(subject));
}

struct Lengths<'a>(&'a Subject);

impl Check for Lengths<'_> {
    fn check<T: Element>(&mut self, _: ElementKind) {
        let Self(subject) = self;
        for len in [VECTOR_ELEMENTS_MAX + 1, u64::MAX] {
            refused(Vector::<T>::device_only(&subject.device, len), "too_large");
        }
        refused(Vector::<T>::device_only(&subject.device, 0), "zero_size");
        refused(Vector::<T>::on_device(&subject.device, 0), "zero_size");
        refused(Vector::<T>::from_slice(&[]), "zero_size");
        refused(Vector::<T>::zeroed(u64::MAX), "too_large");
        let one = Vector::<T>::device_only(&subject.device, 1).unwrap();
        assert_eq!((one.len(), one.location()), (1, Location::DeviceOnly));
    }
}

/// Device-only vectors have between one and `i32::MAX` elements, of any kind.
pub fn rule_02_device_only_vectors_have_1_to_i32_max_elements(subject: &Subject) {
    for_every_kind(Lengths(subject));
}

/// A record, with a hole where a compiler might leave one.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Expert {
    id: u32,
    is_hot: bool,
    weight: f64,
}

impl Item for Expert {
    const LEN_BYTES: usize = 16;

    fn store(&self, out: &mut [u8]) {
        out[..4].copy_from_slice(&self.id.to_ne_bytes());
        out[4..8].copy_from_slice(&[self.is_hot.into(), 0, 0, 0]);
        out[8..].copy_from_slice(&self.weight.to_ne_bytes());
    }

    fn load(from: &[u8]) -> Self {
        let word = |at: usize| f64::from_ne_bytes(from[at..at + 8].try_into().unwrap());
        let id = u32::from_ne_bytes(from[..4].try_into().unwrap());
        Self { id, is_hot: from[4] != 0, weight: word(8) }
    }
}

/// Records move whole; ranged and byte copies and device-only vectors refuse them.
pub fn rule_02_records_move_whole_or_not_at_all(subject: &Subject) {
    let stream = subject.stream();
    let expert = |id: u32| Expert { id, is_hot: id.is_multiple_of(2), weight: f64::from(id) / 3.0 };
    let experts: Vec<_> = (0..50).map(expert).collect();
    refused(Vector::<Expert>::device_only(&subject.device, 4), "wrong_kind");
    let mut vector = Vector::from_slice(&experts).unwrap();
    assert_eq!(vector.kind(), None);
    vector.to_device(&subject.device).unwrap();
    refused(vector.copy_bytes_to_device(0, &[0; 16]), "wrong_kind");
    refused(vector.copy_bytes_to_host(0, &mut [0; 16]), "wrong_kind");
    refused(vector.copy_bytes_to_device_on(&stream, 0, vec![0; 16]), "wrong_kind");
    refused(vector.copy_bytes_to_host_on(&stream, 0, vec![0; 16]), "wrong_kind");
    assert_eq!(vector.location(), Location::Both);
    vector.set(3, expert(99)).unwrap();
    vector.to_device(&subject.other_device()).unwrap();
    vector.free_all_buffers().unwrap();
    let mut expected = experts;
    expected[3] = expert(99);
    assert_eq!(vector.to_vec().unwrap(), expected);
}

/// Byte copies move exactly the destination's bytes, across kinds, as they are.
pub fn rule_04_byte_copies_move_exactly_the_destinations_size(subject: &Subject) {
    let stream = subject.stream();
    let ids: Vec<i32> = (0..1024).map(|id| id * 3 - 7).collect();
    let mut vector = Vector::device_only(&subject.device, 1024).unwrap();
    vector.copy_to_device(0, &ids).unwrap();
    let mut out = [0xEE_u8; 80];
    vector.copy_bytes_to_host(128, &mut out[..64]).unwrap();
    assert_eq!(out[..64], bytes_of(&ids[32..48]));
    assert_eq!(out[64..], [0xEE; 16], "more than the destination was written");
    let read = vector.copy_bytes_to_host_on(&stream, 4000, vec![0; 96]).unwrap().wait().unwrap();
    assert_eq!(read, bytes_of(&ids[1000..]));
    let halves = elements::<f16>(6, 32);
    vector.copy_bytes_to_device(64, &bytes_of(&halves)).unwrap();
    vector.copy_bytes_to_device_on(&stream, 256, bytes_of(&halves)).unwrap();
    stream.synchronize().unwrap();
    let mut expected = bytes_of(&ids);
    expected[64..128].copy_from_slice(&bytes_of(&halves));
    expected[256..320].copy_from_slice(&bytes_of(&halves));
    let mut all = vec![0; 4096];
    vector.copy_bytes_to_host(0, &mut all).unwrap();
    assert_eq!(all, expected);
}

/// Byte copies at any offset and length that the device allows are exact; others are refused by name.
pub fn rule_04_byte_copies_of_vectors_at_odd_offsets(subject: &Subject) {
    let granule = subject.granule();
    let mut expected = pattern(7, 512);
    let mut vector = Vector::<u8>::device_only(&subject.device, 512).unwrap();
    vector.copy_to_device(0, &expected).unwrap();
    for (offset, len) in [(0, 1), (1, 2), (3, 5), (7, 64), (255, 257), (511, 1), (9, 31)] {
        let bytes = pattern(offset as u64 + 50, len);
        let outcome = vector.copy_bytes_to_device(offset as u64, &bytes);
        if offset % granule != 0 || len % granule != 0 {
            refused(outcome, "misaligned");
            continue;
        }
        outcome.unwrap();
        expected[offset..offset + len].copy_from_slice(&bytes);
        let mut back = vec![0; len];
        vector.copy_to_host(offset as u64, &mut back).unwrap();
        assert_eq!(back, bytes);
    }
    let mut all = vec![0; 512];
    vector.copy_bytes_to_host(0, &mut all).unwrap();
    assert_eq!(all, expected);
}

/// A vector on the device whose first half is being overwritten by a held non-blocking stream.
fn busy(subject: &Subject, stream: &Stream) -> (Vector<i32>, Hold) {
    let vector = Vector::from_slice(&[1; 64]).unwrap();
    vector.to_device(&subject.device).unwrap();
    let mut vector = vector;
    let hold = subject.hold(stream);
    vector.copy_to_device_on(stream, 0, Elements(vec![2; 32])).unwrap();
    (vector, hold)
}

/// One of the paths that name no stream.
type Path = (&'static str, fn(&mut Vector<i32>, &Subject));

const SETTLED: [Path; 7] = [
    ("get", |vector, _| assert_eq!(vector.get(0).unwrap(), 2)),
    ("set", |vector, _| {
        vector.set(40, 9).unwrap();
        assert_eq!(vector.to_vec().unwrap()[..32], [2; 32]);
    }),
    ("to_cpu", |vector, _| {
        vector.to_cpu().unwrap();
        assert_eq!(vector.as_slice().unwrap()[..32], [2; 32]);
    }),
    ("to_device of another", |vector, subject| {
        vector.to_device(&subject.other_device()).unwrap();
        assert_eq!(vector.to_vec().unwrap()[..32], [2; 32]);
    }),
    ("copy_to_host", |vector, _| {
        let mut read = [0; 64];
        vector.copy_to_host(0, &mut read).unwrap();
        assert_eq!(read[..32], [2; 32]);
    }),
    ("copy_to_device", |vector, _| {
        vector.copy_to_device(0, &[3; 8]).unwrap();
        let all = vector.to_vec().unwrap();
        assert_eq!((all[0], all[8]), (3, 2));
    }),
    ("copy_within", |vector, _| {
        vector.copy_within(32, 0..32).unwrap();
        assert_eq!(vector.to_vec().unwrap(), [2; 64]);
    }),
];

/// Whatever names no stream waits for non-blocking streams that still use the vector.
pub fn rule_10_implicit_paths_of_vectors_settle_non_blocking_streams(subject: &Subject) {
    for (name, path) in SETTLED {
        let stream = subject.free_stream();
        let (mut vector, hold) = busy(subject, &stream);
        thread::scope(|scope| {
            let user = scope.spawn(|| path(&mut vector, subject));
            if hold.is_certain() {
                thread::sleep(Duration::from_millis(10));
                assert!(!user.is_finished(), "{name} did not settle");
            }
            hold.open();
            assert!(user.join().is_ok(), "{name} saw what was not there yet");
        });
    }
}

/// Naming a stream settles nothing, the default stream included; and neither does other memory.
pub fn rule_10_naming_a_stream_settles_nothing(subject: &Subject) {
    let stream = subject.free_stream();
    let unrelated = Vector::from_slice(&[5; 64]).unwrap();
    unrelated.to_device(&subject.device).unwrap();
    let (vector, hold) = busy(subject, &stream);
    if hold.is_certain() {
        let other = subject.free_stream();
        for stream in [&other, &subject.device.default_stream()] {
            let read = vector.copy_to_host_on(stream, 0, Elements(vec![0; 8])).unwrap().wait().unwrap();
            assert_eq!(read.0, [1; 8]);
        }
    }
    let mut read = [0; 64];
    unrelated.copy_to_host(0, &mut read).unwrap();
    assert_eq!(read, [5; 64]);
    hold.assert_pending(&stream);
    hold.open();
    stream.synchronize().unwrap();
    assert_eq!(vector.to_vec().unwrap()[..32], [2; 32]);
}

/// A vector may be dropped while copies to and from it are pending.
pub fn ledger_vectors_may_be_dropped_while_copies_are_pending(subject: &Subject) {
    let stream = subject.free_stream();
    let (vector, hold) = busy(subject, &stream);
    let pending = vector.copy_to_host_on(&stream, 0, Elements(vec![0; 64])).unwrap();
    drop(vector);
    let stranger = Vector::from_slice(&[8; 64]).unwrap();
    stranger.to_device(&subject.device).unwrap();
    hold.open();
    let read = pending.wait().unwrap().0;
    assert_eq!((&read[..32], &read[32..]), (&[2; 32][..], &[1; 32][..]));
    stream.synchronize().unwrap();
    assert_eq!(stranger.to_vec().unwrap(), [8; 64]);
    drop(stranger);
    assert_eq!(subject.device.memory_in_use(), 0);
}

/// Streams of another device are refused, and give everything back.
pub fn vectors_streams_of_another_device_are_refused(subject: &Subject) {
    let other = subject.other_device();
    let foreign = other.create_stream(Default::default()).unwrap();
    let mut vector = Vector::from_slice(&[1_u16; 64]).unwrap();
    vector.to_device(&subject.device).unwrap();
    let returned = vector.copy_to_device_on(&foreign, 0, Elements(vec![2; 8])).unwrap_err();
    assert_eq!(returned.error.kind().as_str(), "wrong_device");
    assert_eq!(returned.source.0, [2; 8]);
    refused(vector.copy_to_host_on(&foreign, 0, Elements(vec![2; 8])).map(drop), "wrong_device");
    refused(vector.copy_bytes_to_device_on(&foreign, 0, vec![2; 8]), "wrong_device");
    assert_eq!(vector.location(), Location::Both, "a refused write changed the location");
    assert_eq!(vector.to_vec().unwrap(), [1; 64]);
}

/// Odd sizes of whole vectors are moved whole, whatever the granule.
pub fn vectors_of_odd_sizes_move_whole(subject: &Subject) {
    for len in [1, 2, 3, 5, 7, 13, 31, 127, 1001] {
        let bytes = pattern(len as u64, len);
        let vector = Vector::from_slice(&bytes).unwrap();
        vector.to_device(&subject.device).unwrap();
        vector.to_device(&subject.other_device()).unwrap();
        let mut vector = vector;
        vector.free_all_buffers().unwrap();
        assert_eq!(vector.to_vec().unwrap(), bytes);
    }
}
