//! Launches on the CPU: what native and the interpreter have in common.

use std::panic::{AssertUnwindSafe, catch_unwind};

use spoc_driver::backend::{BackendKind, Launch, LaunchArgument};
use spoc_driver::{Access, Call, CallArgument, Error, ErrorKind, Form, Grid, Kernel, Result};

use crate::built_ins;
use crate::claims::Claim;

const DOING: &str = "running a kernel";

/// A launch, ready to run on whatever thread it comes to.
pub(crate) struct HostLaunch {
    kernel: Kernel,
    grid: Grid,
    arguments: Vec<CallArgument>,
    pub(crate) claims: Vec<Claim>,
}

// SAFETY: the pointers are of memory that any thread may use; the driver keeps it until the launch has run.
unsafe impl Send for HostLaunch {}

/// Refuses a kernel without a form for the CPU; compiled Rust only where it `runs_native`.
pub(crate) fn check(kernel: &Kernel, backend: BackendKind, runs_native: bool) -> Result<()> {
    let runs = |form: &Form| match form {
        Form::BuiltIn(_) => true,
        Form::Native(_) => runs_native,
        _ => false,
    };
    if kernel.forms().iter().any(runs) {
        return Ok(());
    }
    Err(Error::unsupported(backend, "kernel_form")
        .with("kernel", kernel.name().to_owned())
        .with("forms", format_args!("{:?}", kernel.forms())))
}

impl HostLaunch {
    /// `place` answers where an offset of a buffer is in memory.
    pub(crate) fn new<B>(launch: &Launch<'_, B>, place: impl Fn(&B, u64) -> *mut u8) -> Result<Self> {
        let mut arguments = Vec::with_capacity(launch.arguments.len());
        let mut claims = Vec::with_capacity(launch.arguments.len());
        for argument in launch.arguments {
            arguments.push(match *argument {
                LaunchArgument::Scalar(scalar) => CallArgument::Scalar(scalar),
                LaunchArgument::Memory { buffer, offset_bytes, len_bytes, kind, access } => {
                    let ptr = place(buffer, offset_bytes);
                    let too_large = |_| {
                        Error::new(ErrorKind::TooLarge { need: len_bytes, max: usize::MAX as u64 }, DOING)
                    };
                    let len_bytes = usize::try_from(len_bytes).map_err(too_large)?;
                    claims.push(match access {
                        Access::Read => Claim::read(ptr, len_bytes),
                        Access::Write => Claim::write(ptr, len_bytes),
                    });
                    CallArgument::Memory { ptr, len_bytes, kind, access }
                }
            });
        }
        Ok(Self { kernel: launch.kernel.clone(), grid: launch.grid, arguments, claims })
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
