//! Which read goes next. Called under the lock; makes no calls and sends nothing.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::super::in_place::Landing;
use super::pace::Pace;
use super::request::{Active, Found};
use super::{Bounds, Lane, Route, Ticket};
use crate::{Error, ErrorKind, ReadClass, ReadPlan, ReaderOptions, RequestId, Result};

/// A refill read that this many prefetch reads have overtaken goes first.
const OVERTAKEN_MAX: u32 = 16;

pub(super) struct Core {
    pub(super) free: Vec<u32>,
    chunks: usize,
    pub(super) pace: Pace,
    pub(super) stop: bool,
    pub(super) ring_sleep: RingSleep,
    pub(super) pool_starved: u32,
    pub(super) pool_bounded: u32,
    /// Slots by class, in the order in which they came.
    classes: [VecDeque<u32>; 3],
    requests: Vec<Option<Active>>,
    vacant: Vec<u32>,
    next_id: u64,
    /// Prefetch and refill reads that each lane has in flight.
    background: [u32; 2],
    /// Chunks that prefetch and refill leave to demand.
    reserve: usize,
    /// The class that each lane has a read of, and no chunk for.
    starved: [Option<ReadClass>; 2],
    /// Prefetch reads since the last refill read, while refills wait.
    overtaken: u32,
    /// Age from which a span's route is looked at again.
    fresh: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RingSleep {
    Awake,
    ForRequests,
    ForChunks,
}

/// What a lane is to do.
pub(super) enum Choice {
    /// Carry out this read into this chunk.
    Take(Taken),
    Fail(Ticket),
    /// Find out how a span is to be read.
    Look {
        slot: u32,
        span: u32,
    },
    NoChunk,
    /// Only prefetch and refill wait, and as many of them are in flight as may be.
    Bounded,
    /// As many chunks are out as the caller wants for now.
    Enough,
    Idle(Option<Duration>),
    Stop,
}

/// Where a read's bytes go.
pub(super) enum Memory {
    /// Into this chunk.
    Chunk(u32),
    /// To their targets.
    InPlace(Landing),
}

/// A read and the memory it was given.
pub(super) struct Taken {
    pub(super) slot: u32,
    pub(super) read: u32,
    pub(super) memory: Memory,
    pub(super) route: Route,
    pub(super) plan: Arc<ReadPlan>,
}

/// A read that is done.
pub(super) struct Finished {
    pub(super) request: RequestId,
    pub(super) token: u64,
    /// Why the request failed.
    pub(super) failed: Option<Arc<Error>>,
    /// The request itself, with its last read.
    pub(super) last: Option<Active>,
    /// The plan, if its chunks are to be checked.
    pub(super) checked: Option<Arc<ReadPlan>>,
}

impl Core {
    pub(super) fn new(chunks: u32, options: &ReaderOptions) -> Self {
        let requests = options.requests_max.max(1);
        let reserve = (chunks / 4).min(options.depth.max(1)) as usize;
        Self {
            // Taken from the end: the front of the region stays warm in the caches when few chunks are in use.
            free: (0..chunks).rev().collect(),
            chunks: chunks as usize,
            pace: Pace::new(options.refill_bytes_per_second),
            stop: false,
            ring_sleep: RingSleep::Awake,
            pool_starved: 0,
            pool_bounded: 0,
            classes: [(); 3].map(|()| VecDeque::with_capacity(requests as usize)),
            requests: (0..requests).map(|_| None).collect(),
            vacant: (0..requests).rev().collect(),
            next_id: 1,
            background: [0; 2],
            reserve,
            starved: [None; 2],
            overtaken: 0,
            // A route that is stale as soon as it is made would be made for ever.
            fresh: options.residency_fresh.max(Duration::from_millis(1)),
        }
    }

    pub(super) fn name(&mut self) -> RequestId {
        self.next_id += 1;
        RequestId(self.next_id - 1)
    }

