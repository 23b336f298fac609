//! Types taken apart into scalars.

use naga::{ArraySize, Literal, Module, Scalar, ScalarKind, TypeInner};

use super::super::Refusal;
use super::super::ir::{Kind, Place, Site, Space, Value};
use super::Result;

/// A value of more scalars than this is refused: it would become as many registers.
const LEAVES_MAX: usize = 256;

/// A scalar of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Leaf {
    pub(super) offset: u32,
    pub(super) kind: Kind,
    pub(super) is_atomic: bool,
}

impl Leaf {
    pub(super) fn place(self, space: Space, offset: u32, site: Site) -> Place {
        let (kind, is_atomic) = (self.kind, self.is_atomic);
        Place { space, offset: offset + self.offset, steps: Vec::new(), kind, is_atomic, site }
    }
}

/// The kind of a scalar.
pub(super) fn kind(scalar: Scalar, site: Site) -> Result<Kind> {
    Ok(match (scalar.kind, scalar.width) {
        (ScalarKind::Bool, _) => Kind::Bool,
        (ScalarKind::Sint, 4) => Kind::I32,
        (ScalarKind::Uint, 4) => Kind::U32,
        (ScalarKind::Sint, 8) => Kind::I64,
        (ScalarKind::Uint, 8) => Kind::U64,
        (ScalarKind::Float, 2) => Kind::F16,
        (ScalarKind::Float, 4) => Kind::F32,
        (ScalarKind::Float, 8) => Kind::F64,
        (kind, width) => {
            return Err(Refusal::uncovered(format!("{kind:?} numbers of {width} bytes"), site));
        }
    })
}

/// The scalars of a type, in order.
pub(super) fn leaves(module: &Module, inner: &TypeInner, site: Site) -> Result<Vec<Leaf>> {
    let mut leaves = Vec::new();
    collect(module, inner, 0, site, &mut leaves)?;
    Ok(leaves)
}

fn collect(module: &Module, inner: &TypeInner, base: u32, site: Site, leaves: &mut Vec<Leaf>) -> Result<()> {
    if leaves.len() > LEAVES_MAX {
        return Err(Refusal::uncovered(format!("a value of more than {LEAVES_MAX} numbers"), site));
    }
    match *inner {
        TypeInner::Scalar(scalar) => {
            leaves.push(Leaf { offset: base, kind: kind(scalar, site)?, is_atomic: false });
        }
        TypeInner::Atomic(scalar) => {
            leaves.push(Leaf { offset: base, kind: kind(scalar, site)?, is_atomic: true });
        }
        TypeInner::Vector { size, scalar } => {
            let kind = kind(scalar, site)?;
            let offset = |position| base + position * u32::from(scalar.width);
            leaves.extend((0..u32::from(size)).map(|position| Leaf {
                offset: offset(position),
                kind,
                is_atomic: false,
            }));
        }
        TypeInner::Array { base: element, size: ArraySize::Constant(count), stride } => {
            if count.get() as usize > LEAVES_MAX {
                return Err(Refusal::uncovered(format!("an array of {count} elements as a value"), site));
            }
            for position in 0..count.get() {
                collect(module, &module.types[element].inner, base + position * stride, site, leaves)?;
            }
        }
        TypeInner::Struct { ref members, .. } => {
            for member in members {
                collect(module, &module.types[member.ty].inner, base + member.offset, site, leaves)?;
            }
        }
        ref other => return Err(Refusal::uncovered(name(other), site)),
    }
    Ok(())
}

/// What a type that is not covered is called.
pub(super) fn name(inner: &TypeInner) -> String {
    match inner {
        TypeInner::Matrix { .. } => "matrices".to_owned(),
        TypeInner::CooperativeMatrix { .. } => "cooperative matrices".to_owned(),
        TypeInner::Image { .. } => "textures".to_owned(),
        TypeInner::Sampler { .. } => "samplers".to_owned(),
        TypeInner::Array { size: ArraySize::Dynamic, .. } => "a runtime-sized array as a value".to_owned(),
        TypeInner::Array { size: ArraySize::Pending(_), .. } => "arrays sized by an override".to_owned(),
        TypeInner::BindingArray { .. } => "binding arrays".to_owned(),
        TypeInner::AccelerationStructure { .. } | TypeInner::RayQuery { .. } => "ray queries".to_owned(),
        other => format!("{other:?}"),
    }
}

/// A literal, as a register holds it.
pub(super) fn literal(literal: Literal, site: Site) -> Result<Value> {
    Ok(match literal {
        Literal::F64(value) => Value::Const(Kind::F64, value.to_bits()),
        Literal::F32(value) => Value::f32(value),
        Literal::F16(value) => Value::Const(Kind::F16, value.to_f32().to_bits().into()),
        Literal::U32(value) => Value::u32(value),
        Literal::I32(value) => Value::Const(Kind::I32, value.cast_unsigned().into()),
        Literal::U64(value) => Value::Const(Kind::U64, value),
        Literal::I64(value) => Value::Const(Kind::I64, value.cast_unsigned()),
        Literal::Bool(value) => Value::bool(value),
        other => return Err(Refusal::uncovered(format!("the literal {other:?}"), site)),
    })
}
