//! Words that a client and the service share, and what is kept beside them for a restart.

use super::Held;
use crate::error::Result;
use spoc_cache::SequenceWord;
use spoc_page::Words;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words that the client writes, each beside one that only this service does.
#[derive(Debug)]
pub struct SessionWords {
    pub(super) shared: Words,
    pub(super) own: Box<[AtomicU64]>,
}

/// Words that say what a session holds, kept beside its record: for each word of the session [`HOLD`] of them, and behind
/// all the number that the next lease is to have. What a restarted service knows of leases is this.
#[derive(Debug)]
pub(super) struct Holds(pub Words);

/// Lease, or 0 for none; its value, or that of the last one; first segment of the image, or 0 for slots; bytes.
pub(super) const HOLD: usize = 4;

impl Holds {
    pub(super) fn create(count: usize) -> Result<Holds> {
        Ok(Holds(Words::create(count * HOLD + 1)?))
    }

    pub(super) fn hold(&self, word: u32) -> &[AtomicU64] {
        let at = word as usize * HOLD;
        self.0.words().get(at..at + HOLD).unwrap_or_default()
    }

    /// The lease is written last, so that one that is there is whole.
    pub(super) fn set(&self, word: u32, lease: u64, value: u64, held: &Held) {
        if let [id, of_value, image, bytes] = self.hold(word) {
            of_value.store(value, Ordering::Relaxed);
            image.store(held.first_segment(), Ordering::Relaxed);
            bytes.store(held.bytes(), Ordering::Relaxed);
            if let Some(next) = self.0.words().last() {
                next.store(lease + 1, Ordering::Relaxed);
            }
            id.store(lease, Ordering::Release);
        }
    }

    pub(super) fn clear(&self, word: u32) {
        if let [id, ..] = self.hold(word) {
            id.store(0, Ordering::Release);
        }
    }
}

impl SessionWords {
    pub(super) fn create(count: usize) -> Result<Arc<SessionWords>> {
        SessionWords::of(Words::create(count)?)
    }

    pub(super) fn of(shared: Words) -> Result<Arc<SessionWords>> {
        let count = shared.words().len();
        let own = (0..count).map(|_| AtomicU64::new(0)).collect();
        Ok(Arc::new(SessionWords { shared, own }))
    }

    pub(super) fn value(&self, index: u32) -> u64 {
        let at = index as usize;
        let theirs = self.shared.words().get(at).map_or(u64::MAX, |word| word.load(Ordering::Acquire));
        let own = self.own.get(at).map_or(u64::MAX, |word| word.load(Ordering::Acquire));
        theirs.max(own)
    }

    pub(super) fn raise(&self, index: u32, value: u64) {
        if let Some(word) = self.own.get(index as usize) {
            word.fetch_max(value, Ordering::AcqRel);
        }
    }
}

/// One word, as a cache waits for it.
#[derive(Debug)]
pub struct ClientWord {
    words: Arc<SessionWords>,
    index: u32,
}

impl ClientWord {
    pub(super) fn new(words: &Arc<SessionWords>, index: u32) -> ClientWord {
        ClientWord { words: Arc::clone(words), index }
    }
}

impl SequenceWord for ClientWord {
    fn load(&self) -> u64 {
        self.words.value(self.index)
    }
}
