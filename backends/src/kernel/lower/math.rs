//! Functions of the language, by the definitions of its specification (WGSL, section 17), in simpler operations.

use naga::MathFunction as Math;

use super::super::ir::{Binary, Kind, Op, Unary, Value};
use super::{Body, Result};

impl Body<'_, '_> {
    /// A function of values, each with its components.
    pub(super) fn math(&mut self, fun: Math, arguments: &[Vec<Value>]) -> Result<Vec<Value>> {
        let first = arguments.first().map(Vec::as_slice).unwrap_or_default();
        let second = arguments.get(1).map(Vec::as_slice).unwrap_or_default();
        if let Some(op) = unary(fun) {
            return Ok(first.iter().map(|value| self.op1(op, *value)).collect());
        }
        if let Some(op) = binary(fun) {
            return Ok(self.pairs(op, first, second));
        }
        Ok(match fun {
            Math::Dot => vec![self.dot(first, second)],
            Math::Cross => self.cross(first, second),
            Math::Length => vec![self.norm(first)],
            Math::Distance => {
                let difference = self.pairs(Binary::Sub, first, second);
                vec![self.norm(&difference)]
            }
            Math::Normalize => {
                let norm = self.norm(first);
                self.pairs(Binary::Div, first, &[norm])
            }
            Math::FaceForward => {
                let third = arguments.get(2).map(Vec::as_slice).unwrap_or_default();
                let dot = self.dot(second, third);
                let zero = self.number(self.kind(dot), 0.0);
                let is_front = self.op2(Binary::Less, dot, zero);
                first
                    .iter()
                    .map(|value| {
                        let back = self.op1(Unary::Negate, *value);
                        self.choose_if(is_front, *value, back)
                    })
                    .collect()
            }
            Math::Reflect => {
                let dot = self.dot(second, first);
                let twice = self.op2(Binary::Add, dot, dot);
                let along = self.pairs(Binary::Mul, second, &[twice]);
                self.pairs(Binary::Sub, first, &along)
            }
            Math::Pack4x8snorm
            | Math::Pack4x8unorm
            | Math::Pack2x16snorm
            | Math::Pack2x16unorm
            | Math::Pack2x16float
            | Math::Pack4xI8
            | Math::Pack4xU8
            | Math::Pack4xI8Clamp
            | Math::Pack4xU8Clamp => vec![self.pack(fun, first)],
            Math::Unpack4x8snorm
            | Math::Unpack4x8unorm
            | Math::Unpack2x16snorm
            | Math::Unpack2x16unorm
            | Math::Unpack2x16float
            | Math::Unpack4xI8
            | Math::Unpack4xU8 => self.unpack(fun, first[0]),
            Math::Dot4I8Packed | Math::Dot4U8Packed => {
                let fun = if fun == Math::Dot4I8Packed { Math::Unpack4xI8 } else { Math::Unpack4xU8 };
                let (left, right) = (self.unpack(fun, first[0]), self.unpack(fun, second[0]));
                vec![self.dot(&left, &right)]
            }
            _ => {
                let count = arguments.iter().map(Vec::len).max().unwrap_or(0);
                let mut values = Vec::with_capacity(count);
                for position in 0..count {
                    let pick = |values: &Vec<Value>| values[if values.len() == 1 { 0 } else { position }];
                    let each: Vec<_> = arguments.iter().map(pick).collect();
                    values.push(self.scalar_math(fun, &each)?);
                }
                values
            }
        })
    }

