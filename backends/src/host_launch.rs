//! Launches on the CPU: what native and the interpreter have in common.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use spoc_driver::backend::{BackendKind, Launch, LaunchArgument};
use spoc_driver::{Access, Call, CallArgument, Error, ErrorKind, Form, Grid, Kernel, Result};

use crate::built_ins;
use crate::claims::Claim;
use crate::kernel::Crew;
use crate::kernel::library::{Body, Library, Module};
use crate::kernel::run::{Buffer, Fault, Memory};
use crate::size::host_len;

const DOING: &str = "running a kernel";

/// A launch, ready to run on whatever thread it comes to.
pub(crate) struct HostLaunch {
    kernel: Kernel,
    grid: Grid,
    arguments: Vec<CallArgument>,
    work: Work,
    /// Where it is native that runs this.
    native: Option<Arc<Native>>,
    pub(crate) claims: Vec<Claim>,
}

/// What launches on native share.
#[derive(Debug, Default)]
pub(crate) struct Native {
    pub(crate) counters: Arc<Counters>,
    pub(crate) crew: Crew,
}

/// How launches on native ran.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) compiled: AtomicU64,
    pub(crate) interpreted: AtomicU64,
}

/// What is to be done.
enum Work {
    Nothing,
    /// Compiled Rust.
    Compiled,
    /// A kernel's instructions.
    Text(Text),
}

/// A kernel's instructions and what they work on.
struct Text {
    module: Arc<Module>,
    buffers: Vec<Buffer>,
    scalars: Vec<u8>,
    groups: [u32; 3],
}

// SAFETY: the pointers are of memory that any thread may use; the driver keeps it until the launch has run.
unsafe impl Send for HostLaunch {}

/// Whether compiled Rust runs: the kernel's own, or that of a built-in.
fn is_compiled(kernel: &Kernel) -> bool {
    kernel.forms().iter().any(|form| matches!(form, Form::BuiltIn(_) | Form::Native(_)))
}

/// Refuses a kernel without a form for the CPU; compiled Rust only where it `runs_native`.
pub(crate) fn check(
    kernel: &Kernel,
    backend: BackendKind,
    library: &Library,
    runs_native: bool,
) -> Result<()> {
    if runs_native && is_compiled(kernel) { Ok(()) } else { library.check(kernel, backend, None) }
}

impl HostLaunch {
    /// `place` answers where an offset of a buffer is in memory.
    pub(crate) fn new<B>(
        launch: &Launch<'_, B>,
        backend: BackendKind,
        library: &Library,
        native: Option<&Arc<Native>>,
        place: impl Fn(&B, u64) -> *mut u8,
    ) -> Result<Self> {
        let mut arguments = Vec::with_capacity(launch.arguments.len());
        let mut claims = Vec::with_capacity(launch.arguments.len());
        for argument in launch.arguments {
            arguments.push(match *argument {
                LaunchArgument::Scalar(scalar) => CallArgument::Scalar(scalar),
                LaunchArgument::Memory { buffer, offset_bytes, len_bytes, kind, access } => {
                    let ptr = place(buffer, offset_bytes);
                    let len_bytes = host_len(len_bytes)?;
                    claims.push(match access {
                        Access::Read => Claim::read(ptr, len_bytes),
                        Access::Write => Claim::write(ptr, len_bytes),
                    });
                    CallArgument::Memory { ptr, len_bytes, kind, access }
                }
            });
        }
        let work = if native.is_some() && is_compiled(launch.kernel) {
            Work::Compiled
        } else {
            Text::new(launch, backend, library, place)?.map_or(Work::Nothing, Work::Text)
        };
        Ok(Self {
            kernel: launch.kernel.clone(),
            grid: launch.grid,
            arguments,
            work,
            native: native.cloned(),
            claims,
        })
    }

