//! What goes wrong in the middle of a load or a fill: nothing leaks, nothing is used after it is gone, the
//! error says what it was, and the pump serves the next.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests are tests

mod common;

use common::{layers, native, open, pump, write_model};
use crossbeam_channel::{Receiver, bounded};
use spoc_cache::load::{LoadOptions, load_model};
use spoc_cache::{Acquire, CacheOptions, Catalogue, GroupRules, Pump, PumpOptions, SlotCache};
use spoc_driver::fake::{self, FakeControl, FakeOptions, WaitMode};
use spoc_driver::{BackendKind, Device, DeviceSelector, Driver, StreamOptions};
use spoc_io::{Faults, IoMode, Model, WeightFile};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Does something when a read at or behind an offset is answered.
struct At<F> {
    offset: u64,
    done: AtomicBool,
    act: F,
}

impl<F: Fn() -> Option<i32> + Send + Sync> Faults for At<F> {
    fn answer(&self, answer: Result<usize, i32>, _file: &WeightFile, offset: u64) -> Result<usize, i32> {
        if offset >= self.offset && !self.done.swap(true, Ordering::SeqCst) {
            return (self.act)().map_or(answer, Err);
        }
        answer
    }
}

fn faulty(device: &Device, offset: u64, act: impl Fn() -> Option<i32> + Send + Sync + 'static) -> Arc<Pump> {
    let mut options = PumpOptions::new(IoMode::Pread, 512 << 10).unwrap();
    options.reader.faults = Some(Arc::new(At { offset, done: AtomicBool::new(false), act }));
    Pump::start(device, options).unwrap()
}

fn deferred(wait_mode: WaitMode) -> (Device, FakeControl) {
    let (probed, control) = fake::backend_with(FakeOptions { wait_mode, ..FakeOptions::default() });
    (Driver::new(vec![probed]).open(&DeviceSelector::index(BackendKind::Fake, 0)).unwrap(), control)
}

fn model(folder: &tempfile::TempDir) -> (PathBuf, Model) {
    let path = write_model(folder.path(), &layers(5, 400_000));
    let model = open(&path);
    (path, model)
}

/// Handles may be let go by the copy thread a moment later.
fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn nothing_left(device: &Device) {
    wait_for("device memory is left", || device.memory_in_use() == 0);
    wait_for("copies are left", || device.in_flight() == 0);
}

#[test]
fn a_reader_that_fails_mid_load() {
    let folder = tempfile::tempdir().unwrap();
    let (_, model) = model(&folder);
    let device = native();
    let pump = faulty(&device, 1 << 20, || Some(5));
    let error = load_model(&pump, &model, &LoadOptions::default()).unwrap_err();
    assert_eq!(error.kind().as_str(), "io_error");
    assert!(error.to_string().contains("model.safetensors"), "{error}");
    nothing_left(&device);
    // The same pump loads it at the second try.
    let loaded = load_model(&pump, &model, &LoadOptions::default()).unwrap();
    assert_eq!(loaded.verify(&model).unwrap(), model.tensor_bytes());
}

/// One read hangs until told otherwise; a later one fails.
struct HangThenFail {
    answered: AtomicU32,
    go_on: Receiver<()>,
}

impl Faults for HangThenFail {
    fn answer(&self, answer: Result<usize, i32>, _file: &WeightFile, _offset: u64) -> Result<usize, i32> {
        match self.answered.fetch_add(1, Ordering::SeqCst) {
            0 => {
                let _ = self.go_on.recv();
                answer
            }
            3 => Err(5),
            _ => answer,
        }
    }
}

#[test]
fn a_read_that_hangs_does_not_hide_the_error_of_another() {
    let folder = tempfile::tempdir().unwrap();
    let (_, model) = model(&folder);
    let device = native();
    let mut options = PumpOptions::new(IoMode::Pread, 512 << 10).unwrap();
    let (release, go_on) = bounded(0);
    options.reader.threads = 4;
    options.reader.faults = Some(Arc::new(HangThenFail { answered: AtomicU32::new(0), go_on }));
    let pump = Pump::start(&device, options).unwrap();
    let (said, heard) = bounded(1);
    let thread = {
        let pump = Arc::clone(&pump);
        std::thread::spawn(move || {
            let _ = said.send(load_model(&pump, &model, &LoadOptions::default()).map(drop));
        })
    };
    // The read still hangs when the error must have been told.
    let outcome = heard.recv_timeout(Duration::from_secs(20)).expect("the load ends while a read hangs");
    assert_eq!(outcome.unwrap_err().kind().as_str(), "io_error");
    drop(release);
    thread.join().unwrap();
    nothing_left(&device);
}

