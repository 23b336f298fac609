//! Several devices fed by one reader: every byte read once, every target exact, and one device's trouble its own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests are tests
#![allow(clippy::cast_possible_truncation, clippy::single_range_in_vec_init)] // sizes are small, shapes too

mod common;

use common::{layers, open, write_model};
use crossbeam_channel::{Receiver, bounded};
use proptest::prelude::*;
use spoc_backends::native;
use spoc_cache::load::{Cancel, LoadOptions, PlaceOptions, Placed, load_model, load_placed};
use spoc_cache::{CacheOptions, Catalogue, GroupRules, PumpGroup, PumpOptions, SlotCache};
use spoc_driver::fake::{self, FakeControl, FakeOptions, WaitMode};
use spoc_driver::{BackendKind, Device, DeviceSelector, Driver, StreamOptions};
use spoc_io::{
    CheckedMap, Faults, IoMode, MapBuilder, MapEntry, MapTarget, Model, Pitch, PlacementMap, PlanOptions,
    WeightFile,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Devices that know nothing of each other, each with streams and an account of its own.
fn natives(count: usize) -> Vec<Device> {
    let selector = DeviceSelector::index(BackendKind::Native, 0);
    let open = |_| Driver::new(vec![native::backend(native::Options::default())]).open(&selector).unwrap();
    (0..count).map(open).collect()
}

fn fake_device(options: FakeOptions) -> (Device, FakeControl) {
    let (probed, control) = fake::backend_with(options);
    (Driver::new(vec![probed]).open(&DeviceSelector::index(BackendKind::Fake, 0)).unwrap(), control)
}

fn deferred(wait_mode: WaitMode) -> (Device, FakeControl) {
    fake_device(FakeOptions { wait_mode, ..FakeOptions::default() })
}

fn group(devices: &[Device], staging_bytes: usize) -> PumpGroup {
    PumpGroup::start(devices, &PumpOptions::new(IoMode::Auto, staging_bytes).unwrap()).unwrap()
}

/// Every tensor divided by its only dimension where it divides, else on every device.
fn divided(model: &Model, ranks: u32) -> CheckedMap {
    let mut builder = MapBuilder::new(model, ranks).unwrap();
    for tensor in model.tensors() {
        if tensor.shape[0] % u64::from(ranks) == 0 {
            builder.divide(&tensor.name, 0).unwrap();
        } else {
            builder.replicate(&tensor.name).unwrap();
        }
    }
    builder.finish().check(model).unwrap()
}

fn replicated(model: &Model, ranks: u32) -> CheckedMap {
    let mut builder = MapBuilder::new(model, ranks).unwrap();
    model.tensors().iter().for_each(|tensor| builder.replicate(&tensor.name).unwrap());
    builder.finish().check(model).unwrap()
}

fn exact(placed: &Placed, model: &Model, map: &CheckedMap) {
    let bytes: u64 = (0..map.devices()).map(|device| map.device_bytes(device)).sum();
    assert!(placed.devices.iter().all(Result::is_ok), "{:?}", placed.devices);
    assert_eq!(placed.verify(model, map).unwrap(), bytes);
    assert_eq!(placed.report.bytes, bytes);
}

fn read_bytes(group: &PumpGroup) -> u64 {
    group.reader_reports().unwrap().iter().map(|report| report.read_bytes).sum()
}

/// Handles may be let go by a copy thread a moment later.
fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn nothing_left(devices: &[Device]) {
    for device in devices {
        wait_for("device memory is left", || device.memory_in_use() == 0);
        wait_for("copies are left", || device.in_flight() == 0);
    }
}

#[test]
fn whole_and_divided_models_arrive_and_every_byte_is_read_once() {
    let folder = tempfile::tempdir().unwrap();
    let model = open(&write_model(folder.path(), &layers(4, 600_000)));
    let devices = natives(3);
    for staging in [64 << 10, 4 << 20] {
        for map in [replicated(&model, 3), divided(&model, 3)] {
            let group = group(&devices, staging);
            let placed = load_placed(&group, &model, &map, &PlaceOptions::default()).unwrap();
            exact(&placed, &model, &map);
            let chunk_bytes = group.plan_options().chunk_bytes;
            let options = PlanOptions { chunk_bytes, ..PlanOptions::default() };
            let traffic = map.traffic(&model, options).unwrap();
            // Planned reads do not overlap; a reader leaves out the slack behind what is needed.
            assert!(read_bytes(&group) <= traffic.read_bytes, "{} bytes", read_bytes(&group));
            for (placed, link) in placed.devices.iter().zip(&traffic.link_bytes) {
                let placed = placed.as_ref().unwrap();
                assert_eq!((placed.bytes, placed.stages.copied_bytes), (*link, *link));
            }
            drop((placed, group));
            nothing_left(&devices);
        }
    }
}

#[test]
fn pumps_of_a_group_serve_loads_and_caches_like_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let model = open(&write_model(folder.path(), &layers(3, 200_000)));
    let devices = natives(2);
    let group = group(&devices, 1 << 20);
    for pump in group.pumps() {
        for packed in [false, true] {
            let loaded = load_model(pump, &model, &LoadOptions { packed, ..LoadOptions::default() }).unwrap();
            assert_eq!(loaded.verify(&model).unwrap(), model.tensor_bytes());
        }
        assert_eq!(pump.ring().rung.as_str(), "registered");
        assert!(pump.stages().copied_bytes >= model.tensor_bytes());
    }
    drop(group);
    nothing_left(&devices);
}

