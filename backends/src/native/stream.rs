//! Streams: a thread each, but for the default one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, JoinHandle};

use spoc_driver::{Error, ErrorKind, Result, StreamOptions};

use super::link::Link;
use super::queue::{Command, Mark, Queue, lock};
use crate::claims::{Claim, Claims};

/// A stream.
pub(super) enum Stream {
    /// Runs on the caller, after all blocking streams.
    Default(Arc<Streams>),
    /// Runs on its own thread.
    Own(Own),
}

/// The thread behind a stream, and its queue.
pub(super) struct Own {
    queue: Arc<Queue>,
    worker: Option<JoinHandle<()>>,
}

/// The streams of a device, as far as the default stream has to know.
#[derive(Default)]
pub(super) struct Streams {
    all: Mutex<Vec<Entry>>,
    /// One operation of the default stream at a time.
    default: Mutex<()>,
    /// Who works on which memory.
    claims: Arc<Claims>,
    /// What copies between host and device have to pass, if it has a rate.
    link: Option<Arc<Link>>,
    created: AtomicU64,
}

struct Entry {
    queue: Weak<Queue>,
    is_blocking: bool,
}

impl Streams {
    /// Of a device behind a link of this rate, bytes a second, beside others that work on the same memory.
    pub(super) fn behind(link: Option<u64>, claims: &Arc<Claims>) -> Self {
        let link = link.map(|rate| Arc::new(Link::new(rate)));
        Self { link, claims: Arc::clone(claims), ..Self::default() }
    }

    pub(super) fn create(&self, options: StreamOptions) -> Result<Stream> {
        let queue = Arc::new(Queue::new());
        let number = self.created.fetch_add(1, Ordering::Relaxed);
        let (works, claims, link) = (Arc::clone(&queue), Arc::clone(&self.claims), self.link.clone());
        let worker = thread::Builder::new()
            .name(format!("spoc-native-{number}"))
            .spawn(move || works.work(|command| run(command, &claims, link.as_deref())))
            .map_err(|error| Error::new(ErrorKind::Os, "starting a stream's thread").because(error))?;
        let mut all = lock(&self.all);
        all.retain(|entry| entry.queue.strong_count() > 0);
        all.push(Entry { queue: Arc::downgrade(&queue), is_blocking: !options.non_blocking });
        Ok(Stream::Own(Own { queue, worker: Some(worker) }))
    }

    /// Waits for what the chosen streams have been given so far.
    fn wait(&self, is_chosen: impl Fn(&Entry) -> bool) {
        let chosen: Vec<Arc<Queue>> = lock(&self.all)
            .iter()
            .filter(|entry| is_chosen(entry))
            .filter_map(|entry| entry.queue.upgrade())
            .collect();
        for queue in chosen {
            queue.mark().wait();
        }
    }

    pub(super) fn wait_for_all(&self) {
        self.wait(|_| true);
    }
}

impl Stream {
    /// Runs the commands: now on the default stream, in their turn on any other.
    ///
    /// # Errors
    /// On the default stream, what a kernel answered.
    pub(super) fn submit(&self, commands: impl IntoIterator<Item = Command>) -> Result<()> {
        match self {
            Self::Own(own) => {
                own.queue.push(commands);
                Ok(())
            }
            Self::Default(streams) => {
                let _turn = lock(&streams.default);
                streams.wait(|entry| entry.is_blocking);
                commands
                    .into_iter()
                    .try_for_each(|command| run(command, &streams.claims, streams.link.as_deref()))
            }
        }
    }

    /// The point after everything so far; nothing if that is reached already.
    pub(super) fn mark(&self) -> Option<Mark> {
        match self {
            Self::Own(own) => Some(own.queue.mark()),
            Self::Default(streams) => {
                // Recording is an operation of the default stream, which waits for the blocking ones.
                let _turn = lock(&streams.default);
                streams.wait(|entry| entry.is_blocking);
                None
            }
        }
    }

    /// The point after everything so far, without the default stream's order: it is always idle.
    pub(super) fn idle_mark(&self) -> Option<Mark> {
        match self {
            Self::Own(own) => Some(own.queue.mark()),
            Self::Default(_) => None,
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.queue.close();
        if let Some(worker) = self.worker.take()
            && worker.join().is_err()
        {
            tracing::error!("a stream's thread panicked");
        }
    }
}

/// Runs one command on the calling thread, when nobody else works on its memory.
fn run(command: Command, claims: &Claims, link: Option<&Link>) -> Result<()> {
    match command {
        Command::Copy { from, to, len, over_link } => {
            let passed = link.filter(|_| over_link).map(|link| link.enter(len));
            {
                let _held = claims.hold(&[Claim::read(from, len), Claim::write(to, len)]);
                // SAFETY: the driver checked both ranges and keeps their memory until this command has run.
                unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
            }
            passed.into_iter().for_each(Link::wait_until);
        }
        Command::Fill { to, len, value } => {
            let _held = claims.hold(&[Claim::write(to, len)]);
            // SAFETY: as above.
            unsafe { std::ptr::write_bytes(to, value, len) };
        }
        Command::Write { to, value } => {
            let _held = claims.hold(&[Claim::write(to.cast(), size_of::<u64>())]);
            // SAFETY: as above; the driver checked that the word is aligned. Other processes that map the
            // memory read it atomically too.
            let word = unsafe { AtomicU64::from_ptr(to) };
            word.store(value, Ordering::Release);
        }
        Command::Launch(launch) => {
            let _held = claims.hold(&launch.claims);
            return launch.run();
        }
        Command::Wait(mark) => mark.wait(),
    }
    Ok(())
}