    /// A function of numbers.
    fn scalar_math(&mut self, fun: Math, values: &[Value]) -> Result<Value> {
        let x = values[0];
        let (y, z) = (values.get(1).copied().unwrap_or(x), values.get(2).copied().unwrap_or(x));
        let kind = self.kind(x);
        let number = |body: &Self, value: f64| body.number(kind, value);
        Ok(match fun {
            Math::Clamp => self.clamp(x, y, z),
            Math::Saturate => self.clamp(x, number(self, 0.0), number(self, 1.0)),
            Math::Radians => self.op2(Binary::Mul, x, number(self, std::f64::consts::PI / 180.0)),
            Math::Degrees => self.op2(Binary::Mul, x, number(self, 180.0 / std::f64::consts::PI)),
            Math::Fract => {
                let whole = self.op1(Unary::Floor, x);
                self.op2(Binary::Sub, x, whole)
            }
            Math::InverseSqrt => {
                let root = self.op1(Unary::Sqrt, x);
                self.op2(Binary::Div, number(self, 1.0), root)
            }
            Math::Sign => {
                let (zero, one, minus) = (number(self, 0.0), number(self, 1.0), number(self, -1.0));
                let (above, below) = (self.op2(Binary::Greater, x, zero), self.op2(Binary::Less, x, zero));
                let otherwise = self.choose_if(below, minus, zero);
                self.choose_if(above, one, otherwise)
            }
            Math::Fma => self.set(kind, Op::Fma(x, y, z)),
            Math::Mix => {
                let rest = self.op2(Binary::Sub, number(self, 1.0), z);
                let (a, b) = (self.op2(Binary::Mul, x, rest), self.op2(Binary::Mul, y, z));
                self.op2(Binary::Add, a, b)
            }
            Math::Step => {
                let is_past = self.op2(Binary::LessEqual, x, y);
                self.choose_if(is_past, number(self, 1.0), number(self, 0.0))
            }
            Math::SmoothStep => {
                let (way, whole) = (self.op2(Binary::Sub, z, x), self.op2(Binary::Sub, y, x));
                let share = self.op2(Binary::Div, way, whole);
                let t = self.clamp(share, number(self, 0.0), number(self, 1.0));
                let (square, twice) =
                    (self.op2(Binary::Mul, t, t), self.op2(Binary::Mul, t, number(self, 2.0)));
                let rest = self.op2(Binary::Sub, number(self, 3.0), twice);
                self.op2(Binary::Mul, square, rest)
            }
            Math::QuantizeToF16 => {
                let bits = self.op1(Unary::ToHalfBits, x);
                self.op1(Unary::FromHalfBits, bits)
            }
            Math::FirstTrailingBit => {
                let count = self.op1(Unary::TrailingZeros, x);
                self.unless_zero(x, count)
            }
            Math::FirstLeadingBit => {
                let magnitude = if kind.is_signed() {
                    let (flipped, zero) = (self.op1(Unary::Not, x), self.integer(kind, 0));
                    let is_negative = self.op2(Binary::Less, x, zero);
                    self.choose_if(is_negative, flipped, x)
                } else {
                    x
                };
                let zeros = self.op1(Unary::LeadingZeros, magnitude);
                let last = self.integer(kind, u64::from(kind.bytes()) * 8 - 1);
                let place = self.op2(Binary::Sub, last, zeros);
                self.unless_zero(magnitude, place)
            }
            Math::ExtractBits => self.extract(x, y, z),
            Math::InsertBits => {
                let count = values.get(3).copied().unwrap_or(z);
                self.insert(x, y, z, count)
            }
            other => return self.refuse(format!("the function {other:?}")),
        })
    }

    /// A number of a kind.
    fn number(&self, kind: Kind, value: f64) -> Value {
        #[allow(clippy::cast_possible_truncation)]
        match kind {
            Kind::F64 => Value::Const(kind, value.to_bits()),
            Kind::F16 => Value::Const(kind, half::f16::from_f64(value).to_f32().to_bits().into()),
            Kind::F32 => Value::f32(value as f32),
            _ => self.integer(kind, (value as i64).cast_unsigned()),
        }
    }

    fn integer(&self, kind: Kind, bits: u64) -> Value {
        Value::Const(kind, if kind.bytes() == 4 { bits & u64::from(u32::MAX) } else { bits })
    }

    fn clamp(&mut self, value: Value, low: Value, high: Value) -> Value {
        let raised = self.op2(Binary::Max, value, low);
        self.op2(Binary::Min, raised, high)
    }

    fn dot(&mut self, left: &[Value], right: &[Value]) -> Value {
        let products = self.pairs(Binary::Mul, left, right);
        let sum = products.into_iter().reduce(|sum, product| self.op2(Binary::Add, sum, product));
        sum.unwrap_or(Value::u32(0))
    }

