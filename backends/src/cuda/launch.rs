//! Launches.
//!
//! A kernel in CUDA C, PTX or machine code is given its arguments in the order of its parameters: a pointer for a
//! vector, the number itself for a scalar. Lengths are its own matter. In CUDA C its entry is `extern "C"`.

use std::ffi::c_void;

use spoc_driver::backend::{BackendKind, Launch, LaunchArgument};
use spoc_driver::{BuiltIn, Error, Form, Grid, Kernel, Language, Result, Source};

use super::built_ins::{self, GROUP, Plan};
use super::copy;
use super::device::Shared;
use super::memory::Buffer;
use super::module::{Compiler, Function};
use super::stream::Lane;

/// The form of a kernel that this adapter runs.
enum Chosen<'k> {
    Source(&'k Source),
    BuiltIn(BuiltIn),
}

/// What is written for the API wins.
fn choose(kernel: &Kernel) -> Result<Chosen<'_>> {
    let source = kernel.forms().iter().find_map(|form| match form {
        Form::Source(source) if is_own(source.language) => Some(Chosen::Source(source)),
        _ => None,
    });
    let built_in = || {
        kernel.forms().iter().find_map(|form| match form {
            Form::BuiltIn(which) if built_ins::is_known(*which) => Some(Chosen::BuiltIn(*which)),
            _ => None,
        })
    };
    source.or_else(built_in).ok_or_else(|| {
        Error::unsupported(BackendKind::Cuda, "kernel_form")
            .with("kernel", kernel.name().to_owned())
            .with("forms", format_args!("{:?}", kernel.forms()))
    })
}

fn is_own(language: Language) -> bool {
    matches!(language, Language::Cuda | Language::Ptx | Language::Cubin)
}

/// Compiles and loads the kernel, so that what is wrong with it shows before anything moves.
pub(super) fn check(shared: &Shared, compiler: &Compiler, kernel: &Kernel) -> Result<()> {
    match choose(kernel)? {
        Chosen::Source(source) => shared
            .modules
            .source(&shared.context, compiler, shared.found.arch, kernel.name(), source)
            .map(drop),
        Chosen::BuiltIn(_) => Ok(()),
    }
}

/// Enqueues a launch.
///
/// # Safety
/// As the port's: the buffers stay until it has run, and the kernel keeps to its arguments.
pub(super) unsafe fn run(
    shared: &Shared,
    compiler: &Compiler,
    lane: &Lane,
    launch: &Launch<'_, Buffer>,
) -> Result<()> {
    let name = launch.kernel.name();
    let named = |error: Error| error.with("kernel", name.to_owned());
    match choose(launch.kernel)? {
        Chosen::Source(source) => {
            let function =
                shared.modules.source(&shared.context, compiler, shared.found.arch, name, source)?;
            let mut parameters: Vec<u64> = launch.arguments.iter().map(parameter).collect();
            // SAFETY: the caller's word.
            unsafe { submit(lane, function, launch.grid, &mut parameters) }.map_err(named)
        }
        Chosen::BuiltIn(which) => match built_ins::plan(which, launch)? {
            Plan::Nothing => Ok(()),
            Plan::Copy(from, to, bytes) => {
                copy::on_device(lane, from, to, usize::try_from(bytes).unwrap_or(usize::MAX))
            }
            Plan::Run { text, entry, groups, mut parameters } => {
                let function = shared.modules.built_in(&shared.context, text, entry)?;
                let grid = Grid { groups: [groups, 1, 1], group: [GROUP, 1, 1] };
                // SAFETY: the kernels keep to what they are given, which the driver checked.
                unsafe { submit(lane, function, grid, &mut parameters) }.map_err(named)
            }
        },
    }
}

fn parameter(argument: &LaunchArgument<'_, Buffer>) -> u64 {
    match argument {
        LaunchArgument::Memory { buffer, offset_bytes, .. } => buffer.at(*offset_bytes),
        LaunchArgument::Scalar(scalar) => built_ins::bits(*scalar),
    }
}

/// # Safety
/// The words are what the function takes, each in the first bytes of one.
unsafe fn submit(lane: &Lane, function: Function, grid: Grid, parameters: &mut [u64]) -> Result<()> {
    let mut places: Vec<*mut c_void> =
        parameters.iter_mut().map(|word| std::ptr::from_mut(word).cast()).collect();
    // SAFETY: the caller's word; the API has copied the words when it returns.
    unsafe { submit_places(lane, function, grid, &mut places) }
}

/// Launches with the places of the arguments.
///
/// # Safety
/// Each place holds what the function takes there.
pub(super) unsafe fn submit_places(
    lane: &Lane,
    function: Function,
    grid: Grid,
    places: &mut [*mut c_void],
) -> Result<()> {
    let ([x, y, z], [a, b, c]) = (grid.groups, grid.group);
    lane.enqueue_here("launching a CUDA kernel", |stream| {
        // SAFETY: the caller's word; the context is current, and the API copies the arguments.
        unsafe {
            (lane.api().library.launch)(
                function.0,
                x,
                y,
                z,
                a,
                b,
                c,
                0,
                stream,
                places.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
    })
}
