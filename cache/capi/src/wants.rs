//! What an engine tells the cache beside the sets that it waits for.

use crate::args;
use crate::cache::{CacheObject, spoc_cache, spoc_key};
use crate::entry;
use crate::failure::Result;
use crate::handles;
use crate::status::spoc_status;
use ::spoc_cache::{Key, SlotCache};
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

/// What became of the keys of a hint.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct spoc_hinted {
    /// There already, or on their way.
    pub there: u32,
    /// Reads begun.
    pub begun: u32,
    /// Waiting for room that demand does not keep hot.
    pub waiting: u32,
    /// Not taken: reading ahead does not pay at present, the last read failed a moment ago, or too many wait.
    pub refused: u32,
}

/// # Safety
/// As the header asks of an array of keys.
unsafe fn with_keys<T>(
    cache: spoc_cache,
    keys: *const spoc_key,
    key_count: usize,
    tell: impl FnOnce(&SlotCache, &[Key]) -> ::spoc_cache::Result<T>,
) -> Result<T> {
    // SAFETY: the caller's duty.
    let keys = unsafe { args::list(keys, key_count, "keys") }?;
    let keys: Vec<Key> = keys.iter().map(|key| Key::from(*key)).collect();
    Ok(tell(&handles::get::<CacheObject>(cache.id)?.cache, &keys)?)
}

/// Prefetch: says that groups will probably be wanted within `within_ms`. They are read behind every demand, into slots
/// that are free or that demand does not keep hot; a demand joins a running read and makes it urgent. What it was good for
/// is counted, and below break-even it is turned off for a while. `hinted` may be NULL. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_hint(
    cache: spoc_cache,
    keys: *const spoc_key,
    key_count: usize,
    within_ms: u64,
    hinted: Option<&mut MaybeUninit<spoc_hinted>>,
) -> spoc_status {
    entry::run(|| {
        let now = Instant::now();
        // A time beyond what the clock counts is a day: no hint is worth so long.
        let within = Duration::from_millis(within_ms).min(Duration::from_secs(86_400));
        // SAFETY: as the header asks.
        let found =
            unsafe { with_keys(cache, keys, key_count, |cache, keys| cache.hint(keys, now + within)) }?;
        if let Some(out) = hinted {
            out.write(spoc_hinted {
                there: found.there,
                begun: found.begun,
                waiting: found.waiting,
                refused: found.refused,
            });
        }
        Ok(())
    })
}

/// Keeps groups in their slots until as many `spoc_unpin`s; what is not there is read, which this does not wait for.
/// `SPOC_ERROR_TOO_WIDE`, and nothing pinned, if they do not fit beside what is pinned already. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_pin(cache: spoc_cache, keys: *const spoc_key, key_count: usize) -> spoc_status {
    // SAFETY: as the header asks.
    entry::run(|| unsafe { with_keys(cache, keys, key_count, SlotCache::pin) })
}

/// Ends one pin of each. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_unpin(
    cache: spoc_cache,
    keys: *const spoc_key,
    key_count: usize,
) -> spoc_status {
    // SAFETY: as the header asks.
    entry::run(|| unsafe { with_keys(cache, keys, key_count, SlotCache::unpin) })
}

/// Keeps groups for a while as long as anything else can leave; 0 takes the wish back. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_retain(
    cache: spoc_cache,
    keys: *const spoc_key,
    key_count: usize,
    time_ms: u64,
) -> spoc_status {
    let time = Duration::from_millis(time_ms);
    // SAFETY: as the header asks.
    entry::run(|| unsafe { with_keys(cache, keys, key_count, |cache, keys| cache.retain(keys, time)) })
}

/// Ends running reads of these groups for everyone: leases that wait for one fail as `SPOC_ERROR_CANCELLED`. Says how
/// many reads it ended; `ended` may be NULL. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_cancel_reads(
    cache: spoc_cache,
    keys: *const spoc_key,
    key_count: usize,
    ended: Option<&mut MaybeUninit<u32>>,
) -> spoc_status {
    entry::run(|| {
        // SAFETY: as the header asks.
        let found = unsafe { with_keys(cache, keys, key_count, SlotCache::cancel) }?;
        if let Some(out) = ended {
            out.write(found);
        }
        Ok(())
    })
}

/// The next part of a set wider than the slots: which of `keys` can be acquired together now, what is there first. Their
/// positions go to `positions`, with room for `key_count`, in rising order, and `position_count` says how many. Acquire
/// these, use and release them, and ask again with the others. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_next_wave(
    cache: spoc_cache,
    keys: *const spoc_key,
    key_count: usize,
    positions: *mut usize,
    position_count: Option<&mut MaybeUninit<usize>>,
) -> spoc_status {
    entry::run(|| {
        let count = args::out(position_count, "position_count")?;
        // SAFETY: as the header asks.
        let room = unsafe { args::room(positions, key_count, "positions") }?;
        // SAFETY: as the header asks.
        let chosen = unsafe { with_keys(cache, keys, key_count, SlotCache::next_wave) }?;
        for (to, position) in room.iter_mut().zip(&chosen) {
            to.write(*position);
        }
        count.write(chosen.len());
        Ok(())
    })
}
