//! Question: how much faster do kernels in WGSL run compiled, on native, than interpreted?
//!
//! Three kernels, each on both devices by turns over the same numbers; both have to give the same bits.
#![allow(clippy::print_stdout, reason = "printing its answer is what a measurement does")]

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use serde_json::json;
use spoc_backends::{interpreter, native};
use spoc_driver::{
    Arguments, BackendKind, Device, DeviceSelector, DeviceVector, Driver, ElementKind, Grid, Kernel,
    KindRule, Language, Parameter, Source,
};
use spoc_measurements::{machine, stats::Summary};

/// How much faster do kernels in WGSL run compiled, on native, than interpreted?
#[derive(Debug, Parser)]
struct Args {
    /// Groups of 64 threads.
    #[arg(long, default_value_t = 2048)]
    groups: u32,
    /// Launches of each kernel on each device.
    #[arg(long, default_value_t = 9)]
    runs: usize,
}

/// A long sum of products: arithmetic and loads.
const SERIES: &str = "
    var sum = bitcast<f32>(x[at] & 0x3fffffffu);
    for (var n = 0u; n < 32u; n++) { sum = sum * 0.75 + f32(x[(at + n) % arrayLength(&x)] >> 8u); }
    out[at] = bitcast<u32>(sum);";

/// Bits mixed in registers.
const MIX: &str = "
    var h = x[at];
    for (var n = 0u; n < 16u; n++) {
        h ^= h >> 16u; h *= 0x7feb352du; h ^= h >> 15u; h *= 0x846ca68bu;
        if (h & 1u) == 0u { h += countOneBits(h); }
    }
    out[at] = h;";

/// A sum by a tree in group memory: barriers.
const TREE: &str = "
    part[local] = x[at];
    workgroupBarrier();
    for (var half = 32u; half > 0u; half /= 2u) {
        if local < half { part[local] += part[local + half]; }
        workgroupBarrier();
    }
    out[at] = part[0] + local;";

fn main() -> Result<()> {
    let args = Args::parse();
    println!("{}", machine::describe());
    let (probed, counters) = native::backend_with_counters(native::Options::default());
    let compiled = Driver::new(vec![probed]).open(&DeviceSelector::index(BackendKind::Native, 0))?;
    let interpreted = Driver::new(vec![interpreter::backend(interpreter::Options::default())])
        .open(&DeviceSelector::index(BackendKind::Interpreter, 0))?;
    for (name, body) in [("series", SERIES), ("mix", MIX), ("tree", TREE)] {
        let kernel = kernel(body)?;
        let mut times = [Vec::new(), Vec::new()];
        for run in 0..=args.runs {
            let (first, one) = timed(&compiled, &kernel, args.groups)?;
            let (second, other) = timed(&interpreted, &kernel, args.groups)?;
            ensure!(one == other, "{name}: the two compute different bits");
            // The first run reads and compiles the text.
            if run > 0 {
                times[0].push(first * 1e3);
                times[1].push(second * 1e3);
            }
        }
        let of = |times: &Vec<f64>| Summary::of(times).context("no runs");
        let (fast, slow) = (of(&times[0])?, of(&times[1])?);
        println!("{name}: compiled ms: {fast}");
        println!("{name}: interpreted ms: {slow}; {:.1} × as long", slow.median / fast.median);
        println!("{}", json!({ "kernel": name, "compiled_ms": times[0], "interpreted_ms": times[1] }));
    }
    let counted = counters.read();
    ensure!(counted.launches_interpreted == 0, "native interpreted {}", counted.launches_interpreted);
    Ok(())
}

fn kernel(body: &str) -> Result<Kernel> {
    let text = format!(
        "@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;
var<workgroup> part: array<u32, 64>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_index) local: u32) {{
    let at = id.x;
    {body}
}}"
    );
    let words = KindRule::Exactly(ElementKind::U32);
    let source =
        Source { language: Language::Wgsl, text: Arc::from(text.as_bytes()), entry: "main".to_owned() };
    // SAFETY: each thread writes its own element of the second vector, and reads elements that the first has.
    let made = unsafe {
        Kernel::from_sources("kernel_speed", &[Parameter::read(words), Parameter::write(words)], vec![source])
    };
    Ok(made?)
}

/// Seconds that a launch takes, and what it computes.
fn timed(device: &Device, kernel: &Kernel, groups: u32) -> Result<(f64, Vec<u32>)> {
    let len = groups * 64;
    let from = DeviceVector::<u32>::allocate(device, len.into())?;
    let mut to = DeviceVector::<u32>::allocate(device, len.into())?;
    let input: Vec<u32> = (0..len).map(|n| n.wrapping_mul(0x9e37_79b9)).collect();
    from.write(0, &input)?;
    to.write(0, &vec![0; input.len()])?;
    let grid = Grid { groups: [groups, 1, 1], group: [64, 1, 1] };
    let begin = Instant::now();
    device.launch(kernel, grid, &Arguments::new().read_view(&from).write_view(&mut to))?;
    device.flush()?;
    let seconds = begin.elapsed().as_secs_f64();
    let mut out = vec![0; input.len()];
    to.read(0, &mut out)?;
    Ok((seconds, out))
}
