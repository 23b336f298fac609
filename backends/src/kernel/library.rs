//! Kernels that were read, once each, and launches made ready for them.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use spoc_driver::backend::{BackendKind, Launch, LaunchArgument};
use spoc_driver::{
    BuiltIn, ElementKind, Error, ErrorKind, Form, Kernel, Language, Parameter, Result, Role, Source,
};

use super::Crew;
use super::Refusal;
use super::built_ins::{self, Range, Variant};
use super::ir::{Kind, Program, ScalarSlot};
#[cfg(feature = "jit")]
use super::jit::Compiled;
use super::parse::Parsed;
use super::run::{Fault, Memory, Runnable};
#[cfg(all(feature = "kernels", any(test, feature = "doubles", target_vendor = "apple")))]
use super::texts::Msl;
use super::write::{self, Checks, Dialect};
use crate::sync::lock;

const DOING: &str = "launching a kernel";

/// A kernel that was read, checked and lowered.
pub(crate) struct Module {
    pub(crate) parsed: Parsed,
    pub(crate) runnable: Runnable,
    /// Known to stay inside its buffers, whatever it is given.
    is_trusted: bool,
    #[cfg(feature = "jit")]
    compiled: OnceLock<Result<Compiled, String>>,
    /// It was said that, and why, it is interpreted where it should be compiled.
    is_told: AtomicBool,
    opencl: OnceLock<String>,
    #[cfg(any(feature = "cuda", feature = "hip"))]
    source: OnceLock<Source>,
    #[cfg(feature = "vulkan")]
    spirv: OnceLock<Result<Vec<u32>, Refusal>>,
    #[cfg(feature = "webgpu")]
    wgsl: OnceLock<Result<String, Refusal>>,
    #[cfg(all(feature = "kernels", any(test, feature = "doubles", target_vendor = "apple")))]
    msl: OnceLock<Result<Msl, Refusal>>,
}

impl Module {
    /// Reads a text.
    ///
    /// # Errors
    /// What is wrong with it or not covered, and where.
    pub(crate) fn new(text: &str, entry: &str) -> Result<Self, Refusal> {
        let parsed = Parsed::new(text)?;
        let runnable = Runnable::new(super::lower::lower(&parsed, entry)?)?;
        Ok(Self {
            parsed,
            runnable,
            is_trusted: false,
            #[cfg(feature = "jit")]
            compiled: OnceLock::new(),
            is_told: AtomicBool::new(false),
            opencl: OnceLock::new(),
            #[cfg(any(feature = "cuda", feature = "hip"))]
            source: OnceLock::new(),
            #[cfg(feature = "vulkan")]
            spirv: OnceLock::new(),
            #[cfg(feature = "webgpu")]
            wgsl: OnceLock::new(),
            #[cfg(all(feature = "kernels", any(test, feature = "doubles", target_vendor = "apple")))]
            msl: OnceLock::new(),
        })
    }

    /// Runs it compiled, across the processor's cores, or interprets it where that cannot be; answers whether it
    /// was compiled.
    ///
    /// # Errors
    /// As [`Runnable::run`].
    pub(crate) fn run(
        &self,
        groups: [u32; 3],
        memory: &mut Memory,
        crew: &Crew,
    ) -> (Result<(), Fault>, bool) {
        #[cfg(feature = "jit")]
        let why = match self.compiled() {
            Ok(compiled) => match compiled.check(memory) {
                Ok(()) => return (compiled.run(&self.runnable, groups, memory, crew), true),
                Err(why) => why,
            },
            Err(why) => why,
        };
        #[cfg(not(feature = "jit"))]
        let _ = crew;
        #[cfg(not(feature = "jit"))]
        let why = "built without the compiler (feature jit)";
        if !self.is_told.swap(true, Ordering::Relaxed) {
            tracing::warn!(kernel = %self.program().entry, why, "native interprets a kernel");
        }
        (self.runnable.run(groups, memory), false)
    }

    /// Compiles it, once.
    #[cfg(feature = "jit")]
    pub(crate) fn compiled(&self) -> Result<&Compiled, &str> {
        // SAFETY: the instructions are in memory of their own, which is this module's, as the code is; nothing here
        // changes them.
        let compile = || unsafe { Compiled::new(&self.runnable) };
        self.compiled.get_or_init(compile).as_ref().map_err(String::as_str)
    }

