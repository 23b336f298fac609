//! What probing found, and opened devices.

use crate::args::{self, sized};
use crate::entry;
use crate::failure::{Failure, Result};
use crate::handles::{self, Object};
use crate::status::spoc_status;
use ::spoc_driver::backend::Foreign;
use ::spoc_driver::{BackendKind, Device, DeviceInfo, DeviceSelector, DeviceUuid, Driver};
use spoc_backends::{ProbeOutcome, probe, probe_only};
use std::ffi::{CString, c_char, c_void};
use std::mem::MaybeUninit;
use std::ptr;

/// The backends that were found on this machine.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct spoc_driver {
    /// The handle; 0 is none.
    pub id: u64,
}

/// An opened device.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct spoc_device {
    /// The handle; 0 is none.
    pub id: u64,
}

/// What a device is. All texts end with a NUL; longer ones are cut.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct spoc_device_info {
    /// Set by the caller: `sizeof(spoc_device_info)`.
    pub struct_size: usize,
    /// The API family: `native`, `cuda`, `vulkan`, ...
    pub backend: [c_char; 16],
    /// Its lasting name, as `spoc_device_open_uuid` takes it.
    pub uuid: [c_char; 40],
    /// The vendor's name of the model.
    pub name: [c_char; 128],
    /// Size of its memory.
    pub memory_bytes: u64,
    /// Position among its backend's devices.
    pub index: u32,
    /// The NUMA node it hangs on; -1 where that is not known.
    pub numa_node: i32,
    /// 1 if host and device share one memory.
    pub unified: u32,
    /// 1 if the UUID is the hardware's own and never changes.
    pub uuid_is_stable: u32,
}

/// An object of the engine's API that spoc borrows: a context or a stream. What each word means stands with the
/// adapter (docs/c-api.md); words that are not named there are 0.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct spoc_foreign {
    /// `sizeof(spoc_foreign)`.
    pub struct_size: usize,
    /// Handles and numbers.
    pub words: [u64; 6],
    /// Called once, from any thread, when spoc does not use the object any more, also where borrowing it fails; may
    /// be NULL: then the object outlives every handle made from it.
    pub release: Option<unsafe extern "C" fn(user: *mut c_void)>,
    /// Passed to `release`.
    pub user: *mut c_void,
}

sized!(spoc_device_info, spoc_foreign);

struct DriverObject {
    driver: Driver,
    devices: Vec<DeviceInfo>,
    missing: Vec<(BackendKind, CString)>,
}

impl Object for DriverObject {
    const NAME: &'static str = "spoc_driver";
}

/// An opened device.
pub struct DeviceObject(pub Device);

impl Object for DeviceObject {
    const NAME: &'static str = "spoc_device";
}

/// Tells the engine that what it lent is not used any more.
struct Release {
    call: unsafe extern "C" fn(*mut c_void),
    user: *mut c_void,
}

// SAFETY: the pointer is the engine's and only handed back to it; the header says that any thread may call.
unsafe impl Send for Release {}
// SAFETY: as above; nothing is done through a shared reference.
unsafe impl Sync for Release {}

impl Drop for Release {
    fn drop(&mut self) {
        // SAFETY: the engine passed both, together, to be called once.
        unsafe { (self.call)(self.user) }
    }
}

impl spoc_foreign {
    /// What the port takes.
    pub fn lend(&self) -> Foreign {
        let keep_alive = self.release.map(|call| Box::new(Release { call, user: self.user }) as _);
        Foreign { words: self.words, keep_alive }
    }
}

fn copy_text<const N: usize>(text: &str) -> [c_char; N] {
    let mut room = [0; N];
    let mut end = text.len().min(N - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    for (to, from) in room.iter_mut().zip(&text.as_bytes()[..end]) {
        *to = from.cast_signed() as c_char;
    }
    room
}

fn backend(name: &str) -> Result<BackendKind> {
    let unknown = |_| {
        let known: Vec<_> = BackendKind::ALL.iter().map(|kind| kind.as_str()).collect();
        Failure::argument(format_args!("backend: expected one of {}, found {name:?}", known.join(" ")))
    };
    name.parse().map_err(unknown)
}

/// Looks for backends. `backends` names them with commas between, or is NULL for all; the libraries of the others are
/// not loaded. A backend that is not there is no error: `spoc_driver_missing` says why. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_driver_open(
    backends: *const c_char,
    driver: Option<&mut MaybeUninit<spoc_driver>>,
) -> spoc_status {
    entry::run(|| {
        let out = args::out(driver, "driver")?;
        // SAFETY: as the header asks.
        let reports = match unsafe { args::optional_text(backends, "backends") }? {
            None => probe(),
            Some(names) => {
                let kinds = names.split(',').map(|name| backend(name.trim())).collect::<Result<Vec<_>>>()?;
                probe_only(kinds)
            }
        };
        let missing = reports.iter().filter_map(|report| match &report.outcome {
            ProbeOutcome::Missing { reason } => {
                CString::new(reason.as_str()).ok().map(|why| (report.kind, why))
            }
            ProbeOutcome::Found(_) => None,
        });
        let driver = Driver::new(spoc_backends::found(&reports));
        let object = DriverObject { devices: driver.devices(), missing: missing.collect(), driver };
        out.write(spoc_driver { id: handles::put(object)? });
        Ok(())
    })
}

/// Forgets what was found; devices that were opened stay open. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn spoc_driver_close(driver: spoc_driver) -> spoc_status {
    entry::run(|| handles::take::<DriverObject>(driver.id).map(drop))
}

