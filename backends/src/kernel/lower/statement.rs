//! Statements.

use naga::{Binding, Block, BuiltIn, Expression, Handle, Statement, SwitchValue, TypeInner};

use super::super::ir::{Binary, Case, Kind, Op, Own, Stmt, Value};
use super::{Body, Local, Result};

impl Body<'_, '_> {
    /// Places for the local variables, and what they begin with.
    pub(super) fn local_variables(&mut self) -> Result<()> {
        let variables = &self.function.local_variables;
        for (handle, variable) in variables.iter() {
            self.site = self.lowerer.parsed.site(variables.get_span(handle));
            let inner = self.lowerer.inner(variable.ty);
            let is_plain = matches!(inner, TypeInner::Scalar(_) | TypeInner::Vector { .. });
            if is_plain {
                let leaves = self.lowerer.leaves(inner, self.site)?;
                let init = match variable.init {
                    Some(init) => self.value(init)?,
                    None => self.lowerer.zero(inner, self.site)?,
                };
                let registers: Vec<_> = leaves.iter().map(|leaf| self.register(leaf.kind)).collect();
                for (register, value) in registers.iter().zip(init) {
                    self.push(Stmt::Set(*register, Op::Copy(value)));
                }
                self.locals.insert(handle, Local::Registers(registers));
                continue;
            }
            let layout = self.lowerer.layouts[variable.ty];
            let offset = layout.alignment.round_up(self.out.local_bytes);
            let end = offset.checked_add(layout.size).filter(|end| *end <= super::MEMORY_BYTES_MAX);
            let Some(end) = end else { return self.refuse("a local variable of more than 16 MiB") };
            self.out.local_bytes = end;
            self.locals.insert(handle, Local::Memory(offset));
            if let Some(init) = variable.init {
                let values = self.value(init)?;
                for (leaf, value) in self.lowerer.leaves(inner, self.site)?.into_iter().zip(values) {
                    let place = leaf.place(super::Space::Local, offset, self.site);
                    self.push(Stmt::Store(place, value));
                }
            }
        }
        Ok(())
    }

    /// What a thread is told by a built-in.
    pub(super) fn built_in(&mut self, binding: &Binding) -> Result<Vec<Value>> {
        let Binding::BuiltIn(built_in) = binding else { return self.refuse("@location in a compute kernel") };
        let own = |body: &mut Self, make: fn(u8) -> Own| {
            (0..3).map(|side| body.set(Kind::U32, Op::Own(make(side)))).collect::<Vec<_>>()
        };
        let sizes = self.lowerer.program.group.map(Value::u32);
        let of = |body: &mut Self, op, a, b| body.set(Kind::U32, Op::Binary(op, a, b));
        Ok(match built_in {
            BuiltIn::LocalInvocationId => own(self, Own::LocalId),
            BuiltIn::WorkGroupId => own(self, Own::GroupId),
            BuiltIn::NumWorkGroups => own(self, Own::GroupCount),
            BuiltIn::WorkGroupSize => sizes.to_vec(),
            BuiltIn::GlobalInvocationId => {
                let (group, local) = (own(self, Own::GroupId), own(self, Own::LocalId));
                let mut ids = Vec::with_capacity(3);
                for side in 0..3 {
                    let first = of(self, Binary::Mul, group[side], sizes[side]);
                    ids.push(of(self, Binary::Add, first, local[side]));
                }
                ids
            }
            BuiltIn::LocalInvocationIndex => {
                let local = own(self, Own::LocalId);
                let depth = of(self, Binary::Mul, local[2], sizes[1]);
                let rows = of(self, Binary::Add, depth, local[1]);
                let row = of(self, Binary::Mul, rows, sizes[0]);
                vec![of(self, Binary::Add, row, local[0])]
            }
            other => return self.refuse(format!("the built-in {other:?}")),
        })
    }

    pub(super) fn block(&mut self, block: &Block) -> Result<()> {
        for (statement, span) in block.span_iter() {
            self.site = self.lowerer.parsed.site(*span);
            self.statement(statement)?;
        }
        Ok(())
    }

    /// A block's statements, by themselves.
    fn nested(&mut self, block: &Block) -> Result<Vec<Stmt>> {
        let outer = std::mem::take(&mut self.out.body);
        let outcome = self.block(block);
        let inner = std::mem::replace(&mut self.out.body, outer);
        outcome.map(|()| inner)
    }

