//! A run of the suite that is written down.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use spoc_backends::matrix::{self, Place};
use spoc_driver::{DeviceInfo, Error};

use super::{FORMAT, Record};
use crate::run::judge;
use crate::stamp::FUNCTIONS;
use crate::{Platform, Subject};

/// What there is of a backend.
pub enum Sought {
    /// A record of each device.
    Found(Vec<Record>),
    /// Why there is none.
    Missing(String),
}

/// Runs every check on every device of a backend whose name has `named` in it, so many side by side.
///
/// # Errors
/// A device that cannot be opened.
pub fn record(platform: Platform, named: &str, jobs: usize) -> Result<Sought, Error> {
    let bench = match catch_unwind(AssertUnwindSafe(|| platform.bench())) {
        Ok(Ok(bench)) => bench,
        Ok(Err(reason)) => return Ok(Sought::Missing(reason)),
        Err(_) => return Ok(Sought::Missing("finding out how to hold its work failed".to_owned())),
    };
    let devices = bench.backend.devices();
    let devices = devices.iter().filter(|info| info.name.contains(named));
    devices.map(|info| of_device(platform, info, jobs)).collect::<Result<_, _>>().map(Sought::Found)
}

fn of_device(platform: Platform, info: &DeviceInfo, jobs: usize) -> Result<Record, Error> {
    let Place { host, date } = Place::here();
    let bench = platform.bench().expect("it was there a moment ago");
    let subject = Subject::open(&bench, platform.table, info.index)?;
    let capabilities = subject.device.capabilities();
    let capabilities = capabilities.iter().map(|(name, verdict)| (name.to_owned(), matrix::why_not(verdict)));
    let capabilities = capabilities.collect();
    let driver = subject.device.driver_name()?;
    drop(subject);
    let failed = failures(platform, info.index, jobs);
    Ok(Record {
        format: FORMAT,
        backend: platform.kind.as_str().to_owned(),
        device: info.name.clone(),
        driver,
        host,
        date,
        capabilities,
        passed: FUNCTIONS.len() - failed.len(),
        failed,
    })
}

fn failures(platform: Platform, index: u32, jobs: usize) -> BTreeMap<String, String> {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                while let Some((name, check)) = FUNCTIONS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(why) = judge(platform, index, name, *check) {
                        failed.lock().unwrap().insert((*name).to_owned(), why);
                    }
                }
            });
        }
    });
    failed.into_inner().unwrap()
}