#[test]
fn a_group_of_no_device_or_one_twice_and_a_map_of_more_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = open(&write_model(folder.path(), &layers(1, 1000)));
    let devices = natives(1);
    let options = || PumpOptions::new(IoMode::Auto, 1 << 20).unwrap();
    let twice = [devices[0].clone(), devices[0].clone()];
    for wrong in [&[][..], &twice] {
        assert_eq!(PumpGroup::start(wrong, &options()).unwrap_err().kind().as_str(), "no_device");
    }
    let group = group(&devices, 1 << 20);
    let error = load_placed(&group, &model, &replicated(&model, 2), &PlaceOptions::default()).unwrap_err();
    assert_eq!(error.kind().as_str(), "no_device");
    assert!(error.to_string().contains("devices 0 to 1, there are 1"), "{error}");
}

type Outcome = Receiver<spoc_cache::Result<Placed>>;

/// A load in a thread of its own.
fn load_in_thread(
    group: PumpGroup,
    model: Model,
    map: CheckedMap,
    options: PlaceOptions,
) -> (Outcome, Arc<PumpGroup>, Arc<(Model, CheckedMap)>) {
    let (said, heard) = bounded(1);
    let (group, what) = (Arc::new(group), Arc::new((model, map)));
    let (own_group, own) = (Arc::clone(&group), Arc::clone(&what));
    std::thread::spawn(move || {
        let _ = said.send(load_placed(&own_group, &own.0, &own.1, &options));
    });
    (heard, group, what)
}

#[test]
fn a_chunk_returns_with_the_last_copy_and_the_slowest_device_sets_the_pace() {
    const RING: u64 = 256 << 10;
    let folder = tempfile::tempdir().unwrap();
    let model = open(&write_model(folder.path(), &layers(4, 300_000)));
    let (fast, quick) = deferred(WaitMode::Block);
    let (slow, stuck) = deferred(WaitMode::Block);
    let devices = [fast, slow];
    let map = replicated(&model, 2);
    let (heard, group, what) =
        load_in_thread(group(&devices, RING as usize), model, map, PlaceOptions::default());
    // The quick device runs all it is given, the other nothing: the ring is what it is ahead.
    let free = || group.reader_reports().unwrap()[0].chunks_free;
    wait_for("the ring is full of what the slow device has not run", || {
        quick.run_all();
        free() == 0 && quick.pending() == 0 && stuck.pending() > 0
    });
    for _ in 0..20 {
        quick.run_all();
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(free(), 0, "a chunk came back while a copy still needed it");
    }
    assert!(group.pumps()[0].stages().copied_bytes <= RING);
    assert!(heard.is_empty());
    // One operation of the slow device at a time: both go on, and neither is stuck.
    let deadline = Instant::now() + Duration::from_secs(60);
    let placed = loop {
        for stream in stuck.busy_streams() {
            stuck.step(stream);
        }
        quick.run_all();
        match heard.recv_timeout(Duration::from_micros(200)) {
            Ok(placed) => break placed.unwrap(),
            Err(_) => assert!(Instant::now() < deadline, "the load does not end"),
        }
    };
    quick.set_wait_mode(WaitMode::Drive);
    stuck.set_wait_mode(WaitMode::Drive);
    exact(&placed, &what.0, &what.1);
    assert_eq!([quick.violations(), stuck.violations()], [vec![], Vec::<String>::new()]);
    drop((placed, group));
    nothing_left(&devices);
}

