//! Question: how near do the built-in kernels come to what the device can copy, and a gather to what the link can?
//!
//! Casts and a gather over device memory beside copies within it: bytes read and written a second. On CUDA also a gather
//! in WGSL that reads pinned host memory in place, beside plain copies from it.
#![allow(clippy::print_stdout, reason = "printing its answer is what a measurement does")]

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use clap::Parser;
use half::{bf16, f16};
use serde_json::json;
use spoc_driver::backend::Foreign;
use spoc_driver::{
    Arguments, BackendKind, BuiltIn, CopyRange, Device, DeviceVector, Element, ElementKind, Grid, Item,
    Kernel, KindRule, Language, Parameter, PinnedHandle, Source, Stream, StreamOptions,
};
use spoc_measurements::{device::DeviceArgs, machine, stats::Summary};

/// How near do the built-in kernels come to what the device can copy, and a gather to what the link can?
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    device: DeviceArgs,
    /// MiB of the larger vector.
    #[arg(long, default_value_t = 512)]
    mib: u64,
    /// Runs of each.
    #[arg(long, default_value_t = 9)]
    runs: usize,
    /// Launches a run.
    #[arg(long, default_value_t = 4)]
    launches: u32,
}

/// The grid of a built-in is the adapter's own.
const GRID: Grid = Grid { groups: [1, 1, 1], group: [64, 1, 1] };
/// KiB of the chunks that are gathered.
const CHUNK_KIB: [u32; 3] = [16, 64, 1024];

struct Bench {
    device: Device,
    stream: Stream,
    args: Args,
}

fn main() -> Result<()> {
    let args = Args::parse();
    println!("{}", machine::describe());
    let device = args.device.open()?;
    println!("{}, {}", device.info().name, device.driver_name()?);
    let stream = device.create_stream(StreamOptions::default())?;
    let bench = Bench { device, stream, args };
    let copy = bench.copies()?;
    bench.casts::<f32, bf16>("cast f32 bf16", BuiltIn::Cast, copy)?;
    bench.casts::<bf16, f32>("cast bf16 f32", BuiltIn::Cast, copy)?;
    bench.casts::<f16, f32>("cast f16 f32", BuiltIn::Cast, copy)?;
    bench.casts::<f16, bf16>("cast f16 bf16", BuiltIn::Cast, copy)?;
    bench.casts::<u8, bf16>("from_e4m3 bf16", BuiltIn::FromE4m3, copy)?;
    bench.casts::<u8, f32>("from_e5m2 f32", BuiltIn::FromE5m2, copy)?;
    bench.casts::<bf16, u8>("to_e4m3 bf16", BuiltIn::ToE4m3, copy)?;
    for kib in CHUNK_KIB {
        bench.gathers(kib, copy)?;
    }
    bench.digests(copy)?;
    if bench.device.info().backend == BackendKind::Cuda {
        bench.link()?;
    }
    Ok(())
}

fn gather_kernel() -> Result<Kernel> {
    let text = "struct Numbers { chunk: u32, count: u32 }
var<immediate> numbers: Numbers;
@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> places: array<u32>;
@group(0) @binding(4) var<storage, read_write> y: array<vec4<u32>>;
@compute @workgroup_size(256)
fn gathered(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var at = id.x; at < numbers.count; at += groups.x * 256u) {
        y[at] = x[places[at / numbers.chunk] * numbers.chunk + at % numbers.chunk];
    }
}";
    let words = KindRule::Exactly(ElementKind::U32);
    let parameters = [
        Parameter::read(words),
        Parameter::read(words),
        Parameter::scalar(words),
        Parameter::scalar(words),
        Parameter::write(words),
    ];
    let source =
        Source { language: Language::Wgsl, text: Arc::from(text.as_bytes()), entry: "gathered".to_owned() };
    // SAFETY: each thread writes elements of its own of the last vector; what lies outside is neither read nor written.
    Ok(unsafe { Kernel::from_sources("gathered", &parameters, vec![source]) }?)
}

