//! What happens in a cache, told to whoever subscribed, and what was hot in it.

use crate::args::{self, sized};
use crate::cache::{CacheObject, spoc_cache, spoc_key};
use crate::entry;
use crate::failure::Failure;
use crate::handles::{self, Object};
use crate::status::spoc_status;
use ::spoc_cache::stats::{Cause, LogKind};
use ::spoc_cache::{Error, ErrorKind, ModelId, Profile, Subscription};
use crossbeam_channel::RecvTimeoutError;
use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::time::Duration;

/// A group's read began.
pub const SPOC_EVENT_FILL_STARTED: u32 = 1;
/// Its last copy was enqueued: it is resident.
pub const SPOC_EVENT_FILL_DONE: u32 = 2;
/// The read, or a copy, failed.
pub const SPOC_EVENT_FILL_FAILED: u32 = 3;
/// Everyone who wanted it went away.
pub const SPOC_EVENT_FILL_CANCELLED: u32 = 4;
/// A group left its slot.
pub const SPOC_EVENT_EVICTED: u32 = 5;

/// A lease wanted it, or wanted the room.
pub const SPOC_CAUSE_DEMAND: u32 = 1;
/// Reading failed, or the file changed.
pub const SPOC_CAUSE_READ: u32 = 2;
/// A copy or the stream failed.
pub const SPOC_CAUSE_COPY: u32 = 3;
/// Its model was unregistered, or the cache is closing.
pub const SPOC_CAUSE_CLOSED: u32 = 4;
/// A hint, a claim, a pin or a warm profile wanted it; nobody waits for it.
pub const SPOC_CAUSE_AHEAD: u32 = 5;
/// Its slot is given back.
pub const SPOC_CAUSE_RESIZE: u32 = 6;
/// Somebody cancelled it for everyone.
pub const SPOC_CAUSE_CANCEL: u32 = 7;
/// Somebody asked for it.
pub const SPOC_CAUSE_ASKED: u32 = 8;

// The numbers are those of the cache.
const _: () = {
    assert!(LogKind::FillStarted as u32 == SPOC_EVENT_FILL_STARTED);
    assert!(LogKind::FillDone as u32 == SPOC_EVENT_FILL_DONE);
    assert!(LogKind::FillFailed as u32 == SPOC_EVENT_FILL_FAILED);
    assert!(LogKind::FillCancelled as u32 == SPOC_EVENT_FILL_CANCELLED);
    assert!(LogKind::Evicted as u32 == SPOC_EVENT_EVICTED);
    let causes = Cause::ALL;
    assert!(causes.len() == 8);
    assert!(causes[0] as u32 == SPOC_CAUSE_DEMAND);
    assert!(causes[1] as u32 == SPOC_CAUSE_READ);
    assert!(causes[2] as u32 == SPOC_CAUSE_COPY);
    assert!(causes[3] as u32 == SPOC_CAUSE_CLOSED);
    assert!(causes[4] as u32 == SPOC_CAUSE_AHEAD);
    assert!(causes[5] as u32 == SPOC_CAUSE_RESIZE);
    assert!(causes[6] as u32 == SPOC_CAUSE_CANCEL);
    assert!(causes[7] as u32 == SPOC_CAUSE_ASKED);
};

/// A queue of what happens in a cache.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct spoc_subscription {
    /// The handle; 0 is none.
    pub id: u64,
}

/// One change of what is resident.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct spoc_event {
    /// Set by the caller: `sizeof(spoc_event)`.
    pub struct_size: usize,
    /// When, ns since the cache was opened.
    pub time_ns: u64,
    /// To which group.
    pub key: spoc_key,
    /// In which slot.
    pub slot: u32,
    /// What happened: `SPOC_EVENT_...`. Later libraries may know more.
    pub kind: u32,
    /// Why: `SPOC_CAUSE_...`. Later libraries may know more.
    pub cause: u32,
}

sized!(spoc_event);

struct SubscriptionObject(Subscription);

impl Object for SubscriptionObject {
    const NAME: &'static str = "spoc_subscription";
}