    /// Runs it. The caller holds the claims.
    pub(crate) fn run(&self) -> Result<()> {
        // SAFETY: the driver keeps the memory, initialised since it was allocated, until the launch has run, and
        // has refused written memory that another argument shows; the claims keep everybody else away.
        let mut call = unsafe { Call::new(self.grid, self.arguments.iter().copied()) };
        // A kernel that panics leaves its vectors half-written, which its stream's failure says.
        let outcome = catch_unwind(AssertUnwindSafe(|| self.run_form(&mut call)));
        outcome.unwrap_or_else(|panic| {
            let message = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
            Err(Error::new(ErrorKind::Backend, DOING)
                .with("kernel", self.kernel.name().to_owned())
                .with("panicked", message.unwrap_or_default()))
        })
    }

    fn run_form(&self, call: &mut Call<'_>) -> Result<()> {
        match &self.work {
            Work::Nothing => return Ok(()),
            Work::Text(text) => return text.run(self.kernel.name(), self.native.as_deref()),
            Work::Compiled => {}
        }
        for form in self.kernel.forms() {
            match form {
                Form::Native(work) => return work(call),
                Form::BuiltIn(which) => return built_ins::run(*which, call),
                _ => {}
            }
        }
        Err(Error::new(ErrorKind::InvalidArgument, DOING).with("kernel", self.kernel.name().to_owned()))
    }
}

impl Text {
    fn new<B>(
        launch: &Launch<'_, B>,
        backend: BackendKind,
        library: &Library,
        place: impl Fn(&B, u64) -> *mut u8,
    ) -> Result<Option<Self>> {
        let prepared = library.prepare(launch, backend, None, 1)?;
        let missing =
            || Error::unsupported(backend, "kernel_form").with("kernel", launch.kernel.name().to_owned());
        let Some(prepared) = prepared else { return Ok(None) };
        let Body::Wgsl(module) = prepared.body else { return Err(missing()) };
        let mut buffers = Vec::with_capacity(prepared.ranges.len());
        for slot in &module.program().buffers {
            let range = prepared.ranges.iter().find(|(binding, _)| *binding == slot.binding);
            let Some((_, range)) = range else { return Err(missing()) };
            let LaunchArgument::Memory { buffer, .. } = &launch.arguments[range.argument] else {
                return Err(missing());
            };
            let (ptr, len_bytes) = (place(buffer, range.offset_bytes), host_len(range.len_bytes)?);
            buffers.push(Buffer { ptr, len_bytes });
        }
        Ok(Some(Self { module, buffers, scalars: prepared.scalars, groups: prepared.groups }))
    }

    fn run(&self, kernel: &str, native: Option<&Native>) -> Result<()> {
        // SAFETY: as for `Call::new`. A built-in's ranges are cut to words, whose bytes beside the vector it
        // only reads without using them, or changes atomically to what they were.
        let mut memory = unsafe { Memory::new(self.buffers.clone(), self.scalars.clone()) };
        let outcome = match native {
            Some(Native { counters, crew }) => {
                let (outcome, is_compiled) = self.module.run(self.groups, &mut memory, crew);
                let counter = if is_compiled { &counters.compiled } else { &counters.interpreted };
                counter.fetch_add(1, Ordering::Relaxed);
                outcome
            }
            None => self.module.runnable.run(self.groups, &mut memory),
        };
        outcome.map_err(|fault| {
            let (kind, site) = match fault {
                Fault::Outside { site, offset_bytes, len_bytes, size_bytes } => {
                    (ErrorKind::OutOfBounds { offset_bytes, len_bytes, size_bytes }, site)
                }
                Fault::Apart { site } => (ErrorKind::InvalidArgument, site),
            };
            let error = Error::new(kind, DOING).with("kernel", kernel.to_owned());
            let error = error.with("line", site.line).with("column", site.column);
            match fault {
                Fault::Apart { .. } => {
                    error.with("because", "not every thread of a group came to the same barrier")
                }
                Fault::Outside { .. } => error,
            }
        })
    }
}
