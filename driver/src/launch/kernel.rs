//! Kernels as data: a name, what they take, and the forms they come in.

use std::fmt;
use std::sync::Arc;

use super::call::Call;
use crate::error::{Error, ErrorKind, Result};
use crate::vector::ElementKind;

/// Something that can be launched. Clones share everything.
#[derive(Clone)]
pub struct Kernel(Arc<Inner>);

struct Inner {
    name: String,
    parameters: Vec<Parameter>,
    forms: Vec<Form>,
}

/// A kernel in a form that some backend can run.
#[derive(Clone)]
#[non_exhaustive]
pub enum Form {
    /// One that every backend which launches at all knows.
    BuiltIn(BuiltIn),
    /// Compiled Rust, for the CPU.
    Native(Arc<NativeFn>),
    /// Source or code for an API.
    Source(Source),
}

/// The work of a native kernel. It runs on a stream's thread, once a launch, and must not call the driver: the
/// memory it works on is not released before it returns.
pub type NativeFn = dyn Fn(&mut Call<'_>) -> Result<()> + Send + Sync;

/// The kernels that come with the backends. All give the same bytes everywhere: integers wrap, and what is no
/// number is the one quiet NaN with all other bits zero. They choose their own grid; a launch's is not looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BuiltIn {
    /// `fill(out, value)`: every element becomes the value.
    Fill,
    /// `copy(in, out)`: as many elements as both have.
    Copy,
    /// `add(a, b, out)`: sums, as many elements as all have.
    Add,
    /// `scale(in, factor, out)`: products, as many elements as both have.
    Scale,
    /// `gather(in, indices: u32, chunk: u32, out)`: chunk `i` of `out` becomes chunk `indices[i]` of `in`, a
    /// chunk having `chunk` elements. What lies outside `in` is zero.
    Gather,
    /// `cast(in, out)` between f32, f16 and bf16, as many elements as both have; to the nearest, ties to even.
    Cast,
    /// `from_e4m3(in: u8, out)`: 8-bit floats of the Open Compute Project's format to f32, f16 or bf16.
    FromE4m3,
    /// `to_e4m3(in, out: u8)`: back, to the nearest, ties to even; what is larger than the largest becomes it.
    ToE4m3,
    /// As `from_e4m3`, of the format with five bits of exponent.
    FromE5m2,
    /// As `to_e4m3`, of the format with five bits of exponent.
    ToE5m2,
    /// `digest(in, first: u32, out: u32)`: adds to each of up to four words of `out` a sum over the little-endian
    /// words of `in`, the last filled up with zeroes, numbered from `first` on. So the digests of parts at
    /// multiples of four bytes add up to that of the whole. It tells accidents; it withstands no adversary.
    Digest,
}

/// Text or code of a kernel for one API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Of which language.
    pub language: Language,
    /// The text, or the code.
    pub text: Arc<[u8]>,
    /// The name of the entry point.
    pub entry: String,
}

/// Languages of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Language {
    /// WGSL.
    Wgsl,
    /// SPIR-V.
    SpirV,
    /// CUDA C++.
    Cuda,
    /// NVIDIA's portable assembly.
    Ptx,
    /// NVIDIA's machine code: an object file for one architecture.
    Cubin,
    /// HIP C++.
    Hip,
    /// OpenCL C.
    OpenClC,
    /// The Metal shading language.
    Msl,
}

/// What one argument of a kernel has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameter {
    /// What the kernel does with it.
    pub role: Role,
    /// Of which kind it has to be.
    pub kind: KindRule,
}

/// What a kernel does with an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Reads a vector.
    Read,
    /// Reads and writes a vector.
    Write,
    /// Takes a number by value.
    Scalar,
}

/// Of which kind an argument has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KindRule {
    /// Any kind, records included.
    Any,
    /// Any kind but records.
    AnyNumber,
    /// This one.
    Exactly(ElementKind),
    /// That of an earlier argument, by position.
    SameAs(usize),
}

impl Parameter {
    /// A vector that is read.
    #[must_use]
    pub const fn read(kind: KindRule) -> Self {
        Self { role: Role::Read, kind }
    }

    /// A vector that may be written.
    #[must_use]
    pub const fn write(kind: KindRule) -> Self {
        Self { role: Role::Write, kind }
    }

    /// A number.
    #[must_use]
    pub const fn scalar(kind: KindRule) -> Self {
        Self { role: Role::Scalar, kind }
    }
}

