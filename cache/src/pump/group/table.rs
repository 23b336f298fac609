//! A group's jobs and their legs, shared by submitters, dispatchers and lanes.

use super::super::jobs::{Job, JobId, Places, Sink};
use crate::{Error, ErrorKind, Result};
use crossbeam_channel::Sender;
use spoc_bridge::Kept;
use spoc_io::{Chunk, HostTargets, Piece, ReadClass, ReadPlan, ReadRequest, Reader, ReaderReport, RequestId};
use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// What one device wants of a job.
pub(crate) struct Leg {
    /// Position of the device in the group.
    pub lane: usize,
    /// Pieces for this device of the plan; all of them if `None`.
    pub device: Option<u32>,
    pub places: Places,
    pub sink: Arc<dyn Sink>,
    /// The sink's name for it.
    pub tag: u64,
}

/// Bytes to bring to several devices.
pub(crate) struct GroupJob {
    /// Has at least one read, and something for each leg.
    pub plan: Arc<ReadPlan>,
    pub legs: Vec<Leg>,
    pub class: ReadClass,
}

/// A leg on its way. Only its lane's thread calls the sink.
pub(super) struct LegState {
    /// Its name.
    pub id: JobId,
    pub job: JobId,
    pub lane: usize,
    pub device: Option<u32>,
    pub places: Places,
    pub sink: Arc<dyn Sink>,
    pub tag: u64,
    /// It failed, or nobody wants it.
    pub dead: AtomicBool,
    pub begun: AtomicBool,
    /// Every chunk of it has been seen.
    pub finished: AtomicBool,
    /// Chunks that its lane holds.
    pub held: AtomicU32,
}

impl LegState {
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    pub fn wants(&self, piece: &Piece) -> bool {
        self.device.is_none_or(|device| device == piece.device)
    }
}

/// The legs of a job.
pub(super) type Legs = Arc<[Arc<LegState>]>;

/// What a lane is told. What concerns one leg comes in order: its chunks, a failure, and that there is no more.
pub(super) enum ToLane {
    Chunk {
        leg: Arc<LegState>,
        plan: Arc<ReadPlan>,
        read: u32,
        chunk: Chunk,
    },
    Failed {
        leg: Arc<LegState>,
        error: Error,
    },
    Finished {
        leg: Arc<LegState>,
    },
    /// Something came that is not in the inbox.
    Wake,
    /// Nothing else comes.
    Stop,
}

struct Running {
    whole: Arc<ReadPlan>,
    /// Each ring's share of the reads.
    plans: Box<[Arc<ReadPlan>]>,
    requests: Box<[Option<RequestId>]>,
    in_place: Option<Arc<dyn HostTargets>>,
    legs: Legs,
    class: ReadClass,
    reads_left: u32,
    /// Others may still have their leg in it.
    key: Option<u64>,
}

struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

/// Values by number and generation.
struct Slab<T> {
    entries: Vec<Entry<T>>,
    unused: Vec<u32>,
}

impl<T> Slab<T> {
    fn new() -> Slab<T> {
        Slab { entries: Vec::new(), unused: Vec::new() }
    }

    fn enter(&mut self, make: impl FnOnce(JobId) -> T) -> JobId {
        let index = self.unused.pop().unwrap_or_else(|| {
            self.entries.push(Entry { generation: 0, value: None });
            u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX)
        });
        let entry = &mut self.entries[index as usize];
        entry.generation = entry.generation.wrapping_add(1);
        let id = JobId::new(index, entry.generation);
        entry.value = Some(make(id));
        id
    }

    fn get(&mut self, id: JobId) -> Option<&mut T> {
        let entry = self.entries.get_mut(id.index())?;
        if entry.generation == id.generation() { entry.value.as_mut() } else { None }
    }

    fn leave(&mut self, id: JobId) -> Option<T> {
        self.get(id)?;
        self.unused.push(u32::try_from(id.index()).unwrap_or(u32::MAX));
        self.entries[id.index()].value.take()
    }

    fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().filter_map(|entry| entry.value.as_ref())
    }
}