#[test]
fn a_file_cut_short_or_written_mid_load() {
    for (kinds, cut) in [(["truncated", "changed"], true), (["changed", "changed"], false)] {
        let folder = tempfile::tempdir().unwrap();
        let (path, model) = model(&folder);
        let device = native();
        let pump = faulty(&device, 1 << 20, move || {
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            if cut {
                file.set_len(1 << 20).unwrap();
            } else {
                std::os::unix::fs::FileExt::write_at(&file, b"other", 2000).unwrap();
            }
            None
        });
        let error = load_model(&pump, &model, &LoadOptions::default()).unwrap_err();
        assert!(kinds.contains(&error.kind().as_str()), "{error}");
        nothing_left(&device);
    }
}

#[test]
fn a_copy_that_fails_or_is_refused_mid_load() {
    for refused in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let (_, model) = model(&folder);
        let (device, control) = deferred(WaitMode::Drive);
        if refused {
            control.refuse_copy(5);
        } else {
            control.fail_copy(5);
        }
        // So few chunks that each is enqueued alone.
        let mut options = PumpOptions::new(IoMode::Auto, 512 << 10).unwrap();
        options.reader.chunk_bytes = 64 << 10;
        let pump = Pump::start(&device, options).unwrap();
        let error = load_model(&pump, &model, &LoadOptions::default()).unwrap_err();
        assert!(error.kind().as_str() != "closed", "{error}");
        nothing_left(&device);
        assert_eq!(control.violations(), Vec::<String>::new());
    }
}

#[test]
fn chunks_that_are_refused_together_are_tried_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (path, model) = model(&folder);
    // Sixteen chunks: up to two are enqueued together.
    for nth in 1..20 {
        let (device, control) = deferred(WaitMode::Drive);
        control.refuse_copy(nth);
        let pump = pump(&device, IoMode::Pread, 512 << 10);
        match load_model(&pump, &model, &LoadOptions::default()) {
            Ok(loaded) => assert_eq!(loaded.verify(&model).unwrap(), model.tensor_bytes()),
            // The one that was refused was alone.
            Err(error) => assert_ne!(error.kind().as_str(), "closed", "{error}"),
        }
        nothing_left(&device);
        assert_eq!(control.violations(), Vec::<String>::new());
    }
    drop(path);
}

#[test]
fn a_device_lost_mid_load() {
    let folder = tempfile::tempdir().unwrap();
    let (_, model) = model(&folder);
    let (device, control) = deferred(WaitMode::Drive);
    let lose = control.clone();
    let pump = faulty(&device, 1 << 20, move || {
        lose.lose_device();
        None
    });
    let error = load_model(&pump, &model, &LoadOptions::default()).unwrap_err();
    assert_eq!(error.kind().as_str(), "device_lost");
    drop(pump);
    assert_eq!(control.violations(), Vec::<String>::new());
}

#[test]
fn a_device_or_a_budget_too_small_is_said_before_a_byte_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let (_, model) = model(&folder);
    let options = FakeOptions { memory_bytes: 1 << 20, ..FakeOptions::default() };
    let (probed, _control) = fake::backend_with(options);
    let device = Driver::new(vec![probed]).open(&DeviceSelector::index(BackendKind::Fake, 0)).unwrap();
    let pump = pump(&device, IoMode::Auto, 512 << 10);
    let error = load_model(&pump, &model, &LoadOptions::default()).unwrap_err();
    assert_eq!(error.kind().as_str(), "device_too_small");
    assert_eq!(pump.stages().read_bytes, 0);
    let catalogue = Catalogue::from_model(&model, &GroupRules::default()).unwrap();
    let error = SlotCache::new(&pump, CacheOptions::for_catalogue(&catalogue, 5)).unwrap_err();
    assert_eq!(error.kind().as_str(), "device_too_small");
    assert_eq!(PumpOptions::new(IoMode::Auto, 5000).unwrap_err().kind().as_str(), "staging_too_small");
}