    fn norm(&mut self, vector: &[Value]) -> Value {
        if let [number] = vector {
            return self.op1(Unary::Abs, *number);
        }
        let square = self.dot(vector, vector);
        self.op1(Unary::Sqrt, square)
    }

    fn cross(&mut self, a: &[Value], b: &[Value]) -> Vec<Value> {
        (0..3)
            .map(|side| {
                let (next, last) = ((side + 1) % 3, (side + 2) % 3);
                let (one, other) =
                    (self.op2(Binary::Mul, a[next], b[last]), self.op2(Binary::Mul, a[last], b[next]));
                self.op2(Binary::Sub, one, other)
            })
            .collect()
    }

    /// All bits set where `x` is 0.
    fn unless_zero(&mut self, x: Value, otherwise: Value) -> Value {
        let kind = self.kind(x);
        let (zero, none) = (self.integer(kind, 0), self.integer(kind, u64::MAX));
        let is_zero = self.op2(Binary::Equal, x, zero);
        self.choose_if(is_zero, none, otherwise)
    }

    /// Offset and count of a bit field, held inside the number; and the width.
    fn field(&mut self, kind: Kind, offset: Value, count: Value) -> (Value, Value, Value) {
        let width = Value::u32(kind.bytes() * 8);
        let offset = self.op2(Binary::Min, offset, width);
        let room = self.op2(Binary::Sub, width, offset);
        let count = self.op2(Binary::Min, count, room);
        (offset, count, width)
    }

    fn extract(&mut self, x: Value, offset: Value, count: Value) -> Value {
        let kind = self.kind(x);
        let (offset, count, width) = self.field(kind, offset, count);
        let end = self.op2(Binary::Add, offset, count);
        let above = self.op2(Binary::Sub, width, end);
        let outside = self.op2(Binary::Sub, width, count);
        let top = self.op2(Binary::Shl, x, above);
        let field = self.op2(Binary::Shr, top, outside);
        let is_empty = self.op2(Binary::Equal, count, Value::u32(0));
        self.choose_if(is_empty, self.integer(kind, 0), field)
    }

    fn insert(&mut self, x: Value, bits: Value, offset: Value, count: Value) -> Value {
        let kind = self.kind(x);
        let (offset, count, width) = self.field(kind, offset, count);
        let outside = self.op2(Binary::Sub, width, count);
        let unsigned = if kind.bytes() == 8 { Kind::U64 } else { Kind::U32 };
        let ones = self.op2(Binary::Shr, self.integer(unsigned, u64::MAX), outside);
        let mask = self.op2(Binary::Shl, ones, offset);
        let mask = if kind == unsigned { mask } else { self.set(kind, Op::Bits(mask)) };
        let moved = self.op2(Binary::Shl, bits, offset);
        let (new, rest) = (self.op2(Binary::And, moved, mask), self.op1(Unary::Not, mask));
        let old = self.op2(Binary::And, x, rest);
        let joined = self.op2(Binary::Or, old, new);
        let is_empty = self.op2(Binary::Equal, count, Value::u32(0));
        self.choose_if(is_empty, x, joined)
    }

    fn pack(&mut self, fun: Math, values: &[Value]) -> Value {
        let bits = if values.len() == 2 { 16 } else { 8 };
        let mut packed = Value::u32(0);
        for (position, value) in (0_u32..).zip(values) {
            let part = self.packed_part(fun, *value);
            let low = self.op2(Binary::And, part, Value::u32((1 << bits) - 1));
            let placed = self.op2(Binary::Shl, low, Value::u32(position * bits));
            packed = self.op2(Binary::Or, packed, placed);
        }
        packed
    }

