//! One device's copy thread: takes chunks that its ring shares with others, enqueues their copies, and retires them in
//! order.

use super::super::jobs::Begin;
use super::super::thread::{BATCH_MAX, BEAT, GLANCE, GLANCE_JOINED, GLANCE_STANDING};
use super::table::{Core, LegState, ToLane};
use crate::stats::Counters;
use crate::stats::layout::Counter;
use crate::{Error, ErrorKind, Result};
use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError};
use spoc_bridge::{Batch, Kept};
use spoc_driver::{Device, Event, Stream};
use spoc_io::{Chunk, ReadPlan};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// A chunk whose copies are enqueued, or are about to be.
struct Held {
    leg: Arc<LegState>,
    bytes: u64,
}

/// The thread's own state.
pub(super) struct Thread {
    lane: usize,
    core: Arc<Core>,
    counters: Counters,
    inbox: Receiver<ToLane>,
    copies: Stream,
    batch: Batch,
    /// One for each chunk of the batch.
    pending: Vec<Held>,
    batch_max: usize,
    /// Oldest first.
    in_flight: VecDeque<Held>,
    /// The event behind each batch and how many of `in_flight` are of it, oldest first.
    batches: VecDeque<(Event, usize)>,
    events: Vec<Event>,
    /// With more chunks than this in flight the thread waits for copies rather than for reads: the rings may be empty
    /// because of them.
    patient_max: usize,
    /// The copy stream may stand until launches have ended.
    may_stand: bool,
    /// Legs whose bytes are still on their way into the host tier.
    joined: Vec<(Arc<LegState>, Arc<Kept>)>,
    last_beat: Instant,
}

enum Next {
    Message(ToLane),
    Again,
    Stop,
}

impl Thread {
    pub fn new(
        device: &Device,
        lane: usize,
        core: Arc<Core>,
        counters: Counters,
        inbox: Receiver<ToLane>,
        copies: Stream,
        (chunks, lanes): (usize, usize),
    ) -> Result<Thread> {
        copies.reserve(4 * chunks + 16, 4);
        let events = (0..chunks).map(|_| device.create_event()).collect::<Result<Vec<_>, _>>()?;
        let batch_max = (chunks / 8).clamp(1, BATCH_MAX);
        Ok(Thread {
            lane,
            core,
            counters,
            inbox,
            copies,
            batch: Batch::new(batch_max, chunks),
            pending: Vec::with_capacity(batch_max),
            batch_max,
            in_flight: VecDeque::with_capacity(chunks),
            batches: VecDeque::with_capacity(chunks),
            events,
            patient_max: chunks / (2 * lanes.max(1)),
            may_stand: false,
            joined: Vec::new(),
            last_beat: Instant::now(),
        })
    }

    pub fn run(mut self) {
        loop {
            match self.next() {
                Next::Message(message) => {
                    if !self.take_ready(message) {
                        return;
                    }
                }
                Next::Again => {}
                Next::Stop => return,
            }
            self.take_held();
        }
    }

    fn next(&mut self) -> Next {
        self.beat();
        self.retire_fired();
        match self.inbox.try_recv() {
            Ok(message) => return Next::Message(message),
            Err(TryRecvError::Disconnected) => return Next::Stop,
            Err(TryRecvError::Empty) => {}
        }
        let others_wait = self.may_stand || !self.joined.is_empty();
        let reader_first =
            (self.core.is_reading() || others_wait) && self.in_flight.len() <= self.patient_max;
        if self.in_flight.is_empty() || reader_first { self.wait_for_read() } else { self.wait_for_copy() }
    }

    fn wait_for_read(&mut self) -> Next {
        let began = Instant::now();
        let patience = match (self.in_flight.is_empty(), self.may_stand) {
            _ if !self.joined.is_empty() => GLANCE_JOINED,
            (true, _) => BEAT,
            (false, true) => GLANCE_STANDING,
            (false, false) => GLANCE,
        };
        let idle = self.in_flight.is_empty() && self.core.is_busy(self.lane);
        let received = self.inbox.recv_timeout(patience);
        if idle {
            self.counters.add_time(Counter::WaitReadsNs, began.elapsed());
        }
        match received {
            Ok(message) => Next::Message(message),
            Err(RecvTimeoutError::Disconnected) => Next::Stop,
            Err(RecvTimeoutError::Timeout) => Next::Again,
        }
    }

