//! Operations on registers: as the processor's own instructions where those mean the same, else by the interpreter.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{InstBuilder, Value, types};

use super::super::flat::{Code, Instr};
use super::super::ir::{Binary, Kind, Reg, Unary};
use super::super::run::eval;
use super::control::{Emitter, type_of};

/// Tells what an instruction reads.
pub(super) fn reads(instruction: &Instr, code: &Code, mut read: impl FnMut(Reg)) {
    let indices = |place: u32, read: &mut dyn FnMut(Reg)| {
        code.places[place as usize].steps.iter().for_each(|(index, ..)| read(*index));
    };
    match *instruction {
        Instr::Copy { a, .. } | Instr::Unary { a, .. } | Instr::Convert { a, .. } => read(a),
        Instr::Binary { a, b, .. } => [a, b].into_iter().for_each(read),
        Instr::Fma { a, b, c, .. } => [a, b, c].into_iter().for_each(read),
        Instr::Select { condition, a, b, .. } => [condition, a, b].into_iter().for_each(read),
        Instr::JumpIf(condition, _) | Instr::JumpUnless(condition, _) => read(condition),
        Instr::Load { place, .. } => indices(place, &mut read),
        Instr::Store { place, a } | Instr::Atomic { place, a, .. } => {
            indices(place, &mut read);
            read(a);
        }
        Instr::CompareExchange { place, expected, a, .. } => {
            indices(place, &mut read);
            [expected, a].into_iter().for_each(read);
        }
        _ => {}
    }
}

/// Tells what an instruction sets.
pub(super) fn sets(instruction: &Instr, mut set: impl FnMut(Reg)) {
    match *instruction {
        Instr::Copy { to, .. }
        | Instr::Unary { to, .. }
        | Instr::Binary { to, .. }
        | Instr::Fma { to, .. }
        | Instr::Select { to, .. }
        | Instr::Convert { to, .. }
        | Instr::Load { to, .. }
        | Instr::Length { to, .. }
        | Instr::Own { to, .. } => set(to),
        Instr::Atomic { old, .. } => set(old),
        Instr::CompareExchange { old, exchanged, .. } => [old, exchanged].into_iter().for_each(set),
        _ => {}
    }
}

/// What the interpreter makes of an operation.
extern "C" fn evaluate(instruction: &Instr, a: u64, b: u64, c: u64) -> u64 {
    match *instruction {
        Instr::Unary { op, kind, .. } => eval::unary(op, kind, a),
        Instr::Binary { op, kind, .. } => eval::binary(op, kind, a, b),
        Instr::Fma { kind, .. } => eval::fma(kind, a, b, c),
        Instr::Convert { from, kind, .. } => eval::convert(from, kind, a),
        _ => a,
    }
}

/// Whether floats are rounded to whole ones, and multiplied and added, by instructions.
fn has_float_instructions() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::is_x86_feature_detected!("sse4.1") && std::is_x86_feature_detected!("fma");
    #[cfg(not(target_arch = "x86_64"))]
    true
}

impl<'a> Emitter<'a> {
    pub(super) fn operation(&mut self, instruction: &'a Instr) {
        let (to, value) = match *instruction {
            Instr::Copy { to, a } => (to, Some(self.get(a))),
            Instr::Select { to, condition, a, b } => {
                let (condition, a, b) = (self.get(condition), self.get(a), self.get(b));
                (to, Some(self.builder.ins().select(condition, a, b)))
            }
            Instr::Unary { op, kind, to, a } => {
                let a = self.get(a);
                (to, self.unary(op, kind, a))
            }
            Instr::Binary { op, kind, to, a, b } => {
                let (a, b) = (self.get(a), self.get(b));
                (to, self.binary(op, kind, a, b))
            }
            Instr::Fma { kind, to, a, b, c } => {
                let (a, b, c) = (self.get(a), self.get(b), self.get(c));
                let is_own = kind != Kind::F16 && has_float_instructions();
                (to, is_own.then(|| self.builder.ins().fma(a, b, c)))
            }
            Instr::Convert { from, kind, to, a } => {
                let a = self.get(a);
                (to, self.convert(from, kind, a))
            }
            _ => return,
        };
        let value = value.unwrap_or_else(|| self.interpreted(instruction, to));
        self.set(to, value);
    }

    /// A call of what the interpreter does.
    fn interpreted(&mut self, instruction: &'a Instr, to: Reg) -> Value {
        let mut operands = Vec::with_capacity(4);
        operands.push(self.address(std::ptr::from_ref(instruction).cast()));
        let mut read = Vec::new();
        reads(instruction, self.code, |register| read.push(register));
        for register in read {
            let value = self.get(register);
            operands.push(self.bits(value));
        }
        while operands.len() < 4 {
            operands.push(self.builder.ins().iconst(types::I64, 0));
        }
        let helper: extern "C" fn(&Instr, u64, u64, u64) -> u64 = evaluate;
        let helper = self.address(helper as *const u8);
        let call = self.builder.ins().call_indirect(self.evaluate, helper, &operands);
        let bits = self.builder.inst_results(call)[0];
        self.of_bits(bits, self.code.registers[to as usize])
    }

