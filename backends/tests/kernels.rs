//! Kernels in WGSL on every backend that runs them: what they compute, what they are refused for, and that
//! generated expressions come out alike everywhere.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)]

mod common;
mod generate;

use std::sync::{Arc, OnceLock};

use spoc_driver::backend::BackendKind;
use spoc_driver::{
    Arguments, Device, DeviceVector, ElementKind, Error, ErrorKind, Grid, Kernel, KindRule, Language,
    Parameter, Source,
};

const WORDS: KindRule = KindRule::Exactly(ElementKind::U32);
const FLOATS: KindRule = KindRule::Exactly(ElementKind::F32);

/// The backends that run WGSL here; CUDA's adapter takes other forms.
fn devices() -> &'static [(BackendKind, Device)] {
    static DEVICES: OnceLock<Vec<(BackendKind, Device)>> = OnceLock::new();
    let kinds = [
        BackendKind::Interpreter,
        BackendKind::Native,
        BackendKind::OpenCl,
        BackendKind::Vulkan,
        BackendKind::WebGpu,
    ];
    DEVICES.get_or_init(|| {
        kinds
            .into_iter()
            .flat_map(|kind| common::devices(kind).into_iter().map(move |device| (kind, device)))
            .collect()
    })
}

fn wgsl(text: &str, entry: &str, parameters: &[Parameter]) -> Kernel {
    kernel(&[(Language::Wgsl, text, entry)], parameters)
}

fn kernel(sources: &[(Language, &str, &str)], parameters: &[Parameter]) -> Kernel {
    let source = |(language, text, entry): &(Language, &str, &str)| Source {
        language: *language,
        text: Arc::from(text.as_bytes()),
        entry: (*entry).to_owned(),
    };
    // SAFETY: the texts of this file stay inside their arguments, or are there to be stopped.
    unsafe { Kernel::from_sources("test", parameters, sources.iter().map(source).collect()) }.unwrap()
}

/// Launches a kernel over one input and one output of words; answers the output.
fn run(device: &Device, kernel: &Kernel, grid: Grid, input: &[u32], out: usize) -> Result<Vec<u32>, Error> {
    let from = DeviceVector::<u32>::allocate(device, input.len() as u64).unwrap();
    let mut to = DeviceVector::<u32>::allocate(device, out as u64).unwrap();
    from.write(0, input).unwrap();
    to.write(0, &vec![0; out]).unwrap();
    device.launch(kernel, grid, &Arguments::new().read_view(&from).write_view(&mut to))?;
    device.flush()?;
    let mut words = vec![0; out];
    to.read(0, &mut words).unwrap();
    Ok(words)
}

fn grid(groups: u32, group: u32) -> Grid {
    Grid { groups: [groups, 1, 1], group: [group, 1, 1] }
}

fn in_and_out() -> [Parameter; 2] {
    [Parameter::read(WORDS), Parameter::write(WORDS)]
}

/// A sum by a tree in group memory: barriers in a loop, and numbers of threads and groups.
#[test]
fn groups_share_memory_and_wait_for_each_other() {
    let text = "
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> sums: array<u32>;
var<workgroup> part: array<u32, 64>;
@compute @workgroup_size(64)
fn tree(@builtin(local_invocation_index) own: u32, @builtin(workgroup_id) group: vec3<u32>,
        @builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    part[own] = x[id.x];
    workgroupBarrier();
    for (var half = 32u; half > 0u; half /= 2u) {
        if own < half { part[own] += part[own + half]; }
        workgroupBarrier();
    }
    if own == 0u { sums[group.x] = part[0] + groups.x * 1000000u; }
}";
    let kernel = wgsl(text, "tree", &in_and_out());
    let input: Vec<u32> = (0..256).collect();
    let expected: Vec<u32> = input.chunks(64).map(|part| part.iter().sum::<u32>() + 4_000_000).collect();
    for (kind, device) in devices() {
        assert_eq!(run(device, &kernel, grid(4, 64), &input, 4).unwrap(), expected, "{kind}");
    }
}

