//! What the reader's threads and its callers share: requests by class, free chunks, and who must be woken.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::chunk::Chunk;
use super::report::Counters;
use super::wake::RingWake;
use super::{Completion, ReadClass, RequestId, Route};
use crate::{Error, ErrorKind, HostRegion, ReadPlan, Result};

/// Which threads carry a read out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// The io_uring thread.
    Ring = 0,
    /// The threads that call pread.
    Pool = 1,
}

/// State of one reader. Chunks keep it, and with it the region, alive after the reader is gone.
pub(crate) struct Shared {
    pub(crate) region: Arc<dyn HostRegion>,
    pub(crate) chunk_bytes: u32,
    pub(crate) counters: Counters,
    core: Mutex<Core>,
    pool_wake: Condvar,
    ring_wake: RingWake,
}

struct Core {
    free: Vec<u32>,
    classes: [VecDeque<u32>; 3],
    requests: Vec<Option<Active>>,
    vacant: Vec<u32>,
    next_id: u64,
    stop: bool,
    ring_sleep: RingSleep,
    pool_starved: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RingSleep {
    Awake,
    ForRequests,
    ForChunks,
}

struct Active {
    id: RequestId,
    token: u64,
    plan: Arc<ReadPlan>,
    routes: Box<[Route]>,
    cursor: [u32; 2],
    finished: u32,
    failed: Option<Arc<Error>>,
}

/// One read to carry out, with the chunk it lands in.
pub(crate) struct Work {
    pub(crate) slot: u32,
    pub(crate) read: u32,
    pub(crate) route: Route,
    pub(crate) plan: Arc<ReadPlan>,
    pub(crate) chunk: Chunk,
}

/// What a lane is to do next.
pub(crate) enum Next {
    Read(Work),
    /// A read of a request that failed as a whole: it gets its completion and no I/O.
    Fail {
        slot: u32,
        read: u32,
    },
    /// There are reads, but no chunk.
    NoChunk,
    /// There are no reads.
    Idle,
    /// There are none, and there will be none.
    Stop,
}

impl Shared {
    pub(crate) fn new(
        region: Arc<dyn HostRegion>,
        chunk_bytes: u32,
        requests_max: usize,
    ) -> Result<Arc<Self>> {
        let chunks = region.len_bytes() / chunk_bytes.max(1) as usize;
        let chunks = u32::try_from(chunks).unwrap_or(u32::MAX);
        let requests = u32::try_from(requests_max).unwrap_or(u32::MAX);
        let core = Core {
            // Taken from the end: the front of the region stays warm in the caches when few chunks are in use.
            free: (0..chunks).rev().collect(),
            classes: [const { VecDeque::new() }; 3]
                .map(|_: VecDeque<u32>| VecDeque::with_capacity(requests_max)),
            requests: (0..requests).map(|_| None).collect(),
            vacant: (0..requests).rev().collect(),
            next_id: 1,
            stop: false,
            ring_sleep: RingSleep::Awake,
            pool_starved: 0,
        };
        Ok(Arc::new(Self {
            region,
            chunk_bytes,
            counters: Counters::default(),
            core: Mutex::new(core),
            pool_wake: Condvar::new(),
            ring_wake: RingWake::new()?,
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
        plan: Arc<ReadPlan>,
        routes: Box<[Route]>,
        class: ReadClass,
        token: u64,
    ) -> Result<RequestId> {
        let mut core = self.lock();
        let id = RequestId(core.next_id);
        core.next_id += 1;
        if plan.reads().is_empty() {
            return Ok(id);
        }
        let Some(slot) = core.vacant.pop() else {
            let message = format!("{} requests are queued, no more are taken", core.requests.len());
            return Err(Error::new(ErrorKind::QueueFull, message));
        };
        let active = Active { id, token, plan, routes, cursor: [0; 2], finished: 0, failed: None };
        core.requests[slot as usize] = Some(active);
        core.classes[class as usize].push_back(slot);
        let wake_ring = core.rouse_ring();
        drop(core);
        self.rouse(wake_ring);
        Ok(id)
    }

    /// Fails the reads of a request that have not completed yet.
    pub(crate) fn cancel(&self, id: RequestId) {
        let error = Arc::new(Error::new(ErrorKind::Cancelled, "the request was cancelled"));
        let mut core = self.lock();
        for active in core.requests.iter_mut().flatten().filter(|a| a.id == id) {
            active.failed.get_or_insert_with(|| Arc::clone(&error));
        }
        let wake_ring = core.rouse_ring();
        drop(core);
        self.rouse(wake_ring);
    }

    /// Fails everything; the threads leave once their reads in flight are done.
    pub(crate) fn stop(&self) {
        let error = Arc::new(Error::new(ErrorKind::Cancelled, "the reader was closed"));
        let mut core = self.lock();
        core.stop = true;
        for active in core.requests.iter_mut().flatten() {
            active.failed.get_or_insert_with(|| Arc::clone(&error));
        }
        core.ring_sleep = RingSleep::Awake;
        drop(core);
        self.rouse(true);
    }

    pub(crate) fn stopping(&self) -> bool {
        self.lock().stop
    }

    fn rouse(&self, ring: bool) {
        self.pool_wake.notify_all();
        if ring {
            self.ring_wake.wake();
        }
    }

    /// The next thing for the ring to do. After `NoChunk` or `Idle` the ring's wake is sure to come.
    pub(crate) fn next_for_ring(self: &Arc<Self>) -> Next {
        let mut core = self.lock();
        let next = self.next(&mut core, Lane::Ring);
        core.ring_sleep = match next {
            Next::NoChunk => RingSleep::ForChunks,
            Next::Idle => RingSleep::ForRequests,
            _ => RingSleep::Awake,
        };
        next
    }

    /// The next thing for a thread of the pool to do; sleeps until there is something.
    pub(crate) fn next_for_pool(self: &Arc<Self>) -> Next {
        let mut core = self.lock();
        loop {
            match self.next(&mut core, Lane::Pool) {
                Next::NoChunk => {
                    core.pool_starved += 1;
                    let since = std::time::Instant::now();
                    core = self.pool_wake.wait(core).unwrap_or_else(PoisonError::into_inner);
                    core.pool_starved -= 1;
                    self.counters.waited_for_chunks(since.elapsed());
                }
                Next::Idle => core = self.pool_wake.wait(core).unwrap_or_else(PoisonError::into_inner),
                ready => return ready,
            }
        }
    }

    fn next(self: &Arc<Self>, core: &mut Core, lane: Lane) -> Next {
        let Core { classes, requests, free, .. } = core;
        for queue in classes {
            let mut at = 0;
            while let Some(&slot) = queue.get(at) {
                let Some(active) = requests[slot as usize].as_mut() else {
                    queue.remove(at);
                    continue;
                };
                active.skip_others(lane);
                let read = active.cursor[lane as usize];
                if read < active.read_count() {
                    return self.take(active, slot, lane, free);
                }
                if active.handed_out() {
                    queue.remove(at);
                } else {
                    at += 1;
                }
            }
        }
        if core.stop { Next::Stop } else { Next::Idle }
    }

    fn take(self: &Arc<Self>, active: &mut Active, slot: u32, lane: Lane, free: &mut Vec<u32>) -> Next {
        let read = active.cursor[lane as usize];
        if active.failed.is_some() {
            active.cursor[lane as usize] += 1;
            return Next::Fail { slot, read };
        }
        let Some(index) = free.pop() else { return Next::NoChunk };
        active.cursor[lane as usize] += 1;
        let planned = &active.plan.reads()[read as usize];
        let route = active.routes[planned.file as usize];
        let chunk = Chunk::new(Arc::clone(self), index, planned.need.end);
        Next::Read(Work { slot, read, route, plan: Arc::clone(&active.plan), chunk })
    }

    /// Counts a read as done and makes its completion.
    pub(crate) fn finish(&self, slot: u32, read: u32, outcome: Result<Chunk>) -> Option<Completion> {
        let mut core = self.lock();
        let active = core.requests[slot as usize].as_mut()?;
        active.finished += 1;
        let (request, token) = (active.id, active.token);
        let failed = active.failed.clone();
        let last = if active.finished == active.read_count() {
            let done = core.requests[slot as usize].take();
            core.retire(slot);
            done
        } else {
            None
        };
        drop(core);
        let outcome = match failed {
            Some(error) => Err(error),
            None => outcome.and_then(|chunk| self.judge_files(last.as_ref(), chunk)).map_err(Arc::new),
        };
        Some(Completion { request, token, read, outcome })
    }

    /// The last read of a request succeeds only if no file changed since it was opened, so that a request without an
    /// error never mixes two versions of a file.
    fn judge_files(&self, last: Option<&Active>, chunk: Chunk) -> Result<Chunk> {
        let Some(active) = last else { return Ok(chunk) };
        let mut judged = None;
        for read in active.plan.reads() {
            if judged.replace(read.file) != Some(read.file) {
                active.plan.files()[read.file as usize].check_unchanged()?;
            }
        }
        Ok(chunk)
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

impl Core {
    fn rouse_ring(&mut self) -> bool {
        std::mem::replace(&mut self.ring_sleep, RingSleep::Awake) != RingSleep::Awake
    }

    /// Gives the slot of a finished request back, out of its queue first: a new request may take it at once.
    fn retire(&mut self, slot: u32) {
        for queue in &mut self.classes {
            queue.retain(|queued| *queued != slot);
        }
        self.vacant.push(slot);
    }
}

impl Active {
    fn read_count(&self) -> u32 {
        u32::try_from(self.plan.reads().len()).unwrap_or(u32::MAX)
    }

    fn skip_others(&mut self, lane: Lane) {
        let cursor = &mut self.cursor[lane as usize];
        while let Some(read) = self.plan.reads().get(*cursor as usize) {
            if self.routes[read.file as usize].lane == lane {
                break;
            }
            *cursor += 1;
        }
    }

    fn handed_out(&self) -> bool {
        self.cursor.iter().all(|c| *c >= self.read_count())
    }
}