    /// One number of a packed word, as a `u32` whose low bits count.
    fn packed_part(&mut self, fun: Math, value: Value) -> Value {
        let normal = |body: &mut Self, low: f32, scale: f32| {
            let held = body.clamp(value, Value::f32(low), Value::f32(1.0));
            let scaled = body.op2(Binary::Mul, held, Value::f32(scale));
            let raised = body.op2(Binary::Add, scaled, Value::f32(0.5));
            let whole = body.op1(Unary::Floor, raised);
            let number = body.convert(whole, Kind::I32);
            body.set(Kind::U32, Op::Bits(number))
        };
        match fun {
            Math::Pack4x8snorm => normal(self, -1.0, 127.0),
            Math::Pack4x8unorm => normal(self, 0.0, 255.0),
            Math::Pack2x16snorm => normal(self, -1.0, 32767.0),
            Math::Pack2x16unorm => normal(self, 0.0, 65535.0),
            Math::Pack2x16float => self.op1(Unary::ToHalfBits, value),
            Math::Pack4xI8Clamp => {
                let number = |value: i32| Value::Const(Kind::I32, value.cast_unsigned().into());
                let held = self.clamp(value, number(-128), number(127));
                self.set(Kind::U32, Op::Bits(held))
            }
            Math::Pack4xU8Clamp => self.op2(Binary::Min, value, Value::u32(255)),
            _ if self.kind(value) == Kind::I32 => self.set(Kind::U32, Op::Bits(value)),
            _ => value,
        }
    }

    fn unpack(&mut self, fun: Math, word: Value) -> Vec<Value> {
        let (count, bits, scale, is_signed) = match fun {
            Math::Unpack4x8snorm => (4, 8, Some(127.0), true),
            Math::Unpack4x8unorm => (4, 8, Some(255.0), false),
            Math::Unpack2x16snorm => (2, 16, Some(32767.0), true),
            Math::Unpack2x16unorm => (2, 16, Some(65535.0), false),
            Math::Unpack4xI8 => (4, 8, None, true),
            Math::Unpack4xU8 => (4, 8, None, false),
            _ => (2, 16, None, false),
        };
        (0..count)
            .map(|position| {
                let (offset, count) = (Value::u32(position * bits), Value::u32(bits));
                let word = if is_signed { self.set(Kind::I32, Op::Bits(word)) } else { word };
                let part = self.extract(word, offset, count);
                match scale {
                    None if fun == Math::Unpack2x16float => self.op1(Unary::FromHalfBits, part),
                    None => part,
                    Some(scale) => {
                        let number = self.convert(part, Kind::F32);
                        let share = self.op2(Binary::Div, number, Value::f32(scale));
                        if is_signed { self.op2(Binary::Max, share, Value::f32(-1.0)) } else { share }
                    }
                }
            })
            .collect()
    }
}

fn unary(fun: Math) -> Option<Unary> {
    Some(match fun {
        Math::Abs => Unary::Abs,
        Math::Ceil => Unary::Ceil,
        Math::Floor => Unary::Floor,
        Math::Round => Unary::Round,
        Math::Trunc => Unary::Trunc,
        Math::Sqrt => Unary::Sqrt,
        Math::Exp => Unary::Exp,
        Math::Exp2 => Unary::Exp2,
        Math::Log => Unary::Log,
        Math::Log2 => Unary::Log2,
        Math::Sin => Unary::Sin,
        Math::Cos => Unary::Cos,
        Math::Tan => Unary::Tan,
        Math::Asin => Unary::Asin,
        Math::Acos => Unary::Acos,
        Math::Atan => Unary::Atan,
        Math::Sinh => Unary::Sinh,
        Math::Cosh => Unary::Cosh,
        Math::Tanh => Unary::Tanh,
        Math::Asinh => Unary::Asinh,
        Math::Acosh => Unary::Acosh,
        Math::Atanh => Unary::Atanh,
        Math::CountOneBits => Unary::CountOnes,
        Math::CountLeadingZeros => Unary::LeadingZeros,
        Math::CountTrailingZeros => Unary::TrailingZeros,
        Math::ReverseBits => Unary::ReverseBits,
        _ => return None,
    })
}

fn binary(fun: Math) -> Option<Binary> {
    Some(match fun {
        Math::Min => Binary::Min,
        Math::Max => Binary::Max,
        Math::Pow => Binary::Pow,
        Math::Atan2 => Binary::Atan2,
        _ => return None,
    })
}
