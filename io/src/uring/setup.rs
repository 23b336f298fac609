//! Making a ring, stepping down when the kernel refuses, and saying why.

use std::io;

use io_uring::{IoUring, Probe, opcode};

use crate::HostRegion;

/// The kernel takes no registered buffer above this.
const REGISTERED_BYTES_MAX: usize = 1 << 30;

/// Makes a ring of at least `entries` entries, with the newest flags that the kernel takes.
pub(super) fn ring(entries: u32) -> Result<IoUring, String> {
    let mut last = io::Error::from_raw_os_error(libc::ENOSYS);
    for flags in [Flags::DeferTaskrun, Flags::CoopTaskrun, Flags::Plain] {
        match flags.build(entries) {
            Ok(ring) if can_read(&ring) => return Ok(ring),
            Ok(_) => return Err("the kernel's io_uring cannot read files (before Linux 5.6)".to_owned()),
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => last = e,
            Err(e) => return Err(refusal(&e, disabled_by_sysctl())),
        }
    }
    Err(refusal(&last, disabled_by_sysctl()))
}

enum Flags {
    DeferTaskrun,
    CoopTaskrun,
    Plain,
}

impl Flags {
    fn build(self, entries: u32) -> io::Result<IoUring> {
        let mut builder = IoUring::builder();
        match self {
            Self::DeferTaskrun => builder.setup_single_issuer().setup_defer_taskrun(),
            Self::CoopTaskrun => builder.setup_coop_taskrun(),
            Self::Plain => &mut builder,
        };
        builder.build(entries)
    }
}

fn can_read(ring: &IoUring) -> bool {
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).is_ok()
        && probe.is_supported(opcode::Read::CODE)
        && probe.is_supported(opcode::ReadFixed::CODE)
}

/// Why there is no ring, and what would change that; `level` is the sysctl's, if there is one.
fn refusal(error: &io::Error, level: Option<u32>) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM) => match level {
            Some(level @ 1..) => format!(
                "io_uring is switched off by the sysctl kernel.io_uring_disabled = {level} (0 would allow it)"
            ),
            _ => "io_uring is refused by a seccomp profile, as containers have it (EPERM)".to_owned(),
        },
        Some(libc::ENOSYS) => {
            "io_uring is missing: an old kernel, or a seccomp profile or container hides it (ENOSYS)"
                .to_owned()
        }
        Some(libc::ENOMEM) => {
            format!("the kernel has no memory for a ring: {}", memlock(0))
        }
        _ => format!("io_uring_setup failed: {error}"),
    }
}

fn disabled_by_sysctl() -> Option<u32> {
    std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok()?.trim().parse().ok()
}

fn memlock(need_bytes: usize) -> String {
    let limit = match nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_MEMLOCK) {
        Ok((libc::RLIM_INFINITY, _)) => "no limit".to_owned(),
        Ok((soft, _)) => format!("a limit of {soft} bytes"),
        Err(_) => "an unknown limit".to_owned(),
    };
    format!("it needs {need_bytes} bytes of locked memory under {limit} (`ulimit -l`, LimitMEMLOCK=)")
}

/// Registered buffers over a region, or its beginning: all of one length, a multiple of the chunk, but the last.
#[derive(Clone, Debug)]
pub(super) struct Registered {
    span_bytes: usize,
    bytes: usize,
    /// Why not the whole region; `None` if it is.
    pub(super) partly: Option<String>,
}

impl Registered {
    /// Registers the region, or as much of its beginning as the limit on locked memory lets it: chunks are taken from
    /// there first, so that a reader that keeps up uses few others.
    ///
    /// # Errors
    /// Why the kernel does not take any of it; reads then name plain addresses.
    pub(super) fn new(ring: &IoUring, region: &dyn HostRegion, chunk_bytes: u32) -> Result<Self, String> {
        let chunk = chunk_bytes as usize;
        let span_bytes = (REGISTERED_BYTES_MAX / chunk * chunk).max(chunk);
        let usable = region.len_bytes() / chunk * chunk;
        let (mut bytes, mut partly) = (usable, None);
        loop {
            match register(ring, region, bytes, span_bytes) {
                Ok(()) => return Ok(Self { span_bytes, bytes, partly }),
                Err(e) if e.raw_os_error() == Some(libc::ENOMEM) => {
                    let refused =
                        || format!("registering the staging memory was refused: {}", memlock(usable));
                    let reason = partly.unwrap_or_else(refused);
                    bytes = bytes / 2 / chunk * chunk;
                    if bytes == 0 {
                        return Err(reason);
                    }
                    partly = Some(reason);
                }
                Err(e) => return Err(format!("registering the staging memory was refused: {e}")),
            }
        }
    }

    /// Number of the registered buffer that holds the chunk at `region_offset`; none beyond what is registered.
    pub(super) fn index(&self, region_offset: usize) -> Option<u16> {
        (region_offset < self.bytes).then(|| u16::try_from(region_offset / self.span_bytes).ok())?
    }

    /// For the report.
    pub(super) fn describe(&self) -> String {
        match &self.partly {
            None => "io_uring with registered buffers".to_owned(),
            Some(reason) => {
                format!(
                    "io_uring with registered buffers for the first {} bytes of staging: {reason}",
                    self.bytes
                )
            }
        }
    }
}

fn register(ring: &IoUring, region: &dyn HostRegion, bytes: usize, span_bytes: usize) -> io::Result<()> {
    let buffers: Vec<libc::iovec> = (0..bytes)
        .step_by(span_bytes)
        .map(|offset| libc::iovec {
            // Never dereferenced here: an address for the kernel.
            iov_base: region.as_ptr().as_ptr().wrapping_add(offset).cast(),
            iov_len: span_bytes.min(bytes - offset),
        })
        .collect();
    if buffers.len() > usize::from(u16::MAX) {
        return Err(io::Error::other("the region needs more registered buffers than there are"));
    }
    // SAFETY: the region maps these bytes, its owner promised so; the engine holds it until its ring is closed.
    unsafe { ring.submitter().register_buffers(&buffers) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_say_what_would_help() {
        let text = |number, level| refusal(&io::Error::from_raw_os_error(number), level);
        assert!(text(libc::ENOSYS, Some(0)).contains("seccomp"));
        assert!(text(libc::ENOMEM, Some(0)).contains("ulimit -l"));
        // One number for two refusals: the sysctl's own value tells them apart, also before kernels had it.
        for (level, expected) in [
            (None, "seccomp profile"),
            (Some(0), "seccomp profile"),
            (Some(1), "kernel.io_uring_disabled = 1"),
            (Some(2), "kernel.io_uring_disabled = 2"),
        ] {
            assert!(text(libc::EPERM, level).contains(expected), "{level:?}: {}", text(libc::EPERM, level));
        }
    }
}
