//! Kernels of random expressions. They hold to operations whose result the language fixes to the bit, and to
//! numbers of moderate size, so that no device may differ.

/// Numbers that each thread reads: four `u32`, as bits; floats are made of them.
pub const INPUTS: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    I32,
    U32,
    F32,
    Bool,
}

impl Kind {
    /// Whether two results are the same. Zeroes have signs that the language leaves open.
    pub fn agree(self, found: u32, expected: u32) -> bool {
        let is_zero = |bits: u32| bits & 0x7fff_ffff == 0;
        found == expected || (self == Self::F32 && is_zero(found) && is_zero(expected))
    }
}

pub struct Generated {
    pub text: String,
    pub kinds: Vec<Kind>,
    pub expressions: Vec<String>,
    pub threads: usize,
}

pub struct Noise(u64);

impl Noise {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn word(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        u32::try_from((self.0 ^ (self.0 >> 31)) >> 32).unwrap()
    }

    fn pick<'t>(&mut self, of: &[&'t str]) -> &'t str {
        of[self.word() as usize % of.len()]
    }
}

/// Inputs with the numbers at which things change among them.
pub fn input(seed: u64, len: usize) -> Vec<u32> {
    const EDGES: [u32; 10] = [0, 1, 2, 31, 32, 33, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0x8000_0001];
    let mut noise = Noise::new(seed + 1000);
    (0..len)
        .map(|_| match noise.word() % 3 {
            0 => EDGES[noise.word() as usize % EDGES.len()],
            1 => noise.word() % 100,
            _ => noise.word(),
        })
        .collect()
}

/// A kernel of 40 expressions.
pub fn kernel(seed: u64) -> Generated {
    let mut noise = Noise::new(seed);
    let (mut kinds, mut expressions, mut body) = (Vec::new(), Vec::new(), String::new());
    for number in 0..40 {
        let kind = [Kind::I32, Kind::U32, Kind::F32, Kind::Bool][noise.word() as usize % 4];
        let expression = expression(&mut noise, kind, 3);
        let stored = match kind {
            Kind::I32 | Kind::F32 => format!("bitcast<u32>({expression})"),
            Kind::U32 => expression.clone(),
            Kind::Bool => format!("select(0u, 1u, {expression})"),
        };
        body.push_str(&format!("    out[{number}u * 128u + id.x] = {stored};\n"));
        kinds.push(kind);
        expressions.push(expression);
    }
    let text = format!(
        "@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;
@compute @workgroup_size(64)
fn generated(@builtin(global_invocation_id) id: vec3<u32>) {{
    let u0 = x[id.x * 4u];
    let u1 = x[id.x * 4u + 1u];
    let u2 = x[id.x * 4u + 2u];
    let u3 = x[id.x * 4u + 3u];
    let i0 = bitcast<i32>(u0);
    let i1 = bitcast<i32>(u1);
    let i2 = bitcast<i32>(u2);
    let i3 = bitcast<i32>(u3);
    let f0 = f32(i0 >> 21u);
    let f1 = f32(u1 >> 22u) * 0.125;
    let f2 = f32(i2 >> 24u) - 0.5;
    let f3 = f32(u3 & 31u) * -0.0625;
{body}}}
"
    );
    Generated { text, kinds, expressions, threads: 128 }
}

fn expression(noise: &mut Noise, kind: Kind, depth: u32) -> String {
    if depth == 0 || noise.word().is_multiple_of(8) {
        return leaf(noise, kind);
    }
    let mut of = |kind: Kind| expression(noise, kind, depth - 1);
    // All operands are made, used or not: the sequence stays simple.
    let (i, j, u, v, w) = (of(Kind::I32), of(Kind::I32), of(Kind::U32), of(Kind::U32), of(Kind::U32));
    let (f, g, b, c) = (of(Kind::F32), of(Kind::F32), of(Kind::Bool), of(Kind::Bool));
    match kind {
        Kind::I32 => match noise.word() % 14 {
            0..5 => format!("({i} {} {j})", noise.pick(&["+", "-", "*", "/", "%", "&", "|", "^"])),
            5 => format!("({i} {} {u})", noise.pick(&["<<", ">>"])),
            6 => format!("{}({i}, {j})", noise.pick(&["min", "max"])),
            7 => format!("{}({i})", noise.pick(&["-", "~", "abs", "sign", "reverseBits", "countOneBits"])),
            8 => {
                format!("{}({i})", noise.pick(&["firstLeadingBit", "firstTrailingBit", "countLeadingZeros"]))
            }
            9 => format!("extractBits({i}, {u}, {v})"),
            10 => format!("insertBits({i}, {j}, {u}, {v})"),
            11 => format!("select({i}, {j}, {b})"),
            12 => format!("i32({f})"),
            _ if noise.word().is_multiple_of(2) => format!("dot4I8Packed({u}, {v})"),
            _ => format!("bitcast<i32>({u})"),
        },
        Kind::U32 => match noise.word() % 14 {
            0..5 => format!("({u} {} {v})", noise.pick(&["+", "-", "*", "/", "%", "&", "|", "^"])),
            5 => format!("({u} {} {v})", noise.pick(&["<<", ">>"])),
            6 => format!("{}({u}, {v})", noise.pick(&["min", "max", "dot4U8Packed"])),
            7 => format!("{}({u})", noise.pick(&["~", "reverseBits", "countOneBits", "countTrailingZeros"])),
            8 => {
                format!("{}({u})", noise.pick(&["firstLeadingBit", "firstTrailingBit", "countLeadingZeros"]))
            }
            9 => format!("extractBits({u}, {v}, {w})"),
            10 => format!("insertBits({u}, {v}, {u}, {w})"),
            11 => format!("clamp({u}, min({v}, {w}), max({v}, {w}))"),
            12 => format!("u32({f})"),
            _ => format!("pack4xU8(vec4({u}, {v}, {w}, u32({i})))"),
        },
        Kind::F32 => match noise.word() % 10 {
            0..4 => format!("({f} {} {g})", noise.pick(&["+", "-"])),
            // Of leaves alone, or numbers grow out of all bounds.
            4 => format!("({} * {})", leaf(noise, Kind::F32), leaf(noise, Kind::F32)),
            5 => format!("{}({f}, {g})", noise.pick(&["min", "max", "step"])),
            6 => format!(
                "{}({f})",
                noise.pick(&["-", "abs", "floor", "ceil", "trunc", "round", "sign", "fract"])
            ),
            7 => format!("f32({i})"),
            8 => format!("f32(unpack4xU8({u}).y)"),
            _ => format!("select({f}, {g}, {b})"),
        },
        Kind::Bool => match noise.word() % 6 {
            0 => format!("({i} {} {j})", noise.pick(&["<", "<=", ">", ">=", "==", "!="])),
            1 => format!("({u} {} {v})", noise.pick(&["<", "<=", ">", ">=", "==", "!="])),
            2 => format!("({f} {} {g})", noise.pick(&["<", "<=", ">", ">="])),
            3 => format!("({b} {} {c})", noise.pick(&["&", "|", "&&", "||", "==", "!="])),
            4 => format!("any(vec3({i}, {j}, {i}) < vec3({j}, {i}, {j}))"),
            _ => format!("!{b}"),
        },
    }
}

fn leaf(noise: &mut Noise, kind: Kind) -> String {
    let number = noise.word() % 4;
    match kind {
        Kind::I32 => format!("i{number}"),
        Kind::U32 => format!("u{number}"),
        Kind::F32 => format!("f{number}"),
        Kind::Bool => format!("(u{number} > 7u)"),
    }
}