/// A permutation: every chunk once, far from its neighbours.
fn scattered(count: u32) -> Vec<u32> {
    let step = (count / 2 + 1) | 1;
    (0..count).map(|n| n.wrapping_mul(step) % count).collect()
}

impl Bench {
    fn bytes(&self) -> u64 {
        self.args.mib << 20
    }

    /// Bytes a second of `run`, which moves so many; waited for once for all launches of a run.
    fn measure(&self, name: &str, moved_bytes: u64, of: f64, run: impl FnMut() -> Result<()>) -> Result<f64> {
        let (mut run, mut rates) = (run, Vec::new());
        for turn in 0..=self.args.runs {
            let since = Instant::now();
            for _ in 0..self.args.launches {
                run()?;
            }
            self.stream.synchronize()?;
            #[allow(clippy::cast_precision_loss, reason = "sizes here are far below 2^52")]
            let bytes = (moved_bytes * u64::from(self.args.launches)) as f64;
            // The first compiles.
            if turn > 0 {
                rates.push(bytes / since.elapsed().as_secs_f64() / 1e9);
            }
        }
        let summary = Summary::of(&rates).context("no runs")?;
        println!("{name}: GB/s {summary}; {:.3}", summary.median / of);
        println!("{}", json!({"what": name, "gb_s": rates}));
        Ok(summary.median)
    }

    fn copies(&self) -> Result<f64> {
        let (from, to) = (self.device.allocate(self.bytes())?, self.device.allocate(self.bytes())?);
        from.fill(0, self.bytes(), 0x3C)?;
        self.measure("copy within the device", 2 * self.bytes(), f64::NAN, || {
            Ok(self.stream.copy_device_to_device(&from, 0, &to, 0, self.bytes())?)
        })
    }

    fn casts<A: Element, B: Element>(&self, name: &str, which: BuiltIn, copy: f64) -> Result<()> {
        let count = self.bytes() / size_of::<A>().max(size_of::<B>()) as u64;
        let from = DeviceVector::<A>::allocate(&self.device, count)?;
        let mut to = DeviceVector::<B>::allocate(&self.device, count)?;
        let zeroes = vec![A::load(&vec![0; size_of::<A>()]); usize::try_from(count)?];
        from.write(0, &zeroes)?;
        let kernel = Kernel::built_in(which);
        let moved = count * (size_of::<A>() + size_of::<B>()) as u64;
        self.measure(name, moved, copy, || {
            Ok(self.stream.launch(&kernel, GRID, &Arguments::new().read_view(&from).write_view(&mut to))?)
        })?;
        Ok(())
    }

    fn gathers(&self, kib: u32, copy: f64) -> Result<()> {
        let words = self.bytes() / 4;
        let from = DeviceVector::<u32>::allocate(&self.device, words)?;
        let mut to = DeviceVector::<u32>::allocate(&self.device, words)?;
        from.write(0, &(0..u32::try_from(words)?).collect::<Vec<_>>())?;
        let chunk = kib << 8;
        let count = u32::try_from(words)? / chunk;
        let indices = DeviceVector::<u32>::allocate(&self.device, count.into())?;
        indices.write(0, &scattered(count))?;
        let (kernel, ours) = (Kernel::built_in(BuiltIn::Gather), gather_kernel()?);
        self.measure(&format!("gather of {kib} KiB, built in"), 2 * self.bytes(), copy, || {
            let arguments =
                Arguments::new().read_view(&from).read_view(&indices).scalar(chunk).write_view(&mut to);
            Ok(self.stream.launch(&kernel, GRID, &arguments)?)
        })?;
        let quads = u32::try_from(words / 4)?;
        let grid = Grid { groups: [4096, 1, 1], group: [256, 1, 1] };
        self.measure(&format!("gather of {kib} KiB, in WGSL"), 2 * self.bytes(), copy, || {
            let arguments = Arguments::new().read_view(&from).read_view(&indices);
            let arguments = arguments.scalar(chunk / 4).scalar(quads).write_view(&mut to);
            Ok(self.stream.launch(&ours, grid, &arguments)?)
        })?;
        let (mut first, place) = ([0], u64::from(chunk));
        to.read(place, &mut first)?;
        ensure!(first[0] == scattered(count)[1] * chunk, "the gather gathered something else");
        Ok(())
    }