    /// A value as the interpreter's registers hold it.
    fn bits(&mut self, value: Value) -> Value {
        match self.builder.func.dfg.value_type(value) {
            types::I64 => value,
            types::F64 => self.as_type(value, types::I64),
            types::F32 => {
                let short = self.as_type(value, types::I32);
                self.builder.ins().uextend(types::I64, short)
            }
            _ => self.builder.ins().uextend(types::I64, value),
        }
    }

    fn of_bits(&mut self, bits: Value, kind: Kind) -> Value {
        match type_of(kind) {
            types::I64 => bits,
            types::F64 => self.as_type(bits, types::F64),
            types::F32 => {
                let short = self.builder.ins().ireduce(types::I32, bits);
                self.as_type(short, types::F32)
            }
            ty => self.builder.ins().ireduce(ty, bits),
        }
    }

    fn unary(&mut self, op: Unary, kind: Kind, a: Value) -> Option<Value> {
        if kind == Kind::F16 && op != Unary::IsNan {
            return None;
        }
        let is_rounded = has_float_instructions();
        let ins = self.builder.ins();
        Some(match op {
            Unary::Negate if kind.is_float() => ins.fneg(a),
            Unary::Abs if kind.is_float() => ins.fabs(a),
            Unary::Sqrt => ins.sqrt(a),
            Unary::Floor if is_rounded => ins.floor(a),
            Unary::Ceil if is_rounded => ins.ceil(a),
            Unary::Trunc if is_rounded => ins.trunc(a),
            Unary::Round if is_rounded => ins.nearest(a),
            Unary::IsNan => ins.fcmp(FloatCC::Unordered, a, a),
            Unary::Negate => ins.ineg(a),
            Unary::Not if kind == Kind::Bool => ins.bxor_imm_u(a, 1),
            Unary::Not => ins.bnot(a),
            Unary::Abs if kind.is_signed() => ins.iabs(a),
            Unary::Abs => a,
            Unary::CountOnes => ins.popcnt(a),
            Unary::LeadingZeros => ins.clz(a),
            Unary::TrailingZeros => ins.ctz(a),
            Unary::ReverseBits => ins.bitrev(a),
            _ => return None,
        })
    }

    fn binary(&mut self, op: Binary, kind: Kind, a: Value, b: Value) -> Option<Value> {
        if kind.is_float() { self.float_binary(op, kind, a, b) } else { self.integer_binary(op, kind, a, b) }
    }

    fn float_binary(&mut self, op: Binary, kind: Kind, a: Value, b: Value) -> Option<Value> {
        let condition = match op {
            Binary::Equal => Some(FloatCC::Equal),
            Binary::NotEqual => Some(FloatCC::NotEqual),
            Binary::Less => Some(FloatCC::LessThan),
            Binary::LessEqual => Some(FloatCC::LessThanOrEqual),
            Binary::Greater => Some(FloatCC::GreaterThan),
            Binary::GreaterEqual => Some(FloatCC::GreaterThanOrEqual),
            _ => None,
        };
        if let Some(condition) = condition {
            return Some(self.builder.ins().fcmp(condition, a, b));
        }
        if kind == Kind::F16 {
            return None;
        }
        Some(match op {
            Binary::Add => self.builder.ins().fadd(a, b),
            Binary::Sub => self.builder.ins().fsub(a, b),
            Binary::Mul => self.builder.ins().fmul(a, b),
            Binary::Div => self.builder.ins().fdiv(a, b),
            Binary::Min | Binary::Max => {
                let order = if op == Binary::Min { FloatCC::LessThan } else { FloatCC::GreaterThan };
                let is_first = self.builder.ins().fcmp(order, a, b);
                let is_none = self.builder.ins().fcmp(FloatCC::Unordered, b, b);
                let is_first = self.builder.ins().bor(is_first, is_none);
                self.builder.ins().select(is_first, a, b)
            }
            _ => return None,
        })
    }