    pub(super) fn enter(&mut self, active: Active) -> Result<()> {
        let Some(slot) = self.vacant.pop() else {
            let message = format!("{} requests are queued, no more are taken", self.requests.len());
            return Err(Error::new(ErrorKind::QueueFull, message));
        };
        self.classes[active.class as usize].push_back(slot);
        self.requests[slot as usize] = Some(active);
        Ok(())
    }

    /// Fails every request that `why` has a reason for; the first reason stays.
    pub(super) fn fail(&mut self, why: impl Fn(&Active) -> Option<Arc<Error>>) {
        for active in self.requests.iter_mut().flatten().filter(|a| a.failed.is_none()) {
            active.failed = why(active);
        }
    }

    pub(super) fn promote(&mut self, id: RequestId, class: ReadClass) -> bool {
        let mut named = (0u32..).zip(&mut self.requests);
        let found = named.find_map(|(slot, a)| Some((slot, a.as_mut().filter(|a| a.id == id)?)));
        let Some((slot, active)) = found.filter(|(_, active)| class < active.class) else { return false };
        let from = std::mem::replace(&mut active.class, class);
        if class == ReadClass::Demand {
            for (all, own) in self.background.iter_mut().zip(active.in_flight) {
                *all -= own;
            }
        }
        let queue = &mut self.classes[from as usize];
        if let Some(at) = queue.iter().position(|queued| *queued == slot) {
            queue.remove(at);
            self.classes[class as usize].push_back(slot);
        }
        true
    }

    /// What `lane` is to do: the most urgent class first, inside a class who came first.
    pub(super) fn choose(&mut self, lane: Lane, bounds: Bounds) -> Choice {
        self.starved[lane as usize] = None;
        let refill_first = self.overtaken >= OVERTAKEN_MAX;
        let order = match refill_first {
            false => [ReadClass::Demand, ReadClass::Prefetch, ReadClass::Refill],
            true => [ReadClass::Demand, ReadClass::Refill, ReadClass::Prefetch],
        };
        let mut later = None;
        for class in order {
            let Some((slot, span)) = (match self.first(class, lane) {
                Ok(found) => found,
                Err(choice) => return choice,
            }) else {
                continue;
            };
            if class != ReadClass::Demand && self.background[lane as usize] >= bounds.background {
                return Choice::Bounded;
            }
            if let (ReadClass::Refill, Some(time)) = (class, self.pace.wait()) {
                later = Some(time);
                continue;
            }
            return self.take(class, lane, slot, span, bounds);
        }
        if self.stop { Choice::Stop } else { Choice::Idle(later) }
    }

    /// The first request of a class with a read for the lane, and the span of that read.
    fn first(&mut self, class: ReadClass, lane: Lane) -> Result<Option<(u32, usize)>, Choice> {
        let Self { classes, requests, fresh, .. } = self;
        let queue = &mut classes[class as usize];
        let mut at = 0;
        while let Some(&slot) = queue.get(at) {
            let Some(active) = requests[slot as usize].as_mut() else {
                queue.remove(at);
                continue;
            };
            match active.find(lane, *fresh) {
                Found::Read(span) if active.failed.is_some() => {
                    let read = active.peek(span);
                    active.advance(span);
                    return Err(Choice::Fail(Ticket { slot, read, lane: None }));
                }
                Found::Read(span) => return Ok(Some((slot, span))),
                Found::Look(span) => {
                    let span = u32::try_from(span).unwrap_or(u32::MAX);
                    return Err(Choice::Look { slot, span });
                }
                Found::Nothing if active.handed_out() => {
                    queue.remove(at);
                }
                Found::Nothing => at += 1,
            }
        }
        Ok(None)
    }

