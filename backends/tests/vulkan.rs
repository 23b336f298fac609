//! The Vulkan backend through the driver, on every device that is there, with and without the validation
//! layer.
#![cfg(feature = "vulkan")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::cast_possible_truncation, clippy::print_stderr)]

mod common;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::{Arc, OnceLock};

use spoc_backends::vulkan::{CounterReader, Options, VulkanCounters, backend_with_counters};
use spoc_driver::backend::{CopyOp, Probed};
use spoc_driver::{
    Arguments, BackendKind, BuiltIn, CopyRange, Device, DeviceSelector, DeviceVector, Driver, ElementKind,
    ErrorKind, Grid, HostMemory, HostMemoryOptions, Kernel, KindRule, Language, Parameter, SegmentOptions,
    Source, Stream, StreamOptions,
};

const MIB: usize = 1 << 20;

/// A device of an opening of its own, so that its counters are its own.
struct Bench {
    probed: Probed,
    device: Device,
    index: u32,
    counters: CounterReader,
}

impl Bench {
    fn open(options: Options, index: u32) -> Self {
        let (probed, counters) = backend_with_counters(options).unwrap();
        let driver = Driver::new(vec![Probed::clone(&probed)]);
        let device = driver.open(&DeviceSelector::index(BackendKind::Vulkan, index)).unwrap();
        Self { probed, device, index, counters }
    }

    /// Runs an action; answers what it added to each counter.
    fn counted<T>(&self, action: impl FnOnce() -> T) -> (T, Added) {
        let before = self.counters.read();
        let outcome = action();
        (outcome, Added { before, after: self.counters.read() })
    }
}

struct Added {
    before: VulkanCounters,
    after: VulkanCounters,
}

impl Added {
    fn to(&self, counter: fn(VulkanCounters) -> u64) -> u64 {
        counter(self.after) - counter(self.before)
    }
}

/// Runs a check on every device; with no device, says why.
fn on_every_device(options: Options, check: impl Fn(&Bench)) {
    let Some(probed) = common::backend(BackendKind::Vulkan) else { return };
    for info in probed.devices() {
        check(&Bench::open(options, info.index));
    }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 31 + i / 251 + seed) % 251) as u8).collect()
}