#[test]
fn a_device_that_fails_takes_nothing_from_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let model = open(&write_model(folder.path(), &layers(4, 300_000)));
    for refuse in [false, true] {
        let (bad, control) = deferred(WaitMode::Drive);
        let mut devices = natives(2);
        devices.insert(1, bad);
        let group = group(&devices, 256 << 10);
        if refuse {
            control.refuse_copy(3);
        } else {
            control.fail_copy(3);
        }
        for map in [replicated(&model, 3), divided(&model, 3)] {
            let placed = load_placed(&group, &model, &map, &PlaceOptions::default()).unwrap();
            let healthy = [map.device_bytes(0), map.device_bytes(2)];
            if let Err(error) = &placed.devices[1] {
                let kinds = ["async_failure", "backend", "out_of_device_memory"];
                assert!(kinds.contains(&error.kind().as_str()), "{error}");
                assert_eq!(placed.verify(&model, &map).unwrap(), healthy.iter().sum::<u64>());
            } else {
                // A refused chunk fails its load alone, so that the next one succeeds.
                assert!(refuse);
            }
        }
        assert!(refuse || group.pumps()[1].stages().copied_bytes > 0);
        drop(group);
        assert_eq!(control.violations(), Vec::<String>::new());
        nothing_left(&devices);
    }
}

#[test]
fn when_every_device_fails_the_load_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let model = open(&write_model(folder.path(), &layers(4, 300_000)));
    let (devices, controls): (Vec<_>, Vec<_>) = (0..2).map(|_| deferred(WaitMode::Drive)).unzip();
    let group = group(&devices, 256 << 10);
    controls.iter().for_each(|control| control.fail_copy(2));
    let error = load_placed(&group, &model, &replicated(&model, 2), &PlaceOptions::default()).unwrap_err();
    assert_eq!(error.kind().as_str(), "async_failure");
    drop(group);
    nothing_left(&devices);
}

/// Answers reads at or behind an offset with an error.
struct Broken(u64);

impl Faults for Broken {
    fn answer(&self, answer: Result<usize, i32>, _file: &WeightFile, offset: u64) -> Result<usize, i32> {
        if offset >= self.0 { Err(5) } else { answer }
    }
}

#[test]
fn a_read_that_fails_concerns_those_who_want_it() {
    let folder = tempfile::tempdir().unwrap();
    let model = open(&write_model(folder.path(), &layers(4, 300_000)));
    let middle = model.tensors().len() / 2;
    let mut builder = MapBuilder::new(&model, 2).unwrap();
    for (number, tensor) in model.tensors().iter().enumerate() {
        builder.whole(&tensor.name, u32::from(number >= middle)).unwrap();
    }
    let map = builder.finish().check(&model).unwrap();
    let devices = natives(2);
    let mut options = PumpOptions::new(IoMode::Pread, 256 << 10).unwrap();
    // Beyond the chunk at the border, which both want.
    let broken = model.tensors()[middle].extent.offset + u64::from(2 * options.reader.chunk_bytes);
    options.reader.faults = Some(Arc::new(Broken(broken)));
    let group = PumpGroup::start(&devices, &options).unwrap();
    let placed = load_placed(&group, &model, &map, &PlaceOptions::default()).unwrap();
    assert_eq!(placed.devices[1].as_ref().unwrap_err().kind().as_str(), "io_error");
    assert_eq!(placed.verify(&model, &map).unwrap(), map.device_bytes(0));
    drop((placed, group));
    nothing_left(&devices);
}

