//! Freeing, away from the threads that feed the device.
//!
//! The API's calls for it wait until the whole device is idle, even for memory that nothing uses (seen of
//! `cuMemFree` and `cuMemFreeHost` on an H200). On the thread that feeds the device that would be a stall, and a deadlock where the
//! device waits for something that this thread is about to do. So a thread of its own does it. And while a call
//! waits so, it keeps other threads' calls from being made (seen there: a copy waited for as long): so nothing is
//! freed before the device's streams are idle, those of every opening that shares the context, unless an allocation
//! needs the memory; and nothing at all while a stream waits for a word, which another thread's call may have to
//! write (`gate.rs`).

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use spoc_driver::{Error, ErrorKind, HostBuffer, Result};

use super::context::Context;
use super::table::DevicePtr;
use crate::sync::lock;

/// What is to be freed. Nothing enqueued uses it any more.
pub(crate) enum Doomed {
    /// Device memory, and how much.
    Device(DevicePtr, u64),
    /// Pinned memory of the driver's.
    Host(Address),
    /// Registered memory of ours, unregistered before it is unmapped.
    Registered(HostBuffer, Address),
    /// Nothing: answers when everything before it is gone.
    Mark(Sender<()>),
}

/// An address of host memory, for another thread to free.
pub(crate) struct Address(pub(crate) *mut u8);

// SAFETY: nobody follows the pointer any more.
unsafe impl Send for Address {}

/// The thread, and what it has been given.
pub(crate) struct Reaper {
    doomed: Mutex<Option<Sender<Doomed>>>,
    pending_bytes: Arc<AtomicU64>,
    is_done: Mutex<Receiver<()>>,
    context: Arc<Context>,
}

impl Reaper {
    pub(crate) fn start(context: &Arc<Context>) -> Result<Self> {
        let (doomed, to_free) = channel();
        let pending_bytes = Arc::new(AtomicU64::new(0));
        let (works_in, counts) = (Arc::clone(context), Arc::clone(&pending_bytes));
        let (done, is_done) = channel();
        std::thread::Builder::new()
            .name(format!("spoc-{}-free", context.api.flavour.kind()))
            .spawn(move || {
                let gate = &works_in.gate;
                let leave = |when| match when {
                    When::Idle if !works_in.lanes.are_idle() => None,
                    When::Idle | When::Unwaited => gate.try_block(),
                };
                work(&to_free, leave, |doomed| free(&works_in, doomed, &counts));
                // Dropped here in any case, which is an answer too.
                let _ = done.send(());
            })
            .map_err(|error| Error::new(ErrorKind::Os, "starting the freeing thread").because(error))?;
        let doomed = Mutex::new(Some(doomed));
        Ok(Self { doomed, pending_bytes, is_done: Mutex::new(is_done), context: Arc::clone(context) })
    }

    /// Frees it as soon as the device lets us.
    pub(crate) fn bury(&self, doomed: Doomed) {
        if let Doomed::Device(_, bytes) = &doomed {
            self.pending_bytes.fetch_add(*bytes, Ordering::Relaxed);
        }
        let unsent = match &*lock(&self.doomed) {
            Some(sender) => sender.send(doomed).err().map(|refused| refused.0),
            None => Some(doomed),
        };
        // The thread ends only after the sender: this is never so, but leaking would be worse than waiting.
        if let Some(doomed) = unsent {
            free(&self.context, doomed, &self.pending_bytes);
        }
    }

    /// Device memory that was given up and is not free yet.
    pub(crate) fn pending_bytes(&self) -> u64 {
        self.pending_bytes.load(Ordering::Relaxed)
    }

    /// Waits until all that was given up is free. That takes until the device is idle.
    pub(crate) fn drain(&self) {
        let (done, is_done) = channel();
        self.bury(Doomed::Mark(done));
        // An error means that the thread is gone, and everything with it.
        let _ = is_done.recv();
    }
}

/// How long the end of a device waits for what is still to be freed. It goes on without us after that.
const PATIENCE: Duration = Duration::from_millis(100);

impl Drop for Reaper {
    fn drop(&mut self) {
        drop(lock(&self.doomed).take());
        // A forked child has no such thread.
        if self.context.api.is_own_process() {
            let _ = lock(&self.is_done).recv_timeout(PATIENCE);
        }
    }
}

/// How often a busy device is looked at, first and at last.
const PAUSE: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(64);

/// How often it is asked for leave when somebody waits for the memory, two milliseconds apart.
const TRIES: u32 = 500;

/// What has to be so before something is freed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    /// All streams are idle.
    Idle,
    /// No stream waits for a word.
    Unwaited,
}

