//! The built-in kernels on the CPU.

use crate::casts;
use spoc_driver::{BuiltIn, Call, Element, ElementKind, Error, ErrorKind, Result};

/// Sums and products as every backend gives them: integers wrap.
trait Number: Element {
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
}

macro_rules! wrapping {
    ($($type:ty),*) => {
        $(impl Number for $type {
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
        })*
    };
}

macro_rules! rounding {
    ($($type:ty: $none:expr),*) => {
        $(impl Number for $type {
            fn plus(self, other: Self) -> Self {
                let sum = self + other;
                if sum.is_nan() { $none } else { sum }
            }

            fn times(self, other: Self) -> Self {
                let product = self * other;
                if product.is_nan() { $none } else { product }
            }
        })*
    };
}

wrapping!(u8, i8, u16, i16, u32, i32, u64, i64);
// What is no number is the one quiet NaN: processors differ in which of many they give.
rounding!(
    half::f16: Self::from_bits(0x7e00),
    half::bf16: Self::from_bits(0x7fc0),
    f32: Self::from_bits(0x7fc0_0000),
    f64: Self::from_bits(0x7ff8 << 48)
);

/// Runs a built-in. Its roles and kinds were checked by the driver.
pub(crate) fn run(which: BuiltIn, call: &mut Call<'_>) -> Result<()> {
    match which {
        BuiltIn::Digest => return casts::digest(call),
        BuiltIn::Cast | BuiltIn::FromE4m3 | BuiltIn::ToE4m3 | BuiltIn::FromE5m2 | BuiltIn::ToE5m2 => {
            return casts::run(which, call);
        }
        _ => {}
    }
    match call.kind(0)? {
        Some(ElementKind::U8) => typed::<u8>(which, call),
        Some(ElementKind::I8) => typed::<i8>(which, call),
        Some(ElementKind::U16) => typed::<u16>(which, call),
        Some(ElementKind::I16) => typed::<i16>(which, call),
        Some(ElementKind::U32) => typed::<u32>(which, call),
        Some(ElementKind::I32) => typed::<i32>(which, call),
        Some(ElementKind::U64) => typed::<u64>(which, call),
        Some(ElementKind::I64) => typed::<i64>(which, call),
        Some(ElementKind::F16) => typed::<half::f16>(which, call),
        Some(ElementKind::Bf16) => typed::<half::bf16>(which, call),
        Some(ElementKind::F32) => typed::<f32>(which, call),
        Some(ElementKind::F64) => typed::<f64>(which, call),
        None => Err(Error::new(ErrorKind::WrongKind, "running a built-in kernel")),
    }
}

fn typed<T: Number>(which: BuiltIn, call: &mut Call<'_>) -> Result<()> {
    match which {
        BuiltIn::Fill => {
            let value = call.scalar::<T>(1)?;
            call.write::<T>(0)?.fill(value);
        }
        BuiltIn::Copy => {
            let (from, to) = (call.read::<T>(0)?, call.write::<T>(1)?);
            let len = from.len().min(to.len());
            to[..len].copy_from_slice(&from[..len]);
        }
        BuiltIn::Add => {
            let (a, b, out) = (call.read::<T>(0)?, call.read::<T>(1)?, call.write::<T>(2)?);
            for ((a, b), out) in a.iter().zip(b).zip(out) {
                *out = a.plus(*b);
            }
        }
        BuiltIn::Scale => {
            let (from, factor, out) = (call.read::<T>(0)?, call.scalar::<T>(1)?, call.write::<T>(2)?);
            for (from, out) in from.iter().zip(out) {
                *out = from.times(factor);
            }
        }
        BuiltIn::Gather => {
            let (from, indices) = (call.read::<T>(0)?, call.read::<u32>(1)?);
            let (chunk, out) = (call.scalar::<u32>(2)?, call.write::<T>(3)?);
            gather(from, indices, chunk, out);
        }
        // Not of one kind: `run` has seen to them.
        _ => {}
    }
    Ok(())
}

fn gather<T: Number>(from: &[T], indices: &[u32], chunk: u32, out: &mut [T]) {
    let Some(chunk) = usize::try_from(chunk).ok().filter(|chunk| *chunk > 0) else { return };
    for (index, out) in indices.iter().zip(out.chunks_mut(chunk)) {
        let first = usize::try_from(*index).unwrap_or(usize::MAX).saturating_mul(chunk);
        let inside = from.get(first..).unwrap_or_default();
        let len = inside.len().min(out.len());
        let (there, beyond) = out.split_at_mut(len);
        there.copy_from_slice(&inside[..len]);
        beyond.fill(T::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gather_takes_chunks_and_zeroes_what_is_not_there() {
        let from = [1_u16, 2, 3, 4, 5];
        let mut out = [9; 9];
        gather(&from, &[1, 0, 2, u32::MAX], 2, &mut out);
        assert_eq!(out, [3, 4, 1, 2, 5, 0, 0, 0, 9]);
        gather(&from, &[2], 0, &mut out);
        assert_eq!(out[0], 3);
    }

    #[test]
    fn integers_wrap_and_floats_round() {
        assert_eq!(200_u8.plus(100), 44);
        assert_eq!(i64::MIN.times(-1), i64::MIN);
        let third = half::bf16::from_f32(1.0 / 3.0);
        assert_eq!(third.plus(third).to_f32(), half::bf16::from_f32(2.0 * third.to_f32()).to_f32());
    }
}