struct Table {
    /// Empty once the group is closing.
    readers: Vec<Reader>,
    jobs: Slab<Running>,
    legs: Slab<Arc<LegState>>,
    waiting: VecDeque<JobId>,
    joinable: HashMap<u64, JobId>,
    watchers: Vec<Vec<Weak<dyn Sink>>>,
    /// Legs of each lane whose bytes are in its host tier.
    held: Vec<VecDeque<(Arc<LegState>, Arc<Kept>)>>,
    /// Lanes whose thread has ended.
    gone: Vec<bool>,
}

/// A group's state.
pub(super) struct Core {
    table: Mutex<Table>,
    senders: Vec<Sender<ToLane>>,
    /// The ring beside each lane's device.
    homes: Vec<usize>,
    rings: usize,
    /// Legs of each lane that have not ended.
    open: Vec<AtomicU32>,
    joined: AtomicU64,
    /// Reads of all jobs that have not come back.
    reads_out: AtomicU64,
}

/// What a dispatcher needs of a job for one completion.
pub(super) struct Arrived {
    pub plan: Arc<ReadPlan>,
    pub legs: Legs,
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed)
}

impl Core {
    pub fn new(readers: Vec<Reader>, senders: Vec<Sender<ToLane>>, homes: Vec<usize>) -> Core {
        let lanes = senders.len();
        Core {
            rings: readers.len(),
            table: Mutex::new(Table {
                readers,
                jobs: Slab::new(),
                legs: Slab::new(),
                waiting: VecDeque::new(),
                joinable: HashMap::new(),
                watchers: (0..lanes).map(|_| Vec::new()).collect(),
                held: (0..lanes).map(|_| VecDeque::new()).collect(),
                gone: vec![false; lanes],
            }),
            senders,
            homes,
            open: (0..lanes).map(|_| AtomicU32::new(0)).collect(),
            joined: AtomicU64::new(0),
            reads_out: AtomicU64::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // No call under this lock leaves the table half changed.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn home(&self, lane: usize) -> usize {
        self.homes[lane]
    }

    pub fn joined(&self) -> u64 {
        self.joined.load(Ordering::Relaxed)
    }

    /// Whether reads are on their way.
    pub fn is_reading(&self) -> bool {
        self.reads_out.load(Ordering::Relaxed) > 0
    }

    /// Whether a lane has legs that have not ended.
    pub fn is_busy(&self, lane: usize) -> bool {
        self.open[lane].load(Ordering::Relaxed) > 0
    }

    /// Begins a job of any number of legs, each on a lane of its own. Answers their names.
    pub fn submit(&self, job: GroupJob) -> Result<Vec<JobId>> {
        let plans = self.share_out(&job.plan, &job.legs);
        let mut table = self.lock();
        table.enter(self, job, plans, (None, None))
    }

    /// Begins a job of one leg; if another device has just asked for the same bytes, the leg joins it.
    pub fn submit_one(&self, lane: usize, job: Job) -> Result<JobId> {
        let Job { plan, places, sink, tag, class, in_place, held } = job;
        let leg = Leg { lane, device: None, places, sink, tag };
        if let Some(kept) = held {
            return self.submit_held(leg, kept);
        }
        let key = in_place.is_none().then(|| key_of(&plan));
        let mut table = self.lock();
        if let Some(id) = key.and_then(|key| table.join(self, key, &plan, &leg, class)) {
            self.joined.fetch_add(1, Ordering::Relaxed);
            return Ok(id);
        }
        let plans = self.to_ring(&plan, self.homes[lane]);
        let legs = table.enter(self, GroupJob { plan, legs: vec![leg], class }, plans, (key, in_place))?;
        legs.first().copied().ok_or_else(closed)
    }

    /// A leg whose bytes are in the host tier. Waits for no room in the inbox: this may be called under a cache's lock.
    fn submit_held(&self, leg: Leg, kept: Arc<Kept>) -> Result<JobId> {
        let lane = leg.lane;
        let mut table = self.lock();
        if table.readers.is_empty() || table.gone[lane] {
            return Err(closed());
        }
        let state = table.enter_leg(self, JobId::NONE, leg);
        let id = state.id;
        table.held[lane].push_back((state, kept));
        drop(table);
        // Full: it is about to look.
        let _ = self.senders[lane].try_send(ToLane::Wake);
        Ok(id)
    }

    /// The next leg of a lane whose bytes are in the host tier.
    pub fn next_held(&self, lane: usize) -> Option<(Arc<LegState>, Arc<Kept>)> {
        self.lock().held[lane].pop_front()
    }

    /// The plan for one ring, and none for the others.
    fn to_ring(&self, plan: &Arc<ReadPlan>, ring: usize) -> Box<[Arc<ReadPlan>]> {
        if self.rings == 1 {
            return Box::new([Arc::clone(plan)]);
        }
        let mut plans: Vec<_> = plan.split(self.rings, |_, _| usize::MAX).into_iter().map(Arc::new).collect();
        plans[ring] = Arc::clone(plan);
        plans.into()
    }

    /// Each read to the ring beside most of the devices that want it; among equals to the one with the least bytes so far.
    fn share_out(&self, plan: &Arc<ReadPlan>, legs: &[Leg]) -> Box<[Arc<ReadPlan>]> {
        if self.rings == 1 {
            return Box::new([Arc::clone(plan)]);
        }
        let mut bytes = vec![0u64; self.rings];
        let plans = plan.split(self.rings, |plan, read| {
            let mut wants = vec![0u64; self.rings];
            for piece in plan.pieces_of(&plan.reads()[read as usize]) {
                for leg in legs.iter().filter(|leg| leg.device.is_none_or(|device| device == piece.device)) {
                    wants[self.homes[leg.lane]] += u64::from(piece.len_bytes);
                }
            }
            let best = (0..self.rings).max_by_key(|ring| (wants[*ring], std::cmp::Reverse(bytes[*ring])));
            let ring = best.unwrap_or_default();
            bytes[ring] += u64::from(plan.reads()[read as usize].len_bytes);
            ring
        });
        plans.into_iter().map(Arc::new).collect()
    }

    /// Nobody wants this leg any more; its sink still hears of its end.
    pub fn cancel(&self, leg: JobId) {
        let mut table = self.lock();
        let Some(state) = table.legs.get(leg) else { return };
        state.dead.store(true, Ordering::Release);
        let job = state.job;
        table.cancel_if_dead(job);
    }

    /// A lane's leg has failed: with the last, the job's reads are of no use.
    pub fn leg_died(&self, job: JobId) {
        self.lock().cancel_if_dead(job);
    }

    pub fn promote(&self, leg: JobId, class: ReadClass) {
        let mut table = self.lock();
        let Some(job) = table.legs.get(leg).map(|leg| leg.job) else { return };
        table.promote(job, class);
    }

    /// A completion of ring `ring`: what to tell whom. The read counts as returned with [`read_done`](Core::read_done),
    /// after that, so that a leg's last word comes behind its chunks whichever ring they came from.
    pub fn arrived(&self, id: JobId, ring: usize) -> Option<Arrived> {
        let mut table = self.lock();
        table.close_to_others(id);
        let job = table.jobs.get(id)?;
        Some(Arrived { plan: Arc::clone(&job.plans[ring]), legs: Arc::clone(&job.legs) })
    }

    /// Answers the legs of a job that this was the last read of.
    pub fn read_done(&self, id: JobId) -> Option<Legs> {
        let mut table = self.lock();
        let job = table.jobs.get(id)?;
        job.reads_left = job.reads_left.saturating_sub(1);
        self.reads_out.fetch_sub(1, Ordering::Relaxed);
        if job.reads_left > 0 { None } else { table.jobs.leave(id).map(|job| job.legs) }
    }

    /// Hands waiting jobs to the readers while they have room. Answers one that needs no reader: nobody wants it, or it was
    /// refused; its legs are to be told.
    pub fn hand_over_waiting(&self) -> Option<(Legs, Option<Error>)> {
        let mut table = self.lock();
        while let Some(&id) = table.waiting.front() {
            let refused = match table.jobs.get(id).map(|job| job.wanted()) {
                None => {
                    table.waiting.pop_front();
                    continue;
                }
                Some(false) => None,
                Some(true) => match table.hand_over(id) {
                    Ok(false) => return None,
                    Ok(true) => {
                        table.waiting.pop_front();
                        continue;
                    }
                    Err(error) => Some(error),
                },
            };
            table.waiting.pop_front();
            if let Some(legs) = table.cancel_rest(self, id) {
                return Some((legs, refused));
            }
        }
        None
    }

    /// Tells a leg's lane something. A lane that is gone has failed what it had; this leg too, then.
    pub fn tell(&self, leg: &Arc<LegState>, message: ToLane) {
        if self.senders[leg.lane].send(message).is_err() {
            self.end_leg_without_lane(leg);
        }
    }

    fn end_leg_without_lane(&self, leg: &Arc<LegState>) {
        if self.forget(leg.id) {
            if !leg.dead.swap(true, Ordering::AcqRel) {
                leg.sink.failed(leg.tag, &closed(), true);
            }
            leg.sink.ended(leg.tag);
        }
    }

    /// The leg has ended. False if that was so before.
    pub fn forget(&self, leg: JobId) -> bool {
        let Some(state) = self.lock().legs.leave(leg) else { return false };
        self.open[state.lane].fetch_sub(1, Ordering::Relaxed);
        true
    }

    /// The lane's thread ends: takes no more legs. Answers every one that has not ended.
    pub fn close_lane(&self, lane: usize) -> Vec<Arc<LegState>> {
        let mut table = self.lock();
        table.gone[lane] = true;
        let held = std::mem::take(&mut table.held[lane]);
        let legs = table.legs.values().filter(|leg| leg.lane == lane).cloned().collect();
        drop(table);
        drop(held);
        legs
    }

    /// Takes the readers away: nothing is submitted any more.
    pub fn close(&self) -> Vec<Reader> {
        std::mem::take(&mut self.lock().readers)
    }

    pub fn stop_lanes(&self) {
        for sender in &self.senders {
            // A lane that is gone needs no telling.
            let _ = sender.send(ToLane::Stop);
        }
    }

    pub fn reports(&self) -> Result<Vec<ReaderReport>> {
        let table = self.lock();
        if table.readers.is_empty() {
            return Err(closed());
        }
        Ok(table.readers.iter().map(Reader::report).collect())
    }

    pub fn watch(&self, lane: usize, sink: Weak<dyn Sink>) {
        let mut table = self.lock();
        let watchers = &mut table.watchers[lane];
        watchers.retain(|watcher| watcher.strong_count() > 0);
        watchers.push(sink);
    }

    pub fn watcher(&self, lane: usize, index: usize) -> Option<Option<Arc<dyn Sink>>> {
        self.lock().watchers[lane].get(index).map(Weak::upgrade)
    }
}

impl Running {
    fn wanted(&self) -> bool {
        self.legs.iter().any(|leg| !leg.is_dead())
    }
}

impl Table {
    fn enter(
        &mut self,
        core: &Core,
        job: GroupJob,
        plans: Box<[Arc<ReadPlan>]>,
        (key, in_place): (Option<u64>, Option<Arc<dyn HostTargets>>),
    ) -> Result<Vec<JobId>> {
        if self.readers.is_empty() || job.legs.iter().any(|leg| self.gone[leg.lane]) {
            return Err(closed());
        }
        let GroupJob { plan, legs, class } = job;
        let reads: usize = plans.iter().map(|plan| plan.reads().len()).sum();
        let reads_left = u32::try_from(reads).unwrap_or(u32::MAX);
        core.reads_out.fetch_add(reads_left.into(), Ordering::Relaxed);
        let requests = plans.iter().map(|_| None).collect();
        let id = self.jobs.enter(|_| Running {
            whole: plan,
            plans,
            requests,
            in_place,
            legs: Arc::from(Vec::new()),
            class,
            reads_left,
            key,
        });
        let legs: Legs = legs.into_iter().map(|leg| self.enter_leg(core, id, leg)).collect();
        let names = legs.iter().map(|leg| leg.id).collect();
        if let Some(job) = self.jobs.get(id) {
            job.legs = Arc::clone(&legs);
        }
        // Those that waited before go first, but for those of lesser classes.
        let first = self.waiting.iter().all(|waiting| {
            let entry = self.jobs.entries.get(waiting.index()).and_then(|entry| entry.value.as_ref());
            entry.is_none_or(|entry| entry.class > class)
        });
        if first {
            match self.hand_over(id) {
                Ok(true) => {
                    self.open_to_others(key, id);
                    return Ok(names);
                }
                Ok(false) => {}
                Err(error) => {
                    // Reads of a ring that took its share come back for a job that is not there.
                    self.cancel_rest(core, id);
                    for leg in legs.iter() {
                        leg.dead.store(true, Ordering::Release);
                        self.legs.leave(leg.id);
                        core.open[leg.lane].fetch_sub(1, Ordering::Relaxed);
                    }
                    return Err(error);
                }
            }
        }
        self.waiting.push_back(id);
        self.move_up(id, class);
        self.open_to_others(key, id);
        Ok(names)
    }

