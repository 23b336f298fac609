//! The ring: blocks in the order they were taken, given back in any order.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::host::{HostSource, PinnedHandle, SinkLoan};
use crate::ledger::StreamCore;
use crate::sync::{Condvar, Mutex};
use crate::util::lock;

/// Blocks begin at multiples of this, so that two never share a cache line.
const BLOCK_ALIGN_BYTES: usize = 64;
/// How long to wait for another thread that has taken a block and not submitted it yet.
const PATIENCE: Duration = Duration::from_millis(1);

pub(super) struct Ring {
    /// The whole memory, on loan for good: blocks are handed out here.
    memory: Mutex<SinkLoan>,
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Default)]
struct State {
    space: Space,
    /// Whose work each block waits for, in the order of `space.blocks`.
    streams: VecDeque<Arc<StreamCore>>,
}

/// Where there is room.
#[derive(Default)]
struct Space {
    size: usize,
    head: usize,
    blocks: VecDeque<Block>,
    next_id: u64,
}

struct Block {
    id: u64,
    start: usize,
    is_free: bool,
}

/// Bytes in the ring on their way to the device. Dropped when the copy was retired, which frees the block.
pub(super) struct Staged {
    ring: Arc<Ring>,
    id: u64,
    ptr: *const u8,
    len_bytes: usize,
}

// SAFETY: the block is this value's alone until it is dropped, and the ring keeps the memory.
unsafe impl Send for Staged {}

// SAFETY: written completely before it was handed out, in place for the ring's life, and given to nobody else
// before this value is dropped.
unsafe impl HostSource for Staged {
    fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        let gone = {
            let mut state = lock(&self.ring.state);
            let freed = state.space.free(self.id);
            state.streams.drain(..freed).collect::<Vec<_>>()
        };
        self.ring.freed.notify_all();
        // Outside the lock: a stream's last reference may be among them.
        drop(gone);
    }
}

impl Ring {
    pub(super) fn over(mut memory: PinnedHandle) -> Result<Self> {
        let size = memory.len_bytes();
        // The handle goes; the loan keeps the memory.
        let loan = memory.lend_mut(0..size)?;
        let space = Space { size, ..Space::default() };
        let state = State { space, streams: VecDeque::new() };
        Ok(Self { memory: Mutex::new(loan), state: Mutex::new(state), freed: Condvar::new() })
    }

    /// Copies `src` into the ring for a submission on `stream`, waiting for room where there is none.
    pub(super) fn put(
        ring: &Arc<Self>,
        device: &Device,
        stream: &Arc<StreamCore>,
        src: &[u8],
    ) -> Result<Staged> {
        let (id, start) = ring.take(device, stream, src.len())?;
        let base = crate::host::HostSink::as_mut_ptr(&mut *lock(&ring.memory));
        let ptr = base.wrapping_add(start);
        // SAFETY: the block lies in the ring and is nobody else's: `take` gave it out just above. A borrowed
        // slice cannot overlap it, because the ring's memory is lent to nobody but here.
        unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), ptr, src.len()) };
        Ok(Staged { ring: Arc::clone(ring), id, ptr, len_bytes: src.len() })
    }

    fn take(&self, device: &Device, stream: &Arc<StreamCore>, len: usize) -> Result<(u64, usize)> {
        if let Some(block) = self.try_take(stream, len) {
            return Ok(block);
        }
        // Work that has run may only not have been retired yet.
        device.collect();
        loop {
            if let Some(block) = self.try_take(stream, len) {
                return Ok(block);
            }
            device.core().counters.staging_waits.fetch_add(1, Ordering::Relaxed);
            let oldest = lock(&self.state).streams.front().cloned();
            let Some(oldest) = oldest else {
                let max = lock(&self.state).space.size as u64;
                return Err(Error::new(ErrorKind::TooLarge { need: len as u64, max }, super::DOING));
            };
            oldest.synchronize(device.core())?;
            let state = lock(&self.state);
            if state.space.room_for(len).is_none() {
                // Taken by another thread that is about to submit it.
                drop(self.freed.wait_timeout(state, PATIENCE).unwrap_or_else(PoisonError::into_inner));
            }
        }
    }

    fn try_take(&self, stream: &Arc<StreamCore>, len: usize) -> Option<(u64, usize)> {
        let mut state = lock(&self.state);
        let block = state.space.take(len)?;
        state.streams.push_back(Arc::clone(stream));
        Some(block)
    }
}