/// A check and its name.
type Check = (&'static str, fn(&Bench));

/// Every check below, for the run with the validation layer.
const CHECKS: [Check; 15] = [
    ("the_device_says_what_it_is", the_device_says_what_it_is),
    ("ordinary_memory_is_staged_and_counted", ordinary_memory_is_staged_and_counted),
    ("pinned_memory_is_copied_directly_and_counted", pinned_memory_is_copied_directly_and_counted),
    ("a_batch_is_one_submission", a_batch_is_one_submission),
    ("ranges_are_filled_at_any_offset", ranges_are_filled_at_any_offset),
    ("events_order_streams_across_lanes", events_order_streams_across_lanes),
    ("waits_in_one_lane_are_elided", waits_in_one_lane_are_elided),
    ("blocking_streams_and_the_default_stream_are_in_order", blocking_and_default_streams_are_in_order),
    ("command_buffers_are_used_again", command_buffers_are_used_again),
    ("threads_share_queues_and_pools", threads_share_queues_and_pools),
    ("memory_is_lent_and_refused", memory_is_lent_and_refused),
    ("memory_in_use_is_released_later", memory_in_use_is_released_later),
    ("limits_are_refused_by_name", limits_are_refused_by_name),
    ("a_chain_of_launches_and_copies_is_in_order", a_chain_of_launches_and_copies_is_in_order),
    ("bindings_are_refused_by_the_limits_name", bindings_are_refused_by_the_limits_name),
];

#[test]
fn every_check_on_every_device() {
    on_every_device(Options::default(), |bench| CHECKS.iter().for_each(|(_, check)| check(bench)));
}

#[test]
fn every_check_with_more_lanes() {
    let options = Options { lanes: Some(4), ..Options::default() };
    on_every_device(options, |bench| CHECKS.iter().for_each(|(_, check)| check(bench)));
}

/// As on a device whose transfer family runs no kernels.
#[test]
fn every_check_with_lanes_for_kernels_apart() {
    for lanes in [1, 3] {
        let options = Options { lanes: Some(lanes), kernels_apart: true, ..Options::default() };
        on_every_device(options, |bench| CHECKS.iter().for_each(|(_, check)| check(bench)));
    }
}

/// Launches are submitted together: when there are enough, or when anybody asks.
#[test]
fn rule_27_a_batch_is_submitted_when_it_is_full_or_asked_for() {
    let options = Options { batch: Some(4), lanes: Some(1), ..Options::default() };
    on_every_device(options, |bench| {
        let stream = bench.device.create_stream(StreamOptions::default()).unwrap();
        let mut vector = ones(bench);
        let double = |vector: &mut DeviceVector<u32>| launch_scale(&stream, vector);
        // The first launch makes the pipeline.
        double(&mut vector);
        stream.synchronize().unwrap();
        let ((), added) = bench.counted(|| (0..10).for_each(|_| double(&mut vector)));
        assert_eq!(
            (added.to(|all| all.launches), added.to(|all| all.batches)),
            (10, 2),
            "8 of 10 are submitted"
        );
        let ((), added) = bench.counted(|| stream.synchronize().unwrap());
        assert_eq!(added.to(|all| all.batches), 1, "waiting submits the rest");
        let (_, added) = bench.counted(|| {
            double(&mut vector);
            bench.device.create_event().and_then(|event| stream.record(&event)).unwrap();
            stream.query().unwrap()
        });
        assert_eq!(added.to(|all| all.batches), 1, "asking submits");
        let mut seen = [0; 2];
        let (_, added) = bench.counted(|| {
            double(&mut vector);
            vector.read(0, &mut seen).unwrap();
        });
        assert_eq!(added.to(|all| all.batches), 1, "looking submits");
        assert_eq!(seen, [1 << 13; 2]);
    });
    let options = Options { batch: Some(1), ..Options::default() };
    on_every_device(options, |bench| {
        let stream = bench.device.create_stream(StreamOptions::default()).unwrap();
        let mut vector = ones(bench);
        let ((), added) = bench.counted(|| {
            for _ in 0..3 {
                launch_scale(&stream, &mut vector);
                assert!(stream.query().unwrap(), "each is waited for");
            }
        });
        assert_eq!((added.to(|all| all.launches), added.to(|all| all.batches)), (3, 3));
    });
}

/// Launches that were enqueued run, although everything of theirs is dropped and the device closed.
#[test]
fn an_open_batch_runs_when_the_device_is_closed() {
    on_every_device(Options { batch: Some(64), ..Options::default() }, |bench| {
        let vector = ones(bench);
        let segment = vector.segment().clone();
        {
            let stream = bench.device.create_stream(StreamOptions::default()).unwrap();
            let mut vector = vector;
            launch_scale(&stream, &mut vector);
        }
        let mut bytes = [0; 4];
        segment.read(0, &mut bytes).unwrap();
        assert_eq!(u32::from_le_bytes(bytes), 2);
    });
}

fn ones(bench: &Bench) -> DeviceVector<u32> {
    let vector = DeviceVector::allocate(&bench.device, 64).unwrap();
    vector.write(0, &[1_u32; 64]).unwrap();
    vector
}

/// Doubles a vector: a kernel may read and write the same one, if it is passed once.
fn launch_scale(stream: &Stream, vector: &mut DeviceVector<u32>) {
    const TEXT: &str = "@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@compute @workgroup_size(64) fn double(@builtin(global_invocation_id) id: vec3<u32>) { x[id.x] *= 2u; }";
    static KERNEL: OnceLock<Kernel> = OnceLock::new();
    let kernel = KERNEL.get_or_init(|| {
        let source =
            Source { language: Language::Wgsl, text: Arc::from(TEXT.as_bytes()), entry: "double".to_owned() };
        let parameters = [Parameter::write(KindRule::Exactly(ElementKind::U32))];
        // SAFETY: with a grid of 64 threads over 64 words it stays inside.
        unsafe { Kernel::from_sources("double", &parameters, vec![source]) }.unwrap()
    });
    let grid = Grid { groups: [1, 1, 1], group: [64, 1, 1] };
    stream.launch(kernel, grid, &Arguments::new().write_view(vector)).unwrap();
}

/// Copies and launches take turns, over streams of several lanes.
fn a_chain_of_launches_and_copies_is_in_order(bench: &Bench) {
    let streams: Vec<_> =
        (0..3).map(|_| bench.device.create_stream(StreamOptions::default()).unwrap()).collect();
    let event = bench.device.create_event().unwrap();
    let mut vector = ones(bench);
    let mut expected = 1_u32;
    for round in 0..40_usize {
        let (stream, next) = (&streams[round % 3], &streams[(round + 1) % 3]);
        launch_scale(stream, &mut vector);
        expected = expected.wrapping_mul(2);
        if round % 7 == 3 {
            expected = 5;
            let range = CopyRange { src_offset: 0, dst: vector.segment(), dst_offset: 0, len_bytes: 256 };
            stream.copy_to_device([5_u32; 64].map(u32::to_le_bytes).concat(), &[range]).unwrap();
        }
        if round % 5 == 1 {
            let back = stream.copy_to_host(vector.segment(), 0, vec![0; 4]).unwrap().wait().unwrap();
            assert_eq!(back, expected.to_le_bytes(), "round {round}");
        }
        stream.record(&event).unwrap();
        next.wait(&event).unwrap();
    }
    let mut seen = [0; 64];
    vector.read(0, &mut seen).unwrap();
    assert_eq!(seen, [expected; 64]);
    // The default stream comes after blocking ones, and they after it.
    launch_scale(&streams[0], &mut vector);
    launch_scale(&bench.device.default_stream(), &mut vector);
    launch_scale(&streams[1], &mut vector);
    vector.read(0, &mut seen).unwrap();
    assert_eq!(seen, [expected.wrapping_mul(8); 64]);
}

fn bindings_are_refused_by_the_limits_name(bench: &Bench) {
    let max = bench.device.limits().binding_bytes_max;
    if max >= bench.device.limits().segment_bytes_max || max > 1 << 30 {
        return;
    }
    let mut wide = DeviceVector::<u8>::allocate(&bench.device, max + 4).unwrap();
    let grid = Grid { groups: [1, 1, 1], group: [64, 1, 1] };
    let fill = Kernel::built_in(BuiltIn::Fill);
    let refused = bench.device.launch(&fill, grid, &Arguments::new().write_view(&mut wide).scalar(1_u8));
    let error = refused.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::TooLarge { need: max + 4, max }, "{error}");
    assert!(error.to_string().contains("maxStorageBufferRange"), "{error}");
    drop(wide);
    // Parts of it, each small enough, do.
    let segment = bench.device.allocate(max + 256).unwrap();
    let mut part = DeviceVector::<u8>::view(&segment, 256, max).unwrap();
    bench.device.launch(&fill, grid, &Arguments::new().write_view(&mut part).scalar(9_u8)).unwrap();
    let mut seen = [0; 2];
    part.read(max - 2, &mut seen).unwrap();
    assert_eq!(seen, [9, 9]);
}

