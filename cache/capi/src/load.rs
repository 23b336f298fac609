//! Whole models, or parts of them, in device memory for good.

use crate::args::{self, sized};
use crate::entry;
use crate::failure::Failure;
use crate::handles::{self, Object};
use crate::model::{ModelObject, spoc_model};
use crate::pump::{PumpObject, spoc_pump};
use crate::status::spoc_status;
use ::spoc_cache::load::{Cancel, LoadOptions, Loaded, load_model};
use ::spoc_driver::Segment;
use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

/// Tensors in device memory until the handle is closed.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct spoc_loaded {
    /// The handle; 0 is none.
    pub id: u64,
}

/// A switch that ends loads early.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct spoc_cancel {
    /// The handle; 0 is none.
    pub id: u64,
}

/// Told how many of how many bytes have been copied. Comes from the copy thread, one call at a time: must be quick,
/// call nothing that waits for the same pump, and let no exception out. Anything but 0 cancels the load, and the others
/// that have its switch.
pub type spoc_progress =
    Option<unsafe extern "C" fn(user: *mut c_void, copied_bytes: u64, bytes: u64) -> i32>;

/// What to load. All zeros: everything, silently.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct spoc_load_options {
    /// `sizeof(spoc_load_options)`.
    pub struct_size: usize,
    /// Only tensors whose name this glob matches; NULL: all.
    pub tensors: *const c_char,
    /// Told of progress; may be NULL.
    pub progress: spoc_progress,
    /// Passed to `progress`.
    pub user: *mut c_void,
    /// Ends the load early; may be none.
    pub cancel: spoc_cancel,
}

/// What a load did.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct spoc_loaded_info {
    /// Set by the caller: `sizeof(spoc_loaded_info)`.
    pub struct_size: usize,
    /// Tensors that were loaded.
    pub tensors: u32,
    /// Segments of device memory they lie in.
    pub segments: u32,
    /// Bytes of them.
    pub bytes: u64,
    /// Planning and allocating, ns.
    pub prepare_ns: u64,
    /// From the first read to the last copy, ns.
    pub stream_ns: u64,
}

/// Where a tensor is in device memory.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct spoc_place {
    /// Set by the caller: `sizeof(spoc_place)`.
    pub struct_size: usize,
    /// Device address; 0 where the backend has none.
    pub address: u64,
    /// Where the host can address it; NULL where it cannot.
    pub host: *mut c_void,
    /// Offset in its segment, a multiple of 256.
    pub offset_bytes: u64,
    /// Its length.
    pub bytes: u64,
    /// Which segment, counted within the load or the cache.
    pub segment: u32,
    /// Its number in the model; `UINT32_MAX` for a whole slot.
    pub tensor: u32,
}

sized!(spoc_load_options, spoc_loaded_info, spoc_place);

/// A place in a segment.
pub fn place(segment: &Segment, number: u32, offset_bytes: u64, bytes: u64, tensor: u32) -> spoc_place {
    let host = segment.host_pointer().zip(usize::try_from(offset_bytes).ok());
    spoc_place {
        struct_size: size_of::<spoc_place>(),
        address: segment.address().map_or(0, |address| address + offset_bytes),
        // Within the segment, so the sum does not leave its memory; the caller follows it or does not.
        host: host.map_or(ptr::null_mut(), |(base, offset)| base.wrapping_add(offset).cast()),
        offset_bytes,
        bytes,
        segment: number,
        tensor,
    }
}

struct LoadedObject(Loaded);

impl Object for LoadedObject {
    const NAME: &'static str = "spoc_loaded";
}

struct CancelObject(Cancel);

impl Object for CancelObject {
    const NAME: &'static str = "spoc_cancel";
}

/// The caller's function and what it wants back.
struct Progress {
    call: unsafe extern "C" fn(*mut c_void, u64, u64) -> i32,
    user: *mut c_void,
    cancel: Cancel,
}

// SAFETY: the pointer is the caller's and only handed back to it, from the copy thread, as the header says.
unsafe impl Send for Progress {}
// SAFETY: as above.
unsafe impl Sync for Progress {}

impl Progress {
    fn tell(&self, copied: u64, bytes: u64) {
        // SAFETY: the caller passed both, together, for calls from this thread during the load.
        let wanted = unsafe { (self.call)(self.user, copied, bytes) };
        if wanted != 0 {
            self.cancel.cancel();
        }
    }
}

/// A switch that is not thrown. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn spoc_cancel_create(cancel: Option<&mut MaybeUninit<spoc_cancel>>) -> spoc_status {
    entry::run(|| {
        let out = args::out(cancel, "cancel")?;
        out.write(spoc_cancel { id: handles::put(CancelObject(Cancel::new()))? });
        Ok(())
    })
}

