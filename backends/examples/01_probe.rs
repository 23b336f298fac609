//! What is there, and why the rest is not.
//!
//! `cargo run -p spoc-backends --example 01_probe`
#![allow(clippy::print_stdout, reason = "an example prints what it finds")]

use spoc_backends::{ProbeOutcome, found, probe};
use spoc_driver::{DeviceSelector, Driver, Result};

/// Lists backends with reasons, then devices with what they can do.
pub fn main() -> Result<()> {
    let reports = probe();
    for report in &reports {
        match &report.outcome {
            ProbeOutcome::Found(_) => println!("{:<12} found", report.kind),
            ProbeOutcome::Missing { reason } => println!("{:<12} missing: {reason}", report.kind),
        }
    }

    // Nothing registers itself: the driver knows what it is given.
    let driver = Driver::new(found(&reports));
    for info in driver.devices() {
        let device = driver.open(&DeviceSelector::uuid(info.backend, info.uuid))?;
        let memory = device.memory()?;
        println!(
            "\n{} {}: {}\n  uuid {}\n  {} of {} MiB free",
            info.backend,
            info.index,
            info.name,
            info.uuid,
            memory.free_bytes >> 20,
            memory.total_bytes >> 20
        );
        for (name, verdict) in device.capabilities().iter() {
            println!("  {name:<16} {verdict}");
        }
    }
    Ok(())
}