    fn digests(&self, copy: f64) -> Result<()> {
        let from = DeviceVector::<u32>::allocate(&self.device, self.bytes() / 4)?;
        let mut to = DeviceVector::<u32>::allocate(&self.device, 4)?;
        from.write(0, &vec![7; usize::try_from(self.bytes() / 4)?])?;
        let kernel = Kernel::built_in(BuiltIn::Digest);
        self.measure("digest", self.bytes(), copy, || {
            let arguments = Arguments::new().read_view(&from).scalar(0_u32).write_view(&mut to);
            Ok(self.stream.launch(&kernel, GRID, &arguments)?)
        })?;
        Ok(())
    }

    /// A gather that reads pinned memory in place, beside copies from it.
    fn link(&self) -> Result<()> {
        let len = usize::try_from(self.bytes())?;
        let mut pinned = PinnedHandle::alloc(&self.device, self.bytes())?;
        pinned.as_mut_elements::<u32>()?.iter_mut().zip(0..).for_each(|(word, n)| *word = n);
        let to = self.device.allocate(self.bytes())?;
        let link = self.measure("copies of 16 MiB from pinned memory", self.bytes(), f64::NAN, || {
            for offset in (0..len).step_by(16 << 20) {
                let end = (offset + (16 << 20)).min(len);
                let dst_offset = offset as u64;
                let range = CopyRange { src_offset: 0, dst: &to, dst_offset, len_bytes: end - offset };
                let loan = pinned.lend(offset..end)?;
                self.stream.copy_to_device(loan, &[range]).map_err(|back| anyhow!(back.error))?;
            }
            Ok(())
        })?;
        let address = pinned.as_slice()?.as_ptr().expose_provenance() as u64;
        let foreign = Foreign { words: [address, 0, 0, 0, 0, 0], keep_alive: None };
        // SAFETY: pinned memory has one address on host and device (unified addressing), and is there until the end of
        // this function, as everything is that works on it.
        let there = match unsafe { self.device.adopt_memory(foreign, self.bytes()) } {
            Ok(there) => there,
            Err(error) => {
                println!("not run: a gather from pinned memory: {error}");
                return Ok(self.device.flush()?);
            }
        };
        let (words, ours) = (self.bytes() / 4, gather_kernel()?);
        let from = DeviceVector::<u32>::view(&there, 0, words)?;
        for kib in CHUNK_KIB {
            let chunk = kib << 8;
            let count = u32::try_from(words)? / chunk;
            let indices = DeviceVector::<u32>::allocate(&self.device, count.into())?;
            indices.write(0, &scattered(count))?;
            for groups in [132, 528, 4096] {
                let mut out = DeviceVector::<u32>::view(&to, 0, words)?;
                let grid = Grid { groups: [groups, 1, 1], group: [256, 1, 1] };
                let name = format!("gather of {kib} KiB from pinned memory, in WGSL, {groups} groups");
                self.measure(&name, self.bytes(), link, || {
                    let arguments = Arguments::new().read_view(&from).read_view(&indices);
                    let quads = u32::try_from(words / 4)?;
                    let arguments = arguments.scalar(chunk / 4).scalar(quads).write_view(&mut out);
                    Ok(self.stream.launch(&ours, grid, &arguments)?)
                })?;
            }
        }
        self.device.flush()?;
        Ok(())
    }
}
