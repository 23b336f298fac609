//! The texts of the built-in kernels: one definition each, put together for the kinds of a launch.

use spoc_driver::{BuiltIn, ElementKind};

const ELEMENTS: &str = include_str!("elements.wgsl");
const DIGEST: &str = include_str!("digest.wgsl");
const NUMBERS: &str = include_str!("numbers.wgsl");

/// What the entry point is called in the texts.
const ENTRY: &str = "ENTRY";

/// A built-in for some kinds. Numbers that are only moved are moved as words or parts of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Variant {
    pub(crate) which: BuiltIn,
    /// Of the first vector that is read, or of `out` where none is.
    pub(crate) from: ElementKind,
    pub(crate) to: ElementKind,
}

impl Variant {
    /// All that can be launched.
    #[cfg(test)]
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let kinds = || ElementKind::ALL.into_iter();
        let pairs = move || kinds().flat_map(move |from| kinds().map(move |to| (from, to)));
        let of = move |which| pairs().map(move |(from, to)| Self { which, from, to });
        BuiltIn::ALL.into_iter().flat_map(of).filter(|variant| {
            let converts = !matches!(
                variant.which,
                BuiltIn::Fill | BuiltIn::Copy | BuiltIn::Add | BuiltIn::Scale | BuiltIn::Gather
            );
            match variant.which {
                BuiltIn::Digest => (variant.from, variant.to) == (ElementKind::U8, ElementKind::U32),
                BuiltIn::FromE4m3 | BuiltIn::FromE5m2 if variant.from != ElementKind::U8 => false,
                BuiltIn::ToE4m3 | BuiltIn::ToE5m2 if variant.to != ElementKind::U8 => false,
                _ => (converts || variant.from == variant.to) && super::check_cast(*variant).is_ok(),
            }
        })
    }

    /// Computing on two words together, which takes types that not every device has.
    pub(super) fn is_wide(self) -> bool {
        self.is_arithmetic() && self.from.len_bytes() == 8
    }

    fn is_arithmetic(self) -> bool {
        matches!(self.which, BuiltIn::Add | BuiltIn::Scale)
    }

    pub(crate) fn entry(self) -> String {
        format!("{}_{}_{}", self.which.as_str(), self.from.as_str(), self.to.as_str())
    }

    /// Its WGSL.
    pub(crate) fn text(self) -> String {
        if self.which == BuiltIn::Digest {
            return DIGEST.replace(ENTRY, &self.entry());
        }
        let per = |kind: ElementKind| (4 / kind.len_bytes().min(4)).to_string();
        let functions = format!(
            "{}{}{}",
            self.readers(),
            if self.needs_numbers() { NUMBERS } else { "" },
            self.combine()
        );
        ELEMENTS
            .replace("BINDINGS", &self.bindings())
            .replace("FUNCTIONS", &functions)
            .replace("RESULT", self.result())
            .replace("VALUE", self.word())
            .replace("STORE", &self.store())
            .replace("PER_OUT", &per(self.to))
            .replace(ENTRY, &self.entry())
    }

    fn needs_numbers(self) -> bool {
        let is_small = |kind| matches!(kind, ElementKind::F16 | ElementKind::Bf16);
        match self.which {
            BuiltIn::Add | BuiltIn::Scale => is_small(self.from),
            BuiltIn::Fill | BuiltIn::Copy | BuiltIn::Gather | BuiltIn::Digest => false,
            _ => true,
        }
    }

    fn has_second_vector(self) -> bool {
        matches!(self.which, BuiltIn::Add | BuiltIn::Gather)
    }

    /// What is read and written at a time.
    fn word(self) -> &'static str {
        match self.from {
            ElementKind::F64 if self.is_wide() => "f64",
            _ if self.is_wide() => "u64",
            _ => "u32",
        }
    }

    fn bindings(self) -> String {
        let word = self.word();
        let out = if self.to.len_bytes() < 4 { "atomic<u32>" } else { word };
        let mut text = String::new();
        let mut bind = |binding: u32, access: &str, name: &str, ty: &str| {
            text.push_str(&format!(
                "@group(0) @binding({binding}) var<storage, {access}> {name}: array<{ty}>;\n"
            ));
        };
        if self.which != BuiltIn::Fill {
            bind(0, "read", "a", word);
        }
        if self.has_second_vector() {
            bind(1, "read", "b", if self.which == BuiltIn::Gather { "u32" } else { word });
        }
        bind(2, "read_write", "out", out);
        text
    }

    /// Functions that take a number out of its word.
    fn readers(self) -> String {
        let of = |name: &str| {
            let ty = self.word();
            let body = match self.from.len_bytes() {
                1 => format!(
                    "let n = numbers.first_{name} + e;\n    return extractBits({name}[n / 4u], (n % 4u) * 8u, 8u);"
                ),
                2 => format!(
                    "let n = numbers.first_{name} + e;\n    return extractBits({name}[n / 2u], (n % 2u) * 16u, 16u);"
                ),
                _ => format!("return {name}[numbers.first_{name} + e];"),
            };
            format!("fn {name}_at(e: u32) -> {ty} {{\n    {body}\n}}\n")
        };
        match self.which {
            BuiltIn::Fill => String::new(),
            BuiltIn::Add => of("a") + &of("b"),
            _ => of("a"),
        }
    }

    /// `combine`, what is done with two numbers; or `cast`.
    fn combine(self) -> String {
        let sign = if self.which == BuiltIn::Add { '+' } else { '*' };
        if self.is_arithmetic() {
            let sum =
                |ty: &str, body: String| format!("fn combine(x: {ty}, y: {ty}) -> {ty} {{\n    {body}\n}}\n");
            let single = format!(
                "fn single(x: u32, y: u32) -> u32 {{
    let v = bitcast<f32>(x) {sign} bitcast<f32>(y);
    let bits = bitcast<u32>(v);
    // By the bits: compilers take `v != v` for false.
    return select(bits, 0x7fc00000u, (bits & 0x7fffffffu) > 0x7f800000u);
}}\n"
            );
            return match self.from {
                ElementKind::F32 => single + &sum("u32", "return single(x, y);".to_owned()),
                ElementKind::F16 => {
                    single
                        + &sum("u32", "return f32_to_f16(single(f16_to_f32(x), f16_to_f32(y)));".to_owned())
                }
                ElementKind::Bf16 => {
                    single
                        + &sum(
                            "u32",
                            "return f32_to_bf16(single(bf16_to_f32(x), bf16_to_f32(y)));".to_owned(),
                        )
                }
                ElementKind::F64 => sum(
                    "f64",
                    format!(
                        "let v = x {sign} y;\n    let is_none = (bitcast<u64>(v) & 0x7ffffffffffffffflu) > 0x7ff0000000000000lu;\n    return select(v, bitcast<f64>(0x7ff8000000000000lu), is_none);"
                    ),
                ),
                ElementKind::U64 | ElementKind::I64 => sum("u64", format!("return x {sign} y;")),
                _ => sum("u32", format!("return x {sign} y;")),
            };
        }
        let decode = match (self.which, self.from) {
            (BuiltIn::FromE4m3, _) => "e4m3_to_f32(x)",
            (BuiltIn::FromE5m2, _) => "e5m2_to_f32(x)",
            (_, ElementKind::F16) => "f16_to_f32(x)",
            (_, ElementKind::Bf16) => "bf16_to_f32(x)",
            _ => "x",
        };
        let encode = match (self.which, self.to) {
            (BuiltIn::ToE4m3, _) => "f32_to_e4m3",
            (BuiltIn::ToE5m2, _) => "f32_to_e5m2",
            (_, ElementKind::F16) => "f32_to_f16",
            (_, ElementKind::Bf16) => "f32_to_bf16",
            _ => "",
        };
        match self.which {
            BuiltIn::Fill | BuiltIn::Copy | BuiltIn::Gather => String::new(),
            _ => format!("fn converted(x: u32) -> u32 {{\n    return {encode}({decode});\n}}\n"),
        }
    }

    fn result(self) -> &'static str {
        match self.which {
            BuiltIn::Fill if self.to.len_bytes() == 8 => {
                "return select(numbers.low, numbers.high, ((numbers.first_out + e) & 1u) == 1u);"
            }
            BuiltIn::Fill => "return numbers.low;",
            BuiltIn::Copy => "return a_at(e);",
            BuiltIn::Add => "return combine(a_at(e), b_at(e));",
            BuiltIn::Scale if self.from == ElementKind::F64 => {
                "return combine(a_at(e), bitcast<f64>(u64(numbers.low) | (u64(numbers.high) << 32u)));"
            }
            BuiltIn::Scale if self.is_wide() => {
                "return combine(a_at(e), u64(numbers.low) | (u64(numbers.high) << 32u));"
            }
            BuiltIn::Scale => "return combine(a_at(e), numbers.low);",
            BuiltIn::Gather => {
                "let chunk = b[numbers.first_b + e / numbers.chunk];
    let rest = e % numbers.chunk;
    let whole = numbers.count_a / numbers.chunk;
    if chunk < whole || (chunk == whole && rest < numbers.count_a % numbers.chunk) {
        return a_at(chunk * numbers.chunk + rest);
    }
    return 0u;"
            }
            _ => "return converted(a_at(e));",
        }
    }

    /// What is done with a word of `out`. Bytes beside the vector belong to others, who may write them now.
    fn store(self) -> String {
        let bits = self.to.len_bytes() * 8;
        if bits >= 32 {
            return "out[word] = result(word - numbers.first_out);".to_owned();
        }
        let low = (1_u32 << bits) - 1;
        format!(
            "var bits = 0u;
        var mask = 0u;
        for (var lane = 0u; lane < PER_OUTu; lane++) {{
            let e = word * PER_OUTu + lane - numbers.first_out;
            if e < numbers.count {{
                bits |= (result(e) & {low}u) << (lane * {bits}u);
                mask |= {low}u << (lane * {bits}u);
            }}
        }}
        if mask == 0xffffffffu {{
            atomicStore(&out[word], bits);
        }} else {{
            atomicAnd(&out[word], ~mask);
            atomicOr(&out[word], bits);
        }}"
        )
    }
}