    /// It as SPIR-V, written once.
    #[cfg(feature = "vulkan")]
    pub(crate) fn spirv(&self) -> Result<&[u32], Refusal> {
        let write = || super::spirv::words(&self.parsed, &self.program().entry, self.checks());
        let words = self.spirv.get_or_init(write);
        words.as_deref().map_err(Clone::clone)
    }

    /// It as WebGPU takes it, written once.
    #[cfg(feature = "webgpu")]
    pub(crate) fn wgsl(&self) -> Result<&str, Refusal> {
        let text = self.wgsl.get_or_init(|| super::texts::wgsl(&self.parsed, &self.program().entry));
        text.as_deref().map_err(Clone::clone)
    }

    /// It as MSL, written once.
    #[cfg(all(feature = "kernels", any(test, feature = "doubles", target_vendor = "apple")))]
    pub(crate) fn msl(&self) -> Result<&Msl, Refusal> {
        let write = || super::texts::msl(&self.parsed, &self.program().entry, self.checks());
        self.msl.get_or_init(write).as_ref().map_err(Clone::clone)
    }

    /// It as OpenCL C, written once.
    pub(crate) fn opencl(&self) -> &str {
        self.opencl.get_or_init(|| write::write(self.program(), Dialect::OpenCl, self.checks()))
    }

    /// It in a dialect of C and that language, written once: a library's backend has one.
    #[cfg(any(feature = "cuda", feature = "hip"))]
    pub(crate) fn source(&self, dialect: Dialect, language: Language) -> &Source {
        self.source.get_or_init(|| {
            let program = self.program();
            let text = write::write(program, dialect, self.checks());
            Source { language, text: text.into_bytes().into(), entry: write::entry_name(program) }
        })
    }

    /// Bounds are checked unless the kernel is known to keep to them.
    pub(crate) fn checks(&self) -> Checks {
        if self.is_trusted { Checks::Off } else { Checks::On }
    }

    pub(crate) fn program(&self) -> &Program {
        &self.runnable.program
    }
}

/// A text as a key that every launch looks up: the same text is told by its place, and only another one at another
/// place is read.
#[derive(Clone)]
pub(crate) struct Text(Arc<[u8]>);

impl Text {
    pub(crate) fn of(text: &Arc<[u8]>) -> Self {
        Self(Arc::clone(text))
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Eq for Text {}

impl Hash for Text {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.len().hash(state);
    }
}

/// What an API's code is made from, as a key that keeps it.
#[derive(Clone)]
pub(crate) enum Origin {
    /// There is one module of a text.
    Wgsl(Arc<Module>),
    Own(Text),
}

impl PartialEq for Origin {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Wgsl(one), Self::Wgsl(other)) => Arc::ptr_eq(one, other),
            (Self::Own(one), Self::Own(other)) => one == other,
            _ => false,
        }
    }
}

impl Eq for Origin {}

impl Hash for Origin {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Self::Wgsl(module) => Arc::as_ptr(module).hash(state),
            Self::Own(text) => text.hash(state),
        }
    }
}

#[derive(PartialEq, Eq, Hash)]
enum Key {
    BuiltIn(Variant),
    Text(Text, String),
}

/// The kernels that a backend was given.
#[derive(Default)]
pub(crate) struct Library {
    modules: Mutex<HashMap<Key, Result<Arc<Module>, Refusal>>>,
}

/// What to run.
#[derive(Clone)]
pub(crate) enum Body {
    Wgsl(Arc<Module>),
    /// Somebody's own source for the API.
    Own(Source),
}

impl Body {
    pub(crate) fn origin(&self) -> Origin {
        match self {
            Self::Wgsl(module) => Origin::Wgsl(Arc::clone(module)),
            Self::Own(source) => Origin::Own(Text::of(&source.text)),
        }
    }
}

/// A launch made ready.
pub(crate) struct Prepared {
    pub(crate) body: Body,
    /// For each buffer that the kernel has: its binding, and the range to bind there.
    pub(crate) ranges: Vec<(u32, Range)>,
    /// The scalars, laid out.
    pub(crate) scalars: Vec<u8>,
    /// Kinds and places of the scalars in those bytes.
    pub(crate) slots: Vec<(Kind, u32)>,
    pub(crate) groups: [u32; 3],
    pub(crate) group: [u32; 3],
}

