//! What a reader found by itself, for the policy: a ring that the reader overwrites and the book-keeping empties.

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Items that a ring holds: some hundred sets, several half-lives of what a policy remembers.
const CAPACITY: usize = 4096;

/// The last item of a set carries this mark.
const LAST: u32 = 1 << 31;

/// One writer, one reader at a time. The writer never waits: what was not fetched in time is overwritten.
#[derive(Debug)]
pub struct Visits {
    items: Box<[AtomicU32]>,
    /// Items that are written or being written.
    reserved: AtomicU64,
    /// Items that are written.
    head: AtomicU64,
}

#[allow(clippy::cast_possible_truncation)] // the remainder is below the capacity
fn place(number: u64) -> usize {
    (number % CAPACITY as u64) as usize
}

impl Visits {
    pub fn new() -> Visits {
        Visits {
            items: (0..CAPACITY).map(|_| AtomicU32::new(0)).collect(),
            reserved: AtomicU64::new(0),
            head: AtomicU64::new(0),
        }
    }

    /// Writes one set. Sets that would fill much of the ring are left out.
    #[inline]
    pub fn push(&self, set: &[u32]) {
        if set.is_empty() || set.len() > CAPACITY / 4 {
            return;
        }
        let head = self.head.load(Ordering::Relaxed);
        let end = head + set.len() as u64;
        self.reserved.store(end, Ordering::Relaxed);
        // Whoever sees an item of this set sees that its place was reserved.
        fence(Ordering::Release);
        for (number, &item) in (head..end).zip(set) {
            let mark = if number + 1 == end { LAST } else { 0 };
            self.items[place(number)].store(item | mark, Ordering::Relaxed);
        }
        self.head.store(end, Ordering::Release);
    }

    /// Moves whole sets behind `tail` into `into`, oldest first; each set's last item is marked, see [`sets`].
    /// Answers the new tail.
    pub fn fetch(&self, tail: u64, into: &mut Vec<u32>) -> u64 {
        into.clear();
        let head = self.head.load(Ordering::Acquire);
        if head == tail {
            return head;
        }
        let from = tail.max(head.saturating_sub(CAPACITY as u64));
        into.extend((from..head).map(|number| self.items[place(number)].load(Ordering::Relaxed)));
        fence(Ordering::Acquire);
        let overwritten = self.reserved.load(Ordering::Relaxed).saturating_sub(CAPACITY as u64);
        let stale = usize::try_from(overwritten.saturating_sub(from)).unwrap_or(usize::MAX).min(into.len());
        // Behind a gap the first set may be the rest of one: it goes, too.
        let gap = stale > 0 || from > tail;
        let first = if gap { into[stale..].iter().position(|item| item & LAST != 0) } else { None };
        let skip = if gap { first.map_or(into.len(), |last| stale + last + 1) } else { 0 };
        into.drain(..skip);
        head
    }
}

/// The sets in what was fetched, without marks: calls `each` with every one.
pub fn sets(fetched: &mut [u32], mut each: impl FnMut(&mut [u32])) {
    for set in fetched.split_inclusive_mut(|item| *item & LAST != 0) {
        if let Some(last) = set.last_mut() {
            *last &= !LAST;
        }
        each(set);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn fetch(visits: &Visits, tail: &mut u64) -> Vec<Vec<u32>> {
        let (mut raw, mut found) = (Vec::new(), Vec::new());
        *tail = visits.fetch(*tail, &mut raw);
        sets(&mut raw, |set| found.push(set.to_vec()));
        found
    }

    #[test]
    fn sets_come_back_whole_and_once() {
        let (visits, mut tail) = (Visits::new(), 0);
        visits.push(&[1, 2, 3]);
        visits.push(&[]);
        visits.push(&[7]);
        assert_eq!(fetch(&visits, &mut tail), [vec![1, 2, 3], vec![7]]);
        assert!(fetch(&visits, &mut tail).is_empty());
        visits.push(&[9, 1]);
        assert_eq!(fetch(&visits, &mut tail), [vec![9, 1]]);
    }

    #[test]
    fn the_newest_stay_and_none_is_torn() {
        let (visits, mut tail) = (Visits::new(), 0);
        let wide = |n: u32| [n, n, n, n, n, n, n];
        for n in 0..10_000 {
            visits.push(&wide(n));
        }
        let found = fetch(&visits, &mut tail);
        assert!(found.len() > CAPACITY / 7 - 3, "{}", found.len());
        let first = 10_000 - u32::try_from(found.len()).unwrap();
        assert!(found.iter().zip(first..).all(|(set, n)| set == &wide(n)));
    }

    #[test]
    fn a_writer_that_never_waits_tears_nothing() {
        let visits = Visits::new();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| (0..200_000u32).for_each(|n| visits.push(&[n, n, n])));
            let (mut tail, mut newest) = (0, None);
            while !writer.is_finished() {
                for set in fetch(&visits, &mut tail) {
                    assert!(set.len() == 3 && set.iter().all(|&n| n == set[0]), "{set:?}");
                    assert!(newest.is_none_or(|newest| set[0] > newest), "{set:?} after {newest:?}");
                    newest = Some(set[0]);
                }
            }
        });
    }
}
