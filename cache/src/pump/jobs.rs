//! What the pump was asked for: a table of jobs, and those that the reader's queue had no room for.

use crate::{Error, ErrorKind, Result};
use spoc_bridge::Kept;
use spoc_driver::{Segment, Stream};
use spoc_io::{HostTargets, ReadClass, ReadPlan, ReadRequest, Reader, ReaderReport, RequestId};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// One running job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct JobId {
    index: u32,
    generation: u32,
}

impl JobId {
    /// Of no job.
    pub(super) const NONE: JobId = JobId { index: u32::MAX, generation: 0 };

    pub(super) fn new(index: u32, generation: u32) -> JobId {
        JobId { index, generation }
    }

    pub(super) fn index(self) -> usize {
        self.index as usize
    }

    pub(super) fn generation(self) -> u32 {
        self.generation
    }

    pub fn token(self) -> u64 {
        (u64::from(self.generation) << 32) | u64::from(self.index)
    }

    #[allow(clippy::cast_possible_truncation)] // the halves of a token
    pub fn from_token(token: u64) -> JobId {
        JobId { index: token as u32, generation: (token >> 32) as u32 }
    }
}

/// What takes jobs: the pump, or a test in its place. Neither call blocks or calls a sink.
pub(crate) trait Feed: Send + Sync {
    /// Begins a job. Its plan has at least one read, or its bytes are in the host tier.
    fn submit(&self, job: Job) -> Result<JobId>;
    /// Nobody wants the job any more; its sink still hears of its end.
    fn cancel(&self, job: JobId);
    /// Somebody wants the job sooner than it was asked for.
    fn promote(&self, job: JobId, class: ReadClass);
}

/// How a job goes on when its first chunk is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begin {
    /// It is not wanted any more.
    Skip,
    /// Copies may be enqueued.
    Go,
    /// They may, and the stream now waits for something that others enqueued.
    GoBehindReleases,
}

/// Who hears of a job. Calls come from the pump's thread, in this order: `begin`, `published` (or `failed`, at
/// any time), `ended`.
pub(crate) trait Sink: Send + Sync {
    /// Before the first copy: the stream may be made to wait.
    fn begin(&self, tag: u64, copies: &Stream) -> Result<Begin>;
    /// Every copy is enqueued, and the files are what they were.
    fn published(&self, tag: u64, copies: &Stream) -> Result<()>;
    /// It went wrong; `in_copy` if on the device's side. Once a job, perhaps after `published`.
    fn failed(&self, tag: u64, error: &Error, in_copy: bool);
    /// No read and no copy of it is in flight any more. The last call.
    fn ended(&self, tag: u64);
    /// Bytes whose copies were enqueued.
    fn progress(&self, _tag: u64, _bytes: u64) {}
    /// Now and then while there is little to do.
    fn tick(&self) {}
}

/// Where a target begins.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub segment: Segment,
    pub offset_bytes: u64,
}

/// Where the targets of a plan are.
#[derive(Debug, Clone)]
pub(crate) enum Places {
    /// Every target is this one.
    One { segment: Segment, offset_bytes: u64 },
    /// Target n is place n.
    Many(Arc<[Place]>),
    /// Target n is place n, if it is here at all.
    Some(Arc<[Option<Place>]>),
}

impl Places {
    pub fn of(&self, target: u32) -> Option<(&Segment, u64)> {
        match self {
            Places::One { segment, offset_bytes } => Some((segment, *offset_bytes)),
            Places::Many(places) => {
                places.get(target as usize).map(|place| (&place.segment, place.offset_bytes))
            }
            Places::Some(places) => {
                places.get(target as usize)?.as_ref().map(|place| (&place.segment, place.offset_bytes))
            }
        }
    }
}

/// Bytes to bring to the device.
pub(crate) struct Job {
    pub plan: Arc<ReadPlan>,
    pub places: Places,
    pub sink: Arc<dyn Sink>,
    /// The sink's name for it.
    pub tag: u64,
    pub class: ReadClass,
    /// Targets that the reader may fill itself.
    pub in_place: Option<Arc<dyn HostTargets>>,
    /// All bytes of the first target, in the host tier: nothing is read.
    pub held: Option<Arc<Kept>>,
}

/// What the thread needs of a job for one chunk.
#[derive(Clone)]
pub(super) struct Work {
    pub id: JobId,
    pub plan: Arc<ReadPlan>,
    pub places: Places,
    pub sink: Arc<dyn Sink>,
    pub tag: u64,
    pub begun: bool,
    pub dead: bool,
}

/// What a step did to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Progress {
    /// Every read has come back.
    pub all_read: bool,
    /// Nothing of it is in flight: it left the table.
    pub ended: bool,
}

struct Entry {
    generation: u32,
    work: Option<Work>,
    in_place: Option<Arc<dyn HostTargets>>,
    held: Option<Arc<Kept>>,
    class: ReadClass,
    request: Option<RequestId>,
    reads_left: u32,
    copies_in_flight: u32,
}

