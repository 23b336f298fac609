//! Finding backends.

use std::mem::ManuallyDrop;

use spoc_driver::BackendKind;
use spoc_driver::backend::Probed;

use crate::{interpreter, native};

/// What probing found of one backend.
pub struct ProbeReport {
    /// Which.
    pub kind: BackendKind,
    /// Found, or why not.
    pub outcome: ProbeOutcome,
}

/// Found, or why not.
pub enum ProbeOutcome {
    /// Ready to be passed to the driver.
    Found(Probed),
    /// Not usable.
    Missing {
        /// Why, for the person who expected it.
        reason: String,
    },
}

/// Looks for every backend but the tests' own. Loads the APIs' libraries where they are present; opens no
/// device.
#[must_use]
pub fn probe() -> Vec<ProbeReport> {
    probe_only(BackendKind::ALL.into_iter().filter(|kind| *kind != BackendKind::Fake))
}

/// Looks for these backends alone: the runtimes of the others are not loaded, which saves their start.
#[must_use]
pub fn probe_only(kinds: impl IntoIterator<Item = BackendKind>) -> Vec<ProbeReport> {
    kinds.into_iter().map(|kind| ProbeReport { kind, outcome: probe_one(kind) }).collect()
}

/// The backends among the reports that were found, for [`spoc_driver::Driver::new`].
#[must_use]
pub fn found(reports: &[ProbeReport]) -> Vec<Probed> {
    let found = |report: &ProbeReport| match &report.outcome {
        ProbeOutcome::Found(probed) => Some(Probed::clone(probed)),
        ProbeOutcome::Missing { .. } => None,
    };
    reports.iter().filter_map(found).collect()
}

fn probe_one(kind: BackendKind) -> ProbeOutcome {
    match kind {
        BackendKind::Native => match native::Options::from_env() {
            Ok(options) => ProbeOutcome::Found(native::backend(options)),
            Err(reason) => ProbeOutcome::Missing { reason },
        },
        BackendKind::Cuda => probe_cuda(),
        BackendKind::Hip => {
            without_adapter(kind, &["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"])
        }
        #[cfg(feature = "opencl")]
        BackendKind::OpenCl => match crate::opencl::backend() {
            Ok((probed, _)) => ProbeOutcome::Found(probed),
            Err(reason) => ProbeOutcome::Missing { reason },
        },
        #[cfg(not(feature = "opencl"))]
        BackendKind::OpenCl => without_adapter(kind, &["libOpenCL.so.1", "libOpenCL.so"]),
        BackendKind::Vulkan => probe_vulkan(),
        BackendKind::Metal => probe_metal(),
        BackendKind::Interpreter => {
            ProbeOutcome::Found(interpreter::backend(interpreter::Options::default()))
        }
        BackendKind::WebGpu => probe_webgpu(),
        BackendKind::Fake => missing("the fake backend is for tests, and is made by them"),
    }
}

#[cfg(feature = "cuda")]
fn probe_cuda() -> ProbeOutcome {
    match crate::cuda::backend() {
        Ok(probed) => ProbeOutcome::Found(probed),
        Err(reason) => ProbeOutcome::Missing { reason },
    }
}

#[cfg(not(feature = "cuda"))]
fn probe_cuda() -> ProbeOutcome {
    without_adapter(BackendKind::Cuda, &["libcuda.so.1", "libcuda.so"])
}

#[cfg(feature = "vulkan")]
fn probe_vulkan() -> ProbeOutcome {
    use crate::vulkan::{Options, backend};
    match Options::from_env().and_then(backend) {
        Ok(probed) => ProbeOutcome::Found(probed),
        Err(reason) => ProbeOutcome::Missing { reason },
    }
}

#[cfg(not(feature = "vulkan"))]
fn probe_vulkan() -> ProbeOutcome {
    without_adapter(BackendKind::Vulkan, &["libvulkan.so.1", "libvulkan.so"])
}

#[cfg(all(feature = "kernels", target_vendor = "apple"))]
fn probe_metal() -> ProbeOutcome {
    use crate::metal::{Options, backend};
    match Options::from_env().and_then(backend) {
        Ok(probed) => ProbeOutcome::Found(probed),
        Err(reason) => ProbeOutcome::Missing { reason },
    }
}

#[cfg(not(all(feature = "kernels", target_vendor = "apple")))]
fn probe_metal() -> ProbeOutcome {
    missing(if cfg!(target_vendor = "apple") {
        "this build has no metal adapter (it comes with the feature kernels)"
    } else {
        "Metal exists on macOS only"
    })
}

#[cfg(feature = "webgpu")]
fn probe_webgpu() -> ProbeOutcome {
    use crate::webgpu::{Options, backend};
    match Options::from_env().and_then(backend) {
        Ok(probed) => ProbeOutcome::Found(probed),
        Err(reason) => ProbeOutcome::Missing { reason },
    }
}

#[cfg(not(feature = "webgpu"))]
fn probe_webgpu() -> ProbeOutcome {
    missing("this build has no webgpu adapter (it comes with the feature webgpu)")
}

fn missing(reason: &str) -> ProbeOutcome {
    ProbeOutcome::Missing { reason: reason.to_owned() }
}

/// Says whether the API's library is there, so that an operator knows which half is missing.
fn without_adapter(kind: BackendKind, names: &[&str]) -> ProbeOutcome {
    match load(names) {
        Ok((name, _)) => missing(&format!("{name} present, but this build has no {kind} adapter")),
        Err(errors) => missing(&format!("no {kind} library: {errors}")),
    }
}

/// Loads the first of the names that can be loaded; else the loader's word on each. Never unloaded: these runtimes start
/// threads and exit handlers that outlive an unload.
pub(crate) fn load<'n>(names: &[&'n str]) -> Result<(&'n str, ManuallyDrop<libloading::Library>), String> {
    let mut errors = Vec::new();
    for name in names {
        // SAFETY: loading runs the library's initialisers. The names are those of the GPU vendors' runtimes,
        // found where the operator's loader configuration points; any GPU program does the same.
        match unsafe { libloading::Library::new(*name) } {
            Ok(library) => return Ok((name, ManuallyDrop::new(library))),
            Err(error) => errors.push(format!("{name}: {}", reason_of(&error))),
        }
    }
    Err(errors.join("; "))
}

/// The loader's own message, which libloading keeps in the source.
fn reason_of(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_reported_with_a_reason_or_found() {
        let reports = probe();
        assert_eq!(reports.len(), BackendKind::ALL.len() - 1);
        for report in &reports {
            match &report.outcome {
                ProbeOutcome::Found(probed) => assert_eq!(probed.id().kind, report.kind),
                ProbeOutcome::Missing { reason } => assert!(!reason.is_empty(), "{}", report.kind),
            }
        }
        assert!(found(&reports).iter().any(|probed| probed.id().kind == BackendKind::Native));
    }

    #[test]
    fn a_missing_library_is_reported_with_every_name_tried() {
        let errors = load(&["libspoc-not-there.so.1", "libspoc-not-there.so"]).unwrap_err();
        assert!(errors.contains("libspoc-not-there.so.1:"), "{errors}");
        assert!(errors.contains("libspoc-not-there.so:"), "{errors}");
    }
}
