//! What the reader's threads and its callers share: requests by class, free chunks, and who must be woken.

mod core;
mod pace;
mod request;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use self::core::{Choice, Core, Finished, Memory, RingSleep, Taken};
pub(crate) use self::request::Span;
use super::chunk::Chunk;
use super::in_place::Placed;
use super::ladder::Ladder;
use super::report::Counters;
use super::wake::RingWake;
use super::{Completion, ReadRequest, ReaderOptions, RequestId, Route};
use crate::{Error, ErrorKind, HostRegion, ReadClass, ReadPlan, Result};
use request::Active;

/// How long a thread without work keeps its file open.
const FILE_IDLE: Duration = Duration::from_secs(1);

/// Which threads carry a read out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// The io_uring thread.
    Ring = 0,
    /// The threads that call pread.
    Pool = 1,
}

impl Lane {
    const fn other(self) -> Self {
        match self {
            Self::Ring => Self::Pool,
            Self::Pool => Self::Ring,
        }
    }
}

/// State of one reader. Chunks keep it, and with it the region, alive after the reader is gone.
pub(crate) struct Shared {
    pub(crate) region: Arc<dyn HostRegion>,
    pub(crate) chunk_bytes: u32,
    pub(crate) counters: Counters,
    /// Reads that are late and still in the kernel.
    pub(crate) hung: AtomicUsize,
    /// How many hold each chunk that is not free.
    pub(super) holders: Box<[AtomicU32]>,
    core: Mutex<Core>,
    pool_wake: Condvar,
    ring_wake: RingWake,
    /// Prefetch and refill reads that the pool carries out at once, at most.
    pool_background_max: u32,
}

/// Names a read that was handed out, for its completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    pub(crate) slot: u32,
    pub(crate) read: u32,
    /// The lane that has it in flight; `None` for one that failed before it started.
    lane: Option<Lane>,
}

/// One read to carry out, with the chunk it lands in.
pub(crate) struct Work {
    pub(crate) ticket: Ticket,
    pub(crate) route: Route,
    pub(crate) plan: Arc<ReadPlan>,
    pub(crate) chunk: Chunk,
}

/// How much a lane may take.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    /// Prefetch and refill reads in flight.
    pub background: u32,
    /// Chunks that are not free, whoever has them, beyond which no other is taken.
    pub chunks_out: usize,
}

impl Bounds {
    pub(crate) const NONE: Self = Self { background: u32::MAX, chunks_out: usize::MAX };
}

/// What a lane is to do next.
pub(crate) enum Next {
    Read(Work),
    /// A read of a request that failed as a whole: it gets its completion and no I/O.
    Fail(Ticket),
    /// There are reads, but no chunk.
    NoChunk,
    /// There are reads, and chunks are better left alone until one of those that are out comes back.
    Enough,
    /// There are none that may start now. After this long there may be: the refill's rate allows the next then.
    Idle(Option<Duration>),
    /// There are none, and there will be none.
    Stop,
}

