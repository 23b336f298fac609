//! Caches: groups of models in slots.

use crate::args::{self, sized};
use crate::entry;
use crate::failure::Failure;
use crate::handles::{self, Object};
use crate::model::{ModelObject, spoc_model};
use crate::pump::{PumpObject, spoc_pump};
use crate::status::spoc_status;
use ::spoc_cache::policy::{PolicyKind, Scope};
use ::spoc_cache::{CacheOptions, Catalogue, Key, ModelId, SlotCache, SlotClass, TierOptions};
use std::collections::HashMap;
use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Slots of device memory, filled from disk on demand.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct spoc_cache {
    /// The handle; 0 is none.
    pub id: u64,
}

/// How a cache is set up.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct spoc_cache_options {
    /// `sizeof(spoc_cache_options)`.
    pub struct_size: usize,
    /// Bytes that a slot must hold: the widest group of every model to be registered
    /// (`spoc_model_info.widest_group_bytes`).
    pub slot_bytes: u64,
    /// Which group leaves: `forecast` (NULL is that), `cycle`, `lru`, ...
    pub policy: *const c_char,
    /// Which groups compete for a slot: `global` (NULL is that: all) or `layer` (those of a layer).
    pub scope: *const c_char,
    /// Bytes of a segment at most: what is given back is whole segments. 0: as many as the device serves.
    pub segment_bytes: u64,
    /// Device memory to leave to others when slots are allocated.
    pub headroom_bytes: u64,
    /// How many slots.
    pub slots: u32,
    /// Slots that the cache can ever have, for `spoc_cache_resize`. 0: those it begins with.
    pub slots_max: u32,
    /// Since 1.1. Slots of several widths, a group going into the narrowest that holds it; `slots` and `slot_bytes` are
    /// not looked at then. NULL: the one class that these two describe.
    pub classes: *const spoc_slot_class,
    /// Since 1.1. How many classes.
    pub class_count: usize,
    /// Since 1.1. Pinned host memory for groups that leave their slots, bytes: they come back from there without the disk.
    /// It is taken in the background; more than the host can give is `SPOC_ERROR_STAGING_TOO_SMALL`. 0: none.
    pub tier_bytes: u64,
    /// Since 1.1. Not 0: groups stay there while they are in a slot, so that evicting costs no copy.
    pub tier_inclusive: u32,
}

/// Slots of one width.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct spoc_slot_class {
    /// Bytes that each must hold.
    pub slot_bytes: u64,
    /// How many.
    pub slots: u32,
}

/// One group of one registered model. The generation belongs to the registration: afterwards the key is stale.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct spoc_key {
    /// Which model, as `spoc_cache_register` numbered it.
    pub model: u32,
    /// Which registration.
    pub generation: u32,
    /// Number of the group in the model.
    pub group: u32,
}

/// A segment of slots: slot `first_slot + i` begins `i * stride_bytes` behind the first, for as long as the segment is
/// there.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct spoc_segment {
    /// Set by the caller: `sizeof(spoc_segment)`.
    pub struct_size: usize,
    /// Address of its first slot; 0 where the backend has no device addresses.
    pub address: u64,
    /// Bytes from one slot to the next, a multiple of 256.
    pub stride_bytes: u64,
    /// Its first slot.
    pub first_slot: u32,
    /// How many there are.
    pub slots: u32,
}

sized!(spoc_segment);

// SAFETY: declared `repr(C)` above, `struct_size` first, numbers and pointers alone.
unsafe impl args::Sizeable for spoc_cache_options {
    const FIRST_BYTES: usize = std::mem::offset_of!(Self, classes);
    const NAME: &'static str = "spoc_cache_options";
}

impl From<Key> for spoc_key {
    fn from(key: Key) -> spoc_key {
        spoc_key { model: key.model.0, generation: key.generation, group: key.group }
    }
}

impl From<spoc_key> for Key {
    fn from(key: spoc_key) -> Key {
        Key { model: ModelId(key.model), generation: key.generation, group: key.group }
    }
}

/// A time from now; none where C says that there is no end, or beyond what the clock counts.
fn deadline(timeout_ms: i64) -> Option<Instant> {
    Instant::now().checked_add(Duration::from_millis(u64::try_from(timeout_ms).ok()?))
}

/// A cache, and the groups of the models registered with it.
pub struct CacheObject {
    pub cache: SlotCache,
    /// By registration: what lies where in a slot, for leases that are out.
    catalogues: RwLock<HashMap<(ModelId, u32), Arc<Catalogue>>>,
}

impl Object for CacheObject {
    const NAME: &'static str = "spoc_cache";
}

