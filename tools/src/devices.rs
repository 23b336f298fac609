//! `spoc-loader devices`, and how commands find theirs.

use std::fmt::Write;

use serde::Serialize;
use serde_json::{Map, Value};
use spoc_backends::matrix::{self, Column, Place};
use spoc_backends::native;
use spoc_backends::{ProbeOutcome, ProbeReport, probe, probe_only};
use spoc_driver::{BackendKind, Device, DeviceInfo, DeviceName, DeviceSelector, DeviceUuid, Driver, Verdict};

use crate::cli::{DeviceArgs, DevicesArgs};
use crate::failure::{Failure, Result};
use crate::out::Out;
use crate::units;

/// Tried in this order when the user names no backend: GPUs by the API made for them, then the host. Generic APIs are
/// not chosen unasked, because they also show CPUs.
const PREFERRED: [BackendKind; 4] =
    [BackendKind::Cuda, BackendKind::Hip, BackendKind::Metal, BackendKind::Native];

/// What probing found.
pub struct Found {
    /// Every backend that is there.
    pub driver: Driver,
    /// The others, with the reason.
    pub missing: Vec<(BackendKind, String)>,
}

impl Found {
    /// Probes every backend.
    ///
    /// # Errors
    /// `usage` for a variable that is not what it must be.
    pub fn now() -> Result<Found> {
        check_variables()?;
        Ok(Found::of(probe()))
    }

    /// Probes what these arguments may mean, and no more: starting every API's runtime takes longer than a small load.
    ///
    /// # Errors
    /// `usage` for a backend's name that is none, and for a variable that is not what it must be.
    pub fn for_args(args: &DeviceArgs) -> Result<Found> {
        check_variables()?;
        let named_by_uuid = args.device.as_deref().is_some_and(|device| device.parse::<u32>().is_err());
        Ok(match args.backend.as_deref() {
            Some(name) => Found::of(probe_only([parse_backend(name)?])),
            None if named_by_uuid => Found::of(probe()),
            None => Found::of(probe_only(PREFERRED)),
        })
    }

    fn of(reports: Vec<ProbeReport>) -> Found {
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for ProbeReport { kind, outcome } in reports {
            match outcome {
                ProbeOutcome::Found(backend) => found.push(backend),
                ProbeOutcome::Missing { reason } => missing.push((kind, reason)),
            }
        }
        Found { driver: Driver::new(found), missing }
    }

    /// Opens the device that the user named, or the default one.
    ///
    /// # Errors
    /// `usage` for a name that is none; `no_device`, with the reason, for one that is not there.
    pub fn open(&self, args: &DeviceArgs) -> Result<Device> {
        let device = args.device.as_deref().map_or(Ok(DeviceName::Index(0)), parse_device)?;
        let backend = match (args.backend.as_deref(), device) {
            (Some(name), _) => parse_backend(name)?,
            (None, DeviceName::Uuid(uuid)) => self.backend_of(uuid)?,
            (None, DeviceName::Index(_)) => self.default_backend(),
        };
        if let Some((_, reason)) = self.missing.iter().find(|(kind, _)| *kind == backend) {
            return Err(Failure::new("no_device", format_args!("no {backend} device: {reason}")));
        }
        Ok(self.driver.open(&DeviceSelector { backend, device })?)
    }

    /// Opens several devices of one backend: `all` of them, or those of a list of indices.
    ///
    /// # Errors
    /// `usage` for a list that is none; `no_device`, with the reason, for one that is not there.
    pub fn open_several(&self, args: &DeviceArgs, list: &str) -> Result<Vec<Device>> {
        let backend = args.backend.as_deref().map_or_else(|| Ok(self.default_backend()), parse_backend)?;
        if let Some((_, reason)) = self.missing.iter().find(|(kind, _)| *kind == backend) {
            return Err(Failure::new("no_device", format_args!("no {backend} device: {reason}")));
        }
        let devices = self.driver.devices();
        let there = devices.iter().filter(|device| device.backend == backend).map(|device| device.index);
        let indices: Vec<u32> = if list == "all" {
            there.collect()
        } else {
            let wrong =
                || Failure::usage(format_args!("--devices {list}: expected all, or indices as in 0,1"));
            list.split(',').map(|index| index.trim().parse().map_err(|_| wrong())).collect::<Result<_>>()?
        };
        let open = |index| Ok(self.driver.open(&DeviceSelector::index(backend, index))?);
        indices.into_iter().map(open).collect()
    }

    fn default_backend(&self) -> BackendKind {
        let devices = self.driver.devices();
        let has = |kind: &BackendKind| devices.iter().any(|device| device.backend == *kind);
        PREFERRED.into_iter().find(has).unwrap_or(BackendKind::Native)
    }

    fn backend_of(&self, uuid: DeviceUuid) -> Result<BackendKind> {
        let devices = self.driver.devices();
        let of =
            |kind: BackendKind| devices.iter().any(|device| device.uuid == uuid && device.backend == kind);
        let kinds = PREFERRED.into_iter().chain(devices.iter().map(|device| device.backend));
        kinds
            .into_iter()
            .find(|kind| of(*kind))
            .ok_or_else(|| Failure::new("no_device", format_args!("no device has the UUID {uuid}")))
    }
}

