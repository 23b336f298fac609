//! What each operation gives, on the bits of registers.

use half::f16;

use super::super::ir::{AtomicOp, Binary, Kind, Unary};

fn f32_of(bits: u64) -> f32 {
    #[allow(clippy::cast_possible_truncation)]
    f32::from_bits(bits as u32)
}

fn f32_bits(value: f32) -> u64 {
    value.to_bits().into()
}

/// Integers of a register, signed ones extended.
fn signed(kind: Kind, bits: u64) -> i64 {
    #[allow(clippy::cast_possible_truncation)]
    if kind.bytes() == 8 { bits.cast_signed() } else { i64::from((bits as u32).cast_signed()) }
}

/// The low bits that the kind has.
fn cut(kind: Kind, bits: u64) -> u64 {
    match kind {
        Kind::Bool => bits & 1,
        _ if kind.bytes() == 8 => bits,
        _ => bits & u64::from(u32::MAX),
    }
}

/// An `f32` as the half-precision number nearest to it.
pub(crate) fn to_half(value: f32) -> f32 {
    f16::from_f32(value).to_f32()
}

/// The bits of a float of a kind.
fn float_bits(kind: Kind, value: f64) -> u64 {
    #[allow(clippy::cast_possible_truncation)]
    match kind {
        Kind::F64 => value.to_bits(),
        Kind::F16 => f32_bits(to_half(value as f32)),
        _ => f32_bits(value as f32),
    }
}

pub(crate) fn unary(op: Unary, kind: Kind, a: u64) -> u64 {
    match op {
        Unary::ToHalfBits => return f16::from_f32(f32_of(a)).to_bits().into(),
        #[allow(clippy::cast_possible_truncation)]
        Unary::FromHalfBits => return f32_bits(f16::from_bits(a as u16).to_f32()),
        _ => {}
    }
    match kind {
        Kind::F32 => f32_unary(op, f32_of(a)),
        Kind::F16 => match op {
            Unary::IsNan | Unary::IsInf => f32_unary(op, f32_of(a)),
            _ => f32_bits(to_half(f32_of(f32_unary(op, f32_of(a))))),
        },
        Kind::F64 => f64_unary(op, f64::from_bits(a)),
        _ => integer_unary(op, kind, a),
    }
}

macro_rules! float_unary {
    ($name:ident, $type:ty, $bits:expr) => {
        fn $name(op: Unary, x: $type) -> u64 {
            let value = match op {
                Unary::IsNan => return x.is_nan().into(),
                Unary::IsInf => return x.is_infinite().into(),
                Unary::Negate => -x,
                Unary::Abs => x.abs(),
                Unary::Floor => x.floor(),
                Unary::Ceil => x.ceil(),
                Unary::Round => x.round_ties_even(),
                Unary::Trunc => x.trunc(),
                Unary::Sqrt => x.sqrt(),
                Unary::Exp => x.exp(),
                Unary::Exp2 => x.exp2(),
                Unary::Log => x.ln(),
                Unary::Log2 => x.log2(),
                Unary::Sin => x.sin(),
                Unary::Cos => x.cos(),
                Unary::Tan => x.tan(),
                Unary::Asin => x.asin(),
                Unary::Acos => x.acos(),
                Unary::Atan => x.atan(),
                Unary::Sinh => x.sinh(),
                Unary::Cosh => x.cosh(),
                Unary::Tanh => x.tanh(),
                Unary::Asinh => x.asinh(),
                Unary::Acosh => x.acosh(),
                Unary::Atanh => x.atanh(),
                _ => x,
            };
            $bits(value)
        }
    };
}

float_unary!(f32_unary, f32, f32_bits);
float_unary!(f64_unary, f64, f64::to_bits);

fn integer_unary(op: Unary, kind: Kind, a: u64) -> u64 {
    let width = u64::from(kind.bytes()) * 8;
    let value = match op {
        Unary::Negate => a.wrapping_neg(),
        Unary::Not if kind == Kind::Bool => a ^ 1,
        Unary::Not => !a,
        Unary::Abs if kind.is_signed() => signed(kind, a).wrapping_abs().cast_unsigned(),
        Unary::CountOnes => a.count_ones().into(),
        Unary::LeadingZeros => u64::from(a.leading_zeros()) - (64 - width),
        Unary::TrailingZeros => u64::from(a.trailing_zeros()).min(width),
        Unary::ReverseBits => a.reverse_bits() >> (64 - width),
        _ => a,
    };
    cut(kind, value)
}

pub(crate) fn binary(op: Binary, kind: Kind, a: u64, b: u64) -> u64 {
    match kind {
        Kind::F32 => f32_binary(op, f32_of(a), f32_of(b)),
        Kind::F16 => {
            let bits = f32_binary(op, f32_of(a), f32_of(b));
            if is_comparison(op) { bits } else { f32_bits(to_half(f32_of(bits))) }
        }
        Kind::F64 => f64_binary(op, f64::from_bits(a), f64::from_bits(b)),
        _ => integer_binary(op, kind, a, b),
    }
}

