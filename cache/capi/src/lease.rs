//! Leases: the right to use slots, from the wish to the release.

use crate::args;
use crate::cache::{CacheObject, spoc_cache, spoc_key};
use crate::entry;
use crate::failure::{Failure, Result};
use crate::handles::{self, Object};
use crate::load::{place, spoc_place};
use crate::status::spoc_status;
use crate::stream::{StreamObject, StreamRef, spoc_stream};
use ::spoc_cache::catalogue::GroupTensor;
use ::spoc_cache::{Acquire, ErrorKind, Key, Lease, Pending, Slot};
use ::spoc_driver::Segment;
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A wish for groups, and once it is ready the right to use their slots.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct spoc_lease {
    /// The handle; 0 is none.
    pub id: u64,
}

/// How far a lease is.
enum State {
    /// Something of it is still being read.
    Pending(Pending<StreamRef>),
    /// Its slots may be used.
    Ready(Lease<StreamRef>),
    /// It failed, or it ended.
    Over,
}

/// A lease. What uses its stream holds the stream's turn, its end included.
struct LeaseObject {
    state: Mutex<State>,
    stream: Arc<StreamObject>,
    keys: Vec<Key>,
    cache: Arc<CacheObject>,
}

impl Object for LeaseObject {
    const NAME: &'static str = "spoc_lease";
}

impl Drop for LeaseObject {
    /// A release on the acquire stream, as Rust's own leases have it.
    fn drop(&mut self) {
        let _turn = self.stream.turn();
        *self.state.get_mut().unwrap_or_else(PoisonError::into_inner) = State::Over;
    }
}

fn not_ready() -> Failure {
    Failure::new(spoc_status::SPOC_ERROR_NOT_READY, "the lease is not ready: wait for it first")
}

impl LeaseObject {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a step if one can be taken without waiting. Whether it is ready.
    fn look(&self, state: &mut State) -> Result<bool> {
        let _turn = self.stream.turn();
        *state = match std::mem::replace(state, State::Over) {
            // A failure leaves it over.
            State::Pending(pending) => match pending.try_lease()? {
                Acquire::Ready(lease) => State::Ready(lease),
                Acquire::Pending(pending) => State::Pending(pending),
            },
            as_it_is => as_it_is,
        };
        match state {
            State::Ready(_) => Ok(true),
            State::Pending(_) => Ok(false),
            State::Over => Err(over()),
        }
    }

    /// Waits for the disk, without the stream's turn.
    fn wait(&self, timeout: Option<Duration>) -> Result<()> {
        let mut state = self.lock();
        if let State::Pending(pending) = &*state
            && let Err(error) = pending.wait_ready(timeout)
        {
            if !matches!(error.kind(), ErrorKind::TimedOut) {
                *state = State::Over;
            }
            return Err(error.into());
        }
        if self.look(&mut state)? { Ok(()) } else { Err(not_ready()) }
    }

    fn ready<T>(&self, use_lease: impl FnOnce(&Lease<StreamRef>) -> Result<T>) -> Result<T> {
        match &*self.lock() {
            State::Ready(lease) => use_lease(lease),
            State::Pending(_) => Err(not_ready()),
            State::Over => Err(over()),
        }
    }

    /// The slot of a key, its segment, and where it begins there.
    fn slot(&self, index: usize) -> Result<(Slot, Segment, u64)> {
        let have = self.keys.len();
        let none = || Failure::argument(format_args!("index: expected less than {have}, found {index}"));
        self.ready(|lease| {
            let (segment, offset_bytes) = lease.memory(index).ok_or_else(none)?;
            Ok((lease.slot(index).ok_or_else(none)?, segment.clone(), offset_bytes))
        })
    }

    /// Bytes of its slot that a key's group takes.
    fn group_bytes(&self, index: usize) -> u64 {
        let key = self.keys.get(index).copied();
        let catalogue = key.and_then(|key| self.cache.catalogue(key));
        let group = catalogue.as_ref().zip(key).and_then(|(catalogue, key)| catalogue.group(key.group));
        group.map_or(0, |group| group.slot_bytes)
    }

