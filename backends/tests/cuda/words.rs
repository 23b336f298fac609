//! Streams that wait for words, beside everything that waits for the device.

use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use spoc_backends::cuda::backend_with_counters;
use spoc_driver::{
    Arguments, BackendKind, Device, DeviceSelector, Driver, ElementKind, Grid, Kernel, KindRule, Language,
    Parameter, Segment, Source, Stream,
};

use super::{Held, MIB, NON_BLOCKING, filled, on_every_device, pattern, read, whole};

/// Longer than anything here takes, and shorter than anybody waits for a run that stands still.
const PATIENCE: Duration = Duration::from_secs(20);

/// Ends the process if it is not dropped in time: threads that stand still within the driver cannot be joined.
struct Watchdog(#[allow(dead_code)] std::sync::mpsc::Sender<()>);

impl Watchdog {
    fn start(what: &'static str) -> Self {
        let (end, is_over) = channel::<()>();
        thread::spawn(move || {
            if is_over.recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                eprintln!("{what} stands still");
                std::process::abort();
            }
        });
        Self(end)
    }
}

/// Two openings of one device by one backend.
fn two_openings(index: u32) -> [Device; 2] {
    let (probed, _) = backend_with_counters().unwrap();
    [(), ()].map(|()| {
        let driver = Driver::new(vec![probed.clone()]);
        driver.open(&DeviceSelector::index(BackendKind::Cuda, index)).unwrap()
    })
}

/// A kernel that no other text is equal to, so that it is loaded when it is launched.
fn new_kernel(number: usize) -> Kernel {
    let mut text = include_bytes!("spin.ptx").to_vec();
    text.extend(format!("\n// {number}\n").bytes());
    let source = Source { language: Language::Ptx, text: Arc::from(text), entry: "spin".to_owned() };
    let parameters = [Parameter::scalar(KindRule::Exactly(ElementKind::U64))];
    // SAFETY: it looks at the clock, and at no memory.
    unsafe { Kernel::from_sources("spin", &parameters, vec![source]) }.unwrap()
}

/// A stream of one opening waits for a word; meanwhile every call that waits for the device is made through another
/// opening, by threads of their own; then the word is written, by a call. Done often, because a call does not always
/// come between.
#[test]
fn a_word_is_written_while_others_do_what_waits_for_the_device() {
    on_every_device(|bench| {
        if !bench.device.capabilities().wait_value.is_available() {
            return;
        }
        let _watchdog = Watchdog::start("a word beside calls that wait for the device");
        let [waits, others] = two_openings(bench.device.info().index);
        let (waiter, writer) =
            (waits.create_stream(NON_BLOCKING).unwrap(), waits.create_stream(NON_BLOCKING).unwrap());
        let word = waits.allocate(64).unwrap();
        word.write(0, &[0; 64]).unwrap();
        for round in 1..=20_u64 {
            let begins = Barrier::new(5);
            // Made before: only letting go of it is asked about.
            let (small, pinned) = (others.allocate(64).unwrap(), others.alloc_pinned(4096).unwrap());
            let memory = filled(MIB, 1);
            let registered = others.pin(&memory).unwrap();
            thread::scope(|scope| {
                let (begins, others) = (&begins, &others);
                scope.spawn(move || (begins.wait(), drop((small, pinned))));
                scope.spawn(move || (begins.wait(), drop(registered)));
                scope.spawn(move || (begins.wait(), launch_new(others, round as usize)));
                scope.spawn(move || (begins.wait(), copy_pageable(others)));
                waiter.wait_value(&word, 0, round).unwrap();
                begins.wait();
                thread::sleep(Duration::from_millis(3));
                assert!(!waiter.query().unwrap(), "the word came by itself");
                writer.write_value(&word, 0, round).unwrap();
                waiter.synchronize().unwrap();
            });
        }
    });
}

fn launch_new(device: &Device, number: usize) {
    let stream = device.create_stream(NON_BLOCKING).unwrap();
    stream.launch(&new_kernel(number), Grid::linear(1), &Arguments::new().scalar(1_u64)).unwrap();
    stream.synchronize().unwrap();
}

fn copy_pageable(device: &Device) {
    let target = device.allocate(MIB as u64).unwrap();
    target.write(0, &pattern(MIB, 3)).unwrap();
    assert!(read(&target) == pattern(MIB, 3));
}

/// A copy from memory that is not pinned, behind a word: its caller waits, and nobody else does.
#[test]
fn a_pageable_copy_behind_a_word_keeps_nobody_from_writing_it() {
    on_every_device(|bench| {
        if !bench.device.capabilities().wait_value.is_available() {
            return;
        }
        let _watchdog = Watchdog::start("a pageable copy behind a word");
        let (waiter, writer) = (bench.stream(), bench.stream());
        let (word, target) =
            (bench.device.allocate(64).unwrap(), bench.device.allocate(4 * MIB as u64).unwrap());
        word.write(0, &[0; 64]).unwrap();
        let memory = filled(4 * MIB, 5);
        waiter.wait_value(&word, 8, 1).unwrap();
        thread::scope(|scope| {
            let target = &target;
            let copying = scope.spawn(move || copy(&waiter, memory, target));
            thread::sleep(Duration::from_millis(50));
            writer.write_value(&word, 8, 1).unwrap();
            copying.join().unwrap();
        });
        assert!(read(&target) == pattern(4 * MIB, 5));
    });
}

fn copy(stream: &Stream, memory: spoc_driver::HostMemory, target: &Segment) {
    stream.copy_to_device(memory, &[whole(target, 4 * MIB)]).unwrap();
    stream.synchronize().unwrap();
}

/// A look, and no promise: which calls wait for a device that is busy. What does is said in the adapter's notes.
#[test]
fn what_waits_for_a_busy_device_is_told() {
    on_every_device(|bench| {
        let memory = filled(MIB, 1);
        let pinned = bench.device.pin(&memory).unwrap();
        let look = |what: &str, action: Box<dyn FnOnce() + '_>| {
            let held = Held::on(bench);
            let start = Instant::now();
            action();
            eprintln!("{what}: {:.3} ms", start.elapsed().as_secs_f64() * 1e3);
            held.stream.synchronize().unwrap();
        };
        look("allocating 64 bytes", Box::new(|| drop(bench.device.allocate(64).unwrap())));
        look("allocating pinned memory", Box::new(|| drop(bench.device.alloc_pinned(4096).unwrap())));
        look("unregistering", Box::new(|| drop(pinned)));
        let other = filled(MIB, 2);
        let mut registered = None;
        look("registering", Box::new(|| registered = Some(bench.device.pin(&other).unwrap())));
        look("loading and launching a kernel", Box::new(|| launch_new(&bench.device, 1 << 20)));
        look("loading another", Box::new(|| launch_new(&bench.device, 1 << 21)));
    });
}
