//! The test's side of the fake machine.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::adapter::{BufferHandle, EventHandle, StreamHandle};
use super::source::FakeSource;
use super::state::{WaitMode, World};
use crate::backend::CaptureState;
use crate::event::Event;
use crate::segment::Segment;
use crate::stream::Stream;
use crate::util::lock;

/// A stream as the control names it: streams are used by one thread, their names by any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FakeStream(usize);

/// What became of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// One operation ran.
    Ran,
    /// The oldest operation waits for another stream, or for a word.
    Blocked,
    /// Nothing is enqueued.
    Idle,
}

/// Backend objects that have not been dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Live {
    /// Segments.
    pub segments: usize,
    /// Streams, without the default ones.
    pub streams: usize,
    /// Events.
    pub events: usize,
    /// Pinned ranges.
    pub pinned: usize,
}

/// Lets work run and makes things fail. Clones control the same machine.
#[derive(Clone)]
pub struct FakeControl {
    world: Arc<World>,
}

impl FakeControl {
    pub(super) fn new(world: Arc<World>) -> Self {
        Self { world }
    }

    /// The name of a stream. A stream of another backend is named as one that is always idle.
    #[must_use]
    pub fn stream(&self, stream: &Stream) -> FakeStream {
        FakeStream(stream.core().handle.downcast::<StreamHandle>().map_or(usize::MAX, |handle| handle.index))
    }

    /// Streams with work enqueued, in order of creation.
    #[must_use]
    pub fn busy_streams(&self) -> Vec<FakeStream> {
        let state = self.world.lock();
        let busy = state.streams.iter().enumerate().filter(|(_, stream)| !stream.queue.is_empty());
        busy.map(|(index, _)| FakeStream(index)).collect()
    }

    /// Runs the oldest operation of a stream.
    pub fn step(&self, stream: FakeStream) -> Step {
        let mut state = self.world.lock();
        let step = if stream.0 < state.streams.len() { state.step(stream.0) } else { Step::Idle };
        drop(state);
        self.world.changed.notify_all();
        step
    }

    /// Runs a stream until it is idle or blocked. Answers how many operations ran.
    pub fn run(&self, stream: FakeStream) -> usize {
        let mut ran = 0;
        while self.step(stream) == Step::Ran {
            ran += 1;
        }
        ran
    }

    /// Runs what the event waits for, on any stream, and no more. False if it was never recorded, is of
    /// another backend, or cannot be reached.
    pub fn run_until(&self, event: &Event) -> bool {
        let Some(handle) = event.handle().downcast::<EventHandle>() else { return false };
        let Some(mark) = *lock(&handle.record) else { return false };
        let is_reached = self.world.lock().drive_to(mark);
        self.world.changed.notify_all();
        is_reached
    }

    /// Runs everything that can run. Answers how many operations did.
    pub fn run_all(&self) -> usize {
        let ran = self.world.lock().run_all();
        self.world.changed.notify_all();
        ran
    }

    /// Operations enqueued on all streams.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.world.lock().streams.iter().map(|stream| stream.queue.len()).sum()
    }

    /// Operations enqueued on one stream.
    #[must_use]
    pub fn pending_on(&self, stream: FakeStream) -> usize {
        self.world.lock().streams.get(stream.0).map_or(0, |stream| stream.queue.len())
    }

    /// Waits until other threads have enqueued at least `operations`. False if that takes too long.
    #[must_use]
    pub fn wait_pending(&self, operations: usize, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.world.lock();
        loop {
            if state.streams.iter().map(|stream| stream.queue.len()).sum::<usize>() >= operations {
                return true;
            }
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { return false };
            let waited = self.world.changed.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Threads that are blocked in a host wait now.
    #[must_use]
    pub fn blocked_threads(&self) -> usize {
        self.world.lock().blocked_threads
    }

    /// What host waits do from now on.
    pub fn set_wait_mode(&self, mode: WaitMode) {
        self.world.lock().wait_mode = mode;
        self.world.changed.notify_all();
    }

    /// Makes the n-th allocation of a segment from now (1: the next) run out of device memory.
    pub fn fail_allocation(&self, nth: u64) {
        self.world.lock().fail_allocation.set(nth);
    }

    /// Makes the n-th pin, or allocation of pinned memory, run out of host memory.
    pub fn fail_pin(&self, nth: u64) {
        self.world.lock().fail_pin.set(nth);
    }

    /// Makes the n-th copy that runs fail, which fails its stream for good.
    pub fn fail_copy(&self, nth: u64) {
        self.world.lock().fail_copy.set(nth);
    }

    /// Makes the n-th copy that is enqueued be refused by the call.
    pub fn refuse_copy(&self, nth: u64) {
        self.world.lock().refuse_copy.set(nth);
    }

    /// Makes the n-th wait for a whole device fail for a reason of its own: nothing has run, and nothing is known.
    pub fn fail_device_wait(&self, nth: u64) {
        self.world.lock().fail_wait.set(nth);
    }

    /// Loses the devices: nothing enqueued runs any more, and every call says so.
    pub fn lose_device(&self) {
        self.world.lock().lose();
        self.world.changed.notify_all();
    }

    /// What the stream answers when it is asked whether it is captured.
    pub fn set_capture(&self, stream: FakeStream, capture: CaptureState) {
        if let Some(stream) = self.world.lock().streams.get_mut(stream.0) {
            stream.capture = Some(capture);
        }
    }

    /// Backend objects that have not been dropped.
    #[must_use]
    pub fn live(&self) -> Live {
        self.world.lock().live
    }

    /// What was done wrong so far. Empty in every sound test.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        self.world.lock().violations.clone()
    }

    /// Host memory whose life is watched, holding these bytes.
    #[must_use]
    pub fn source(&self, bytes: Vec<u8>) -> FakeSource {
        FakeSource::new(Arc::clone(&self.world), bytes)
    }

    /// Device memory as it is now, waiting for nothing; empty if the range leaves the segment.
    #[must_use]
    pub fn peek(&self, segment: &Segment, offset: usize, len: usize) -> Vec<u8> {
        let Some(handle) = segment.buffer().downcast::<BufferHandle>() else { return Vec::new() };
        let state = self.world.lock();
        let end = offset.saturating_add(len);
        state.memories[handle.memory].bytes.get(offset..end).map_or_else(Vec::new, <[u8]>::to_vec)
    }
}
