//! Devices, streams, events, vectors, pinned memory and the port that every GPU API plugs into.
//!
//! A [`Driver`] is made from the backends that probing found; it opens a [`Device`]; the device gives
//! [`Segment`]s of memory, [`Stream`]s of work and [`Event`]s to wait for. Copies on a stream own their
//! memory: sources move into the device's ledger and come back, or are dropped, once the copy has run.
//! So the order in which handles are dropped never matters, and no safe call carries a pointer duty.
//!
//! # Who keeps whom
//!
//! Streams and devices hold the device's core and its ledger; segments, events and pins hold the core alone,
//! because they sit in the ledger and would keep it alive in a circle. When the last stream and device are
//! gone, what is pending is waited for. A source that itself holds a `Device` or a `Stream` keeps the ledger
//! alive until it is retired: better let it hold segments.
//!
//! # Locks
//!
//! Taken in this order, where more than one is held: a stream's submissions → an event's record → a
//! stream's entries; and registrations by address → the registry of pinned ranges. The ledger's list of streams
//! and the spare events are held alone. Sources and segments are dropped with none held.

pub mod backend;
mod copies;
mod device;
mod driver;
mod error;
mod event;
#[cfg(feature = "fake")]
pub mod fake;
mod host;
mod launch;
mod ledger;
mod peer;
mod pending;
mod reservation;
mod segment;
mod staging;
mod stream;
mod sync;
mod util;
mod vector;

pub use backend::{
    BackendKind, Capabilities, CaptureState, DeviceInfo, DeviceUuid, Exported, Limits, MemoryInfo,
    SegmentOptions, StreamOptions, StreamPriority, Verdict,
};
pub use copies::CopyRange;
pub use device::{Device, DeviceCounters};
pub use driver::{DeviceName, DeviceSelector, Driver};
pub use error::{Error, ErrorKind, Result, Returned};
pub use event::Event;
pub use host::{
    ElementSink, ElementSource, Elements, HostBuffer, HostMemory, HostMemoryOptions, HostSink, HostSource,
    Pin, Pinned, PinnedHandle, SinkLoan, SourceLoan,
};
pub use launch::{
    Access, Arguments, BuiltIn, Call, CallArgument, Form, GRID_THREADS_MAX, Grid, Kernel, KindRule, Language,
    NativeFn, Parameter, Role, Scalar, Source,
};
pub use peer::PeerPath;
pub use pending::PendingRead;
pub use reservation::Reservation;
pub use segment::Segment;
pub use staging::{MAX_STAGED_BYTES, STAGING_RING_BYTES};
pub use stream::Stream;
pub use vector::location;
pub use vector::{
    DeviceVector, Element, ElementKind, HostLink, HostSlice, Item, Location, Operation, VECTOR_ELEMENTS_MAX,
    Vector, kind_of,
};