/// Atomic operations on group and device memory, switches, loops that continue and break, functions that return
/// early, structs and arrays in storage, private and local variables.
#[test]
fn control_flow_atomics_and_structures() {
    let text = "
struct Pair { count: u32, weight: f32, place: vec3<i32>, rest: array<u32, 2> }
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<atomic<u32>>;
var<private> calls: u32 = 3u;
var<workgroup> most: atomic<i32>;
fn collatz(n: u32) -> u32 {
    var at = n;
    var steps = 0u;
    loop {
        if at <= 1u { return steps; }
        steps++;
        if (at & 1u) == 0u { at /= 2u; continue; }
        at = at * 3u + 1u;
        continuing { calls++; break if steps > 500u; }
    }
    return 999u;
}
fn name(n: u32) -> vec2<u32> {
    switch n % 5u {
        case 0u, 3u: { return vec2(1u, n); }
        case 1u: { break; }
        default: { return vec2(7u); }
    }
    return vec2(n, 2u);
}
@compute @workgroup_size(8, 2)
fn flow(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_id) own: vec3<u32>) {
    let i = id.y * 8u + id.x;
    let steps = collatz(x[i]);
    var pair: Pair;
    pair.count = steps;
    pair.place[own.x % 3u] = i32(own.y) - 5;
    pair.rest = array(calls, steps * 2u);
    var counts = array<u32, 4>();
    counts[i % 4u] = pair.count;
    let named = name(i);
    atomicAdd(&out[0], steps);
    atomicMax(&out[1], counts[i % 4u]);
    atomicMax(&most, pair.place[own.x % 3u] + i32(i));
    let before = atomicCompareExchangeWeak(&out[2], 0u, i + 1u);
    if before.exchanged { atomicOr(&out[3], 0x100u); }
    atomicXor(&out[4], 1u << (i % 16u));
    workgroupBarrier();
    if i == 0u { atomicStore(&out[5], u32(atomicLoad(&most))); }
    atomicStore(&out[8u + i], named.x * 1000u + named.y + pair.rest[1] * 100000u + pair.rest[0] * 10000000u);
}";
    let kernel = wgsl(text, "flow", &in_and_out());
    let input: Vec<u32> = (1..17).map(|i| i * i + 3).collect();
    let collatz = |mut n: u32| {
        let (mut steps, mut calls) = (0_u32, 3_u32);
        while n > 1 {
            steps += 1;
            n = if n.is_multiple_of(2) { n / 2 } else { n * 3 + 1 };
            calls += 1;
        }
        (steps, calls)
    };
    let mut expected = vec![0_u32; 24];
    for (i, n) in (0_u32..).zip(&input) {
        let (steps, calls) = collatz(*n);
        let (first, second) = match i % 5 {
            0 | 3 => (1, i),
            1 => (i, 2),
            _ => (7, 7),
        };
        expected[0] += steps;
        expected[1] = expected[1].max(steps);
        expected[4] ^= 1 << (i % 16);
        expected[8 + i as usize] = (first * 1000 + second)
            .wrapping_add((steps * 2).wrapping_mul(100_000))
            .wrapping_add(calls.wrapping_mul(10_000_000));
    }
    expected[3] = 0x100;
    expected[5] = 15 - 4;
    for (kind, device) in devices() {
        let grid = Grid { groups: [1, 1, 1], group: [8, 2, 1] };
        let mut found = run(device, &kernel, grid, &input, 24).unwrap();
        assert!((1..=16).contains(&found[2]), "{kind}: one of the threads exchanged");
        found[2] = 0;
        assert_eq!(found, expected, "{kind}");
    }
}

