//! Lanes: a command queue, its timeline, the open command buffer, and those that were committed.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use spoc_driver::{Error, ErrorKind, Result};

use super::api::{Api, Progress, Run};
use super::rule::{self, Commit};
use crate::sync::lock;

/// A queue in order. Every command buffer raises the timeline by one.
pub(super) struct Lane<A: Api> {
    api: Arc<A>,
    queue: A::Queue,
    timeline: A::Timeline,
    batch_max: usize,
    state: Mutex<State<A>>,
    /// Newest value that was given out: of the open command buffer, if there is one.
    promised: AtomicU64,
    /// Why a command buffer failed: from then on the lane does nothing.
    failure: OnceLock<Error>,
}

struct State<A: Api> {
    open: Option<Open<A>>,
    /// In the order of their values; what has completed goes.
    committed: VecDeque<(u64, Arc<A::Commands>)>,
    newest: u64,
    completed: u64,
}

struct Open<A: Api> {
    commands: A::Commands,
    launches: usize,
}

/// A point that a lane reaches.
pub(super) struct Point<A: Api> {
    pub(super) lane: Arc<Lane<A>>,
    pub(super) value: u64,
}

impl<A: Api> Clone for Point<A> {
    fn clone(&self) -> Self {
        Self { lane: Arc::clone(&self.lane), value: self.value }
    }
}

impl<A: Api> Point<A> {
    pub(super) fn is_reached(&self) -> Result<bool> {
        self.lane.is_reached(self.value)
    }

    pub(super) fn wait(&self) -> Result<()> {
        self.lane.wait(self.value)
    }
}

impl<A: Api> Lane<A> {
    pub(super) fn new(api: &Arc<A>, device: &A::Device, batch_max: usize) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            api: Arc::clone(api),
            queue: api.queue(device)?,
            timeline: api.timeline(device)?,
            batch_max: batch_max.max(1),
            state: Mutex::new(State { open: None, committed: VecDeque::new(), newest: 0, completed: 0 }),
            promised: AtomicU64::new(0),
            failure: OnceLock::new(),
        }))
    }

    /// Refuses work once a command buffer has failed.
    pub(super) fn check(&self) -> Result<()> {
        self.failure.get().map_or(Ok(()), |failure| Err(failure.clone()))
    }

    /// The newest value that was given out.
    pub(super) fn promised(&self) -> u64 {
        self.promised.load(Ordering::Acquire)
    }

    /// Encodes a launch behind the points; answers the value that it has run at.
    pub(super) fn launch(&self, waits: &[Point<A>], run: &Run<'_, A>) -> Result<u64> {
        self.check()?;
        // Before this lane's lock: a wait may only be for what has been committed, and that takes the other's.
        for point in waits {
            point.lane.commit()?;
        }
        let mut state = lock(&self.state);
        if state.open.is_none() {
            state.open = Some(Open { commands: self.api.begin(&self.queue)?, launches: 0 });
        }
        let value = state.newest + 1;
        let Some(open) = &mut state.open else { return Ok(value) };
        for point in waits {
            self.api.encode_wait(&open.commands, &point.lane.timeline, point.value);
        }
        self.api.encode_run(&open.commands, run)?;
        open.launches += 1;
        let launches = open.launches;
        self.promised.store(value, Ordering::Release);
        let is_previous_over = self.reap(&mut state);
        if rule::after_launch(launches, self.batch_max, is_previous_over) != Commit::NotYet {
            self.commit_locked(&mut state);
        }
        Ok(value)
    }

    /// Commits the open command buffer, if there is one.
    pub(super) fn commit(&self) -> Result<()> {
        self.check()?;
        self.commit_locked(&mut lock(&self.state));
        Ok(())
    }

    fn commit_locked(&self, state: &mut State<A>) {
        let Some(Open { commands, .. }) = state.open.take() else { return };
        state.newest += 1;
        self.api.encode_signal(&commands, &self.timeline, state.newest);
        self.api.commit(&commands);
        state.committed.push_back((state.newest, Arc::new(commands)));
    }

    /// Lets go of what has ended; answers whether that is everything.
    fn reap(&self, state: &mut State<A>) -> bool {
        while let Some((value, commands)) = state.committed.front() {
            match self.api.progress(commands) {
                Progress::Running => return false,
                Progress::Completed => {}
                Progress::Failed(because) => {
                    let error = Error::new(ErrorKind::AsyncFailure, "running a Metal command buffer");
                    self.failure.get_or_init(|| error.with("because", because));
                    // It raised nothing, and other lanes may be waiting.
                    self.api.signal(&self.timeline, *value);
                }
            }
            state.completed = *value;
            state.committed.pop_front();
        }
        true
    }

    /// Whether a value has been reached. Commits what it takes.
    ///
    /// # Errors
    /// `AsyncFailure` if a command buffer failed.
    pub(super) fn is_reached(&self, value: u64) -> Result<bool> {
        let mut state = lock(&self.state);
        if value > state.newest {
            self.commit_locked(&mut state);
        }
        self.reap(&mut state);
        let is_reached = state.completed >= value;
        drop(state);
        self.check()?;
        Ok(is_reached)
    }

    /// Waits for a value on the host.
    ///
    /// # Errors
    /// As [`Lane::is_reached`].
    pub(super) fn wait(&self, value: u64) -> Result<()> {
        while !self.is_reached(value)? {
            let commands = {
                let state = lock(&self.state);
                let pending = state.committed.iter().find(|(known, _)| *known >= value);
                pending.map(|(_, commands)| Arc::clone(commands))
            };
            if let Some(commands) = commands {
                self.api.wait(&commands);
            }
        }
        Ok(())
    }
}