#[test]
fn the_validation_layer_has_nothing_to_say() {
    let _ = tracing_subscriber::fmt().with_test_writer().with_max_level(tracing_level()).try_init();
    for (lanes, kernels_apart) in [(None, false), (Some(3), false), (Some(2), true)] {
        let options =
            Options { validation: true, host_import: true, lanes, kernels_apart, ..Options::default() };
        if common::backend(BackendKind::Vulkan).is_some()
            && let Err(reason) = backend_with_counters(options)
        {
            let is_required = std::env::var("SPOC_REQUIRE").is_ok_and(|names| names.contains("vulkan"));
            assert!(!is_required, "{reason}");
            eprintln!("not run: {reason}");
            return;
        }
        on_every_device(options, |bench| {
            for (name, check) in CHECKS {
                check(bench);
                assert_eq!(bench.counters.read().validation_messages, 0, "{name}, lanes {lanes:?}");
            }
            if bench.device.capabilities().host_register.is_available() {
                registered_memory_is_copied_directly(bench);
                unsuitable_memory_is_not_registered(bench);
            }
            assert_eq!(bench.counters.read().validation_messages, 0, "registering");
        });
    }
}

fn tracing_level() -> tracing_subscriber::filter::LevelFilter {
    tracing_subscriber::filter::LevelFilter::WARN
}

