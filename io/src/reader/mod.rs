//! The reader: carries read plans out into chunks of a staging region.
//!
//! One io_uring thread takes what comes from the disk; a few threads that call pread take what lies in the page
//! cache, or everything where io_uring is not to be had. Both draw from the same queues and the same chunks. Lock
//! order: there is one lock (`queue::Core`); no call is made and nothing is sent while it is held.

mod checks;
mod chunk;
mod in_place;
pub(crate) mod ladder;
pub(crate) mod late;
mod options;
mod outlet;
mod pool;
pub(crate) mod progress;
pub(crate) mod queue;
pub(crate) mod report;
#[cfg_attr(not(target_os = "linux"), path = "wake_elsewhere.rs")]
mod wake;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, bounded};

pub use chunk::Chunk;
pub use in_place::{HostTargets, Spot, goes_in_place};
pub use options::{Faults, IoMode, ReadClass, ReadRequest, ReaderOptions, RequestId};
pub(crate) use outlet::Outlet;
pub use report::{IoPath, PathReason, ReaderReport};

use crate::{Error, ErrorKind, HostRegion, Result};
use in_place::Placed;
use ladder::Ladder;
use late::Watch;
use queue::{Lane, Shared};

/// The end of one planned read.
#[derive(Debug)]
pub struct Completion {
    /// The request.
    pub request: RequestId,
    /// The request's token.
    pub token: u64,
    /// Position in [`crate::ReadPlan::reads`].
    pub read: u32,
    /// The bytes, or why there are none.
    pub outcome: std::result::Result<Chunk, Arc<Error>>,
}

/// How the reads of one file are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) lane: Lane,
    pub(crate) direct: bool,
}

/// Reads files into chunks. Every planned read of a submitted request yields exactly one completion; the order is
/// that of arrival. Dropping the reader cancels what it has not read; chunks that were handed out stay valid.
pub struct Reader {
    shared: Arc<Shared>,
    completions: Receiver<Completion>,
    threads: Vec<JoinHandle<()>>,
    alive: Receiver<()>,
    options: ReaderOptions,
    ladder: Ladder,
    pool_threads: u32,
    process: u32,
}

impl Reader {
    /// Starts the reader's threads over `region`. A refused io_uring is not an error: the report tells.
    ///
    /// # Errors
    /// `staging_too_small` when the region does not hold one chunk, `invalid_argument`, `io_error`.
    pub fn start(region: Arc<dyn HostRegion>, options: ReaderOptions) -> Result<Self> {
        check(&*region, &options)?;
        let pool_threads = pool_threads(options.threads);
        let shared = Shared::new(region, &options, pool_threads)?;
        let (sender, completions) = bounded((2 * shared.chunks()).max(1024));
        let mut outlet = Outlet { sender, faults: options.faults.clone(), checks: None };
        let (alive_token, alive) = bounded(0);
        let mut reader = Self {
            shared,
            completions,
            threads: Vec::new(),
            alive,
            pool_threads,
            ladder: Ladder::new(&options, false),
            options,
            process: std::process::id(),
        };
        reader.start_checks(&mut outlet, &alive_token)?;
        // The ring registers the region once the other threads are there: they could not be started meanwhile.
        let (go, all_started) = bounded(0);
        reader.start_ring(&outlet, &alive_token, all_started);
        reader.start_pool(&outlet, alive_token)?;
        drop(go);
        Ok(reader)
    }

    /// Takes the last token that is not a thread's: if a thread cannot be started, dropping the reader waits for those
    /// that were, and for nothing else.
    fn start_pool(&mut self, outlet: &Outlet, alive: Sender<()>) -> Result<()> {
        let failed = |e| Error::from_os(e, "starting a reading thread");
        let pool = Arc::new(Pool {
            shared: Arc::clone(&self.shared),
            ladder: self.ladder,
            outlet: outlet.clone(),
            node: self.options.numa_node,
            watch: self.options.read_deadline.map(Watch::new),
        });
        for _ in 0..self.pool_threads {
            self.threads.push(pool.start(alive.clone()).map_err(failed)?);
        }
        if pool.watch.is_some() {
            let thread = std::thread::Builder::new().name("spoc-watch".to_owned());
            self.threads.push(thread.spawn(move || pool.run_watch(&alive)).map_err(failed)?);
        }
        Ok(())
    }