#[test]
fn deferred_copies_with_a_device_that_takes_its_time() {
    let folder = tempfile::tempdir().unwrap();
    let (_, model) = model(&folder);
    let (device, control) = deferred(WaitMode::Block);
    let stop = Arc::new(AtomicBool::new(false));
    let (stepping, steps) = (Arc::clone(&stop), control.clone());
    let stepper = std::thread::spawn(move || {
        while !stepping.load(Ordering::Relaxed) {
            match steps.busy_streams().first() {
                Some(&stream) => drop(steps.step(stream)),
                None => std::thread::sleep(Duration::from_micros(200)),
            }
        }
    });
    let pump = pump(&device, IoMode::Auto, 512 << 10);
    let loaded = load_model(&pump, &model, &LoadOptions::default()).unwrap();
    loaded.verify(&model).unwrap();
    stop.store(true, Ordering::Relaxed);
    stepper.join().unwrap();
    assert_eq!(control.violations(), Vec::<String>::new());
}

/// Every order of letting go of five handles while fills are under way.
#[test]
fn handles_dropped_in_any_order_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (_, model) = model(&folder);
    let catalogue = Arc::new(Catalogue::from_model(&model, &GroupRules::default()).unwrap());
    let (device, control) = deferred(WaitMode::Drive);
    for order in 0..120usize {
        let pump = pump(&device, IoMode::Auto, 256 << 10);
        let cache = SlotCache::new(&pump, CacheOptions::for_catalogue(&catalogue, 3)).unwrap();
        let keys = cache.keys(cache.register(Arc::clone(&catalogue)).unwrap());
        let stream = Rc::new(device.create_stream(StreamOptions::default()).unwrap());
        let lease = cache.wait_acquire(&keys[..1], Rc::clone(&stream)).unwrap();
        let (segment, base) = lease.memory(0).unwrap();
        let launch = stream.copy_to_host(&segment, base, vec![0; 4096]).unwrap();
        drop(segment);
        let filling = cache.acquire(&keys[1..3], Rc::clone(&stream)).unwrap();
        let mut handles: Vec<Box<dyn FnOnce()>> = vec![
            Box::new(move || drop(pump)),
            Box::new(move || drop(cache)),
            Box::new(move || drop(lease)),
            Box::new(move || drop(filling)),
            Box::new(move || drop((stream, launch))),
        ];
        let mut rest = order;
        for left in (1..=5).rev() {
            handles.remove(rest % left)();
            rest /= left;
        }
        nothing_left(&device);
        assert_eq!(control.violations(), Vec::<String>::new(), "order {order}");
    }
    wait_for("backend objects are left", || {
        device.collect();
        let live = control.live();
        (live.segments, live.pinned) == (0, 0)
    });
}