impl Library {
    fn module(
        &self,
        key: Key,
        make: impl FnOnce() -> Result<Module, Refusal>,
    ) -> Result<Arc<Module>, Refusal> {
        if let Some(known) = lock(&self.modules).get(&key) {
            return known.clone();
        }
        // Read without the lock: it takes milliseconds. Two threads may both do so.
        let made = make().map(Arc::new);
        lock(&self.modules).entry(key).or_insert(made).clone()
    }

    pub(crate) fn built_in(&self, variant: Variant) -> Result<Arc<Module>, Refusal> {
        self.module(Key::BuiltIn(variant), || {
            let module = Module::new(&variant.text(), &variant.entry())?;
            Ok(Module { is_trusted: true, ..module })
        })
    }

    fn text(&self, source: &Source) -> Result<Arc<Module>, Refusal> {
        let key = Key::Text(Text::of(&source.text), source.entry.clone());
        self.module(key, || match std::str::from_utf8(&source.text) {
            Ok(text) => Module::new(text, &source.entry),
            Err(error) => {
                Err(Refusal { what: error.to_string(), site: super::Site::default(), is_malformed: true })
            }
        })
    }

    /// Finds the form that an API runs: its own language where there is one, else WGSL.
    ///
    /// # Errors
    /// `InvalidArgument` if the kernel's text is wrong or does not take what it declares; `Unsupported` if it
    /// has no form that runs here, or uses what is not covered.
    pub(crate) fn check(&self, kernel: &Kernel, backend: BackendKind, own: Option<Language>) -> Result<()> {
        match choose(kernel, own) {
            Some(Form::Source(source)) if source.language == Language::Wgsl => {
                let module = self.text(source).map_err(|refusal| refused(&refusal, kernel, backend))?;
                check_interface(module.program(), kernel)
            }
            Some(_) => Ok(()),
            None => Err(Error::unsupported(backend, "kernel_form")
                .with("kernel", kernel.name().to_owned())
                .with("forms", format_args!("{:?}", kernel.forms()))),
        }
    }

    /// Makes a launch ready, ranges of built-ins beginning at multiples of `align_bytes`. Nothing if there is
    /// nothing to do.
    ///
    /// # Errors
    /// As [`Library::check`]; `WrongKind`; `InvalidArgument` if the grid's groups are not the kernel's.
    pub(crate) fn prepare<B>(
        &self,
        launch: &Launch<'_, B>,
        backend: BackendKind,
        own: Option<Language>,
        align_bytes: u64,
    ) -> Result<Option<Prepared>> {
        let kernel = launch.kernel;
        match choose(kernel, own) {
            Some(Form::BuiltIn(which)) => self.prepare_built_in(*which, launch, backend, align_bytes),
            Some(Form::Source(source)) if source.language == Language::Wgsl => {
                let module = self.text(source).map_err(|refusal| refused(&refusal, kernel, backend))?;
                prepare_text(module, launch).map(Some)
            }
            Some(Form::Source(source)) => Ok(Some(prepare_own(source, launch))),
            _ => Err(Error::unsupported(backend, "kernel_form").with("kernel", kernel.name().to_owned())),
        }
    }

    fn prepare_built_in<B>(
        &self,
        which: BuiltIn,
        launch: &Launch<'_, B>,
        backend: BackendKind,
        align_bytes: u64,
    ) -> Result<Option<Prepared>> {
        let plan = built_ins::plan(which, launch, align_bytes)?;
        if plan.groups == 0 {
            return Ok(None);
        }
        let module =
            self.built_in(plan.variant).map_err(|refusal| refused(&refusal, launch.kernel, backend))?;
        let program = module.program();
        let slots = program.scalars.iter().map(|slot| (slot.kind, slot.offset)).collect();
        let has = |binding: u32| program.buffers.iter().any(|slot| slot.binding == binding);
        let ranges = plan.bindings.into_iter().filter(|(binding, _)| has(*binding)).collect();
        let scalars = plan.numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        let group = program.group;
        let groups = [plan.groups, 1, 1];
        Ok(Some(Prepared { body: Body::Wgsl(module), ranges, scalars, slots, groups, group }))
    }
}

