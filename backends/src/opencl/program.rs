//! Kernels compiled for a device: built once, kept on disk, and launched with their arguments behind a lock.

use std::collections::HashMap;
use std::ffi::CString;
use std::ptr;
use std::sync::{Arc, Mutex};

use opencl_sys::{
    CL_DEVICE_SINGLE_FP_CONFIG, CL_DEVICE_VERSION, CL_DRIVER_VERSION, CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT,
    CL_PROGRAM_BINARIES, CL_PROGRAM_BINARY_SIZES, CL_PROGRAM_BUILD_LOG, CL_SUCCESS, cl_device_id, cl_int,
};
use spoc_driver::{Error, ErrorKind, Result};

use super::device::DeviceId;
use super::error::check;
use super::handle::{Api, Context, Kernel, Program};
use crate::kernel::library::Origin;
use crate::kernel::store::{Key, Store};
use crate::sync::lock;

const BUILDING: &str = "building an OpenCL kernel";
/// Of a build log, so much is told.
const LOG_BYTES_MAX: usize = 2000;

/// One build at a time in a process, whatever the device: runtimes share one compiler among their devices, and not
/// every one guards it. Holds no state.
static BUILDS: Mutex<()> = Mutex::new(());

/// A function that can be launched. Its arguments are set and the launch enqueued behind the lock.
pub(super) struct Compiled {
    pub(super) kernel: Mutex<Kernel>,
    _program: Program,
}

/// Functions of a program, by their names.
type Functions = Vec<(String, Arc<Compiled>)>;

/// The kernels of an opened device.
pub(super) struct Programs {
    /// By what they are made from; each with the names of functions that were asked for.
    known: Mutex<HashMap<Origin, Functions>>,
    store: Store,
    device: DeviceId,
    /// Which device and driver it is, for the key of what is kept.
    identity: String,
    options: CString,
}

impl Programs {
    pub(super) fn new(api: &Api, device: DeviceId, name: &str) -> Result<Self> {
        let text = |property| api.of_device(device.0, property).map(|value| value.text());
        let identity = format!("{name}\n{}\n{}", text(CL_DEVICE_VERSION)?, text(CL_DRIVER_VERSION)?);
        let floats = api.of_device(device.0, CL_DEVICE_SINGLE_FP_CONFIG)?.number();
        let is_exact = floats & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT != 0;
        let options = if is_exact {
            c"-w -cl-std=CL1.2 -cl-fp32-correctly-rounded-divide-sqrt"
        } else {
            c"-w -cl-std=CL1.2"
        };
        let known = Mutex::default();
        Ok(Self { known, store: Store::from_env(), device, identity, options: options.into() })
    }

    /// A kernel by what its source is made from, built at the first call.
    ///
    /// # Errors
    /// `InvalidArgument` with the build log if the runtime does not take the source.
    pub(super) fn compiled(
        &self,
        context: &Context,
        origin: Origin,
        source: &str,
        entry: &str,
    ) -> Result<Arc<Compiled>> {
        // Held while building, so that nobody builds the same twice.
        let mut known = lock(&self.known);
        let of_source = known.get(&origin).map(Vec::as_slice).unwrap_or_default();
        if let Some((_, compiled)) = of_source.iter().find(|(name, _)| name == entry) {
            return Ok(Arc::clone(compiled));
        }
        let program = self.program(context, source)?;
        let compiled =
            Arc::new(Compiled { kernel: Mutex::new(function(&program, entry)?), _program: program });
        let of_source = known.entry(origin).or_default();
        of_source.push((entry.to_owned(), Arc::clone(&compiled)));
        Ok(compiled)
    }