impl Space {
    /// What a block takes: at least something, so that every block has a place of its own.
    fn block_bytes(len: usize) -> usize {
        len.max(1).next_multiple_of(BLOCK_ALIGN_BYTES)
    }

    /// Where a block of `len` bytes would begin.
    fn room_for(&self, len: usize) -> Option<usize> {
        let len = Self::block_bytes(len);
        let Some(oldest) = self.blocks.front() else {
            return (len <= self.size).then_some(0);
        };
        if self.head > oldest.start {
            if len <= self.size - self.head {
                return Some(self.head);
            }
            // Strictly less, here and below: head and tail meet only when the ring is empty.
            return (len < oldest.start).then_some(0);
        }
        (len < oldest.start - self.head).then_some(self.head)
    }

    fn take(&mut self, len: usize) -> Option<(u64, usize)> {
        let start = self.room_for(len)?;
        self.head = start + Self::block_bytes(len);
        let id = self.next_id;
        self.next_id += 1;
        self.blocks.push_back(Block { id, start, is_free: false });
        Some((id, start))
    }

    /// Gives a block back, and answers how many of the oldest are gone with it.
    fn free(&mut self, id: u64) -> usize {
        if let Ok(position) = self.blocks.binary_search_by_key(&id, |block| block.id)
            && let Some(block) = self.blocks.get_mut(position)
        {
            block.is_free = true;
        }
        let mut gone = 0;
        while self.blocks.pop_front_if(|block| block.is_free).is_some() {
            gone += 1;
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn space(size: usize) -> Space {
        Space { size, ..Space::default() }
    }

    #[test]
    fn blocks_are_reused_once_the_oldest_are_free() {
        let mut space = space(256);
        let a = space.take(100).unwrap();
        let b = space.take(64).unwrap();
        assert_eq!((a.1, b.1), (0, 128));
        assert_eq!(space.take(65), None);
        let c = space.take(64).unwrap();
        assert_eq!(c.1, 192);
        assert_eq!(space.take(1), None, "head and tail would meet");
        assert_eq!(space.free(b.0), 0, "not the oldest");
        assert_eq!(space.free(a.0), 2);
        let d = space.take(64).unwrap();
        assert_eq!(d.1, 0);
        assert_eq!(space.free(c.0), 1);
        assert_eq!(space.free(d.0), 1);
        assert_eq!(space.take(256).map(|block| block.1), Some(0));
        assert_eq!(space.take(0), None);
    }

    proptest! {
        /// Against a list of what is out: nothing overlaps, everything lies inside, and an empty ring takes all.
        #[test]
        fn blocks_never_overlap(program in prop::collection::vec((1_usize..400, any::<prop::sample::Index>(), any::<bool>()), 1..200)) {
            let mut space = space(1024);
            let mut out: Vec<(u64, usize, usize)> = Vec::new();
            for (len, which, frees) in program {
                if frees && !out.is_empty() {
                    let (id, ..) = out.swap_remove(which.index(out.len()));
                    space.free(id);
                } else if let Some((id, start)) = space.take(len) {
                    prop_assert!(start + len <= 1024);
                    let is_apart = |&(_, other, other_len): &(u64, usize, usize)| {
                        start + len <= other || other + other_len <= start
                    };
                    prop_assert!(out.iter().all(is_apart));
                    out.push((id, start, len));
                } else {
                    prop_assert!(!out.is_empty(), "an empty ring has room");
                }
            }
        }
    }
}