impl Shared {
    pub(crate) fn new(
        region: Arc<dyn HostRegion>,
        options: &ReaderOptions,
        pool_threads: u32,
    ) -> Result<Arc<Self>> {
        let chunk_bytes = options.chunk_bytes;
        let chunks = region.len_bytes() / chunk_bytes.max(1) as usize;
        let chunks = u32::try_from(chunks).unwrap_or(u32::MAX);
        let core = Core::new(chunks, options);
        Ok(Arc::new(Self {
            region,
            chunk_bytes,
            counters: Counters::default(),
            hung: AtomicUsize::new(0),
            holders: (0..chunks).map(|_| AtomicU32::new(0)).collect(),
            core: Mutex::new(core),
            pool_wake: Condvar::new(),
            ring_wake: RingWake::new()?,
            pool_background_max: pool_threads - pool_threads.div_ceil(4).min(pool_threads - 1),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn chunks(&self) -> usize {
        self.region.len_bytes() / self.chunk_bytes.max(1) as usize
    }

    pub(crate) fn free_chunks(&self) -> usize {
        self.lock().free.len()
    }

    pub(crate) fn ring_wake(&self) -> &RingWake {
        &self.ring_wake
    }

    /// Queues a request.
    pub(crate) fn push(
        &self,
        request: ReadRequest,
        spans: Box<[Span]>,
        placed: Option<Placed>,
    ) -> Result<RequestId> {
        let ReadRequest { plan, class, token } = request;
        let mut core = self.lock();
        let id = core.name();
        if plan.reads().is_empty() {
            return Ok(id);
        }
        core.enter(Active::new(id, token, class, plan, spans, placed))?;
        self.rouse(core);
        Ok(id)
    }

    /// Fails the reads of a request that have not completed yet.
    pub(crate) fn cancel(&self, id: RequestId) {
        let error = Arc::new(Error::new(ErrorKind::Cancelled, "the request was cancelled"));
        let mut core = self.lock();
        core.fail(|active| (active.id == id).then(|| Arc::clone(&error)));
        self.rouse(core);
    }

    /// Moves a request to a more urgent class, behind what waits there. False if it is unknown, or there already.
    pub(crate) fn promote(&self, id: RequestId, class: ReadClass) -> bool {
        let mut core = self.lock();
        let promoted = core.promote(id, class);
        self.rouse(core);
        promoted
    }

    /// Holds refills to this many bytes a second; `None` lets them go as fast as they can.
    pub(crate) fn set_refill_rate(&self, bytes_per_second: Option<u64>) {
        let mut core = self.lock();
        core.pace.set(bytes_per_second);
        self.rouse(core);
    }

    /// Fails everything; the threads leave once their reads in flight are done.
    pub(crate) fn stop(&self) {
        let error = Arc::new(Error::new(ErrorKind::Cancelled, "the reader was closed"));
        let mut core = self.lock();
        core.stop = true;
        core.fail(|_| Some(Arc::clone(&error)));
        core.ring_sleep = RingSleep::ForRequests;
        self.rouse(core);
    }

    pub(crate) fn stopping(&self) -> bool {
        self.lock().stop
    }

    /// Something changed that may concern every thread.
    fn rouse(&self, mut core: MutexGuard<'_, Core>) {
        let ring = core.rouse_ring();
        drop(core);
        self.pool_wake.notify_all();
        if ring {
            self.ring_wake.wake();
        }
    }

    /// The next thing for the ring to do within its bounds. After `NoChunk`, `Enough` or `Idle` the ring's wake is sure
    /// to come.
    pub(crate) fn next_for_ring(self: &Arc<Self>, ladder: &Ladder, bounds: Bounds) -> Next {
        let (mut core, choice) = self.choose(self.lock(), ladder, Lane::Ring, bounds);
        core.ring_sleep = match choice {
            Choice::NoChunk | Choice::Enough => RingSleep::ForChunks,
            Choice::Bounded | Choice::Idle(_) => RingSleep::ForRequests,
            _ => RingSleep::Awake,
        };
        drop(core);
        match choice {
            Choice::Take(taken) => self.work(Lane::Ring, taken),
            Choice::Fail(ticket) => Next::Fail(ticket),
            Choice::NoChunk => Next::NoChunk,
            Choice::Enough => Next::Enough,
            // A read of this lane that ends makes room, and the ring asks again after it.
            Choice::Bounded | Choice::Look { .. } => Next::Idle(None),
            Choice::Idle(time) => Next::Idle(time),
            Choice::Stop => Next::Stop,
        }
    }

    /// The next thing for a thread of the pool to do; sleeps until there is something. A thread that `holds` a file
    /// open is let go after a while without work, with `Idle`.
    pub(crate) fn next_for_pool(self: &Arc<Self>, ladder: &Ladder, holds: bool) -> Next {
        let bounds = Bounds { background: self.pool_background_max, chunks_out: usize::MAX };
        let mut core = self.lock();
        loop {
            let (guard, choice) = self.choose(core, ladder, Lane::Pool, bounds);
            core = match choice {
                Choice::Take(taken) => {
                    drop(guard);
                    return self.work(Lane::Pool, taken);
                }
                Choice::Fail(ticket) => return Next::Fail(ticket),
                Choice::Stop => return Next::Stop,
                Choice::NoChunk | Choice::Enough => self.wait_for_chunk(guard),
                Choice::Bounded => {
                    let mut core = guard;
                    core.pool_bounded += 1;
                    core = self.pool_wake.wait(core).unwrap_or_else(PoisonError::into_inner);
                    core.pool_bounded -= 1;
                    core
                }
                Choice::Idle(None) if holds => {
                    let waited = self.pool_wake.wait_timeout(guard, FILE_IDLE);
                    let (core, waited) = waited.unwrap_or_else(PoisonError::into_inner);
                    if waited.timed_out() {
                        return Next::Idle(None);
                    }
                    core
                }
                Choice::Idle(Some(time)) => {
                    self.pool_wake.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner).0
                }
                Choice::Idle(None) | Choice::Look { .. } => {
                    self.pool_wake.wait(guard).unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
    }

    fn wait_for_chunk<'a>(&'a self, mut core: MutexGuard<'a, Core>) -> MutexGuard<'a, Core> {
        core.pool_starved += 1;
        let since = Instant::now();
        core = self.pool_wake.wait(core).unwrap_or_else(PoisonError::into_inner);
        core.pool_starved -= 1;
        self.counters.waited_for_chunks(since.elapsed());
        core
    }

    /// What the lane is to do or to wait for; spans that have to be looked at are, on the way.
    fn choose<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        ladder: &Ladder,
        lane: Lane,
        bounds: Bounds,
    ) -> (MutexGuard<'a, Core>, Choice) {
        loop {
            match core.choose(lane, bounds) {
                Choice::Look { slot, span } => core = self.look(core, ladder, slot, span),
                choice => return (core, choice),
            }
        }
    }

    fn work(self: &Arc<Self>, lane: Lane, taken: Taken) -> Next {
        let Taken { slot, read, memory, route, plan } = taken;
        let planned = &plan.reads()[read as usize];
        let need = planned.need.end;
        let chunk = match memory {
            Memory::Chunk(index) => Chunk::new(Arc::clone(self), index, need),
            Memory::InPlace(landing) => Chunk::in_place(landing, planned.len_bytes, need),
        };
        Next::Read(Work { ticket: Ticket { slot, read, lane: Some(lane) }, route, plan, chunk })
    }

    /// Decides how a span is read, without the lock: the kernel is asked what its cache holds.
    fn look<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        ladder: &Ladder,
        slot: u32,
        span: u32,
    ) -> MutexGuard<'a, Core> {
        let Some((id, plan, reads, before)) = core.begin_look(slot, span) else { return core };
        drop(core);
        let route = ladder.look(&plan, reads, before, &self.counters);
        let mut core = self.lock();
        core.end_look(slot, id, span, route);
        // The caller asks again; the other lane has to be told.
        match route.lane {
            Lane::Ring if core.rouse_ring() => self.ring_wake.wake(),
            Lane::Ring => {}
            Lane::Pool => self.pool_wake.notify_all(),
        }
        core
    }

    /// Counts a read as done and makes its completion; with it the plan, if its chunks are to be checked.
    pub(crate) fn finish(
        &self,
        ticket: Ticket,
        outcome: Result<Chunk>,
    ) -> Option<(Completion, Option<Arc<ReadPlan>>)> {
        let mut core = self.lock();
        let Finished { request, token, failed, last, checked } = core.finish(ticket)?;
        let wake_pool = core.pool_bounded > 0 && ticket.lane == Some(Lane::Pool);
        drop(core);
        if wake_pool {
            self.pool_wake.notify_one();
        }
        let outcome = match failed {
            Some(error) => Err(error),
            None => outcome.and_then(|chunk| judge_files(last.as_ref(), chunk)).map_err(Arc::new),
        };
        Some((Completion { request, token, read: ticket.read, outcome }, checked))
    }

    /// Takes a chunk back.
    pub(super) fn give_back(&self, index: u32) {
        let mut core = self.lock();
        core.free.push(index);
        let wake_ring = core.ring_sleep == RingSleep::ForChunks && core.rouse_ring();
        let wake_pool = core.pool_starved > 0;
        drop(core);
        if wake_pool {
            self.pool_wake.notify_one();
        }
        if wake_ring {
            self.ring_wake.wake();
        }
    }
}

/// The last read of a request succeeds only if no file changed since it was opened, so that a request without an
/// error never mixes two versions of a file.
fn judge_files(last: Option<&Active>, chunk: Chunk) -> Result<Chunk> {
    let Some(active) = last else { return Ok(chunk) };
    let mut judged = None;
    for read in active.plan.reads() {
        if judged.replace(read.file) != Some(read.file) {
            active.plan.files()[read.file as usize].check_unchanged()?;
        }
    }
    Ok(chunk)
}
