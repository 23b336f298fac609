//! Compiled kernels against the interpreter, to the bit.
#![allow(clippy::cast_possible_truncation, reason = "the low bits of random numbers are meant")]

use super::super::library::Module;
use super::super::run::{Buffer, Fault, Memory};
use super::crew::Crew;

/// Runs a kernel over a copy of the buffers; answers what is in them then.
fn run(
    module: &Module,
    groups: [u32; 3],
    buffers: &[Vec<u64>],
    compiled: bool,
) -> (Result<(), Fault>, Vec<Vec<u64>>) {
    let mut buffers = buffers.to_vec();
    let is_used =
        |binding: usize| module.program().buffers.iter().any(|slot| slot.binding as usize == binding);
    let used = buffers.iter_mut().enumerate().filter(|(binding, _)| is_used(*binding));
    let views = used
        .map(|(_, words)| words)
        .map(|words| Buffer { len_bytes: size_of_val(words.as_slice()), ptr: words.as_mut_ptr().cast() });
    // SAFETY: the buffers live until the end, and nobody else has them.
    let mut memory = unsafe { Memory::new(views.collect(), vec![7, 0, 0, 0, 0, 0, 128, 63]) };
    let outcome = if compiled {
        module.compiled().unwrap().run(&module.runnable, groups, &mut memory, &Crew::default())
    } else {
        module.runnable.run(groups, &mut memory)
    };
    drop(memory);
    (outcome, buffers)
}

/// Numbers that are no numbers are one and the same.
fn canonical(words: &[Vec<u64>]) -> Vec<u32> {
    let halves = words.iter().flatten().flat_map(|word| [*word as u32, (*word >> 32) as u32]);
    halves.map(|bits| if f32::from_bits(bits).is_nan() { 0x7fc0_0000 } else { bits }).collect()
}

#[track_caller]
fn same(text: &str, groups: [u32; 3], buffers: &[Vec<u64>]) -> Result<(), Fault> {
    let module = Module::new(text, "main").unwrap_or_else(|refusal| panic!("{refusal}\n{text}"));
    let expected = run(&module, groups, buffers, false);
    let got = run(&module, groups, buffers, true);
    assert_eq!(got.0, expected.0, "{text}");
    // What a failed launch leaves behind depends on how many cores were at it.
    if expected.0.is_ok() {
        assert_eq!(canonical(&got.1), canonical(&expected.1), "{text}");
    }
    expected.0
}

/// Steps of a generator of numbers (a linear congruence, its upper half).
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    fn pick<'t>(&mut self, from: &[&'t str]) -> &'t str {
        from[self.below(from.len())]
    }
}

/// Random expressions of one type over the variables `f`, `i`, `u`, `h`, `l`, `b` (of each type two: `f0`, `f1` …).
fn expression(chance: &mut Chance, ty: &str, depth: usize) -> String {
    let leaf = |chance: &mut Chance| match ty {
        "bool" => chance.pick(&["b0", "b1"]).to_owned(),
        "f32" => chance.pick(&["f0", "f1", "numbers.y"]).to_owned(),
        "f16" => chance.pick(&["h0", "h1"]).to_owned(),
        "i32" => chance.pick(&["i0", "i1"]).to_owned(),
        "i64" => chance.pick(&["l0", "l1"]).to_owned(),
        "u64" => chance.pick(&["m0", "m1"]).to_owned(),
        "f64" => chance.pick(&["d0", "d1"]).to_owned(),
        _ => chance.pick(&["u0", "u1", "numbers.x"]).to_owned(),
    };
    if depth == 0 {
        return leaf(chance);
    }
    let mut of = |ty: &str| expression(chance, ty, depth - 1);
    let is_integer = !matches!(ty, "f32" | "f16" | "f64" | "bool");
    let (x, y, z) = (of(ty), of(ty), of(ty));
    let (condition, amount) = (of("bool"), of("u32"));
    // A number of the text only beside one that is not: what is known is computed, and refused, when it is read.
    let y = match ty {
        "i32" => chance.pick(&[&y, "(-7)", "3"]).to_owned(),
        "u32" => chance.pick(&[&y, "7u", "4294967295u"]).to_owned(),
        "f32" => chance.pick(&[&y, "(-0.0)", "3e38", "1e-3"]).to_owned(),
        "f64" => chance.pick(&[&y, "1e300lf"]).to_owned(),
        "i64" => chance.pick(&[&y, "9000000000li"]).to_owned(),
        _ => y,
    };
    let numbers = ["f32", "i32", "u32", "f16", "i64", "u64", "f64", "bool"];
    if ty == "bool" {
        let of_ty = numbers[chance.below(7)];
        let (a, b) = (expression(chance, of_ty, depth - 1), expression(chance, of_ty, depth - 1));
        let order = chance.pick(&["<", "<=", ">", ">=", "==", "!="]);
        return match chance.below(4) {
            0 => format!("!({x})"),
            1 => format!("(({x}) {} ({y}))", chance.pick(&["&&", "||", "&", "|"])),
            _ => format!("(({a}) {order} ({b}))"),
        };
    }
    if chance.below(5) == 0 {
        let from = numbers[chance.below(8)];
        return format!("{ty}({})", expression(chance, from, depth - 1));
    }
    if chance.below(6) == 0 {
        return format!("select({x}, {y}, {condition})");
    }
    if is_integer {
        let is_short = matches!(ty, "i32" | "u32");
        return match chance.below(if is_short { 9 } else { 4 }) {
            0 | 1 => format!("(({x}) {} ({y}))", chance.pick(&["+", "-", "*", "/", "%", "&", "|", "^"])),
            2 => format!("{}({x}, {y})", chance.pick(&["min", "max"])),
            3 => format!("abs({x})"),
            4 => format!("(({x}) {} ({amount}))", chance.pick(&["<<", ">>"])),
            5 => format!(
                "{}({x})",
                chance.pick(&["countOneBits", "countLeadingZeros", "countTrailingZeros", "reverseBits"])
            ),
            6 => format!("extractBits({x}, {amount}, 5u)"),
            7 => format!("~({x})"),
            _ => format!("clamp({x}, {y}, {z})"),
        };
    }
    match chance.below(7) {
        0..=2 => format!("(({x}) {} ({y}))", chance.pick(&["+", "-", "*", "/", "%"])),
        3 => format!("{}({x}, {y})", chance.pick(&["min", "max"])),
        4 => format!("{}({x})", chance.pick(&["abs", "floor", "ceil", "trunc", "round", "sqrt", "-"])),
        5 => format!("fma({x}, {y}, {z})"),
        _ if ty == "f64" => x,
        _ => format!("{}({x})", chance.pick(&["exp2", "log2", "sin"])),
    }
}

