//! Streams: in-order queues, and the order between the default stream and the blocking ones.
//!
//! Queues are independent by nature, so the adapter makes that order itself. A command of the default
//! stream is enqueued behind a barrier that waits for a marker in every blocking stream that was given work
//! since the last such barrier; the first command that a blocking stream is given after the default stream
//! was is enqueued behind a barrier that waits for a marker there. Nobody waits on the host. Non-blocking
//! streams take no part. Everything enqueued is flushed at once, so nothing waits for what only the host
//! could still submit.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use opencl_sys::cl_event;
use spoc_driver::{ErrorKind, Result};

use super::handle::{Queue, Signal};
use crate::sync::lock;

/// How a queue is ordered against the default stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// It is the default stream.
    Default,
    /// The default stream waits for it, and it for the default stream.
    Blocking,
    /// As blocking; another library puts work into it, too.
    Shared,
    /// None.
    NonBlocking,
}

/// A stream.
pub(super) struct Stream {
    lane: Arc<Lane>,
    streams: Arc<Streams>,
}

/// A point in a stream.
pub(super) struct Mark {
    signal: Signal,
    lane: Arc<Lane>,
}

/// A queue, and what was put into it.
pub(super) struct Lane {
    queue: Queue,
    order: Order,
    /// Counts submissions, each after it was enqueued.
    submitted: AtomicU64,
    /// How many of them the default stream has been made to wait for.
    awaited: AtomicU64,
    /// How many of the default stream's submissions this one has been made to wait for.
    follows: AtomicU64,
    tail: Mutex<Option<Tail>>,
    // Last: what was lent goes after our reference to it.
    _keep_alive: KeepAlive,
}

type KeepAlive = Option<Box<dyn Any + Send + Sync>>;

/// The end of a stream as it was last looked at.
struct Tail {
    /// It comes after at least so many submissions.
    submitted: u64,
    signal: Signal,
}

/// The streams of a device.
pub(super) struct Streams {
    default: Arc<Lane>,
    others: Mutex<Vec<Weak<Lane>>>,
    /// One operation of the default stream at a time; the room for what it waits for.
    turn: Mutex<Gathered>,
}

#[derive(Default)]
struct Gathered {
    ends: Vec<End>,
    events: Events,
}

/// Where a stream stood.
struct End {
    /// Held while its pointer is in use.
    _signal: Signal,
    lane: Arc<Lane>,
    submitted: u64,
}

/// Pointers of the signals in `Gathered::ends`; empty between operations.
#[derive(Default)]
struct Events(Vec<cl_event>);

// SAFETY: the pointers are of thread-safe objects, and used only while their signals are held.
unsafe impl Send for Events {}

impl Lane {
    fn new(queue: Queue, order: Order, keep_alive: KeepAlive) -> Self {
        Self {
            queue,
            order,
            submitted: AtomicU64::new(0),
            awaited: AtomicU64::new(0),
            follows: AtomicU64::new(0),
            tail: Mutex::new(None),
            _keep_alive: keep_alive,
        }
    }

    fn submitted(&self) -> u64 {
        self.submitted.load(Ordering::Acquire)
    }

    /// Enqueues something and counts it, whatever comes of it: some of it may be on its way.
    fn submit(&self, enqueue: impl FnOnce(&Queue) -> Result<()>) -> Result<()> {
        let outcome = enqueue(&self.queue);
        self.submitted.fetch_add(1, Ordering::Release);
        // The work is enqueued either way: if it cannot be flushed now, waiting for it will tell.
        if let Err(error) = self.queue.flush() {
            tracing::warn!(%error, "an OpenCL queue was not flushed");
        }
        outcome
    }

    /// A signal after everything in the queue.
    fn end(&self) -> Result<Signal> {
        if self.order != Order::Shared {
            return self.tail();
        }
        // What others put into it is not counted, so the last end that we know may be an old one.
        let signal = self.queue.marker()?;
        self.queue.flush()?;
        Ok(signal)
    }

    /// A signal after everything submitted so far: the last one made, if nothing was submitted since.
    fn tail(&self) -> Result<Signal> {
        let submitted = self.submitted();
        let mut tail = lock(&self.tail);
        match &*tail {
            Some(known) if known.submitted == submitted => known.signal.share(),
            _ => {
                let signal = self.queue.marker()?;
                self.queue.flush()?;
                *tail = Some(Tail { submitted, signal: signal.share()? });
                Ok(signal)
            }
        }
    }

    fn is_idle(&self) -> Result<bool> {
        if self.submitted() == 0 {
            return Ok(true);
        }
        self.settle(self.tail()?.query())
    }

    fn synchronize(&self) -> Result<()> {
        self.settle(self.end().and_then(|end| end.wait()))
    }

    /// Passes an outcome on once nothing is running that it speaks of. A failure is signalled as soon as it
    /// is known, and work before the one that failed may still use its memory.
    fn settle<T>(&self, outcome: Result<T>) -> Result<T> {
        if let Err(error) = &outcome
            && *error.kind() == ErrorKind::AsyncFailure
        {
            self.queue.finish()?;
        }
        outcome
    }
}

