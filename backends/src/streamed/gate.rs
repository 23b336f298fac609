//! Keeps calls that wait for the device apart from streams that wait for words.
//!
//! While the API waits for the device in one call (freeing, unregistering, loading code), other threads' calls are
//! not made. If a stream waits for a word then, and the word is to be written by one of those calls, nothing goes on
//! any more. So such a call is made only when no stream of the context waits for a word, and no wait is enqueued
//! while one is made. That holds for all openings of a device by one backend, which share its context; what other
//! libraries enqueue is not known here.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use spoc_driver::Result;

use crate::sync::lock;

/// What tells whether a stream has come past the words that it was made to wait for.
pub(crate) trait Passing: Send + Sync {
    /// Whether it has. What cannot be asked is nothing to wait for.
    fn is_past(&self) -> bool;
}

/// One a context.
pub(crate) struct Gate<P> {
    state: Mutex<State<P>>,
    changed: Condvar,
}

struct State<P> {
    /// Calls under way that wait for the device.
    blocking: usize,
    /// Waits for words that are being enqueued.
    entering: usize,
    /// The latest wait of each stream.
    waits: Vec<Weak<P>>,
    /// Those of streams that are gone: their work goes on.
    orphans: Vec<Arc<P>>,
}

impl<P> Default for Gate<P> {
    fn default() -> Self {
        let state = State { blocking: 0, entering: 0, waits: Vec::new(), orphans: Vec::new() };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }
}

/// How often a stream is asked whether its word has come.
const PAUSE: Duration = Duration::from_micros(500);

impl<P: Passing> Gate<P> {
    /// Enqueues a wait for a word, and whatever makes `passing` tell when it is over.
    pub(crate) fn wait(&self, passing: &Arc<P>, enqueue: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut state = lock(&self.state);
        while state.blocking > 0 {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.entering += 1;
        drop(state);
        // Outside the lock: a full stream holds its caller until it has room.
        let entered = Entered(self, passing);
        let outcome = enqueue();
        drop(entered);
        outcome
    }

    /// Takes over the wait of a stream that ends.
    pub(crate) fn orphan(&self, passing: Arc<P>) {
        if !passing.is_past() {
            lock(&self.state).orphans.push(passing);
        }
    }

    /// Leave to make a call that waits for the device, if no stream waits for a word.
    pub(crate) fn try_block(&self) -> Option<Blocking<'_, P>> {
        let mut state = lock(&self.state);
        state.is_open().then(|| self.begin(&mut state))
    }

    /// As [`Gate::try_block`], as soon as it is so. With no leave after the patience, which is said: the caller
    /// may be the one that everybody waits for.
    pub(crate) fn block(&self, doing: &'static str, patience: Duration) -> Blocking<'_, P> {
        let deadline = Instant::now() + patience;
        let mut state = lock(&self.state);
        while !state.is_open() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                tracing::warn!(doing, "a stream waits for a word all the while: the call is made beside it");
                break;
            }
            state = self.sleep(state, left.min(PAUSE));
        }
        self.begin(&mut state)
    }

    fn sleep<'a>(&self, state: MutexGuard<'a, State<P>>, time: Duration) -> MutexGuard<'a, State<P>> {
        self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
    }

    fn begin(&self, state: &mut State<P>) -> Blocking<'_, P> {
        state.blocking += 1;
        Blocking(self)
    }
}

impl<P: Passing> State<P> {
    /// Whether no stream waits for a word, as far as is known.
    fn is_open(&mut self) -> bool {
        self.waits.retain(|wait| wait.upgrade().is_some_and(|wait| !wait.is_past()));
        self.orphans.retain(|wait| !wait.is_past());
        self.entering == 0 && self.waits.is_empty() && self.orphans.is_empty()
    }
}

/// A wait that is being enqueued.
struct Entered<'a, P: Passing>(&'a Gate<P>, &'a Arc<P>);

impl<P: Passing> Drop for Entered<'_, P> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.entering -= 1;
        let new = Arc::downgrade(self.1);
        // Found anew each time, so that streams that wait often do not fill the list.
        if !state.waits.iter().any(|known| known.ptr_eq(&new)) {
            state.waits.push(new);
        }
        drop(state);
        self.0.changed.notify_all();
    }
}

/// A call that waits for the device may be made, until this is dropped.
pub(crate) struct Blocking<'a, P>(&'a Gate<P>);

impl<P> Drop for Blocking<'_, P> {
    fn drop(&mut self) {
        lock(&self.0.state).blocking -= 1;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[derive(Default)]
    struct Word(AtomicBool);

    impl Word {
        fn come(&self) {
            self.0.store(true, Ordering::Release);
        }
    }

    impl Passing for Word {
        fn is_past(&self) -> bool {
            self.0.load(Ordering::Acquire)
        }
    }

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn no_call_blocks_while_a_stream_waits_for_a_word() {
        let (gate, first, second) = (Gate::default(), Arc::new(Word::default()), Arc::new(Word::default()));
        assert!(gate.try_block().is_some());
        gate.wait(&first, || Ok(())).unwrap();
        gate.wait(&second, || Ok(())).unwrap();
        assert!(gate.try_block().is_none());
        first.come();
        assert!(gate.try_block().is_none());
        thread::scope(|scope| {
            let blocked = scope.spawn(|| drop(gate.block("freeing", LONG)));
            thread::sleep(SHORT);
            assert!(!blocked.is_finished());
            second.come();
            blocked.join().unwrap();
        });
        assert!(gate.try_block().is_some());
    }

    #[test]
    fn no_wait_is_enqueued_while_a_call_blocks() {
        let (gate, word) = (Gate::default(), Arc::new(Word::default()));
        let blocking = gate.try_block().unwrap();
        let another = gate.block("loading", LONG);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.wait(&word, || Ok(())).unwrap());
            drop(another);
            thread::sleep(SHORT);
            assert!(!waiting.is_finished());
            drop(blocking);
            waiting.join().unwrap();
        });
        assert!(gate.try_block().is_none());
    }

    #[test]
    fn a_wait_that_is_refused_is_none_once_its_stream_says_so() {
        let (gate, word) = (Gate::default(), Arc::new(Word::default()));
        let refused = spoc_driver::Error::new(spoc_driver::ErrorKind::InvalidArgument, "waiting");
        gate.wait(&word, || Err(refused)).unwrap_err();
        word.come();
        assert!(gate.try_block().is_some());
    }

    #[test]
    fn the_wait_of_a_stream_that_is_gone_counts_until_it_is_over() {
        let (gate, word) = (Gate::default(), Arc::new(Word::default()));
        gate.wait(&word, || Ok(())).unwrap();
        let kept = Arc::clone(&word);
        gate.orphan(word);
        assert!(gate.try_block().is_none());
        kept.come();
        assert!(gate.try_block().is_some());
    }

    #[test]
    fn patience_ends() {
        let (gate, word) = (Gate::default(), Arc::new(Word::default()));
        gate.wait(&word, || Ok(())).unwrap();
        drop(gate.block("loading", SHORT));
        assert!(gate.try_block().is_none(), "the word has still not come");
    }
}