/// The form that runs: the API's own language first, then what every backend knows.
fn choose(kernel: &Kernel, own: Option<Language>) -> Option<&Form> {
    let is_own = |form: &&Form| matches!(form, Form::Source(source) if Some(source.language) == own);
    let is_common = |form: &&Form| match form {
        Form::BuiltIn(_) => true,
        Form::Source(source) => source.language == Language::Wgsl,
        _ => false,
    };
    let mut forms = kernel.forms().iter();
    forms.clone().find(is_own).or_else(|| forms.find(is_common))
}

fn refused(refusal: &Refusal, kernel: &Kernel, backend: BackendKind) -> Error {
    let error = if refusal.is_malformed {
        Error::new(ErrorKind::InvalidArgument, "reading a kernel")
    } else {
        Error::unsupported(backend, "kernel_construct")
    };
    error.with("kernel", kernel.name().to_owned()).because(refusal.clone())
}

fn mismatch(kernel: &Kernel, what: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, "reading a kernel")
        .with("kernel", kernel.name().to_owned())
        .with("because", what)
}

/// Whether a text takes what its kernel declares: vectors at the bindings of their positions, scalars in order.
fn check_interface(program: &Program, kernel: &Kernel) -> Result<()> {
    for slot in &program.buffers {
        let parameter = kernel.parameters().get(slot.binding as usize).map(|parameter| parameter.role);
        let name = &slot.name;
        match parameter {
            Some(Role::Write) => {}
            Some(Role::Read) if !slot.is_written => {}
            Some(Role::Read) => {
                let what = format!("{name:?} is read_write, but parameter {} is only read", slot.binding);
                return Err(mismatch(kernel, what));
            }
            Some(Role::Scalar) | None => {
                let what =
                    format!("{name:?} is at binding {}, where the kernel takes no vector", slot.binding);
                return Err(mismatch(kernel, what));
            }
        }
    }
    let is_scalar = |parameter: &&Parameter| parameter.role == Role::Scalar;
    let declared = kernel.parameters().iter().filter(is_scalar).count();
    if !program.scalars.is_empty() && program.scalars.len() != declared {
        let found = program.scalars.len();
        return Err(mismatch(
            kernel,
            format!("var<immediate> has {found} numbers, the kernel takes {declared}"),
        ));
    }
    Ok(())
}

fn prepare_text<B>(module: Arc<Module>, launch: &Launch<'_, B>) -> Result<Prepared> {
    let program = module.program();
    let grid = launch.grid;
    if grid.group != program.group {
        return Err(Error::new(ErrorKind::InvalidArgument, DOING)
            .with("kernel", launch.kernel.name().to_owned())
            .with("group", format_args!("{:?}", grid.group))
            .with("workgroup_size", format_args!("{:?}", program.group)));
    }
    let ranges = program.buffers.iter().filter_map(|slot| {
        let argument = slot.binding as usize;
        range(launch, argument).map(|range| (slot.binding, range))
    });
    let ranges = ranges.collect();
    let scalars = lay_out(program, launch)?;
    let slots = program.scalars.iter().map(|slot| (slot.kind, slot.offset)).collect();
    let group = program.group;
    Ok(Prepared { body: Body::Wgsl(module), ranges, scalars, slots, groups: grid.groups, group })
}

fn range<B>(launch: &Launch<'_, B>, argument: usize) -> Option<Range> {
    match launch.arguments.get(argument) {
        Some(LaunchArgument::Memory { offset_bytes, len_bytes, .. }) => {
            Some(Range { argument, offset_bytes: *offset_bytes, len_bytes: *len_bytes })
        }
        _ => None,
    }
}

/// The launch's scalars where the program has them.
fn lay_out<B>(program: &Program, launch: &Launch<'_, B>) -> Result<Vec<u8>> {
    let mut bytes = vec![0; program.scalars_bytes as usize];
    for (slot, (position, scalar)) in program.scalars.iter().zip(scalars(launch)) {
        let held = widened(slot, scalar).ok_or_else(|| {
            Error::new(ErrorKind::WrongKind, DOING)
                .with("kernel", launch.kernel.name().to_owned())
                .with("argument", position)
                .with("kind", scalar.kind())
                .with("expected", format_args!("{:?}", slot.kind))
        })?;
        let end = slot.offset as usize + held.len();
        if let Some(place) = bytes.get_mut(slot.offset as usize..end) {
            place.copy_from_slice(&held);
        }
    }
    Ok(bytes)
}