impl Streams {
    pub(super) fn new(default: Queue) -> Arc<Self> {
        Arc::new(Self {
            default: Arc::new(Lane::new(default, Order::Default, None)),
            others: Mutex::default(),
            turn: Mutex::default(),
        })
    }

    pub(super) fn default_stream(self: &Arc<Self>) -> Stream {
        Stream { lane: Arc::clone(&self.default), streams: Arc::clone(self) }
    }

    pub(super) fn add(self: &Arc<Self>, queue: Queue, order: Order, keep_alive: KeepAlive) -> Stream {
        let lane = Arc::new(Lane::new(queue, order, keep_alive));
        let mut others = lock(&self.others);
        others.retain(|other| other.strong_count() > 0);
        others.push(Arc::downgrade(&lane));
        Stream { lane, streams: Arc::clone(self) }
    }

    /// Waits for every stream; answers the first failure.
    pub(super) fn synchronize(&self) -> Result<()> {
        let others: Vec<_> = lock(&self.others).iter().filter_map(Weak::upgrade).collect();
        let mut outcome = Ok(());
        for lane in others.iter().chain([&self.default]) {
            outcome = outcome.and(lane.synchronize());
        }
        outcome
    }

    /// Makes the default stream wait for the blocking ones.
    fn gather(&self, room: &mut Gathered) -> Result<()> {
        for lane in lock(&self.others).iter().filter_map(Weak::upgrade) {
            let submitted = lane.submitted();
            let has_more = match lane.order {
                Order::Blocking => lane.awaited.load(Ordering::Acquire) != submitted,
                Order::Shared => true,
                Order::Default | Order::NonBlocking => false,
            };
            if has_more {
                let signal = lane.end()?;
                room.events.0.push(signal.raw());
                room.ends.push(End { _signal: signal, lane, submitted });
            }
        }
        if room.ends.is_empty() {
            return Ok(());
        }
        // SAFETY: the signals are held in `room`, and of this device's context.
        self.default.submit(|queue| unsafe { queue.barrier(&room.events.0) })?;
        for end in &room.ends {
            end.lane.awaited.store(end.submitted, Ordering::Release);
        }
        Ok(())
    }

    /// Makes a blocking stream wait for the default one.
    fn follow(&self, lane: &Lane) -> Result<()> {
        let submitted = self.default.submitted();
        if lane.follows.load(Ordering::Acquire) == submitted {
            return Ok(());
        }
        let tail = self.default.tail()?;
        lane.submit(|queue| queue.wait_for(&tail))?;
        // Only now: another thread must not pass before the barrier is there.
        lane.follows.store(submitted, Ordering::Release);
        Ok(())
    }
}

impl Stream {
    /// Enqueues something in the stream's order and the default stream's, and submits it.
    pub(super) fn submit(&self, enqueue: impl FnOnce(&Queue) -> Result<()>) -> Result<()> {
        self.in_order(|lane| lane.submit(enqueue))
    }

    /// The point after everything so far, submitted.
    pub(super) fn record(&self) -> Result<Mark> {
        let signal = self.in_order(Lane::end)?;
        Ok(Mark { signal, lane: Arc::clone(&self.lane) })
    }

    /// Makes everything from now on wait for a point.
    pub(super) fn wait_for(&self, mark: &Mark) -> Result<()> {
        self.submit(|queue| queue.wait_for(&mark.signal))
    }

    fn in_order<T>(&self, enqueue: impl FnOnce(&Lane) -> Result<T>) -> Result<T> {
        match self.lane.order {
            Order::NonBlocking => enqueue(&self.lane),
            Order::Blocking | Order::Shared => {
                self.streams.follow(&self.lane)?;
                enqueue(&self.lane)
            }
            Order::Default => {
                let mut room = lock(&self.streams.turn);
                let gathered = self.streams.gather(&mut room);
                room.events.0.clear();
                room.ends.clear();
                gathered?;
                enqueue(&self.lane)
            }
        }
    }

    /// Whether everything submitted through the adapter is over.
    pub(super) fn is_idle(&self) -> Result<bool> {
        self.lane.is_idle()
    }

    /// Waits until it is.
    pub(super) fn synchronize(&self) -> Result<()> {
        self.lane.synchronize()
    }
}

impl Mark {
    /// Another name of the same point.
    pub(super) fn share(&self) -> Result<Self> {
        Ok(Self { signal: self.signal.share()?, lane: Arc::clone(&self.lane) })
    }

    /// Whether it has been reached.
    ///
    /// # Errors
    /// `AsyncFailure` if work before it failed; then nothing before it is running any more.
    pub(super) fn is_reached(&self) -> Result<bool> {
        self.lane.settle(self.signal.query())
    }

    /// Waits for it on the host.
    ///
    /// # Errors
    /// As [`Mark::is_reached`].
    pub(super) fn wait(&self) -> Result<()> {
        self.lane.settle(self.signal.wait())
    }
}
