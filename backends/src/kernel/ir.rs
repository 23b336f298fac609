//! Kernels as the writers, the interpreter and the compiler take them: scalars, byte offsets, and operations
//! that are defined for every input.
//!
//! Lowering ([`super::lower`]) has resolved vectors into their components and pointers into places, so that what
//! is left has one meaning, told here; each consumer renders it.

/// What a register holds. `F16` is held as the `f32` of the same value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Bool,
    I32,
    U32,
    F32,
    F16,
    I64,
    U64,
    F64,
}

impl Kind {
    /// Bytes in memory.
    pub(crate) fn bytes(self) -> u32 {
        match self {
            Self::Bool => 1,
            Self::F16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    pub(crate) fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::F32 | Self::F64)
    }

    pub(crate) fn is_signed(self) -> bool {
        matches!(self, Self::I32 | Self::I64)
    }
}

/// A register of a function.
pub(crate) type Reg = u32;

/// An operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value {
    Reg(Reg),
    /// The bits, as a register holds them.
    Const(Kind, u64),
}

impl Value {
    pub(crate) fn u32(value: u32) -> Self {
        Self::Const(Kind::U32, value.into())
    }

    pub(crate) fn f32(value: f32) -> Self {
        Self::Const(Kind::F32, value.to_bits().into())
    }

    pub(crate) fn bool(value: bool) -> Self {
        Self::Const(Kind::Bool, value.into())
    }
}

/// A place in the kernel's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Site {
    /// From 1; 0 where it is not known.
    pub(crate) line: u32,
    pub(crate) column: u32,
}

/// Kinds of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    /// A buffer, by its index in [`Program::buffers`].
    Buffer(u32),
    /// The scalars.
    Scalars,
    /// Shared by a group.
    Group,
    /// A thread's own, for the whole kernel.
    Private,
    /// A function's own.
    Local,
}

/// How many elements an index may reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    Fixed(u32),
    /// As many as the buffer has behind `offset`, each of `stride` bytes.
    Runtime {
        buffer: u32,
        offset: u32,
        stride: u32,
    },
}

/// One step of an address: an index and what it steps over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    /// Taken as `u32`.
    pub(crate) index: Value,
    pub(crate) stride: u32,
    pub(crate) limit: Limit,
}

/// Where a scalar lies in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) space: Space,
    pub(crate) offset: u32,
    pub(crate) steps: Vec<Step>,
    pub(crate) kind: Kind,
    /// Read or written by atomic operations elsewhere.
    pub(crate) is_atomic: bool,
    pub(crate) site: Site,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unary {
    /// Integers wrap.
    Negate,
    Not,
    Abs,
    Floor,
    Ceil,
    /// To the even one.
    Round,
    Trunc,
    Sqrt,
    Exp,
    Exp2,
    Log,
    Log2,
    Sin,
    Cos,
    Tan,
    Asin,
    Acos,
    Atan,
    Sinh,
    Cosh,
    Tanh,
    Asinh,
    Acosh,
    Atanh,
    IsNan,
    IsInf,
    CountOnes,
    /// The width for 0; so the next.
    LeadingZeros,
    TrailingZeros,
    ReverseBits,
    /// An `f32` to the half-precision number nearest to it, as bits in a `u32`.
    ToHalfBits,
    /// And back.
    FromHalfBits,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Binary {
    /// Integers wrap in all three.
    Add,
    Sub,
    Mul,
    /// Integers: x / 0 is x, and the lowest number by −1 is itself.
    Div,
    /// Integers: x % 0 and the lowest by −1 are 0; floats: x − y · trunc(x / y).
    Rem,
    And,
    Or,
    Xor,
    /// The amount, a `u32`, modulo the width.
    Shl,
    Shr,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    /// Floats: the other one if one is no number.
    Min,
    Max,
    Pow,
    Atan2,
}

/// Numbers that a thread finds out about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Own {
    /// By component.
    LocalId(u8),
    GroupId(u8),
    GroupCount(u8),
}

