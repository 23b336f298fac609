//! The readers' protocol under every interleaving and every order that the memory model allows.
//!
//! The protocol's own source is compiled against loom's atomics. Besides the test that it holds, tests that it breaks
//! without each of its fences: a model that cannot fail proves nothing.

#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests are tests
#![allow(dead_code)] // the cache uses what is not used here

mod sync {
    pub use loom::sync::atomic;
}

#[path = "../src/readers/protocol.rs"]
mod protocol;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;
use protocol::{Line, Standing, Word, Words, try_take};

/// A slot's contents as a launch would read them: 1 is group 0, 2 is whatever came after it.
struct Device {
    contents: AtomicU64,
}

const SLOT: u32 = 0;

fn there(generation: u64) -> Word {
    Word::new(SLOT, generation, Standing::There)
}

/// Takes the set {group 0} as `Reader` does. The slot if it may be read.
fn take(line: &Line, words: &Words, set: u64, fenced: bool) -> bool {
    let word = words.load(0).unwrap();
    if !word.is_there() {
        return false;
    }
    let before = line.hold(word.slot(), set).unwrap();
    if fenced {
        Line::publish_holds();
    }
    if words.load(0).unwrap() == word {
        return true;
    }
    line.restore(word.slot(), before);
    false
}

/// As `try_take`, but its fence can be left out.
fn evict(line: &Line, words: &Words, word: Word, fenced: bool) -> bool {
    if fenced {
        return try_take(words, 0, word, [line].into_iter());
    }
    words.store(0, Word::ABSENT);
    if line.holds(SLOT) {
        words.store(0, word);
        return false;
    }
    true
}

fn reader_against_eviction(fenced_reader: bool, fenced_eviction: bool) {
    loom::model(move || {
        let line = Arc::new(Line::new(1));
        let words = Arc::new(Words::new(1));
        words.store(0, there(1));
        let device = Arc::new(Device { contents: AtomicU64::new(1) });
        let reader = {
            let (line, words, device) = (Arc::clone(&line), Arc::clone(&words), Arc::clone(&device));
            thread::spawn(move || {
                if take(&line, &words, 1, fenced_reader) {
                    // The launch, before the set is closed.
                    assert_eq!(device.contents.load(Ordering::Relaxed), 1, "overwritten under a lease");
                    line.close(1);
                }
            })
        };
        if evict(&line, &words, there(1), fenced_eviction) {
            device.contents.store(2, Ordering::Relaxed);
            // Another group's fill of the slot; group 0 is elsewhere from now on.
        }
        reader.join().unwrap();
    });
}

#[test]
fn a_slot_that_is_held_is_not_taken() {
    reader_against_eviction(true, true);
}

#[test]
#[should_panic(expected = "overwritten under a lease")]
fn without_the_readers_fence_it_breaks() {
    reader_against_eviction(false, true);
}

#[test]
#[should_panic(expected = "overwritten under a lease")]
fn without_the_evictions_fence_it_breaks() {
    reader_against_eviction(true, false);
}

/// A group that left its slot and came back between the two looks is not taken for the one that was seen first.
#[test]
fn a_word_that_came_back_is_another_word() {
    loom::model(|| {
        let line = Arc::new(Line::new(1));
        let words = Arc::new(Words::new(1));
        words.store(0, there(1));
        let refilled = Arc::new(AtomicBool::new(false));
        let reader = {
            let (line, words, refilled) = (Arc::clone(&line), Arc::clone(&words), Arc::clone(&refilled));
            thread::spawn(move || {
                let first = words.load(0).unwrap();
                if take(&line, &words, 1, true) && first == there(1) && words.load(0).unwrap() == first {
                    // Held under generation 1: no fill of generation 2 can have begun.
                    assert!(!refilled.load(Ordering::Relaxed), "refilled under a lease");
                    line.close(1);
                }
            })
        };
        if try_take(&words, 0, there(1), [&*line].into_iter()) {
            refilled.store(true, Ordering::Relaxed);
            words.store(0, there(2));
        }
        reader.join().unwrap();
    });
}

/// A reader that closes its sets while a lease stays open moves that lease's hold first.
#[test]
fn an_open_lease_survives_the_end_of_a_step() {
    loom::model(|| {
        let line = Arc::new(Line::new(1));
        let words = Arc::new(Words::new(1));
        words.store(0, there(1));
        assert!(take(&line, &words, 1, true));
        let device = Arc::new(Device { contents: AtomicU64::new(1) });
        let reader = {
            let (line, device) = (Arc::clone(&line), Arc::clone(&device));
            thread::spawn(move || {
                line.hold(SLOT, 2).unwrap();
                line.close(1);
                assert_eq!(device.contents.load(Ordering::Relaxed), 1, "overwritten under a lease");
            })
        };
        if try_take(&words, 0, there(1), [&*line].into_iter()) {
            device.contents.store(2, Ordering::Relaxed);
        }
        reader.join().unwrap();
        assert!(line.holds(SLOT));
    });
}

/// Whoever waits for room announces it and looks again; a reader closes and looks for the announcement. One of the two
/// sees the other: nobody waits for a slot that is free.
#[test]
fn a_close_or_the_announcement_is_seen() {
    loom::model(|| {
        let line = Arc::new(Line::new(1));
        let words = Arc::new(Words::new(1));
        words.store(0, there(1));
        assert!(take(&line, &words, 1, true));
        let waiting = Arc::new(AtomicBool::new(false));
        let reader = {
            let (line, waiting) = (Arc::clone(&line), Arc::clone(&waiting));
            thread::spawn(move || {
                line.close(1);
                Line::publish_holds();
                waiting.load(Ordering::Relaxed)
            })
        };
        waiting.store(true, Ordering::Relaxed);
        let taken = try_take(&words, 0, there(1), [&*line].into_iter());
        let woken = reader.join().unwrap();
        assert!(taken || woken, "the set waits for a slot that nobody holds");
    });
}