struct Table {
    reader: Option<Reader>,
    entries: Vec<Entry>,
    unused: Vec<u32>,
    waiting: VecDeque<JobId>,
    /// Jobs whose bytes are in the host tier.
    held: VecDeque<JobId>,
    watchers: Vec<Weak<dyn Sink>>,
    /// Reads handed to the reader that have not come back.
    reads_out: u64,
    /// The thread has ended.
    ended: bool,
}

/// The table, shared by submitters and the thread.
pub(crate) struct Jobs(Mutex<Table>);

fn closed() -> Error {
    Error::new(ErrorKind::Closed)
}

impl Jobs {
    pub(super) fn new(reader: Reader) -> Jobs {
        Jobs(Mutex::new(Table {
            reader: Some(reader),
            entries: Vec::new(),
            unused: Vec::new(),
            waiting: VecDeque::new(),
            held: VecDeque::new(),
            watchers: Vec::new(),
            reads_out: 0,
            ended: false,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // No call under this lock leaves the table half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn submit(&self, job: Job) -> Result<JobId> {
        let mut table = self.lock();
        if table.ended || table.reader.is_none() {
            return Err(closed());
        }
        let held = job.held.is_some();
        let id = table.enter(job);
        if held {
            table.held.push_back(id);
            return Ok(id);
        }
        // Those that waited before go first, but for those of lesser classes.
        let class = table.find(id).map_or(ReadClass::Refill, |entry| entry.class);
        let mut before = table.waiting.iter().map(|waiting| table.entries[waiting.index as usize].class);
        if before.all(|waiting| waiting > class) {
            match table.hand_over(id) {
                Ok(true) => return Ok(id),
                Ok(false) => {}
                Err(error) => {
                    table.leave(id);
                    return Err(error);
                }
            }
        }
        table.waiting.push_back(id);
        table.move_up(id, class);
        Ok(id)
    }

    pub(super) fn cancel(&self, id: JobId) {
        let mut table = self.lock();
        let Some(entry) = table.find(id) else { return };
        if let Some(work) = &mut entry.work {
            work.dead = true;
        }
        // One that still waits for the reader is ended by the thread: its sink must not be called from here.
        let request = entry.request;
        if let (Some(request), Some(reader)) = (request, &table.reader) {
            reader.cancel(request);
        }
    }

    /// Makes a job more urgent: in the reader, or among those that wait for room there.
    pub(super) fn promote(&self, id: JobId, class: ReadClass) {
        let mut table = self.lock();
        let Some(entry) = table.find(id) else { return };
        if entry.class <= class {
            return;
        }
        entry.class = class;
        let request = entry.request;
        match (request, &table.reader) {
            (Some(request), Some(reader)) => {
                reader.promote(request, class);
            }
            _ => table.move_up(id, class),
        }
    }

    /// Hands waiting jobs to the reader while it has room. Returns one that needs no reader: cancelled while it
    /// waited, or refused; its sink is to be told.
    pub(super) fn hand_over_waiting(&self) -> Option<(Work, Option<Error>)> {
        let mut table = self.lock();
        while let Some(&id) = table.waiting.front() {
            let dead = table.find(id).and_then(|entry| entry.work.as_ref()).is_none_or(|work| work.dead);
            let refused = if dead {
                None
            } else {
                match table.hand_over(id) {
                    Ok(false) => return None,
                    Ok(true) => {
                        table.waiting.pop_front();
                        continue;
                    }
                    Err(error) => Some(error),
                }
            };
            table.waiting.pop_front();
            if let Some(work) = table.leave(id) {
                return Some((work, refused));
            }
        }
        None
    }

    /// The next job whose bytes are in the host tier.
    pub(super) fn next_held(&self) -> Option<(Work, Arc<Kept>)> {
        let mut table = self.lock();
        loop {
            let id = table.held.pop_front()?;
            let Some(entry) = table.find(id) else { continue };
            if let (Some(work), Some(kept)) = (entry.work.clone(), entry.held.take()) {
                return Some((work, kept));
            }
        }
    }

    /// The job of a completion, which counts as returned.
    pub(super) fn arrived(&self, id: JobId) -> Option<Work> {
        let mut table = self.lock();
        table.reads_out = table.reads_out.saturating_sub(1);
        let entry = table.find(id)?;
        entry.reads_left = entry.reads_left.saturating_sub(1);
        entry.work.clone()
    }

    pub(super) fn set_begun(&self, id: JobId) {
        if let Some(work) = self.lock().find(id).and_then(|entry| entry.work.as_mut()) {
            work.begun = true;
        }
    }

    /// Nothing more of the job is copied. False if that was so before.
    pub(super) fn kill(&self, id: JobId) -> bool {
        let mut table = self.lock();
        let Some(entry) = table.find(id) else { return false };
        let Some(work) = &mut entry.work else { return false };
        let first = !std::mem::replace(&mut work.dead, true);
        let request = entry.request;
        if let (true, Some(request), Some(reader)) = (first, request, &table.reader) {
            reader.cancel(request);
        }
        first
    }

    /// A chunk of the job is held for its copies, or none is; or a chunk's copies have run.
    pub(super) fn step(&self, id: JobId, held: bool, retired: bool) -> Progress {
        let mut table = self.lock();
        let Some(entry) = table.find(id) else {
            return Progress { all_read: false, ended: false };
        };
        entry.copies_in_flight += u32::from(held);
        entry.copies_in_flight -= u32::from(retired).min(entry.copies_in_flight);
        let all_read = entry.reads_left == 0;
        let ended = all_read && entry.copies_in_flight == 0;
        if ended {
            table.leave(id);
        }
        Progress { all_read, ended }
    }

    /// It failed, is not wanted any more, or has left.
    pub(super) fn is_dead(&self, id: JobId) -> bool {
        self.lock().find(id).and_then(|entry| entry.work.as_ref()).is_none_or(|work| work.dead)
    }

    pub(super) fn reads_out(&self) -> u64 {
        self.lock().reads_out
    }

    /// Every job there is, for the end of the thread; the table is empty afterwards.
    pub(super) fn drain(&self) -> Vec<Work> {
        let mut table = self.lock();
        table.ended = true;
        table.waiting.clear();
        table.held.clear();
        (0..table.entries.len())
            .filter_map(|index| {
                let index = u32::try_from(index).ok()?;
                let generation = table.entries[index as usize].generation;
                table.leave(JobId { index, generation })
            })
            .collect()
    }

    pub(super) fn close(&self) -> Option<Reader> {
        self.lock().reader.take()
    }

    pub(super) fn report(&self) -> Result<ReaderReport> {
        self.lock().reader.as_ref().map(Reader::report).ok_or_else(closed)
    }

    /// Time waited for chunks in ns, and bytes read.
    pub(super) fn reader_figures(&self) -> Result<(u64, u64)> {
        self.report().map(|report| (report.chunk_wait_ns, report.read_bytes))
    }

    pub(super) fn watch(&self, sink: Weak<dyn Sink>) {
        let mut table = self.lock();
        table.watchers.retain(|watcher| watcher.strong_count() > 0);
        table.watchers.push(sink);
    }

    pub(super) fn watcher(&self, index: usize) -> Option<Option<Arc<dyn Sink>>> {
        self.lock().watchers.get(index).map(Weak::upgrade)
    }
}

impl Table {
    fn enter(&mut self, job: Job) -> JobId {
        let index = self.unused.pop().unwrap_or_else(|| {
            self.entries.push(Entry {
                generation: 0,
                work: None,
                in_place: None,
                held: None,
                class: ReadClass::Demand,
                request: None,
                reads_left: 0,
                copies_in_flight: 0,
            });
            u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX)
        });
        let entry = &mut self.entries[index as usize];
        entry.generation = entry.generation.wrapping_add(1);
        let id = JobId { index, generation: entry.generation };
        entry.class = job.class;
        entry.in_place = job.in_place;
        entry.request = None;
        let reads = if job.held.is_some() { 0 } else { job.plan.reads().len() };
        entry.reads_left = u32::try_from(reads).unwrap_or(u32::MAX);
        entry.held = job.held;
        entry.copies_in_flight = 0;
        entry.work = Some(Work {
            id,
            plan: job.plan,
            places: job.places,
            sink: job.sink,
            tag: job.tag,
            begun: false,
            dead: false,
        });
        id
    }

    /// A job that waits for room goes before those of lesser classes, behind those of its own.
    fn move_up(&mut self, id: JobId, class: ReadClass) {
        let Some(from) = self.waiting.iter().position(|&waiting| waiting == id) else { return };
        let lesser = |waiting: &JobId| {
            let entry = self.entries.get(waiting.index as usize);
            entry.is_some_and(|entry| entry.generation == waiting.generation && entry.class > class)
        };
        if let Some(to) = self.waiting.iter().take(from).position(lesser) {
            self.waiting.remove(from);
            self.waiting.insert(to, id);
        }
    }

    fn find(&mut self, id: JobId) -> Option<&mut Entry> {
        self.entries
            .get_mut(id.index as usize)
            .filter(|entry| entry.generation == id.generation && entry.work.is_some())
    }

    fn leave(&mut self, id: JobId) -> Option<Work> {
        let entry = self.find(id)?;
        (entry.in_place, entry.held) = (None, None);
        let work = entry.work.take();
        self.unused.push(id.index);
        work
    }

    /// False if the reader's queue is full.
    fn hand_over(&mut self, id: JobId) -> Result<bool> {
        let Some(entry) = self.find(id) else { return Ok(true) };
        let Some(work) = &entry.work else { return Ok(true) };
        let (plan, class, reads) = (Arc::clone(&work.plan), entry.class, u64::from(entry.reads_left));
        let in_place = entry.in_place.clone();
        let Some(reader) = &self.reader else { return Err(closed()) };
        let request = ReadRequest { plan, class, token: id.token() };
        let submitted = match in_place {
            None => reader.submit(request),
            Some(targets) => reader.submit_in_place(request, targets),
        };
        match submitted {
            Ok(request) => {
                self.reads_out += reads;
                if let Some(entry) = self.find(id) {
                    entry.request = Some(request);
                }
                Ok(true)
            }
            Err(error) if error.kind() == spoc_io::ErrorKind::QueueFull => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
