//! What cannot be provoked from outside: the end of a device, and a mistake that validation has to see.

use std::sync::Arc;

use ash::vk;
use spoc_driver::backend::{Backend, CopyOp, SegmentOptions, StreamOptions};
use spoc_driver::{ErrorKind, Result};

use super::Options;
use super::adapter::Vulkan;
use super::device::Device;
use super::memory::RawBuffer;

/// The first device of an opening of its own, or nothing, with a line that says why.
#[allow(clippy::print_stderr)]
fn open(options: Options) -> Option<(Vulkan, Device)> {
    match Vulkan::probe(options) {
        Ok(vulkan) => {
            let device = vulkan.open(0).unwrap();
            Some((vulkan, device))
        }
        Err(reason) => {
            eprintln!("not run: {reason}");
            None
        }
    }
}

fn is_lost<T>(outcome: Result<T>) -> bool {
    matches!(outcome, Err(error) if *error.kind() == ErrorKind::DeviceLost)
}

#[test]
fn a_lost_device_refuses_everything_and_leaves_others_alone() {
    let Some((vulkan, device)) = open(Options::default()) else { return };
    if !device.shared.core.physical.is_software {
        // Other drivers may take such a mistake in their stride, or end worse.
        return;
    }
    let stream = vulkan.create_stream(&device, StreamOptions::default()).unwrap();
    let event = vulkan.create_event(&device).unwrap();
    let buffer = vulkan.allocate(&device, 4096, SegmentOptions::default()).unwrap();
    let pinned = vulkan.alloc_pinned(&device, 4096).unwrap();
    let op = || CopyOp { src: pinned.as_ptr().cast_const(), dst: &buffer, dst_offset: 0, len_bytes: 4096 };
    // SAFETY: source and destination live until the end of the test.
    unsafe { vulkan.copy_to_device(&device, &stream, op()) }.unwrap();
    vulkan.record_event(&device, &stream, &event).unwrap();
    vulkan.synchronize_stream(&device, &stream).unwrap();

    device.shared.lane(0).lose_device(&device.shared.core);

    // SAFETY: as above.
    assert!(is_lost(unsafe { vulkan.copy_to_device(&device, &stream, op()) }));
    assert!(is_lost(vulkan.synchronize_stream(&device, &stream)));
    assert!(is_lost(vulkan.query_stream(&device, &stream)));
    assert!(is_lost(vulkan.record_event(&device, &stream, &event)));
    assert!(is_lost(vulkan.query_event(&device, &event)));
    assert!(is_lost(vulkan.synchronize_event(&device, &event)));
    assert!(is_lost(vulkan.allocate(&device, 4096, SegmentOptions::default())));
    assert!(is_lost(vulkan.alloc_pinned(&device, 4096)));
    assert!(is_lost(vulkan.memory(&device)));
    assert!(is_lost(vulkan.synchronize_device(&device)));
    drop((buffer, pinned, stream));
    // A device is lost by itself: opening it again gives a new one.
    let again = vulkan.open(0).unwrap();
    let buffer = vulkan.allocate(&again, 4096, SegmentOptions::default()).unwrap();
    let stream = vulkan.default_stream(&again).unwrap();
    // SAFETY: the buffer lives until the stream has been waited for.
    unsafe { vulkan.fill(&again, &stream, (&buffer, 0), 4096, 7) }.unwrap();
    vulkan.synchronize_stream(&again, &stream).unwrap();
}

/// Silence of the validation layer means something only if it is not deaf.
#[test]
#[allow(clippy::print_stderr)]
fn the_validation_layer_hears_a_mistake() {
    let Some((vulkan, device)) = open(Options { validation: true, ..Options::default() }) else { return };
    assert_eq!(vulkan.counters().read().validation_messages, 0);
    // A buffer of no bytes is forbidden, and harmless.
    let _ = RawBuffer::create(&device.shared.core, 0, None::<vk::ExternalMemoryHandleTypeFlags>);
    assert!(vulkan.counters().read().validation_messages > 0);
}

#[test]
fn what_is_opened_is_closed() {
    let Some((vulkan, device)) = open(Options { lanes: Some(4), ..Options::default() }) else { return };
    assert_eq!(device.shared.lanes().len(), 4);
    let (core, stream) = (Arc::downgrade(&device.shared.core), vulkan.default_stream(&device).unwrap());
    drop(device);
    drop(vulkan);
    assert!(core.upgrade().is_some(), "the stream holds the device");
    drop(stream);
    assert!(core.upgrade().is_none(), "nothing holds the device in a circle");
}
