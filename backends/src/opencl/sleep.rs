//! Waiting on the host, asleep.
//!
//! Not by the API's own wait: Intel's runtime puts a thread that waits for one command to work on any other
//! that is queued, so waiting for one stream would take as long as whatever another had been given. A
//! callback of the runtime wakes us instead; it takes one lock and calls nothing. NVIDIA's driver makes the call up to 20 ms
//! late, so a sleeper looks by itself as well, ever more rarely the longer it has waited.

use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use opencl_sys::{CL_SUCCESS, cl_event, cl_int};
use spoc_driver::Result;

use super::error::{check, of_command};
use super::handle::Signal;
use crate::sync::lock;

/// A sleeper looks by itself when it has slept this part of the time that it waits for already: what comes is found at
/// most so much later, and long waits take few looks.
const LOOK_AGAIN_PART: u32 = 32;
/// But not more often than this, for a look takes the runtime's locks.
const LOOK_AGAIN_MIN: Duration = Duration::from_micros(20);
/// Nor more rarely.
const LOOK_AGAIN_MAX: Duration = Duration::from_millis(200);

/// Where one thread sleeps. Shared with callbacks: that of this sleep, and those of earlier ones that come late.
#[derive(Default)]
pub(super) struct Sleeper {
    is_over: Mutex<bool>,
    woken: Condvar,
}

/// Sleepers that nobody uses, so that waiting allocates nothing in steady state.
#[derive(Default)]
pub(super) struct Sleepers(Mutex<Vec<Arc<Sleeper>>>);

impl Sleeper {
    /// Sleeps until a callback comes, or it is time to look again: after so long a wait.
    fn nap(&self, waited: Duration) {
        let is_asleep = |is_over: &mut bool| !*is_over;
        let nap = (waited / LOOK_AGAIN_PART).clamp(LOOK_AGAIN_MIN, LOOK_AGAIN_MAX);
        let slept = self.woken.wait_timeout_while(lock(&self.is_over), nap, is_asleep);
        // A callback for an earlier sleep wakes once, not for ever.
        *slept.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

impl Sleepers {
    fn take(&self) -> Arc<Sleeper> {
        let sleeper = lock(&self.0).pop().unwrap_or_default();
        *lock(&sleeper.is_over) = false;
        sleeper
    }

    fn give_back(&self, sleeper: Arc<Sleeper>) {
        lock(&self.0).push(sleeper);
    }
}

/// The callback: wakes the sleeper, whose reference came with the registration.
unsafe extern "C" fn wake(_: cl_event, _: cl_int, sleeper: *mut c_void) {
    // SAFETY: `into_raw` of this type made the pointer, for this one call.
    let sleeper = unsafe { Arc::from_raw(sleeper.cast_const().cast::<Sleeper>()) };
    *lock(&sleeper.is_over) = true;
    sleeper.woken.notify_all();
}

impl Signal {
    /// Sleeps until it has come. What comes before it has been flushed.
    ///
    /// # Errors
    /// `AsyncFailure` if work before it failed.
    pub(super) fn wait(&self) -> Result<()> {
        if self.status()? > CL_SUCCESS {
            let sleeper = self.api().sleepers.take();
            let slept = self.sleep(&sleeper);
            // Its call may still come, in the middle of somebody else's sleep: to be woken only means to look.
            self.api().sleepers.give_back(sleeper);
            slept?;
        }
        match self.status()? {
            // Some runtimes call a command complete that never ran, because what it waited for failed.
            // Their wait, which takes no time now, tells the truth.
            CL_SUCCESS => self.confirm(),
            failed => Err(of_command(failed, "waiting for OpenCL work")),
        }
    }

    fn sleep(&self, sleeper: &Arc<Sleeper>) -> Result<()> {
        let given = Arc::into_raw(Arc::clone(sleeper));
        // SAFETY: `self` keeps the event; the callback takes the reference it is given.
        let code = unsafe {
            (self.api().library.set_event_callback)(
                self.raw(),
                CL_SUCCESS,
                Some(wake),
                given.cast_mut().cast(),
            )
        };
        if code != CL_SUCCESS {
            // SAFETY: refused, so nobody else will take the reference.
            drop(unsafe { Arc::from_raw(given) });
            check(code, "asking to be woken by OpenCL")?;
        }
        let since = Instant::now();
        loop {
            sleeper.nap(since.elapsed());
            // With no lock held: the callback may come while the runtime holds the event.
            if self.status()? <= CL_SUCCESS {
                return Ok(());
            }
        }
    }
}
