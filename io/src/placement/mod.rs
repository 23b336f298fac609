//! Placement maps: which part of which tensor goes to which device, and where there.
//!
//! A map is written by whoever knows the model (an engine, a [`MapBuilder`], [`layout`]) and checked against the files
//! before anything is read: what it says wrongly is refused with the entry and the reason, and nothing is guessed.

mod build;
mod check;
mod layout;
mod names;
mod plan;
mod text;

use std::ops::Range;

pub use build::MapBuilder;
pub use check::CheckedMap;
pub use layout::{ExpertSplit, LayoutOptions, layout};
pub use plan::Traffic;

/// Devices that a map may name: their numbers are below this.
pub const MAP_DEVICES_MAX: u32 = 64;

/// Memory on a device that entries fill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapTarget {
    /// Its name, unique on its device.
    pub name: String,
    /// The caller's number for the device, below [`MAP_DEVICES_MAX`].
    pub device: u32,
    /// Its length in bytes.
    pub len_bytes: u64,
    /// Whether the entries fill all of it. If not, what they leave is not written.
    pub complete: bool,
}

/// Where the rows of a slice begin: row n at `n × pitch_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pitch {
    /// Length of a row in bytes. The slice's length is a multiple of it.
    pub row_bytes: u64,
    /// From the beginning of one row to that of the next, in bytes; at least `row_bytes`.
    pub pitch_bytes: u64,
}

/// A slice of a tensor and where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapEntry {
    /// The tensor's name in the model.
    pub tensor: String,
    /// A range of elements for each dimension, in the order of the tensor's shape; the whole tensor if `None`.
    pub slice: Option<Vec<Range<u64>>>,
    /// Position of the target in [`PlacementMap::targets`].
    pub target: u32,
    /// Where the slice begins in the target, in bytes.
    pub offset_bytes: u64,
    /// How the slice's bytes, which come in the order of the tensor, lie in the target; one behind the other if `None`.
    pub pitch: Option<Pitch>,
}

/// Targets on devices, and the slices that fill them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacementMap {
    /// The memory to fill.
    pub targets: Vec<MapTarget>,
    /// What fills it.
    pub entries: Vec<MapEntry>,
}