/// What a register is set to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Op {
    Copy(Value),
    /// Of the operand's kind, except for the tests, and the bits of halves.
    Unary(Unary, Value),
    /// Of the operands' kind, except for comparisons.
    Binary(Binary, Value, Value),
    /// One rounding.
    Fma(Value, Value, Value),
    /// The first if the condition holds.
    Select(Value, Value, Value),
    /// To the register's kind: floats to integers are cut and held within the range, what is no number is 0.
    Convert(Value),
    /// The same bits as another kind of the same size.
    Bits(Value),
    Load(Place),
    /// Elements of a runtime-sized array, as in [`Limit::Runtime`].
    Length {
        buffer: u32,
        offset: u32,
        stride: u32,
    },
    Own(Own),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtomicOp {
    Add,
    Sub,
    And,
    Or,
    Xor,
    Min,
    Max,
    Exchange,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Stmt {
    Set(Reg, Op),
    Store(Place, Value),
    /// `old` is set to what was there.
    Atomic {
        place: Place,
        op: AtomicOp,
        value: Value,
        old: Option<Reg>,
    },
    /// Exchanges if what is there equals `expected`.
    CompareExchange {
        place: Place,
        expected: Value,
        value: Value,
        old: Reg,
        exchanged: Reg,
    },
    If {
        condition: Value,
        accept: Vec<Stmt>,
        reject: Vec<Stmt>,
    },
    /// Values are `u32` bits; one case has none of them and is the default.
    Switch {
        selector: Value,
        cases: Vec<Case>,
    },
    Loop {
        body: Vec<Stmt>,
        continuing: Vec<Stmt>,
        break_if: Option<Value>,
        /// Whether `body` continues from within.
        has_continue: bool,
    },
    Break,
    Continue,
    Return(Vec<Value>),
    Barrier(Site),
    Call {
        function: u32,
        arguments: Vec<Value>,
        results: Vec<Reg>,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Case {
    pub(crate) values: Vec<u32>,
    pub(crate) is_default: bool,
    pub(crate) body: Vec<Stmt>,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Function {
    /// Kinds of the registers; the first are the parameters.
    pub(crate) registers: Vec<Kind>,
    pub(crate) parameters: u32,
    pub(crate) results: Vec<Kind>,
    /// Bytes of local memory, zero at the beginning.
    pub(crate) local_bytes: u32,
    pub(crate) body: Vec<Stmt>,
}

/// A buffer that a kernel is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BufferSlot {
    pub(crate) name: String,
    pub(crate) binding: u32,
    pub(crate) is_written: bool,
}

/// A number that a kernel is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ScalarSlot {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) offset: u32,
}

/// A kernel.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Program {
    pub(crate) entry: String,
    pub(crate) group: [u32; 3],
    /// In the order of their bindings.
    pub(crate) buffers: Vec<BufferSlot>,
    pub(crate) scalars: Vec<ScalarSlot>,
    /// Bytes that the scalars take.
    pub(crate) scalars_bytes: u32,
    /// Bytes of group memory, zero at the beginning.
    pub(crate) group_bytes: u32,
    /// Bytes of private memory, zero at the beginning.
    pub(crate) private_bytes: u32,
    /// The entry point is the last; each calls only those before it.
    pub(crate) functions: Vec<Function>,
}

impl Program {
    /// The entry point.
    pub(crate) fn main(&self) -> Option<&Function> {
        self.functions.last()
    }

    /// Whether a register anywhere is of that kind.
    pub(crate) fn uses(&self, kind: Kind) -> bool {
        self.functions.iter().any(|function| function.registers.contains(&kind))
    }

    /// Whether a thread waits for its group anywhere.
    pub(crate) fn has_barriers(&self) -> bool {
        fn any(body: &[Stmt]) -> bool {
            body.iter().any(|stmt| match stmt {
                Stmt::Barrier(_) => true,
                Stmt::If { accept, reject, .. } => any(accept) || any(reject),
                Stmt::Switch { cases, .. } => cases.iter().any(|case| any(&case.body)),
                Stmt::Loop { body, continuing, .. } => any(body) || any(continuing),
                _ => false,
            })
        }
        self.functions.iter().any(|function| any(&function.body))
    }
}
