//! Device-only vectors.
#![cfg(feature = "fake")]
#![allow(clippy::unwrap_used)]

mod common;

use common::{assert_clean, driven};
use spoc_driver::{DeviceVector, ElementKind, ErrorKind, VECTOR_ELEMENTS_MAX};

#[test]
fn elements_arrive_and_come_back() {
    let (device, control) = driven();
    let vector = DeviceVector::<f32>::allocate(&device, 100).unwrap();
    assert_eq!((vector.len(), vector.kind(), vector.is_empty()), (100, ElementKind::F32, false));
    vector.write(10, &[1.5, -2.0]).unwrap();
    let mut back = [0.0; 2];
    vector.read(10, &mut back).unwrap();
    assert_eq!(back, [1.5, -2.0]);
    vector.write(100, &[]).unwrap();
    assert!(matches!(vector.write(99, &[0.0; 2]).unwrap_err().kind(), ErrorKind::OutOfBounds { .. }));
    assert!(matches!(vector.read(u64::MAX, &mut back).unwrap_err().kind(), ErrorKind::OutOfBounds { .. }));
    drop((vector, device));
    assert_clean(&control);
}

#[test]
fn views_share_their_segment() {
    let (device, control) = driven();
    let segment = device.allocate(64).unwrap();
    let halves = DeviceVector::<half::f16>::view(&segment, 2, 31).unwrap();
    let words = DeviceVector::<u64>::view(&segment, 8, 7).unwrap();
    halves.write(3, &[half::f16::from_bits(0x1234)]).unwrap();
    let mut word = [0];
    words.read(0, &mut word).unwrap();
    assert_eq!(word[0].to_le_bytes()[..2], [0x34, 0x12]);
    assert!(matches!(
        DeviceVector::<u32>::view(&segment, 2, 1).unwrap_err().kind(),
        ErrorKind::Misaligned { value: 2, align: 4 }
    ));
    assert!(matches!(
        DeviceVector::<u32>::view(&segment, 4, 16).unwrap_err().kind(),
        ErrorKind::OutOfBounds { .. }
    ));
    drop((halves, words, segment, device));
    assert_clean(&control);
}

#[test]
fn lengths_are_one_to_i32_max() {
    let (device, control) = driven();
    assert_eq!(*DeviceVector::<u8>::allocate(&device, 0).unwrap_err().kind(), ErrorKind::ZeroSize);
    let too_long = DeviceVector::<u8>::allocate(&device, VECTOR_ELEMENTS_MAX + 1).unwrap_err();
    assert_eq!(*too_long.kind(), ErrorKind::TooLarge { need: 1 << 31, max: VECTOR_ELEMENTS_MAX });
    assert!(DeviceVector::<u64>::allocate(&device, u64::MAX).is_err());
    drop(device);
    assert_clean(&control);
}
