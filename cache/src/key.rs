//! Names of what a cache holds: a model, and one of its groups.

use std::fmt;

/// A model registered with one cache. Ids are given out in order and reused after unregistering.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelId(pub u32);

/// One group of one registered model.
///
/// The generation belongs to the registration: after a model is unregistered every key made for it is
/// refused as stale, even if another model took over its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Which model.
    pub model: ModelId,
    /// Which registration of that model id.
    pub generation: u32,
    /// Index of the group in the model's catalogue.
    pub group: u32,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}/{}", self.model.0, self.generation, self.group)
    }
}