/// Halves, where the device has them; in the C dialects they need nothing of the device.
#[test]
fn halves_are_rounded_alike() {
    let text = "enable f16;
@group(0) @binding(0) var<storage, read> x: array<vec2<f16>>;
@group(0) @binding(1) var<storage, read_write> out: array<vec2<f16>>;
@compute @workgroup_size(32)
fn halves(@builtin(global_invocation_id) id: vec3<u32>) {
    let v = x[id.x];
    out[id.x] = v * v.yx + vec2(f16(0.1h), v.x);
}";
    let kernel = wgsl(text, "halves", &in_and_out());
    let input: Vec<u32> = (0..64_u32).map(|i| (0x2e66 + i * 37) | (0x3c00 + i * 11) << 16).collect();
    let half = |bits: u32| half::f16::from_bits(u16::try_from(bits & 0xffff).unwrap());
    let expected: Vec<u32> = input
        .iter()
        .map(|word| {
            let (a, b) = (half(*word), half(word >> 16));
            let (x, y) = (a * b + half::f16::from_f32(0.1), b * a + a);
            u32::from(x.to_bits()) | u32::from(y.to_bits()) << 16
        })
        .collect();
    for (kind, device) in devices() {
        match run(device, &kernel, grid(2, 32), &input, 64) {
            // A Vulkan device may round a product and a sum at once: SPIR-V does not say otherwise.
            Ok(found) if *kind == BackendKind::Vulkan => {
                let halves = |word: u32| [word & 0xffff, word >> 16];
                let near = |(one, other): (&u32, &u32)| {
                    halves(*one).into_iter().zip(halves(*other)).all(|(one, other)| one.abs_diff(other) <= 1)
                };
                assert!(found.iter().zip(&expected).all(near), "{kind}: {found:?}, expected {expected:?}");
            }
            Ok(found) => assert_eq!(found, expected, "{kind}"),
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Unsupported { .. }), "{kind}: {error}");
                eprintln!("not run: {kind}: {error}");
            }
        }
    }
}

#[test]
fn numbers_by_value_come_in_order() {
    let text = "
struct Numbers { scale: f32, shift: i32, count: u32, small: u32 }
var<immediate> numbers: Numbers;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@compute @workgroup_size(4)
fn line(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < numbers.count { out[id.x] = f32(id.x) * numbers.scale + f32(numbers.shift) + f32(numbers.small); }
}";
    let exactly = |kind| Parameter::scalar(KindRule::Exactly(kind));
    let parameters = [
        exactly(ElementKind::F32),
        exactly(ElementKind::I16),
        Parameter::write(FLOATS),
        exactly(ElementKind::U32),
        exactly(ElementKind::U8),
    ];
    let kernel = wgsl(text, "line", &parameters);
    for (kind, device) in devices() {
        let mut out = DeviceVector::<f32>::allocate(device, 8).unwrap();
        out.write(0, &[-1.0; 8]).unwrap();
        let arguments =
            Arguments::new().scalar(0.5_f32).scalar(-3_i16).write_view(&mut out).scalar(6_u32).scalar(200_u8);
        device.launch(&kernel, grid(2, 4), &arguments).unwrap();
        let mut found = [0.0; 8];
        out.read(0, &mut found).unwrap();
        assert_eq!(found, [197.0, 197.5, 198.0, 198.5, 199.0, 199.5, -1.0, -1.0], "{kind}");
        let wrong = grid(2, 8);
        let arguments =
            Arguments::new().scalar(0.5_f32).scalar(-3_i16).write_view(&mut out).scalar(6_u32).scalar(200_u8);
        let refused = device.launch(&kernel, wrong, &arguments).unwrap_err();
        assert_eq!(*refused.kind(), ErrorKind::InvalidArgument, "{kind}: {refused}");
        assert!(refused.to_string().contains("workgroup_size"), "{refused}");
    }
}

/// What lies outside is told with its place by the interpreter and native, and harms nobody elsewhere.
#[test]
fn accesses_outside_are_told_or_held_back() {
    let text = "
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;
@compute @workgroup_size(1)
fn outside() {
    out[0] = 7u;
    out[x[0]] = 9u;
}";
    let kernel = wgsl(text, "outside", &in_and_out());
    for (kind, device) in devices() {
        match run(device, &kernel, grid(1, 1), &[1 << 29], 4) {
            Ok(found) => assert_eq!(found[..3], [7, 0, 0], "{kind}"),
            Err(error) => {
                let told = error.to_string();
                assert!(matches!(kind, BackendKind::Interpreter | BackendKind::Native), "{kind}: {error}");
                assert!(told.contains("line=7") && told.contains("column="), "{told}");
                assert!(told.contains("2147483648"), "{told}");
            }
        }
    }
}