    fn integer_binary(&mut self, op: Binary, kind: Kind, a: Value, b: Value) -> Option<Value> {
        let is_signed = kind.is_signed();
        let order = |signed, unsigned| if is_signed { signed } else { unsigned };
        let less = order(IntCC::SignedLessThan, IntCC::UnsignedLessThan);
        let greater = order(IntCC::SignedGreaterThan, IntCC::UnsignedGreaterThan);
        let ins = self.builder.ins();
        Some(match op {
            Binary::Equal => ins.icmp(IntCC::Equal, a, b),
            Binary::NotEqual => ins.icmp(IntCC::NotEqual, a, b),
            Binary::Less => ins.icmp(less, a, b),
            Binary::Greater => ins.icmp(greater, a, b),
            Binary::LessEqual => {
                ins.icmp(order(IntCC::SignedLessThanOrEqual, IntCC::UnsignedLessThanOrEqual), a, b)
            }
            Binary::GreaterEqual => {
                ins.icmp(order(IntCC::SignedGreaterThanOrEqual, IntCC::UnsignedGreaterThanOrEqual), a, b)
            }
            Binary::Add => ins.iadd(a, b),
            Binary::Sub => ins.isub(a, b),
            Binary::Mul => ins.imul(a, b),
            Binary::And => ins.band(a, b),
            Binary::Or => ins.bor(a, b),
            Binary::Xor => ins.bxor(a, b),
            // These take their amount modulo the width themselves.
            Binary::Shl => ins.ishl(a, b),
            Binary::Shr if is_signed => ins.sshr(a, b),
            Binary::Shr => ins.ushr(a, b),
            Binary::Min | Binary::Max => {
                let is_first = ins.icmp(if op == Binary::Min { less } else { greater }, a, b);
                self.builder.ins().select(is_first, a, b)
            }
            Binary::Div | Binary::Rem if kind != Kind::Bool => self.divided(op, kind, a, b),
            _ => return None,
        })
    }

    /// Divides by 1 where the processor would stop: that gives x / 0 = x and x % 0 = 0, and by −1 the remainder 0;
    /// the quotient by −1 is the negative.
    fn divided(&mut self, op: Binary, kind: Kind, a: Value, b: Value) -> Value {
        let one = self.constant(kind, 1);
        let is_zero = self.builder.ins().icmp_imm_u(IntCC::Equal, b, 0);
        if !kind.is_signed() {
            let by = self.builder.ins().select(is_zero, one, b);
            let ins = self.builder.ins();
            return if op == Binary::Div { ins.udiv(a, by) } else { ins.urem(a, by) };
        }
        let is_minus = self.builder.ins().icmp_imm_s(IntCC::Equal, b, -1);
        let is_special = self.builder.ins().bor(is_zero, is_minus);
        let by = self.builder.ins().select(is_special, one, b);
        if op == Binary::Rem {
            return self.builder.ins().srem(a, by);
        }
        let quotient = self.builder.ins().sdiv(a, by);
        let negative = self.builder.ins().ineg(a);
        self.builder.ins().select(is_minus, negative, quotient)
    }

    fn convert(&mut self, from: Kind, to: Kind, a: Value) -> Option<Value> {
        let (have, want) = (type_of(from), type_of(to));
        if from.is_float() {
            return match to {
                Kind::F16 if from == Kind::F16 => Some(a),
                Kind::F16 => None,
                Kind::Bool => {
                    let zero = self.constant(from, 0);
                    Some(self.builder.ins().fcmp(FloatCC::NotEqual, a, zero))
                }
                Kind::F32 | Kind::F64 => Some(match (have, want) {
                    (types::F32, types::F64) => self.builder.ins().fpromote(types::F64, a),
                    (types::F64, types::F32) => self.builder.ins().fdemote(types::F32, a),
                    _ => a,
                }),
                _ => Some(self.cut(from, to, a)),
            };
        }
        let is_signed = from.is_signed();
        match to {
            Kind::F16 => None,
            Kind::Bool => Some(self.builder.ins().icmp_imm_u(IntCC::NotEqual, a, 0)),
            Kind::F32 | Kind::F64 => {
                let a = if have == types::I8 { self.builder.ins().uextend(types::I32, a) } else { a };
                let ins = self.builder.ins();
                Some(if is_signed { ins.fcvt_from_sint(want, a) } else { ins.fcvt_from_uint(want, a) })
            }
            _ if have.bits() == want.bits() => Some(a),
            _ if have.bits() > want.bits() => Some(self.builder.ins().ireduce(want, a)),
            _ if is_signed => Some(self.builder.ins().sextend(want, a)),
            _ => Some(self.builder.ins().uextend(want, a)),
        }
    }

    /// A float held within what the integer kind has; what is no number becomes 0.
    fn cut(&mut self, from: Kind, to: Kind, a: Value) -> Value {
        let (low, high) = eval::range(from, to);
        #[allow(clippy::cast_possible_truncation, reason = "the limits of an f32 are f32s")]
        let bits = |limit: f64| {
            if from == Kind::F64 { limit.to_bits() } else { u64::from((limit as f32).to_bits()) }
        };
        let (low, high) = (self.constant(from, bits(low)), self.constant(from, bits(high)));
        let is_below = self.builder.ins().fcmp(FloatCC::LessThan, a, low);
        let a = self.builder.ins().select(is_below, low, a);
        let is_above = self.builder.ins().fcmp(FloatCC::GreaterThan, a, high);
        let a = self.builder.ins().select(is_above, high, a);
        let (ins, ty) = (self.builder.ins(), type_of(to));
        if to.is_signed() { ins.fcvt_to_sint_sat(ty, a) } else { ins.fcvt_to_uint_sat(ty, a) }
    }
}