/// A mistake in a variable is the user's, not a device that happens to be missing.
fn check_variables() -> Result<()> {
    native::Options::from_env().map(|_| ()).map_err(Failure::usage)
}

fn parse_backend(name: &str) -> Result<BackendKind> {
    let known = || BackendKind::ALL.into_iter().filter(|kind| *kind != BackendKind::Fake);
    known().find(|kind| kind.as_str() == name).ok_or_else(|| {
        let names = known().map(BackendKind::as_str).collect::<Vec<_>>().join(", ");
        Failure::usage(format_args!("--backend {name}: expected one of {names}"))
    })
}

fn parse_device(text: &str) -> Result<DeviceName> {
    if let Ok(index) = text.parse() {
        return Ok(DeviceName::Index(index));
    }
    text.parse().map(DeviceName::Uuid).map_err(|_| {
        Failure::usage(format_args!(
            "--device {text}: expected an index or a UUID, as spoc-loader devices shows them"
        ))
    })
}

#[derive(Debug, Serialize)]
struct Listing {
    /// Where this was asked, and when.
    host: String,
    date: String,
    devices: Vec<Row>,
    missing: Vec<Missing>,
}

#[derive(Debug, Serialize)]
struct Row {
    backend: &'static str,
    index: u32,
    uuid: String,
    name: String,
    driver: Option<String>,
    memory_bytes: u64,
    free_bytes: Option<u64>,
    numa_node: Option<u32>,
    unified: bool,
    /// `null` for what is available, otherwise why not.
    capabilities: Map<String, Value>,
}

#[derive(Debug, Serialize)]
struct Missing {
    backend: &'static str,
    reason: String,
}

/// Runs the command.
///
/// # Errors
/// `usage` for a variable that is not what it must be. A device that cannot be opened is listed without its free memory.
pub fn run(args: &DevicesArgs, out: Out) -> Result<u8> {
    let found = Found::now()?;
    let Place { host, date } = Place::here();
    let devices = found.driver.devices().into_iter().map(|info| row(&found.driver, info)).collect();
    let missing =
        found.missing.iter().map(|(kind, reason)| Missing { backend: kind.as_str(), reason: reason.clone() });
    let listing = Listing { host, date, devices, missing: missing.collect() };
    out.answer(&listing, if args.matrix { render_matrix } else { render });
    Ok(0)
}

fn row(driver: &Driver, info: DeviceInfo) -> Row {
    let opened = driver.open(&DeviceSelector::index(info.backend, info.index));
    let opened = opened.inspect_err(|error| tracing::warn!(%error, "the device cannot be opened")).ok();
    let capabilities = opened.iter().flat_map(|device| device.capabilities().iter());
    Row {
        backend: info.backend.as_str(),
        index: info.index,
        uuid: info.uuid.to_string(),
        name: info.name,
        driver: opened.as_ref().and_then(|device| device.driver_name().ok()).filter(|name| !name.is_empty()),
        memory_bytes: info.memory_bytes,
        free_bytes: opened.as_ref().and_then(|device| device.memory().ok()).map(|memory| memory.free_bytes),
        numa_node: info.numa_node,
        unified: info.unified,
        capabilities: capabilities.map(|(name, verdict)| (name.to_owned(), why_not(verdict))).collect(),
    }
}

pub(crate) fn why_not(verdict: &Verdict) -> Value {
    matrix::why_not(verdict).map_or(Value::Null, Value::String)
}

/// The capabilities as a table, then which device each column is and what is missing.
fn render_matrix(listing: &Listing) -> String {
    let name = |row: &Row| format!("{} {}", row.backend, row.index);
    let opened = listing.devices.iter().filter(|row| !row.capabilities.is_empty());
    let columns = opened.map(|row| {
        let verdicts = row.capabilities.iter();
        let verdicts = verdicts.map(|(name, why)| (name.clone(), why.as_str().map(str::to_owned)));
        Column { name: name(row), verdicts: verdicts.collect() }
    });
    let mut text = matrix::markdown(&columns.collect::<Vec<_>>());
    // Writing to a string does not fail; so below.
    let _ = writeln!(text, "\n\nAsked on {} on {}:\n", listing.date, listing.host);
    for row in &listing.devices {
        let driver = row.driver.as_deref().unwrap_or("a driver that does not tell its version");
        let _ = writeln!(text, "- {}: {}, {driver}", name(row), row.name);
    }
    for missing in &listing.missing {
        let _ = writeln!(text, "- {}: none ({})", missing.backend, missing.reason);
    }
    text.trim_end().to_owned()
}

fn render(listing: &Listing) -> String {
    let mut text = String::new();
    for row in &listing.devices {
        // Writing to a string does not fail.
        let _ =
            write!(text, "{} {}  {}  {}", row.backend, row.index, row.name, units::bytes(row.memory_bytes));
        if let Some(free) = row.free_bytes {
            let _ = write!(text, " ({} free)", units::bytes(free));
        }
        let _ = writeln!(text, "  {}", row.uuid);
    }
    for missing in &listing.missing {
        let _ = writeln!(text, "{}: none ({})", missing.backend, missing.reason);
    }
    text.trim_end().to_owned()
}
