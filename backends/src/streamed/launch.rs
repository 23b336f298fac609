//! Launches.
//!
//! A kernel in one of the API's own languages is given its arguments in the order of its parameters: a pointer for a
//! vector, the number itself for a scalar. Lengths are its own matter. In C its entry is `extern "C"`. Other kernels
//! are the adapter's own code, or translated into C and compiled.

use std::ffi::c_void;
use std::sync::OnceLock;

use spoc_driver::backend::{Launch, LaunchArgument};
use spoc_driver::{Error, ErrorKind, Form, Grid, Kernel, Result, Scalar, Source};

use super::copy;
use super::device::Shared;
use super::flavour::{Flavour, Plan};
use super::memory::Buffer;
use super::module::{Code, Function};
use super::rtc::Compiler;
use super::stream::Lane;
use crate::kernel::ir::Kind;
use crate::kernel::library::{Body, Library, Prepared};

/// Threads of a group of the adapters' own kernels.
pub(crate) const GROUP: u32 = 256;

/// What kernels are made with, for all devices of a backend.
#[derive(Default)]
pub(crate) struct Kernels {
    /// Loaded when it is first asked for; or why there is none.
    compiler: OnceLock<Result<Box<dyn Compiler>, String>>,
    /// Those in WGSL.
    library: Library,
}

impl Kernels {
    /// The compiler.
    ///
    /// # Errors
    /// `Unsupported`, with the reason.
    pub(crate) fn compiler(&self, flavour: &dyn Flavour) -> Result<&dyn Compiler> {
        let compiler = self.compiler.get_or_init(|| flavour.load_compiler());
        compiler
            .as_ref()
            .map(AsRef::as_ref)
            .map_err(|reason| Error::unsupported(flavour.kind(), "kernel_compiler").with("reason", reason))
    }
}

/// What is written for the API wins.
fn own<'k>(kernel: &'k Kernel, flavour: &dyn Flavour) -> Option<&'k Source> {
    kernel.forms().iter().find_map(|form| match form {
        Form::Source(source) if flavour.traits().languages.contains(&source.language) => Some(source),
        _ => None,
    })
}

/// Compiles and loads the kernel, so that what is wrong with it shows before anything moves.
pub(crate) fn check(shared: &Shared, kernels: &Kernels, kernel: &Kernel) -> Result<()> {
    let flavour = &*shared.context.api.flavour;
    if let Some(source) = own(kernel, flavour) {
        let code = Code { source, is_translated: false };
        return shared.modules.source(shared, kernels, kernel.name(), &code).map(drop);
    }
    kernels.library.check(kernel, flavour.kind(), None)?;
    let comes_along = |form: &Form| matches!(form, Form::BuiltIn(which) if flavour.has_built_in(*which));
    if kernel.forms().iter().any(comes_along) {
        return Ok(());
    }
    // What is translated has to be compiled.
    kernels.compiler(flavour).map(drop)
}

/// Enqueues a launch.
///
/// # Safety
/// As the port's: the buffers stay until it has run, and the kernel keeps to its arguments.
pub(crate) unsafe fn run(
    shared: &Shared,
    kernels: &Kernels,
    lane: &Lane,
    launch: &Launch<'_, Buffer>,
) -> Result<()> {
    let flavour = &*shared.context.api.flavour;
    let name = launch.kernel.name();
    let named = |error: Error| error.with("kernel", name.to_owned());
    if let Some(source) = own(launch.kernel, flavour) {
        let code = Code { source, is_translated: false };
        let function = shared.modules.source(shared, kernels, name, &code)?;
        let mut parameters: Vec<u64> = launch.arguments.iter().map(parameter).collect();
        // SAFETY: the caller's word.
        return unsafe { submit(lane, function, launch.grid, &mut parameters) }.map_err(named);
    }
    let plan = launch.kernel.forms().iter().find_map(|form| match form {
        Form::BuiltIn(which) => flavour.built_in(*which, launch).transpose(),
        _ => None,
    });
    match plan.transpose()? {
        // SAFETY: the caller's word.
        None => unsafe { translated(shared, kernels, lane, launch) }.map_err(named),
        Some(Plan::Nothing) => Ok(()),
        Some(Plan::Copy(from, to, bytes)) => {
            copy::on_device(lane, from, to, usize::try_from(bytes).unwrap_or(usize::MAX))
        }
        Some(Plan::Run { text, entry, groups, mut parameters }) => {
            let function = shared.modules.built_in(&shared.context, text, entry)?;
            let grid = Grid { groups: [groups, 1, 1], group: [GROUP, 1, 1] };
            // SAFETY: the kernels keep to what they are given, which the driver checked.
            unsafe { submit(lane, function, grid, &mut parameters) }.map_err(named)
        }
    }
}

