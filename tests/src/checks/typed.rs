//! Device-only vectors: kinds, lengths, and bytes across kinds.

use half::{bf16, f16};
use spoc_driver::{DeviceVector, Element, ElementKind, VECTOR_ELEMENTS_MAX};

use crate::helpers::pattern;
use crate::{Subject, refused};

/// Calls a generic function for every kind of element, with its kind.
macro_rules! for_every_kind {
    ($function:ident($($argument:expr),*)) => {{
        $function::<u8>(ElementKind::U8, $($argument),*);
        $function::<i8>(ElementKind::I8, $($argument),*);
        $function::<u16>(ElementKind::U16, $($argument),*);
        $function::<i16>(ElementKind::I16, $($argument),*);
        $function::<u32>(ElementKind::U32, $($argument),*);
        $function::<i32>(ElementKind::I32, $($argument),*);
        $function::<u64>(ElementKind::U64, $($argument),*);
        $function::<i64>(ElementKind::I64, $($argument),*);
        $function::<f16>(ElementKind::F16, $($argument),*);
        $function::<bf16>(ElementKind::Bf16, $($argument),*);
        $function::<f32>(ElementKind::F32, $($argument),*);
        $function::<f64>(ElementKind::F64, $($argument),*);
    }};
}

/// A device-only vector has between one and `i32::MAX` elements, whatever their kind.
pub fn rule_02_device_only_lengths_are_1_to_i32_max(subject: &Subject) {
    for_every_kind!(lengths(subject));
}

fn lengths<T: Element>(_: ElementKind, subject: &Subject) {
    assert_eq!(VECTOR_ELEMENTS_MAX, 2_147_483_647);
    let segment = subject.device.allocate(4096).unwrap();
    for len in [VECTOR_ELEMENTS_MAX + 1, u64::from(u32::MAX), u64::MAX] {
        refused(DeviceVector::<T>::allocate(&subject.device, len), "too_large");
        refused(DeviceVector::<T>::view(&segment, 0, len), "too_large");
    }
    refused(DeviceVector::<T>::allocate(&subject.device, 0), "zero_size");
    refused(DeviceVector::<T>::view(&segment, 0, 0), "zero_size");
    // The longest one is allowed, but this segment is shorter.
    refused(DeviceVector::<T>::view(&segment, 0, VECTOR_ELEMENTS_MAX), "out_of_bounds");
    let one = DeviceVector::<T>::allocate(&subject.device, 1).unwrap();
    assert_eq!((one.len(), one.is_empty()), (1, false));
}

/// Elements of every kind come back bit by bit, payloads of NaNs included.
pub fn rule_04_elements_of_every_kind_come_back_bit_by_bit(subject: &Subject) {
    for_every_kind!(round_trip(subject));
}

/// Elements with these bytes.
fn elements<T: Element>(bytes: &[u8]) -> Vec<T> {
    let mut elements = vec![T::default(); bytes.len() / size_of::<T>()];
    let room = size_of_val(elements.as_slice());
    // SAFETY: elements are plain numbers, of which every bit pattern is one; the room is theirs.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), elements.as_mut_ptr().cast(), room) };
    elements
}

fn bytes_of<T: Element>(elements: &[T]) -> Vec<u8> {
    // SAFETY: plain numbers without padding are initialised bytes, borrowed for the call.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast::<u8>(), size_of_val(elements)) }.to_vec()
}

fn round_trip<T: Element>(kind: ElementKind, subject: &Subject) {
    let vector = DeviceVector::<T>::allocate(&subject.device, 512).unwrap();
    assert_eq!((vector.kind(), vector.len()), (kind, 512));
    let values = elements::<T>(&pattern(kind as u64, 512 * size_of::<T>()));
    vector.write(0, &values).unwrap();
    // A part, at a multiple of the granule: eight elements are at least eight bytes.
    let part = elements::<T>(&pattern(99, 24 * size_of::<T>()));
    vector.write(104, &part).unwrap();
    let mut back = vec![T::default(); 512];
    vector.read(0, &mut back).unwrap();
    let mut expected = bytes_of(&values);
    expected[104 * size_of::<T>()..128 * size_of::<T>()].copy_from_slice(&bytes_of(&part));
    assert_eq!(bytes_of(&back), expected, "{kind:?}");
    let mut few = vec![T::default(); 8];
    vector.read(112, &mut few).unwrap();
    assert_eq!(bytes_of(&few), bytes_of(&part)[8 * size_of::<T>()..16 * size_of::<T>()]);
}

