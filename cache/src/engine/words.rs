//! Leases that end by a word that the device, or another process, writes; and the slot table in device memory.

use super::Core;
use crate::readers::{Standing, Word};
use crate::slots::NONE;
use crate::{ErrorKind, Result};
use spoc_driver::{CopyRange, Segment, Stream};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a cache that ends waits for words, at most.
const WORDS_WAIT: Duration = Duration::from_secs(2);

/// A word in host memory that rises: a device writes it, or a process that was lent memory.
pub trait SequenceWord: Send + Sync {
    /// Its value now.
    fn load(&self) -> u64;
}

impl SequenceWord for std::sync::atomic::AtomicU64 {
    fn load(&self) -> u64 {
        std::sync::atomic::AtomicU64::load(self, std::sync::atomic::Ordering::Acquire)
    }
}

/// Slots of a lease that ends when a word reaches a value.
struct Awaited {
    slots: Vec<u32>,
    word: Arc<dyn SequenceWord>,
    value: u64,
}

/// Everything about words.
#[derive(Default)]
pub(super) struct Awaiting {
    words: Vec<Awaited>,
    /// Streams that wait for words in device memory; one that is idle is used again.
    streams: Vec<Stream>,
}

impl Awaiting {
    /// Waits until every word has come, or for so long. How many have not.
    fn wait(&mut self, most: Duration) -> usize {
        let began = Instant::now();
        loop {
            self.words.retain(|awaited| awaited.word.load() < awaited.value);
            if self.words.is_empty() || began.elapsed() >= most {
                return self.words.len();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl fmt::Debug for Awaiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Awaiting").field("words", &self.words.len()).finish_non_exhaustive()
    }
}

impl Drop for Core {
    /// Whoever is to write a word may read its slots until then. One that never comes must not keep the caller for ever:
    /// the memory stays allocated then.
    fn drop(&mut self) {
        let missing = self.awaiting.wait(WORDS_WAIT);
        if missing > 0 {
            tracing::warn!(
                "{missing} leases still wait for their words: the cache's device memory is not freed"
            );
            std::mem::forget(Arc::clone(&self.arena));
        }
        // No event covers the launches under these; the device's end of work does.
        if !self.quarantined.is_empty()
            && let Err(error) = self.drains.wait_for_device()
        {
            tracing::warn!(%error, "launches under slots kept aside may run: the cache's memory is not freed");
            std::mem::forget(Arc::clone(&self.arena));
        }
    }
}

impl Core {
    /// The slots stay leased until the word is at least `value`; it is looked at with every acquire and twice a second.
    pub fn release_at_word(&mut self, slots: &[u32], word: Arc<dyn SequenceWord>, value: u64) {
        self.awaiting.words.push(Awaited { slots: slots.to_vec(), word, value });
        self.look_at_words();
        self.serve_queue();
    }

    /// Gives slots back behind a word in device memory: a stream of the cache's own waits for it on the device, and an
    /// event behind that is waited for like any other.
    pub fn release_behind_word(
        &mut self,
        slots: &[u32],
        segment: &Segment,
        offset_bytes: u64,
        value: u64,
    ) -> Result<(), spoc_driver::Error> {
        let idle = self.awaiting.streams.iter().position(|stream| stream.query().unwrap_or(false));
        let stream = match idle {
            Some(index) => Ok(self.awaiting.streams.swap_remove(index)),
            None => self.drains.side_stream(),
        };
        let waits = stream.and_then(|stream| {
            stream.wait_value(segment, offset_bytes, value)?;
            Ok(stream)
        });
        match waits {
            Ok(stream) => {
                let released = self.release(slots, &[&stream]);
                self.awaiting.streams.push(stream);
                released
            }
            Err(error) => {
                self.quarantine(slots);
                Err(error)
            }
        }
    }

    /// Ends leases whose words have come.
    pub(super) fn look_at_words(&mut self) {
        let mut at = 0;
        while let Some(awaited) = self.awaiting.words.get(at) {
            if awaited.word.load() < awaited.value {
                at += 1;
                continue;
            }
            let awaited = self.awaiting.words.swap_remove(at);
            for slot in awaited.slots {
                self.unpin(slot, None);
            }
            self.wake = true;
        }
    }

    #[cfg(test)]
    pub fn words_awaited(&self) -> usize {
        self.awaiting.words.len()
    }
}

/// The slot table in device memory: one word an item, written in the order of the copy stream.
#[derive(Debug)]
pub(super) struct Mirror {
    segment: Segment,
    items_max: u32,
    /// Items whose word there is not what it is here.
    dirty: Vec<u32>,
    /// Whether words can be written by the device alone.
    by_value: bool,
}

impl Mirror {
    pub fn new(segment: Segment, items_max: u32, by_value: bool) -> Mirror {
        Mirror { segment, items_max, dirty: Vec::new(), by_value }
    }
}

impl Core {
    /// The table, and how many items it has room for.
    pub fn device_table(&self) -> Option<(Segment, u32)> {
        self.mirror.as_ref().map(|mirror| (mirror.segment.clone(), mirror.items_max))
    }

    /// Where a key's word is in the table.
    pub fn table_index(&self, key: crate::Key) -> Result<u32> {
        self.models.find(key)
    }

    /// Whether the table has room for items up to this number.
    pub(super) fn table_holds(&self, items: usize) -> Result<()> {
        match &self.mirror {
            Some(mirror) if items > mirror.items_max as usize => {
                Err(ErrorKind::TableTooSmall { need: items, have: mirror.items_max as usize }.into())
            }
            _ => Ok(()),
        }
    }

    /// An item is not where the device thinks it is.
    pub(super) fn note_moved(&mut self, item: u32) {
        if let Some(mirror) = &mut self.mirror
            && item != NONE
        {
            mirror.dirty.push(item);
        }
    }

    /// Brings the table up to date, in the order of the copy stream: what left before the copies that take its place,
    /// what came behind its own.
    pub(super) fn tell_device(&mut self, copies: &Stream) -> Result<(), spoc_driver::Error> {
        let Some(mirror) = &mut self.mirror else { return Ok(()) };
        while let Some(&item) = mirror.dirty.last() {
            let slot = self.slot_of.get(item as usize).copied().unwrap_or(NONE);
            let there = slot != NONE && self.table.state(slot) != crate::slots::state::State::Loading;
            let word = if there {
                Word::new(slot, self.table.get(slot).generation, Standing::There)
            } else {
                Word::ABSENT
            };
            let offset = u64::from(item) * 8;
            if mirror.by_value {
                copies.write_value(&mirror.segment, offset, word.bits())?;
            } else {
                let range =
                    CopyRange { src_offset: 0, dst: &mirror.segment, dst_offset: offset, len_bytes: 8 };
                copies
                    .copy_to_device(word.bits().to_le_bytes().to_vec(), &[range])
                    .map_err(|returned| returned.error)?;
            }
            mirror.dirty.pop();
        }
        Ok(())
    }
}
