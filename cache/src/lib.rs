//! Slot cache for model weights in device memory, fed from disk by event-ordered copies.
//!
//! - [`catalogue`]: a model's tensors as groups with dense numbers.
//! - [`Pump`]: reader, staging ring and copy thread of one device.
//! - [`SlotCache`]: groups in slots; [`acquire`](SlotCache::acquire) a set, launch, release.
//! - [`load`]: a whole model, or part of it, into device memory for good.
//! - [`stats`]: what is counted, readable from outside the process.
//!
//! Nothing here waits for DMA or kernels: order between copies, launches and reuse of slots is made by events
//! on the device. What may wait for the disk says so in its name.
#![forbid(unsafe_code)]

pub mod arena;
mod cache;
pub mod catalogue;
mod engine;
mod error;
mod key;
mod lease;
pub mod load;
pub mod policy;
mod pump;
mod slots;
pub mod stats;

pub use cache::{CacheOptions, SlotCache};
pub use catalogue::{Catalogue, GroupRules};
pub use error::{Error, ErrorKind, Result};
pub use key::{Key, ModelId};
pub use lease::{Acquire, Lease, Pending, Slot};
pub use pump::{Pump, PumpOptions, RingReport, Stages};
pub use slots::state::State;
pub use spoc_bridge::{Missed, Rung};