impl CacheObject {
    /// The groups of a key's model, if it is registered still.
    pub fn catalogue(&self, key: Key) -> Option<Arc<Catalogue>> {
        let catalogues = self.catalogues.read().unwrap_or_else(PoisonError::into_inner);
        catalogues.get(&(key.model, key.generation)).cloned()
    }
}

/// Allocates the slots on the pump's device. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_cache_open(
    pump: spoc_pump,
    options: *const spoc_cache_options,
    cache: Option<&mut MaybeUninit<spoc_cache>>,
) -> spoc_status {
    entry::run(|| {
        let out = args::out(cache, "cache")?;
        // SAFETY: as the header asks.
        let options = unsafe { args::options(options) }?;
        // SAFETY: as the header asks.
        let policy = match unsafe { args::optional_text(options.policy, "spoc_cache_options.policy") }? {
            None => PolicyKind::default(),
            Some(name) => name.parse().map_err(Failure::argument)?,
        };
        // SAFETY: as the header asks.
        let scope = match unsafe { args::optional_text(options.scope, "spoc_cache_options.scope") }? {
            None => Scope::default(),
            Some(name) => name.parse().map_err(Failure::argument)?,
        };
        // SAFETY: as the header asks.
        let classes =
            unsafe { args::list(options.classes, options.class_count, "spoc_cache_options.classes") }?;
        let classes: Vec<_> = classes
            .iter()
            .map(|class| SlotClass { slots: class.slots, slot_bytes: class.slot_bytes })
            .collect();
        let none = |class: &SlotClass| class.slots == 0 || class.slot_bytes == 0;
        let one = SlotClass { slots: options.slots, slot_bytes: options.slot_bytes };
        if classes.iter().any(none) || (classes.is_empty() && none(&one)) {
            return Err(Failure::argument("spoc_cache_options: expected slots and slot_bytes, found 0"));
        }
        let tier = TierOptions {
            bytes: options.tier_bytes,
            host_free_bytes: spoc_backends::host_memory_available(),
            inclusive: options.tier_inclusive != 0,
        };
        let pump = handles::get::<PumpObject>(pump.id)?;
        let options = CacheOptions {
            slots: options.slots,
            slot_bytes: options.slot_bytes,
            policy,
            scope,
            slots_max: options.slots_max,
            segment_bytes: options.segment_bytes,
            headroom_bytes: options.headroom_bytes,
            tier,
            ..CacheOptions::default()
        };
        let cache = match &*classes {
            [] => SlotCache::new(&pump.0, options)?,
            classes => SlotCache::with_classes(&pump.0, classes, options)?,
        };
        let object = CacheObject { cache, catalogues: RwLock::default() };
        out.write(spoc_cache { id: handles::put(object)? });
        Ok(())
    })
}

/// Takes a model's groups in and numbers it. The model's handle may be closed afterwards. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn spoc_cache_register(
    cache: spoc_cache,
    model: spoc_model,
    number: Option<&mut MaybeUninit<u32>>,
) -> spoc_status {
    entry::run(|| {
        let out = args::out(number, "number")?;
        let object = handles::get::<CacheObject>(cache.id)?;
        let model = handles::get::<ModelObject>(model.id)?;
        // Under the lock, so that nobody sees the registration without its groups.
        let mut catalogues = object.catalogues.write().unwrap_or_else(PoisonError::into_inner);
        let id = object.cache.register(Arc::clone(&model.catalogue))?;
        if let Some(key) = object.cache.keys(id).first() {
            catalogues.insert((id, key.generation), Arc::clone(&model.catalogue));
        }
        out.write(id.0);
        Ok(())
    })
}

/// Forgets a model: its groups leave, its keys are stale. Refused as `SPOC_ERROR_IN_USE` while something of it is
/// loading, leased or wanted. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn spoc_cache_unregister(cache: spoc_cache, number: u32) -> spoc_status {
    entry::run(|| {
        let object = handles::get::<CacheObject>(cache.id)?;
        let mut catalogues = object.catalogues.write().unwrap_or_else(PoisonError::into_inner);
        object.cache.unregister(ModelId(number))?;
        catalogues.retain(|(model, _), _| model.0 != number);
        Ok(())
    })
}

/// The key of a group of a registered model. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn spoc_cache_key(
    cache: spoc_cache,
    number: u32,
    group: u32,
    key: Option<&mut MaybeUninit<spoc_key>>,
) -> spoc_status {
    entry::run(|| {
        let out = args::out(key, "key")?;
        let found = handles::get::<CacheObject>(cache.id)?.cache.key(ModelId(number), group)?;
        out.write(found.into());
        Ok(())
    })
}