/// Enqueues a kernel in WGSL.
///
/// # Safety
/// As [`run`]'s.
unsafe fn translated(
    shared: &Shared,
    kernels: &Kernels,
    lane: &Lane,
    launch: &Launch<'_, Buffer>,
) -> Result<()> {
    let flavour = &*shared.context.api.flavour;
    let Some(prepared) = kernels.library.prepare(launch, flavour.kind(), None, 16)? else { return Ok(()) };
    let Body::Wgsl(module) = &prepared.body else {
        return Err(Error::unsupported(flavour.kind(), "kernel_form"));
    };
    let traits = flavour.traits();
    let source = module.source(traits.dialect, traits.languages[0]);
    let code = Code { source, is_translated: true };
    let function = shared.modules.source(shared, kernels, launch.kernel.name(), &code)?;
    let mut parameters = parameters(&prepared, launch)?;
    let grid = Grid { groups: prepared.groups, group: prepared.group };
    // SAFETY: the parameters are those of a translated kernel, which stays within their lengths.
    unsafe { submit(lane, function, grid, &mut parameters) }
}

/// Parameters of a translated kernel, each at the beginning of a word: see [`write`](crate::kernel::write).
fn parameters(prepared: &Prepared, launch: &Launch<'_, Buffer>) -> Result<Vec<u64>> {
    let wrong = |position| Error::new(ErrorKind::WrongKind, "launching a kernel").with("argument", position);
    let mut words = Vec::with_capacity(2 * prepared.ranges.len() + prepared.slots.len());
    for (_, range) in &prepared.ranges {
        match launch.arguments.get(range.argument) {
            Some(LaunchArgument::Memory { buffer, .. }) => words.push(buffer.at(range.offset_bytes)),
            _ => return Err(wrong(range.argument)),
        }
    }
    words.extend(prepared.ranges.iter().map(|(_, range)| range.len_bytes));
    for (kind, offset) in &prepared.slots {
        let first = *offset as usize;
        // A half comes as the 32 bits of its code: the rest of the word is zero.
        let len = if *kind == Kind::F16 { 2 } else { kind.bytes() as usize };
        let bytes = prepared.scalars.get(first..first + len).ok_or_else(|| wrong(first))?;
        words.push(word(bytes));
    }
    Ok(words)
}

/// Bytes at the beginning of a word.
fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_ne_bytes(word)
}

/// A number's bytes at the beginning of a word, where the API reads as many as the kernel takes.
pub(crate) fn bits(scalar: Scalar) -> u64 {
    word(scalar.bytes())
}

fn parameter(argument: &LaunchArgument<'_, Buffer>) -> u64 {
    match argument {
        LaunchArgument::Memory { buffer, offset_bytes, .. } => buffer.at(*offset_bytes),
        LaunchArgument::Scalar(scalar) => bits(*scalar),
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
pub(crate) unsafe fn submit_places(
    lane: &Lane,
    function: Function,
    grid: Grid,
    places: &mut [*mut c_void],
) -> Result<()> {
    let ([x, y, z], [a, b, c]) = (grid.groups, grid.group);
    lane.enqueue_here("launching a kernel", |stream| {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lie_at_the_beginning_of_their_word() {
        assert_eq!(bits(Scalar::of(7_u8)).to_ne_bytes()[0], 7);
        assert_eq!(bits(Scalar::of(1.5_f64)), 1.5_f64.to_bits());
        let word = bits(Scalar::of(-2_i16)).to_ne_bytes();
        assert_eq!(word[..2], (-2_i16).to_ne_bytes());
    }
}