/// Ends every load that has the switch, those to come as well: they return `SPOC_ERROR_CANCELLED`. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn spoc_cancel_request(cancel: spoc_cancel) -> spoc_status {
    entry::run(|| {
        handles::get::<CancelObject>(cancel.id)?.0.cancel();
        Ok(())
    })
}

/// Closes the handle; what it cancelled stays cancelled. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn spoc_cancel_close(cancel: spoc_cancel) -> spoc_status {
    entry::run(|| handles::take::<CancelObject>(cancel.id).map(drop))
}

/// Loads a model into device memory of its own and waits until the last copy has run. `options` may be NULL. Any
/// thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_load(
    pump: spoc_pump,
    model: spoc_model,
    options: *const spoc_load_options,
    loaded: Option<&mut MaybeUninit<spoc_loaded>>,
) -> spoc_status {
    entry::run(|| {
        let out = args::out(loaded, "loaded")?;
        // SAFETY: as the header asks.
        let options = unsafe { args::options(options) }?;
        // SAFETY: as the header asks.
        let tensors = unsafe { args::optional_text(options.tensors, "spoc_load_options.tensors") }?;
        let pump = handles::get::<PumpObject>(pump.id)?;
        let model = handles::get::<ModelObject>(model.id)?;
        let cancel = match options.cancel.id {
            0 => Cancel::new(),
            id => handles::get::<CancelObject>(id)?.0.clone(),
        };
        let progress = options.progress.map(|call| {
            let progress = Progress { call, user: options.user, cancel: cancel.clone() };
            Arc::new(move |copied, bytes| progress.tell(copied, bytes)) as Arc<dyn Fn(u64, u64) + Send + Sync>
        });
        let options = LoadOptions {
            tensors: tensors.map(str::to_owned),
            progress,
            cancel: Some(cancel),
            ..LoadOptions::default()
        };
        let loaded = load_model(&pump.0, &model.model, &options)?;
        out.write(spoc_loaded { id: handles::put(LoadedObject(loaded))? });
        Ok(())
    })
}

/// What a load did. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_loaded_describe(
    loaded: spoc_loaded,
    info: *mut spoc_loaded_info,
) -> spoc_status {
    entry::run(|| {
        let object = handles::get::<LoadedObject>(loaded.id)?;
        let report = &object.0.report;
        let ns = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let described = spoc_loaded_info {
            struct_size: size_of::<spoc_loaded_info>(),
            tensors: u32::try_from(object.0.placements.len()).unwrap_or(u32::MAX),
            segments: u32::try_from(object.0.segments.len()).unwrap_or(u32::MAX),
            bytes: report.bytes,
            prepare_ns: ns(report.prepare_time),
            stream_ns: ns(report.stream_time),
        };
        // SAFETY: as the header asks.
        unsafe { args::fill(info, &described) }
    })
}

/// Where a tensor, by its number in the model, is. Its bytes are there: the load waited for them. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_loaded_tensor(
    loaded: spoc_loaded,
    tensor: u32,
    where_: *mut spoc_place,
) -> spoc_status {
    entry::run(|| {
        let object = handles::get::<LoadedObject>(loaded.id)?;
        let placements = &object.0.placements;
        let found = placements.binary_search_by_key(&tensor, |placement| placement.tensor);
        let at = found.ok().and_then(|at| {
            let placement = placements.get(at)?;
            Some((placement, object.0.segments.get(placement.segment as usize)?))
        });
        let none = || {
            let message = format_args!("tensor {tensor} was not loaded");
            Failure::new(spoc_status::SPOC_ERROR_NO_TENSOR, message)
        };
        let (placement, segment) = at.ok_or_else(none)?;
        let place =
            place(segment, placement.segment, placement.offset_bytes, placement.len_bytes, placement.tensor);
        // SAFETY: as the header asks.
        unsafe { args::fill(where_, &place) }
    })
}

/// Reads every loaded byte back and compares it with the files. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn spoc_loaded_verify(loaded: spoc_loaded, model: spoc_model) -> spoc_status {
    entry::run(|| {
        let object = handles::get::<LoadedObject>(loaded.id)?;
        object.0.verify(&handles::get::<ModelObject>(model.id)?.model)?;
        Ok(())
    })
}

/// Frees the device memory, once nothing enqueued by spoc uses it; what the engine enqueued is the engine's to wait
/// for first. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn spoc_loaded_close(loaded: spoc_loaded) -> spoc_status {
    entry::run(|| handles::take::<LoadedObject>(loaded.id).map(drop))
}
