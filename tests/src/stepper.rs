//! Lets the fake's work run by itself, but for the streams that are held.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use spoc_driver::Stream;
use spoc_driver::fake::{FakeControl, FakeStream, Step};

/// How long work lies before it runs, about: long enough to be caught pending.
const PERIOD: Duration = Duration::from_micros(100);

/// A thread that runs operations of the fake one by one, stream by stream.
pub struct Stepper {
    shared: Arc<Shared>,
}

struct Shared {
    control: FakeControl,
    held: Mutex<HashSet<FakeStream>>,
    is_over: AtomicBool,
}

impl Stepper {
    /// Starts the thread; it ends with the last owner.
    #[must_use]
    pub fn start(control: FakeControl) -> Arc<Self> {
        let shared = Arc::new(Shared { control, held: Mutex::default(), is_over: AtomicBool::new(false) });
        let steps = Arc::clone(&shared);
        thread::spawn(move || steps.work());
        Arc::new(Self { shared })
    }

    /// Runs what the stream has been given; no later operation of it begins any more.
    pub(crate) fn hold(&self, stream: &Stream) -> FakeStream {
        let name = self.shared.control.stream(stream);
        let mut held = self.shared.held();
        self.shared.control.run(name);
        held.insert(name);
        name
    }

    /// They do again.
    pub(crate) fn release(&self, stream: FakeStream) {
        self.shared.held().remove(&stream);
    }
}

impl Drop for Stepper {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    fn held(&self) -> std::sync::MutexGuard<'_, HashSet<FakeStream>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        while !self.is_over.load(Ordering::Relaxed) {
            // One operation of every stream a round, so that streams really interleave.
            let mut has_run = false;
            for stream in self.control.busy_streams() {
                // Looked at under the lock that `hold` takes: a held stream does not move.
                let held = self.held();
                has_run |= !held.contains(&stream) && self.control.step(stream) == Step::Ran;
            }
            if !has_run {
                thread::sleep(PERIOD);
            }
        }
    }
}
