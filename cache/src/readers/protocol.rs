//! How look-ups and evictions agree without a lock.
//!
//! Every group has one *word*: where it is and how far. Only the cache's book-keeping writes words, under its lock;
//! anybody reads them. Every reader has a *line*: for every slot the number of the last set under which it held the
//! slot, and the number of the last set that was closed (whose launches an event covers). Only the reader writes its
//! line; the book-keeping reads all of them.
//!
//! | a reader takes a set | an eviction takes a slot |
//! |---|---|
//! | loads the words | stores "absent" in the word |
//! | stores the set's number in the slots' holds | |
//! | fence | fence |
//! | loads the words again: all as before, or it lets go | loads closed, then hold: larger means held, the word comes back |
//!
//! Of two fences one is first: either the reader sees the word changed, or the eviction sees the hold. A word carries
//! the slot's generation, so one that left and came back between the two loads is seen too. Closed is loaded before the
//! hold, because a reader that closes a set while it goes on holding a slot moves the hold first. No order is asked of
//! any access but those named here; `cache/tests/loom.rs` runs this file under every order that the memory model allows.

use crate::sync::atomic::{AtomicU64, Ordering, fence};

/// How far a group is, as its word says. A word without a standing, 0, is that of a group in no slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Standing {
    /// A fill is running.
    Loading = 1,
    /// In its slot behind an event that a stream must wait for.
    Ordered = 2,
    /// In its slot, its copies have run.
    There = 3,
}

const SLOT_BITS: u32 = 24;

/// Slots that words can number.
pub const SLOTS_MAX: u32 = (1 << SLOT_BITS) - 1;

/// Where a group is: slot in bits 0..24, standing in 24..32, the slot's generation (its lower half) in 32..64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word(u64);

#[allow(clippy::cast_possible_truncation)] // fields of a word
impl Word {
    /// In no slot.
    pub const ABSENT: Word = Word(0);

    /// A group that is in a slot or on its way there.
    pub fn new(slot: u32, generation: u64, standing: Standing) -> Word {
        Word((generation << 32) | (u64::from(standing as u8) << SLOT_BITS) | u64::from(slot & SLOTS_MAX))
    }

    /// The slot; 0 if there is none.
    pub fn slot(self) -> u32 {
        self.0 as u32 & SLOTS_MAX
    }

    /// As it is stored, also in device memory.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Whether launches may read it without waiting for anything.
    pub fn is_there(self) -> bool {
        (self.0 >> SLOT_BITS) as u8 == Standing::There as u8
    }
}

/// The words of one model's groups.
#[derive(Debug)]
pub struct Words(Box<[AtomicU64]>);

impl Words {
    pub fn new(groups: usize) -> Words {
        Words((0..groups).map(|_| AtomicU64::new(0)).collect())
    }

    /// `None` for a group that the model does not have.
    #[inline]
    pub fn load(&self, group: u32) -> Option<Word> {
        self.0.get(group as usize).map(|word| Word(word.load(Ordering::Acquire)))
    }

    /// Under the book-keeping's lock.
    pub fn store(&self, group: u32, word: Word) {
        if let Some(place) = self.0.get(group as usize) {
            place.store(word.0, Ordering::Release);
        }
    }
}

/// What one reader holds. Aligned so that no two readers write to one cache line, nor to a neighbour that is fetched
/// with it.
#[derive(Debug)]
#[repr(align(128))]
pub struct Line {
    closed: AtomicU64,
    holds: Box<[AtomicU64]>,
}

impl Line {
    pub fn new(slots_max: usize) -> Line {
        Line { closed: AtomicU64::new(0), holds: (0..slots_max).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Reader: stores that set `set` (counted from 1) holds the slot. Answers what was stored before, which is `set`
    /// itself for a slot named twice; `None` for a slot beyond the line.
    #[inline]
    pub fn hold(&self, slot: u32, set: u64) -> Option<u64> {
        let hold = self.holds.get(slot as usize)?;
        let before = hold.load(Ordering::Relaxed);
        hold.store(set, Ordering::Relaxed);
        Some(before)
    }

    /// Reader: takes a hold back that was not confirmed.
    pub fn restore(&self, slot: u32, before: u64) {
        if let Some(hold) = self.holds.get(slot as usize) {
            hold.store(before, Ordering::Release);
        }
    }

    /// Reader: between its holds and the second look at the words.
    #[inline]
    pub fn publish_holds() {
        fence(Ordering::SeqCst);
    }

    /// Reader: events are recorded behind everything launched under sets up to `set`.
    pub fn close(&self, set: u64) {
        self.closed.store(set, Ordering::Release);
    }

    /// The last set that was closed.
    pub fn closed(&self) -> u64 {
        self.closed.load(Ordering::Acquire)
    }

    /// Eviction: between storing "absent" and asking for holds.
    pub fn publish_absence() {
        fence(Ordering::SeqCst);
    }

    /// Eviction: whether a set holds the slot whose launches no event covers. A set that is being taken and will
    /// not be confirmed counts, too.
    pub fn holds(&self, slot: u32) -> bool {
        let closed = self.closed.load(Ordering::Acquire);
        self.last_held(slot) > closed
    }

    /// The last set that held the slot, 0 for none.
    pub fn last_held(&self, slot: u32) -> u64 {
        self.holds.get(slot as usize).map_or(0, |hold| hold.load(Ordering::Acquire))
    }
}

/// Marks a group absent unless a line holds its slot. Under the book-keeping's lock; `word` is what stands there.
pub fn try_take<'l>(
    words: &Words,
    group: u32,
    word: Word,
    mut lines: impl Iterator<Item = &'l Line>,
) -> bool {
    words.store(group, Word::ABSENT);
    Line::publish_absence();
    if lines.any(|line| line.holds(word.slot())) {
        words.store(group, word);
        return false;
    }
    true
}
