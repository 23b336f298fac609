//! What a policy would have done on recorded routing: the policies of the live cache, without device or disk.
//!
//! Counting is event-atomic. One event is one (step, layer): the set of distinct groups that the layer needs in that
//! step. All members are judged against the contents as the event began; no member leaves for another one. The hit rate
//! is resident members over members, summed over the events.
//!
//! [`Routing`] holds what was recorded, [`Routing::events`] makes the events of a batch, [`replay`] and [`belady`] run
//! them. Belady knows the future and is no policy.

mod belady;
mod events;
mod frozen;
mod run;

pub use belady::{Bypass, belady};
pub use events::{Events, Prompt, Routing};
pub use frozen::frozen_best;
pub use run::{Options, Outcome, replay};

/// What cannot be replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// A pool without slots.
    #[error("a pool of no slots holds nothing: at least 1 is needed")]
    NoSlots,
    /// Per layer, with fewer slots than layers.
    #[error("{slots} slots are too few for a share each in {layers} layers")]
    SharesTooSmall {
        /// Slots there are.
        slots: usize,
        /// Layers there are.
        layers: usize,
    },
}

#[cfg(test)]
mod tests;