fn work<L>(to_free: &Receiver<Doomed>, leave: impl Fn(When) -> Option<L>, free: impl Fn(Doomed)) {
    let mut waiting = VecDeque::new();
    let mut pause = PAUSE;
    // Leave is asked for before each: while one is freed a stream may be given what the next would wait for.
    let free_all = |waiting: &mut VecDeque<Doomed>, when| {
        while !waiting.is_empty()
            && let Some(_leave) = leave(when)
        {
            waiting.drain(..1).for_each(&free);
        }
        waiting.is_empty()
    };
    loop {
        let next = if waiting.is_empty() {
            to_free.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            to_free.recv_timeout(pause)
        };
        pause = PAUSE_MAX.min(pause * 2);
        match next {
            // Somebody needs the memory now, and waits for it. Not for ever: the word may be theirs to write.
            Ok(mark @ Doomed::Mark(_)) => {
                for _ in 0..TRIES {
                    if free_all(&mut waiting, When::Unwaited) {
                        break;
                    }
                    std::thread::sleep(PAUSE);
                }
                free(mark);
            }
            Ok(doomed) => {
                waiting.push_back(doomed);
                pause = PAUSE;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                while !free_all(&mut waiting, When::Unwaited) {
                    std::thread::sleep(PAUSE);
                }
                return;
            }
        }
        free_all(&mut waiting, When::Idle);
    }
}

fn free(context: &Context, doomed: Doomed, pending_bytes: &AtomicU64) {
    match doomed {
        Doomed::Device(address, bytes) => {
            context.end("freeing device memory", |library| {
                // SAFETY: allocated in this context, and used by nothing any more.
                unsafe { (library.memory_free)(address) }
            });
            pending_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        Doomed::Host(first) => context.end("freeing pinned memory", |library| {
            // SAFETY: as above.
            unsafe { (library.host_free)(first.0.cast::<c_void>()) }
        }),
        Doomed::Registered(pages, first) => {
            context.end("unregistering memory", |library| {
                // SAFETY: registered, and used by nothing any more; the pages go after it.
                unsafe { (library.host_unregister)(first.0.cast::<c_void>()) }
            });
            drop(pages);
        }
        Doomed::Mark(done) => {
            // Whoever asked may have given up.
            let _ = done.send(());
        }
    }
}

/// What cannot be freed of a dead context goes with the process.
pub(crate) fn tell(error: &Error) {
    if error.is_device_lost() {
        tracing::debug!(%error, "memory of a lost device was not freed");
    } else {
        tracing::error!(%error, "memory is leaked");
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// Runs the loop over what is sent before it begins, on a device that is idle when it is looked at for those
    /// times. Answers what was freed (0 is a mark), and how much of it had been at each look.
    fn run(sent: Vec<Doomed>, idle_looks: &[usize]) -> (Vec<usize>, Vec<usize>) {
        run_with(sent, idle_looks, 0)
    }

    /// As [`run`], on a device whose streams wait for a word for so many times that it is asked about.
    fn run_with(sent: Vec<Doomed>, idle_looks: &[usize], waits: usize) -> (Vec<usize>, Vec<usize>) {
        let (sender, to_free) = channel();
        sent.into_iter().for_each(|doomed| sender.send(doomed).unwrap());
        drop(sender);
        let (freed, looks, waits) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()), Cell::new(waits));
        let leave = |when| {
            if when == When::Unwaited {
                let left = waits.get();
                waits.set(left.saturating_sub(1));
                return (left == 0).then_some(());
            }
            looks.borrow_mut().push(freed.borrow().len());
            idle_looks.contains(&looks.borrow().len()).then_some(())
        };
        work(&to_free, leave, |doomed| {
            freed.borrow_mut().push(match doomed {
                Doomed::Host(first) => first.0.addr(),
                _ => 0,
            });
        });
        (freed.into_inner(), looks.into_inner())
    }

    fn host(at: usize) -> Doomed {
        Doomed::Host(Address(std::ptr::without_provenance_mut(at)))
    }

    #[test]
    fn a_device_is_looked_at_before_each_is_freed() {
        // Idle when all have come, and busy again once the first is free.
        let (freed, looks) = run(vec![host(1), host(2), host(3)], &[3]);
        assert_eq!(looks, [0, 0, 0, 1]);
        assert_eq!(freed, [1, 2, 3], "the rest at the end");
        let (freed, looks) = run(vec![host(1), host(2), host(3)], &[2, 3, 4]);
        assert_eq!(looks, [0, 0, 1, 2]);
        assert_eq!(freed, [1, 2, 3]);
    }

    #[test]
    fn a_mark_is_answered_after_all_before_it_and_looks_at_nothing() {
        let mark = Doomed::Mark(channel().0);
        let (freed, looks) = run(vec![host(1), host(2), mark, host(3)], &[]);
        assert_eq!(looks, [0, 0, 3]);
        assert_eq!(freed, [1, 2, 0, 3]);
    }

    #[test]
    fn nothing_is_freed_while_a_stream_waits_for_a_word() {
        let mark = Doomed::Mark(channel().0);
        let (freed, _) = run_with(vec![host(1), mark, host(2)], &[], 5);
        assert_eq!(freed, [1, 0, 2], "as soon as the word has come");
        let mark = Doomed::Mark(channel().0);
        let (freed, _) = run_with(vec![host(1), mark, host(2)], &[], TRIES as usize + 5);
        assert_eq!(freed, [0, 1, 2], "whoever waits for memory does not wait for ever");
    }
}