fn the_device_says_what_it_is(bench: &Bench) {
    let (info, limits) = (bench.device.info(), bench.device.limits());
    assert_eq!(info.backend, BackendKind::Vulkan);
    assert!(!info.name.is_empty());
    assert!(limits.segment_bytes_max > 0 && limits.segment_bytes_max <= info.memory_bytes);
    assert!(limits.binding_bytes_max >= 128 << 20, "the least that Vulkan allows is 128 MiB");
    let memory = bench.device.memory().unwrap();
    assert!(memory.free_bytes <= memory.total_bytes && memory.total_bytes == info.memory_bytes);
    const OFFERED: [&str; 5] = ["async_copies", "pinned_alloc", "copy_many", "fill", "launch"];
    // What the device's driver decides, or the operator.
    const DEPENDS: [&str; 3] = ["export_memory", "import_memory", "host_register"];
    for (name, verdict) in bench.device.capabilities().iter() {
        assert!(verdict.reason().is_none_or(|reason| !reason.is_empty()), "{name}");
        let expected = OFFERED.contains(&name) || (name == "stable_uuid" && info.uuid_is_stable);
        assert!(DEPENDS.contains(&name) || verdict.is_available() == expected, "{name}: {verdict}");
    }
    if info.name.contains("llvmpipe") {
        assert!(!info.uuid_is_stable, "its UUID is the driver's version");
    }
}

fn ordinary_memory_is_staged_and_counted(bench: &Bench) {
    let stream = bench.device.create_stream(StreamOptions::default()).unwrap();
    // More than the staging buffer holds, at an odd offset.
    let bytes = pattern(9 * MIB + 3, 1);
    let segment = bench.device.allocate(10 * MIB as u64).unwrap();
    let range = CopyRange { src_offset: 1, dst: &segment, dst_offset: 5, len_bytes: bytes.len() - 1 };
    let (back, added) = bench.counted(|| {
        stream.copy_to_device(bytes.clone(), &[range]).unwrap();
        stream.copy_to_host(&segment, 5, vec![0; bytes.len() - 1]).unwrap().wait().unwrap()
    });
    assert!(back == bytes[1..]);
    assert_eq!(added.to(|c| c.staged_bytes), 2 * (bytes.len() as u64 - 1));
    assert_eq!(added.to(|c| c.direct_bytes), 0);
    assert!(!bench.device.capabilities().pageable_async.is_available());
}

fn pinned_memory_is_copied_directly_and_counted(bench: &Bench) {
    let stream = bench.device.create_stream(StreamOptions::default()).unwrap();
    let segment = bench.device.allocate(4 * MIB as u64).unwrap();
    let mut up = bench.device.alloc_pinned(4 * MIB as u64).unwrap();
    assert_eq!(up.as_slice().unwrap().as_ptr().addr() % 4096, 0, "rings are handed to the kernel");
    let bytes = pattern(4 * MIB, 2);
    up.as_mut_slice().unwrap().copy_from_slice(&bytes);
    let down = bench.device.alloc_pinned(3 * MIB as u64).unwrap();
    let (back, added) = bench.counted(|| {
        // A range inside the pinned memory: known by its address.
        let range = CopyRange { src_offset: 12_345, dst: &segment, dst_offset: 1, len_bytes: 3 * MIB };
        stream.copy_to_device(up, &[range]).unwrap();
        stream.copy_to_host(&segment, 1, down).unwrap().wait().unwrap()
    });
    assert!(back.as_slice().unwrap() == &bytes[12_345..12_345 + 3 * MIB]);
    assert_eq!(added.to(|c| c.direct_bytes), 6 * MIB as u64);
    assert_eq!(added.to(|c| c.staged_bytes), 0, "no processor copied anything");
}

