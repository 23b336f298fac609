//! What the driver keeps for itself goes with the last handle.
#![cfg(feature = "fake")]
#![allow(clippy::unwrap_used)]

mod common;

use common::{assert_clean, deferred, driven, stream, whole};
use spoc_driver::{ErrorKind, PinnedHandle, Vector};

/// The driver records events of its own in streams that nobody watches. One that is still in the default stream
/// when the device goes must not keep the device alive.
#[test]
fn a_checkpoint_in_the_default_stream_goes_with_the_device() {
    let (device, control) = driven();
    let segment = device.allocate(4).unwrap();
    let stream = device.default_stream();
    for _ in 0..3000 {
        stream.copy_to_device(vec![1; 4], &[whole(&segment, 4)]).unwrap();
        if control.live().events == 1 {
            break;
        }
    }
    assert_eq!(control.live().events, 1, "the driver's own");
    drop((segment, stream, device));
    assert_clean(&control);
}

/// Whether the work still runs is not known then: its memory is given up, never freed under it.
#[test]
fn a_device_that_cannot_be_waited_for_leaks_rather_than_frees() {
    let (device, control) = deferred();
    let segment = device.allocate(4).unwrap();
    let stream = stream(&device);
    stream.copy_to_device(control.source(vec![7; 4]), &[whole(&segment, 4)]).unwrap();
    control.fail_device_wait(1);
    drop((segment, stream, device));
    assert_eq!(control.pending(), 1);
    control.run_all();
    assert_eq!(control.violations(), Vec::<String>::new());
}

#[test]
fn a_vector_a_handle_and_a_loan_may_outlive_the_device() {
    let (device, control) = deferred();
    let mut vector = Vector::<u8>::device_only(&device, 8).unwrap();
    let pinned = PinnedHandle::alloc(&device, 8).unwrap();
    let loan = pinned.lend(0..8).unwrap();
    let stream = stream(&device);
    vector.copy_to_device_on(&stream, 0, pinned.lend(0..4).unwrap()).unwrap();
    drop(device);
    assert_eq!(*vector.free_all_buffers().unwrap_err().kind(), ErrorKind::InFlight);
    drop((stream, pinned));
    control.run_all();
    vector.free_all_buffers().unwrap();
    drop(loan);
    drop(vector);
    assert_clean(&control);
}
