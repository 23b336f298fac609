//! Kernels in WGSL: read by naga, and from there to every API.
//!
//! ```text
//! WGSL ─► parse ─► lower ─► write ─► OpenCL C, CUDA C, HIP C
//!           │        ├────► run      the interpreter
//!           │        ├────► jit      native
//!           └────────┴────► spirv    Vulkan; texts: WebGPU, Metal
//! ```

#[cfg(not(feature = "kernels"))]
mod absent;
pub(crate) mod built_ins;
pub(crate) mod flat;
pub(crate) mod ir;
#[cfg(feature = "jit")]
pub(crate) mod jit;
pub(crate) mod library;
#[cfg(feature = "kernels")]
pub(crate) mod lower;
#[cfg(feature = "kernels")]
pub(crate) mod parse;
pub(crate) mod run;
#[cfg(all(feature = "kernels", feature = "vulkan"))]
pub(crate) mod spirv;
pub(crate) mod store;
#[cfg(all(feature = "kernels", any(test, feature = "doubles", feature = "webgpu", target_vendor = "apple")))]
pub(crate) mod texts;
pub(crate) mod write;

#[cfg(all(not(feature = "kernels"), feature = "vulkan"))]
pub(crate) use absent::spirv;
#[cfg(not(feature = "kernels"))]
pub(crate) use absent::{lower, parse};
use ir::Site;
#[cfg(feature = "jit")]
pub(crate) use jit::crew::Crew;

/// Nobody helps where nothing is compiled.
#[cfg(not(feature = "jit"))]
#[derive(Debug, Default)]
pub(crate) struct Crew;

/// Why a text is no kernel, or none that can be translated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The construct, or what is wrong with it.
    pub(crate) what: String,
    pub(crate) site: Site,
    /// It is wrong everywhere, not only beyond what is covered here.
    pub(crate) is_malformed: bool,
}

impl Refusal {
    pub(crate) fn uncovered(what: impl Into<String>, site: Site) -> Self {
        Self { what: what.into(), site, is_malformed: false }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.site.line > 0 {
            write!(f, "line {}, column {}: ", self.site.line, self.site.column)?;
        }
        f.write_str(&self.what)
    }
}

impl std::error::Error for Refusal {}

/// A kernel's text in a dialect of C, and what it takes; [`write`](self::write) tells how its function is called.
///
/// # Errors
/// What is wrong with the text or not covered, and where.
#[allow(dead_code, reason = "the CUDA adapter takes its kernels from here once it translates")]
pub(crate) fn translate(
    text: &str,
    entry: &str,
    dialect: write::Dialect,
    checks: write::Checks,
) -> Result<(String, ir::Program), Refusal> {
    let program = lower::lower(&parse::Parsed::new(text)?, entry)?;
    Ok((write::write(&program, dialect, checks), program))
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::write::{Checks, Dialect};

    const TEXT: &str = "struct Numbers { n: u32, scale: f32 }
var<immediate> numbers: Numbers;
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
var<workgroup> count: atomic<u32>;
@compute @workgroup_size(32, 2)
fn scaled(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < numbers.n { x[id.x] *= numbers.scale; atomicAdd(&count, 1u); }
    workgroupBarrier();
    if id.x == 0u { x[0] = f32(atomicLoad(&count)); }
}";

    /// The dialects differ in names alone.
    #[test]
    fn one_text_becomes_every_dialect() {
        let of = |dialect| super::translate(TEXT, "scaled", dialect, Checks::On).unwrap().0;
        let (opencl, cuda, hip) = (of(Dialect::OpenCl), of(Dialect::Cuda), of(Dialect::Hip));
        assert!(
            opencl.contains("KERNEL void spoc_scaled(GLOBAL u8* m0, u64 a0, u64 n0, u32 s0, f32 s1) {"),
            "{opencl}"
        );
        assert!(cuda.contains("KERNEL void spoc_scaled(GLOBAL u8* b0, u64 n0, u32 s0, f32 s1) {"), "{cuda}");
        assert!(cuda.contains("atomicAdd(") && opencl.contains("atomic_add("));
        assert_eq!(hip.replace("#pragma clang fp contract(off)\n", ""), cuda);
        let body = |text: &str| {
            text.split("KERNEL void").last().unwrap().lines().skip(1).collect::<Vec<_>>().join(" ")
        };
        let same = body(&opencl).replace("GLOBAL u8* b0 = m0 + a0;", "").replace("atomic_add", "atomicAdd");
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words(&same), words(&body(&cuda)));
        assert_eq!(super::translate(TEXT, "scaled", Dialect::Cuda, Checks::Off).unwrap().1.group, [32, 2, 1]);
    }
}
