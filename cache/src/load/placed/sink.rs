//! Waits for the legs of a load onto several devices.

use super::super::cancel::Stop;
use crate::pump::{Begin, Sink};
use crate::{Error, ErrorKind, Result};
use spoc_driver::Stream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a load that failed or was cancelled waits for its reads in flight.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

type Progress = Arc<dyn Fn(u64, u64) + Send + Sync>;

#[derive(Default, Clone)]
struct OfDevice {
    /// Legs that were not published.
    unpublished: usize,
    error: Option<Error>,
}

pub(super) struct State {
    /// Legs that have not ended.
    pub legs_open: usize,
    devices: Vec<OfDevice>,
    cancelled: bool,
    finished: bool,
}

impl State {
    /// Whether anybody still wants the rest.
    fn wanted(&self) -> bool {
        !self.cancelled && self.devices.iter().any(|device| device.error.is_none())
    }
}

pub(super) struct PlacedSink {
    state: Mutex<State>,
    changed: Condvar,
    copied: AtomicU64,
    bytes: u64,
    progress: Option<Progress>,
}

impl PlacedSink {
    pub fn new(devices: usize, bytes: u64, progress: Option<Progress>) -> PlacedSink {
        PlacedSink {
            state: Mutex::new(State {
                legs_open: 0,
                devices: vec![OfDevice::default(); devices],
                cancelled: false,
                finished: false,
            }),
            changed: Condvar::new(),
            copied: AtomicU64::new(0),
            bytes,
            progress,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits until `done`. False as soon as nobody wants the rest.
    pub fn wait(&self, done: impl Fn(&State) -> bool) -> bool {
        let mut state = self.lock();
        while state.wanted() && !done(&state) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.wanted()
    }

    /// Waits for the legs that are left, but not for ever: what is in flight keeps its memory by itself.
    pub fn wait_a_moment(&self) {
        let open = |state: &mut State| state.legs_open > 0;
        let waited = self.changed.wait_timeout_while(self.lock(), AFTER_FAILURE, open);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Legs of these devices are about to be submitted.
    pub fn expect(&self, devices: impl Iterator<Item = usize>) {
        let mut state = self.lock();
        for device in devices {
            state.legs_open += 1;
            state.devices[device].unpublished += 1;
        }
    }

    /// They were not.
    pub fn unexpect(&self, devices: impl Iterator<Item = usize>) {
        let mut state = self.lock();
        for device in devices {
            state.legs_open -= 1;
            state.devices[device].unpublished -= 1;
        }
    }

    pub fn has_failed(&self, device: usize) -> bool {
        self.lock().devices[device].error.is_some()
    }

    pub fn copied(&self) -> u64 {
        self.copied.load(Ordering::Relaxed)
    }

    /// Each device's error, if it has one.
    ///
    /// # Errors
    /// That of streaming, or cancelled, or the first device's if all failed.
    pub fn finish(&self, outcome: Result<()>) -> Result<Vec<Option<Error>>> {
        let mut state = self.lock();
        state.finished = true;
        outcome?;
        if state.cancelled {
            return Err(Error::new(ErrorKind::Cancelled));
        }
        for device in &mut state.devices {
            if device.unpublished > 0 {
                device.error.get_or_insert_with(|| Error::new(ErrorKind::Closed));
            }
        }
        let errors: Vec<Option<Error>> = state.devices.iter().map(|device| device.error.clone()).collect();
        match errors.iter().all(Option::is_some).then(|| errors.iter().flatten().next().cloned()).flatten() {
            Some(error) => Err(error),
            None => Ok(errors),
        }
    }
}

impl Stop for PlacedSink {
    fn stop(&self) {
        self.note(|state| state.cancelled |= !state.finished);
    }
}

fn device(tag: u64) -> usize {
    usize::try_from(tag).unwrap_or(usize::MAX)
}

impl Sink for PlacedSink {
    fn begin(&self, _tag: u64, _copies: &Stream) -> Result<Begin> {
        Ok(Begin::Go)
    }

    fn published(&self, tag: u64, _copies: &Stream) -> Result<()> {
        self.note(|state| state.devices[device(tag)].unpublished -= 1);
        Ok(())
    }

    fn failed(&self, tag: u64, error: &Error, _in_copy: bool) {
        self.note(|state| {
            state.devices[device(tag)].error.get_or_insert_with(|| error.clone());
        });
    }

    fn ended(&self, _tag: u64) {
        self.note(|state| state.legs_open -= 1);
    }

    fn progress(&self, _tag: u64, bytes: u64) {
        let copied = self.copied.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if let Some(progress) = &self.progress {
            progress(copied, self.bytes);
        }
    }
}