const TYPES: [(&str, &str); 8] = [
    ("f32", "f"),
    ("i32", "i"),
    ("u32", "u"),
    ("f16", "h"),
    ("i64", "l"),
    ("u64", "m"),
    ("f64", "d"),
    ("bool", "b"),
];

fn statements(chance: &mut Chance, depth: usize, count: usize, loops: &mut usize) -> String {
    let mut text = String::new();
    for _ in 0..count {
        let (ty, name) = TYPES[chance.below(TYPES.len())];
        let number = chance.below(2);
        let value = expression(chance, ty, 2);
        let line = match chance.below(if depth == 0 { 5 } else { 9 }) {
            0..=2 => format!("{name}{number} = {value};"),
            3 => format!("own[({}) % 5u] = u0; u1 = own[u{number} % 5u];", expression(chance, "u32", 1)),
            4 => format!("shared_sum[local] = u{number};"),
            5 | 6 => {
                let condition = expression(chance, "bool", 1);
                let (one, other) =
                    (statements(chance, depth - 1, 2, loops), statements(chance, depth - 1, 2, loops));
                format!("if {condition} {{ {one} }} else {{ {other} }}")
            }
            7 => {
                let body = statements(chance, depth - 1, 2, loops);
                let stop = expression(chance, "bool", 1);
                *loops += 1;
                let at = *loops;
                format!(
                    "for (var n{at} = 0u; n{at} < 5u; n{at}++) {{ if {stop} {{ {} }} {body} }}",
                    chance.pick(&["break;", "continue;"])
                )
            }
            _ => {
                let parts: Vec<_> = (0..3).map(|_| statements(chance, depth - 1, 1, loops)).collect();
                format!(
                    "switch u{number} % 4u {{ case 0u: {{ {} }} case 1u, 2u: {{ {} }} default: {{ {} }} }}",
                    parts[0], parts[1], parts[2]
                )
            }
        };
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// A random kernel; with barriers, between which threads read what others wrote.
fn kernel(chance: &mut Chance, has_barriers: bool) -> String {
    let mut loops = 0;
    let mut body = statements(chance, 3, 5, &mut loops);
    if has_barriers {
        for _ in 0..3 {
            body += "workgroupBarrier();\nu0 ^= shared_sum[(local + 1u) % 12u];\nworkgroupBarrier();\n";
            body += &statements(chance, 2, 3, &mut loops);
        }
        body += "for (var r = 0u; r < 3u; r++) { shared_sum[local] = u0 + r; workgroupBarrier();
            u1 += shared_sum[(local + 5u) % 12u]; workgroupBarrier(); }\n";
    }
    format!(
        "enable f16;
struct Numbers {{ x: u32, y: f32 }}
var<immediate> numbers: Numbers;
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;
@group(0) @binding(2) var<storage, read_write> sums: array<atomic<u32>>;
var<workgroup> shared_sum: array<u32, 12>;
var<private> own: array<u32, 5>;
@compute @workgroup_size(4, 3)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_index) local: u32,
        @builtin(num_workgroups) count: vec3<u32>) {{
    let at = (id.z * count.y * 3u + id.y) * count.x * 4u + id.x;
    var u0 = x[at]; var u1 = x[at + 1u];
    var f0 = bitcast<f32>(u0); var f1 = f32(u1 % 1000u) * 0.25;
    var i0 = bitcast<i32>(u0); var i1 = i32(u1 % 7u) - 3;
    var h0 = f16(f1); var h1 = f16(i1);
    var l0 = i64(i0) * 3li; var l1 = i64(i1);
    var m0 = u64(u0) * 5lu; var m1 = u64(u1 & 3u);
    var d0 = f64(f1) * 1.5lf; var d1 = f64(i0);
    var b0 = u0 > u1; var b1 = false;
    {body}
    atomicAdd(&sums[0], u0); atomicMax(&sums[1], u1); atomicXor(&sums[2], u0 * 3u);
    out[at * 12u] = u0; out[at * 12u + 1u] = u1;
    out[at * 12u + 2u] = bitcast<u32>(f0); out[at * 12u + 3u] = bitcast<u32>(f1);
    out[at * 12u + 4u] = bitcast<u32>(i0 ^ i1) + select(0u, 1u, b0 || b1);
    out[at * 12u + 5u] = bitcast<u32>(f32(h0)); out[at * 12u + 6u] = bitcast<u32>(f32(h1));
    out[at * 12u + 7u] = u32(l0) ^ u32(l1 >> 32u); out[at * 12u + 8u] = u32(m0 >> 32u) ^ u32(m1);
    out[at * 12u + 9u] = bitcast<u32>(f32(d0)); out[at * 12u + 10u] = bitcast<u32>(f32(d1));
}}"
    )
}

