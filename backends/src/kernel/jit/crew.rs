//! Threads that help with launches: started when first wanted, asleep between, ended with their owner.
//!
//! Whoever launches works as well, and waits for nobody but those that joined in. So a process forked from this one, which
//! has none of its threads, runs its launches alone.

use std::any::Any;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::sync::lock;

/// The helpers of a backend: one fewer than there are cores.
#[derive(Debug)]
pub(crate) struct Crew {
    shared: Arc<Shared>,
    helpers: Mutex<Vec<JoinHandle<()>>>,
    size: usize,
    /// The process that the helpers are of.
    process: u32,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    has_work: Condvar,
    has_left: Condvar,
}

#[derive(Debug, Default)]
struct State {
    jobs: Vec<Job>,
    next: u64,
    is_closed: bool,
}

#[derive(Debug)]
struct Job {
    number: u64,
    work: Work,
    /// How many more may join in, and how many are at it.
    places: usize,
    inside: usize,
    panic: Option<Box<dyn Any + Send>>,
}

/// Work of somebody who does not go before all have left it.
#[derive(Clone, Copy)]
struct Work(*const (dyn Fn() + Sync));

// SAFETY: what it points to is Sync, and is there as long as the job is listed or somebody is inside.
unsafe impl Send for Work {}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Work")
    }
}

impl Default for Crew {
    fn default() -> Self {
        Self::new(std::thread::available_parallelism().map_or(1, NonZero::get) - 1)
    }
}

impl Crew {
    /// At most so many helpers.
    pub(crate) fn new(size: usize) -> Self {
        Self { shared: Arc::default(), helpers: Mutex::default(), size, process: std::process::id() }
    }

    /// How many may help at once.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Does the work, with up to so many helpers that do it as well; returns when none is at it any more. A panic of
    /// theirs goes on here.
    pub(crate) fn run(&self, helpers: usize, work: &(dyn Fn() + Sync)) {
        let helpers = helpers.min(self.size);
        if helpers == 0 || self.process != std::process::id() || !self.wake_up(helpers) {
            return work();
        }
        let work_of_all: *const (dyn Fn() + Sync + '_) = work;
        // SAFETY: only the lifetime changes; `Listed` takes the job off the list, and waits for those inside, before
        // this function ends in any way.
        let work_of_all = unsafe {
            std::mem::transmute::<*const (dyn Fn() + Sync + '_), *const (dyn Fn() + Sync + 'static)>(
                work_of_all,
            )
        };
        let mut listed = Listed::new(&self.shared, helpers, Work(work_of_all));
        work();
        let panic = listed.leave();
        drop(listed);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Starts helpers that are missing; answers whether there is one.
    fn wake_up(&self, wanted: usize) -> bool {
        let mut helpers = lock(&self.helpers);
        while helpers.len() < wanted {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().name("spoc-kernel".to_owned());
            // Where no thread can be had, those that are there do the work.
            match thread.spawn(move || shared.help()) {
                Ok(helper) => helpers.push(helper),
                Err(error) => {
                    tracing::debug!(%error, "no thread to help with kernels");
                    break;
                }
            }
        }
        !helpers.is_empty()
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        let helpers = std::mem::take(&mut *self.helpers.get_mut().unwrap_or_else(PoisonError::into_inner));
        // A fork has only their names.
        if self.process != std::process::id() {
            return;
        }
        lock(&self.shared.state).is_closed = true;
        self.shared.has_work.notify_all();
        for helper in helpers {
            if helper.join().is_err() {
                tracing::error!("a helper with kernels panicked");
            }
        }
    }
}

/// A job on the list; off it, and left by all, when dropped.
struct Listed<'s> {
    shared: &'s Shared,
    number: u64,
}

impl<'s> Listed<'s> {
    fn new(shared: &'s Shared, places: usize, work: Work) -> Self {
        let mut state = lock(&shared.state);
        let number = state.next;
        state.next += 1;
        state.jobs.push(Job { number, work, places, inside: 0, panic: None });
        drop(state);
        for _ in 0..places {
            shared.has_work.notify_one();
        }
        Self { shared, number }
    }

    fn leave(&mut self) -> Option<Box<dyn Any + Send>> {
        let mut state = lock(&self.shared.state);
        loop {
            let place = state.jobs.iter().position(|job| job.number == self.number)?;
            state.jobs[place].places = 0;
            if state.jobs[place].inside == 0 {
                return state.jobs.swap_remove(place).panic;
            }
            state = self.shared.has_left.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Shared {
    /// A helper's life.
    fn help(&self) {
        let mut state = lock(&self.state);
        loop {
            let Some(job) = state.jobs.iter_mut().find(|job| job.places > 0) else {
                if state.is_closed {
                    return;
                }
                state = self.has_work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            job.places -= 1;
            job.inside += 1;
            let (number, work) = (job.number, job.work);
            drop(state);
            // SAFETY: the job was listed, and this helper is counted inside, so its owner waits in `Listed::leave`.
            let outcome = catch_unwind(AssertUnwindSafe(|| unsafe { (*work.0)() }));
            state = lock(&self.state);
            if let Some(job) = state.jobs.iter_mut().find(|job| job.number == number) {
                job.inside -= 1;
                job.panic = job.panic.take().or(outcome.err());
            }
            self.has_left.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn helpers_come_when_wanted_and_stay() {
        let crew = Crew::new(2);
        for _ in 0..20 {
            // Three that wait for each other: so there are three.
            let (all, count) = (Barrier::new(3), AtomicUsize::new(0));
            crew.run(2, &|| {
                all.wait();
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.into_inner(), 3);
        }
        assert_eq!(lock(&crew.helpers).len(), 2);
        assert!(lock(&crew.shared.state).jobs.is_empty());
    }

    #[test]
    fn many_may_launch_at_once() {
        let (crew, count) = (Crew::new(3), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
                        crew.run(3, &|| {
                            while next.fetch_add(1, Ordering::Relaxed) < 10 {
                                done.fetch_add(1, Ordering::Relaxed);
                            }
                        });
                        assert_eq!(done.into_inner(), 10);
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 800);
    }

    #[test]
    fn a_panic_reaches_the_launch_and_the_crew_goes_on() {
        let (crew, both) = (Crew::new(1), Barrier::new(2));
        let caller = std::thread::current().id();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            crew.run(1, &|| {
                both.wait();
                assert_eq!(std::thread::current().id(), caller, "not here");
            });
        }));
        assert!(outcome.is_err());
        crew.run(1, &|| _ = both.wait());
    }

    /// The fork has no helpers: it works alone, and does not wait for them when it is done.
    #[test]
    fn a_fork_works_alone() {
        let crew = Crew::new(1);
        let both = Barrier::new(2);
        crew.run(1, &|| _ = both.wait());
        // SAFETY: the child calls what needs no other thread of this process, and leaves without cleaning up.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let count = AtomicUsize::new(0);
            crew.run(1, &|| _ = count.fetch_add(1, Ordering::Relaxed));
            drop(crew);
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(count.into_inner() != 1)) };
        }
        let mut status = -1;
        // SAFETY: the child is this test's, and the place is valid.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}
