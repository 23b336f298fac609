//! The copy thread.
//!
//! Chunks that have arrived together are enqueued together: one submission, one event behind it. While the reader has
//! chunks left, the thread waits for reads and only looks at copies, so that the device is never idle because the
//! thread sat in a wait for the copy before.

use super::Shared;
use super::jobs::{Begin, JobId, Work};
use crate::stats::layout::Counter;
use crate::{Error, ErrorKind, Result};
use crossbeam_channel::{Receiver, TryRecvError};
use spoc_bridge::{Batch, Kept, RingMemory};
use spoc_driver::{Device, Event, Stream};
use spoc_io::{Chunk, Completion};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long the thread sleeps at most: its heartbeat, and the delay of noticing that it is to stop while the
/// reader cannot end.
pub(super) const BEAT: Duration = Duration::from_millis(500);

/// How often the thread looks at copies that may stand behind a launch while it waits for reads.
pub(super) const GLANCE_STANDING: Duration = Duration::from_millis(10);

/// How often it looks at others.
pub(super) const GLANCE: Duration = Duration::from_millis(1);

/// How often it looks at copies into the host tier that a fill waits for.
pub(super) const GLANCE_JOINED: Duration = Duration::from_micros(50);

/// When it looks for the first time at copies that have just been enqueued: a chunk that is back before the next read is
/// read into while it is still in the caches.
const GLANCE_FRESH: Duration = Duration::from_micros(100);

/// Chunks enqueued together, at most. More gain nothing, and come back to the ring later.
pub(super) const BATCH_MAX: usize = 8;

/// A chunk whose copies are enqueued, or are about to be.
struct Held {
    job: JobId,
    /// Kept for the end: the table forgets a job that has ended.
    work: Work,
    bytes: u64,
}

/// The thread's own state.
pub(super) struct Copier {
    shared: Arc<Shared>,
    completions: Receiver<Completion>,
    /// Something came that no completion tells of.
    woken: Receiver<()>,
    ring: Arc<RingMemory>,
    copies: Stream,
    batch: Batch,
    /// One for each chunk of the batch.
    pending: Vec<Held>,
    batch_max: usize,
    /// Oldest first.
    in_flight: VecDeque<Held>,
    /// The event behind each batch and how many of `in_flight` are of it, oldest first.
    batches: VecDeque<(Event, usize)>,
    /// One event a batch: as many as can be in flight.
    events: Vec<Event>,
    chunks: usize,
    /// Work was enqueued behind releases of leases: the copy stream may stand until launches have ended.
    may_stand: bool,
    /// Jobs whose bytes are still on their way into the host tier.
    joined: Vec<(Work, Arc<Kept>)>,
    /// Nobody has looked at the youngest copies yet.
    fresh: bool,
    last_beat: Instant,
}

enum Next {
    Chunk(Completion),
    Again,
    Stop,
}

impl Copier {
    pub fn new(
        device: &Device,
        shared: Arc<Shared>,
        (completions, woken): (Receiver<Completion>, Receiver<()>),
        ring: Arc<RingMemory>,
        copies: Stream,
        chunks: usize,
    ) -> Result<Copier> {
        // A submission each for the copies of a chunk, its event and a fill's event and waits.
        copies.reserve(4 * chunks + 16, 4);
        let events = (0..chunks).map(|_| device.create_event()).collect::<Result<Vec<_>, _>>()?;
        // A small part of the ring: the chunks of a batch come back together.
        let batch_max = (chunks / 8).clamp(1, BATCH_MAX);
        Ok(Copier {
            shared,
            completions,
            woken,
            ring,
            copies,
            batch: Batch::new(batch_max, chunks),
            pending: Vec::with_capacity(batch_max),
            batch_max,
            in_flight: VecDeque::with_capacity(chunks),
            batches: VecDeque::with_capacity(chunks),
            events,
            chunks,
            may_stand: false,
            joined: Vec::new(),
            fresh: false,
            last_beat: Instant::now(),
        })
    }

    pub fn run(mut self) {
        loop {
            match self.next() {
                Next::Chunk(completion) => self.take_ready(completion),
                Next::Again => {}
                Next::Stop => break,
            }
            self.take_held();
            self.hand_over_waiting();
        }
    }