fn a_batch_is_one_submission(bench: &Bench) {
    const RANGES: usize = 3000;
    let stream = bench.device.create_stream(StreamOptions::default()).unwrap();
    let segments = [bench.device.allocate(MIB as u64).unwrap(), bench.device.allocate(MIB as u64).unwrap()];
    let mut source = bench.device.alloc_pinned(MIB as u64).unwrap();
    let bytes = pattern(MIB, 3);
    source.as_mut_slice().unwrap().copy_from_slice(&bytes);
    let ranges: Vec<_> = (0..RANGES)
        .map(|i| CopyRange {
            src_offset: i * 300,
            dst: &segments[usize::from(i >= RANGES / 2)],
            dst_offset: (i * 301) as u64,
            len_bytes: 1 + i % 300,
        })
        .collect();
    let ((), added) = bench.counted(|| stream.copy_to_device(source, &ranges).unwrap());
    assert_eq!(added.to(|c| c.submissions), 1);
    stream.synchronize().unwrap();
    let mut contents = vec![vec![0; MIB]; 2];
    for (segment, contents) in segments.iter().zip(&mut contents) {
        segment.read(0, contents).unwrap();
    }
    for (i, range) in ranges.iter().enumerate() {
        let (from, to) = (range.src_offset, range.dst_offset as usize);
        let arrived = &contents[usize::from(i >= RANGES / 2)][to..to + range.len_bytes];
        assert!(arrived == &bytes[from..from + range.len_bytes], "range {i}");
    }
}

fn ranges_are_filled_at_any_offset(bench: &Bench) {
    let stream = bench.device.create_stream(StreamOptions::default()).unwrap();
    let segment = bench.device.allocate(256).unwrap();
    for (offset, len_bytes) in [(0, 256), (1, 2), (3, 1), (5, 11), (8, 16), (253, 3), (7, 200)] {
        let mut expected = pattern(256, offset);
        segment.write(0, &expected).unwrap();
        stream.fill(&segment, offset as u64, len_bytes as u64, 0xC3).unwrap();
        expected[offset..offset + len_bytes].fill(0xC3);
        let back = stream.copy_to_host(&segment, 0, vec![0; 256]).unwrap().wait().unwrap();
        assert_eq!(back, expected, "{len_bytes} bytes at {offset}");
    }
}

/// A value is handed around many streams, each step waiting for the one before by an event.
fn events_order_streams_across_lanes(bench: &Bench) {
    let options = StreamOptions { non_blocking: true, ..Default::default() };
    let streams: Vec<_> = (0..6).map(|_| bench.device.create_stream(options).unwrap()).collect();
    let segments: Vec<_> = (0..6).map(|_| bench.device.allocate(8 * MIB as u64).unwrap()).collect();
    let event = bench.device.create_event().unwrap();
    for round in 0..3 {
        let bytes = pattern(8 * MIB, round);
        segments[0].write(0, &bytes).unwrap();
        streams[0].record(&event).unwrap();
        for step in 0..5 {
            streams[step].wait(&event).unwrap();
            let (from, to) = (&segments[step], &segments[step + 1]);
            streams[step].copy_device_to_device(from, 0, to, 0, 8 * MIB as u64).unwrap();
            streams[step].record(&event).unwrap();
        }
        event.synchronize().unwrap();
        let mut back = vec![0; 8 * MIB];
        segments[5].read(0, &mut back).unwrap();
        assert!(back == bytes, "round {round}");
    }
}

fn waits_in_one_lane_are_elided(bench: &Bench) {
    let stream = bench.device.create_stream(StreamOptions::default()).unwrap();
    let segment = bench.device.allocate(4096).unwrap();
    let event = bench.device.create_event().unwrap();
    stream.fill(&segment, 0, 4096, 1).unwrap();
    let ((), added) = bench.counted(|| {
        stream.record(&event).unwrap();
        stream.wait(&event).unwrap();
        assert!(matches!(event.query(), Ok(true | false)));
    });
    assert_eq!(added.to(|c| c.waits_elided), 1);
    assert_eq!(added.to(|c| c.submissions), 0, "neither recording nor such a wait submits anything");
    event.synchronize().unwrap();
    assert!(event.query().unwrap());
}

