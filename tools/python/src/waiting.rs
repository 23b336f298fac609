//! Waiting for work on another thread, with Python running meanwhile and Ctrl-C heard.

use crate::error::Failure;
use crossbeam_channel::{RecvTimeoutError, bounded};
use pyo3::prelude::*;
use spoc_cache::load::Cancel;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// How long at most until an interrupt is heard, and between two calls of a progress function.
const STEP: Duration = Duration::from_millis(50);

/// Bytes copied so far, of how many.
#[derive(Clone, Default)]
pub struct Progress(Arc<(AtomicU64, AtomicU64)>);

impl Progress {
    pub fn set(&self, copied: u64, bytes: u64) {
        self.0.0.store(copied, Ordering::Relaxed);
        self.0.1.store(bytes, Ordering::Relaxed);
    }

    fn get(&self) -> (u64, u64) {
        (self.0.0.load(Ordering::Relaxed), self.0.1.load(Ordering::Relaxed))
    }
}

/// Does `work` on a thread of its own and waits for it; an exception in between (an interrupt, one of the progress
/// function) cancels it, and is raised once it has ended.
pub fn wait<T: Send + 'static>(
    py: Python<'_>,
    cancel: &Cancel,
    progress: Option<(&Progress, &Bound<'_, PyAny>)>,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> PyResult<T> {
    let (done, ended) = bounded(1);
    let thread = thread::Builder::new().name("spoc-python".to_owned()).spawn(move || {
        let _ = done.send(work());
    });
    let thread =
        thread.map_err(|error| Failure::new("os", format!("starting a thread: {error}")).raise(py))?;
    let mut told = None;
    let mut raised = None;
    let outcome = loop {
        match py.detach(|| ended.recv_timeout(STEP)) {
            Ok(outcome) => break outcome,
            Err(RecvTimeoutError::Disconnected) => {
                break Err(Failure::new("internal", "the loading thread panicked"));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        let heard = py.check_signals().and_then(|()| match progress {
            Some((progress, call)) if raised.is_none() => tell(progress, call, &mut told),
            _ => Ok(()),
        });
        if let Err(error) = heard {
            cancel.cancel();
            raised.get_or_insert(error);
        }
    };
    let _ = py.detach(|| thread.join());
    match (raised, outcome) {
        (Some(error), _) => Err(error),
        (None, Err(failure)) => Err(failure.raise(py)),
        (None, Ok(value)) => {
            if let Some((progress, call)) = progress {
                tell(progress, call, &mut told)?;
            }
            Ok(value)
        }
    }
}

fn tell(progress: &Progress, call: &Bound<'_, PyAny>, told: &mut Option<(u64, u64)>) -> PyResult<()> {
    let now = progress.get();
    if now.1 == 0 || *told == Some(now) {
        return Ok(());
    }
    *told = Some(now);
    call.call1(now).map(drop)
}
