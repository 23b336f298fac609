//! The launch window: launches on the default stream that are not handed over yet.
//!
//! An API that is slow to be called is called less often, and with more at a time. Whatever else is asked of the
//! device hands the window over first, so nobody can tell it from handing each launch over at once.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::bound::BoundLaunch;
use super::submit::submit_locked;
use crate::device::{Device, DeviceCore};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::Mutex;
use crate::util::lock;

/// Most launches that a window can hold.
pub(crate) const WINDOW_MAX: usize = 1024;

/// The window of a device.
pub(crate) struct Window {
    max: AtomicUsize,
    /// How many are held: looked at before every submission, so without a lock.
    held: AtomicUsize,
    launches: Mutex<Vec<BoundLaunch>>,
}

impl Default for Window {
    fn default() -> Self {
        Self { max: AtomicUsize::new(1), held: AtomicUsize::new(0), launches: Mutex::new(Vec::new()) }
    }
}

impl Window {
    pub(crate) fn len(&self) -> usize {
        self.held.load(Ordering::Acquire)
    }

    /// What is held when the last device handle goes: it was promised to run.
    pub(crate) fn hand_over_last(&self, core: &DeviceCore) {
        let stream = core.default_stream();
        let _turn = lock(&stream.submission);
        for launch in std::mem::take(&mut *lock(&self.launches)) {
            if let Err(error) = submit_locked(core, stream, &launch) {
                tracing::error!(%error, "a launch that the window held failed");
            }
        }
    }
}

impl Device {
    /// Holds up to `launches` launches on the default stream before they are handed to the backend together;
    /// 1, as at first, hands each over at once. What the window holds is handed over when it is full, and
    /// before anything else that the driver asks of the device: copies, launches on a stream, records, waits,
    /// queries, host access to vectors, freeing.
    ///
    /// A launch in the window fails as enqueued work does: on the default stream, for good.
    ///
    /// # Errors
    /// `ZeroSize`; `TooLarge` over 1024.
    pub fn set_launch_window(&self, launches: usize) -> Result<()> {
        const DOING: &str = "sizing the launch window";
        if launches == 0 {
            return Err(Error::new(ErrorKind::ZeroSize, DOING));
        }
        if launches > WINDOW_MAX {
            let kind = ErrorKind::TooLarge { need: launches as u64, max: WINDOW_MAX as u64 };
            return Err(Error::new(kind, DOING).with("unit", "launches"));
        }
        self.window().max.store(launches, Ordering::Relaxed);
        if self.window().len() >= launches {
            self.hand_over_launches();
        }
        Ok(())
    }

    /// How many launches the window holds.
    #[must_use]
    pub fn launches_held(&self) -> usize {
        self.window().len()
    }

    pub(super) fn hold_or_launch(&self, launch: BoundLaunch) -> Result<()> {
        let window = self.window();
        let max = window.max.load(Ordering::Relaxed);
        if max == 1 {
            return self.default_stream().enqueue_launch(&launch);
        }
        self.core().default_stream().in_flight.check()?;
        let is_full = {
            let mut launches = lock(&window.launches);
            launches.push(launch);
            window.held.store(launches.len(), Ordering::Release);
            launches.len() >= max
        };
        if is_full {
            self.hand_over_launches();
        }
        Ok(())
    }

    /// Hands what the window holds to the backend. A failure stays on the default stream.
    pub(crate) fn hand_over_launches(&self) {
        let window = self.window();
        if window.len() == 0 {
            return;
        }
        let stream = self.default_stream();
        stream.bound_entries();
        // Taken under the stream's lock, or a second thread could find the window empty and enqueue what must
        // come after it.
        let turn = lock(&stream.core().submission);
        let launches = std::mem::take(&mut *lock(&window.launches));
        let mut outcome = Ok(());
        for launch in launches {
            outcome = outcome.and_then(|()| submit_locked(self.core(), stream.core(), &launch));
        }
        window.held.store(lock(&window.launches).len(), Ordering::Release);
        drop(turn);
        if let Err(error) = outcome {
            tracing::error!(%error, "a launch that the window held failed");
            let failure =
                Error::new(ErrorKind::AsyncFailure, "launching a kernel that was held").because(error);
            stream.core().in_flight.fail(&failure);
        }
    }
}
