//! What a cache counts, laid out so that another process can read it at any time.
//!
//! Writers only store single words, so a reader never waits and a writer that dies or hangs in the middle
//! leaves nothing unreadable: see [`layout`] for who may disagree with whom and for how long.

pub mod layout;
mod reader;
mod writer;

pub use reader::{Cause, CurvePoint, Header, LogEntry, LogKind, PageError, Reader, SlotRecord, Snapshot};
pub(crate) use writer::PageOwner;
pub use writer::{CounterStore, Counters, HeapStore, Identity};
