//! Readers: one an engine thread, which find resident groups and hold them without a lock.

mod protocol;
mod reader;
mod registry;
mod visits;

pub use protocol::SLOTS_MAX;
pub(crate) use protocol::{Line, Standing, Word, Words};
pub use reader::{Reader, ReaderAcquire, ReaderLease, ReaderPending};
pub(crate) use registry::{ReaderCell, Registry};
pub(crate) use visits::sets;
