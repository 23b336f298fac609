//! What stands where the reader of texts is left out (feature `kernels`): every text is refused, and what would come of
//! one cannot be.

use super::Refusal;
use super::ir::Site;

pub(crate) mod parse {
    /// A text that was read: there is none.
    pub(crate) enum Parsed {}

    impl Parsed {
        /// # Errors
        /// Always.
        pub(crate) fn new(_: &str) -> Result<Self, super::Refusal> {
            Err(super::Refusal::uncovered(
                "built without its reader of WGSL (feature kernels)",
                super::Site::default(),
            ))
        }
    }
}

pub(crate) mod lower {
    use super::super::ir::Program;

    pub(crate) fn lower(parsed: &super::parse::Parsed, _: &str) -> Result<Program, super::Refusal> {
        match *parsed {}
    }
}

#[cfg(feature = "vulkan")]
pub(crate) mod spirv {
    use super::super::write::Checks;

    pub(crate) fn words(
        parsed: &super::parse::Parsed,
        _: &str,
        _: Checks,
    ) -> Result<Vec<u32>, super::Refusal> {
        match *parsed {}
    }
}
