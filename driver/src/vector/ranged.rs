//! Copies of parts of a vector's device copy. No whole transfer is ever made on the way.
//!
//! Without a stream: on the default stream, complete on return, after non-blocking streams that still use the
//! vector. With a stream, the default one included: enqueued, ordered by that stream alone.

use std::ops::Range;

use super::element::{Element, Item, as_bytes, as_bytes_mut};
use super::location::{Next, Operation};
use super::movement::Cell;
use super::state::Held;
use super::whole::{Body, Vector};
use crate::copies::CopyRange;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result, Returned};
use crate::host::{ElementSink, ElementSource, HostSink, HostSource};
use crate::pending::PendingRead;
use crate::stream::Stream;
use crate::util::{check_aligned, check_range, host_len};

const TO_DEVICE: &str = "copying into a vector";
const TO_HOST: &str = "copying out of a vector";
const ON_DEVICE: &str = "copying between vectors";

/// Typed copies: the kinds of both sides match by type.
///
/// ```compile_fail,E0308
/// # fn wrong(vector: &mut spoc_driver::Vector<f32>) -> spoc_driver::Result<()> {
/// let bytes: [u8; 4] = [0; 4];
/// vector.copy_to_device(0, &bytes)
/// # }
/// ```
/// Nobody can look at the destination of a stream copy before it has run:
/// ```compile_fail,E0382
/// # fn wrong(vector: &spoc_driver::Vector<f32>, stream: &spoc_driver::Stream) {
/// let destination = spoc_driver::Elements(vec![0.0_f32; 4]);
/// let pending = vector.copy_to_host_on(stream, 0, destination);
/// println!("{}", destination[0]);
/// # }
/// ```
/// Nor change the source of one:
/// ```compile_fail,E0382
/// # fn wrong(vector: &mut spoc_driver::Vector<f32>, stream: &spoc_driver::Stream) {
/// let mut source = spoc_driver::Elements(vec![0.0_f32; 4]);
/// vector.copy_to_device_on(stream, 0, source);
/// source[0] = 1.0;
/// # }
/// ```
impl<T: Element> Vector<T> {
    /// Copies elements into the device copy, from `first` on. Complete on return.
    ///
    /// # Errors
    /// `OutOfBounds` (in elements); `WrongLocation` if the device copy is not current: call
    /// [`Vector::to_device`] first; `Misaligned`; the failure of enqueued work.
    pub fn copy_to_device(&mut self, first: u64, src: &[T]) -> Result<()> {
        let offset = self.body.range(first, src.len(), TO_DEVICE)?;
        self.body.write_range(offset, as_bytes(src))
    }

    /// Copies elements out of the device copy, from `first` on. Complete on return; the location stays.
    ///
    /// # Errors
    /// As [`Vector::copy_to_device`].
    pub fn copy_to_host(&self, first: u64, dst: &mut [T]) -> Result<()> {
        let offset = self.body.range(first, dst.len(), TO_HOST)?;
        self.body.read_range(offset, as_bytes_mut(dst))
    }

    /// Enqueues a copy of all of `src` into the device copy, from `first` on. The ledger owns `src` until the
    /// copy has run.
    ///
    /// # Errors
    /// With `src` given back: as [`Vector::copy_to_device`]; `WrongDevice` if the stream is another device's;
    /// the stream's sticky failure.
    pub fn copy_to_device_on<S: ElementSource<T>>(
        &mut self,
        stream: &Stream,
        first: u64,
        src: S,
    ) -> Result<(), Returned<S>> {
        match self.body.whole_elements(first, src.len_bytes(), TO_DEVICE) {
            Ok(offset) => self.body.write_on(stream, offset, src),
            Err(error) => Err(Returned::new(src, error)),
        }
    }

