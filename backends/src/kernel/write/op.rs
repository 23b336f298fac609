//! Operations in C.

use super::super::ir::{Binary, Kind, Op, Own, Reg, Unary, Value};
use super::super::run::eval;
use super::{Writer, c_type, constant, value};

impl Writer<'_> {
    /// The kind of a value of the function that is being written.
    fn kind(&self, of: Value) -> Kind {
        match of {
            Value::Reg(register) => self.registers[register as usize],
            Value::Const(kind, _) => kind,
        }
    }

    pub(super) fn op(&self, op: &Op, to: Reg) -> String {
        let to = self.registers[to as usize];
        match op {
            Op::Copy(copied) => value(*copied),
            Op::Unary(op, operand) => self.unary(*op, self.kind(*operand), &value(*operand)),
            Op::Binary(op, left, right) => self.binary(*op, self.kind(*left), &value(*left), &value(*right)),
            Op::Fma(x, y, z) => {
                let (x, y, z) = (value(*x), value(*y), value(*z));
                let call = format!("{}({x}, {y}, {z})", self.dialect.math("fma", to));
                rounded(to, call)
            }
            Op::Select(condition, accept, reject) => {
                format!("{} ? {} : {}", value(*condition), value(*accept), value(*reject))
            }
            Op::Convert(converted) => self.convert(self.kind(*converted), to, &value(*converted)),
            Op::Bits(held) => bits(self.kind(*held), to, &value(*held)),
            Op::Load(place) => self.load(place),
            Op::Length { buffer, offset, stride } => {
                format!("n{buffer} > {offset}u ? (u32)((n{buffer} - {offset}u) / {stride}u) : 0u")
            }
            Op::Own(own) => match own {
                Own::LocalId(side) => format!("LOCAL_ID({side})"),
                Own::GroupId(side) => format!("GROUP_ID({side})"),
                Own::GroupCount(side) => format!("GROUP_COUNT({side})"),
            },
        }
    }

    fn unary(&self, op: Unary, kind: Kind, x: &str) -> String {
        let call = |name: &str| rounded(kind, format!("{}({x})", self.dialect.math(name, kind)));
        if kind.is_float() {
            return match op {
                Unary::ToHalfBits => format!("to_half({x})"),
                Unary::Negate => format!("-{x}"),
                Unary::Abs => call("fabs"),
                Unary::Floor => call("floor"),
                Unary::Ceil => call("ceil"),
                Unary::Round => call("rint"),
                Unary::Trunc => call("trunc"),
                Unary::Sqrt => call("sqrt"),
                Unary::Exp => call("exp"),
                Unary::Exp2 => call("exp2"),
                Unary::Log => call("log"),
                Unary::Log2 => call("log2"),
                Unary::Sin => call("sin"),
                Unary::Cos => call("cos"),
                Unary::Tan => call("tan"),
                Unary::Asin => call("asin"),
                Unary::Acos => call("acos"),
                Unary::Atan => call("atan"),
                Unary::Sinh => call("sinh"),
                Unary::Cosh => call("cosh"),
                Unary::Tanh => call("tanh"),
                Unary::Asinh => call("asinh"),
                Unary::Acosh => call("acosh"),
                Unary::Atanh => call("atanh"),
                Unary::IsNan => format!("(u32)({x} != {x})"),
                Unary::IsInf => {
                    let infinity = if kind == Kind::F64 {
                        constant(kind, f64::INFINITY.to_bits())
                    } else {
                        constant(kind, f32::INFINITY.to_bits().into())
                    };
                    format!("(u32)({x} == {infinity} || {x} == -{infinity})")
                }
                _ => x.to_owned(),
            };
        }
        let (width, ty) = (kind.bytes() * 8, c_type(kind));
        let unsigned = if kind.bytes() == 8 { "u64" } else { "u32" };
        match op {
            Unary::FromHalfBits => format!("from_half({x})"),
            Unary::Not if kind == Kind::Bool => format!("(u32)!{x}"),
            Unary::Not => format!("~{x}"),
            Unary::Negate => format!("({ty})(0u - ({unsigned}){x})"),
            Unary::Abs if kind.is_signed() => format!("{x} < 0 ? ({ty})(0u - ({unsigned}){x}) : {x}"),
            Unary::CountOnes => format!("({ty})POPC{width}({x})"),
            Unary::LeadingZeros => format!("({ty})CLZ{width}({x})"),
            Unary::TrailingZeros => format!("({ty})trailing{width}(({unsigned}){x})"),
            Unary::ReverseBits => format!("({ty})reverse{width}(({unsigned}){x})"),
            _ => x.to_owned(),
        }
    }

    fn binary(&self, op: Binary, kind: Kind, x: &str, y: &str) -> String {
        if let Some(sign) = comparison(op) {
            return format!("(u32)({x} {sign} {y})");
        }
        if kind.is_float() {
            let call = |name: &str| format!("{}({x}, {y})", self.dialect.math(name, kind));
            return rounded(
                kind,
                match op {
                    Binary::Sub => format!("{x} - {y}"),
                    Binary::Mul => format!("{x} * {y}"),
                    Binary::Div => format!("{x} / {y}"),
                    Binary::Rem => {
                        let trunc = self.dialect.math("trunc", kind);
                        format!("{x} - {y} * {trunc}({x} / {y})")
                    }
                    Binary::Min => call("fmin"),
                    Binary::Max => call("fmax"),
                    Binary::Pow => call("pow"),
                    Binary::Atan2 => call("atan2"),
                    _ => format!("{x} + {y}"),
                },
            );
        }
        let (width, ty) = (kind.bytes() * 8, c_type(kind));
        let unsigned = if kind.bytes() == 8 { "u64" } else { "u32" };
        let letter = if kind.is_signed() { 'i' } else { 'u' };
        // Through the unsigned type, in which sums and products wrap.
        let wrapping = |sign: &str| format!("({ty})(({unsigned}){x} {sign} ({unsigned}){y})");
        match op {
            Binary::Add => wrapping("+"),
            Binary::Sub => wrapping("-"),
            Binary::Mul => wrapping("*"),
            Binary::Div => format!("{letter}div{width}({x}, {y})"),
            Binary::Rem => format!("{letter}rem{width}({x}, {y})"),
            Binary::And => format!("{x} & {y}"),
            Binary::Or => format!("{x} | {y}"),
            Binary::Xor => format!("{x} ^ {y}"),
            Binary::Shl => format!("({ty})(({unsigned}){x} << ({y} & {}u))", width - 1),
            Binary::Shr => format!("{x} >> ({y} & {}u)", width - 1),
            Binary::Min => format!("{x} < {y} ? {x} : {y}"),
            Binary::Max => format!("{x} > {y} ? {x} : {y}"),
            _ => x.to_owned(),
        }
    }

    fn convert(&self, from: Kind, to: Kind, x: &str) -> String {
        let ty = c_type(to);
        if to == Kind::Bool {
            return format!("(u32)({x} != 0)");
        }
        if to.is_float() {
            return rounded(to, format!("({ty}){x}"));
        }
        if !from.is_float() {
            return format!("({ty}){x}");
        }
        let (low, high) = eval::range(from, to);
        #[allow(clippy::cast_possible_truncation)]
        let number = |value: f64| match from {
            Kind::F64 => constant(from, value.to_bits()),
            _ => constant(from, (value as f32).to_bits().into()),
        };
        let (low, high) = (number(low), number(high));
        format!(
            "{x} != {x} ? ({ty})0 : {x} <= {low} ? ({ty}){low} : {x} >= {high} ? ({ty}){high} : ({ty}){x}"
        )
    }
}

/// Halves are rounded after every operation.
fn rounded(kind: Kind, text: String) -> String {
    if kind == Kind::F16 { format!("round_half({text})") } else { text }
}

fn comparison(op: Binary) -> Option<&'static str> {
    Some(match op {
        Binary::Equal => "==",
        Binary::NotEqual => "!=",
        Binary::Less => "<",
        Binary::LessEqual => "<=",
        Binary::Greater => ">",
        Binary::GreaterEqual => ">=",
        _ => return None,
    })
}

fn bits(from: Kind, to: Kind, x: &str) -> String {
    match (from, to) {
        (from, to) if from == to => x.to_owned(),
        (Kind::F32, to) => format!("({})BITS_F32({x})", c_type(to)),
        (Kind::F64, to) => format!("({})BITS_F64({x})", c_type(to)),
        (_, Kind::F32) => format!("AS_F32({x})"),
        (_, Kind::F64) => format!("AS_F64({x})"),
        (_, to) => format!("({}){x}", c_type(to)),
    }
}
