//! Requests by their tags: a client that gave a request up, or lost its answer, names the lease by what it knows.

use std::collections::{HashMap, VecDeque};

/// Requests under way that a session may have given up; the oldest is forgotten behind them, as it has been answered
/// long since.
const GIVEN_UP_MAX: usize = 1024;

/// Tags of one session. 0 is no tag.
#[derive(Debug, Default)]
pub struct Tags {
    /// Leases that are out, by the tag of their request.
    leases: HashMap<u64, u64>,
    /// Given up before they were answered.
    given_up: VecDeque<u64>,
}

impl Tags {
    /// A request was answered with this lease.
    pub fn answered(&mut self, tag: u64, lease: u64) {
        if tag != 0 {
            self.leases.insert(tag, lease);
        }
    }

    /// Its lease has ended.
    pub fn forget(&mut self, tag: u64) {
        if tag != 0 {
            self.leases.remove(&tag);
        }
    }

    /// The lease of a request; without one, the request is given up.
    pub fn lease_or_give_up(&mut self, tag: u64) -> Option<u64> {
        if tag == 0 {
            return None;
        }
        let lease = self.leases.get(&tag).copied();
        if lease.is_none() && !self.given_up.contains(&tag) {
            self.given_up.push_back(tag);
            if self.given_up.len() > GIVEN_UP_MAX {
                self.given_up.pop_front();
            }
        }
        lease
    }

    /// Whether a request was given up; it is not asked for again.
    pub fn take_given_up(&mut self, tag: u64) -> bool {
        if tag == 0 || self.given_up.is_empty() {
            return false;
        }
        let found = self.given_up.iter().position(|given_up| *given_up == tag);
        found.is_some_and(|at| self.given_up.remove(at).is_some())
    }
}
