//! Scalar arguments.

use crate::vector::{Element, ElementKind, as_bytes};

/// A plain number passed to a kernel by value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Scalar {
    kind: ElementKind,
    bytes: [u8; 8],
}

impl Scalar {
    /// A number of any kind.
    #[must_use]
    pub fn of<T: Element>(value: T) -> Self {
        let mut bytes = [0; 8];
        let from = as_bytes(std::slice::from_ref(&value));
        bytes[..from.len()].copy_from_slice(from);
        Self { kind: T::KIND, bytes }
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> ElementKind {
        self.kind
    }

    /// Its bytes, in the host's order.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.kind.len_bytes()]
    }

    /// The number, if it is of that kind.
    #[must_use]
    pub fn get<T: Element>(&self) -> Option<T> {
        (self.kind == T::KIND).then(|| <T as crate::vector::Item>::load(self.bytes()))
    }
}

impl std::fmt::Debug for Scalar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Scalar({} {:?})", self.kind, self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_keep_their_kind_and_value() {
        assert_eq!(Scalar::of(1.5_f32).get::<f32>(), Some(1.5));
        assert_eq!(Scalar::of(-3_i8).get::<i8>(), Some(-3));
        assert_eq!(Scalar::of(half::bf16::ONE).get::<half::bf16>(), Some(half::bf16::ONE));
        assert_eq!(Scalar::of(u64::MAX).bytes(), [0xff; 8]);
        assert_eq!(Scalar::of(1_u32).get::<i32>(), None);
    }
}