#[test]
fn a_cancelled_load_leaves_nothing_and_the_group_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let model = open(&write_model(folder.path(), &layers(6, 1_000_000)));
    let devices = natives(2);
    let group = group(&devices, 128 << 10);
    let map = divided(&model, 2);
    let (cancel, seen) = (Cancel::new(), Arc::new(AtomicU64::new(0)));
    let (switch, noted) = (cancel.clone(), Arc::clone(&seen));
    let progress = move |copied, _| {
        noted.store(copied, Ordering::Relaxed);
        switch.cancel();
    };
    let options =
        PlaceOptions { progress: Some(Arc::new(progress)), cancel: Some(cancel), ..PlaceOptions::default() };
    for _ in 0..2 {
        let error = load_placed(&group, &model, &map, &options).unwrap_err();
        assert_eq!(error.kind().as_str(), "cancelled");
    }
    assert!(seen.load(Ordering::Relaxed) < model.tensor_bytes());
    exact(&load_placed(&group, &model, &map, &PlaceOptions::default()).unwrap(), &model, &map);
    drop(group);
    nothing_left(&devices);
}

/// Holds the first read back until told otherwise.
struct Gate {
    first: AtomicBool,
    go_on: Receiver<()>,
}

impl Faults for Gate {
    fn answer(&self, answer: Result<usize, i32>, _file: &WeightFile, _offset: u64) -> Result<usize, i32> {
        if !self.first.swap(true, Ordering::SeqCst) {
            let _ = self.go_on.recv();
        }
        answer
    }
}

#[test]
fn two_caches_that_miss_the_same_group_share_one_read() {
    let folder = tempfile::tempdir().unwrap();
    let model = open(&write_model(folder.path(), &layers(3, 100_000)));
    let catalogue = Arc::new(Catalogue::from_model(&model, &GroupRules::default()).unwrap());
    let devices = natives(2);
    let (release, go_on) = bounded(1);
    let mut options = PumpOptions::new(IoMode::Pread, 4 << 20).unwrap();
    options.reader.faults = Some(Arc::new(Gate { first: AtomicBool::new(false), go_on }));
    let group = PumpGroup::start(&devices, &options).unwrap();
    let caches: Vec<_> = group
        .pumps()
        .iter()
        .map(|pump| SlotCache::new(pump, CacheOptions::for_catalogue(&catalogue, 2)).unwrap())
        .collect();
    let streams: Vec<_> =
        devices.iter().map(|device| device.create_stream(StreamOptions::default()).unwrap()).collect();
    let keys: Vec<_> =
        caches.iter().map(|cache| cache.keys(cache.register(Arc::clone(&catalogue)).unwrap())[0]).collect();
    let pending: Vec<_> = caches
        .iter()
        .zip(&keys)
        .zip(&streams)
        .map(|((cache, key), stream)| cache.acquire(&[*key], stream).unwrap())
        .collect();
    assert_eq!(group.joined(), 1);
    release.send(()).unwrap();
    let mut found = Vec::new();
    for ((cache, key), stream) in caches.iter().zip(&keys).zip(&streams) {
        let lease = cache.wait_acquire(&[*key], stream).unwrap();
        let (segment, offset) = lease.memory(0).unwrap();
        let len = catalogue.groups()[0].slot_bytes as usize;
        let read = stream.copy_to_host(&segment, offset, vec![0; len]).unwrap();
        lease.release(&[stream]).unwrap();
        found.push(read.wait().unwrap());
    }
    assert_eq!(found[0], found[1]);
    drop(pending);
    assert!(found[0].iter().any(|byte| *byte != 0));
    // Read once, with the slack at both ends.
    assert!(read_bytes(&group) < found[0].len() as u64 + 4 * 4096, "{}", read_bytes(&group));
}

