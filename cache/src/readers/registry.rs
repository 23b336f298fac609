//! The readers of a cache, as its book-keeping sees them.

use super::protocol::{Line, Word, Words, try_take};
use super::visits::Visits;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};
use spoc_driver::{Event, Stream};
use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

/// Sets closed together: what was launched under them is behind this event.
#[derive(Debug)]
struct Closed {
    /// Sets above this number are meant …
    above: u64,
    /// … on this stream.
    stream: u64,
    event: Event,
}

/// Events of closed sets that may not have fired, oldest first, and events to record anew.
#[derive(Debug, Default)]
pub(crate) struct Releases {
    closed: VecDeque<Closed>,
    spare: Vec<Event>,
}

impl Releases {
    /// Records an event behind everything enqueued on the stream, for sets above `above`.
    pub fn record(&mut self, above: u64, stream: &Stream) -> Result<(), spoc_driver::Error> {
        let event = self.spare.pop().map_or_else(|| stream.device().create_event(), Ok)?;
        if let Err(error) = stream.record(&event) {
            self.spare.push(event);
            return Err(error);
        }
        self.closed.push_back(Closed { above, stream: stream.id(), event });
        Ok(())
    }

    /// Lets go of up to `most` events that have fired.
    pub fn retire(&mut self, most: usize) {
        for _ in 0..most {
            // An event that reports an error belongs to a stream that failed: what it launched no longer runs.
            if !self.closed.front().is_some_and(|oldest| oldest.event.query().unwrap_or(true)) {
                return;
            }
            self.spare.extend(self.closed.pop_front().map(|oldest| oldest.event));
        }
    }

    /// The events that cover launches under set `held` and those before it: of each run of sets closed on one stream
    /// only the last.
    fn behind(&self, held: u64) -> impl Iterator<Item = &Event> {
        let mut last = None;
        let covered = self.closed.iter().rev().filter(move |closed| closed.above < held);
        covered
            .filter(move |closed| last.replace(closed.stream) != Some(closed.stream))
            .map(|closed| &closed.event)
    }

    fn is_empty(&self) -> bool {
        self.closed.is_empty()
    }
}

/// What a reader and the book-keeping share.
#[derive(Debug)]
pub(crate) struct ReaderCell {
    pub line: Line,
    pub visits: Visits,
    /// Keys found, each counted once a set; written by the reader alone.
    pub hits: AtomicU64,
    /// Sets given; written by the reader alone.
    pub sets: AtomicU64,
    /// Sets whose lease ended; written by the reader alone.
    pub ended: AtomicU64,
    releases: Mutex<Releases>,
    gone: AtomicBool,
}

impl ReaderCell {
    pub fn releases(&self) -> MutexGuard<'_, Releases> {
        // Nothing in between leaves the queue half changed.
        self.releases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reader went away, having closed its sets.
    pub fn leave(&self) {
        self.gone.store(true, Ordering::Release);
    }
}

struct Entry {
    cell: Arc<ReaderCell>,
    visits_tail: u64,
    hits: u64,
    sets: u64,
    ended: u64,
    gone: bool,
}

/// What readers did since it was last asked.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Found {
    pub hits: u64,
    pub sets: u64,
    pub ended: u64,
}

/// All readers.
pub(crate) struct Registry {
    entries: Vec<Entry>,
    slots_max: usize,
    /// Somebody waits for room that readers may hold: they ask at the end of a step.
    waiting: Arc<AtomicBool>,
}