fn blocking_and_default_streams_are_in_order(bench: &Bench) {
    let default = bench.device.default_stream();
    let streams: Vec<_> =
        (0..4).map(|_| bench.device.create_stream(StreamOptions::default()).unwrap()).collect();
    let len = 16 * MIB as u64;
    let segment = bench.device.allocate(len).unwrap();
    let other = bench.device.allocate(len).unwrap();
    for (turn, stream) in (1_u8..).zip(&streams) {
        // Blocking stream, then the default stream by its handle, then a blocking stream again.
        stream.fill(&segment, 0, len, turn).unwrap();
        default.copy_device_to_device(&segment, 0, &other, 0, len).unwrap();
        stream.fill(&segment, 0, len, 0xFF).unwrap();
        let mut back = vec![0; len as usize];
        other.read(0, &mut back).unwrap();
        assert!(back.iter().all(|byte| *byte == turn), "turn {turn}");
    }
}

fn command_buffers_are_used_again(bench: &Bench) {
    let stream = bench.device.create_stream(StreamOptions::default()).unwrap();
    let segment = bench.device.allocate(64).unwrap();
    let fills = |count: usize| {
        for i in 0..count {
            stream.fill(&segment, 0, 64, (i % 256) as u8).unwrap();
        }
        stream.synchronize().unwrap();
    };
    // More than may be in flight: the deepest queue has been seen.
    fills(600);
    let ((), added) = bench.counted(|| fills(1000));
    assert_eq!(added.to(|c| c.submissions), 1000);
    assert!(bench.counters.read().command_buffers <= 4 * 256);
    let mut back = [0; 64];
    segment.read(0, &mut back).unwrap();
    assert_eq!(back, [(999 % 256) as u8; 64]);
}

fn threads_share_queues_and_pools(bench: &Bench) {
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            scope.spawn(move || {
                let stream = bench.device.create_stream(StreamOptions::default()).unwrap();
                let segment = bench.device.allocate(4096).unwrap();
                for turn in 0..100_u8 {
                    stream.fill(&segment, 0, 4096, turn ^ thread).unwrap();
                    if turn % 10 == 0 {
                        let back = stream.copy_to_host(&segment, 0, vec![0; 4096]).unwrap();
                        assert_eq!(back.wait().unwrap(), [turn ^ thread; 4096]);
                    }
                }
                stream.synchronize().unwrap();
            });
        }
    });
}

fn memory_is_lent_and_refused(bench: &Bench) {
    if !bench.device.capabilities().import_memory.is_available() {
        return;
    }
    let plain = bench.device.allocate(4096).unwrap();
    assert_eq!(plain.export().unwrap_err().kind().as_str(), "invalid_argument");
    let lent = bench.device.allocate_with(100_000, SegmentOptions { exportable: true }).unwrap();
    let bytes = pattern(100_000, 7);
    lent.write(0, &bytes).unwrap();
    let first = lent.export().unwrap();
    let borrower = Driver::new(vec![Probed::clone(&bench.probed)]);
    let selector = DeviceSelector::index(BackendKind::Vulkan, bench.index);
    let borrower = borrower.open(&selector).unwrap();
    let borrowed = borrower.import(first).unwrap();
    assert_eq!(borrowed.export().unwrap_err().kind().as_str(), "invalid_argument");
    drop(lent);
    let mut back = vec![0; 100_000];
    borrowed.read(0, &mut back).unwrap();
    assert!(back == bytes);
    let another = bench.device.allocate_with(8192, SegmentOptions { exportable: true }).unwrap();
    let mut wrong = another.export().unwrap();
    wrong.allocation_bytes *= 2;
    assert_eq!(bench.device.import(wrong).unwrap_err().kind().as_str(), "invalid_argument");
    // Refused imports leak no descriptors, nor close those of others.
    let open_files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let refuse = || {
        let mut nothing = another.export().unwrap();
        nothing.descriptor = File::open("/dev/null").unwrap().into();
        bench.device.import(nothing).unwrap_err()
    };
    assert_eq!(refuse().kind().as_str(), "invalid_argument");
    let before = open_files();
    (0..50).for_each(|_| drop(refuse()));
    assert!(open_files() < before + 40, "other tests open files too, but not one each time");
}

