//! Launches: the arguments of a kernel, and where it is enqueued.

use std::ffi::c_void;
use std::ptr;

use opencl_sys::{CL_DEVICE_DOUBLE_FP_CONFIG, CL_DEVICE_MAX_WORK_GROUP_SIZE, cl_mem};
use spoc_driver::backend::{BackendKind, Launch, LaunchArgument};
use spoc_driver::{Error, ErrorKind, Language, Result};

use super::device::DeviceId;
use super::error::check;
use super::handle::{Api, Context, Kernel, Queue};
use super::memory::Buffer;
use super::program::Programs;
use super::stream::Stream;
use crate::kernel::ir::Kind;
use crate::kernel::library::{Body, Library, Prepared};
use crate::kernel::write;
use crate::sync::lock;

const DOING: &str = "launching an OpenCL kernel";
/// The language that wins where a kernel comes in it.
pub(super) const OWN: Option<Language> = Some(Language::OpenClC);

/// What an opened device launches with.
pub(super) struct Launcher {
    programs: Programs,
    group_threads_max: u64,
    has_f64: bool,
}

/// One argument's bytes.
enum Argument {
    Mem(cl_mem),
    Long(u64),
    Bytes(Vec<u8>),
}

impl Launcher {
    pub(super) fn new(api: &Api, device: DeviceId, name: &str) -> Result<Self> {
        let number = |property| api.of_device(device.0, property).map(|value| value.number());
        Ok(Self {
            programs: Programs::new(api, device, name)?,
            group_threads_max: number(CL_DEVICE_MAX_WORK_GROUP_SIZE)?,
            // Refused by devices that have none of it.
            has_f64: number(CL_DEVICE_DOUBLE_FP_CONFIG).unwrap_or(0) != 0,
        })
    }

    /// Enqueues a launch.
    ///
    /// # Safety
    /// The buffers stay alive until it has run.
    pub(super) unsafe fn launch(
        &self,
        context: &Context,
        library: &Library,
        stream: &Stream,
        launch: &Launch<'_, Buffer>,
    ) -> Result<()> {
        let Some(prepared) = library.prepare(launch, BackendKind::OpenCl, OWN, 1)? else { return Ok(()) };
        let threads: u64 = prepared.group.iter().map(|side| u64::from(*side)).product();
        if threads > self.group_threads_max {
            let kind = ErrorKind::TooLarge { need: threads, max: self.group_threads_max };
            return Err(Error::new(kind, DOING).with("limit", "CL_DEVICE_MAX_WORK_GROUP_SIZE"));
        }
        let (source, entry, arguments) = match &prepared.body {
            Body::Wgsl(module) => {
                let program = module.program();
                if program.uses(Kind::F64) && !self.has_f64 {
                    return Err(Error::unsupported(BackendKind::OpenCl, "f64")
                        .with("kernel", launch.kernel.name().to_owned()));
                }
                let arguments = of_text(&prepared, launch);
                (module.opencl(), write::entry_name(program), arguments)
            }
            Body::Own(source) => {
                let invalid = |error| Error::new(ErrorKind::InvalidArgument, DOING).because(error);
                let text = std::str::from_utf8(&source.text).map_err(invalid)?;
                (text, source.entry.clone(), of_own(launch))
            }
        };
        let compiled = self.programs.compiled(context, prepared.body.origin(), source, &entry)?;
        stream.submit(|queue| {
            let kernel = lock(&compiled.kernel);
            for (position, argument) in (0..).zip(&arguments) {
                set(&kernel, position, argument)
                    .map_err(|error| error.with("kernel", launch.kernel.name().to_owned()))?;
            }
            // SAFETY: the caller's word; what the kernel may access, its author or the translation answers for.
            unsafe { queue.enqueue(&kernel, &prepared) }
        })
    }
}

impl Buffer {
    fn argument(&self, offset_bytes: u64) -> (Argument, u64) {
        let (mem, offset) = self.at(offset_bytes);
        (Argument::Mem(mem.raw()), offset as u64)
    }
}

/// Arguments of a translated kernel: see [`crate::kernel::write`].
fn of_text(prepared: &Prepared, launch: &Launch<'_, Buffer>) -> Vec<Argument> {
    let mut arguments = Vec::new();
    for (_, range) in &prepared.ranges {
        if let LaunchArgument::Memory { buffer, .. } = &launch.arguments[range.argument] {
            let (mem, offset) = buffer.argument(range.offset_bytes);
            arguments.extend([mem, Argument::Long(offset)]);
        }
    }
    arguments.extend(prepared.ranges.iter().map(|(_, range)| Argument::Long(range.len_bytes)));
    for (kind, offset) in &prepared.slots {
        let first = *offset as usize;
        let bytes = prepared.scalars[first..first + kind.bytes() as usize].to_vec();
        // A half comes as the 32 bits of its code.
        let padded = if *kind == Kind::F16 { [bytes, vec![0, 0]].concat() } else { bytes };
        arguments.push(Argument::Bytes(padded));
    }
    arguments
}

/// Arguments of a kernel in OpenCL C: for each vector its buffer, and where it begins there and how long it is,
/// in bytes; scalars by value.
fn of_own(launch: &Launch<'_, Buffer>) -> Vec<Argument> {
    let mut arguments = Vec::new();
    for argument in launch.arguments {
        match argument {
            LaunchArgument::Memory { buffer, offset_bytes, len_bytes, .. } => {
                let (mem, offset) = buffer.argument(*offset_bytes);
                arguments.extend([mem, Argument::Long(offset), Argument::Long(*len_bytes)]);
            }
            LaunchArgument::Scalar(scalar) => arguments.push(Argument::Bytes(scalar.bytes().to_vec())),
        }
    }
    arguments
}

fn set(kernel: &Kernel, position: u32, argument: &Argument) -> Result<()> {
    let (len, value): (usize, *const c_void) = match argument {
        Argument::Mem(mem) => (size_of::<cl_mem>(), ptr::from_ref(mem).cast()),
        Argument::Long(number) => (size_of::<u64>(), ptr::from_ref(number).cast()),
        Argument::Bytes(bytes) => (bytes.len(), bytes.as_ptr().cast()),
    };
    // SAFETY: `len` bytes are there, and are copied by the call; the kernel's lock is held.
    let code = unsafe { (kernel.api().library.set_kernel_arg)(kernel.raw(), position, len, value) };
    check(code, DOING).map_err(|error| error.with("argument", position))
}

impl Queue {
    /// # Safety
    /// The kernel's arguments are set, and the buffers among them stay alive until it has run.
    unsafe fn enqueue(&self, kernel: &Kernel, prepared: &Prepared) -> Result<()> {
        let local = prepared.group.map(|side| side as usize);
        let mut global = prepared.groups.map(|count| count as usize);
        global.iter_mut().zip(local).for_each(|(count, side)| *count *= side);
        // SAFETY: three sizes each, as many as dimensions; the caller's word for the rest.
        let code = unsafe {
            (self.api().library.enqueue_nd_range_kernel)(
                self.raw(),
                kernel.raw(),
                3,
                ptr::null(),
                global.as_ptr(),
                local.as_ptr(),
                0,
                ptr::null(),
                ptr::null_mut(),
            )
        };
        check(code, DOING)
    }
}
