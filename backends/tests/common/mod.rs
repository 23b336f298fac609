//! Finding the devices that a test file is about.
#![allow(dead_code, clippy::panic, clippy::print_stderr)]

use spoc_backends::{ProbeOutcome, probe};
use spoc_driver::backend::Probed;
use spoc_driver::{BackendKind, Device, DeviceSelector, Driver};

/// The variable that names backends which have to be there: `SPOC_REQUIRE=opencl,vulkan`.
const REQUIRE: &str = "SPOC_REQUIRE";

/// The backend, or nothing and a line `not run: …` that says why.
///
/// # Panics
/// If the backend is missing and `SPOC_REQUIRE` names it.
pub fn backend(kind: BackendKind) -> Option<Probed> {
    let report = probe().into_iter().find(|report| report.kind == kind);
    match report.map(|report| report.outcome) {
        Some(ProbeOutcome::Found(probed)) => Some(probed),
        Some(ProbeOutcome::Missing { reason }) => not_run(kind, &reason),
        None => not_run(kind, "probing says nothing of it"),
    }
}

/// Every device of the backend, opened; none and a line `not run: …` where the backend is missing.
///
/// # Panics
/// If a device cannot be opened, or the backend is missing and `SPOC_REQUIRE` names it.
pub fn devices(kind: BackendKind) -> Vec<Device> {
    let Some(probed) = backend(kind) else { return Vec::new() };
    let driver = Driver::new(vec![Probed::clone(&probed)]);
    let open = |index| match driver.open(&DeviceSelector::index(kind, index)) {
        Ok(device) => device,
        Err(error) => panic!("{kind} device {index}: {error}"),
    };
    probed.devices().iter().map(|info| open(info.index)).collect()
}

fn not_run<T>(kind: BackendKind, reason: &str) -> Option<T> {
    let required = std::env::var(REQUIRE).unwrap_or_default();
    let is_required = required.split(',').any(|name| name.trim() == kind.as_str());
    assert!(!is_required, "{REQUIRE} asks for {kind}: {reason}");
    eprintln!("not run: {kind}: {reason}");
    None
}