/// The port forbids dropping a buffer in use; should it happen all the same, nothing is freed too early.
fn memory_in_use_is_released_later(bench: &Bench) {
    let port = &bench.probed;
    let device = port.open(bench.index).unwrap();
    let stream = port.create_stream(&device, StreamOptions::default()).unwrap();
    let options = SegmentOptions::default();
    let len = 32 * MIB;
    let pinned = port.alloc_pinned(&device, len).unwrap();
    let src = port.pinned_pointer(&device, &pinned).unwrap();
    let ((), added) = bench.counted(|| {
        for _ in 0..4 {
            let buffer = port.allocate(&device, len as u64, options).unwrap();
            let op = CopyOp { src: src.cast_const(), dst: &buffer, dst_offset: 0, len_bytes: len };
            // SAFETY: the pinned memory stays until the synchronisation below.
            unsafe { port.copy_to_device(&device, &stream, op) }.unwrap();
            drop(buffer);
        }
    });
    assert!(added.to(|c| c.releases_deferred) > 0, "no copy was pending");
    port.synchronize_stream(&device, &stream).unwrap();
    port.synchronize_device(&device).unwrap();
    drop(pinned);
}

fn limits_are_refused_by_name(bench: &Bench) {
    let limits = bench.device.limits();
    let error = bench.device.allocate(limits.segment_bytes_max + 1).unwrap_err();
    assert_eq!(error.kind().as_str(), "too_large");
    let names = ["maxMemoryAllocationSize", "maxBufferSize", "the size of the memory heap"];
    assert!(names.iter().any(|name| error.to_string().contains(name)), "{error}");
    let error = bench.device.alloc_pinned(limits.segment_bytes_max * 2).unwrap_err();
    assert!(names.iter().any(|name| error.to_string().contains(name)), "{error}");
}

#[test]
fn rule_25_a_copy_without_a_stream_is_complete_on_return_and_behind_every_stream() {
    on_every_device(Options::default(), |bench| {
        let segment = bench.device.allocate(4 * MIB as u64).unwrap();
        let streams = [(); 3].map(|()| bench.device.create_stream(StreamOptions::default()).unwrap());
        for (seed, stream) in streams.iter().enumerate() {
            let range = CopyRange { src_offset: 0, dst: &segment, dst_offset: 0, len_bytes: 4 * MIB };
            stream.copy_to_device(pattern(4 * MIB, seed), &[range]).map_err(|e| e.error).unwrap();
        }
        // Behind all of them, and there on return: what the streams wrote cannot come after it.
        segment.write(MIB as u64, &pattern(1000, 77)).unwrap();
        let mut seen = vec![0; 1000];
        segment.read(MIB as u64, &mut seen).unwrap();
        assert_eq!(seen, pattern(1000, 77));
        streams.iter().for_each(|stream| stream.synchronize().unwrap());
        segment.read(MIB as u64, &mut seen).unwrap();
        assert_eq!(seen, pattern(1000, 77), "a stream's copy came after the copy without a stream");
    });
}

#[test]
fn rule_26_pinned_ranges_are_copied_directly_and_a_counter_proves_it() {
    on_every_device(Options::default(), pinned_memory_is_copied_directly_and_counted);
}

#[test]
fn rule_27_registering_is_off_until_asked_for() {
    on_every_device(Options::default(), |bench| {
        let verdict = &bench.device.capabilities().host_register;
        assert!(verdict.reason().unwrap().contains("SPOC_VULKAN_HOST_IMPORT=1"), "{verdict}");
        let memory = HostMemory::allocate(4096, HostMemoryOptions::default()).unwrap();
        let error = bench.device.pin(&memory).unwrap_err();
        assert_eq!(error.kind().as_str(), "unsupported");
        assert!(error.to_string().contains("SPOC_VULKAN_HOST_IMPORT=1"), "{error}");
    });
}