    fn statement(&mut self, statement: &Statement) -> Result<()> {
        match statement {
            Statement::Emit(range) => {
                for handle in range.clone() {
                    self.emit(handle)?;
                }
            }
            Statement::Block(block) => self.block(block)?,
            Statement::If { condition, accept, reject } => {
                let condition = self.one(*condition)?;
                let (accept, reject) = (self.nested(accept)?, self.nested(reject)?);
                self.push(Stmt::If { condition, accept, reject });
            }
            Statement::Switch { selector, cases } => self.switch(*selector, cases)?,
            Statement::Loop { body, continuing, break_if } => {
                self.continues.push(false);
                let body = self.nested(body)?;
                let has_continue = self.continues.pop().unwrap_or(false);
                let continuing = self.nested(continuing)?;
                let break_if = break_if.map(|condition| self.one(condition)).transpose()?;
                self.push(Stmt::Loop { body, continuing, break_if, has_continue });
            }
            Statement::Break => self.push(Stmt::Break),
            Statement::Continue => {
                if let Some(flag) = self.continues.last_mut() {
                    *flag = true;
                }
                self.push(Stmt::Continue);
            }
            Statement::Return { value } => {
                let values = value.map_or(Ok(Vec::new()), |value| self.value(value))?;
                self.push(Stmt::Return(values));
            }
            Statement::ControlBarrier(barrier) => {
                if barrier.intersects(naga::Barrier::SUB_GROUP | naga::Barrier::TEXTURE) {
                    return self.refuse("subgroup and texture barriers");
                }
                self.push(Stmt::Barrier(self.site));
            }
            Statement::Store { pointer, value } => {
                let values = self.value(*value)?;
                self.store(*pointer, values)?;
            }
            Statement::Atomic { pointer, fun, value, result } => {
                self.atomic(*pointer, *fun, *value, *result)?;
            }
            Statement::WorkGroupUniformLoad { pointer, result } => {
                self.push(Stmt::Barrier(self.site));
                let values = self.load(*pointer)?;
                self.push(Stmt::Barrier(self.site));
                self.values.insert(*result, values);
            }
            Statement::Call { function, arguments, result } => self.call(*function, arguments, *result)?,
            other => return self.refuse(uncovered(other)),
        }
        Ok(())
    }

    fn switch(&mut self, selector: Handle<Expression>, cases: &[naga::SwitchCase]) -> Result<()> {
        let selector = self.one(selector)?;
        let (mut lowered, mut values, mut is_default) = (Vec::new(), Vec::new(), false);
        for case in cases {
            match case.value {
                SwitchValue::I32(value) => values.push(value.cast_unsigned()),
                SwitchValue::U32(value) => values.push(value),
                SwitchValue::Default => is_default = true,
            }
            if case.fall_through {
                if !case.body.is_empty() {
                    return self.refuse("a case that falls through");
                }
                continue;
            }
            let body = self.nested(&case.body)?;
            let (values, is_default) = (std::mem::take(&mut values), std::mem::take(&mut is_default));
            lowered.push(Case { values, is_default, body });
        }
        self.push(Stmt::Switch { selector, cases: lowered });
        Ok(())
    }

    fn call(
        &mut self,
        function: Handle<naga::Function>,
        arguments: &[Handle<Expression>],
        result: Option<Handle<Expression>>,
    ) -> Result<()> {
        let mut given = Vec::new();
        let callee = &self.lowerer.parsed.module.functions[function];
        for (argument, parameter) in arguments.iter().zip(&callee.arguments) {
            if matches!(self.type_of(*argument), TypeInner::Pointer { .. } | TypeInner::ValuePointer { .. }) {
                let name = |name: &Option<String>| name.clone().unwrap_or_default();
                let (name, of) = (name(&parameter.name), name(&callee.name));
                return self.refuse(format!("the pointer {name:?} as an argument of {of:?}"));
            }
            given.extend(self.value(*argument)?);
        }
        let site = self.site;
        let number = self.lowerer.function(function)?;
        self.site = site;
        let kinds = self.lowerer.program.functions[number as usize].results.clone();
        let results: Vec<_> = kinds.into_iter().map(|kind| self.register(kind)).collect();
        if let Some(handle) = result {
            self.values.insert(handle, results.iter().map(|register| Value::Reg(*register)).collect());
        }
        self.push(Stmt::Call { function: number, arguments: given, results });
        Ok(())
    }
}

fn uncovered(statement: &Statement) -> &'static str {
    match statement {
        Statement::SubgroupBallot { .. }
        | Statement::SubgroupGather { .. }
        | Statement::SubgroupCollectiveOperation { .. } => "subgroup operations",
        Statement::ImageStore { .. } | Statement::ImageAtomic { .. } => "textures",
        Statement::MemoryBarrier(_) => "memory barriers without a control barrier",
        Statement::RayQuery { .. } | Statement::RayPipelineFunction(_) => "ray queries",
        Statement::CooperativeStore { .. } => "cooperative matrices",
        Statement::Kill => "discard",
        _ => "this statement",
    }
}
