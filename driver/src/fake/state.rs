//! The fake machine: memory, streams, and what goes wrong in it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::PoisonError;
use std::time::Duration;

use super::FakeOptions;
use super::control::{Live, Step};
use super::ops::{Mark, MemoryId, Op, Place};
use crate::backend::CaptureState;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::util::lock;

/// What freed memory is filled with.
pub(super) const POISON: u8 = 0xDB;
/// A blocked host wait that nobody serves for so long is a violation, and then runs the work itself.
const PATIENCE: Duration = Duration::from_secs(20);
/// Where fake device addresses begin: no host memory lies there.
const FIRST_ADDRESS: u64 = 0x7f00_0000_0000_0000;

/// What a host wait does about work that has not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitMode {
    /// Blocks until the test lets the work run: for tests with more than one thread.
    Block,
    /// Runs the work that is waited for: for tests with one thread.
    Drive,
}

/// The state and who waits for it to change.
pub(super) struct World {
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
}

pub(super) struct State {
    pub(super) options: FakeOptions,
    pub(super) wait_mode: WaitMode,
    pub(super) is_lost: bool,
    pub(super) streams: Vec<StreamState>,
    pub(super) memories: Vec<Memory>,
    /// Tracked host memory by first address; the bytes live as long as the world.
    pub(super) sources: BTreeMap<usize, Source>,
    pub(super) violations: Vec<String>,
    pub(super) live: Live,
    pub(super) fail_allocation: Countdown,
    pub(super) fail_pin: Countdown,
    pub(super) fail_copy: Countdown,
    pub(super) refuse_copy: Countdown,
    pub(super) fail_wait: Countdown,
    pub(super) blocked_threads: usize,
    next_address: u64,
}

#[derive(Default)]
pub(super) struct StreamState {
    pub(super) device: u32,
    pub(super) is_blocking: bool,
    pub(super) queue: VecDeque<Op>,
    pub(super) submitted: u64,
    pub(super) completed: u64,
    /// The position of the first failure.
    pub(super) failed_at: Option<u64>,
    pub(super) capture: Option<CaptureState>,
}

pub(super) struct Memory {
    pub(super) bytes: Vec<u8>,
    pub(super) address: u64,
    pub(super) device: u32,
    pub(super) is_freed: bool,
}

pub(super) struct Source {
    pub(super) bytes: Box<[u8]>,
    pub(super) is_dropped: bool,
}

/// Fires at the n-th time from now, once.
#[derive(Default)]
pub(super) struct Countdown(Option<u64>);

impl Countdown {
    pub(super) fn set(&mut self, nth: u64) {
        self.0 = Some(nth.max(1));
    }

    pub(super) fn fires(&mut self) -> bool {
        self.0 = self.0.map(|left| left - 1);
        if self.0 == Some(0) {
            self.0 = None;
            return true;
        }
        false
    }
}

