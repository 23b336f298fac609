//! Which resident group leaves when room is needed. One policy, one file.
//!
//! A policy sees *items*: dense numbers that the cache gives to the groups of every registered model. It
//! is told of every event (one set of items wanted together, hits and misses alike) and keeps the items
//! that may leave at this moment. The cache removes an event's own items before it asks for victims, so
//! no policy can choose a member of the set being served.

mod cycle;
mod heap;
mod lru;
#[cfg(test)]
mod replay;

pub use cycle::{Cycle, HALF_LIFE_VISITS};
pub use lru::Lru;

use std::fmt;
use std::str::FromStr;

/// An eviction policy. No call allocates except [`add_model`](Policy::add_model).
pub trait Policy: Send {
    /// Its name on the command line and on the statistics page.
    fn kind(&self) -> PolicyKind;

    /// Appends the items of one model; `positions[i]` is the place of item i in the order in which the
    /// model's layers are visited, starting at 0. Items are numbered on from those added before.
    fn add_model(&mut self, positions: &[u32]);

    /// One event: these items are wanted now. Called once an event, before victims are asked for.
    fn visit(&mut self, items: &[u32]);

    /// The item is resident and may leave from now on.
    fn insert(&mut self, item: u32);

    /// The item may not leave any more (it is leased), or has left.
    fn remove(&mut self, item: u32);

    /// The item that should leave next, still kept until it is removed. `None` if none may leave.
    fn victim(&mut self) -> Option<u32>;
}

/// The policies there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum PolicyKind {
    /// Longest until its layer comes round, weighted by how rarely it is used. The default.
    #[default]
    Cycle = 0,
    /// Least recently used; useless below one round of the layers, kept for comparison.
    Lru = 1,
}

impl PolicyKind {
    /// Every policy.
    pub const ALL: [PolicyKind; 2] = [PolicyKind::Cycle, PolicyKind::Lru];

    /// Its name on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            PolicyKind::Cycle => "cycle",
            PolicyKind::Lru => "lru",
        }
    }

    /// A fresh policy of this kind.
    #[must_use]
    pub fn create(self) -> Box<dyn Policy> {
        match self {
            PolicyKind::Cycle => Box::new(Cycle::new(HALF_LIFE_VISITS)),
            PolicyKind::Lru => Box::new(Lru::default()),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for PolicyKind {
    type Err = String;

    fn from_str(name: &str) -> Result<PolicyKind, String> {
        PolicyKind::ALL
            .into_iter()
            .find(|kind| kind.as_str() == name)
            .ok_or_else(|| format!("unknown policy {name:?}; known are cycle and lru"))
    }
}
