//! The eventfd that gets the ring thread out of its one sleep.

use std::os::fd::{AsFd, AsRawFd, RawFd};

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::{Error, Result};

/// Wakes the ring thread, which keeps a read of this eventfd armed in its ring.
#[derive(Debug)]
pub(crate) struct RingWake(EventFd);

impl RingWake {
    pub(super) fn new() -> Result<Self> {
        // Blocking on purpose: a non-blocking one would complete the ring's read at once with EAGAIN.
        EventFd::from_flags(EfdFlags::EFD_CLOEXEC)
            .map(Self)
            .map_err(|e| Error::from_os(e.into(), "making an eventfd"))
    }

    /// Cannot be lost: the counter keeps it until the ring reads.
    pub(crate) fn wake(&self) {
        if let Err(e) = self.0.write(1) {
            tracing::error!(error = %e, "the reader's ring thread could not be woken");
        }
    }

    /// Waits for a wake without a ring.
    pub(crate) fn wait(&self) {
        let _ = self.0.read();
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}