    fn enter_leg(&mut self, core: &Core, job: JobId, leg: Leg) -> Arc<LegState> {
        let Leg { lane, device, places, sink, tag } = leg;
        let mut entered = None;
        self.legs.enter(|id| {
            let state = Arc::new(LegState {
                id,
                job,
                lane,
                device,
                places,
                sink,
                tag,
                dead: AtomicBool::new(false),
                begun: AtomicBool::new(false),
                finished: AtomicBool::new(false),
                held: AtomicU32::new(0),
            });
            Arc::clone(entered.insert(state))
        });
        core.open[lane].fetch_add(1, Ordering::Relaxed);
        entered.unwrap_or_else(|| unreachable!("the closure has run"))
    }

    fn open_to_others(&mut self, key: Option<u64>, id: JobId) {
        if let Some(key) = key {
            self.joinable.insert(key, id);
        }
    }

    fn close_to_others(&mut self, id: JobId) {
        if let Some(key) = self.jobs.get(id).and_then(|job| job.key.take())
            && self.joinable.get(&key) == Some(&id)
        {
            self.joinable.remove(&key);
        }
    }

    /// A leg more in a job that nothing has come of yet, for the same bytes in the same places of their targets.
    fn join(&mut self, core: &Core, key: u64, plan: &ReadPlan, leg: &Leg, class: ReadClass) -> Option<JobId> {
        if self.readers.is_empty() || self.gone[leg.lane] {
            return None;
        }
        let id = *self.joinable.get(&key)?;
        let job = self.jobs.get(id)?;
        let other_lanes = job.legs.iter().all(|other| other.lane != leg.lane);
        if !other_lanes || !job.wanted() || !reads_same(&job.whole, plan) {
            return None;
        }
        let mut legs = job.legs.to_vec();
        let Leg { lane, device, places, sink, tag } = leg;
        let (places, sink) = (places.clone(), Arc::clone(sink));
        let leg = Leg { lane: *lane, device: *device, places, sink, tag: *tag };
        let state = self.enter_leg(core, id, leg);
        let name = state.id;
        legs.push(state);
        if let Some(job) = self.jobs.get(id) {
            job.legs = legs.into();
        }
        self.promote(id, class);
        Some(name)
    }