    /// What to do next. Waits for a read while the reader has chunks left, else for the oldest copies.
    fn next(&mut self) -> Next {
        self.beat();
        self.retire_fired();
        match self.completions.try_recv() {
            Ok(completion) => return Next::Chunk(completion),
            Err(TryRecvError::Disconnected) => return Next::Stop,
            Err(TryRecvError::Empty) => {}
        }
        let reads_out = self.shared.jobs.reads_out() > 0;
        // Copies that stand behind a launch must not keep others from being enqueued, either.
        let reader_first = (reads_out || self.may_stand || !self.joined.is_empty())
            && self.in_flight.len() <= self.chunks / 2;
        if self.in_flight.is_empty() || reader_first {
            self.wait_for_read(reads_out)
        } else {
            self.wait_for_copy()
        }
    }

    fn wait_for_read(&mut self, reads_out: bool) -> Next {
        let began = Instant::now();
        let patience = match (self.in_flight.is_empty(), self.may_stand) {
            _ if !self.joined.is_empty() => GLANCE_JOINED,
            (true, _) => BEAT,
            (false, true) => GLANCE_STANDING,
            (false, false) if std::mem::take(&mut self.fresh) => GLANCE_FRESH,
            (false, false) => GLANCE,
        };
        let received = crossbeam_channel::select! {
            recv(self.completions) -> received => received.map_or(Next::Stop, Next::Chunk),
            recv(self.woken) -> _ => Next::Again,
            default(patience) => Next::Again,
        };
        if reads_out && self.in_flight.is_empty() {
            self.shared.counters.add_time(Counter::WaitReadsNs, began.elapsed());
        }
        match received {
            Next::Again if self.shared.stopping.load(Ordering::Acquire) => Next::Stop,
            next => next,
        }
    }

    fn wait_for_copy(&mut self) -> Next {
        let Some((oldest, _)) = self.batches.front() else { return Next::Again };
        let began = Instant::now();
        let waited = oldest.synchronize();
        self.shared.counters.add_time(Counter::WaitCopiesNs, began.elapsed());
        match waited {
            Ok(()) => self.retire_oldest(),
            Err(error) => self.fail_stream(&error.into()),
        }
        Next::Again
    }

    fn retire_fired(&mut self) {
        while let Some((oldest, _)) = self.batches.front() {
            match oldest.query() {
                Ok(true) => self.retire_oldest(),
                Ok(false) => return,
                Err(error) => return self.fail_stream(&error.into()),
            }
        }
    }

    fn retire_oldest(&mut self) {
        let Some((event, chunks)) = self.batches.pop_front() else { return };
        self.events.push(event);
        self.retire(chunks);
    }

    fn retire(&mut self, chunks: usize) {
        for _ in 0..chunks {
            let Some(done) = self.in_flight.pop_front() else { break };
            self.let_go(&done);
        }
        self.may_stand &= !self.in_flight.is_empty();
    }

    /// The chunk is no longer in use.
    fn let_go(&self, held: &Held) {
        if self.shared.jobs.step(held.job, false, true).ended {
            held.work.sink.ended(held.work.tag);
        }
    }

    /// An error of the copy stream says nothing about which copy: all that have not been seen to end failed.
    fn fail_stream(&mut self, error: &Error) {
        tracing::error!(%error, "the copy stream failed");
        self.shared.counters.add(Counter::StreamErrors, 1);
        // Copies behind the one that failed may still run: what they touch is given up only afterwards.
        let _ = self.copies.synchronize();
        for lost in &self.in_flight {
            if self.shared.jobs.kill(lost.job) {
                lost.work.sink.failed(lost.work.tag, error, true);
            }
        }
        self.events.extend(self.batches.drain(..).map(|(event, _)| event));
        self.retire(self.in_flight.len());
    }

    /// This completion, and those that are there already: one batch at most.
    fn take_ready(&mut self, first: Completion) {
        self.take(first);
        for _ in 1..self.batch_max {
            match self.completions.try_recv() {
                Ok(completion) => self.take(completion),
                Err(_) => break,
            }
        }
        self.flush();
    }

    /// One completion: its chunk goes to the batch, or its job fails.
    fn take(&mut self, completion: Completion) {
        let id = JobId::from_token(completion.token);
        let Some(mut work) = self.shared.jobs.arrived(id) else { return };
        let (mut held, mut in_place) = (false, false);
        match completion.outcome {
            Err(error) => self.fail(&work, &error.into(), false),
            // Nobody wants it any more: the chunk goes back to the ring.
            Ok(_) if work.dead => {}
            Ok(chunk) => {
                in_place = chunk.is_in_place();
                match self.hold(&mut work, completion.read, chunk) {
                    Ok(did) => held = did,
                    Err(error) => self.fail(&work, &error, true),
                }
            }
        }
        let progress = self.shared.jobs.step(id, held, false);
        if progress.all_read && held {
            self.publish(id, &work);
        }
        // What is in place already has no copy that would end later.
        let ended = progress.ended || (held && in_place && self.shared.jobs.step(id, false, true).ended);
        if ended {
            work.sink.ended(work.tag);
        }
    }

