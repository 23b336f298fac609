//! The kernel's version, io_uring, seccomp and the limits of this process.

use std::sync::Arc;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

use spoc_io::{AnonymousRegion, IoMode, IoPath, Reader, ReaderOptions};

use super::{Finding, System};
use crate::units;

/// The default staging ring; it must be lockable for registered buffers and pinning.
const STAGING_BYTES: u64 = 64 << 20;
/// Shards, devices, queues: more than this never ran out.
const OPEN_FILES_MIN: u64 = 4096;
const CAP_IPC_LOCK: u32 = 14;
const STATUS: &str = "/proc/self/status";

pub(super) fn findings(system: &System) -> Vec<Finding> {
    let tried = system.is_real().then(try_io_uring);
    vec![
        version(system),
        io_uring_disabled(system),
        io_uring(system, tried),
        seccomp(system),
        memlock(system),
        open_files(),
    ]
}

/// The ring asks for SINGLE_ISSUER and DEFER_TASKRUN, which came with 6.1.
fn version(system: &System) -> Finding {
    let Some(release) = system.text("/proc/sys/kernel/osrelease") else {
        return Finding::unknown("kernel.version", "cannot be read", "mount /proc");
    };
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse::<u32>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) if (major, minor) >= (6, 1) => Finding::ok("kernel.version", release),
        (Some(_), Some(_)) => Finding::warn(
            "kernel.version",
            format!("{release}: older than 6.1"),
            "use a kernel of 6.1 or newer",
        ),
        _ => Finding::unknown("kernel.version", release, "use a kernel of 6.1 or newer"),
    }
}

fn io_uring_disabled(system: &System) -> Finding {
    let check = "kernel.io_uring_disabled";
    let fix = "sudo sysctl -w kernel.io_uring_disabled=0";
    match system.number("/proc/sys/kernel/io_uring_disabled") {
        Some(0) => Finding::ok(check, "0: allowed for all"),
        Some(1) => {
            Finding::warn(check, "1: allowed only for root and the members of kernel.io_uring_group", fix)
        }
        Some(value) => {
            Finding::warn(check, format!("{value}: refused to all; files are read by a pread pool"), fix)
        }
        // The switch came with 6.6; before, there was nothing to disable.
        None => Finding::ok(check, "this kernel has no such switch"),
    }
}

fn io_uring(system: &System, tried: Option<Result<(), String>>) -> Finding {
    match tried {
        None => Finding::unknown("io_uring", "not tried", "run doctor on the machine itself"),
        Some(Ok(())) => Finding::ok("io_uring", "a ring was set up"),
        Some(Err(why)) => {
            let filtered = system.field(STATUS, "Seccomp").as_deref() == Some("2");
            let switched_off =
                system.number("/proc/sys/kernel/io_uring_disabled").is_some_and(|value| value > 0);
            let fix = match (switched_off, filtered) {
                (true, _) => "sudo sysctl -w kernel.io_uring_disabled=0",
                (false, true) => {
                    "allow io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp profile"
                }
                (false, false) => "use a kernel with CONFIG_IO_URING, 6.1 or newer",
            };
            Finding::warn("io_uring", format!("{why}; files are read by a pread pool"), fix)
        }
    }
}

/// The reader's own set-up, because what it needs is more than a ring.
fn try_io_uring() -> Result<(), String> {
    let options = ReaderOptions { mode: IoMode::Buffered, threads: 1, ..ReaderOptions::default() };
    let region = AnonymousRegion::new(options.chunk_bytes as usize).map_err(|error| error.to_string())?;
    let report = Reader::start(Arc::new(region), options).map_err(|error| error.to_string())?.report();
    match report.path {
        IoPath::UringDirect | IoPath::UringBuffered => Ok(()),
        IoPath::PreadDirect | IoPath::PreadBuffered => Err(report.reason),
    }
}

fn seccomp(system: &System) -> Finding {
    let filters = system.field(STATUS, "Seccomp_filters");
    match system.field(STATUS, "Seccomp").as_deref() {
        Some("0") => Finding::ok("seccomp", "no filter on this process"),
        // Whether a filter hurts is seen by trying, which the io_uring check does.
        Some("2") => {
            Finding::ok("seccomp", format!("{} filters; see io_uring", filters.as_deref().unwrap_or("some")))
        }
        Some(mode) => Finding::warn("seccomp", format!("mode {mode}"), "run without strict seccomp"),
        None => Finding::unknown("seccomp", "cannot be read", "mount /proc"),
    }
}

fn memlock(system: &System) -> Finding {
    let capable = system
        .field(STATUS, "CapEff")
        .and_then(|hex| u64::from_str_radix(&hex, 16).ok())
        .is_some_and(|capabilities| capabilities >> CAP_IPC_LOCK & 1 == 1);
    if capable {
        return Finding::ok("limits.memlock", "unlimited (CAP_IPC_LOCK)");
    }
    match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((RLIM_INFINITY, _)) => Finding::ok("limits.memlock", "unlimited"),
        Ok((soft, _)) if soft >= 2 * STAGING_BYTES => Finding::ok("limits.memlock", units::bytes(soft)),
        Ok((soft, _)) => Finding::warn(
            "limits.memlock",
            format!(
                "{}: too small to register the staging ring of {}",
                units::bytes(soft),
                units::bytes(STAGING_BYTES)
            ),
            "raise it: ulimit -l unlimited, LimitMEMLOCK=infinity (systemd) or --ulimit memlock=-1 (Docker)",
        ),
        Err(errno) => Finding::unknown("limits.memlock", errno.to_string(), "ulimit -l"),
    }
}

fn open_files() -> Finding {
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((_, hard)) if hard >= OPEN_FILES_MIN => {
            Finding::ok("limits.open_files", format!("{hard} (hard limit)"))
        }
        Ok((_, hard)) => Finding::warn(
            "limits.open_files",
            format!("{hard} (hard limit): a model of many shards may not fit"),
            "raise it: ulimit -Hn 65536, LimitNOFILE=65536 (systemd) or --ulimit nofile=65536 (Docker)",
        ),
        Err(errno) => Finding::unknown("limits.open_files", errno.to_string(), "ulimit -Hn"),
    }
}