    /// Enqueues a copy that fills `dst` from the device copy, from `first` on. [`PendingRead::wait`] gives
    /// `dst` back.
    ///
    /// # Errors
    /// With `dst` given back: as [`Vector::copy_to_device_on`].
    pub fn copy_to_host_on<D: ElementSink<T>>(
        &self,
        stream: &Stream,
        first: u64,
        dst: D,
    ) -> Result<PendingRead<D>, Returned<D>> {
        match self.body.whole_elements(first, dst.len_bytes(), TO_HOST) {
            Ok(offset) => self.body.read_on(stream, offset, dst),
            Err(error) => Err(Returned::new(dst, error)),
        }
    }

    /// Copies `range` of another vector's device copy into this one's, from `first` on. Complete on return.
    ///
    /// # Errors
    /// `OutOfBounds` (in elements); `WrongLocation` if either is not current on a device; `WrongDevice` if
    /// they are on two; the failure of enqueued work.
    pub fn copy_from(&mut self, first: u64, src: &Self, range: Range<u64>) -> Result<()> {
        let (to, from) = self.between(first, src, &range)?;
        to.held.segment.copy_from(to.offset, &from.held.segment, from.offset, from.len)?;
        self.body.settle_at(to.next, Some(&to.held.device));
        Ok(())
    }

    /// [`Vector::copy_from`], enqueued on a stream.
    ///
    /// # Errors
    /// As [`Vector::copy_from`]; `WrongDevice` if the stream is another device's; the stream's sticky failure.
    pub fn copy_from_on(&mut self, stream: &Stream, first: u64, src: &Self, range: Range<u64>) -> Result<()> {
        let (to, from) = self.between(first, src, &range)?;
        stream.copy_device_to_device(
            &from.held.segment,
            from.offset,
            &to.held.segment,
            to.offset,
            from.len,
        )?;
        self.body.settle_at(to.next, Some(&to.held.device));
        Ok(())
    }

    /// Copies a part of the device copy to another part of it. Complete on return.
    ///
    /// # Errors
    /// `Overlap`; as [`Vector::copy_from`].
    pub fn copy_within(&mut self, first: u64, range: Range<u64>) -> Result<()> {
        let (to, from) = self.between(first, self, &range)?;
        if from.offset.abs_diff(to.offset) < from.len {
            return Err(Error::new(ErrorKind::Overlap, ON_DEVICE).with("bytes", from.len));
        }
        to.held.segment.copy_from(to.offset, &from.held.segment, from.offset, from.len)?;
        self.body.settle_at(to.next, Some(&to.held.device));
        Ok(())
    }

    fn between(&self, first: u64, src: &Self, range: &Range<u64>) -> Result<(Part, Part)> {
        let count = range.end.saturating_sub(range.start);
        check_range(range.start, count, src.len(), ON_DEVICE)?;
        check_range(first, count, self.len(), ON_DEVICE)?;
        let item = self.body.item_bytes;
        let to = self.body.part(Operation::RangedWrite, None, first * item, count * item)?;
        let from =
            src.body.part(Operation::RangedRead, Some(&to.held.device), range.start * item, count * item)?;
        Ok((to, from))
    }
}

/// Byte copies: exactly the other side's size, whatever the kinds, with no conversion of byte order.
impl<T: Item> Vector<T> {
    /// Copies bytes into the device copy. Complete on return.
    ///
    /// # Errors
    /// `WrongKind` for records; `OutOfBounds` (in bytes); as [`Vector::copy_to_device`].
    pub fn copy_bytes_to_device(&mut self, offset_bytes: u64, src: &[u8]) -> Result<()> {
        self.body.refuse_record(TO_DEVICE)?;
        self.body.write_range(offset_bytes, src)
    }

    /// Copies bytes out of the device copy until `dst` is full. Complete on return; the location stays.
    ///
    /// # Errors
    /// As [`Vector::copy_bytes_to_device`].
    pub fn copy_bytes_to_host(&self, offset_bytes: u64, dst: &mut [u8]) -> Result<()> {
        self.body.refuse_record(TO_HOST)?;
        self.body.read_range(offset_bytes, dst)
    }

