//! How the tier comes by its memory: in pieces, on a thread of its own, while the cache already works.

use crate::arena::Geometry;
use crate::stats::Counters;
use crate::stats::layout::Counter;
use crate::{Error, ErrorKind, Result};
use spoc_bridge::{Berths, RingMemory};
use spoc_driver::Device;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Bytes of one piece, if a berth is not wider: what a failing pin loses, and what is given back at once.
const PIECE_BYTES: u64 = 256 << 20;

/// Pinned host memory for groups that leave their slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TierOptions {
    /// Bytes of pinned memory at most; it comes in pieces of up to 256 MiB, in the background. 0 for no tier.
    pub bytes: u64,
    /// Bytes of host memory that may be taken now, as whoever wires the cache knows them
    /// (`spoc_backends::host_memory_available()`: the machine's and the control group's). A larger tier is refused.
    pub host_free_bytes: u64,
    /// Every group is copied to the tier behind its fill and stays there while it is in a slot: evicting it then costs
    /// nothing. Otherwise a group is in a slot or in the tier, but while it moves.
    pub inclusive: bool,
}

impl Default for TierOptions {
    /// None.
    fn default() -> TierOptions {
        TierOptions { bytes: 0, host_free_bytes: u64::MAX, inclusive: false }
    }
}

/// Refuses a tier that the host has no room for.
pub(crate) fn check_room(options: &TierOptions) -> Result<()> {
    if options.bytes > options.host_free_bytes {
        let (need_bytes, have_bytes) = (options.bytes, options.host_free_bytes);
        return Err(Error::new(ErrorKind::HostTooSmall { need_bytes, have_bytes }));
    }
    Ok(())
}

/// No berths yet, of each slot class's width.
pub(crate) fn berths_for(geometries: &[Geometry]) -> Vec<Arc<Berths>> {
    let width = |geometry: &Geometry| usize::try_from(geometry.stride_bytes).unwrap_or(usize::MAX);
    geometries.iter().map(|geometry| Berths::new(width(geometry))).collect()
}

/// The thread that takes and pins the memory.
#[derive(Debug)]
pub(crate) struct Pinning {
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Pinning {
    /// Starts it: each class gets its part by the bytes of its slots.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start(
        device: &Device,
        geometries: &[Geometry],
        berths: &[Arc<Berths>],
        bytes: u64,
        counters: &Counters,
    ) -> Result<Pinning> {
        let all: u64 = geometries.iter().map(Geometry::bytes).fold(0, u64::saturating_add);
        let mut pieces = Vec::new();
        for (geometry, berths) in geometries.iter().zip(berths) {
            let part = u128::from(bytes) * u128::from(geometry.bytes()) / u128::from(all.max(1));
            let mut left = u64::try_from(part).unwrap_or(u64::MAX) / geometry.stride_bytes;
            while left > 0 {
                let here = left.min((PIECE_BYTES / geometry.stride_bytes).max(1));
                pieces.push((Arc::clone(berths), here * geometry.stride_bytes));
                left -= here;
            }
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (device, counters, stopped) = (device.clone(), counters.clone(), Arc::clone(&stop));
        let thread = std::thread::Builder::new()
            .name("spoc-tier-pin".to_owned())
            .spawn(move || pin(&device, &pieces, &counters, &stopped))
            .map_err(|error| {
                let kind = spoc_io::ErrorKind::IoError;
                Error::from(spoc_io::Error::new(kind, format!("starting the tier's thread: {error}")))
            })?;
        Ok(Pinning { stop, thread: Mutex::new(Some(thread)) })
    }

    /// Waits until all memory is there that will be.
    pub fn wait(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the thread that pins the host tier's memory panicked");
        }
    }

    /// No more is taken.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Drop for Pinning {
    fn drop(&mut self) {
        self.stop();
        self.wait();
    }
}

fn pin(device: &Device, pieces: &[(Arc<Berths>, u64)], counters: &Counters, stop: &AtomicBool) {
    for (done, (berths, bytes)) in pieces.iter().enumerate() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let taken = usize::try_from(*bytes)
            .map_err(|error| error.to_string())
            .and_then(|len| RingMemory::allocate(device, len).map_err(|error| error.to_string()))
            .and_then(|ring| berths.add(ring));
        if let Err(reason) = taken {
            // What one piece was refused for, the next would be too.
            let missing: u64 = pieces[done..].iter().map(|(_, bytes)| bytes).sum();
            counters.add(Counter::TierUnpinnedBytes, missing);
            tracing::warn!(reason, missing_bytes = missing, "the host tier is smaller than asked for");
            return;
        }
    }
}