fn inputs(chance: &mut Chance) -> Vec<Vec<u64>> {
    let special =
        [0_u32, 1, 0x8000_0000, 0x3f80_0000, 0x7f80_0000, 0xff80_0000, 1 << 22, u32::MAX, 0x7f7f_ffff];
    let mut word = || match chance.below(3) {
        0 => special[chance.below(special.len())],
        _ => (chance.below(1 << 31) as u32) << chance.below(2),
    };
    let x = (0..60).map(|_| u64::from(word()) << 32 | u64::from(word())).collect();
    vec![x, vec![0; 96 * 6], vec![0; 2]]
}

#[test]
fn random_kernels_agree_with_the_interpreter_to_the_bit() {
    let rounds = std::env::var("SPOC_FUZZ_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(60);
    for seed in 0..rounds {
        let mut chance = Chance(seed);
        let text = kernel(&mut chance, seed % 2 == 1);
        let buffers = inputs(&mut chance);
        same(&text, [2, 2, 2], &buffers).unwrap();
    }
}

#[test]
fn an_access_outside_is_told_as_the_interpreter_tells_it() {
    let text = |body: &str| {
        format!(
            "@group(0) @binding(0) var<storage, read_write> x: array<array<u32, 3>>;
struct One {{ a: u32, b: array<vec2<f32>, 2> }}
@group(0) @binding(1) var<storage, read_write> y: One;
var<workgroup> w: array<u32, 4>;
@compute @workgroup_size(4, 2)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{ {body} }}"
        )
    };
    let buffers = [vec![0; 30], vec![0; 3]];
    assert!(same(&text("x[id.x][id.y] = id.x;"), [5, 1, 1], &buffers).is_ok());
    for body in [
        "x[id.x][id.y] = id.x;",
        "x[id.x][id.y + 2u] = id.x;",
        "x[0][id.x] = x[id.x * 1000000u][1];",
        "w[id.x] = 1u;",
        "y.b[id.x].y = 1.0;",
        "var l: array<u32, 3>; l[id.x] = 2u; x[0][0] = l[0];",
        "if id.y == 1u { workgroupBarrier(); } x[0][0] = 1u;",
        "w[id.x % 4u] = 1u; workgroupBarrier(); if id.x == 9u { x[id.x * 9u][0] = w[0]; } workgroupBarrier();",
        "if id.x < 4u { workgroupBarrier(); x[0][0] = 1u; } else { x[0][0] = 2u; workgroupBarrier(); }
         if id.x % 4u == 3u { return; } workgroupBarrier();",
    ] {
        assert!(same(&text(body), [9, 1, 1], &buffers).is_err(), "{body}");
    }
    // A structure that is larger than its buffer.
    assert!(same(&text("y.b[1].x = 1.0; x[0][0] = 1u;"), [1, 1, 1], &[vec![0; 2], vec![0; 1]]).is_err());
}

/// Enough work that every core takes part.
#[test]
fn cores_share_a_launch_and_the_first_failure_is_told() {
    let text = |limit: u32| {
        format!(
            "@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> sum: array<atomic<u32>>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
    var at = id.x;
    for (var n = 0u; n < 20u; n++) {{ at = at * 1664525u + 1013904223u; }}
    if id.x >= {limit}u {{ x[id.x + 100000000u] = 1u; }}
    x[id.x] = at;
    atomicAdd(&sum[0], at);
}}"
        )
    };
    let buffers = [vec![0; 32768], vec![0; 1]];
    same(&text(u32::MAX), [1024, 1, 1], &buffers).unwrap();
    same(&text(40_000), [1024, 1, 1], &buffers).unwrap_err();
}