#[test]
fn a_barrier_that_some_threads_miss_is_told() {
    let text = "
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;
var<workgroup> shared_word: u32;
@compute @workgroup_size(4)
fn apart(@builtin(local_invocation_index) own: u32) {
    if x[own] == 0u { return; }
    workgroupBarrier();
    out[own] = 1u;
}";
    // Validation refuses what it can see; this depends on what is in memory.
    let kernel = wgsl(text, "apart", &in_and_out());
    let (_, device) = devices().iter().find(|(kind, _)| *kind == BackendKind::Interpreter).unwrap();
    let error = run(device, &kernel, grid(1, 4), &[1, 0, 1, 1], 4).unwrap_err();
    assert!(error.to_string().contains("barrier"), "{error}");
}

/// Wrong texts are refused with line and column; what is not covered is named.
#[test]
fn refusals_name_the_construct_and_the_place() {
    let head = "@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;
";
    let table: [(&str, &str, &str, &str); 14] = [
        ("fn broken( {", "@compute @workgroup_size(1) fn main() {}", "invalid_argument", "line 3, column"),
        ("", "@compute @workgroup_size(1) fn main() { out[0] = 1.5; }", "invalid_argument", "line 3, column"),
        (
            "",
            "@compute @workgroup_size(1) fn other() {}",
            "invalid_argument",
            "no compute entry point \"main\"; there are: other",
        ),
        (
            "@group(1) @binding(0) var<storage, read> y: array<u32>;",
            "@compute @workgroup_size(1) fn main() { out[0] = y[0]; }",
            "unsupported",
            "line 3",
        ),
        (
            "@group(0) @binding(2) var<uniform> y: vec4<u32>;",
            "@compute @workgroup_size(1) fn main() { out[0] = y.x; }",
            "unsupported",
            "var<uniform>",
        ),
        (
            "override n: u32 = 3u;",
            "@compute @workgroup_size(1) fn main() { out[0] = n; }",
            "unsupported",
            "override",
        ),
        (
            "",
            "@compute @workgroup_size(1) fn main() { let m = mat2x2<f32>(1.0, 2.0, 3.0, f32(x[0])); out[0] = u32(m[0].x); }",
            "unsupported",
            "matrices",
        ),
        (
            "fn f(p: ptr<function, u32>) { *p = 1u; }",
            "@compute @workgroup_size(1) fn main() { var v = 0u; f(&v); out[0] = v; }",
            "unsupported",
            "the pointer \"p\" as an argument of \"f\"",
        ),
        (
            "",
            "@compute @workgroup_size(1) fn main() { out[0] = u32(ldexp(f32(x[0]), 2)); }",
            "unsupported",
            "the function Ldexp",
        ),
        (
            "",
            "@compute @workgroup_size(1) fn main() { var a: array<u32, 1000>; let b = a; out[0] = b[0]; }",
            "unsupported",
            "an array of 1000 elements as a value",
        ),
        (
            "@group(0) @binding(2) var t: texture_2d<f32>;",
            "@compute @workgroup_size(1) fn main() { out[0] = u32(textureLoad(t, vec2(0, 0), 0).x); }",
            "unsupported",
            "Handle",
        ),
        (
            "@group(0) @binding(2) var<storage, read> z: array<u32>;",
            "@compute @workgroup_size(1) fn main() { out[0] = z[0]; }",
            "invalid_argument",
            "\"z\" is at binding 2, where the kernel takes no vector",
        ),
        (
            "var<immediate> n: vec2<u32>;",
            "@compute @workgroup_size(1) fn main() { out[0] = n.x; }",
            "unsupported",
            "no scalars",
        ),
        (
            "@group(0) @binding(2) var<storage, read_write> z: array<i8>;",
            "@compute @workgroup_size(1) fn main() { out[0] = 1u; }",
            "invalid_argument",
            "i8",
        ),
    ];
    for (kind, device) in devices() {
        for (declared, main, expected, told) in table {
            let text = format!("{head}{declared}{main}");
            let error = run(device, &wgsl(&text, "main", &in_and_out()), grid(1, 1), &[1], 1).unwrap_err();
            assert_eq!(error.kind().as_str(), expected, "{kind}: {error}");
            assert!(error.to_string().contains(told), "{kind}: {told:?} is not in: {error}");
        }
        // A buffer that is written has to be declared so.
        let text = format!("{head}@compute @workgroup_size(1) fn main() {{ out[0] = x[0]; }}");
        let both_read = [Parameter::read(WORDS), Parameter::read(WORDS)];
        let vector = DeviceVector::<u32>::allocate(device, 4).unwrap();
        let arguments = Arguments::new().read_view(&vector).read_view(&vector);
        let refused = device.launch(&wgsl(&text, "main", &both_read), grid(1, 1), &arguments).unwrap_err();
        assert!(refused.to_string().contains("is read_write, but parameter 1 is only read"), "{refused}");
    }
}

