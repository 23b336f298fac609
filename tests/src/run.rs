//! Running one check on every device of a backend.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use spoc_driver::fake::Live;

use crate::{Platform, Subject};

/// Longer than any check takes on a busy machine: what takes longer hangs.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs a check on every device of a backend.
///
/// `expected_failures` names checks that this backend is known to fail, with the reason: they have to fail.
///
/// # Panics
/// If the check fails unexpectedly, or passes unexpectedly; if it hangs; if a required backend is absent.
pub fn run(
    platform: Platform,
    name: &'static str,
    check: fn(&Subject),
    expected_failures: &'static [(&'static str, &'static str)],
) {
    let (done, outcome) = channel();
    let worker = thread::Builder::new().name(name.to_owned());
    let worker = worker.spawn(move || {
        let result = catch_unwind(AssertUnwindSafe(|| on_every_device(platform, check)));
        // The receiver gives up on a check that hangs.
        let _ = done.send(result);
    });
    drop(worker.expect("a thread can be started"));
    let expected = expected_failures.iter().find(|(known, _)| *known == name).map(|(_, reason)| *reason);
    match (outcome.recv_timeout(TIMEOUT), expected) {
        (Ok(Ok(true)), Some(reason)) => {
            panic!("{name} passes now: remove its expected failure ({reason})")
        }
        (Ok(Ok(_)), _) => {}
        (Ok(Err(_)), Some(reason)) => eprintln!("expected failure of {name}: {reason}"),
        (Ok(Err(payload)), None) => resume_unwind(payload),
        (Err(RecvTimeoutError::Timeout), _) => panic!("{name} hangs"),
        (Err(RecvTimeoutError::Disconnected), _) => panic!("{name} ended without an answer"),
    }
}

/// Whether the check ran on at least one device.
fn on_every_device(platform: Platform, check: fn(&Subject)) -> bool {
    let devices = match platform.bench() {
        Ok(bench) => bench.backend.devices(),
        Err(reason) => {
            assert!(!platform.is_required(), "{} is required: {reason}", platform.kind);
            eprintln!("not run: {}: {reason}", platform.kind);
            return false;
        }
    };
    assert!(!devices.is_empty(), "{} was found, but has no device", platform.kind);
    for info in &devices {
        if devices.len() > 1 {
            eprintln!("on {} {}: {}", platform.kind, info.index, info.name);
        }
        on_device(platform, info.index, check);
    }
    true
}

/// Runs a check on the device with this index; panics where it fails.
fn on_device(platform: Platform, index: u32, check: fn(&Subject)) {
    let bench = platform.bench().expect("it was there a moment ago");
    let subject = Subject::open(&bench, platform.table, index).expect("the device opens");
    check(&subject);
    // What a check leaves pending must not reach into the next one.
    subject.device.flush().expect("a check leaves a working device");
    let may_leak = subject.may_leak();
    drop(subject);
    if let Some(watcher) = &bench.watcher {
        assert_eq!(watcher.violations(), [""; 0], "violations");
        let is_clean = watcher.live() == Live::default();
        assert!(is_clean || may_leak, "backend objects outlive the check: {:?}", watcher.live());
    }
}

/// Runs a check on one device, for a record.
///
/// # Errors
/// The first line of why it failed.
pub(crate) fn judge(
    platform: Platform,
    index: u32,
    name: &'static str,
    check: fn(&Subject),
) -> Result<(), String> {
    let (done, outcome) = channel();
    let worker = thread::Builder::new().name(name.to_owned()).spawn(move || {
        let result = catch_unwind(AssertUnwindSafe(|| on_device(platform, index, check)));
        // The receiver gives up on a check that hangs.
        let _ = done.send(result.map_err(|payload| message(&*payload)));
    });
    drop(worker.map_err(|error| format!("no thread: {error}"))?);
    match outcome.recv_timeout(TIMEOUT) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => Err(format!("no end within {} s", TIMEOUT.as_secs())),
        Err(RecvTimeoutError::Disconnected) => Err("ended without an answer".to_owned()),
    }
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a panic without words");
    text.lines().next().unwrap_or_default().chars().take(200).collect()
}
