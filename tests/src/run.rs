//! Running one check on every device of a backend.

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
        let bench = platform.bench().expect("it was there a moment ago");
        let subject = Subject::open(&bench, platform.table, info.index).expect("the device opens");
        if devices.len() > 1 {
            eprintln!("on {} {}: {}", platform.kind, info.index, info.name);
        }
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
    true
}
