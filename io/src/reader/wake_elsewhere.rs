//! Where there is no ring thread, nobody has to be woken.

use crate::Result;

/// In the place of the eventfd that wakes the ring thread.
#[derive(Debug)]
pub(crate) struct RingWake;

impl RingWake {
    #[allow(clippy::unnecessary_wraps, reason = "on Linux it can fail")]
    pub(super) fn new() -> Result<Self> {
        Ok(Self)
    }

    pub(crate) fn wake(&self) {}
}