    fn wait_for_copy(&mut self) -> Next {
        let Some((oldest, _)) = self.batches.front() else { return Next::Again };
        let began = Instant::now();
        let waited = oldest.synchronize();
        self.counters.add_time(Counter::WaitCopiesNs, began.elapsed());
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
            self.let_go(&done.leg);
        }
        self.may_stand &= !self.in_flight.is_empty();
    }

    /// One chunk of the leg is no longer in use.
    fn let_go(&self, leg: &LegState) {
        let last = leg.held.fetch_sub(1, Ordering::AcqRel) == 1;
        if last && leg.finished.load(Ordering::Acquire) {
            self.end_leg(leg);
        }
    }

    fn end_leg(&self, leg: &LegState) {
        if self.core.forget(leg.id) {
            leg.sink.ended(leg.tag);
        }
    }

    /// An error of the copy stream says nothing about which copy: all that have not been seen to end failed.
    fn fail_stream(&mut self, error: &Error) {
        tracing::error!(lane = self.lane, %error, "the copy stream failed");
        self.counters.add(Counter::StreamErrors, 1);
        // Copies behind the one that failed may still run: what they touch is given up only afterwards.
        let _ = self.copies.synchronize();
        for lost in &self.in_flight {
            self.fail(&lost.leg, error);
        }
        self.events.extend(self.batches.drain(..).map(|(event, _)| event));
        self.retire(self.in_flight.len());
    }

    fn fail(&self, leg: &LegState, error: &Error) {
        if !leg.dead.swap(true, Ordering::AcqRel) {
            leg.sink.failed(leg.tag, error, true);
            self.core.leg_died(leg.job);
        }
    }

    /// This message, and those that are there already: one batch at most. False after the last.
    fn take_ready(&mut self, first: ToLane) -> bool {
        let mut more = self.take(first);
        for _ in 1..self.batch_max {
            if !more {
                break;
            }
            match self.inbox.try_recv() {
                Ok(message) => more = self.take(message),
                Err(_) => break,
            }
        }
        self.flush();
        more
    }

    fn take(&mut self, message: ToLane) -> bool {
        match message {
            ToLane::Chunk { leg, plan, read, chunk } => {
                if let Err(error) = self.hold(&leg, &plan, read, chunk) {
                    self.fail(&leg, &error);
                }
            }
            ToLane::Failed { leg, error } => leg.sink.failed(leg.tag, &error, false),
            ToLane::Finished { leg } => self.finish(&leg),
            ToLane::Wake => {}
            ToLane::Stop => return false,
        }
        true
    }

    /// Every chunk of the leg has come.
    fn finish(&mut self, leg: &Arc<LegState>) {
        self.flush();
        if !leg.is_dead()
            && let Err(error) = leg.sink.published(leg.tag, &self.copies)
        {
            self.fail(leg, &error);
        }
        leg.finished.store(true, Ordering::Release);
        if leg.held.load(Ordering::Acquire) == 0 {
            self.end_leg(leg);
        }
    }

    /// Adds one chunk to the batch, if the leg is still wanted.
    fn hold(&mut self, leg: &Arc<LegState>, plan: &ReadPlan, read: u32, chunk: Chunk) -> Result<()> {
        if leg.is_dead() || !self.begin(leg)? {
            return Ok(());
        }
        let pieces = plan.reads().get(read as usize).map(|read| plan.pieces_of(read)).unwrap_or_default();
        let pieces = pieces.iter().filter(|piece| leg.wants(piece));
        let mut bytes = 0;
        if chunk.is_in_place() {
            // The host waited for it: whatever is enqueued from now on sees its bytes.
            bytes = pieces.map(|piece| u64::from(piece.len_bytes)).sum();
            self.counters.add(Counter::CopiedBytes, bytes);
            leg.sink.progress(leg.tag, bytes);
            return Ok(());
        }
        self.batch.hold(chunk);
        for piece in pieces {
            let Some((dst, base)) = leg.places.of(piece.target) else { continue };
            let (from, len_bytes) = (piece.chunk_offset as usize, piece.len_bytes as usize);
            if self.batch.copy(from, dst, base + piece.target_offset, len_bytes) {
                bytes += u64::from(piece.len_bytes);
            }
        }
        leg.held.fetch_add(1, Ordering::AcqRel);
        self.pending.push(Held { leg: Arc::clone(leg), bytes });
        Ok(())
    }

    /// Asks the sink before the first copy. False if it is not wanted any more.
    fn begin(&mut self, leg: &LegState) -> Result<bool> {
        if leg.begun.load(Ordering::Relaxed) {
            return Ok(true);
        }
        // The stream may be made to wait: not for what others have in the batch.
        self.flush();
        match leg.sink.begin(leg.tag, &self.copies)? {
            Begin::Skip => {
                leg.dead.store(true, Ordering::Release);
                self.core.leg_died(leg.job);
                return Ok(false);
            }
            Begin::Go => {}
            Begin::GoBehindReleases => self.may_stand = true,
        }
        leg.begun.store(true, Ordering::Relaxed);
        Ok(true)
    }

    /// Legs whose bytes are in the host tier: a copy each.
    fn take_held(&mut self) {
        let mut joined = std::mem::take(&mut self.joined);
        joined.extend(std::iter::from_fn(|| self.core.next_held(self.lane)));
        for (leg, kept) in joined.drain(..) {
            if !leg.is_dead() && matches!(kept.is_there(), Ok(false)) {
                self.joined.push((leg, kept));
                continue;
            }
            if !leg.is_dead()
                && let Err(error) = self.promote(&leg, &kept)
            {
                self.fail(&leg, &error);
            }
            self.finish(&leg);
        }
        if self.joined.is_empty() {
            // Its room is used again.
            self.joined = joined;
        }
    }

    /// Enqueues the copy out of the tier, if anybody still wants it.
    fn promote(&mut self, leg: &Arc<LegState>, kept: &Kept) -> Result<()> {
        let began = Instant::now();
        // The stream may be made to wait: not for what others have in the batch.
        self.flush();
        if !self.begin(leg)? {
            return Ok(());
        }
        let (dst, base) = leg.places.of(0).ok_or_else(|| Error::new(ErrorKind::Closed))?;
        kept.copy_to(&self.copies, dst, base)?;
        self.counters.add(Counter::Copies, 1);
        leg.held.fetch_add(1, Ordering::AcqRel);
        self.in_flight.push_back(Held { leg: Arc::clone(leg), bytes: kept.len_bytes() as u64 });
        self.seal(1, began);
        Ok(())
    }

    /// Enqueues the batch and an event behind it.
    fn flush(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let began = Instant::now();
        let enqueued = match self.batch.enqueue(&self.copies) {
            Ok(copies) => {
                self.counters.add(Counter::Copies, copies);
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

    /// The batch was refused: one chunk may be to blame, so each has its own try and fails alone.
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
                    self.counters.add(Counter::Copies, copies);
                    self.in_flight.push_back(self.pending.remove(0));
                    enqueued += 1;
                }
                Err(error) => self.refused(&error.into()),
            }
        }
        enqueued
    }

    fn refused(&mut self, error: &Error) {
        let held = self.pending.remove(0);
        self.fail(&held.leg, error);
        self.let_go(&held.leg);
    }

    /// Records an event behind the youngest `chunks` chunks, and counts them.
    fn seal(&mut self, chunks: usize, began: Instant) {
        let event = self.events.pop().map_or_else(|| self.copies.device().create_event(), Ok);
        match event.and_then(|event| self.copies.record(&event).map(|()| event)) {
            Ok(event) => self.batches.push_back((event, chunks)),
            // Copies without an event: only the stream itself can still say when they end.
            Err(error) => return self.fail_stream(&error.into()),
        }
        self.counters.add(Counter::Chunks, chunks as u64);
        self.counters.add_time(Counter::EnqueueNs, began.elapsed());
        for held in self.in_flight.range(self.in_flight.len() - chunks..) {
            self.counters.add(Counter::CopiedBytes, held.bytes);
            held.leg.sink.progress(held.leg.tag, held.bytes);
        }
    }

    /// A sign of life, and time for those who asked for it.
    fn beat(&mut self) {
        if self.last_beat.elapsed() < BEAT {
            return;
        }
        self.last_beat = Instant::now();
        self.counters.beat();
        let mut index = 0;
        while let Some(watcher) = self.core.watcher(self.lane, index) {
            if let Some(sink) = watcher {
                sink.tick();
            }
            index += 1;
        }
    }

    /// Copies that are enqueued run to their end, everything else fails.
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
        for leg in self.core.close_lane(self.lane) {
            self.fail(&leg, &closed);
            self.end_leg(&leg);
        }
    }
}

impl Drop for Thread {
    /// However the thread ends, by a panic too: nobody waits for ever.
    fn drop(&mut self) {
        self.end();
    }
}
