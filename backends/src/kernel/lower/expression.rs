//! Expressions.

use naga::{BinaryOperator, Expression, Handle, RelationalFunction, ScalarKind, TypeInner, UnaryOperator};

use super::super::ir::{Binary, Kind, Op, Unary, Value};
use super::{Body, Result, types};

impl<'p> Body<'_, 'p> {
    /// Evaluates an expression where the kernel says so.
    pub(super) fn emit(&mut self, handle: Handle<Expression>) -> Result<()> {
        let is_pointer =
            matches!(self.type_of(handle), TypeInner::Pointer { .. } | TypeInner::ValuePointer { .. });
        // A pointer is resolved where it is used; what it is made of has been evaluated.
        if !is_pointer && !self.values.contains_key(&handle) {
            let outer = self.site;
            self.site = self.lowerer.parsed.site(self.function.expressions.get_span(handle));
            let values = self.evaluate(handle)?;
            self.site = outer;
            self.values.insert(handle, values);
        }
        Ok(())
    }

    /// The scalars of an expression.
    pub(super) fn value(&mut self, handle: Handle<Expression>) -> Result<Vec<Value>> {
        match self.values.get(&handle) {
            Some(values) => Ok(values.clone()),
            None => self.evaluate(handle),
        }
    }

    /// The scalar of an expression that is one.
    pub(super) fn one(&mut self, handle: Handle<Expression>) -> Result<Value> {
        match *self.value(handle)?.as_slice() {
            [value] => Ok(value),
            _ => self.refuse("a vector where a number is expected"),
        }
    }

    fn evaluate(&mut self, handle: Handle<Expression>) -> Result<Vec<Value>> {
        let function = self.function;
        match &function.expressions[handle] {
            Expression::Literal(literal) => Ok(vec![types::literal(*literal, self.site)?]),
            Expression::Constant(constant) => {
                let init = self.lowerer.parsed.module.constants[*constant].init;
                self.lowerer.constant(init, self.site)
            }
            Expression::ZeroValue(ty) => self.lowerer.zero(self.lowerer.inner(*ty), self.site),
            Expression::Compose { components, .. } => {
                let mut values = Vec::new();
                for component in components {
                    values.extend(self.value(*component)?);
                }
                Ok(values)
            }
            Expression::Splat { size, value } => Ok(self.value(*value)?.repeat(u32::from(*size) as usize)),
            Expression::Swizzle { size, vector, pattern } => {
                let values = self.value(*vector)?;
                let chosen = pattern.iter().take(u32::from(*size) as usize);
                Ok(chosen.filter_map(|component| values.get(*component as usize).copied()).collect())
            }
            Expression::FunctionArgument(position) => {
                Ok(self.arguments.get(*position as usize).cloned().unwrap_or_default())
            }
            Expression::Load { pointer } => self.load(*pointer),
            Expression::Access { base, index } => {
                let index = self.one(*index)?;
                self.part(*base, index)
            }
            Expression::AccessIndex { base, index } => self.part(*base, Value::u32(*index)),
            Expression::Unary { op, expr } => self.unary(*op, *expr),
            Expression::Binary { op, left, right } => self.binary(*op, *left, *right),
            Expression::Select { condition, accept, reject } => self.select(*condition, *accept, *reject),
            Expression::Relational { fun, argument } => self.relational(*fun, *argument),
            Expression::Math { fun, arg, arg1, arg2, arg3 } => {
                let mut arguments = vec![self.value(*arg)?];
                for more in [arg1, arg2, arg3].into_iter().flatten() {
                    arguments.push(self.value(*more)?);
                }
                self.math(*fun, &arguments)
            }
            Expression::As { expr, kind, convert } => self.cast(*expr, *kind, *convert),
            Expression::ArrayLength(pointer) => self.length(*pointer),
            other => self.refuse(uncovered(other)),
        }
    }

    /// A part of a value.
    fn part(&mut self, base: Handle<Expression>, index: Value) -> Result<Vec<Value>> {
        let values = self.value(base)?;
        let module = &self.lowerer.parsed.module;
        let parts: Vec<Vec<Value>> = match self.type_of(base) {
            TypeInner::Vector { .. } => values.into_iter().map(|value| vec![value]).collect(),
            TypeInner::Array { base: element, .. } => {
                let each = types::leaves(module, &module.types[*element].inner, self.site)?.len();
                values.chunks(each.max(1)).map(<[Value]>::to_vec).collect()
            }
            TypeInner::Struct { members, .. } => {
                let mut rest = values.as_slice();
                let mut parts = Vec::with_capacity(members.len());
                for member in members {
                    let each = types::leaves(module, &module.types[member.ty].inner, self.site)?.len();
                    let (part, after) = rest.split_at(each.min(rest.len()));
                    parts.push(part.to_vec());
                    rest = after;
                }
                parts
            }
            other => return self.refuse(types::name(other)),
        };
        Ok(self.choose(&parts, index))
    }

    fn unary(&mut self, op: UnaryOperator, operand: Handle<Expression>) -> Result<Vec<Value>> {
        let op = match op {
            UnaryOperator::Negate => Unary::Negate,
            UnaryOperator::LogicalNot | UnaryOperator::BitwiseNot => Unary::Not,
        };
        let values = self.value(operand)?;
        Ok(values.into_iter().map(|value| self.op1(op, value)).collect())
    }

    /// Of the operand's kind.
    pub(super) fn op1(&mut self, op: Unary, value: Value) -> Value {
        let kind = match op {
            Unary::IsNan | Unary::IsInf => Kind::Bool,
            Unary::ToHalfBits => Kind::U32,
            Unary::FromHalfBits => Kind::F32,
            _ => self.kind(value),
        };
        self.set(kind, Op::Unary(op, value))
    }

    /// Of the operands' kind, or a truth.
    pub(super) fn op2(&mut self, op: Binary, left: Value, right: Value) -> Value {
        let kind = match op {
            Binary::Equal
            | Binary::NotEqual
            | Binary::Less
            | Binary::LessEqual
            | Binary::Greater
            | Binary::GreaterEqual => Kind::Bool,
            _ => self.kind(left),
        };
        self.set(kind, Op::Binary(op, left, right))
    }

    /// Component by component; a single number goes with each.
    pub(super) fn pairs(&mut self, op: Binary, left: &[Value], right: &[Value]) -> Vec<Value> {
        let count = left.len().max(right.len());
        let pick = |values: &[Value], position: usize| values[if values.len() == 1 { 0 } else { position }];
        (0..count).map(|position| self.op2(op, pick(left, position), pick(right, position))).collect()
    }

    fn binary(
        &mut self,
        op: BinaryOperator,
        left: Handle<Expression>,
        right: Handle<Expression>,
    ) -> Result<Vec<Value>> {
        let op = match op {
            BinaryOperator::Add => Binary::Add,
            BinaryOperator::Subtract => Binary::Sub,
            BinaryOperator::Multiply => Binary::Mul,
            BinaryOperator::Divide => Binary::Div,
            BinaryOperator::Modulo => Binary::Rem,
            BinaryOperator::Equal => Binary::Equal,
            BinaryOperator::NotEqual => Binary::NotEqual,
            BinaryOperator::Less => Binary::Less,
            BinaryOperator::LessEqual => Binary::LessEqual,
            BinaryOperator::Greater => Binary::Greater,
            BinaryOperator::GreaterEqual => Binary::GreaterEqual,
            BinaryOperator::And | BinaryOperator::LogicalAnd => Binary::And,
            BinaryOperator::InclusiveOr | BinaryOperator::LogicalOr => Binary::Or,
            BinaryOperator::ExclusiveOr => Binary::Xor,
            BinaryOperator::ShiftLeft => Binary::Shl,
            BinaryOperator::ShiftRight => Binary::Shr,
        };
        let (left, right) = (self.value(left)?, self.value(right)?);
        Ok(self.pairs(op, &left, &right))
    }

    fn select(
        &mut self,
        condition: Handle<Expression>,
        accept: Handle<Expression>,
        reject: Handle<Expression>,
    ) -> Result<Vec<Value>> {
        let (condition, accept, reject) = (self.value(condition)?, self.value(accept)?, self.value(reject)?);
        let mut chosen = Vec::with_capacity(accept.len());
        for (position, (accept, reject)) in accept.into_iter().zip(reject).enumerate() {
            let condition = condition[if condition.len() == 1 { 0 } else { position }];
            chosen.push(self.choose_if(condition, accept, reject));
        }
        Ok(chosen)
    }

    pub(super) fn choose_if(&mut self, condition: Value, accept: Value, reject: Value) -> Value {
        let kind = self.kind(accept);
        self.set(kind, Op::Select(condition, accept, reject))
    }

    fn relational(&mut self, fun: RelationalFunction, argument: Handle<Expression>) -> Result<Vec<Value>> {
        let values = self.value(argument)?;
        let op = match fun {
            RelationalFunction::IsNan => Unary::IsNan,
            RelationalFunction::IsInf => Unary::IsInf,
            RelationalFunction::All | RelationalFunction::Any => {
                let op = if fun == RelationalFunction::All { Binary::And } else { Binary::Or };
                let joined = values.into_iter().reduce(|joined, value| self.op2(op, joined, value));
                return Ok(joined.into_iter().collect());
            }
        };
        Ok(values.into_iter().map(|value| self.op1(op, value)).collect())
    }

    fn cast(
        &mut self,
        expr: Handle<Expression>,
        kind: ScalarKind,
        convert: Option<u8>,
    ) -> Result<Vec<Value>> {
        let values = self.value(expr)?;
        let mut cast = Vec::with_capacity(values.len());
        for value in values {
            let from = self.kind(value);
            let width = match (convert, from) {
                (Some(width), _) => width,
                // Bits of a half stay a half's.
                (None, from) => u8::try_from(from.bytes()).unwrap_or(4),
            };
            let to = types::kind(naga::Scalar { kind, width }, self.site)?;
            cast.push(match convert {
                Some(_) => self.convert(value, to),
                None => self.set(to, Op::Bits(value)),
            });
        }
        Ok(cast)
    }

    pub(super) fn convert(&mut self, value: Value, to: Kind) -> Value {
        if self.kind(value) == to {
            return value;
        }
        self.set(to, Op::Convert(value))
    }

    fn length(&mut self, pointer: Handle<Expression>) -> Result<Vec<Value>> {
        // The array itself, or the struct's last member.
        let (variable, member) = match self.function.expressions[pointer] {
            Expression::AccessIndex { base, index } => (base, Some(index)),
            _ => (pointer, None),
        };
        let Expression::GlobalVariable(global) = self.function.expressions[variable] else {
            return self.refuse("the length of an array that is no variable");
        };
        let ty = self.lowerer.parsed.module.global_variables[global].ty;
        let (array, offset) = match (self.lowerer.inner(ty), member) {
            (TypeInner::Struct { members, .. }, Some(index)) => match members.get(index as usize) {
                Some(member) => (self.lowerer.inner(member.ty), member.offset),
                None => return self.refuse("a member that is not there"),
            },
            (inner, _) => (inner, 0),
        };
        let (TypeInner::Array { stride, .. }, Some(known)) = (array, self.lowerer.globals.get(&global))
        else {
            return self.refuse("the length of what is no array");
        };
        let super::Space::Buffer(buffer) = known.space else {
            return self.refuse("the length of an array outside storage");
        };
        let op = Op::Length { buffer, offset, stride: *stride };
        Ok(vec![self.set(Kind::U32, op)])
    }
}

fn uncovered(expression: &Expression) -> &'static str {
    match expression {
        Expression::ImageSample { .. } | Expression::ImageLoad { .. } | Expression::ImageQuery { .. } => {
            "textures"
        }
        Expression::Derivative { .. } => "derivatives",
        Expression::Override(_) => "override declarations",
        Expression::CooperativeLoad { .. } | Expression::CooperativeMultiplyAdd { .. } => {
            "cooperative matrices"
        }
        Expression::SubgroupBallotResult | Expression::SubgroupOperationResult { .. } => {
            "subgroup operations"
        }
        Expression::GlobalVariable(_) | Expression::LocalVariable(_) => "a variable as a value",
        _ => "this expression",
    }
}