    /// A tensor of a key's group, by its position there.
    fn member(&self, index: usize, position: u32) -> Result<GroupTensor> {
        let have = self.keys.len();
        let no_key = || Failure::argument(format_args!("index: expected less than {have}, found {index}"));
        let key = self.keys.get(index).copied().ok_or_else(no_key)?;
        let gone = || Failure::new(spoc_status::SPOC_ERROR_INTERNAL, "a lease without its model");
        let catalogue = self.cache.catalogue(key).ok_or_else(gone)?;
        let members = catalogue.tensors(key.group);
        let have = members.len();
        let none =
            || Failure::argument(format_args!("position: expected less than {have}, found {position}"));
        members.get(position as usize).cloned().ok_or_else(none)
    }
}

fn over() -> Failure {
    Failure::new(spoc_status::SPOC_ERROR_RELEASED, "the lease failed or was released")
}

fn timeout(timeout_ms: i64) -> Option<Duration> {
    u64::try_from(timeout_ms).ok().map(Duration::from_millis)
}

/// Wants groups, for launches on `stream`. Returns at once; `spoc_lease_wait` or `spoc_lease_try` make the lease ready.
///
/// The set is judged at once and none of its members leaves for another of them; slots are reserved for all of it or
/// for nothing, first come first served. Refused as `SPOC_ERROR_TOO_WIDE` if it can never fit. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_acquire(
    cache: spoc_cache,
    keys: *const spoc_key,
    key_count: usize,
    stream: spoc_stream,
    lease: Option<&mut MaybeUninit<spoc_lease>>,
) -> spoc_status {
    entry::run(|| {
        let out = args::out(lease, "lease")?;
        // SAFETY: as the header asks.
        let object = acquire(cache, unsafe { args::list(keys, key_count, "keys") }?, stream)?;
        out.write(spoc_lease { id: handles::put(object)? });
        Ok(())
    })
}

/// `spoc_acquire`, and waits for the disk for at most `timeout_ms` (negative: without end). Without a lease if it
/// fails. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_wait_acquire(
    cache: spoc_cache,
    keys: *const spoc_key,
    key_count: usize,
    stream: spoc_stream,
    timeout_ms: i64,
    lease: Option<&mut MaybeUninit<spoc_lease>>,
) -> spoc_status {
    entry::run(|| {
        let out = args::out(lease, "lease")?;
        // SAFETY: as the header asks.
        let object = acquire(cache, unsafe { args::list(keys, key_count, "keys") }?, stream)?;
        object.wait(timeout(timeout_ms))?;
        out.write(spoc_lease { id: handles::put(object)? });
        Ok(())
    })
}

/// Leases what is there of a set, for launches on `stream`, and begins to read at most `inserts_max` of what is not: for
/// engines that compute those elsewhere. Never waits. The lease is ready, and of the keys that are there, in their
/// order; `missing`, with room for `key_count`, gets the distinct others and `missing_count` their number. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_claim(
    cache: spoc_cache,
    keys: *const spoc_key,
    key_count: usize,
    stream: spoc_stream,
    inserts_max: usize,
    missing: *mut spoc_key,
    missing_count: Option<&mut MaybeUninit<usize>>,
    lease: Option<&mut MaybeUninit<spoc_lease>>,
) -> spoc_status {
    entry::run(|| {
        let (out, count) = (args::out(lease, "lease")?, args::out(missing_count, "missing_count")?);
        // SAFETY: as the header asks.
        let keys: Vec<Key> =
            unsafe { args::list(keys, key_count, "keys") }?.iter().map(|key| Key::from(*key)).collect();
        // SAFETY: as the header asks; the keys were copied, so the two may be the same array.
        let room = unsafe { args::room(missing, key_count, "missing") }?;
        let cache = handles::get::<CacheObject>(cache.id)?;
        let stream = handles::get::<StreamObject>(stream.id)?;
        let claim = {
            let _turn = stream.turn();
            cache.cache.claim(&keys, StreamRef(Arc::clone(&stream)), inserts_max)?
        };
        let there = keys.iter().enumerate().filter(|(index, _)| claim.slot(*index).is_some());
        let there: Vec<Key> = there.map(|(_, key)| *key).collect();
        let absent: Vec<spoc_key> = claim.missing().iter().map(|key| spoc_key::from(*key)).collect();
        let state = Mutex::new(State::Ready(claim.into_lease()));
        let id = handles::put(LeaseObject { state, stream, keys: there, cache })?;
        for (to, key) in room.iter_mut().zip(&absent) {
            to.write(*key);
        }
        count.write(absent.len());
        out.write(spoc_lease { id });
        Ok(())
    })
}

