//! The CUDA backend through the driver, on every device that is there.
#![cfg(feature = "cuda")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::multiple_unsafe_ops_per_block)]

#[path = "../common/mod.rs"]
mod common;

mod adopting;
mod capturing;
mod copying;
mod kernels;
mod memory;
mod pinning;
mod processes;
mod words;

use std::sync::Arc;
use std::time::{Duration, Instant};

use spoc_backends::cuda::{CounterReader, CudaCounters, backend_with_counters};
use spoc_driver::backend::Probed;
use spoc_driver::{
    Arguments, BackendKind, CopyRange, Device, DeviceSelector, Driver, ElementKind, Grid, HostMemory,
    HostMemoryOptions, HostSource, Kernel, KindRule, Language, Parameter, Segment, Source, Stream,
    StreamOptions,
};

const MIB: usize = 1 << 20;
const NON_BLOCKING: StreamOptions =
    StreamOptions { non_blocking: true, priority: spoc_driver::StreamPriority::Normal };

/// A device of an opening of its own, so that its counters are its own.
struct Bench {
    driver: Driver,
    device: Device,
    counters: CounterReader,
}

impl Bench {
    fn open(index: u32) -> Self {
        let (probed, counters) = backend_with_counters().unwrap();
        let driver = Driver::new(vec![probed]);
        let device = driver.open(&DeviceSelector::index(BackendKind::Cuda, index)).unwrap();
        Self { driver, device, counters }
    }

    fn stream(&self) -> Stream {
        self.device.create_stream(NON_BLOCKING).unwrap()
    }

    /// Runs an action; answers what it added to a counter.
    fn added<T>(&self, counter: fn(CudaCounters) -> u64, action: impl FnOnce() -> T) -> u64 {
        let before = counter(self.counters.read());
        action();
        counter(self.counters.read()) - before
    }
}

/// Runs a check on every device; with no device, says why.
fn on_every_device(check: impl Fn(&Bench)) {
    let Some(probed) = common::backend(BackendKind::Cuda) else { return };
    for info in Probed::clone(&probed).devices() {
        check(&Bench::open(info.index));
    }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 31 + i / 251 + seed) % 251) as u8).collect()
}

fn whole(segment: &Segment, len_bytes: usize) -> CopyRange<'_> {
    CopyRange { src_offset: 0, dst: segment, dst_offset: 0, len_bytes }
}

fn read(segment: &Segment) -> Vec<u8> {
    let mut bytes = vec![0xA5; segment.len_bytes() as usize];
    segment.read(0, &mut bytes).unwrap();
    bytes
}

/// Host memory that is filled.
fn filled(len: usize, seed: usize) -> HostMemory {
    let mut buffer = spoc_driver::HostBuffer::allocate(len, HostMemoryOptions::default()).unwrap();
    buffer.copy_from_slice(&pattern(len, seed));
    buffer.share()
}

fn bytes_of(memory: &HostMemory) -> &[u8] {
    // SAFETY: nothing writes it in these tests once it is filled.
    unsafe { std::slice::from_raw_parts(HostSource::as_ptr(memory), HostSource::len_bytes(memory)) }
}

/// A stream that a kernel keeps busy for a while.
struct Held {
    stream: Stream,
    since: Instant,
}

const SPIN: Duration = Duration::from_millis(800);

impl Held {
    fn on(bench: &Bench) -> Self {
        let text: Arc<[u8]> = Arc::from(*include_bytes!("spin.ptx"));
        let source = Source { language: Language::Ptx, text, entry: "spin".to_owned() };
        let parameters = [Parameter::scalar(KindRule::Exactly(ElementKind::U64))];
        // SAFETY: it looks at the clock, and at no memory.
        let kernel = unsafe { Kernel::from_sources("spin", &parameters, vec![source]) }.unwrap();
        let stream = bench.stream();
        let launch = |nanoseconds: u64| {
            stream.launch(&kernel, Grid::linear(1), &Arguments::new().scalar(nanoseconds)).unwrap();
        };
        // The first launch loads it, which may wait for the device.
        launch(1);
        stream.synchronize().unwrap();
        // So does loading the adapter's own kernels, which begins beside a backend's first stream.
        std::thread::sleep(Duration::from_millis(300));
        let since = Instant::now();
        launch(SPIN.as_nanos() as u64);
        Self { stream, since }
    }

    /// Nothing of what was asked may have waited for the kernel.
    #[track_caller]
    fn open(self) {
        assert!(
            self.since.elapsed() < SPIN && !self.stream.query().unwrap(),
            "something waited for the device"
        );
        self.stream.synchronize().unwrap();
    }
}

/// Whether an action is over before anybody could think that it had waited.
#[track_caller]
fn at_once<T>(what: &str, action: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let outcome = action();
    let took = start.elapsed();
    eprintln!("{what} beside a busy stream: {:.3} ms", took.as_secs_f64() * 1e3);
    assert!(took < SPIN / 3, "{what} took {took:?}");
    outcome
}

#[test]
fn the_device_says_what_it_is() {
    on_every_device(|bench| {
        let info = bench.device.info();
        assert!(info.uuid_is_stable && info.uuid.0 != [0; 16], "{info:?}");
        assert!(!info.name.is_empty() && info.memory_bytes > 0, "{info:?}");
        let limits = bench.device.limits();
        assert!(limits.free_waits_for_device && limits.export_granule_bytes.is_power_of_two(), "{limits:?}");
        let memory = bench.device.memory().unwrap();
        assert!(memory.free_bytes > 0 && memory.free_bytes <= memory.total_bytes, "{memory:?}");
        for (name, verdict) in bench.device.capabilities().iter() {
            eprintln!("{name}: {verdict}");
        }
        let by_uuid = bench.driver.open(&DeviceSelector::uuid(BackendKind::Cuda, info.uuid)).unwrap();
        assert!(by_uuid.is(&bench.device));
    });
}
