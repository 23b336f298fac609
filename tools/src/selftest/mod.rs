//! `spoc-loader selftest`: what the port promises, tried on every device found, as one block to post.
//!
//! Our own machines have no AMD and no Apple hardware: whoever has some runs this, and the block says what works there.

mod files;
mod kernels;
mod transfers;

use std::fmt::Write;
use std::time::Instant;

use serde::Serialize;
use serde_json::{Map, Value};
use spoc_backends::matrix::Place;
use spoc_driver::{Device, DeviceInfo, DeviceSelector};

use crate::cli::SelftestArgs;
use crate::devices::{Found, why_not};
use crate::failure::{Failure, Result};
use crate::out::Out;
use crate::units;

/// How a check ended.
#[derive(Debug, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
enum Verdict {
    /// It holds, with a figure or a word beside it.
    Ok { note: String },
    /// The device does not offer it, and said why.
    Refused { because: String },
    /// It does not hold.
    Failed { because: String },
}

/// A check's word: a note, or why it could not be tried or does not hold.
type Outcome = std::result::Result<String, Ended>;

/// Why a check has no note.
enum Ended {
    Refused(String),
    Failed(String),
}

impl<E: std::fmt::Display> From<E> for Ended {
    fn from(error: E) -> Ended {
        Ended::Failed(error.to_string())
    }
}

/// Fails the check with these words if something does not hold.
fn demand(holds: bool, what: impl FnOnce() -> String) -> std::result::Result<(), Ended> {
    if holds { Ok(()) } else { Err(Ended::Failed(what())) }
}

/// Ends the check if the device does not offer something.
fn need(name: &str, verdict: &spoc_driver::Verdict) -> std::result::Result<(), Ended> {
    match verdict.reason() {
        None => Ok(()),
        Some(reason) => Err(Ended::Refused(format!("{name}: {reason}"))),
    }
}

type Check = (&'static str, fn(&Device) -> Outcome);

const CHECKS: [Check; 8] = [
    ("memory", transfers::memory),
    ("copies", transfers::copies),
    ("batches", transfers::batches),
    ("pinned", transfers::pinned),
    ("staging", transfers::staging),
    ("events", transfers::events),
    ("launches", kernels::built_ins),
    ("load", files::load),
];

#[derive(Debug, Serialize)]
struct Line {
    check: &'static str,
    #[serde(flatten)]
    verdict: Verdict,
    seconds: f64,
}

#[derive(Debug, Serialize)]
struct OfDevice {
    backend: &'static str,
    index: u32,
    name: String,
    uuid: String,
    driver: Option<String>,
    memory_bytes: u64,
    unified: bool,
    segment_bytes_max: u64,
    binding_bytes_max: u64,
    /// `null` for what is available, otherwise why not.
    capabilities: Map<String, Value>,
    checks: Vec<Line>,
}

#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    host: String,
    date: String,
    system: String,
    devices: Vec<OfDevice>,
    missing: Vec<(String, String)>,
    failed: usize,
}

/// Runs the command; the exit code is 1 if a check failed.
///
/// # Errors
/// `usage` for a backend's name that is none; `no_device` if there is nothing to test.
pub fn run(args: &SelftestArgs, out: Out) -> Result<u8> {
    let found = match args.device.backend {
        Some(_) => Found::for_args(&args.device)?,
        None => Found::now()?,
    };
    let wanted: Vec<DeviceInfo> = match (&args.device.backend, &args.device.device) {
        (None, None) => found.driver.devices(),
        _ => vec![found.open(&args.device)?.info().clone()],
    };
    if wanted.is_empty() {
        return Err(Failure::new("no_device", "no device to test: spoc-loader devices says why"));
    }
    let Place { host, date } = Place::here();
    let mut devices = Vec::with_capacity(wanted.len());
    for info in wanted {
        out.line(format_args!("testing  {} {}: {}", info.backend, info.index, info.name));
        devices.push(of_device(&found, &info));
    }
    let is_failed = |line: &&Line| matches!(line.verdict, Verdict::Failed { .. });
    let failed = devices.iter().flat_map(|device| &device.checks).filter(is_failed).count();
    let missing = found.missing.iter().map(|(kind, reason)| (kind.to_string(), reason.clone()));
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        host,
        date,
        system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        missing: missing.collect(),
        devices,
        failed,
    };
    out.answer(&report, render);
    Ok(u8::from(failed > 0))
}

fn of_device(found: &Found, info: &DeviceInfo) -> OfDevice {
    let mut tested = OfDevice {
        backend: info.backend.as_str(),
        index: info.index,
        name: info.name.clone(),
        uuid: info.uuid.to_string(),
        driver: None,
        memory_bytes: info.memory_bytes,
        unified: info.unified,
        segment_bytes_max: 0,
        binding_bytes_max: 0,
        capabilities: Map::new(),
        checks: Vec::new(),
    };
    let start = Instant::now();
    let device = match found.driver.open(&DeviceSelector::index(info.backend, info.index)) {
        Ok(device) => device,
        Err(error) => {
            let verdict = Verdict::Failed { because: error.to_string() };
            tested.checks.push(Line { check: "open", verdict, seconds: start.elapsed().as_secs_f64() });
            return tested;
        }
    };
    tested.driver = device.driver_name().ok().filter(|name| !name.is_empty());
    let limits = device.limits();
    (tested.segment_bytes_max, tested.binding_bytes_max) =
        (limits.segment_bytes_max, limits.binding_bytes_max);
    let verdicts = device.capabilities().iter();
    tested.capabilities = verdicts.map(|(name, verdict)| (name.to_owned(), why_not(verdict))).collect();
    for (check, run) in CHECKS {
        let start = Instant::now();
        let verdict = match run(&device) {
            Ok(note) => Verdict::Ok { note },
            Err(Ended::Refused(because)) => Verdict::Refused { because },
            Err(Ended::Failed(because)) => Verdict::Failed { because },
        };
        tested.checks.push(Line { check, verdict, seconds: start.elapsed().as_secs_f64() });
    }
    tested
}

/// A bound in words; what no machine has is none.
fn bound(bytes: u64) -> String {
    if bytes < 1 << 50 { units::bytes(bytes) } else { "any size".to_owned() }
}

/// The block.
fn render(report: &Report) -> String {
    let mut text = format!(
        "\n```text\nspoc-loader selftest {}, {}, {}\non {}\n",
        report.version, report.system, report.date, report.host
    );
    for device in &report.devices {
        // Writing to a string does not fail; so below.
        let _ = writeln!(text, "\n{} {}: {} ({})", device.backend, device.index, device.name, device.uuid);
        let driver = device.driver.as_deref().unwrap_or("does not tell its version");
        let _ = writeln!(
            text,
            "  driver {driver}; {}{}, segments to {}, bindings to {}",
            units::bytes(device.memory_bytes),
            if device.unified { " shared with the host" } else { "" },
            bound(device.segment_bytes_max),
            bound(device.binding_bytes_max)
        );
        for line in &device.checks {
            let (word, what) = match &line.verdict {
                Verdict::Ok { note } => ("ok", note),
                Verdict::Refused { because } => ("refused", because),
                Verdict::Failed { because } => ("FAILED", because),
            };
            let _ = writeln!(text, "  {:9} {word:8} {what} ({:.2} s)", line.check, line.seconds);
        }
    }
    text.push('\n');
    for (backend, reason) in &report.missing {
        let _ = writeln!(text, "{backend}: none ({reason})");
    }
    let _ = write!(
        text,
        "{} failed\n```",
        if report.failed == 0 { "nothing".to_owned() } else { report.failed.to_string() }
    );
    text
}