    fn program(&self, context: &Context, source: &str) -> Result<Program> {
        let parts =
            [b"opencl".as_slice(), source.as_bytes(), self.options.to_bytes(), self.identity.as_bytes()];
        let key = Key::of(&parts);
        if let Some(binary) = self.store.load(key) {
            match self.take_binary(context, &binary) {
                Ok(program) => return Ok(program),
                Err(error) => {
                    tracing::info!(%error, "a kept OpenCL kernel was not taken: it is compiled again");
                    self.store.forget(key);
                }
            }
        }
        let program = from_source(context, source)?;
        self.build(&program)?;
        if let Some(binary) = binary(&program) {
            self.store.save(key, &binary);
        }
        Ok(program)
    }

    fn take_binary(&self, context: &Context, binary: &[u8]) -> Result<Program> {
        let (mut code, mut status) = (CL_SUCCESS, CL_SUCCESS);
        let (len, mut start, device) = (binary.len(), binary.as_ptr(), self.device.0);
        // SAFETY: one device, one length and one binary, alive until the call returns.
        let raw = unsafe {
            (context.api().library.create_program_with_binary)(
                context.raw(),
                1,
                &raw const device,
                &raw const len,
                &raw mut start,
                &raw mut status,
                &raw mut code,
            )
        };
        check(code, BUILDING)?;
        // SAFETY: just created.
        let program = unsafe { Program::owned(context.api(), raw) };
        check(status, BUILDING)?;
        self.build(&program)?;
        Ok(program)
    }

    fn build(&self, program: &Program) -> Result<()> {
        let _turn = lock(&BUILDS);
        let device: cl_device_id = self.device.0;
        // SAFETY: program and device belong together; the options are a C string; no callback is given.
        let code: cl_int = unsafe {
            (program.api().library.build_program)(
                program.raw(),
                1,
                &raw const device,
                self.options.as_ptr(),
                None,
                ptr::null_mut(),
            )
        };
        let Err(error) = check(code, BUILDING) else { return Ok(()) };
        let log =
            program.build_property(device, CL_PROGRAM_BUILD_LOG).map(|log| log.text()).unwrap_or_default();
        let end = log.floor_char_boundary(log.len().min(LOG_BYTES_MAX));
        let log = log[..end].replace('\n', " | ");
        Err(Error::new(ErrorKind::InvalidArgument, BUILDING).with("log", log).because(error))
    }
}

fn from_source(context: &Context, source: &str) -> Result<Program> {
    let mut code = CL_SUCCESS;
    let (mut start, len) = (source.as_ptr().cast(), source.len());
    // SAFETY: one text of that length, alive until the call returns.
    let raw = unsafe {
        (context.api().library.create_program)(
            context.raw(),
            1,
            &raw mut start,
            &raw const len,
            &raw mut code,
        )
    };
    check(code, BUILDING)?;
    // SAFETY: just created.
    Ok(unsafe { Program::owned(context.api(), raw) })
}

/// The code that the runtime made, to be kept.
fn binary(program: &Program) -> Option<Vec<u8>> {
    let len = usize::try_from(program.property(CL_PROGRAM_BINARY_SIZES).ok()?.number()).ok()?;
    let mut bytes = vec![0_u8; len];
    let mut start = bytes.as_mut_ptr();
    // SAFETY: the program has one device, so one pointer is asked for; there is room for what it said.
    let code = unsafe {
        (program.api().library.get_program_info)(
            program.raw(),
            CL_PROGRAM_BINARIES,
            size_of::<*mut u8>(),
            (&raw mut start).cast(),
            ptr::null_mut(),
        )
    };
    (code == CL_SUCCESS).then_some(bytes)
}

fn function(program: &Program, entry: &str) -> Result<Kernel> {
    let mut code = CL_SUCCESS;
    let invalid = |_| Error::new(ErrorKind::InvalidArgument, BUILDING).with("entry", entry.to_owned());
    let name = CString::new(entry).map_err(invalid)?;
    // SAFETY: a built program and a C string.
    let raw = unsafe { (program.api().library.create_kernel)(program.raw(), name.as_ptr(), &raw mut code) };
    check(code, BUILDING).map_err(|error| error.with("entry", entry.to_owned()))?;
    // SAFETY: just created.
    Ok(unsafe { Kernel::owned(program.api(), raw) })
}
