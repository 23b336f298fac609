//! The end of the ring thread: orderly, or because the kernel takes no more calls.

use std::io;
use std::sync::Arc;

use super::engine::{Engine, WAKE};
use crate::reader::queue::{Bounds, Next};
use crate::{Error, ErrorKind};

impl Engine {
    /// The kernel takes no more calls on the ring: everything queued fails, and nothing in flight is freed.
    pub(super) fn give_up(&mut self, error: &io::Error) {
        tracing::error!(%error, "io_uring_enter failed; the ring's reads fail from here on");
        self.broken = true;
        let failed = || Error::new(ErrorKind::IoError, format!("io_uring_enter failed: {error}"));
        for index in 0..self.ops.len() {
            if let Some(op) = self.ops[index].take() {
                let (ticket, late) = (op.work.ticket, op.late);
                std::mem::forget(op);
                if !late {
                    self.outlet.deliver(&self.shared, ticket, Err(failed()));
                }
            }
        }
        loop {
            match self.shared.next_for_ring(&self.ladder, Bounds::NONE) {
                Next::Read(work) => self.outlet.deliver(&self.shared, work.ticket, Err(failed())),
                Next::Fail(ticket) => self.outlet.deliver_failed(&self.shared, ticket),
                // A refill that its rate holds back fails when the next request comes, or the reader closes.
                Next::NoChunk | Next::Enough | Next::Idle(_) => self.shared.ring_wake().wait(),
                Next::Stop => return,
            }
        }
    }
}

impl Drop for Engine {
    /// Nothing that the kernel may still write to is freed: not after a panic either.
    fn drop(&mut self) {
        if self.broken {
            // What was in flight is forgotten already; the kernel may still write the wake's value.
            std::mem::forget(std::mem::take(&mut self.wake_value));
            return;
        }
        while self.wake_armed || self.in_flight() > 0 {
            if self.wake_armed {
                self.shared.ring_wake().wake();
            }
            if self.enter(1).is_err() {
                std::mem::forget(std::mem::take(&mut self.ops));
                std::mem::forget(std::mem::take(&mut self.wake_value));
                std::mem::forget(Arc::clone(&self.shared));
                return;
            }
            for cqe in self.ring.completion() {
                match cqe.user_data() {
                    WAKE => self.wake_armed = false,
                    name => {
                        let op = usize::try_from(name)
                            .ok()
                            .and_then(|i| self.ops.get_mut(i))
                            .and_then(Option::take);
                        if op.is_some() {
                            self.vacant.push(u32::try_from(name).unwrap_or(0));
                        }
                    }
                }
            }
        }
        // Closing the ring would do this too, but later: who drops a reader may want to unmount, or to pin again.
        self.files.clear_idle(&self.ring);
        if self.registered.is_some() {
            let _ = self.ring.submitter().unregister_buffers();
        }
    }
}