fn acquire(cache: spoc_cache, keys: &[spoc_key], stream: spoc_stream) -> Result<LeaseObject> {
    let cache = handles::get::<CacheObject>(cache.id)?;
    let stream = handles::get::<StreamObject>(stream.id)?;
    let keys: Vec<Key> = keys.iter().map(|key| Key::from(*key)).collect();
    let state = {
        let _turn = stream.turn();
        match cache.cache.acquire(&keys, StreamRef(Arc::clone(&stream)))? {
            Acquire::Ready(lease) => State::Ready(lease),
            Acquire::Pending(pending) => State::Pending(pending),
        }
    };
    Ok(LeaseObject { state: Mutex::new(state), stream, keys, cache })
}

/// Whether the lease is ready (1) or not yet (0). Never waits for the disk. An error says why it never will be. One
/// thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn spoc_lease_try(lease: spoc_lease, ready: Option<&mut MaybeUninit<u32>>) -> spoc_status {
    entry::run(|| {
        let out = args::out(ready, "ready")?;
        let object = handles::get::<LeaseObject>(lease.id)?;
        let mut state = object.lock();
        out.write(object.look(&mut state)?.into());
        Ok(())
    })
}

/// Waits until the lease is ready, for at most `timeout_ms` (negative: without end): everything has been read, and
/// whatever is enqueued on the stream from now on runs behind the copies. After `SPOC_ERROR_TIMED_OUT` it can be
/// waited for again. One thread at a time; other calls with this lease wait meanwhile.
#[unsafe(no_mangle)]
pub extern "C" fn spoc_lease_wait(lease: spoc_lease, timeout_ms: i64) -> spoc_status {
    entry::run(|| handles::get::<LeaseObject>(lease.id)?.wait(timeout(timeout_ms)))
}

/// Where the slot of the `index`-th key is, and how many bytes of it the group takes. Through `host`, look only after `spoc_stream_synchronize` of the stream.
/// Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_lease_slot(
    lease: spoc_lease,
    index: usize,
    slot: Option<&mut MaybeUninit<u32>>,
    where_: *mut spoc_place,
) -> spoc_status {
    entry::run(|| {
        let object = handles::get::<LeaseObject>(lease.id)?;
        let (found, segment, offset_bytes) = object.slot(index)?;
        let place = place(&segment, found.segment, offset_bytes, object.group_bytes(index), u32::MAX);
        // SAFETY: as the header asks.
        unsafe { args::fill(where_, &place) }?;
        args::out(slot, "slot")?.write(found.slot);
        Ok(())
    })
}

/// Where the `position`-th tensor of the `index`-th key's group is, in the order of `spoc_model_member`. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_lease_tensor(
    lease: spoc_lease,
    index: usize,
    position: u32,
    where_: *mut spoc_place,
) -> spoc_status {
    entry::run(|| {
        let object = handles::get::<LeaseObject>(lease.id)?;
        let (slot, segment, offset_bytes) = object.slot(index)?;
        let member = object.member(index, position)?;
        let offset_bytes = offset_bytes + member.offset_bytes;
        let place = place(&segment, slot.segment, offset_bytes, member.extent.len_bytes, member.tensor);
        // SAFETY: as the header asks.
        unsafe { args::fill(where_, &place) }
    })
}

