//! The copy thread.

use super::Shared;
use super::jobs::{Begin, JobId, Work};
use crate::stats::layout::Counter;
use crate::{Error, ErrorKind, Result};
use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError};
use spoc_bridge::ChunkSource;
use spoc_driver::{CopyRange, Device, Event, Stream};
use spoc_io::{Chunk, Completion};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long the thread sleeps at most: its heartbeat, and the delay of noticing that it is to stop while the
/// reader cannot end.
const BEAT: Duration = Duration::from_millis(500);

/// How often the thread looks at copies that may stand behind a launch while it waits for reads.
const GLANCE: Duration = Duration::from_millis(10);

/// Pieces of one chunk that there is room for before a larger list is made (and kept).
const PIECES: usize = 64;

/// A chunk whose copies are enqueued.
struct InFlight {
    job: JobId,
    /// Kept for the end: the table forgets a job that has ended.
    work: Work,
    event: Event,
}

/// The thread's own state.
pub(super) struct Copier {
    shared: Arc<Shared>,
    completions: Receiver<Completion>,
    copies: Stream,
    /// Oldest first.
    in_flight: VecDeque<InFlight>,
    /// One event a chunk: as many as can be in flight.
    events: Vec<Event>,
    chunks: usize,
    ranges: Vec<CopyRange<'static>>,
    /// Work was enqueued behind releases of leases: the copy stream may stand until launches have ended.
    may_stand: bool,
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
        completions: Receiver<Completion>,
        copies: Stream,
        chunks: usize,
    ) -> Result<Copier> {
        // A submission each for the copies of a chunk, its event and a fill's event and waits.
        copies.reserve(4 * chunks + 16, 4);
        let events = (0..chunks).map(|_| device.create_event()).collect::<Result<Vec<_>, _>>()?;
        Ok(Copier {
            shared,
            completions,
            copies,
            in_flight: VecDeque::with_capacity(chunks),
            events,
            chunks,
            ranges: Vec::with_capacity(PIECES),
            may_stand: false,
            last_beat: Instant::now(),
        })
    }

    pub fn run(mut self) {
        loop {
            match self.next() {
                Next::Chunk(completion) => self.take(completion),
                Next::Again => {}
                Next::Stop => break,
            }
            self.hand_over_waiting();
        }
    }

    /// What to do next. Waits for a read while nothing is on the device, else for the oldest copy.
    fn next(&mut self) -> Next {
        self.beat();
        self.retire_fired();
        match self.completions.try_recv() {
            Ok(completion) => return Next::Chunk(completion),
            Err(TryRecvError::Disconnected) => return Next::Stop,
            Err(TryRecvError::Empty) => {}
        }
        let reads_out = self.shared.jobs.reads_out() > 0;
        // Copies that stand behind a launch must not keep others from being enqueued: while the reader has
        // chunks left, reads are waited for and the copies only looked at.
        let reader_first = self.may_stand && self.in_flight.len() <= self.chunks / 2;
        if self.in_flight.is_empty() || reader_first {
            self.wait_for_read(reads_out)
        } else {
            self.wait_for_copy()
        }
    }

    fn wait_for_read(&mut self, reads_out: bool) -> Next {
        let began = Instant::now();
        let patience = if self.in_flight.is_empty() { BEAT } else { GLANCE };
        let received = self.completions.recv_timeout(patience);
        if reads_out && self.in_flight.is_empty() {
            self.shared.counters.add_time(Counter::WaitReadsNs, began.elapsed());
        }
        match received {
            Ok(completion) => Next::Chunk(completion),
            Err(RecvTimeoutError::Disconnected) => Next::Stop,
            Err(RecvTimeoutError::Timeout) if self.shared.stopping.load(Ordering::Acquire) => Next::Stop,
            Err(RecvTimeoutError::Timeout) => Next::Again,
        }
    }

    fn wait_for_copy(&mut self) -> Next {
        let Some(oldest) = self.in_flight.front() else { return Next::Again };
        let began = Instant::now();
        let waited = oldest.event.synchronize();
        self.shared.counters.add_time(Counter::WaitCopiesNs, began.elapsed());
        match waited {
            Ok(()) => self.retire_oldest(),
            Err(error) => self.fail_stream(&error.into()),
        }
        Next::Again
    }

    fn retire_fired(&mut self) {
        while let Some(oldest) = self.in_flight.front() {
            match oldest.event.query() {
                Ok(true) => self.retire_oldest(),
                Ok(false) => return,
                Err(error) => return self.fail_stream(&error.into()),
            }
        }
    }

    fn retire_oldest(&mut self) {
        let Some(done) = self.in_flight.pop_front() else { return };
        self.events.push(done.event);
        self.may_stand &= !self.in_flight.is_empty();
        if self.shared.jobs.step(done.job, false, true).ended {
            done.work.sink.ended(done.work.tag);
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
        while !self.in_flight.is_empty() {
            self.retire_oldest();
        }
    }

    /// One completion: its copies are enqueued, or its job fails.
    fn take(&mut self, completion: Completion) {
        let id = JobId::from_token(completion.token);
        let Some(mut work) = self.shared.jobs.arrived(id) else { return };
        let mut enqueued = false;
        match completion.outcome {
            Err(error) => self.fail(&work, &error.into(), false),
            // Nobody wants it any more: the chunk goes back to the ring.
            Ok(_) if work.dead => {}
            Ok(chunk) => match self.copy(&mut work, completion.read, chunk) {
                Ok(did) => enqueued = did,
                Err(error) => self.fail(&work, &error, true),
            },
        }
        let progress = self.shared.jobs.step(id, enqueued, false);
        if progress.all_read
            && enqueued
            && !progress.dead
            // The reader has judged the files: the last completion of a plan whose files changed is an error.
            && let Err(error) = work.sink.published(work.tag, &self.copies)
        {
            self.fail(&work, &error, true);
        }
        if progress.ended {
            work.sink.ended(work.tag);
        }
    }

    fn fail(&self, work: &Work, error: &Error, in_copy: bool) {
        if self.shared.jobs.kill(work.id) {
            work.sink.failed(work.tag, error, in_copy);
        }
    }

    /// Enqueues the copies of one chunk and an event behind them. False if the job is not wanted any more.
    fn copy(&mut self, work: &mut Work, read: u32, chunk: Chunk) -> Result<bool> {
        let began = Instant::now();
        if !work.begun {
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
        let bytes = self.enqueue(work, read, chunk)?;
        let event = match self.events.pop() {
            Some(event) => event,
            // As many events as chunks, and each chunk in flight holds one: cannot be, and costs nothing.
            None => self.copies.device().create_event()?,
        };
        if let Err(error) = self.copies.record(&event) {
            // Copies without an event: only the stream itself can still say when they end.
            let error = Error::from(error);
            self.fail_stream(&error);
            return Err(error);
        }
        self.in_flight.push_back(InFlight { job: work.id, work: work.clone(), event });
        let counters = &self.shared.counters;
        counters.add(Counter::Chunks, 1);
        counters.add(Counter::CopiedBytes, bytes);
        counters.add_time(Counter::EnqueueNs, began.elapsed());
        work.sink.progress(work.tag, bytes);
        Ok(true)
    }

    fn enqueue(&mut self, work: &Work, read: u32, chunk: Chunk) -> Result<u64> {
        let mut ranges: Vec<CopyRange<'_>> = std::mem::take(&mut self.ranges);
        let mut bytes = 0;
        let pieces = work.plan.reads().get(read as usize).map(|read| work.plan.pieces_of(read));
        for piece in pieces.unwrap_or_default() {
            let Some((dst, base)) = work.places.of(piece.target) else { continue };
            bytes += u64::from(piece.len_bytes);
            ranges.push(CopyRange {
                src_offset: piece.chunk_offset as usize,
                dst,
                dst_offset: base + piece.target_offset,
                len_bytes: piece.len_bytes as usize,
            });
        }
        self.shared.counters.add(Counter::Copies, ranges.len() as u64);
        let copied = self.copies.copy_to_device(ChunkSource::new(chunk), &ranges);
        self.ranges = emptied(ranges);
        match copied {
            Ok(()) => Ok(bytes),
            // The chunk came back with the error and goes to the ring here.
            Err(returned) => Err(returned.error.into()),
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
        while !self.in_flight.is_empty() {
            let _ = self.wait_for_copy();
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

/// The same allocation for ranges of another lifetime: an empty list has none to outlive.
fn emptied(mut ranges: Vec<CopyRange<'_>>) -> Vec<CopyRange<'static>> {
    ranges.clear();
    ranges.into_iter().map(|_| -> CopyRange<'static> { unreachable!("the list is empty") }).collect()
}
