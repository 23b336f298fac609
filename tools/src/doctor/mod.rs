//! `spoc-loader doctor`: what the kernel, the limits and the hardware say, each finding with its one fix.
//!
//! Everything is read from `/proc`, `/sys` and `/dev`, so it works without root and without a GPU. Facts that cannot
//! be read are *unknown*, never *ok*.

mod gpu;
mod kernel;
mod memory;
mod storage;
mod system;

use std::fmt::Write;
use std::path::Path;

use serde::Serialize;

pub use system::System;

/// How a finding stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Ok,
    /// Works, but costs speed or leaves something out.
    Warn,
    /// Something that is needed does not work.
    Fail,
    /// Could not be found out.
    Unknown,
}

/// One thing looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// What, lower case with dots: `gpu.0000:01:00.0.link`.
    pub check: String,
    /// How it stands.
    pub status: Status,
    /// What was found.
    pub found: String,
    /// What to do about it; absent when all is well.
    pub fix: Option<String>,
}

impl Finding {
    fn new(check: impl Into<String>, status: Status, found: impl Into<String>) -> Finding {
        Finding { check: check.into(), status, found: found.into(), fix: None }
    }

    fn ok(check: impl Into<String>, found: impl Into<String>) -> Finding {
        Finding::new(check, Status::Ok, found)
    }

    fn unknown(check: impl Into<String>, found: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding::new(check, Status::Unknown, found).fix(fix)
    }

    fn warn(check: impl Into<String>, found: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding::new(check, Status::Warn, found).fix(fix)
    }

    fn fail(check: impl Into<String>, found: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding::new(check, Status::Fail, found).fix(fix)
    }

    fn fix(self, fix: impl Into<String>) -> Finding {
        Finding { fix: Some(fix.into()), ..self }
    }
}

/// All findings.
#[derive(Debug, Serialize)]
pub struct Report {
    /// In the order of a byte's way: storage, kernel, memory, link, device.
    pub findings: Vec<Finding>,
    /// How many are ok.
    pub ok: usize,
    /// How many are warnings.
    pub warn: usize,
    /// How many failed.
    pub fail: usize,
    /// How many could not be found out.
    pub unknown: usize,
}

/// Looks at everything; `models` is where weight files lie.
pub fn examine(system: &System, models: &Path) -> Report {
    let mut findings = storage::findings(system, models);
    findings.extend(kernel::findings(system));
    findings.extend(memory::findings(system));
    findings.extend(gpu::findings(system));
    let count = |status| findings.iter().filter(|finding| finding.status == status).count();
    let (ok, warn) = (count(Status::Ok), count(Status::Warn));
    let (fail, unknown) = (count(Status::Fail), count(Status::Unknown));
    Report { findings, ok, warn, fail, unknown }
}

/// The report for people.
pub fn render(report: &Report) -> String {
    let width = report.findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
    let mut text = String::new();
    for finding in &report.findings {
        let mark = match finding.status {
            Status::Ok => "ok     ",
            Status::Warn => "warn   ",
            Status::Fail => "FAIL   ",
            Status::Unknown => "unknown",
        };
        // Writing to a string does not fail.
        let _ = writeln!(text, "{mark} {:width$}  {}", finding.check, finding.found);
        if let Some(fix) = &finding.fix {
            let _ = writeln!(text, "        {:width$}  fix: {fix}", "");
        }
    }
    let Report { ok, warn, fail, unknown, .. } = report;
    let _ = write!(text, "{ok} ok, {warn} warnings, {fail} failed, {unknown} unknown");
    text
}