/// An API's own source wins where a kernel comes in it.
#[test]
fn own_sources_win() {
    let text = "
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;
@compute @workgroup_size(4)
fn main(@builtin(global_invocation_id) id: vec3<u32>) { out[id.x] = x[id.x] + 1u; }";
    let own = "
__kernel void twice(__global uchar* x, ulong first, ulong len, __global uchar* out, ulong out_first, ulong out_len) {
    size_t i = get_global_id(0);
    ((__global uint*)(out + out_first))[i] = ((__global uint*)(x + first))[i] * 2u;
}";
    let kernel = kernel(&[(Language::Wgsl, text, "main"), (Language::OpenClC, own, "twice")], &in_and_out());
    for (kind, device) in devices() {
        let found = run(device, &kernel, grid(1, 4), &[5, 6, 7, 8], 4).unwrap();
        let expected = if *kind == BackendKind::OpenCl { [10, 12, 14, 16] } else { [6, 7, 8, 9] };
        assert_eq!(found, expected, "{kind}");
    }
    let broken = [(Language::OpenClC, "__kernel void broken( {", "broken")];
    let broken = self::kernel(&broken, &in_and_out());
    for (kind, device) in devices() {
        let error = run(device, &broken, grid(1, 4), &[1; 4], 4).unwrap_err();
        match kind {
            BackendKind::OpenCl => {
                assert_eq!(*error.kind(), ErrorKind::InvalidArgument, "{error}");
                assert!(error.to_string().contains("log="), "{error}");
            }
            _ => assert!(
                matches!(error.kind(), ErrorKind::Unsupported { feature: "kernel_form", .. }),
                "{error}"
            ),
        }
    }
}

/// Generated expressions give the same on every backend as in the interpreter.
#[test]
fn generated_expressions_agree() {
    for seed in 1..=3 {
        let generated = generate::kernel(seed);
        let kernel = wgsl(&generated.text, "generated", &in_and_out());
        let input = generate::input(seed, generated.threads * generate::INPUTS);
        let out = generated.kinds.len() * generated.threads;
        let grid = grid(u32::try_from(generated.threads / 64).unwrap(), 64);
        let mut reference: Option<Vec<u32>> = None;
        for (kind, device) in devices() {
            let found = run(device, &kernel, grid, &input, out).unwrap();
            let Some(expected) = &reference else {
                assert_eq!(*kind, BackendKind::Interpreter);
                reference = Some(found);
                continue;
            };
            for (place, (found, expected)) in found.iter().zip(expected).enumerate() {
                let (expression, thread) = (place / generated.threads, place % generated.threads);
                assert!(
                    generated.kinds[expression].agree(*found, *expected),
                    "{kind}, seed {seed}, thread {thread}: {found:#x}, the interpreter says {expected:#x}: {}\n{:x?}",
                    generated.expressions[expression],
                    &input[thread * generate::INPUTS..][..generate::INPUTS],
                );
            }
        }
    }
}
