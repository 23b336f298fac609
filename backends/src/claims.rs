//! Who is working on which bytes. The CPU's streams are threads: without this, work that a program forgot to order
//! would be a data race between safe kernels. With it, unordered work runs in some order, one after the other.

use std::sync::{Condvar, Mutex, PoisonError};

use crate::sync::lock;

/// A range of addresses that a command works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    first: usize,
    end: usize,
    writes: bool,
}

impl Claim {
    pub(crate) fn read(ptr: *const u8, len: usize) -> Self {
        Self { first: ptr.addr(), end: ptr.addr().saturating_add(len), writes: false }
    }

    pub(crate) fn write(ptr: *const u8, len: usize) -> Self {
        Self { writes: true, ..Self::read(ptr, len) }
    }

    fn conflicts(&self, other: &Self) -> bool {
        (self.writes || other.writes) && self.first < other.end && other.first < self.end
    }
}

/// The claims that are held now.
#[derive(Default)]
pub(crate) struct Claims {
    state: Mutex<State>,
    released: Condvar,
}

#[derive(Default)]
struct State {
    held: Vec<(u64, Claim)>,
    next_ticket: u64,
}

/// Claims, held until this is dropped.
pub(crate) struct Held<'c> {
    claims: &'c Claims,
    ticket: u64,
}

impl Claims {
    /// Waits until nobody holds what conflicts, then takes all at once. Whoever holds claims must not wait for
    /// another stream; so nobody waits in a circle.
    pub(crate) fn hold(&self, wanted: &[Claim]) -> Held<'_> {
        let is_taken = |state: &mut State| {
            wanted.iter().any(|claim| state.held.iter().any(|(_, other)| claim.conflicts(other)))
        };
        let state = lock(&self.state);
        let mut state = self.released.wait_while(state, is_taken).unwrap_or_else(PoisonError::into_inner);
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.held.extend(wanted.iter().map(|claim| (ticket, *claim)));
        Held { claims: self, ticket }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        lock(&self.claims.state).held.retain(|(ticket, _)| *ticket != self.ticket);
        self.claims.released.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    fn claim(first: usize, end: usize, writes: bool) -> Claim {
        Claim { first, end, writes }
    }

    #[test]
    fn only_writes_that_overlap_conflict() {
        let (a, b) = (claim(0, 10, false), claim(5, 15, false));
        assert!(!a.conflicts(&b));
        assert!(a.conflicts(&claim(9, 10, true)) && claim(0, 1, true).conflicts(&a));
        assert!(!claim(0, 10, true).conflicts(&claim(10, 20, true)));
        assert!(!claim(10, 20, true).conflicts(&claim(0, 10, true)));
    }

    #[test]
    fn who_conflicts_waits() {
        let claims = Claims::default();
        let first = claims.hold(&[claim(0, 10, true), claim(20, 30, false)]);
        let reading = claims.hold(&[claim(25, 40, false)]);
        let has_entered = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _held = claims.hold(&[claim(28, 29, true)]);
                has_entered.store(true, Ordering::SeqCst);
            });
            std::thread::sleep(Duration::from_millis(20));
            assert!(!has_entered.load(Ordering::SeqCst));
            drop(first);
            std::thread::sleep(Duration::from_millis(20));
            assert!(!has_entered.load(Ordering::SeqCst), "the reader is still there");
            drop(reading);
        });
        assert!(has_entered.load(Ordering::SeqCst));
    }
}