/// A queue of up to `capacity` events of what happens from now on. The cache never waits for it: what does not fit is
/// dropped, and counted. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn spoc_cache_subscribe(
    cache: spoc_cache,
    capacity: usize,
    subscription: Option<&mut MaybeUninit<spoc_subscription>>,
) -> spoc_status {
    /// More than a queue that is ever read needs: 40 MB.
    const CAPACITY_MAX: usize = 1 << 20;
    entry::run(|| {
        let out = args::out(subscription, "subscription")?;
        if capacity == 0 || capacity > CAPACITY_MAX {
            let message = format_args!("capacity: expected 1 to {CAPACITY_MAX}, found {capacity}");
            return Err(Failure::argument(message));
        }
        let queue = handles::get::<CacheObject>(cache.id)?.cache.subscribe(capacity);
        out.write(spoc_subscription { id: handles::put(SubscriptionObject(queue))? });
        Ok(())
    })
}

/// Takes the oldest event, and waits for one up to `timeout_ms` (0: not at all, below 0: without end):
/// `SPOC_ERROR_TIMED_OUT` if there is none by then, `SPOC_ERROR_CLOSED` once the cache is gone and every event of it was
/// taken. Any thread; each event goes to one of those who wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_subscription_next(
    subscription: spoc_subscription,
    timeout_ms: i64,
    event: *mut spoc_event,
) -> spoc_status {
    entry::run(|| {
        let queue = handles::get::<SubscriptionObject>(subscription.id)?;
        let events = queue.0.events();
        let taken = match u64::try_from(timeout_ms) {
            Ok(ms) => events.recv_timeout(Duration::from_millis(ms)),
            Err(_) => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        let taken = taken.map_err(|error| match error {
            RecvTimeoutError::Timeout => Error::new(ErrorKind::TimedOut),
            RecvTimeoutError::Disconnected => Error::new(ErrorKind::Closed),
        })?;
        let told = spoc_event {
            struct_size: size_of::<spoc_event>(),
            time_ns: taken.time_ns,
            key: taken.key.into(),
            slot: taken.slot,
            kind: taken.kind as u32,
            cause: taken.cause as u32,
        };
        // SAFETY: as the header asks.
        unsafe { args::fill(event, &told) }
    })
}

/// Events that were dropped because the queue was full. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn spoc_subscription_dropped(
    subscription: spoc_subscription,
    events: Option<&mut MaybeUninit<u64>>,
) -> spoc_status {
    entry::run(|| {
        let out = args::out(events, "events")?;
        out.write(handles::get::<SubscriptionObject>(subscription.id)?.0.dropped());
        Ok(())
    })
}

/// Closes the handle, and the queue behind those who wait for an event. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn spoc_subscription_close(subscription: spoc_subscription) -> spoc_status {
    entry::run(|| handles::take::<SubscriptionObject>(subscription.id).map(drop))
}

/// Which groups of a model are resident, most used first, as text (docs/cache.md): for `spoc_cache_warm` of a later
/// process. `bytes` says how long it is, its NUL included; it is written to `text` if it fits `room`, and otherwise
/// nothing is. `text` may be NULL with a `room` of 0. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_cache_profile(
    cache: spoc_cache,
    number: u32,
    text: *mut c_char,
    room: usize,
    bytes: Option<&mut MaybeUninit<usize>>,
) -> spoc_status {
    entry::run(|| {
        let out = args::out(bytes, "bytes")?;
        // SAFETY: as the header asks.
        let room = unsafe { args::room(text.cast::<u8>(), room, "text") }?;
        let profile = handles::get::<CacheObject>(cache.id)?.cache.profile(ModelId(number)).to_string();
        let written = profile.as_bytes().iter().chain(&[0]);
        if profile.len() < room.len() {
            for (to, byte) in room.iter_mut().zip(written) {
                to.write(*byte);
            }
        }
        out.write(profile.len() + 1);
        Ok(())
    })
}

/// Reads the groups of a profile ahead of anybody who wants them, most used first, into slots that are free. Names that
/// the model has not are passed over. `begun`, which may be NULL, says how many reads it began. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_cache_warm(
    cache: spoc_cache,
    number: u32,
    profile: *const c_char,
    begun: Option<&mut MaybeUninit<u32>>,
) -> spoc_status {
    entry::run(|| {
        // SAFETY: as the header asks.
        let profile: Profile =
            unsafe { args::text(profile, "profile") }?.parse().map_err(Failure::argument)?;
        let reads = handles::get::<CacheObject>(cache.id)?.cache.warm(ModelId(number), &profile)?;
        if let Some(out) = begun {
            out.write(reads);
        }
        Ok(())
    })
}
