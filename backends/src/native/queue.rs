//! A stream's bounded queue of commands, and how far its thread has come.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use spoc_driver::{Error, ErrorKind, Result};

use crate::host_launch::HostLaunch;
pub(super) use crate::sync::lock;

/// Commands a stream holds before submitting waits. All room is made at the beginning.
const COMMANDS_MAX: usize = 1024;

/// One command. Pointers stay valid until it has run: the driver's ledger sees to it.
pub(super) enum Command {
    /// `len` bytes from one address to another, which do not overlap; over the link if one of them is the host's.
    Copy { from: *const u8, to: *mut u8, len: usize, over_link: bool },
    /// `len` bytes of one value.
    Fill { to: *mut u8, len: usize, value: u8 },
    /// A word, after everything before it.
    Write { to: *mut u64, value: u64 },
    /// A kernel.
    Launch(Box<HostLaunch>),
    /// Wait until another stream has come so far.
    Wait(Mark),
}

// SAFETY: the pointers are of memory that any thread may use; the ledger keeps it, streams order it.
unsafe impl Send for Command {}

/// A point in a stream.
#[derive(Clone)]
pub(super) struct Mark {
    pub(super) progress: Arc<Progress>,
    pub(super) position: u64,
}

impl Mark {
    fn is_reached(&self) -> bool {
        lock(&self.progress.state).completed >= self.position
    }

    /// Waits, and answers the failure of what came before, if something failed.
    pub(super) fn finish(&self) -> Result<()> {
        self.wait();
        self.outcome()
    }

    /// Whether it is reached; the failure of what came before, if something failed.
    pub(super) fn query(&self) -> Result<bool> {
        if self.is_reached() { self.outcome().map(|()| true) } else { Ok(false) }
    }

    fn outcome(&self) -> Result<()> {
        match &lock(&self.progress.state).failure {
            Some((at, error)) if *at <= self.position => {
                Err(Error::new(ErrorKind::AsyncFailure, "running a native stream").because(error.clone()))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn wait(&self) {
        let state = lock(&self.progress.state);
        let is_short = |state: &mut Come| state.completed < self.position;
        drop(self.progress.advanced.wait_while(state, is_short));
    }
}

/// How far a stream has come.
#[derive(Default)]
pub(super) struct Progress {
    state: Mutex<Come>,
    advanced: Condvar,
}

#[derive(Default)]
struct Come {
    /// How many commands are over.
    completed: u64,
    /// The first that failed, by its position, and why.
    failure: Option<(u64, Error)>,
}

/// The queue between a stream's users and its thread.
pub(super) struct Queue {
    state: Mutex<State>,
    has_work: Condvar,
    has_room: Condvar,
    progress: Arc<Progress>,
}

struct State {
    commands: VecDeque<Command>,
    submitted: u64,
    is_closed: bool,
}

impl Queue {
    pub(super) fn new() -> Self {
        let commands = VecDeque::with_capacity(COMMANDS_MAX);
        Self {
            state: Mutex::new(State { commands, submitted: 0, is_closed: false }),
            has_work: Condvar::new(),
            has_room: Condvar::new(),
            progress: Arc::default(),
        }
    }

    /// Appends commands, waiting for room where there is none.
    pub(super) fn push(&self, commands: impl IntoIterator<Item = Command>) {
        let mut state = lock(&self.state);
        for command in commands {
            while state.commands.len() >= COMMANDS_MAX {
                // The thread may be asleep: what was appended so far has not been announced.
                self.has_work.notify_one();
                state = self.has_room.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.commands.push_back(command);
            state.submitted += 1;
        }
        self.has_work.notify_one();
    }

    /// The point after everything appended so far.
    pub(super) fn mark(&self) -> Mark {
        Mark { progress: Arc::clone(&self.progress), position: lock(&self.state).submitted }
    }

    /// Lets the thread end once it has run everything.
    pub(super) fn close(&self) {
        lock(&self.state).is_closed = true;
        self.has_work.notify_one();
    }

    /// The thread's life: runs commands in order until the queue is closed and empty.
    /// A failed one runs nothing more, for what follows would work on garbage.
    pub(super) fn work(&self, run: impl Fn(Command) -> Result<()>) {
        let mut has_failed = false;
        while let Some(command) = self.next() {
            let outcome = if has_failed { Ok(()) } else { run(command) };
            let mut state = lock(&self.progress.state);
            state.completed += 1;
            if let Err(error) = outcome {
                has_failed = true;
                state.failure = Some((state.completed, error));
            }
            drop(state);
            self.progress.advanced.notify_all();
        }
    }

    fn next(&self) -> Option<Command> {
        let state = lock(&self.state);
        let is_idle = |state: &mut State| state.commands.is_empty() && !state.is_closed;
        let mut state = self.has_work.wait_while(state, is_idle).unwrap_or_else(PoisonError::into_inner);
        let was_full = state.commands.len() >= COMMANDS_MAX;
        let command = state.commands.pop_front();
        if was_full {
            self.has_room.notify_all();
        }
        command
    }
}