/// How many segments the cache has now. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn spoc_cache_segment_count(
    cache: spoc_cache,
    count: Option<&mut MaybeUninit<usize>>,
) -> spoc_status {
    entry::run(|| {
        let out = args::out(count, "count")?;
        out.write(handles::get::<CacheObject>(cache.id)?.cache.segment_table().len());
        Ok(())
    })
}

/// The `position`-th segment of the table from which the address of every slot follows. It changes with
/// `spoc_cache_resize` and `spoc_cache_give_back` alone, and the address of a slot that stays never does. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_cache_segment(
    cache: spoc_cache,
    position: usize,
    segment: *mut spoc_segment,
) -> spoc_status {
    entry::run(|| {
        let table = handles::get::<CacheObject>(cache.id)?.cache.segment_table();
        let have = table.len();
        let none =
            || Failure::argument(format_args!("position: expected less than {have}, found {position}"));
        let row = table.get(position).ok_or_else(none)?;
        let described = spoc_segment {
            struct_size: size_of::<spoc_segment>(),
            address: row.address.unwrap_or(0),
            stride_bytes: row.stride_bytes,
            first_slot: row.first_slot,
            slots: row.slots,
        };
        // SAFETY: as the header asks.
        unsafe { args::fill(segment, &described) }
    })
}

/// Changes how many slots there are and says how many it are then. More are allocated at once; fewer go as whole
/// segments when what is in them has ended, as far as that happens within `timeout_ms` (negative: without end). Slots that
/// stay keep their addresses. Any thread; one that holds leases gives a timeout.
#[unsafe(no_mangle)]
pub extern "C" fn spoc_cache_resize(
    cache: spoc_cache,
    slots: u32,
    timeout_ms: i64,
    slots_then: Option<&mut MaybeUninit<u32>>,
) -> spoc_status {
    entry::run(|| {
        let out = args::out(slots_then, "slots_then")?;
        let object = handles::get::<CacheObject>(cache.id)?;
        out.write(object.cache.resize(0, slots, deadline(timeout_ms))?);
        Ok(())
    })
}

/// Gives at least `bytes` of device memory back, if segments can be emptied within `timeout_ms` (negative: without end),
/// and says how many bytes it were. Any thread; one that holds leases gives a timeout.
#[unsafe(no_mangle)]
pub extern "C" fn spoc_cache_give_back(
    cache: spoc_cache,
    bytes: u64,
    timeout_ms: i64,
    bytes_given: Option<&mut MaybeUninit<u64>>,
) -> spoc_status {
    entry::run(|| {
        let out = args::out(bytes_given, "bytes_given")?;
        let object = handles::get::<CacheObject>(cache.id)?;
        out.write(object.cache.give_back(bytes, deadline(timeout_ms))?);
        Ok(())
    })
}

/// Gives memory back until as much is free on the device as `headroom_bytes` asked to leave to others: for engines to
/// call when they need memory, or now and then. Waits as `spoc_cache_give_back` does; `bytes_given` says how much it
/// freed. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn spoc_cache_keep_headroom(
    cache: spoc_cache,
    timeout_ms: i64,
    bytes_given: Option<&mut MaybeUninit<u64>>,
) -> spoc_status {
    entry::run(|| {
        let out = args::out(bytes_given, "bytes_given")?;
        let object = handles::get::<CacheObject>(cache.id)?;
        out.write(object.cache.keep_headroom(deadline(timeout_ms))?);
        Ok(())
    })
}

/// Gives at least so many bytes of the host tier back to the host, or all of it, in the pieces it was taken in; what was
/// kept there is read from disk again. `bytes_given` says how much it was. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn spoc_cache_give_back_tier(
    cache: spoc_cache,
    bytes: u64,
    bytes_given: Option<&mut MaybeUninit<u64>>,
) -> spoc_status {
    entry::run(|| {
        let out = args::out(bytes_given, "bytes_given")?;
        out.write(handles::get::<CacheObject>(cache.id)?.cache.give_back_tier(bytes));
        Ok(())
    })
}

/// Waits for the whole device and takes back slots of leases whose release could not be recorded. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn spoc_cache_recover(cache: spoc_cache) -> spoc_status {
    entry::run(|| {
        handles::get::<CacheObject>(cache.id)?.cache.recover()?;
        Ok(())
    })
}

/// Closes the handle and cancels what is being read, unless leases are out: then the cache ends with the last of
/// them. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn spoc_cache_close(cache: spoc_cache) -> spoc_status {
    entry::run(|| handles::take::<CacheObject>(cache.id).map(drop))
}
