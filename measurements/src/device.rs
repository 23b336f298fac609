//! Opening the device that a measurement is about.

use anyhow::{Context, Result};
use spoc_driver::{BackendKind, Device, DeviceSelector, Driver};

/// The device to measure, as every program here takes it.
#[derive(Debug, Clone, clap::Args)]
pub struct DeviceArgs {
    /// The backend: native, interpreter, cuda, …
    #[arg(long, default_value = "native")]
    pub backend: String,
    /// Which of its devices.
    #[arg(long, default_value_t = 0)]
    pub index: u32,
}

impl DeviceArgs {
    /// Opens it.
    ///
    /// # Errors
    /// Names the backend and why it was not found.
    pub fn open(&self) -> Result<Device> {
        let kind: BackendKind = self.backend.parse()?;
        let reports = spoc_backends::probe();
        let driver = Driver::new(spoc_backends::found(&reports));
        let missing = reports.iter().find_map(|report| match &report.outcome {
            spoc_backends::ProbeOutcome::Missing { reason } if report.kind == kind => Some(reason.clone()),
            _ => None,
        });
        driver
            .open(&DeviceSelector::index(kind, self.index))
            .with_context(|| missing.unwrap_or_else(|| "the backend was found".to_owned()))
    }
}
