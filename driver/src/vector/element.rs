//! What vectors are made of: plain numbers, and records of the user's own.

use std::fmt;

/// The kinds of plain numbers a vector can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ElementKind {
    /// Unsigned 8-bit.
    U8,
    /// Signed 8-bit.
    I8,
    /// Unsigned 16-bit.
    U16,
    /// Signed 16-bit.
    I16,
    /// Unsigned 32-bit.
    U32,
    /// Signed 32-bit.
    I32,
    /// Unsigned 64-bit.
    U64,
    /// Signed 64-bit.
    I64,
    /// IEEE half.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE single.
    F32,
    /// IEEE double.
    F64,
}

impl ElementKind {
    /// Every kind.
    pub const ALL: [Self; 12] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::U64,
        Self::I64,
        Self::F16,
        Self::Bf16,
        Self::F32,
        Self::F64,
    ];

    /// Size of an element in bytes.
    #[must_use]
    pub fn len_bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::Bf16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// Rust's name of the type: `u8`, `bf16`, …
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
        }
    }
}

impl fmt::Display for ElementKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

mod sealed {
    pub trait Sealed {}

    /// Nameable in this crate alone, so that nobody else can override what takes it.
    #[derive(Debug, Clone, Copy)]
    pub struct Token;
}

/// A plain number: every bit pattern valid, no padding.
pub trait Element: sealed::Sealed + Copy + Default + Send + Sync + 'static {
    /// Its kind.
    const KIND: ElementKind;
}

macro_rules! elements {
    ($($type:ty => $kind:ident),* $(,)?) => {
        $(
            impl sealed::Sealed for $type {}
            impl Element for $type {
                const KIND: ElementKind = ElementKind::$kind;
            }
        )*
    };
}

elements! {
    u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64,
    half::f16 => F16, half::bf16 => Bf16, f32 => F32, f64 => F64,
}

/// What a [`crate::Vector`] can hold: every [`Element`], and records that say how they lie in memory.
///
/// A record is refused by ranged and byte copies and by device-only vectors; whole transfers carry it, and
/// kernels see its bytes.
///
/// ```
/// #[derive(Clone, Copy)]
/// struct Point { x: f32, y: f32 }
///
/// impl spoc_driver::Item for Point {
///     const LEN_BYTES: usize = 8;
///     fn store(&self, out: &mut [u8]) {
///         out[..4].copy_from_slice(&self.x.to_ne_bytes());
///         out[4..].copy_from_slice(&self.y.to_ne_bytes());
///     }
///     fn load(from: &[u8]) -> Self {
///         let word = |at: usize| f32::from_ne_bytes([from[at], from[at + 1], from[at + 2], from[at + 3]]);
///         Self { x: word(0), y: word(4) }
///     }
/// }
/// # fn main() -> spoc_driver::Result<()> {
/// let mut points = spoc_driver::Vector::<Point>::zeroed(10)?;
/// points.set(3, Point { x: 1.0, y: 2.0 })?;
/// assert_eq!(points.get(3)?.y, 2.0);
/// # Ok(()) }
/// ```
pub trait Item: Copy + Send + 'static {
    /// Size of one in memory, in bytes (≥ 1).
    const LEN_BYTES: usize;
    /// Writes the record to `LEN_BYTES` bytes.
    fn store(&self, out: &mut [u8]);
    /// Reads a record from `LEN_BYTES` bytes, whatever they are.
    fn load(from: &[u8]) -> Self;

    /// The kind of a plain number; nothing for a record.
    #[doc(hidden)]
    #[must_use]
    fn element_kind(_: sealed::Token) -> Option<ElementKind> {
        None
    }
}

impl<T: Element> Item for T {
    const LEN_BYTES: usize = size_of::<T>();

    fn store(&self, out: &mut [u8]) {
        out.copy_from_slice(as_bytes(std::slice::from_ref(self)));
    }

    fn load(from: &[u8]) -> Self {
        let mut value = Self::default();
        as_bytes_mut(std::slice::from_mut(&mut value)).copy_from_slice(from);
        value
    }

    fn element_kind(_: sealed::Token) -> Option<ElementKind> {
        Some(T::KIND)
    }
}

/// The kind of an item: a plain number's, or nothing for a record.
#[must_use]
pub fn kind_of<T: Item>() -> Option<ElementKind> {
    T::element_kind(sealed::Token)
}

/// Most elements a vector may have on a device: kernels index with 32 bits.
pub const VECTOR_ELEMENTS_MAX: u64 = i32::MAX as u64;

/// The bytes of elements.
pub(crate) fn as_bytes<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: elements have no padding (sealed trait), so all their bytes are initialised; the length is that
    // of the slice, which stays borrowed.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast::<u8>(), size_of_val(elements)) }
}

/// The bytes of elements, to write.
pub(crate) fn as_bytes_mut<T: Element>(elements: &mut [T]) -> &mut [u8] {
    let len_bytes = size_of_val(elements);
    // SAFETY: as above, every bit pattern is a valid element (sealed trait), and the borrow is exclusive.
    unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast::<u8>(), len_bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sized<T: Element + PartialEq + fmt::Debug>(value: T) {
        assert_eq!(size_of::<T>(), T::KIND.len_bytes());
        let mut bytes = [0; 8];
        let bytes = &mut bytes[..T::LEN_BYTES];
        value.store(bytes);
        assert_eq!(T::load(bytes), value);
        assert_eq!(kind_of::<T>(), Some(T::KIND));
    }

    #[test]
    fn every_kind_knows_its_size_and_survives_its_bytes() {
        sized(1_u8);
        sized(-1_i8);
        sized(0x1234_u16);
        sized(-2_i16);
        sized(3_u32);
        sized(-4_i32);
        sized(5_u64);
        sized(-6_i64);
        sized(half::f16::from_f32(1.5));
        sized(half::bf16::from_f32(-2.5));
        sized(0.1_f32);
        sized(-0.2_f64);
        assert_eq!(ElementKind::ALL.len(), 12);
    }
}
