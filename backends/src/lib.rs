//! One adapter for each GPU API behind the driver's port, and the probe that finds them.
//!
//! Nothing registers itself: [`probe`] says what was found and why the rest was not, and the caller passes
//! what it wants to [`spoc_driver::Driver::new`].

mod account;
mod built_ins;
mod capacity;
mod casts;
mod claims;
#[cfg(feature = "cuda")]
pub mod cuda;
mod host_launch;
mod identity;
pub mod interpreter;
#[cfg_attr(not(feature = "kernels"), allow(dead_code, reason = "nothing is read that it would work on"))]
mod kernel;
pub mod matrix;
mod matvec;
#[cfg(all(feature = "kernels", any(test, feature = "doubles", target_vendor = "apple")))]
pub mod metal;
pub mod native;
#[cfg(feature = "opencl")]
pub mod opencl;
#[cfg(any(feature = "vulkan", feature = "webgpu"))]
mod parts;
mod probe;
mod size;
#[cfg(any(feature = "cuda", feature = "hip"))]
mod streamed;
mod sync;
#[cfg(feature = "vulkan")]
pub mod vulkan;
#[cfg(feature = "webgpu")]
pub mod webgpu;

pub use capacity::host_memory_available;
pub use matvec::{MATVEC_COLUMNS, MatVec};
pub use probe::{ProbeOutcome, ProbeReport, found, probe, probe_only};
pub use size::parse_size;