fn is_comparison(op: Binary) -> bool {
    matches!(
        op,
        Binary::Equal
            | Binary::NotEqual
            | Binary::Less
            | Binary::LessEqual
            | Binary::Greater
            | Binary::GreaterEqual
    )
}

macro_rules! float_binary {
    ($name:ident, $type:ty, $bits:expr) => {
        fn $name(op: Binary, x: $type, y: $type) -> u64 {
            // Bit operations are not for floats: the validator has refused them.
            let value = match op {
                Binary::Equal => return (x == y).into(),
                Binary::NotEqual => return (x != y).into(),
                Binary::Less => return (x < y).into(),
                Binary::LessEqual => return (x <= y).into(),
                Binary::Greater => return (x > y).into(),
                Binary::GreaterEqual => return (x >= y).into(),
                Binary::Sub => x - y,
                Binary::Mul => x * y,
                Binary::Div => x / y,
                Binary::Rem => x - y * (x / y).trunc(),
                // The second of two zeros, whatever their signs: the same wherever this is compiled.
                Binary::Min => {
                    if x < y || y.is_nan() {
                        x
                    } else {
                        y
                    }
                }
                Binary::Max => {
                    if x > y || y.is_nan() {
                        x
                    } else {
                        y
                    }
                }
                Binary::Pow => x.powf(y),
                Binary::Atan2 => x.atan2(y),
                _ => x + y,
            };
            $bits(value)
        }
    };
}

float_binary!(f32_binary, f32, f32_bits);
float_binary!(f64_binary, f64, f64::to_bits);

fn integer_binary(op: Binary, kind: Kind, a: u64, b: u64) -> u64 {
    let (x, y) = (signed(kind, a), signed(kind, b));
    let is_signed = kind.is_signed();
    let less = if is_signed { x < y } else { a < b };
    let amount = u32::try_from(b).unwrap_or(0) & (kind.bytes() * 8 - 1);
    let value = match op {
        Binary::Equal => return (a == b).into(),
        Binary::NotEqual => return (a != b).into(),
        Binary::Less => return less.into(),
        Binary::LessEqual => return (less || a == b).into(),
        Binary::Greater => return (!less && a != b).into(),
        Binary::GreaterEqual => return (!less).into(),
        Binary::Add => a.wrapping_add(b),
        Binary::Sub => a.wrapping_sub(b),
        Binary::Mul => a.wrapping_mul(b),
        Binary::Div if b == 0 => a,
        Binary::Rem if b == 0 => 0,
        // The lowest number by −1 is itself once it is cut; in 64 bits it wraps to that.
        Binary::Div if is_signed => x.wrapping_div(y).cast_unsigned(),
        Binary::Rem if is_signed => x.wrapping_rem(y).cast_unsigned(),
        Binary::Div => a / b,
        Binary::Rem => a % b,
        Binary::And => a & b,
        Binary::Or => a | b,
        Binary::Xor => a ^ b,
        Binary::Shl => a << amount,
        Binary::Shr if is_signed => (x >> amount).cast_unsigned(),
        Binary::Shr => a >> amount,
        Binary::Min => {
            if less {
                a
            } else {
                b
            }
        }
        Binary::Max => {
            if less {
                b
            } else {
                a
            }
        }
        Binary::Pow | Binary::Atan2 => a,
    };
    cut(kind, value)
}

pub(crate) fn fma(kind: Kind, a: u64, b: u64, c: u64) -> u64 {
    match kind {
        Kind::F64 => f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c)).to_bits(),
        // Exact in 64 bits but for one rounding, which the second one to a half can at most repeat.
        Kind::F16 => {
            let exact = f64::from(f32_of(a)) * f64::from(f32_of(b)) + f64::from(f32_of(c));
            f32_bits(f16::from_f64(exact).to_f32())
        }
        _ => f32_bits(f32_of(a).mul_add(f32_of(b), f32_of(c))),
    }
}

/// The numbers that conversion from a float holds to: the outermost that both kinds have.
pub(crate) fn range(from: Kind, to: Kind) -> (f64, f64) {
    let low: f64 = match to {
        Kind::I32 => -2_147_483_648.0,
        Kind::I64 => -9_223_372_036_854_775_808.0,
        _ => 0.0,
    };
    let high: f64 = match (from, to) {
        (Kind::F64, Kind::I32) => 2_147_483_647.0,
        (Kind::F64, Kind::U32) => 4_294_967_295.0,
        (Kind::F64, Kind::I64) => 9_223_372_036_854_774_784.0,
        (Kind::F64, _) => 18_446_744_073_709_549_568.0,
        (_, Kind::I32) => 2_147_483_520.0,
        (_, Kind::U32) => 4_294_967_040.0,
        (_, Kind::I64) => 9_223_371_487_098_961_920.0,
        _ => 18_446_742_974_197_923_840.0,
    };
    if from == Kind::F16 { (low.max(-65504.0), high.min(65504.0)) } else { (low, high) }
}