/// The host never waits for launches: neither the thread that acquires, nor the copy thread for the sake of
/// one slot while others want theirs.
#[test]
fn a_fill_behind_a_running_launch_holds_up_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let (_, model) = model(&folder);
    let catalogue = Arc::new(Catalogue::from_model(&model, &GroupRules::default()).unwrap());
    let (device, control) = deferred(WaitMode::Block);
    let pump = pump(&device, IoMode::Auto, 32 << 20);
    let cache = SlotCache::new(&pump, CacheOptions::for_catalogue(&catalogue, 2)).unwrap();
    let keys = cache.keys(cache.register(Arc::clone(&catalogue)).unwrap());
    let stream = device.create_stream(StreamOptions::default()).unwrap();
    let mut launches = Vec::new();
    // The device works, but no launch ever ends; and yet each of these is read, enqueued and leased, in slots
    // that earlier launches still read.
    let stop = Arc::new(AtomicBool::new(false));
    let (stepping, steps, launching) = (Arc::clone(&stop), control.clone(), control.stream(&stream));
    let stepper = std::thread::spawn(move || {
        while !stepping.load(Ordering::Relaxed) {
            let copies = steps.busy_streams().into_iter().filter(|&stream| stream != launching);
            let ran = copies.map(|stream| steps.run(stream)).sum::<usize>();
            if ran == 0 {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    });
    for key in &keys[1..6] {
        let lease = cache.acquire(&[*key], &stream).unwrap();
        let lease = match lease {
            Acquire::Ready(lease) => lease,
            Acquire::Pending(pending) => pending.wait_timeout(Duration::from_secs(10)).unwrap(),
        };
        let (segment, base) = lease.memory(0).unwrap();
        launches.push(stream.copy_to_host(&segment, base, vec![0; 50_000]).unwrap());
        lease.release(&[&stream]).unwrap();
    }
    let running = launches.iter().filter(|launch| !launch.query().unwrap()).count();
    stop.store(true, Ordering::Relaxed);
    control.set_wait_mode(WaitMode::Drive);
    stepper.join().unwrap();
    assert_eq!(running, launches.len());
    for (group, launch) in (1u32..).zip(launches) {
        let tensor = catalogue.tensors(group)[0].tensor;
        assert!(launch.wait().unwrap() == common::pattern(u64::from(tensor) + 1, 400_000)[..50_000]);
    }
    drop((cache, pump));
    assert_eq!(control.violations(), Vec::<String>::new());
}

/// Slots of a device whose segments hold two of them: none straddles, every address is base + slot · stride.
#[test]
fn slots_over_several_segments() {
    let folder = tempfile::tempdir().unwrap();
    let (_, model) = model(&folder);
    let catalogue = Arc::new(Catalogue::from_model(&model, &GroupRules::default()).unwrap());
    let mut options = FakeOptions { wait_mode: WaitMode::Drive, ..FakeOptions::default() };
    options.limits.segment_bytes_max = 2 * catalogue.widest_slot_bytes() + 8192;
    let (probed, control) = fake::backend_with(options);
    let device = Driver::new(vec![probed]).open(&DeviceSelector::index(BackendKind::Fake, 0)).unwrap();
    let pump = pump(&device, IoMode::Auto, 1 << 20);
    let cache = SlotCache::new(&pump, CacheOptions::for_catalogue(&catalogue, 5)).unwrap();
    let table = cache.segment_table();
    assert_eq!(
        table.iter().map(|row| (row.first_slot, row.slots)).collect::<Vec<_>>(),
        [(0, 2), (2, 2), (4, 1)]
    );
    let keys = cache.keys(cache.register(Arc::clone(&catalogue)).unwrap());
    let stream = device.create_stream(StreamOptions::default()).unwrap();
    let lease = cache.wait_acquire(&keys[1..6], &stream).unwrap();
    let stride = cache.geometry().stride_bytes;
    for (group, slot) in (1u32..).zip(lease.slots()) {
        let row = table[slot.segment as usize];
        let address = row.address.unwrap() + u64::from(slot.slot - row.first_slot) * stride;
        assert_eq!(slot.address, Some(address));
        assert_eq!(address % 256, 0);
        let (segment, base) = lease.memory(group as usize - 1).unwrap();
        let read = stream.copy_to_host(&segment, base, vec![0; 400_000]).unwrap();
        let seed = u64::from(catalogue.tensors(group)[0].tensor) + 1;
        assert!(read.wait().unwrap() == common::pattern(seed, 400_000));
    }
    drop((lease, cache));
    let wide = CacheOptions { slot_bytes: 1 << 29, ..CacheOptions::for_catalogue(&catalogue, 1) };
    assert_eq!(SlotCache::new(&pump, wide).unwrap_err().kind().as_str(), "wider_than_segment");
    let narrow = CacheOptions { slot_bytes: 1000, ..CacheOptions::for_catalogue(&catalogue, 1) };
    let error = SlotCache::new(&pump, narrow).unwrap().register(catalogue).unwrap_err();
    assert!(error.to_string().contains("model.embed_tokens"), "{error}");
    assert_eq!(control.violations(), Vec::<String>::new());
}