#[test]
fn rule_27_registering_works_where_it_is_allowed() {
    on_every_device(Options { host_import: true, ..Options::default() }, |bench| {
        match bench.device.capabilities().host_register.reason() {
            None => {
                registered_memory_is_copied_directly(bench);
                unsuitable_memory_is_not_registered(bench);
            }
            Some(reason) => eprintln!("not run: {}: {reason}", bench.device.info().name),
        }
    });
}

fn registered_memory_is_copied_directly(bench: &Bench) {
    let stream = bench.device.create_stream(StreamOptions::default()).unwrap();
    let segment = bench.device.allocate(MIB as u64).unwrap();
    let mut memory = spoc_driver::HostBuffer::allocate(MIB - 5, HostMemoryOptions::default()).unwrap();
    memory.copy_from_slice(&pattern(MIB - 5, 9));
    let memory = memory.share();
    let mut pin = bench.device.pin(&memory).unwrap();
    let range = CopyRange { src_offset: 3, dst: &segment, dst_offset: 0, len_bytes: MIB - 8 };
    let ((), added) = bench.counted(|| {
        stream.copy_to_device(memory.clone(), &[range]).unwrap();
        stream.synchronize().unwrap();
    });
    assert_eq!((added.to(|c| c.direct_bytes), added.to(|c| c.staged_bytes)), (MIB as u64 - 8, 0));
    let mut back = vec![0; MIB - 8];
    segment.read(0, &mut back).unwrap();
    assert!(back == pattern(MIB - 5, 9)[3..]);
    pin.release().unwrap();
    assert!(memory.unshare().is_ok());
}

/// Drivers accept all of these.
fn unsuitable_memory_is_not_registered(bench: &Bench) {
    let port = &bench.probed;
    let device = port.open(bench.index).unwrap();
    let register = |ptr: *mut u8, len_bytes: usize| {
        // SAFETY: refused, so the promise that it stays mapped is never used.
        let registered = unsafe { port.register_host(&device, ptr, len_bytes) };
        registered.err().map(|error| error.to_string()).unwrap_or_default()
    };
    let map = |protection: i32, file: Option<&File>| {
        let flags = libc::MAP_PRIVATE | if file.is_some() { 0 } else { libc::MAP_ANONYMOUS };
        let descriptor = file.map_or(-1, AsRawFd::as_raw_fd);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let raw = unsafe { libc::mmap(ptr::null_mut(), 8192, protection, flags, descriptor, 0) };
        assert_ne!(raw, libc::MAP_FAILED);
        raw.cast::<u8>()
    };
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let (good, read_only, none) = (map(both, None), map(libc::PROT_READ, None), map(libc::PROT_NONE, None));
    let of_file = map(both, Some(&File::open(std::env::current_exe().unwrap()).unwrap()));
    assert!(register(good.wrapping_add(64), 4096).contains("not a multiple"));
    assert!(register(read_only, 8192).contains("cannot be read and written"));
    assert!(register(none, 8192).contains("cannot be read and written"));
    assert!(register(of_file, 8192).contains("belongs to a file"));
    // SAFETY: mapped above, used by nobody.
    unsafe { libc::munmap(good.wrapping_add(4096).cast(), 4096) };
    assert!(!register(good, 8192).is_empty(), "half of it is not mapped");
    for (ptr, len_bytes) in [(good, 4096), (read_only, 8192), (none, 8192), (of_file, 8192)] {
        // SAFETY: as above.
        unsafe { libc::munmap(ptr.cast(), len_bytes) };
    }
}

#[test]
fn probing_lists_it() {
    let Some(probed) = common::backend(BackendKind::Vulkan) else { return };
    assert_eq!(probed.id().kind, BackendKind::Vulkan);
    assert!(!probed.devices().is_empty());
    for (position, info) in probed.devices().iter().enumerate() {
        assert_eq!(info.index as usize, position);
        eprintln!("{} (stable UUID: {}), {} bytes", info.name, info.uuid_is_stable, info.memory_bytes);
    }
}