impl BuiltIn {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Fill,
        Self::Copy,
        Self::Add,
        Self::Scale,
        Self::Gather,
        Self::Cast,
        Self::FromE4m3,
        Self::ToE4m3,
        Self::FromE5m2,
        Self::ToE5m2,
        Self::Digest,
    ];

    /// Its name: `fill`, `copy`, …
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fill => "fill",
            Self::Copy => "copy",
            Self::Add => "add",
            Self::Scale => "scale",
            Self::Gather => "gather",
            Self::Cast => "cast",
            Self::FromE4m3 => "from_e4m3",
            Self::ToE4m3 => "to_e4m3",
            Self::FromE5m2 => "from_e5m2",
            Self::ToE5m2 => "to_e5m2",
            Self::Digest => "digest",
        }
    }

    /// What it takes.
    #[must_use]
    pub fn parameters(self) -> &'static [Parameter] {
        const ANY: KindRule = KindRule::AnyNumber;
        const SAME: KindRule = KindRule::SameAs(0);
        const U32: KindRule = KindRule::Exactly(ElementKind::U32);
        const FILL: &[Parameter] = &[Parameter::write(ANY), Parameter::scalar(SAME)];
        const COPY: &[Parameter] = &[Parameter::read(ANY), Parameter::write(SAME)];
        const ADD: &[Parameter] = &[Parameter::read(ANY), Parameter::read(SAME), Parameter::write(SAME)];
        const SCALE: &[Parameter] = &[Parameter::read(ANY), Parameter::scalar(SAME), Parameter::write(SAME)];
        const GATHER: &[Parameter] =
            &[Parameter::read(ANY), Parameter::read(U32), Parameter::scalar(U32), Parameter::write(SAME)];
        const U8: KindRule = KindRule::Exactly(ElementKind::U8);
        const CAST: &[Parameter] = &[Parameter::read(ANY), Parameter::write(ANY)];
        const FROM: &[Parameter] = &[Parameter::read(U8), Parameter::write(ANY)];
        const TO: &[Parameter] = &[Parameter::read(ANY), Parameter::write(U8)];
        const DIGEST: &[Parameter] =
            &[Parameter::read(KindRule::Any), Parameter::scalar(U32), Parameter::write(U32)];
        match self {
            Self::Fill => FILL,
            Self::Copy => COPY,
            Self::Add => ADD,
            Self::Scale => SCALE,
            Self::Gather => GATHER,
            Self::Cast => CAST,
            Self::FromE4m3 | Self::FromE5m2 => FROM,
            Self::ToE4m3 | Self::ToE5m2 => TO,
            Self::Digest => DIGEST,
        }
    }
}

impl Kernel {
    /// One of the kernels that come with the backends.
    #[must_use]
    pub fn built_in(which: BuiltIn) -> Self {
        Self(Arc::new(Inner {
            name: which.as_str().to_owned(),
            parameters: which.parameters().to_vec(),
            forms: vec![Form::BuiltIn(which)],
        }))
    }

    /// A kernel that runs on the CPU: safe Rust over slices of its arguments, called once a launch.
    ///
    /// # Errors
    /// `InvalidArgument` if a parameter's kind refers to itself or to a later one.
    pub fn native(
        name: &str,
        parameters: &[Parameter],
        work: impl Fn(&mut Call<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Result<Self> {
        Self::with_forms(name, parameters, vec![Form::Native(Arc::new(work))])
    }

    /// A kernel in somebody's own source or code.
    ///
    /// # Safety
    /// Whatever grid and arguments of those roles and kinds it is launched with, it accesses nothing but its
    /// arguments, inside their lengths, and writes only those that it declares as written.
    ///
    /// # Errors
    /// As [`Kernel::native`].
    pub unsafe fn from_sources(name: &str, parameters: &[Parameter], sources: Vec<Source>) -> Result<Self> {
        Self::with_forms(name, parameters, sources.into_iter().map(Form::Source).collect())
    }

    fn with_forms(name: &str, parameters: &[Parameter], forms: Vec<Form>) -> Result<Self> {
        for (position, parameter) in parameters.iter().enumerate() {
            if let KindRule::SameAs(other) = parameter.kind
                && other >= position
            {
                return Err(Error::new(ErrorKind::InvalidArgument, "declaring a kernel")
                    .with("kernel", name.to_owned())
                    .with("parameter", position));
            }
        }
        Ok(Self(Arc::new(Inner { name: name.to_owned(), parameters: parameters.to_vec(), forms })))
    }

    /// Its name, for messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// What it takes.
    #[must_use]
    pub fn parameters(&self) -> &[Parameter] {
        &self.0.parameters
    }

    /// The forms it comes in.
    #[must_use]
    pub fn forms(&self) -> &[Form] {
        &self.0.forms
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel")
            .field("name", &self.name())
            .field("forms", &self.forms())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn(which) => write!(f, "BuiltIn({which:?})"),
            Self::Native(_) => f.write_str("Native"),
            Self::Source(source) => write!(f, "Source({:?}, {})", source.language, source.entry),
        }
    }
}