    /// The last chunk of a job has arrived.
    fn publish(&mut self, id: JobId, work: &Work) {
        self.flush();
        // The reader has judged the files: the last completion of a plan whose files changed is an error.
        if !self.shared.jobs.is_dead(id)
            && let Err(error) = work.sink.published(work.tag, &self.copies)
        {
            self.fail(work, &error, true);
        }
    }

    fn fail(&self, work: &Work, error: &Error, in_copy: bool) {
        if self.shared.jobs.kill(work.id) {
            work.sink.failed(work.tag, error, in_copy);
        }
    }

    /// Adds one chunk to the batch. False if the job is not wanted any more.
    fn hold(&mut self, work: &mut Work, read: u32, chunk: Chunk) -> Result<bool> {
        if !work.begun {
            // The stream may be made to wait: not for what others have in the batch.
            self.flush();
            match work.sink.begin(work.tag, &self.copies)? {
                Begin::Skip => {
                    self.shared.jobs.kill(work.id);
                    return Ok(false);
                }
                Begin::Go => {}
                Begin::GoBehindReleases => self.may_stand = true,
            }
            work.begun = true;
            self.shared.jobs.set_begun(work.id);
        }
        if chunk.is_in_place() {
            self.arrived_in_place(work, read);
            return Ok(true);
        }
        self.batch.hold(chunk);
        let mut bytes = 0;
        let pieces = work.plan.reads().get(read as usize).map(|read| work.plan.pieces_of(read));
        for piece in pieces.unwrap_or_default() {
            let Some((dst, base)) = work.places.of(piece.target) else { continue };
            let (from, len_bytes) = (piece.chunk_offset as usize, piece.len_bytes as usize);
            if self.batch.copy(from, dst, base + piece.target_offset, len_bytes) {
                bytes += u64::from(piece.len_bytes);
            }
        }
        self.pending.push(Held { job: work.id, work: work.clone(), bytes });
        Ok(true)
    }

    /// Jobs whose bytes are in the host tier: a copy each.
    fn take_held(&mut self) {
        let mut joined = std::mem::take(&mut self.joined);
        joined.extend(std::iter::from_fn(|| self.shared.jobs.next_held()));
        for (work, kept) in joined.drain(..) {
            if self.shared.jobs.is_dead(work.id) {
                self.step_held(&work, false);
                continue;
            }
            if let Ok(false) = kept.is_there() {
                self.joined.push((work, kept));
                continue;
            }
            // The stream may be made to wait: not for what others have in the batch.
            self.flush();
            match self.promote(&work, &kept) {
                Ok(true) => self.publish(work.id, &work),
                Ok(false) => self.step_held(&work, false),
                Err(error) => {
                    self.fail(&work, &error, true);
                    self.step_held(&work, false);
                }
            }
        }
        if self.joined.is_empty() {
            // Its room is used again.
            self.joined = joined;
        }
    }

    fn step_held(&self, work: &Work, held: bool) {
        if self.shared.jobs.step(work.id, held, false).ended {
            work.sink.ended(work.tag);
        }
    }

    /// Enqueues the copy out of the tier. False if nobody wants it any more.
    fn promote(&mut self, work: &Work, kept: &Kept) -> Result<bool> {
        let began = Instant::now();
        match work.sink.begin(work.tag, &self.copies)? {
            Begin::Skip => {
                self.shared.jobs.kill(work.id);
                return Ok(false);
            }
            Begin::Go => {}
            Begin::GoBehindReleases => self.may_stand = true,
        }
        self.shared.jobs.set_begun(work.id);
        let (dst, base) = work.places.of(0).ok_or_else(|| Error::new(ErrorKind::Closed))?;
        kept.copy_to(&self.copies, dst, base)?;
        let bytes = kept.len_bytes() as u64;
        self.shared.counters.add(Counter::Copies, 1);
        self.step_held(work, true);
        self.in_flight.push_back(Held { job: work.id, work: work.clone(), bytes });
        self.seal(1, began);
        Ok(true)
    }

    /// A read that ended in its targets: the host waited for it, so that whatever is enqueued from now on sees its bytes.
    fn arrived_in_place(&self, work: &Work, read: u32) {
        let pieces = work.plan.reads().get(read as usize).map(|read| work.plan.pieces_of(read));
        let bytes = pieces.unwrap_or_default().iter().map(|piece| u64::from(piece.len_bytes)).sum();
        self.shared.counters.add(Counter::CopiedBytes, bytes);
        work.sink.progress(work.tag, bytes);
    }