    /// Enqueues a copy of all of `src` into the device copy.
    ///
    /// # Errors
    /// With `src` given back: as [`Vector::copy_bytes_to_device`]; `WrongDevice` if the stream is another
    /// device's; the stream's sticky failure.
    pub fn copy_bytes_to_device_on<S: HostSource>(
        &mut self,
        stream: &Stream,
        offset_bytes: u64,
        src: S,
    ) -> Result<(), Returned<S>> {
        match self.body.refuse_record(TO_DEVICE) {
            Ok(()) => self.body.write_on(stream, offset_bytes, src),
            Err(error) => Err(Returned::new(src, error)),
        }
    }

    /// Enqueues a copy out of the device copy that fills `dst`.
    ///
    /// # Errors
    /// With `dst` given back: as [`Vector::copy_bytes_to_device_on`].
    pub fn copy_bytes_to_host_on<D: HostSink>(
        &self,
        stream: &Stream,
        offset_bytes: u64,
        dst: D,
    ) -> Result<PendingRead<D>, Returned<D>> {
        match self.body.refuse_record(TO_HOST) {
            Ok(()) => self.body.read_on(stream, offset_bytes, dst),
            Err(error) => Err(Returned::new(dst, error)),
        }
    }
}

/// A checked range of a device copy, and the location once it is used.
pub(crate) struct Part {
    pub(crate) held: Held,
    /// In the segment, in bytes.
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) next: Next,
}

impl Body {
    /// Byte offset of an element range whose bytes somebody else counts: pinned memory has no elements.
    fn whole_elements(&self, first: u64, len_bytes: usize, doing: &'static str) -> Result<u64> {
        check_aligned(len_bytes as u64, self.item_bytes, doing)?;
        self.range(first, len_bytes / host_len(self.item_bytes, doing)?, doing)
    }

    /// Checks a byte range of the device copy; `named` is the stream's device, or the home if there is no stream.
    pub(crate) fn part(
        &self,
        operation: Operation,
        named: Option<&Device>,
        offset: u64,
        len: u64,
    ) -> Result<Part> {
        const DOING: &str = "copying a part of a vector";
        check_range(offset, len, self.len_bytes(), DOING)?;
        let home = self.state.borrow().home.clone();
        let Cell::Move(_, next) = self.look_up(operation, named.or(home.as_ref()))? else {
            return Err(self.refusal(ErrorKind::WrongLocation, operation, DOING));
        };
        let held = self.home_buffer(DOING)?;
        let offset = held.offset_bytes + offset;
        Ok(Part { held, offset, len, next })
    }

    fn write_range(&self, offset: u64, src: &[u8]) -> Result<()> {
        let part = self.part(Operation::RangedWrite, None, offset, src.len() as u64)?;
        part.held.segment.write(part.offset, src)?;
        self.settle_at(part.next, Some(&part.held.device));
        Ok(())
    }

    fn read_range(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        let part = self.part(Operation::RangedRead, None, offset, dst.len() as u64)?;
        part.held.segment.read(part.offset, dst)
    }

    pub(crate) fn write_on<S: HostSource>(
        &self,
        stream: &Stream,
        offset: u64,
        src: S,
    ) -> Result<(), Returned<S>> {
        let len_bytes = src.len_bytes();
        let part = match self.part(Operation::RangedWrite, Some(stream.device()), offset, len_bytes as u64) {
            Ok(part) => part,
            Err(error) => return Err(Returned::new(src, error)),
        };
        let range = CopyRange { src_offset: 0, dst: &part.held.segment, dst_offset: part.offset, len_bytes };
        stream.copy_to_device(src, &[range])?;
        self.settle_at(part.next, Some(&part.held.device));
        Ok(())
    }

    fn read_on<D: HostSink>(
        &self,
        stream: &Stream,
        offset: u64,
        dst: D,
    ) -> Result<PendingRead<D>, Returned<D>> {
        match self.part(Operation::RangedRead, Some(stream.device()), offset, dst.len_bytes() as u64) {
            Ok(part) => stream.copy_to_host(&part.held.segment, part.offset, dst),
            Err(error) => Err(Returned::new(dst, error)),
        }
    }
}