/// Why a backend is not there: a line that stands until the driver is closed, or NULL where it was found or was not
/// looked for. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_driver_missing(
    driver: spoc_driver,
    backend_name: *const c_char,
    reason: Option<&mut MaybeUninit<*const c_char>>,
) -> spoc_status {
    entry::run(|| {
        let out = args::out(reason, "reason")?;
        // SAFETY: as the header asks.
        let kind = backend(unsafe { args::text(backend_name, "backend_name") }?)?;
        let object = handles::get::<DriverObject>(driver.id)?;
        let found = object.missing.iter().find(|(missing, _)| *missing == kind);
        out.write(found.map_or(ptr::null(), |(_, why)| why.as_ptr()));
        Ok(())
    })
}

/// How many devices the found backends have. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn spoc_device_count(
    driver: spoc_driver,
    count: Option<&mut MaybeUninit<usize>>,
) -> spoc_status {
    entry::run(|| {
        args::out(count, "count")?.write(handles::get::<DriverObject>(driver.id)?.devices.len());
        Ok(())
    })
}

/// What the `position`-th device of all is. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_device_describe(
    driver: spoc_driver,
    position: usize,
    info: *mut spoc_device_info,
) -> spoc_status {
    entry::run(|| {
        let object = handles::get::<DriverObject>(driver.id)?;
        let have = object.devices.len();
        let none =
            || Failure::argument(format_args!("position: expected less than {have}, found {position}"));
        let device = object.devices.get(position).ok_or_else(none)?;
        let described = spoc_device_info {
            struct_size: size_of::<spoc_device_info>(),
            backend: copy_text(device.backend.as_str()),
            uuid: copy_text(&device.uuid.to_string()),
            name: copy_text(&device.name),
            memory_bytes: device.memory_bytes,
            index: device.index,
            numa_node: device.numa_node.and_then(|node| i32::try_from(node).ok()).unwrap_or(-1),
            unified: device.unified.into(),
            uuid_is_stable: device.uuid_is_stable.into(),
        };
        // SAFETY: as the header asks.
        unsafe { args::fill(info, &described) }
    })
}

/// Opens the `index`-th device of a backend. One that is open already is answered again. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_device_open(
    driver: spoc_driver,
    backend_name: *const c_char,
    index: u32,
    device: Option<&mut MaybeUninit<spoc_device>>,
) -> spoc_status {
    entry::run(|| {
        let out = args::out(device, "device")?;
        // SAFETY: as the header asks.
        let kind = backend(unsafe { args::text(backend_name, "backend_name") }?)?;
        let object = handles::get::<DriverObject>(driver.id)?;
        let device = object.driver.open(&DeviceSelector::index(kind, index))?;
        out.write(spoc_device { id: handles::put(DeviceObject(device))? });
        Ok(())
    })
}

/// Opens the device of a backend with this UUID. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_device_open_uuid(
    driver: spoc_driver,
    backend_name: *const c_char,
    uuid: *const c_char,
    device: Option<&mut MaybeUninit<spoc_device>>,
) -> spoc_status {
    entry::run(|| {
        let out = args::out(device, "device")?;
        // SAFETY: as the header asks.
        let kind = backend(unsafe { args::text(backend_name, "backend_name") }?)?;
        // SAFETY: as the header asks.
        let uuid: DeviceUuid = unsafe { args::text(uuid, "uuid") }?.parse()?;
        let object = handles::get::<DriverObject>(driver.id)?;
        let device = object.driver.open(&DeviceSelector::uuid(kind, uuid))?;
        out.write(spoc_device { id: handles::put(DeviceObject(device))? });
        Ok(())
    })
}

/// Borrows the engine's own context as a device. Refused as `SPOC_ERROR_UNSUPPORTED` where the backend cannot. Any
/// thread, while the context is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_device_adopt(
    driver: spoc_driver,
    backend_name: *const c_char,
    context: *const spoc_foreign,
    device: Option<&mut MaybeUninit<spoc_device>>,
) -> spoc_status {
    entry::run(|| {
        let out = args::out(device, "device")?;
        // SAFETY: as the header asks. From here on, what was lent is released in any case.
        let foreign = unsafe { args::options(context) }?.lend();
        // SAFETY: as the header asks.
        let kind = backend(unsafe { args::text(backend_name, "backend_name") }?)?;
        let object = handles::get::<DriverObject>(driver.id)?;
        // SAFETY: the header asks for a live context of this backend that lives until `release`.
        let device = unsafe { object.driver.adopt(kind, foreign) }?;
        out.write(spoc_device { id: handles::put(DeviceObject(device))? });
        Ok(())
    })
}

/// Free and total memory of a device now, bytes. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn spoc_device_memory(
    device: spoc_device,
    free_bytes: Option<&mut MaybeUninit<u64>>,
    total_bytes: Option<&mut MaybeUninit<u64>>,
) -> spoc_status {
    entry::run(|| {
        let (free, total) = (args::out(free_bytes, "free_bytes")?, args::out(total_bytes, "total_bytes")?);
        let memory = handles::get::<DeviceObject>(device.id)?.0.memory()?;
        free.write(memory.free_bytes);
        total.write(memory.total_bytes);
        Ok(())
    })
}

/// Closes the handle; the device goes with the last stream, pump, cache and lease on it. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn spoc_device_close(device: spoc_device) -> spoc_status {
    entry::run(|| handles::take::<DeviceObject>(device.id).map(drop))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_at_a_letter() {
        let cut: [c_char; 5] = copy_text("abcé");
        assert_eq!(cut.map(|byte| byte.cast_unsigned()), [b'a', b'b', b'c', 0, 0]);
    }
}