/// Bounds count elements, and an index that would overflow in bytes is caught.
pub fn vectors_bounds_count_elements(subject: &Subject) {
    for_every_kind!(bounds(subject));
}

fn bounds<T: Element>(_: ElementKind, subject: &Subject) {
    let vector = DeviceVector::<T>::allocate(&subject.device, 64).unwrap();
    vector.write(0, &elements::<T>(&pattern(5, 64 * size_of::<T>()))).unwrap();
    for (first, count) in [(64, 8), (63, 2), (0, 65), (u64::MAX, 1), (u64::MAX / 4, 8)] {
        let error = refused(vector.write(first, &vec![T::default(); count]), "out_of_bounds");
        assert!(error.to_string().contains("64"), "{error}");
        refused(vector.read(first, &mut vec![T::default(); count]), "out_of_bounds");
    }
    vector.write(64, &[]).unwrap();
    vector.read(64, &mut []).unwrap();
    vector.read(56, &mut [T::default(); 8]).unwrap();
}

/// A view begins at a multiple of its element's size and ends within its segment.
pub fn vectors_views_are_aligned_and_inside(subject: &Subject) {
    for_every_kind!(views(subject));
}

fn views<T: Element>(_: ElementKind, subject: &Subject) {
    let segment = subject.zeroes(1024);
    let size = size_of::<T>() as u64;
    let view = DeviceVector::<T>::view(&segment, 64, 8).unwrap();
    assert_eq!(view.offset_bytes(), 64);
    assert!(view.segment().is(&segment));
    let values = elements::<T>(&pattern(7, 8 * size_of::<T>()));
    view.write(0, &values).unwrap();
    let mut expected = vec![0; 1024];
    expected[64..64 + 8 * size_of::<T>()].copy_from_slice(&bytes_of(&values));
    assert_eq!(subject.contents(&segment), expected);
    refused(DeviceVector::<T>::view(&segment, 1024 - 7 * size, 8), "out_of_bounds");
    refused(DeviceVector::<T>::view(&segment, u64::MAX - size + 1, 1), "out_of_bounds");
    if size > 1 {
        refused(DeviceVector::<T>::view(&segment, 64 + size / 2, 8), "misaligned");
    }
}

/// Bytes cross kinds as they are: what was written as one kind is read as another, in the host's order.
pub fn rule_04_bytes_cross_kinds_without_conversion(subject: &Subject) {
    let vector = DeviceVector::<i32>::allocate(&subject.device, 1024).unwrap();
    let ids: Vec<i32> = (0..16).map(|id| id - 8).collect();
    vector.write(0, &vec![-1; 1024]).unwrap();
    vector.write(32, &ids).unwrap();
    let mut bytes = [0; 64];
    vector.segment().read(vector.offset_bytes() + 128, &mut bytes).unwrap();
    assert_eq!(bytes.to_vec(), bytes_of(&ids));
    let floats = DeviceVector::<f32>::view(vector.segment(), 128, 16).unwrap();
    let mut read = [0.0; 16];
    floats.read(0, &mut read).unwrap();
    assert_eq!(read.map(f32::to_bits).map(u32::cast_signed).to_vec(), ids);
    // Exactly as many bytes as the destination has, no more.
    let halves = DeviceVector::<f16>::view(vector.segment(), 128, 4).unwrap();
    let mut read = [f16::ZERO; 4];
    halves.read(0, &mut read).unwrap();
    assert_eq!(bytes_of(&read), bytes_of(&ids)[..8]);
}

/// A device-only vector that is dropped discards its contents and gives its memory back.
pub fn rule_05_dropping_a_device_only_vector_frees_it(subject: &Subject) {
    let vector = DeviceVector::<u64>::allocate(&subject.device, 1000).unwrap();
    assert_eq!(subject.device.memory_in_use(), 8000);
    drop(vector);
    assert_eq!(subject.device.memory_in_use(), 0);
    let segment = subject.filled_with(&pattern(8, 64));
    drop(DeviceVector::<u64>::view(&segment, 0, 8).unwrap());
    assert_eq!(subject.contents(&segment), pattern(8, 64), "a view's end touched the segment");
}