    fn start_checks(&mut self, outlet: &mut Outlet, alive: &Sender<()>) -> Result<()> {
        if self.options.check_threads == 0 {
            return Ok(());
        }
        let (sender, receiver) = checks::queue(&self.shared);
        let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        for number in 0..self.options.check_threads.min(u32::try_from(cores).unwrap_or(u32::MAX)) {
            let (shared, outlet, token) = (Arc::clone(&self.shared), outlet.clone(), alive.clone());
            let (receiver, node) = (receiver.clone(), self.options.numa_node);
            let thread = std::thread::Builder::new().name(format!("spoc-check-{number}")).spawn(move || {
                bind(node, &shared.counters);
                checks::run(&shared, &receiver, &outlet);
                drop(token);
            });
            self.threads.push(thread.map_err(|e| Error::from_os(e, "starting a checking thread"))?);
        }
        outlet.checks = Some(sender);
        Ok(())
    }

    fn start_ring(&mut self, outlet: &Outlet, alive: &Sender<()>, go: Receiver<()>) {
        let refused = if self.options.mode == IoMode::Pread {
            Err("reads without io_uring were asked for".to_owned())
        } else {
            crate::uring::start(&self.shared, outlet.clone(), &self.options, alive.clone(), go)
        };
        match refused {
            Ok(thread) => {
                self.threads.push(thread);
                self.ladder = Ladder::new(&self.options, true);
            }
            Err(reason) => {
                tracing::info!(reason, "the reader uses threads and pread");
                for path in [IoPath::PreadDirect, IoPath::PreadBuffered] {
                    self.shared.counters.because(path, None, &reason);
                }
            }
        }
    }

    /// Queues a request. A plan without reads is complete at once and yields no completion.
    ///
    /// # Errors
    /// `queue_full`; `staging_too_small` when the plan's chunks are longer than the reader's; `invalid_argument` for a
    /// plan with digests where [`ReaderOptions::check_threads`] is 0; `forked`.
    pub fn submit(&self, request: ReadRequest) -> Result<RequestId> {
        self.enter(request, None)
    }

    /// As [`Reader::submit`], for targets in host memory: reads whose bytes may lie there as they do in the file go
    /// straight to them, and complete with a chunk that [is in place](Chunk::is_in_place). The others take a chunk of
    /// the region as always. A plan of which [every read](goes_in_place) goes in place may have reads longer than a chunk.
    ///
    /// # Errors
    /// As of [`Reader::submit`].
    pub fn submit_in_place(&self, request: ReadRequest, targets: Arc<dyn HostTargets>) -> Result<RequestId> {
        let placed = Placed::new(&request.plan, targets);
        self.enter(request, Some(placed))
    }

