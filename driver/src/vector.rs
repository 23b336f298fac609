//! Typed views of device memory.

use std::cell::Cell;
use std::marker::PhantomData;

use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::segment::Segment;
use crate::util::check_range;

/// The kinds of elements a vector can have.
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

mod sealed {
    pub trait Sealed {}
}

/// A type that can be an element: plain numbers, every bit pattern valid, no padding.
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

/// Most elements a vector may have: kernels index with 32 bits.
pub const VECTOR_ELEMENTS_MAX: u64 = i32::MAX as u64;

/// A device-only vector: `1 ..= i32::MAX` elements in a range of a segment. There is no host copy behind
/// it; dropping it discards its contents.
///
/// ```compile_fail,E0277
/// fn sync<T: Sync>() {}
/// sync::<spoc_driver::DeviceVector<f32>>();
/// ```
/// ```
/// fn send<T: Send>() {}
/// send::<spoc_driver::DeviceVector<f32>>();
/// ```
pub struct DeviceVector<T: Element> {
    segment: Segment,
    offset_bytes: u64,
    len: u64,
    _elements: PhantomData<Cell<T>>,
}

impl<T: Element> DeviceVector<T> {
    /// A vector of `len` elements in a segment of its own. Its contents are unspecified.
    ///
    /// # Errors
    /// `ZeroSize`; `TooLarge`; `OutOfDeviceMemory`.
    pub fn allocate(device: &Device, len: u64) -> Result<Self> {
        let len_bytes = Self::check_len(len)?;
        Ok(Self { segment: device.allocate(len_bytes)?, offset_bytes: 0, len, _elements: PhantomData })
    }

    /// A view of `len` elements at a byte offset of a segment.
    ///
    /// # Errors
    /// `ZeroSize`; `TooLarge`; `OutOfBounds`; `Misaligned` if the offset is no multiple of the element's size.
    pub fn view(segment: &Segment, offset_bytes: u64, len: u64) -> Result<Self> {
        const DOING: &str = "viewing a segment as a vector";
        let len_bytes = Self::check_len(len)?;
        check_range(offset_bytes, len_bytes, segment.len_bytes(), DOING)?;
        crate::util::check_aligned(offset_bytes, size_of::<T>() as u64, DOING)?;
        Ok(Self { segment: segment.clone(), offset_bytes, len, _elements: PhantomData })
    }

    fn check_len(len: u64) -> Result<u64> {
        const DOING: &str = "sizing a vector";
        if len == 0 {
            return Err(Error::new(ErrorKind::ZeroSize, DOING));
        }
        if len > VECTOR_ELEMENTS_MAX {
            let kind = ErrorKind::TooLarge { need: len, max: VECTOR_ELEMENTS_MAX };
            return Err(Error::new(kind, DOING).with("unit", "elements"));
        }
        Ok(len * size_of::<T>() as u64)
    }

    /// How many elements.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Always false: an empty vector cannot be made.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The kind of the elements.
    #[must_use]
    pub fn kind(&self) -> ElementKind {
        T::KIND
    }

    /// The segment it lies in, for stream copies.
    #[must_use]
    pub fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Where it begins in the segment, in bytes.
    #[must_use]
    pub fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    /// Copies elements in, from `first` on; default stream, complete on return.
    ///
    /// # Errors
    /// `OutOfBounds` (in elements); as [`Segment::write`].
    pub fn write(&self, first: u64, from: &[T]) -> Result<()> {
        let offset = self.byte_offset(first, from.len(), "writing a vector")?;
        // SAFETY: elements are plain numbers without padding (sealed trait), so their bytes are initialised;
        // the length is that of the borrowed slice.
        let bytes = unsafe { std::slice::from_raw_parts(from.as_ptr().cast::<u8>(), size_of_val(from)) };
        self.segment.write(offset, bytes)
    }

    /// Copies elements out, from `first` on; default stream, complete on return.
    ///
    /// # Errors
    /// `OutOfBounds` (in elements); as [`Segment::read`].
    pub fn read(&self, first: u64, into: &mut [T]) -> Result<()> {
        let offset = self.byte_offset(first, into.len(), "reading a vector")?;
        let len_bytes = size_of_val(into);
        // SAFETY: as in `write`, and every bit pattern is a valid element; the borrow is exclusive.
        let bytes = unsafe { std::slice::from_raw_parts_mut(into.as_mut_ptr().cast::<u8>(), len_bytes) };
        self.segment.read(offset, bytes)
    }

    fn byte_offset(&self, first: u64, count: usize, doing: &'static str) -> Result<u64> {
        check_range(first, count as u64, self.len, doing)?;
        Ok(self.offset_bytes + first * size_of::<T>() as u64)
    }
}

impl<T: Element> std::fmt::Debug for DeviceVector<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceVector").field("kind", &T::KIND).field("len", &self.len).finish()
    }
}