    fn promote(&mut self, id: JobId, class: ReadClass) {
        let Some(job) = self.jobs.get(id).filter(|job| job.class > class) else { return };
        job.class = class;
        let requests = job.requests.clone();
        for (reader, request) in self.readers.iter().zip(&requests) {
            if let Some(request) = request {
                reader.promote(*request, class);
            }
        }
        self.move_up(id, class);
    }

    fn cancel_if_dead(&mut self, id: JobId) {
        if self.jobs.get(id).is_some_and(|job| !job.wanted()) {
            // One that still waits for a reader is ended by a dispatcher.
            self.cancel_requests(id);
        }
    }

    fn cancel_requests(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(id) else { return };
        let requests = job.requests.clone();
        for (reader, request) in self.readers.iter().zip(&requests) {
            if let Some(request) = request {
                reader.cancel(*request);
            }
        }
    }

    /// A job that ends before every ring has its share: what was taken is cancelled, and not awaited. Its legs are dead, or
    /// about to be, and what comes back finds no job.
    fn cancel_rest(&mut self, core: &Core, id: JobId) -> Option<Legs> {
        self.cancel_requests(id);
        self.close_to_others(id);
        let job = self.jobs.leave(id)?;
        core.reads_out.fetch_sub(job.reads_left.into(), Ordering::Relaxed);
        Some(job.legs)
    }