    fn enter(&self, request: ReadRequest, placed: Option<Placed>) -> Result<RequestId> {
        if std::process::id() != self.process {
            let message = "the reader belongs to the process that was forked: start a new one in the child";
            return Err(Error::new(ErrorKind::Forked, message));
        }
        let needs_chunks = || placed.as_ref().is_none_or(|placed| !placed.serves_all(&request.plan));
        if request.plan.chunk_bytes() > self.options.chunk_bytes && needs_chunks() {
            let (plan, chunk) = (request.plan.chunk_bytes(), self.options.chunk_bytes);
            let message = format!("the plan has reads of {plan} bytes, a chunk has {chunk}");
            return Err(Error::new(ErrorKind::StagingTooSmall, message));
        }
        if request.plan.digests().is_some() && self.options.check_threads == 0 {
            let message = "the plan is to be checked against digests, and the reader has no threads for that";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let spans = self.ladder.spans(&request.plan, &self.shared.counters);
        self.shared.push(request, spans, placed)
    }

    /// Makes a request more urgent: its reads that have not started queue behind those that wait in `class`, and those
    /// in flight count as of it. True if it was: not for a request that is unknown, finished or as urgent already.
    pub fn promote(&self, request: RequestId, class: ReadClass) -> bool {
        self.shared.promote(request, class)
    }

    /// Holds refills to this many bytes a second from now on; `None` lifts the limit.
    pub fn set_refill_bytes_per_second(&self, bytes_per_second: Option<u64>) {
        self.shared.set_refill_rate(bytes_per_second);
    }

    /// Makes the reads of a request that have not completed yet complete with `cancelled`. Reads in flight do so when
    /// the kernel is done with their memory. A request that is not known any more is left alone.
    pub fn cancel(&self, request: RequestId) {
        self.shared.cancel(request);
    }

    /// Where completions arrive. The channel closes after the reader is dropped and its threads have ended.
    #[must_use]
    pub fn completions(&self) -> &Receiver<Completion> {
        &self.completions
    }

    /// What was done so far, and why that way.
    #[must_use]
    pub fn report(&self) -> ReaderReport {
        let mut report = self.shared.counters.report(self.expected_path());
        report.chunks = self.shared.chunks();
        report.chunks_free = self.shared.free_chunks();
        report.chunk_bytes = self.options.chunk_bytes;
        report.depth = report.depth.max(self.options.depth);
        report.threads = self.pool_threads;
        report
    }

    fn expected_path(&self) -> IoPath {
        IoPath::new(self.ladder.has_ring(), self.options.mode != IoMode::Buffered)
    }
}

/// What a thread that calls pread is started with.
struct Pool {
    shared: Arc<Shared>,
    ladder: Ladder,
    outlet: Outlet,
    node: Option<u32>,
    watch: Option<Watch>,
}

impl Pool {
    fn start(self: &Arc<Self>, alive: Sender<()>) -> std::io::Result<JoinHandle<()>> {
        let pool = Arc::clone(self);
        std::thread::Builder::new().name("spoc-read".to_owned()).spawn(move || {
            bind(pool.node, &pool.shared.counters);
            pool::run(&pool.shared, &pool.ladder, &pool.outlet, pool.watch.as_ref());
            drop(pool);
            drop(alive);
        })
    }

    fn run_watch(self: Arc<Self>, alive: &Sender<()>) {
        let Some(watch) = &self.watch else { return };
        // Every thread of the pool holds one; so does this one.
        let readers = || Arc::strong_count(&self) - 1;
        let replace = || self.start(alive.clone()).map(drop);
        watch.run(&self.shared, &self.outlet, readers, replace);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if std::process::id() != self.process {
            // The threads stayed in the parent, and so does their work.
            return;
        }
        self.shared.stop();
        // Nothing is ever sent here: the channel closes when the last thread has ended.
        let deadline = Instant::now() + self.options.drain_timeout;
        if self.alive.recv_deadline(deadline) == Err(crossbeam_channel::RecvTimeoutError::Timeout) {
            tracing::warn!("reads are still in flight; their memory is kept until the kernel returns them");
            return;
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the reader panicked");
            }
        }
    }
}

/// Moves the calling thread to its reader's NUMA node, if that is known. Where it cannot, it runs anywhere.
pub(crate) fn bind(node: Option<u32>, counters: &report::Counters) {
    let Some(node) = node else { return };
    match crate::numa::bind_thread(node) {
        Ok(()) => report::add(&counters.bound_threads, 1),
        Err(reason) => tracing::warn!(reason, "a reading thread may run far from its device"),
    }
}

fn check(region: &dyn HostRegion, options: &ReaderOptions) -> Result<()> {
    let chunk = options.chunk_bytes;
    if chunk == 0 || !chunk.is_multiple_of(4096) {
        let message = format!("chunks of {chunk} bytes, expected a multiple of 4096");
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    if !region.as_ptr().addr().get().is_multiple_of(4096) {
        return Err(Error::new(ErrorKind::InvalidArgument, "the staging region is not page aligned"));
    }
    if region.len_bytes() < chunk as usize {
        let message = format!("{} bytes of staging cannot hold a chunk of {chunk}", region.len_bytes());
        return Err(Error::new(ErrorKind::StagingTooSmall, message));
    }
    Ok(())
}

fn pool_threads(asked: u32) -> u32 {
    if asked > 0 {
        return asked.min(256);
    }
    let cores = std::thread::available_parallelism().map_or(4, std::num::NonZero::get);
    // Copying from the page cache scales with cores; some are left to whoever takes the chunks on.
    u32::try_from(cores - cores / 4).unwrap_or(16).clamp(4, 16)
}
