//! Addresses, and what is done there.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{AtomicRmwOp, InstBuilder, MemFlagsData, Value, types};
use half::f16;

use super::super::flat::FlatPlace;
use super::super::ir::{AtomicOp, Kind, Limit, Reg, Space};
use super::control::{Emitter, type_of};
use super::table::Table;

/// Access that is known to be inside, at any alignment.
fn inside() -> MemFlagsData {
    MemFlagsData::new().with_notrap()
}

/// Access of an atomic place: `Compiled::run` has seen that it is aligned.
fn atomic() -> MemFlagsData {
    MemFlagsData::trusted()
}

extern "C" fn to_half(_: u64, value: u64, _: u64, _: u64) -> u64 {
    f16::from_f32(f32::from_bits(u32::try_from(value).unwrap_or(0))).to_bits().into()
}

extern "C" fn from_half(_: u64, bits: u64, _: u64, _: u64) -> u64 {
    f16::from_bits(u16::try_from(bits).unwrap_or(0)).to_f32().to_bits().into()
}

impl Emitter<'_> {
    /// Where a place is, found to be inside.
    fn at(&mut self, number: u32) -> Value {
        let code = self.code;
        let place = &code.places[number as usize];
        let mut offset = self.builder.ins().iconst(types::I64, i64::from(place.offset));
        let mut is_inside: Option<Value> = None;
        for &(index, stride, limit) in &place.steps {
            let index = self.index(index);
            let limit = match limit {
                Limit::Fixed(count) => self.builder.ins().iconst(types::I64, i64::from(count)),
                Limit::Runtime { buffer, offset, stride } => {
                    self.word(self.table.length((buffer, offset, stride)))
                }
            };
            let is_below = self.builder.ins().icmp(IntCC::UnsignedLessThan, index, limit);
            is_inside = Some(match is_inside {
                Some(before) => self.builder.ins().band(before, is_below),
                None => is_below,
            });
            let stride = self.builder.ins().iconst(types::I64, i64::from(stride));
            let way = self.builder.ins().imul(index, stride);
            offset = self.builder.ins().iadd(offset, way);
        }
        if !self.is_implied(place) {
            let size = match place.space {
                Space::Buffer(buffer) => self.word(Table::buffer(buffer as usize) + 1),
                space => {
                    let size = self.size(space);
                    self.builder.ins().iconst(types::I64, i64::from(size))
                }
            };
            let end = self.builder.ins().iadd_imm_u(offset, i64::from(place.kind.bytes()));
            let is_before = self.builder.ins().icmp(IntCC::UnsignedLessThanOrEqual, end, size);
            is_inside = Some(match is_inside {
                Some(before) => self.builder.ins().band(before, is_before),
                None => is_before,
            });
        }
        if let Some(is_inside) = is_inside {
            self.check(is_inside, number, offset);
        }
        let base = self.base(place.space);
        self.builder.ins().iadd(base, offset)
    }

    fn index(&mut self, register: Reg) -> Value {
        let index = self.get(register);
        if self.builder.func.dfg.value_type(index) == types::I64 {
            return index;
        }
        self.builder.ins().uextend(types::I64, index)
    }

    /// Bytes of a memory whose size is the kernel's.
    fn size(&self, space: Space) -> u32 {
        match space {
            Space::Buffer(_) => 0,
            Space::Scalars => self.program.scalars_bytes,
            Space::Group => self.program.group_bytes,
            Space::Private => self.program.private_bytes,
            Space::Local => self.code.local_bytes,
        }
    }

    /// Whether indices within their limits already mean that the access is inside.
    fn is_implied(&self, place: &FlatPlace) -> bool {
        let mut reach = u64::from(place.offset) + u64::from(place.kind.bytes());
        let mut element = None;
        for (_, step, limit) in &place.steps {
            match *limit {
                Limit::Fixed(count) => reach += u64::from(count.saturating_sub(1)) * u64::from(*step),
                Limit::Runtime { buffer, offset, stride } => {
                    let is_own = place.space == Space::Buffer(buffer) && stride == *step && element.is_none();
                    if !is_own || place.offset < offset {
                        return false;
                    }
                    element = Some((u64::from(offset), u64::from(stride)));
                }
            }
        }
        match element {
            // An element below the count has its whole stride inside.
            Some((offset, stride)) => reach - offset <= stride,
            None => reach <= u64::from(self.size(place.space)),
        }
    }

    pub(super) fn load(&mut self, number: u32) -> Value {
        let place = &self.code.places[number as usize];
        let (kind, is_atomic) = (place.kind, place.is_atomic);
        let at = self.at(number);
        match kind {
            Kind::Bool => {
                let byte = self.builder.ins().load(types::I8, inside(), at, 0);
                self.builder.ins().icmp_imm_u(IntCC::NotEqual, byte, 0)
            }
            Kind::F16 => {
                let bits = self.builder.ins().load(types::I16, inside(), at, 0);
                let bits = self.builder.ins().uextend(types::I64, bits);
                let bits = self.halves(from_half, bits);
                let bits = self.builder.ins().ireduce(types::I32, bits);
                self.as_type(bits, types::F32)
            }
            _ if is_atomic => self.builder.ins().atomic_load(type_of(kind), atomic(), at),
            _ => self.builder.ins().load(type_of(kind), inside(), at, 0),
        }
    }

    pub(super) fn store(&mut self, number: u32, from: Reg) {
        let place = &self.code.places[number as usize];
        let (kind, is_atomic) = (place.kind, place.is_atomic);
        let at = self.at(number);
        let value = self.get(from);
        let value = self.as_type(value, type_of(kind));
        match kind {
            Kind::F16 => {
                let bits = self.as_type(value, types::I32);
                let bits = self.builder.ins().uextend(types::I64, bits);
                let bits = self.halves(to_half, bits);
                let bits = self.builder.ins().ireduce(types::I16, bits);
                self.builder.ins().store(inside(), bits, at, 0);
            }
            _ if is_atomic => _ = self.builder.ins().atomic_store(atomic(), value, at),
            _ => _ = self.builder.ins().store(inside(), value, at, 0),
        }
    }

    fn halves(&mut self, helper: extern "C" fn(u64, u64, u64, u64) -> u64, bits: Value) -> Value {
        let helper = self.address(helper as *const u8);
        let none = self.builder.ins().iconst(types::I64, 0);
        let call = self.builder.ins().call_indirect(self.evaluate, helper, &[none, bits, none, none]);
        self.builder.inst_results(call)[0]
    }

    pub(super) fn atomic(&mut self, number: u32, op: AtomicOp, from: Reg, old: Reg) {
        let kind = self.code.places[number as usize].kind;
        let at = self.at(number);
        let value = self.get(from);
        let op = match op {
            AtomicOp::Add => AtomicRmwOp::Add,
            AtomicOp::Sub => AtomicRmwOp::Sub,
            AtomicOp::And => AtomicRmwOp::And,
            AtomicOp::Or => AtomicRmwOp::Or,
            AtomicOp::Xor => AtomicRmwOp::Xor,
            AtomicOp::Min if kind.is_signed() => AtomicRmwOp::Smin,
            AtomicOp::Min => AtomicRmwOp::Umin,
            AtomicOp::Max if kind.is_signed() => AtomicRmwOp::Smax,
            AtomicOp::Max => AtomicRmwOp::Umax,
            AtomicOp::Exchange => AtomicRmwOp::Xchg,
        };
        let before = self.builder.ins().atomic_rmw(type_of(kind), atomic(), op, at, value);
        self.set(old, before);
    }

    pub(super) fn compare_exchange(&mut self, number: u32, from: (Reg, Reg), to: (Reg, Reg)) {
        let at = self.at(number);
        let (expected, value) = (self.get(from.0), self.get(from.1));
        let before = self.builder.ins().atomic_cas(atomic(), at, expected, value);
        let is_equal = self.builder.ins().icmp(IntCC::Equal, before, expected);
        self.set(to.0, before);
        self.set(to.1, is_equal);
    }
}
