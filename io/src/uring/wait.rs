//! Where the ring thread sleeps, and how submissions get to the kernel.

use std::io;
use std::time::{Duration, Instant};

use io_uring::{opcode, squeue, types};

use super::engine::{Ahead, Engine, WAKE};
use crate::reader::report::add;

/// How long idle files stay open.
const IDLE: Duration = Duration::from_secs(1);
/// How late a wake may come on kernels whose waits cannot end in time.
const NAP: Duration = Duration::from_millis(2);

impl Engine {
    /// Waits until something completes; the only place where this thread sleeps.
    pub(super) fn sleep(&mut self, ahead: Ahead) -> io::Result<()> {
        let in_flight = self.in_flight();
        // Fails were reported and more may follow: look at what arrived and go on.
        let want = usize::from(ahead != Ahead::Busy || self.is_full());
        if !self.ring.submission().is_empty() {
            add(&self.shared.counters.submit_calls, 1);
        }
        let since = Instant::now();
        let idle = ahead == Ahead::Idle && in_flight == 0 && !self.files.is_empty();
        let limit = match ahead {
            _ if idle => Some(IDLE),
            Ahead::Later(time) => Some(time),
            _ => None,
        };
        let limit = [limit, self.until_late()].into_iter().flatten().min();
        match limit {
            Some(limit) if want > 0 => {
                if self.sleep_at_most(limit)? && idle {
                    self.files.clear_idle(&self.ring);
                }
            }
            _ => self.enter(want)?,
        }
        let slept = since.elapsed();
        let counters = &self.shared.counters;
        if ahead == Ahead::NoChunk {
            counters.waited_for_chunks(slept);
            if in_flight == 0 {
                counters.disk_was_idle(slept);
            }
        } else if in_flight > 0 {
            counters.waited_for_disk(slept);
        }
        Ok(())
    }

    pub(super) fn enter(&mut self, want: usize) -> io::Result<()> {
        match self.ring.submit_and_wait(want) {
            Ok(_) => Ok(()),
            Err(e) => match e.raw_os_error() {
                // EBUSY, EAGAIN: the kernel wants completions taken first. They are, right after this.
                Some(libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(e),
            },
        }
    }

    /// Waits until something completes, or for this long: true then. Old kernels cannot end a wait in time: with
    /// nothing in flight they sleep it out in short naps, else the next completion ends it.
    fn sleep_at_most(&mut self, time: Duration) -> io::Result<bool> {
        if !self.waits_can_end {
            if self.in_flight() == 0 {
                std::thread::sleep(time.min(NAP));
            }
            return self.enter(usize::from(self.in_flight() > 0)).map(|()| true);
        }
        let limit = types::Timespec::from(time);
        let args = types::SubmitArgs::new().timespec(&limit);
        match self.ring.submitter().submit_with_args(1, &args) {
            Ok(_) => Ok(false),
            Err(e) if e.raw_os_error() == Some(libc::ETIME) => Ok(true),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN)) => Ok(false),
            Err(e) => Err(e),
        }
    }

    pub(super) fn arm_wake(&mut self) {
        if self.wake_armed {
            return;
        }
        let target = (&raw mut *self.wake_value).cast();
        let fd = types::Fd(self.shared.ring_wake().fd());
        let entry = opcode::Read::new(fd, target, 8).build().user_data(WAKE);
        // Set first: whatever happens next, `drop` waits for this read before it frees the value.
        self.wake_armed = true;
        self.submit(&entry);
    }

    pub(super) fn submit(&mut self, entry: &squeue::Entry) {
        loop {
            // SAFETY: the entry names memory and a file that this engine owns until the completion: an `Op`'s chunk,
            // or the boxed wake value.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return;
            }
            // Full: the kernel takes what is there. It copies the entries, so that this makes room.
            if let Err(e) = self.ring.submit() {
                tracing::debug!(error = %e, "the ring is full and busy");
                std::thread::yield_now();
            }
        }
    }
}