impl World {
    pub(super) fn new(options: FakeOptions) -> Self {
        let default_of = |device| StreamState { device, is_blocking: true, ..StreamState::default() };
        let state = State {
            wait_mode: options.wait_mode,
            is_lost: false,
            streams: (0..options.devices).map(default_of).collect(),
            memories: Vec::new(),
            sources: BTreeMap::new(),
            violations: Vec::new(),
            live: Live::default(),
            fail_allocation: Countdown::default(),
            fail_pin: Countdown::default(),
            fail_copy: Countdown::default(),
            refuse_copy: Countdown::default(),
            fail_wait: Countdown::default(),
            blocked_threads: 0,
            next_address: FIRST_ADDRESS,
            options,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Waits on the host until all the marks are reached, or the device is lost.
    pub(super) fn wait_for(&self, marks: &[Mark]) {
        let mut state = self.lock();
        while !state.are_reached(marks) {
            if state.wait_mode == WaitMode::Block {
                state.blocked_threads += 1;
                let waited = self.changed.wait_timeout(state, PATIENCE);
                let timeout;
                (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                state.blocked_threads -= 1;
                if !timeout.timed_out() {
                    continue;
                }
                state.violations.push("a host wait was not served".to_owned());
            }
            if !marks.iter().all(|mark| state.drive_to(*mark)) {
                state.violations.push("a host wait is for work that can never run".to_owned());
                state.abandon(marks);
            }
            self.changed.notify_all();
        }
    }
}

impl State {
    pub(super) fn violate(&mut self, what: impl Into<String>) {
        self.violations.push(what.into());
    }

    /// Frees device memory: poisoned and kept, so that a late use is found.
    pub(super) fn free(&mut self, memory: MemoryId) {
        if !self.is_lost && self.pending().any(|op| op.uses_memory(memory)) {
            self.violate("device memory was freed while enqueued work needs it");
        }
        self.live.segments -= 1;
        let memory = &mut self.memories[memory];
        memory.is_freed = true;
        memory.bytes.fill(POISON);
    }

    /// Notes that tracked host memory is dropped; likewise poisoned and kept.
    pub(super) fn drop_source(&mut self, start: usize) {
        if !self.is_lost && self.pending().any(|op| op.uses_host(start)) {
            self.violate("host memory was dropped while enqueued work needs it");
        }
        if let Some(source) = self.sources.get_mut(&start) {
            source.is_dropped = true;
            source.bytes.fill(POISON);
        }
    }

    fn pending(&self) -> impl Iterator<Item = &Op> {
        self.streams.iter().flat_map(|stream| &stream.queue)
    }

    pub(super) fn next_address(&mut self, len: u64) -> u64 {
        let align = self.options.limits.address_align_bytes.max(1);
        let address = self.next_address.next_multiple_of(align);
        // A gap, so that neighbours are never contiguous by chance.
        self.next_address = address + len + align;
        address
    }

    pub(super) fn check_lost(&self, doing: &'static str) -> Result<()> {
        if self.is_lost { Err(Error::new(ErrorKind::DeviceLost, doing)) } else { Ok(()) }
    }

    pub(super) fn mark_of(&self, stream: usize) -> Mark {
        Mark { stream, position: self.streams[stream].submitted }
    }

    pub(super) fn is_reached(&self, mark: Mark) -> bool {
        self.is_lost || self.streams[mark.stream].completed >= mark.position
    }

    fn are_reached(&self, marks: &[Mark]) -> bool {
        marks.iter().all(|mark| self.is_reached(*mark))
    }

    /// Whether work up to the mark has failed.
    pub(super) fn check_failed(&self, mark: Mark, doing: &'static str) -> Result<()> {
        self.check_lost(doing)?;
        match self.streams[mark.stream].failed_at {
            Some(at) if at <= mark.position => Err(Error::new(ErrorKind::AsyncFailure, doing)),
            _ => Ok(()),
        }
    }

    /// Runs the oldest operation of a stream, if nothing blocks it.
    pub(super) fn step(&mut self, stream: usize) -> Step {
        let Some(op) = self.streams[stream].queue.front() else { return Step::Idle };
        if self.is_blocked(op) {
            return Step::Blocked;
        }
        let Some(op) = self.streams[stream].queue.pop_front() else { return Step::Idle };
        let position = self.streams[stream].completed + 1;
        // A failed stream runs nothing more: what follows would work on garbage.
        if !self.is_lost && self.streams[stream].failed_at.is_none() {
            let injected = op.is_copy() && self.fail_copy.fires();
            if injected || self.depends_on_failure(&op) || !self.run(op) {
                self.streams[stream].failed_at = Some(position);
            }
        }
        self.streams[stream].completed = position;
        Step::Ran
    }

    fn is_blocked(&self, op: &Op) -> bool {
        match op {
            Op::WaitMark(mark) => !self.is_reached(*mark),
            Op::WaitValue { src, value } => self.word(*src).is_some_and(|word| word < *value),
            _ => false,
        }
    }

    /// Whether it waited for work that failed: what comes after it would work on garbage.
    fn depends_on_failure(&self, op: &Op) -> bool {
        matches!(op, Op::WaitMark(mark) if self.check_failed(*mark, "waiting for an event").is_err())
    }

    fn word(&self, place: Place) -> Option<u64> {
        let bytes = self.memories[place.memory].bytes.get(place.offset..place.offset + 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    /// Runs streams as far as the mark needs. False if that is not possible.
    pub(super) fn drive_to(&mut self, mark: Mark) -> bool {
        while !self.is_reached(mark) {
            match self.step(mark.stream) {
                Step::Ran => {}
                Step::Idle => return false,
                Step::Blocked => {
                    let is_freed = match self.streams[mark.stream].queue.front() {
                        Some(Op::WaitMark(other)) => {
                            let other = *other;
                            self.drive_to(other)
                        }
                        // A word: somebody else's stream may write it.
                        _ => self.step_any_but(mark.stream),
                    };
                    if !is_freed {
                        return false;
                    }
                }
            }
        }
        true
    }

    fn step_any_but(&mut self, stream: usize) -> bool {
        let others = (0..self.streams.len()).filter(|other| *other != stream);
        others.into_iter().any(|other| self.step(other) == Step::Ran)
    }

    /// Runs everything that can run. Answers how many operations did.
    pub(super) fn run_all(&mut self) -> usize {
        let mut ran = 0;
        loop {
            let before = ran;
            for stream in 0..self.streams.len() {
                while self.step(stream) == Step::Ran {
                    ran += 1;
                }
            }
            if ran == before {
                return ran;
            }
        }
    }

    /// Gives up on work that can never run, so that the test ends.
    fn abandon(&mut self, marks: &[Mark]) {
        for mark in marks {
            let stream = &mut self.streams[mark.stream];
            stream.failed_at.get_or_insert(stream.completed + 1);
            stream.completed = stream.submitted;
            stream.queue.clear();
        }
    }

    /// Loses the device: nothing enqueued runs any more.
    pub(super) fn lose(&mut self) {
        self.is_lost = true;
        for stream in &mut self.streams {
            stream.completed = stream.submitted;
            stream.queue.clear();
        }
    }

    /// Runs one operation; false if it failed.
    fn run(&mut self, op: Op) -> bool {
        match op {
            Op::CopyIn { src, dst, seen } => self.copy_in(src, dst, &seen),
            Op::CopyOut { src, dst } => self.copy_out(src, dst),
            Op::CopyOn { src, dst } => match self.bytes(src, "a copy reads").map(|bytes| bytes.to_vec()) {
                Some(bytes) => self.store(dst, &bytes),
                None => false,
            },
            Op::Fill { dst, value } => match self.bytes(dst, "a fill writes") {
                Some(bytes) => {
                    bytes.fill(value);
                    true
                }
                None => false,
            },
            Op::Write { dst, value } => self.store(dst, &value.to_le_bytes()),
            Op::WaitValue { .. } | Op::WaitMark(_) => true,
        }
    }

    fn copy_in(&mut self, src: *const u8, dst: Place, seen: &[u8]) -> bool {
        if self.is_dropped(src.addr()) {
            self.violate("a source was dropped before its copy ran");
            return false;
        }
        // SAFETY: the driver promises that the source is valid until its copy has run. A tracked source that
        // broke the promise was noticed just above, and its memory lives as long as the world anyway.
        let bytes = unsafe { std::slice::from_raw_parts(src, dst.len) };
        if bytes != seen {
            self.violate("a source changed between submission and copy");
        }
        self.store(dst, bytes)
    }

    fn copy_out(&mut self, src: Place, dst: *mut u8) -> bool {
        if self.is_dropped(dst.addr()) {
            self.violate("a destination was dropped before its copy ran");
            return false;
        }
        let Some(bytes) = self.bytes(src, "a copy reads") else { return false };
        // SAFETY: the driver promises that the destination is valid, and nobody else's, until the copy ran.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), dst, src.len) };
        true
    }

    fn is_dropped(&self, address: usize) -> bool {
        let below = self.sources.range(..=address).next_back();
        below.is_some_and(|(start, source)| source.is_dropped && address < start + source.bytes.len())
    }

    fn store(&mut self, dst: Place, bytes: &[u8]) -> bool {
        match self.bytes(dst, "a copy writes") {
            Some(place) => {
                place.copy_from_slice(bytes);
                true
            }
            None => false,
        }
    }

    /// The bytes of a place, unless its memory was freed too early.
    fn bytes(&mut self, place: Place, who: &str) -> Option<&mut [u8]> {
        if self.memories[place.memory].is_freed {
            self.violate(format!("{who} device memory that was freed"));
            return None;
        }
        self.memories[place.memory].bytes.get_mut(place.offset..place.offset + place.len)
    }
}
