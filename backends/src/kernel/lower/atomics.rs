//! Atomic operations.

use naga::{AtomicFunction, Expression, Handle};

use super::super::ir::{AtomicOp, Kind, Stmt, Value};
use super::{Body, Result};

impl Body<'_, '_> {
    pub(super) fn atomic(
        &mut self,
        pointer: Handle<Expression>,
        fun: AtomicFunction,
        value: Handle<Expression>,
        result: Option<Handle<Expression>>,
    ) -> Result<()> {
        let place = self.scalar_place(pointer)?;
        if !matches!(place.kind, Kind::U32 | Kind::I32) {
            return self.refuse(format!("atomic operations on {:?}", place.kind));
        }
        let value = self.one(value)?;
        let op = match fun {
            AtomicFunction::Add => AtomicOp::Add,
            AtomicFunction::Subtract => AtomicOp::Sub,
            AtomicFunction::And => AtomicOp::And,
            AtomicFunction::InclusiveOr => AtomicOp::Or,
            AtomicFunction::ExclusiveOr => AtomicOp::Xor,
            AtomicFunction::Min => AtomicOp::Min,
            AtomicFunction::Max => AtomicOp::Max,
            AtomicFunction::Exchange { compare: None } => AtomicOp::Exchange,
            AtomicFunction::Exchange { compare: Some(expected) } => {
                let expected = self.one(expected)?;
                let (old, exchanged) = (self.register(place.kind), self.register(Kind::Bool));
                self.push(Stmt::CompareExchange { place, expected, value, old, exchanged });
                if let Some(handle) = result {
                    self.values.insert(handle, vec![Value::Reg(old), Value::Reg(exchanged)]);
                }
                return Ok(());
            }
        };
        let old = result.map(|_| self.register(place.kind));
        if let (Some(handle), Some(old)) = (result, old) {
            self.values.insert(handle, vec![Value::Reg(old)]);
        }
        self.push(Stmt::Atomic { place, op, value, old });
        Ok(())
    }
}
