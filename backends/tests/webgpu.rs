//! What only WebGPU has: rings, parts of words, batches, and limits with names.
#![cfg(feature = "webgpu")]
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use spoc_backends::webgpu::{CounterReader, Options, backend_with_counters};
use spoc_driver::{
    Arguments, BackendKind, BuiltIn, Device, DeviceSelector, DeviceVector, Driver, ErrorKind, Grid, Kernel,
    StreamOptions,
};

const GRID: Grid = Grid { groups: [1, 1, 1], group: [64, 1, 1] };

/// The first device with the counters of its backend; none, and a line that says why, where WebGPU is missing.
fn open(options: Options) -> Option<(Device, CounterReader)> {
    match backend_with_counters(options) {
        Ok((probed, counters)) => {
            let driver = Driver::new(vec![probed]);
            Some((driver.open(&DeviceSelector::index(BackendKind::WebGpu, 0)).unwrap(), counters))
        }
        Err(reason) => {
            let required = std::env::var("SPOC_REQUIRE").unwrap_or_default();
            assert!(!required.split(',').any(|name| name.trim() == "webgpu"), "webgpu is required: {reason}");
            eprintln!("not run: webgpu: {reason}");
            None
        }
    }
}

fn noise(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(2_654_435_761) >> 7).to_le_bytes()[0]).collect()
}

#[test]
fn parts_of_words_cost_a_kernel_and_whole_words_none() {
    let Some((device, counters)) = open(Options::default()) else { return };
    let segment = device.allocate(4096).unwrap();
    segment.write(0, &noise(4096)).unwrap();
    segment.write(64, &[7; 128]).unwrap();
    assert_eq!(counters.read().patched_words, 0);
    segment.write(201, &[8; 2]).unwrap();
    segment.write(301, &[9; 10]).unwrap();
    assert_eq!(counters.read().patched_words, 3, "one word, then either end");
    let mut expected = noise(4096);
    expected[64..192].fill(7);
    expected[201..203].fill(8);
    expected[301..311].fill(9);
    let mut found = vec![0; 4096];
    segment.read(0, &mut found).unwrap();
    assert!(found == expected);
}

#[test]
fn copies_longer_than_the_ring_wait_for_it_and_arrive() {
    let Some((device, counters)) = open(Options::default()) else { return };
    let bytes = noise((40 << 20) + 3);
    let segment = device.allocate(bytes.len() as u64).unwrap();
    segment.write(0, &bytes).unwrap();
    let mut found = vec![0; bytes.len()];
    segment.read(0, &mut found).unwrap();
    assert!(found == bytes);
    let counted = counters.read();
    assert!(counted.ring_waits > 0, "{counted:?}");
    assert!(counted.staged_bytes >= 2 * (40 << 20), "{counted:?}");
}

#[test]
fn launches_are_submitted_when_a_batch_is_full_or_asked_for() {
    let Some((device, counters)) = open(Options { batch: Some(4) }) else { return };
    let stream = device.create_stream(StreamOptions::default()).unwrap();
    let from = DeviceVector::<u32>::allocate(&device, 64).unwrap();
    from.write(0, &[5; 64]).unwrap();
    let mut to = DeviceVector::<u32>::allocate(&device, 64).unwrap();
    let mut launch = || {
        let arguments = Arguments::new().read_view(&from).write_view(&mut to);
        stream.launch(&Kernel::built_in(BuiltIn::Copy), GRID, &arguments).unwrap();
    };
    device.flush().unwrap();
    let before = counters.read();
    (0..3).for_each(|_| launch());
    assert_eq!(counters.read().submissions, before.submissions);
    launch();
    assert_eq!(counters.read().submissions, before.submissions + 1);
    launch();
    stream.synchronize().unwrap();
    let after = counters.read();
    assert_eq!((after.submissions, after.launches), (before.submissions + 2, before.launches + 5));
    let mut found = [0; 64];
    to.read(0, &mut found).unwrap();
    assert_eq!(found, [5; 64]);
}

#[test]
fn a_kernel_reads_and_writes_one_segment() {
    let Some((device, _)) = open(Options::default()) else { return };
    let segment = device.allocate(4096).unwrap();
    segment.write(0, &noise(4096)).unwrap();
    let from = DeviceVector::<u8>::view(&segment, 13, 1000).unwrap();
    let mut to = DeviceVector::<u8>::view(&segment, 2001, 1000).unwrap();
    let arguments = Arguments::new().read_view(&from).write_view(&mut to);
    device.launch(&Kernel::built_in(BuiltIn::Copy), GRID, &arguments).unwrap();
    let mut expected = noise(4096);
    expected.copy_within(13..1013, 2001);
    let mut found = vec![0; 4096];
    segment.read(0, &mut found).unwrap();
    assert!(found == expected);
}

#[test]
fn what_is_longer_than_a_binding_is_refused_by_the_limits_name_and_parts_of_it_are_not() {
    let Some((device, _)) = open(Options::default()) else { return };
    let max = device.limits().binding_bytes_max;
    let len = max + 4096;
    if len > device.limits().segment_bytes_max.min(512 << 20) {
        eprintln!("not run: a binding is as long as a segment, or too long for a test");
        return;
    }
    let segment = device.allocate(len).unwrap();
    let mut whole = DeviceVector::<u32>::view(&segment, 0, len / 4).unwrap();
    let fill = Kernel::built_in(BuiltIn::Fill);
    let error =
        device.launch(&fill, GRID, &Arguments::new().write_view(&mut whole).scalar(1_u32)).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::TooLarge { need: len, max });
    assert!(error.to_string().contains("maxStorageBufferBindingSize"), "{error}");
    // The adapter's own kernels work in pieces.
    segment.fill(1, len - 2, 0xAB).unwrap();
    let mut end = DeviceVector::<u32>::view(&segment, len - 64, 16).unwrap();
    device.launch(&fill, GRID, &Arguments::new().write_view(&mut end).scalar(3_u32)).unwrap();
    let mut found = vec![0; 128];
    segment.read(len - 128, &mut found).unwrap();
    assert!(found[..64].iter().all(|byte| *byte == 0xAB));
    assert_eq!(found[64..], 3_u32.to_ne_bytes().repeat(16));
}