/// The device addresses of the slots of all keys, in their order: `count` is the number of keys. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_lease_addresses(
    lease: spoc_lease,
    addresses: *mut u64,
    count: usize,
) -> spoc_status {
    entry::run(|| {
        let object = handles::get::<LeaseObject>(lease.id)?;
        if count != object.keys.len() {
            let keys = object.keys.len();
            return Err(Failure::argument(format_args!("count: expected {keys}, found {count}")));
        }
        // SAFETY: as the header asks.
        let room = unsafe { args::room(addresses, count, "addresses") }?;
        object.ready(|lease| {
            let none = "this backend has no device addresses";
            for (to, slot) in room.iter_mut().zip(lease.slots()) {
                let address = slot.address;
                to.write(address.ok_or_else(|| Failure::new(spoc_status::SPOC_ERROR_UNSUPPORTED, none))?);
            }
            Ok(())
        })
    })
}

/// Reads bytes of a tensor (as `spoc_lease_tensor` counts) back to the host: complete on return. For checks, and for
/// devices whose memory has no address. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_lease_read(
    lease: spoc_lease,
    index: usize,
    position: u32,
    offset_bytes: u64,
    to: *mut u8,
    len_bytes: usize,
) -> spoc_status {
    entry::run(|| {
        let object = handles::get::<LeaseObject>(lease.id)?;
        let member = object.member(index, position)?;
        let end = offset_bytes.checked_add(len_bytes as u64);
        if end.is_none_or(|end| end > member.extent.len_bytes) {
            let have = member.extent.len_bytes;
            let message = format!("{len_bytes} bytes at {offset_bytes} leave a tensor of {have} bytes");
            return Err(Failure::new(spoc_status::SPOC_ERROR_OUT_OF_BOUNDS, message));
        }
        // SAFETY: as the header asks.
        let room = unsafe { args::room(to, len_bytes, "to") }?;
        let (_, segment, slot_offset) = object.slot(index)?;
        {
            // The default stream may not wait for this one by itself.
            let turn = object.stream.turn();
            object.stream.stream(&turn).synchronize()?;
        }
        for byte in room.iter_mut() {
            byte.write(0);
        }
        // SAFETY: every byte was written just above.
        let room = unsafe { room.assume_init_mut() };
        segment.read(slot_offset + member.offset_bytes + offset_bytes, room)?;
        Ok(())
    })
}

/// Ends a lease, ready or not. Its slots are filled anew only behind everything enqueued so far on `streams`: all
/// that launches with its slots ran on. With none, nothing is using them: the host is done reading, or nothing was
/// launched. The stream it was acquired on is not added by itself. The lease's handle is closed, unless a handle
/// passed here is bad; if an event cannot be recorded, its slots are kept aside until `spoc_cache_recover`. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_lease_release(
    lease: spoc_lease,
    streams: *const spoc_stream,
    stream_count: usize,
) -> spoc_status {
    entry::run(|| {
        // SAFETY: as the header asks.
        let handles = unsafe { args::list(streams, stream_count, "streams") }?;
        let mut streams = handles
            .iter()
            .map(|stream| handles::get::<StreamObject>(stream.id))
            .collect::<Result<Vec<_>>>()?;
        // Turns are taken in one order, each once.
        streams.sort_by_key(Arc::as_ptr);
        streams.dedup_by_key(|stream| Arc::as_ptr(stream));
        let object = handles::take::<LeaseObject>(lease.id)?;
        let mut state = object.lock();
        let State::Ready(lease) = std::mem::replace(&mut *state, State::Over) else { return Ok(()) };
        let turns: Vec<_> = streams.iter().map(|stream| (stream, stream.turn())).collect();
        let streams: Vec<_> = turns.iter().map(|(stream, turn)| stream.stream(turn)).collect();
        lease.release(&streams)?;
        Ok(())
    })
}