    /// A job that waits for room goes before those of lesser classes, behind those of its own.
    fn move_up(&mut self, id: JobId, class: ReadClass) {
        let Some(from) = self.waiting.iter().position(|&waiting| waiting == id) else { return };
        let lesser = |waiting: &JobId| {
            let entry = self.jobs.entries.get(waiting.index()).and_then(|entry| entry.value.as_ref());
            entry.is_some_and(|entry| entry.class > class)
        };
        if let Some(to) = self.waiting.iter().take(from).position(lesser) {
            self.waiting.remove(from);
            self.waiting.insert(to, id);
        }
    }

    /// False if a reader's queue is full; what it took before stays with the others.
    fn hand_over(&mut self, id: JobId) -> Result<bool> {
        for ring in 0..self.readers.len() {
            let Some(job) = self.jobs.get(id) else { return Ok(true) };
            if job.requests[ring].is_some() || job.plans[ring].reads().is_empty() {
                continue;
            }
            let (plan, class) = (Arc::clone(&job.plans[ring]), job.class);
            let in_place = job.in_place.clone();
            let request = ReadRequest { plan, class, token: id.token() };
            let submitted = match in_place {
                None => self.readers[ring].submit(request),
                Some(targets) => self.readers[ring].submit_in_place(request, targets),
            };
            match submitted {
                Ok(request) => {
                    if let Some(job) = self.jobs.get(id) {
                        job.requests[ring] = Some(request);
                    }
                }
                Err(error) if error.kind() == spoc_io::ErrorKind::QueueFull => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.jobs.get(id).is_none() || !self.readers.is_empty())
    }
}

/// Equal for plans that read the same bytes to the same places.
fn key_of(plan: &ReadPlan) -> u64 {
    let mut hasher = DefaultHasher::new();
    for read in plan.reads() {
        let file = &plan.files()[read.file as usize];
        (Arc::as_ptr(file) as usize, read.offset, read.len_bytes).hash(&mut hasher);
    }
    plan.pieces().len().hash(&mut hasher);
    hasher.finish()
}

fn reads_same(a: &ReadPlan, b: &ReadPlan) -> bool {
    let file = |plan: &ReadPlan, number: u32| Arc::as_ptr(&plan.files()[number as usize]);
    let same_digests = match (a.digests(), b.digests()) {
        (None, None) => true,
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        _ => false,
    };
    same_digests
        && a.pieces() == b.pieces()
        && a.reads().len() == b.reads().len()
        && a.reads().iter().zip(b.reads()).all(|(x, y)| {
            file(a, x.file) == file(b, y.file)
                && (x.offset, x.len_bytes, &x.need, &x.pieces) == (y.offset, y.len_bytes, &y.need, &y.pieces)
        })
}