impl<A: Api> Drop for Lane<A> {
    fn drop(&mut self) {
        // What was enqueued was promised to run.
        let mut state = lock(&self.state);
        self.commit_locked(&mut state);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::super::double::{Double, Timeline};
    use super::super::pending::Pending;
    use super::*;
    use crate::kernel::library::Module;

    /// A lane whose device is busy until the gate is raised to 1; batches of three.
    fn busy() -> (Arc<Double>, Arc<Lane<Double>>, Timeline) {
        let api = Arc::new(Double::new());
        let lane = Lane::new(&api, &(), 3).unwrap();
        let gate = api.timeline(&()).unwrap();
        let commands = api.begin(&lane.queue).unwrap();
        api.encode_wait(&commands, &gate, 1);
        lock(&lane.state).open = Some(Open { commands, launches: 0 });
        lane.promised.store(1, Ordering::Release);
        lane.commit().unwrap();
        (api, lane, gate)
    }

    fn launch(lane: &Lane<Double>) -> u64 {
        let module = Arc::new(Module::new("@compute @workgroup_size(1) fn f() {}", "f").unwrap());
        let (vectors, scalars, sizes) = (&[][..], (0, &[][..]), (1, &[][..]));
        let run = Run { pipeline: &module, vectors, scalars, sizes, groups: [1; 3], group: [1; 3] };
        lane.launch(&[], &run).unwrap()
    }

    /// Command buffers that were committed and have not ended, and launches in the open one.
    fn state(lane: &Lane<Double>) -> (usize, usize) {
        let state = lock(&lane.state);
        (state.committed.len(), state.open.as_ref().map_or(0, |open| open.launches))
    }

    #[test]
    fn rule_29_a_batch_is_committed_when_the_device_is_idle_or_when_it_is_full() {
        let (api, lane, gate) = busy();
        assert_eq!((launch(&lane), state(&lane)), (2, (1, 1)));
        assert_eq!((launch(&lane), state(&lane)), (2, (1, 2)));
        assert_eq!((launch(&lane), state(&lane)), (2, (2, 0)), "the third fills it");
        assert_eq!((launch(&lane), state(&lane)), (3, (2, 1)));
        assert!(!lane.is_reached(3).unwrap(), "asking commits it");
        assert_eq!(state(&lane), (3, 0));
        api.signal(&gate, 1);
        lane.wait(3).unwrap();
        assert_eq!((launch(&lane), state(&lane).1), (4, 0), "an idle device is fed at once");
        lane.wait(4).unwrap();
    }

    #[test]
    fn rule_29_the_host_waits_for_what_binds_the_memory_and_for_nothing_else() {
        let (api, lane, gate) = busy();
        let pending = Pending::default();
        let value = launch(&lane);
        pending.bind(7, &lane, value);
        pending.settle(8).unwrap();
        let (done, answer) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| done.send(pending.settle(7)).unwrap());
            let early = answer.recv_timeout(Duration::from_millis(20));
            assert!(early.is_err(), "the host did not wait for the launch that binds the memory");
            api.signal(&gate, 1);
            answer.recv().unwrap().unwrap();
        });
        assert!(lane.is_reached(value).unwrap());
        pending.settle(7).unwrap();
    }

    #[test]
    fn a_command_buffer_that_fails_is_told_to_whoever_asks_and_keeps_no_other_lane_waiting() {
        let (api, lane, gate) = busy();
        let outside = "@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@compute @workgroup_size(1) fn f() { x[0] = 1u; }";
        let module = Arc::new(Module::new(outside, "f").unwrap());
        let (vectors, scalars, sizes) = (&[][..], (0, &[][..]), (1, &[][..]));
        let run = Run { pipeline: &module, vectors, scalars, sizes, groups: [1; 3], group: [1; 3] };
        let value = lane.launch(&[], &run).unwrap();
        let other = Lane::new(&api, &(), 3).unwrap();
        let point = Point { lane: Arc::clone(&lane), value };
        let fine = Arc::new(Module::new("@compute @workgroup_size(1) fn f() {}", "f").unwrap());
        let behind = other.launch(&[point], &Run { pipeline: &fine, ..run }).unwrap();
        api.signal(&gate, 1);
        let error = lane.wait(value).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::AsyncFailure, "{error}");
        other.wait(behind).unwrap();
        assert!(lane.check().is_err(), "a failed lane does nothing more");
    }
}