    fn take(&mut self, class: ReadClass, lane: Lane, slot: u32, span: usize, bounds: Bounds) -> Choice {
        let landing = self.requests[slot as usize].as_ref().and_then(|active| active.landing(span));
        if let Some(landing) = landing {
            return self.hand_out(class, lane, slot, span, Memory::InPlace(landing));
        }
        let urgent_elsewhere = self.starved[lane.other() as usize].is_some_and(|other| other < class);
        let keep = if class == ReadClass::Demand { 0 } else { self.reserve };
        if self.free.len() <= keep + usize::from(urgent_elsewhere) {
            self.starved[lane as usize] = Some(class);
            return Choice::NoChunk;
        }
        if self.chunks - self.free.len() >= bounds.chunks_out {
            return Choice::Enough;
        }
        let Some(chunk) = self.free.pop() else { return Choice::NoChunk };
        self.hand_out(class, lane, slot, span, Memory::Chunk(chunk))
    }

    fn hand_out(&mut self, class: ReadClass, lane: Lane, slot: u32, span: usize, memory: Memory) -> Choice {
        let Some(active) = self.requests[slot as usize].as_mut() else { return Choice::NoChunk };
        let read = active.peek(span);
        active.advance(span);
        active.in_flight[lane as usize] += 1;
        self.background[lane as usize] += u32::from(class != ReadClass::Demand);
        match class {
            ReadClass::Demand => {}
            ReadClass::Prefetch if self.classes[ReadClass::Refill as usize].is_empty() => self.overtaken = 0,
            ReadClass::Prefetch => self.overtaken += 1,
            ReadClass::Refill => {
                self.overtaken = 0;
                self.pace.spend(u64::from(active.plan.reads()[read as usize].len_bytes));
            }
        }
        let (route, plan) = (active.route(read), Arc::clone(&active.plan));
        Choice::Take(Taken { slot, read, memory, route, plan })
    }

    /// Marks a span as being looked at: what is to be judged, and the route it had.
    #[allow(clippy::type_complexity, reason = "one caller, which takes it apart at once")]
    pub(super) fn begin_look(
        &mut self,
        slot: u32,
        span: u32,
    ) -> Option<(RequestId, Arc<ReadPlan>, Range<u32>, Option<Route>)> {
        let active = self.requests[slot as usize].as_mut()?;
        let (reads, before) = active.begin_look(span)?;
        Some((active.id, Arc::clone(&active.plan), reads, before))
    }

    /// Routes a span, unless its request failed and ended meanwhile.
    pub(super) fn end_look(&mut self, slot: u32, id: RequestId, span: u32, route: Route) {
        let active = self.requests[slot as usize].as_mut().filter(|a| a.id == id);
        if let Some(span) = active.and_then(|a| a.span_mut(span)) {
            span.decide(route, Some(std::time::Instant::now()));
        }
    }

    /// Counts a read as done.
    pub(super) fn finish(&mut self, ticket: Ticket) -> Option<Finished> {
        let Ticket { slot, lane, .. } = ticket;
        let active = self.requests[slot as usize].as_mut()?;
        active.finished += 1;
        if let Some(lane) = lane {
            active.in_flight[lane as usize] -= 1;
            self.background[lane as usize] -= u32::from(active.class != ReadClass::Demand);
        }
        let (request, token, failed) = (active.id, active.token, active.failed.clone());
        let checked = active.plan.digests().is_some().then(|| Arc::clone(&active.plan));
        let last = if active.finished == active.read_count() {
            let done = self.requests[slot as usize].take();
            self.retire(slot);
            done
        } else {
            None
        };
        Some(Finished { request, token, failed, last, checked })
    }

    /// Gives the slot of a finished request back, out of its queue first: a new request may take it at once.
    fn retire(&mut self, slot: u32) {
        for queue in &mut self.classes {
            queue.retain(|queued| *queued != slot);
        }
        self.vacant.push(slot);
    }

    /// True if the ring sleeps and has to be woken.
    pub(super) fn rouse_ring(&mut self) -> bool {
        std::mem::replace(&mut self.ring_sleep, RingSleep::Awake) != RingSleep::Awake
    }
}
