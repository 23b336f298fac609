//! The compiler: a kernel's instructions as machine code, by Cranelift, run across the processor's cores.
//!
//! It takes the instructions that the interpreter takes, and gives the same bits: what is not worth code of its own
//! is a call of the interpreter's own function. Accesses outside are found and told in the same way.

mod control;
pub(crate) mod crew;
mod live;
mod memory;
mod operation;
mod run;
mod table;
#[cfg(test)]
mod tests;
mod together;

use cranelift_codegen::ir::{AbiParam, types};
use cranelift_codegen::settings::{self, Configurable};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{Linkage, Module, default_libcall_names};

use super::ir::Site;
use super::run::Runnable;
use table::Table;

/// Longer kernels are interpreted: compiling takes time that grows faster than they do.
const INSTRUCTIONS_MAX: usize = 1 << 15;

/// The machine code. Takes the table of what the kernel works on, room for the registers that threads keep over a
/// barrier, and which row of threads along x to run (y and z); with barriers it runs the whole group instead. Answers 0
/// at the end, [`FAULT`] or [`APART`].
type Entry = unsafe extern "C" fn(*mut u64, *mut u64, u32, u32) -> i32;

/// An access was outside; the table says which and where.
const FAULT: i32 = -1;
/// Not every thread came to the barrier whose number the table has.
const APART: i32 = -2;

/// A kernel as machine code.
pub(crate) struct Compiled {
    entry: Entry,
    /// The code's memory, until this is dropped.
    module: Option<JITModule>,
    table: Table,
    /// Sites of the barriers, the first of which is number 1.
    barriers: Vec<Site>,
    /// Registers that a thread keeps over a barrier.
    kept: usize,
    has_atomics: bool,
}

// SAFETY: the module is only kept, and freed by whoever drops this; the code is never changed once it is made.
unsafe impl Sync for Compiled {}

impl Compiled {
    /// Compiles a kernel. The code refers to the instructions of `runnable`, which has to live as long.
    ///
    /// # Errors
    /// Why it has to be interpreted.
    ///
    /// # Safety
    /// The code's instructions stay where they are, unchanged, as long as this lives.
    pub(crate) unsafe fn new(runnable: &Runnable) -> Result<Self, String> {
        let len = runnable.code.instructions.len();
        if len > INSTRUCTIONS_MAX {
            return Err(format!("{len} instructions are more than the compiler takes ({INSTRUCTIONS_MAX})"));
        }
        if cfg!(target_endian = "big") {
            return Err("the compiler is for little-endian processors".to_owned());
        }
        let mut module = module()?;
        match define(&mut module, runnable) {
            Ok(mut made) => {
                made.module = Some(module);
                Ok(made)
            }
            Err(why) => {
                free(module);
                Err(why)
            }
        }
    }
}

impl Drop for Compiled {
    fn drop(&mut self) {
        if let Some(module) = self.module.take() {
            free(module);
        }
    }
}

fn free(module: JITModule) {
    // SAFETY: the only pointer into the code is `entry`, which goes with its owner.
    unsafe { module.free_memory() };
}

fn module() -> Result<JITModule, String> {
    let mut flags = settings::builder();
    for (name, value) in [("opt_level", "speed"), ("use_colocated_libcalls", "false"), ("is_pic", "false")] {
        flags.set(name, value).map_err(|error| error.to_string())?;
    }
    let target =
        cranelift_native::builder().map_err(|why| format!("no compiler for this processor: {why}"))?;
    let target = target.finish(settings::Flags::new(flags)).map_err(|error| error.to_string())?;
    Ok(JITModule::new(JITBuilder::with_isa(target, default_libcall_names())))
}

fn define(module: &mut JITModule, runnable: &Runnable) -> Result<Compiled, String> {
    let told = |error: cranelift_module::ModuleError| format!("{error:?}");
    let mut context = module.make_context();
    let pointer = module.target_config().pointer_type();
    let parameters = [pointer, pointer, types::I32, types::I32];
    context.func.signature.params.extend(parameters.map(AbiParam::new));
    context.func.signature.returns.push(AbiParam::new(types::I32));
    let function =
        module.declare_function("kernel", Linkage::Local, &context.func.signature).map_err(told)?;
    let table = Table::of(&runnable.code, runnable.program.buffers.len());
    let mut shared = FunctionBuilderContext::new();
    let builder = FunctionBuilder::new(&mut context.func, &mut shared);
    let frame = module.target_config();
    let (barriers, kept) = control::Emitter::new(builder, runnable, &table, frame).emit();
    module.define_function(function, &mut context).map_err(told)?;
    module.finalize_definitions().map_err(told)?;
    let code = module.get_finalized_function(function);
    // SAFETY: the function was declared with just these parameters and this result, in the C convention.
    let entry = unsafe { std::mem::transmute::<*const u8, Entry>(code) };
    let has_atomics = runnable.code.places.iter().any(|place| place.is_atomic);
    Ok(Compiled { entry, module: None, table, barriers, kept, has_atomics })
}
