//! Which resident group leaves when room is needed. One policy, one file.
//!
//! A policy sees *items*: dense numbers that the cache gives to the groups of every registered model. It
//! is told of every event (one set of items wanted together, hits and misses alike) and keeps the items
//! that may leave at this moment. The cache removes an event's own items before it asks for victims, so
//! no policy can choose a member of the set being served. [`replay`](crate::replay) drives the same code.

mod cycle;
mod forecast;
mod heap;
mod lfu_decay;
mod list;
mod lru;
mod per_layer;
#[cfg(test)]
mod replay;
mod s3_fifo;
mod w_tiny_lfu;

pub use cycle::{Cycle, HALF_LIFE_VISITS};
pub use forecast::Forecast;
pub use lfu_decay::{HALF_LIFE_ROUNDS, LfuDecay};
pub use lru::Lru;
pub use per_layer::PerLayer;
pub use s3_fifo::S3Fifo;
pub use w_tiny_lfu::WTinyLfu;

use std::fmt;
use std::str::FromStr;

/// An eviction policy. No call allocates except [`add_model`](Policy::add_model).
pub trait Policy: Send {
    /// Its name on the command line and on the statistics page.
    fn kind(&self) -> PolicyKind;

    /// Appends the items of one model; `positions[i]` is the place of item i in the order in which the
    /// model's layers are visited, starting at 0. Items are numbered on from those added before.
    fn add_model(&mut self, positions: &[u32]);

    /// How many slots there are; told before the first event and after every change. Policies that divide the pool
    /// need it, the others ignore it.
    fn set_capacity(&mut self, _slots: usize) {}

    /// What having the item spares, relative to others: the time (or, unmeasured, the bytes) of loading it again
    /// over the model's mean, divided by the room that its leaving makes. 1 until told, more than 0; policies that
    /// count uses only ignore it.
    fn weigh(&mut self, _item: u32, _weight: f32) {}

    /// How far off the next want of the item is, weighted by what having it spares: among items the policy would have
    /// the farthest leave. 0 for policies that cannot tell. For misses that need not be loaded.
    fn distance(&self, _item: u32) -> f64 {
        0.0
    }

    /// One event: these items are wanted now. Called once an event, before victims are asked for.
    fn visit(&mut self, items: &[u32]);

    /// The item is resident and may leave from now on.
    fn insert(&mut self, item: u32);

    /// The item may not leave any more (it is leased), or has left.
    fn remove(&mut self, item: u32);

    /// The item has left the pool, after it was removed: what a policy remembers of those that left begins here.
    fn left(&mut self, _item: u32) {}

    /// The item that should leave next, still kept until it is removed. `None` if none may leave.
    fn victim(&mut self) -> Option<u32>;

    /// The item that should leave to make room for `item`: another one than [`victim`](Policy::victim)'s where layers
    /// have shares.
    fn victim_for(&mut self, _item: u32) -> Option<u32> {
        self.victim()
    }
}

/// What a read costs however little it reads, as bytes: about 100 µs of a fast disk.
const READ_BYTES: f64 = 262_144.0;

/// The weight of a group by its bytes, for [`Policy::weigh`]: what loading it again takes over what the mean of its
/// model takes. Within a factor of two all weigh alike: recorded routing with experts a fifth apart moves no fewer bytes
/// when they are weighed, and hits are lost.
#[must_use]
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)] // a ratio
pub fn reload_weight(bytes: u64, mean_bytes: f64) -> f32 {
    let ratio = (bytes as f64 + READ_BYTES) / (mean_bytes.max(0.0) + READ_BYTES);
    if (0.5..=2.0).contains(&ratio) { 1.0 } else { ratio as f32 }
}

/// The policies there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum PolicyKind {
    /// Longest until its layer comes round, weighted by how rarely it is used.
    Cycle = 0,
    /// Least recently used; useless below one round of the layers, kept for comparison.
    Lru = 1,
    /// Smallest decayed count of uses, for comparison.
    LfuDecay = 2,
    /// Two FIFO queues and a memory of what left, for comparison.
    S3Fifo = 3,
    /// A window and a segmented LRU with admission by frequency, for comparison.
    WTinyLfu = 4,
    /// As cycle, with the chance of use learnt from what was used, and from what was used beside it. The default.
    #[default]
    Forecast = 5,
}

impl PolicyKind {
    /// Every policy, in the order of their numbers.
    pub const ALL: [PolicyKind; 6] = [
        PolicyKind::Cycle,
        PolicyKind::Lru,
        PolicyKind::LfuDecay,
        PolicyKind::S3Fifo,
        PolicyKind::WTinyLfu,
        PolicyKind::Forecast,
    ];

    /// Its name on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            PolicyKind::Cycle => "cycle",
            PolicyKind::Lru => "lru",
            PolicyKind::LfuDecay => "lfu-decay",
            PolicyKind::S3Fifo => "s3-fifo",
            PolicyKind::WTinyLfu => "w-tinylfu",
            PolicyKind::Forecast => "forecast",
        }
    }

    /// The policy with this number on a statistics page.
    #[must_use]
    pub fn from_number(number: u64) -> Option<PolicyKind> {
        PolicyKind::ALL.into_iter().find(|&kind| kind as u64 == number)
    }

    /// A fresh policy of this kind.
    #[must_use]
    pub fn create(self) -> Box<dyn Policy> {
        match self {
            PolicyKind::Cycle => Box::new(Cycle::new(HALF_LIFE_VISITS)),
            PolicyKind::Lru => Box::new(Lru::default()),
            PolicyKind::LfuDecay => Box::new(LfuDecay::new(HALF_LIFE_ROUNDS)),
            PolicyKind::S3Fifo => Box::new(S3Fifo::default()),
            PolicyKind::WTinyLfu => Box::new(WTinyLfu::default()),
            PolicyKind::Forecast => Box::new(Forecast::default()),
        }
    }

    /// A fresh policy of this kind for a scope.
    #[must_use]
    pub fn create_for(self, scope: Scope) -> Box<dyn Policy> {
        match scope {
            Scope::Global => self.create(),
            Scope::Layer => Box::new(PerLayer::new(self)),
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
        PolicyKind::ALL.into_iter().find(|kind| kind.as_str() == name).ok_or_else(|| {
            let known: Vec<&str> = PolicyKind::ALL.iter().map(|kind| kind.as_str()).collect();
            format!("unknown policy {name:?}; known are {}", known.join(", "))
        })
    }
}

/// Which groups compete for a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scope {
    /// All of them. The default.
    #[default]
    Global,
    /// Those of one layer: every layer has its share of the slots.
    Layer,
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(name: &str) -> Result<Scope, String> {
        match name {
            "global" => Ok(Scope::Global),
            "layer" => Ok(Scope::Layer),
            _ => Err(format!("unknown scope {name:?}; known are global and layer")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_by_bytes() {
        let near = |found: f32, wanted: f32| assert!((found - wanted).abs() < 0.01, "{found}, not {wanted}");
        near(reload_weight(3_000_000, 2_600_000.0), 1.0);
        near(reload_weight(16 << 20, f64::from(4 << 20)), 3.82);
        assert!(reload_weight(0, f64::from(4 << 20)) > 0.05, "a read costs something");
    }
}