#[test]
fn rings_of_two_nodes_share_the_reads() {
    let folder = tempfile::tempdir().unwrap();
    let model = open(&write_model(folder.path(), &layers(4, 300_000)));
    let node = |numa_node| {
        fake_device(FakeOptions { numa_node, wait_mode: WaitMode::Drive, ..FakeOptions::default() })
    };
    let (devices, controls): (Vec<_>, Vec<_>) = [Some(0), None, Some(0)].map(node).into_iter().unzip();
    let group = group(&devices, 256 << 10);
    assert_eq!(group.rings(), 2);
    for map in [replicated(&model, 3), divided(&model, 3)] {
        exact(&load_placed(&group, &model, &map, &PlaceOptions::default()).unwrap(), &model, &map);
    }
    let reports = group.reader_reports().unwrap();
    assert!(reports.iter().all(|report| report.read_bytes > 0), "{reports:?}");
    for (pump, device) in group.pumps().iter().zip(&devices) {
        let loaded = load_model(pump, &model, &LoadOptions::default()).unwrap();
        assert_eq!(loaded.verify(&model).unwrap(), model.tensor_bytes());
        assert_eq!(device.pinned_ranges(), 2);
    }
    drop(group);
    controls.iter().for_each(|control| assert_eq!(control.violations(), Vec::<String>::new()));
    nothing_left(&devices);
}

#[test]
fn a_group_that_goes_away_fails_what_is_not_done() {
    let folder = tempfile::tempdir().unwrap();
    let model = open(&write_model(folder.path(), &layers(4, 300_000)));
    let (device, control) = deferred(WaitMode::Block);
    let devices = [device];
    let map = replicated(&model, 1);
    let (heard, group, what) = load_in_thread(group(&devices, 64 << 10), model, map, PlaceOptions::default());
    assert!(control.wait_pending(1, Duration::from_secs(20)));
    // The load holds the group; what it is given is stopped by losing the device.
    control.lose_device();
    let error = heard.recv_timeout(Duration::from_secs(20)).unwrap().unwrap_err();
    assert_eq!(error.kind().as_str(), "device_lost");
    drop((group, what));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any slices onto three devices, rows apart or not, through rings of any size.
    #[test]
    fn any_map_is_exact(
        slices in prop::collection::vec((0..3usize, 0..50_000u64, 1..50_000u64, 0..3u32, 1..40u64, 0..3u64), 1..14),
        chunks in 2..20usize,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let tensors: Vec<_> = ["a", "b", "c"].map(|name| (name.to_owned(), 100_000)).to_vec();
        let model = open(&write_model(folder.path(), &tensors));
        let target = |device| MapTarget { name: "t".into(), device, len_bytes: 0, complete: false };
        let mut map = PlacementMap { targets: (0..3).map(target).collect(), entries: Vec::new() };
        for (tensor, start, len, to, rows, gap) in slices {
            let len = (len / rows).max(1) * rows;
            let row_bytes = len / rows;
            let pitch = Some(Pitch { row_bytes, pitch_bytes: row_bytes + gap });
            let end = &mut map.targets[to as usize].len_bytes;
            let offset_bytes = *end + gap;
            *end = offset_bytes + rows * (row_bytes + gap);
            let slice = Some(vec![start..start + len]);
            map.entries.push(MapEntry { tensor: ["a", "b", "c"][tensor].into(), slice, target: to, offset_bytes, pitch });
        }
        let map = map.check(&model).unwrap();
        let devices = natives(3);
        let group = group(&devices, chunks * 4096);
        let placed = load_placed(&group, &model, &map, &PlaceOptions::default()).unwrap();
        exact(&placed, &model, &map);
        let options = group.plan_options();
        prop_assert!(read_bytes(&group) <= map.traffic(&model, options).unwrap().read_bytes);
    }
}
