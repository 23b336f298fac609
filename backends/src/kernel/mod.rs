//! Kernels in WGSL: read by naga, and from there to every API.
//!
//! ```text
//! WGSL ─► parse ─► lower ─► write ─► OpenCL C, CUDA C, HIP C
//!           │        ├────► run      the interpreter
//!           └────────┴────► spirv    Vulkan
//! ```

pub(crate) mod built_ins;
pub(crate) mod flat;
pub(crate) mod ir;
pub(crate) mod library;
pub(crate) mod lower;
pub(crate) mod parse;
pub(crate) mod run;
#[cfg(feature = "vulkan")]
pub(crate) mod spirv;
pub(crate) mod store;
pub(crate) mod write;

use ir::Site;

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
