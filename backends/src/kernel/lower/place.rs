//! Pointers resolved into places.

use naga::{ArraySize, Expression, Handle, TypeInner};

use super::super::ir::{Binary, Kind, Limit, Op, Place, Reg, Space, Step, Stmt, Value};
use super::{Body, Local, Result, types};

/// What a pointer expression points to.
#[derive(Clone)]
pub(super) enum Pointer<'p> {
    /// A variable that lives in registers, or one component of it.
    Registers(Vec<Reg>, Option<Value>),
    Memory(Base, &'p TypeInner),
    /// A component of a vector in memory.
    Component(Base, naga::Scalar),
}

/// A place whose scalar is not chosen yet.
#[derive(Clone)]
pub(super) struct Base {
    space: Space,
    offset: u32,
    steps: Vec<Step>,
}

impl<'p> Body<'_, 'p> {
    pub(super) fn pointer(&mut self, handle: Handle<Expression>) -> Result<Pointer<'p>> {
        match self.function.expressions[handle] {
            Expression::GlobalVariable(global) => {
                let variable = &self.lowerer.parsed.module.global_variables[global];
                let inner = self.lowerer.inner(variable.ty);
                match self.lowerer.globals.get(&global) {
                    Some(&known) => {
                        let base = Base { space: known.space, offset: known.offset, steps: Vec::new() };
                        Ok(Pointer::Memory(base, inner))
                    }
                    None => self.refuse(types::name(inner)),
                }
            }
            Expression::LocalVariable(local) => {
                let inner = self.lowerer.inner(self.function.local_variables[local].ty);
                match self.locals.get(&local).cloned() {
                    Some(Local::Registers(registers)) => Ok(Pointer::Registers(registers, None)),
                    Some(Local::Memory(offset)) => {
                        Ok(Pointer::Memory(Base { space: Space::Local, offset, steps: Vec::new() }, inner))
                    }
                    None => self.refuse("a local variable out of place"),
                }
            }
            Expression::Access { base, index } => {
                let index = self.one(index)?;
                let pointer = self.pointer(base)?;
                self.step(pointer, index)
            }
            Expression::AccessIndex { base, index } => {
                let pointer = self.pointer(base)?;
                self.step(pointer, Value::u32(index))
            }
            _ => self.refuse("a pointer that is neither a variable nor a part of one"),
        }
    }

    fn step(&self, pointer: Pointer<'p>, index: Value) -> Result<Pointer<'p>> {
        let (mut base, inner) = match pointer {
            Pointer::Registers(registers, None) => return Ok(Pointer::Registers(registers, Some(index))),
            Pointer::Memory(base, inner) => (base, inner),
            Pointer::Registers(..) | Pointer::Component(..) => return self.refuse("a part of a number"),
        };
        match *inner {
            TypeInner::Struct { ref members, .. } => {
                let Value::Const(_, position) = index else {
                    return self.refuse("a struct's member by number");
                };
                let member = usize::try_from(position).ok().and_then(|position| members.get(position));
                let Some(member) = member else { return self.refuse("a member that is not there") };
                base.offset += member.offset;
                Ok(Pointer::Memory(base, self.lowerer.inner(member.ty)))
            }
            TypeInner::Vector { size, scalar } => {
                base.advance(index, scalar.width.into(), Limit::Fixed(size.into()));
                Ok(Pointer::Component(base, scalar))
            }
            TypeInner::Array { base: element, size, stride } => {
                let limit = match (size, base.space) {
                    (ArraySize::Constant(count), _) => Limit::Fixed(count.get()),
                    (ArraySize::Dynamic, Space::Buffer(buffer)) => {
                        Limit::Runtime { buffer, offset: base.offset, stride }
                    }
                    _ => return self.refuse(types::name(inner)),
                };
                base.advance(index, stride, limit);
                Ok(Pointer::Memory(base, self.lowerer.inner(element)))
            }
            ref other => self.refuse(types::name(other)),
        }
    }

    /// The places of the scalars that a pointer into memory points to.
    fn places(&self, base: &Base, inner: &TypeInner) -> Result<Vec<Place>> {
        let leaves = self.lowerer.leaves(inner, self.site)?;
        let place = |leaf: types::Leaf| Place {
            steps: base.steps.clone(),
            ..leaf.place(base.space, base.offset, self.site)
        };
        Ok(leaves.into_iter().map(place).collect())
    }

    /// The one scalar that a pointer points to, in memory.
    pub(super) fn scalar_place(&mut self, handle: Handle<Expression>) -> Result<Place> {
        let pointer = self.pointer(handle)?;
        let places = match &pointer {
            Pointer::Memory(base, inner) => self.places(base, inner)?,
            Pointer::Component(base, scalar) => self.places(base, &TypeInner::Scalar(*scalar))?,
            Pointer::Registers(..) => return self.refuse("atomic operations on a thread's own variable"),
        };
        match <[Place; 1]>::try_from(places) {
            Ok([place]) => Ok(place),
            Err(_) => self.refuse("atomic operations on more than a number"),
        }
    }

    pub(super) fn load(&mut self, handle: Handle<Expression>) -> Result<Vec<Value>> {
        match self.pointer(handle)? {
            // Copied, for the variable may change before the value is used.
            Pointer::Registers(registers, None) => {
                let copy = |register: &Reg| {
                    let kind = self.out.registers[*register as usize];
                    self.set(kind, Op::Copy(Value::Reg(*register)))
                };
                Ok(registers.iter().map(copy).collect())
            }
            Pointer::Registers(registers, Some(index)) => {
                let parts: Vec<_> =
                    registers.into_iter().map(|register| vec![Value::Reg(register)]).collect();
                let chosen = self.choose(&parts, index);
                let copy = |value: Value| {
                    let kind = self.kind(value);
                    self.set(kind, Op::Copy(value))
                };
                Ok(chosen.into_iter().map(copy).collect())
            }
            Pointer::Memory(base, inner) => {
                let places = self.places(&base, inner)?;
                Ok(places.into_iter().map(|place| self.set(place.kind, Op::Load(place))).collect())
            }
            Pointer::Component(base, scalar) => {
                let places = self.places(&base, &TypeInner::Scalar(scalar))?;
                Ok(places.into_iter().map(|place| self.set(place.kind, Op::Load(place))).collect())
            }
        }
    }

    pub(super) fn store(&mut self, handle: Handle<Expression>, values: Vec<Value>) -> Result<()> {
        let places = match self.pointer(handle)? {
            Pointer::Registers(registers, None) => {
                for (register, value) in registers.into_iter().zip(values) {
                    self.push(Stmt::Set(register, Op::Copy(value)));
                }
                return Ok(());
            }
            Pointer::Registers(registers, Some(index)) => {
                let Some(&value) = values.first() else { return Ok(()) };
                self.store_component(&registers, index, value);
                return Ok(());
            }
            Pointer::Memory(base, inner) => self.places(&base, inner)?,
            Pointer::Component(base, scalar) => self.places(&base, &TypeInner::Scalar(scalar))?,
        };
        for (place, value) in places.into_iter().zip(values) {
            self.push(Stmt::Store(place, value));
        }
        Ok(())
    }

    fn store_component(&mut self, registers: &[Reg], index: Value, value: Value) {
        for (position, &register) in (0_u32..).zip(registers) {
            if let Value::Const(_, chosen) = index {
                if chosen == u64::from(position) {
                    self.push(Stmt::Set(register, Op::Copy(value)));
                }
                continue;
            }
            let is_it = self.is_index(index, position);
            self.push(Stmt::Set(register, Op::Select(is_it, value, Value::Reg(register))));
        }
    }

    /// One of several values by its number; the first if there is no such one.
    pub(super) fn choose(&mut self, parts: &[Vec<Value>], index: Value) -> Vec<Value> {
        if let Value::Const(_, chosen) = index {
            let part = usize::try_from(chosen).ok().and_then(|chosen| parts.get(chosen));
            return part.or(parts.first()).cloned().unwrap_or_default();
        }
        let mut chosen = parts.first().cloned().unwrap_or_default();
        for (position, part) in (0_u32..).zip(parts).skip(1) {
            let is_it = self.is_index(index, position);
            for (chosen, value) in chosen.iter_mut().zip(part) {
                let kind = self.kind(*value);
                *chosen = self.set(kind, Op::Select(is_it, *value, *chosen));
            }
        }
        chosen
    }

    fn is_index(&mut self, index: Value, position: u32) -> Value {
        let number = Value::Const(self.kind(index), position.into());
        self.set(Kind::Bool, Op::Binary(Binary::Equal, index, number))
    }
}

impl Base {
    /// A constant index that is surely inside only moves the place.
    fn advance(&mut self, index: Value, stride: u32, limit: Limit) {
        match (index, limit) {
            (Value::Const(_, position), Limit::Fixed(count)) if position < u64::from(count) => {
                self.offset += u32::try_from(position).unwrap_or(0) * stride;
            }
            _ => self.steps.push(Step { index, stride, limit }),
        }
    }
}