fn scalars<'l, B>(launch: &'l Launch<'_, B>) -> impl Iterator<Item = (usize, spoc_driver::Scalar)> + 'l {
    launch.arguments.iter().enumerate().filter_map(|(position, argument)| match argument {
        LaunchArgument::Scalar(scalar) => Some((position, *scalar)),
        LaunchArgument::Memory { .. } => None,
    })
}

/// A number as a kernel takes it: what WGSL has no kind for comes in 32 bits.
fn widened(slot: &ScalarSlot, scalar: spoc_driver::Scalar) -> Option<Vec<u8>> {
    let small = |value: Option<u32>| value.map(|value| value.to_ne_bytes().to_vec());
    match (slot.kind, scalar.kind()) {
        (Kind::U32, ElementKind::U8) => small(scalar.get::<u8>().map(u32::from)),
        (Kind::U32, ElementKind::U16) => small(scalar.get::<u16>().map(u32::from)),
        (Kind::U32, ElementKind::Bf16) => {
            small(scalar.get::<half::bf16>().map(|value| value.to_bits().into()))
        }
        (Kind::U32, ElementKind::F16) => small(scalar.get::<half::f16>().map(|value| value.to_bits().into())),
        (Kind::I32, ElementKind::I8) => {
            small(scalar.get::<i8>().map(|value| i32::from(value).cast_unsigned()))
        }
        (Kind::I32, ElementKind::I16) => {
            small(scalar.get::<i16>().map(|value| i32::from(value).cast_unsigned()))
        }
        (Kind::U32, ElementKind::U32)
        | (Kind::I32, ElementKind::I32)
        | (Kind::F32, ElementKind::F32)
        | (Kind::F16, ElementKind::F16)
        | (Kind::U64, ElementKind::U64)
        | (Kind::I64, ElementKind::I64)
        | (Kind::F64, ElementKind::F64) => Some(scalar.bytes().to_vec()),
        _ => None,
    }
}

/// Own sources take every vector at the binding of its position, and the scalars in order, each at a multiple of
/// its size.
fn prepare_own<B>(source: &Source, launch: &Launch<'_, B>) -> Prepared {
    let (mut bytes, mut slots) = (Vec::new(), Vec::new());
    for (_, scalar) in scalars(launch) {
        let len = scalar.bytes().len();
        bytes.resize(bytes.len().next_multiple_of(len.max(4)), 0);
        let kind = match len {
            8 => Kind::U64,
            _ => Kind::U32,
        };
        slots.push((kind, u32::try_from(bytes.len()).unwrap_or(u32::MAX)));
        bytes.extend_from_slice(scalar.bytes());
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    let ranges = (0..launch.arguments.len()).filter_map(|argument| {
        let binding = u32::try_from(argument).unwrap_or(u32::MAX);
        range(launch, argument).map(|range| (binding, range))
    });
    Prepared {
        body: Body::Own(source.clone()),
        ranges: ranges.collect(),
        scalars: bytes,
        slots,
        groups: launch.grid.groups,
        group: launch.grid.group,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_one_key_wherever_it_lies() {
        let text = |bytes: &[u8]| Text::of(&Arc::from(bytes));
        let key = |text: &Text, entry: &str| Key::Text(text.clone(), entry.to_owned());
        let first = text(b"one");
        let known = HashMap::from([(key(&first, "f"), ())]);
        assert!(known.contains_key(&key(&first, "f")) && known.contains_key(&key(&text(b"one"), "f")));
        assert!(!known.contains_key(&key(&first, "g")) && !known.contains_key(&key(&text(b"two"), "f")));
    }

    #[test]
    fn what_code_is_made_from_is_a_module_or_a_text() {
        let own = |bytes: &[u8]| Origin::Own(Text::of(&Arc::from(bytes)));
        let wgsl = "@compute @workgroup_size(1) fn f() {}";
        let module = || Arc::new(Module::new(wgsl, "f").unwrap());
        let (one, other) = (module(), module());
        assert!(Origin::Wgsl(Arc::clone(&one)) == Origin::Wgsl(Arc::clone(&one)));
        assert!(Origin::Wgsl(Arc::clone(&one)) != Origin::Wgsl(other));
        assert!(own(b"one") == own(b"one") && own(b"one") != own(b"two"));
        assert!(Origin::Wgsl(one) != own(wgsl.as_bytes()));
    }
}