impl Registry {
    pub fn new(slots_max: usize, waiting: Arc<AtomicBool>) -> Registry {
        Registry { entries: Vec::new(), slots_max, waiting }
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn join(&mut self) -> Arc<ReaderCell> {
        let cell = Arc::new(ReaderCell {
            line: Line::new(self.slots_max),
            visits: Visits::new(),
            hits: AtomicU64::new(0),
            sets: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            releases: Mutex::new(Releases::default()),
            gone: AtomicBool::new(false),
        });
        self.entries.push(Entry {
            cell: Arc::clone(&cell),
            visits_tail: 0,
            hits: 0,
            sets: 0,
            ended: 0,
            gone: false,
        });
        cell
    }

    /// Marks a group absent unless a reader holds its slot: see [`try_take`].
    pub fn try_take(&self, words: &Words, group: u32, word: Word) -> bool {
        if self.entries.is_empty() {
            words.store(group, Word::ABSENT);
            return true;
        }
        try_take(words, group, word, self.entries.iter().map(|entry| &entry.cell.line))
    }

    /// Whether a reader holds the slot.
    pub fn holds(&self, slot: u32) -> bool {
        self.entries.iter().any(|entry| entry.cell.line.holds(slot))
    }

    /// Whether launches of readers may still read the slot.
    pub fn may_read(&self, slot: u32) -> bool {
        self.entries.iter().any(|entry| {
            let held = entry.cell.line.last_held(slot);
            held > 0
                && (held > entry.cell.line.closed() || entry.cell.releases().behind(held).next().is_some())
        })
    }

    /// Makes a stream wait, on the device, for every launch of readers that may read the slot. Answers how many waits
    /// were enqueued.
    pub fn wait_for(&self, slot: u32, stream: &Stream) -> Result<u64, spoc_driver::Error> {
        let mut waits = 0;
        for entry in &self.entries {
            let held = entry.cell.line.last_held(slot);
            if held == 0 {
                continue;
            }
            let releases = entry.cell.releases();
            for event in releases.behind(held) {
                stream.wait(event)?;
                waits += 1;
            }
        }
        Ok(waits)
    }

    /// Announces that somebody waits. Look for room again afterwards: a reader that ended its step before this did
    /// not see it.
    pub fn announce(&self) -> bool {
        let first = !self.waiting.swap(true, Ordering::Relaxed);
        Line::publish_absence();
        first
    }

    pub fn nobody_waits(&self) {
        if self.waiting.load(Ordering::Relaxed) {
            self.waiting.store(false, Ordering::Relaxed);
        }
    }

    /// What readers found since the last call.
    pub fn found(&mut self) -> Found {
        let mut sum = Found::default();
        for entry in &mut self.entries {
            // Ended first: a set is never seen to end before it was given.
            let ended = entry.cell.ended.load(Ordering::Acquire);
            let (hits, sets) =
                (entry.cell.hits.load(Ordering::Relaxed), entry.cell.sets.load(Ordering::Relaxed));
            sum.hits += hits - entry.hits;
            sum.sets += sets - entry.sets;
            sum.ended += ended - entry.ended;
            (entry.hits, entry.sets, entry.ended) = (hits, sets, ended);
        }
        sum
    }

    /// The sets that the `index`-th reader found by itself since the last call; false behind the last reader.
    pub fn visits(&mut self, index: usize, into: &mut Vec<u32>) -> bool {
        let Some(entry) = self.entries.get_mut(index) else { return false };
        entry.visits_tail = entry.cell.visits.fetch(entry.visits_tail, into);
        true
    }

    /// Notes which readers have left. What they did is fetched behind this, before [`retire`](Registry::retire) lets go
    /// of them: one that leaves in between stays until the next time.
    pub fn note_gone(&mut self) {
        for entry in &mut self.entries {
            entry.gone = entry.cell.gone.load(Ordering::Acquire);
        }
    }

    /// Lets go of events that have fired, and of readers that were noted to have left.
    pub fn retire(&mut self) {
        self.entries.retain(|entry| {
            let mut releases = entry.cell.releases();
            releases.retire(usize::MAX);
            !(entry.gone && releases.is_empty())
        });
    }

    /// Slots that this reader holds, for keeping them aside when it leaves without an event.
    pub fn held_by(cell: &ReaderCell, slots: u32) -> impl Iterator<Item = u32> {
        (0..slots).filter(|&slot| cell.line.holds(slot))
    }
}

impl Drop for Registry {
    /// As with the releases of leases: the memory is freed after this.
    fn drop(&mut self) {
        for entry in &self.entries {
            for closed in &entry.cell.releases().closed {
                if let Err(error) = closed.event.synchronize() {
                    tracing::warn!(%error, "a reader's release could not be waited for");
                }
            }
        }
    }
}
