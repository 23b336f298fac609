//! Host memory whose life the fake watches.

use std::sync::Arc;

use super::state::{Source, World};
use crate::host::{HostSink, HostSource};

/// Host memory that is poisoned when it is dropped, and whose bytes stay readable after that: a copy that
/// runs too late is a violation, not undefined behaviour.
pub struct FakeSource {
    world: Arc<World>,
    ptr: *mut u8,
    len: usize,
}

// SAFETY: the bytes are reached only through this value and, by the driver's order, through copies.
unsafe impl Send for FakeSource {}

impl FakeSource {
    pub(super) fn new(world: Arc<World>, bytes: Vec<u8>) -> Self {
        let mut bytes = bytes.into_boxed_slice();
        let (ptr, len) = (bytes.as_mut_ptr(), bytes.len());
        if len > 0 {
            world.lock().sources.insert(ptr.addr(), Source { bytes, is_dropped: false });
        }
        Self { world, ptr, len }
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let state = self.world.lock();
        state.sources.get(&self.ptr.addr()).map_or_else(Vec::new, |source| source.bytes.to_vec())
    }
}

impl Drop for FakeSource {
    fn drop(&mut self) {
        if self.len > 0 {
            self.world.lock().drop_source(self.ptr.addr());
        }
    }
}

// SAFETY: the bytes belong to the world and are never moved or freed before it; nothing writes them until
// this value is dropped, but a copy that the driver runs.
unsafe impl HostSource for FakeSource {
    fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    fn len_bytes(&self) -> usize {
        self.len
    }
}

// SAFETY: as above; the value cannot be cloned.
unsafe impl HostSink for FakeSource {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr
    }
}