pub(crate) fn convert(from: Kind, to: Kind, a: u64) -> u64 {
    if from.is_float() {
        let value = if from == Kind::F64 { f64::from_bits(a) } else { f32_of(a).into() };
        return match to {
            Kind::Bool => (value != 0.0).into(),
            Kind::F16 | Kind::F32 | Kind::F64 => float_bits(to, value),
            _ => float_to_integer(from, to, value),
        };
    }
    #[allow(clippy::cast_precision_loss)]
    match to {
        Kind::Bool => (a != 0).into(),
        Kind::F64 if from.is_signed() => (signed(from, a) as f64).to_bits(),
        Kind::F64 => (a as f64).to_bits(),
        Kind::F32 | Kind::F16 => {
            let value = if from.is_signed() { signed(from, a) as f32 } else { a as f32 };
            f32_bits(if to == Kind::F16 { to_half(value) } else { value })
        }
        _ if from.is_signed() => cut(to, signed(from, a).cast_unsigned()),
        _ => cut(to, a),
    }
}

fn float_to_integer(from: Kind, to: Kind, value: f64) -> u64 {
    if value.is_nan() {
        return 0;
    }
    let (low, high) = range(from, to);
    let held = value.clamp(low, high);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let bits = if to.is_signed() { (held as i64).cast_unsigned() } else { held as u64 };
    cut(to, bits)
}

/// What an atomic operation leaves.
pub(crate) fn atomic(op: AtomicOp, kind: Kind, old: u64, value: u64) -> u64 {
    let op = match op {
        AtomicOp::Add => Binary::Add,
        AtomicOp::Sub => Binary::Sub,
        AtomicOp::And => Binary::And,
        AtomicOp::Or => Binary::Or,
        AtomicOp::Xor => Binary::Xor,
        AtomicOp::Min => Binary::Min,
        AtomicOp::Max => Binary::Max,
        AtomicOp::Exchange => return value,
    };
    binary(op, kind, old, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn int(value: i32) -> u64 {
        value.cast_unsigned().into()
    }

    #[test]
    fn integers_are_defined_everywhere() {
        let of = |op, a, b| binary(op, Kind::I32, int(a), int(b));
        assert_eq!(of(Binary::Div, 7, 0), int(7));
        assert_eq!(of(Binary::Div, i32::MIN, -1), int(i32::MIN));
        assert_eq!(of(Binary::Rem, i32::MIN, -1), 0);
        assert_eq!(of(Binary::Rem, 7, 0), 0);
        assert_eq!(of(Binary::Add, i32::MAX, 1), int(i32::MIN));
        assert_eq!(of(Binary::Shl, 1, 33), int(2));
        assert_eq!(of(Binary::Shr, -8, 1), int(-4));
        assert_eq!(binary(Binary::Shr, Kind::U32, int(-8), 1), 0x7fff_fffc);
        assert_eq!(
            binary(Binary::Div, Kind::I64, i64::MIN.cast_unsigned(), u64::MAX),
            i64::MIN.cast_unsigned()
        );
        assert_eq!(unary(Unary::LeadingZeros, Kind::U32, 0), 32);
        assert_eq!(unary(Unary::TrailingZeros, Kind::U32, 0), 32);
        assert_eq!(unary(Unary::ReverseBits, Kind::U32, 1), 1 << 31);
    }

    #[test]
    fn floats_become_integers_within_their_range() {
        let of = |value: f32, to| convert(Kind::F32, to, f32_bits(value));
        assert_eq!(of(3e9, Kind::I32), int(2_147_483_520));
        assert_eq!(of(-3e9, Kind::I32), int(i32::MIN));
        assert_eq!(of(-1.5, Kind::U32), 0);
        assert_eq!(of(f32::INFINITY, Kind::U32), 4_294_967_040);
        assert_eq!(of(f32::NAN, Kind::I32), 0);
        assert_eq!(of(-1.9, Kind::I32), int(-1));
        assert_eq!(convert(Kind::F16, Kind::U32, f32_bits(f32::INFINITY)), 65504);
    }

    #[test]
    fn halves_are_rounded_after_every_step() {
        let third = f32_bits(to_half(1.0 / 3.0));
        let sum = binary(Binary::Add, Kind::F16, third, f32_bits(1.0));
        let expected = f16::from_f32(1.0 / 3.0).to_f32() + 1.0;
        assert_eq!(f32_of(sum), f16::from_f32(expected).to_f32());
    }
}
