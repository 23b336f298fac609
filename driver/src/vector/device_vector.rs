//! Typed views of ranges of segments.

use std::cell::Cell;
use std::marker::PhantomData;

use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::segment::Segment;
use crate::util::{check_aligned, check_range};
use crate::vector::element::{Element, ElementKind, VECTOR_ELEMENTS_MAX, as_bytes, as_bytes_mut};

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

/// Refuses a length that is not in `1 ..= i32::MAX`.
pub(crate) fn check_elements(len: u64, doing: &'static str) -> Result<()> {
    if len == 0 {
        return Err(Error::new(ErrorKind::ZeroSize, doing));
    }
    if len > VECTOR_ELEMENTS_MAX {
        let kind = ErrorKind::TooLarge { need: len, max: VECTOR_ELEMENTS_MAX };
        return Err(Error::new(kind, doing).with("unit", "elements"));
    }
    Ok(())
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
        check_aligned(offset_bytes, size_of::<T>() as u64, DOING)?;
        Ok(Self { segment: segment.clone(), offset_bytes, len, _elements: PhantomData })
    }

    fn check_len(len: u64) -> Result<u64> {
        check_elements(len, "sizing a vector")?;
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
        self.segment.write(offset, as_bytes(from))
    }

    /// Copies elements out, from `first` on; default stream, complete on return.
    ///
    /// # Errors
    /// `OutOfBounds` (in elements); as [`Segment::read`].
    pub fn read(&self, first: u64, into: &mut [T]) -> Result<()> {
        let offset = self.byte_offset(first, into.len(), "reading a vector")?;
        self.segment.read(offset, as_bytes_mut(into))
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