    /// Enqueues the batch and an event behind it.
    fn flush(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let began = Instant::now();
        // The device may still be learning of the ring.
        self.ring.settle();
        if began.elapsed() > GLANCE {
            tracing::debug!(waited_us = began.elapsed().as_micros(), "waited for the ring's registration");
        }
        let began = Instant::now();
        let enqueued = match self.batch.enqueue(&self.copies) {
            Ok(copies) => {
                self.shared.counters.add(Counter::Copies, copies);
                let chunks = self.pending.len();
                self.in_flight.extend(self.pending.drain(..));
                chunks
            }
            Err(error) => self.enqueue_each(&error.into()),
        };
        if enqueued > 0 {
            self.seal(enqueued, began);
        }
    }

    /// The batch was refused: one chunk may be to blame, so each has its own try and fails alone. Answers how many were
    /// enqueued.
    fn enqueue_each(&mut self, error: &Error) -> usize {
        if let [_] = self.pending[..] {
            self.batch.clear();
            self.refused(error);
            return 0;
        }
        tracing::warn!(%error, chunks = self.pending.len(), "copies were refused together; each chunk has its own try");
        let mut outcomes = Vec::with_capacity(self.pending.len());
        self.batch.enqueue_each(&self.copies, |outcome| outcomes.push(outcome));
        let mut enqueued = 0;
        for outcome in outcomes {
            match outcome {
                Ok(copies) => {
                    self.shared.counters.add(Counter::Copies, copies);
                    self.in_flight.push_back(self.pending.remove(0));
                    enqueued += 1;
                }
                Err(error) => self.refused(&error.into()),
            }
        }
        enqueued
    }

    /// The oldest pending chunk's copies were refused.
    fn refused(&mut self, error: &Error) {
        let held = self.pending.remove(0);
        self.fail(&held.work, error, true);
        self.let_go(&held);
    }

    /// Records an event behind the youngest `chunks` chunks, and counts them.
    fn seal(&mut self, chunks: usize, began: Instant) {
        // As many events as chunks, and each batch has one at least: creating one cannot be, and costs nothing.
        let event = self.events.pop().map_or_else(|| self.copies.device().create_event(), Ok);
        let recorded = event.and_then(|event| self.copies.record(&event).map(|()| event));
        match recorded {
            Ok(event) => {
                self.batches.push_back((event, chunks));
                self.fresh = true;
            }
            // Copies without an event: only the stream itself can still say when they end.
            Err(error) => return self.fail_stream(&error.into()),
        }
        let counters = &self.shared.counters;
        counters.add(Counter::Chunks, chunks as u64);
        counters.add_time(Counter::EnqueueNs, began.elapsed());
        for held in self.in_flight.range(self.in_flight.len() - chunks..) {
            counters.add(Counter::CopiedBytes, held.bytes);
            held.work.sink.progress(held.work.tag, held.bytes);
        }
    }

    fn hand_over_waiting(&self) {
        while let Some((work, refused)) = self.shared.jobs.hand_over_waiting() {
            if let Some(error) = refused {
                work.sink.failed(work.tag, &error, false);
            }
            work.sink.ended(work.tag);
        }
    }

    /// A sign of life, and time for those who asked for it.
    fn beat(&mut self) {
        if self.last_beat.elapsed() < BEAT {
            return;
        }
        self.last_beat = Instant::now();
        self.shared.counters.beat();
        self.shared.note_reader();
        let mut index = 0;
        while let Some(watcher) = self.shared.jobs.watcher(index) {
            if let Some(sink) = watcher {
                sink.tick();
            }
            index += 1;
        }
    }

    /// No more reads come: copies that are enqueued run to their end, everything else fails.
    fn end(&mut self) {
        while !self.batches.is_empty() {
            let _ = self.wait_for_copy();
        }
        if !self.in_flight.is_empty() {
            // Enqueued without an event behind them.
            let _ = self.copies.synchronize();
            self.retire(self.in_flight.len());
        }
        let closed = Error::new(ErrorKind::Closed);
        for work in self.shared.jobs.drain() {
            if !work.dead {
                work.sink.failed(work.tag, &closed, false);
            }
            work.sink.ended(work.tag);
        }
        self.shared.note_reader();
    }
}

impl Drop for Copier {
    /// However the thread ends, by a panic too: nobody waits for ever.
    fn drop(&mut self) {
        self.end();
    }
}
