//! Slot cache for model weights in device memory, fed from disk by event-ordered copies.
//!
//! - [`catalogue`]: a model's tensors as groups with dense numbers.
//! - [`Pump`]: reader, staging ring and copy thread of one device.
//! - [`SlotCache`]: groups in slots; [`acquire`](SlotCache::acquire) a set, launch, release.
//! - [`load`]: a whole model, or part of it, into device memory for good.
//! - [`policy`]: which group leaves; [`replay`]: what each policy would have done on recorded routing.
//! - [`scatter`]: parts of host memory to many slots.
//! - [`stats`]: what is counted, readable from outside the process.
//!
//! Nothing here waits for DMA or kernels: order between copies, launches and reuse of slots is made by events
//! on the device. What may wait for the disk says so in its name.
//!
//! ```
//! use spoc_cache::{CacheOptions, Catalogue, GroupRules, Pump, PumpOptions, SlotCache};
//! use spoc_driver::{BackendKind, DeviceSelector, Driver, StreamOptions};
//! use std::sync::Arc;
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("model.safetensors");
//! # let header = r#"{"layers.0.w":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},
//! #     "layers.1.w":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}}"#;
//! # let mut file = (header.len() as u64).to_le_bytes().to_vec();
//! # file.extend(header.bytes().chain([1, 2, 3, 4, 5]));
//! # std::fs::write(&path, file)?;
//! let found = spoc_backends::found(&spoc_backends::probe());
//! let device = Driver::new(found).open(&DeviceSelector::index(BackendKind::Native, 0))?;
//! let pump = Pump::start(&device, PumpOptions::default())?;
//!
//! let model = spoc_io::open_model(&path, &Default::default())?;
//! let catalogue = Arc::new(Catalogue::from_model(&model, &GroupRules::default())?);
//! let cache = SlotCache::new(&pump, CacheOptions::for_catalogue(&catalogue, 1))?;
//! let keys = cache.keys(cache.register(Arc::clone(&catalogue))?);
//!
//! let stream = device.create_stream(StreamOptions::default())?;
//! for (key, bytes) in keys.iter().zip([vec![1, 2, 3], vec![4, 5]]) {
//!     let lease = cache.wait_acquire(&[*key], &stream)?;
//!     // In the place of a launch: any work on the stream that reads the slot.
//!     let (segment, offset) = lease.memory(0).ok_or("a key")?;
//!     let read = stream.copy_to_host(&segment, offset, vec![0; bytes.len()])?;
//!     lease.release(&[&stream])?;
//!     assert_eq!(read.wait()?, bytes);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod arena;
mod cache;
pub mod catalogue;
mod engine;
mod error;
mod fleet;
mod key;
mod lease;
pub mod load;
pub mod policy;
mod profile;
mod pump;
mod readers;
pub mod replay;
pub mod scatter;
mod sizes;
mod slots;
pub mod stats;
mod sync;
mod table;
mod tier;
mod wants;
mod waves;

pub use cache::{CacheOptions, MinCapacity, SlotCache, SlotClass};
pub use catalogue::{Catalogue, GroupRules};
pub use engine::{CacheEvent, Evicted, Hinted, SequenceWord, Subscription};
pub use error::{Error, ErrorKind, Result};
pub use fleet::{Fleet, FleetModel, balance};
pub use key::{Key, ModelId};
pub use lease::{Acquire, Lease, Pending, Slot};
pub use profile::{BadProfile, Profile};
pub use pump::{Pump, PumpGroup, PumpOptions, RingReport, Stages};
pub use readers::{Reader, ReaderAcquire, ReaderLease, ReaderPending};
pub use slots::state::State;
pub use spoc_bridge::{Missed, Rung};
pub use table::DeviceTable;
pub use tier::TierOptions;
pub use wants::Claim;
pub use waves::{Wave, Waves};
