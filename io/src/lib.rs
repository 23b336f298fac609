//! Weight files: formats, read planning, and an io_uring reader into a staging ring.
//!
//! [`open_model`] turns a path into tensors and their extents; a [`PlanBuilder`] turns wanted extents into aligned
//! reads; a [`Reader`] carries a plan out into chunks of a [`HostRegion`], and the receiver of its completions takes
//! each [`Chunk`] on to wherever the bytes belong. Nothing here knows a device.
//!
//! ```
//! use std::sync::Arc;
//! use spoc_io::{AnonymousRegion, OpenOptions, PlanBuilder, PlanOptions, ReadClass, ReadRequest, Reader, ReaderOptions};
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("m.safetensors");
//! # let header = br#"{"w":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#;
//! # let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
//! # bytes.extend_from_slice(header);
//! # bytes.extend_from_slice(&[1, 2, 3]);
//! # std::fs::write(&path, bytes)?;
//! let model = spoc_io::open_model(&path, &OpenOptions::default())?;
//! let mut builder = PlanBuilder::new(model.files(), PlanOptions::default());
//! for (target, tensor) in (0..).zip(model.tensors()) {
//!     builder.add(target, tensor.extent, 0)?;
//! }
//! let plan = Arc::new(builder.build()?);
//! let reader = Reader::start(Arc::new(AnonymousRegion::new(16 << 20)?), ReaderOptions::default())?;
//! reader.submit(ReadRequest { plan: Arc::clone(&plan), class: ReadClass::Demand, token: 0 })?;
//! let mut found = vec![0; 3];
//! for _ in plan.reads() {
//!     let completion = reader.completions().recv()?;
//!     let chunk = completion.outcome?;
//!     for piece in plan.pieces_of(&plan.reads()[completion.read as usize]) {
//!         let (from, to) = (piece.chunk_offset as usize, piece.target_offset as usize);
//!         let len = piece.len_bytes as usize;
//!         found[to..to + len].copy_from_slice(&chunk.bytes()[from..from + len]);
//!     }
//! }
//! assert_eq!(found, [1, 2, 3]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bench;
mod digest;
mod error;
mod file;
mod format;
mod manifest;
mod model;
mod numa;
mod placement;
mod plan;
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "the ring thread's side of it"))]
mod reader;
mod region;
#[cfg_attr(not(target_os = "linux"), path = "uring_elsewhere.rs")]
mod uring;

pub use bench::{ReadBench, bench_read};
pub use digest::{Digest, DigestKind, Digester, InOrder, digest_extent, read_in_order};
pub use error::{Error, ErrorKind, Result};
pub use file::{DirectAlign, Identity, Residency, ResidencyMethod, WeightFile};
pub use format::{ByteOrder, Dtype, GgmlType, GgufArray, GgufInfo, GgufValue, SafetensorsHeader, open_model};
pub use manifest::{BlockDigests, Manifest, ManifestFile, ManifestTensor, Unwritten};
pub use model::{ElementType, Extent, Format, Model, OpenOptions, Tensor};
pub use placement::{
    CheckedMap, ExpertSplit, LayoutOptions, MAP_DEVICES_MAX, MapBuilder, MapEntry, MapTarget, Pitch,
    PlacementMap, Traffic, layout,
};
pub use plan::{Piece, PlanBuilder, PlanOptions, PlannedRead, ReadPlan, SliceRuns, TensorFilter};
pub use reader::{
    Chunk, Completion, Faults, HostTargets, IoMode, IoPath, PathReason, ReadClass, ReadRequest, Reader,
    ReaderOptions, ReaderReport, RequestId, Spot, goes_in_place,
};
pub use region::{AnonymousRegion, HostRegion};
