//! Pumps: what reads files and copies to one device.

use crate::args::{self, sized};
use crate::device::{DeviceObject, spoc_device};
use crate::entry;
use crate::failure::Failure;
use crate::handles::{self, Object};
use crate::status::spoc_status;
use ::spoc_cache::{Pump, PumpOptions};
use spoc_io::IoMode;
use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::sync::Arc;

/// Bytes of the staging ring unless the caller says otherwise.
const STAGING_BYTES: u64 = 64 << 20;

/// A reader, a staging ring and a copy stream for one device: start one a device.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct spoc_pump {
    /// The handle; 0 is none.
    pub id: u64,
}

/// How a pump is set up. All zeros: the defaults.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct spoc_pump_options {
    /// `sizeof(spoc_pump_options)`.
    pub struct_size: usize,
    /// Bytes of the staging ring: all the host memory that loads take. 0: 64 MiB.
    pub staging_bytes: u64,
    /// How files are read: `auto` (NULL is that), `direct`, `buffered` or `pread`.
    pub io: *const c_char,
}

sized!(spoc_pump_options);

/// A running pump.
pub struct PumpObject(pub Arc<Pump>);

impl Object for PumpObject {
    const NAME: &'static str = "spoc_pump";
}

/// Takes and pins the staging ring, starts the reader and the copy thread. `options` may be NULL. Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_pump_open(
    device: spoc_device,
    options: *const spoc_pump_options,
    pump: Option<&mut MaybeUninit<spoc_pump>>,
) -> spoc_status {
    entry::run(|| {
        let out = args::out(pump, "pump")?;
        // SAFETY: as the header asks.
        let options = unsafe { args::options(options) }?;
        // SAFETY: as the header asks.
        let mode = match unsafe { args::optional_text(options.io, "spoc_pump_options.io") }? {
            None => IoMode::default(),
            Some(name) => name.parse()?,
        };
        let staging = if options.staging_bytes == 0 { STAGING_BYTES } else { options.staging_bytes };
        let have = spoc_backends::host_memory_available();
        if staging > have {
            let message =
                format_args!("the staging ring needs {staging} bytes and this machine can give {have}");
            return Err(Failure::new(spoc_status::SPOC_ERROR_STAGING_TOO_SMALL, message));
        }
        let staging = usize::try_from(staging).map_err(Failure::argument)?;
        let device = handles::get::<DeviceObject>(device.id)?;
        let pump = Pump::start(&device.0, PumpOptions::new(mode, staging)?)?;
        out.write(spoc_pump { id: handles::put(PumpObject(pump))? });
        Ok(())
    })
}

/// Closes the handle. The pump ends with the last cache and load on it: until then this may be called at any time; it
/// waits for reads in flight. Any thread but that of a progress call.
#[unsafe(no_mangle)]
pub extern "C" fn spoc_pump_close(pump: spoc_pump) -> spoc_status {
    entry::run(|| handles::take::<PumpObject>(pump.id).map(drop))
}
