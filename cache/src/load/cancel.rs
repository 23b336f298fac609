//! Ending a load that nobody wants any more.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Ends loads early. Clones are the same switch; once thrown it stays so, for loads that begin later too.
#[derive(Clone, Default)]
pub struct Cancel(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    thrown: bool,
    loads: Vec<Weak<dyn Stop>>,
}

/// A load that can be ended early.
pub(super) trait Stop: Send + Sync {
    /// Nobody wants it any more; no effect once it has ended.
    fn stop(&self);
}

impl Cancel {
    /// A switch that is not thrown.
    #[must_use]
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Throws the switch: loads that have it return [`Cancelled`](crate::ErrorKind::Cancelled) as soon as what is
    /// being read has come back, a second later at most. A load whose last copy has run is not undone.
    pub fn cancel(&self) {
        let loads = {
            let mut state = self.lock();
            state.thrown = true;
            std::mem::take(&mut state.loads)
        };
        loads.iter().filter_map(Weak::upgrade).for_each(|load| load.stop());
    }

    /// Whether it was thrown.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.lock().thrown
    }

    /// Stops this load when the switch is thrown: now, if it has been.
    pub(super) fn watch<L: Stop + 'static>(&self, load: &Arc<L>) {
        let mut state = self.lock();
        if !state.thrown {
            state.loads.retain(|load| load.strong_count() > 0);
            let load: Weak<L> = Arc::downgrade(load);
            state.loads.push(load);
            return;
        }
        drop(state);
        load.stop();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cancel").field(&self.is_cancelled()).finish()
    }
}
