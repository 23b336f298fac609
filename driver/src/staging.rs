//! Small host writes without a wait: a pinned ring a device, made on first use.

mod ring;

use std::sync::Arc;

use crate::backend::CaptureState;
use crate::copies::CopyRange;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::host::PinnedHandle;
use crate::ledger::StreamCore;
use crate::stream::Stream;
use crate::sync::Mutex;
use crate::util::lock;
use crate::vector::{Body, Element, Item, Operation, Part, Vector, as_bytes};
use ring::{Ring, Staged};

/// Most bytes that one call stages. More is better served by pinned memory of the caller's.
pub const MAX_STAGED_BYTES: usize = 65_536;

/// Size of a device's staging ring in bytes.
pub const STAGING_RING_BYTES: u64 = 1 << 20;

const DOING: &str = "staging a write";

/// A device's ring; kept for the device's lifetime once it exists.
#[derive(Default)]
pub(crate) struct Staging(Mutex<Option<Arc<Ring>>>);

impl<T: Element> Vector<T> {
    /// Writes a few elements into the device copy, from `first` on, and returns without waiting for the device:
    /// `src` is copied to a pinned ring and on from there, on the default stream. `src` can be overwritten as
    /// soon as this returns. Waits only for room in the ring, and for non-blocking streams that still use the
    /// vector. Complete on return where the device has no asynchronous copies; where it has no pinned memory, `src` is
    /// copied to ordinary memory.
    ///
    /// # Errors
    /// `TooLarge` over [`MAX_STAGED_BYTES`]; `Capturing`; as [`Vector::copy_to_device`].
    pub fn stage_to_device(&mut self, first: u64, src: &[T]) -> Result<()> {
        let offset = self.body.range(first, src.len(), DOING)?;
        self.body.stage(None, offset, as_bytes(src))
    }

    /// [`Vector::stage_to_device`] on a stream, ordered by that alone.
    ///
    /// # Errors
    /// As [`Vector::stage_to_device`]; `WrongDevice`; the stream's sticky failure.
    pub fn stage_to_device_on(&mut self, stream: &Stream, first: u64, src: &[T]) -> Result<()> {
        let offset = self.body.range(first, src.len(), DOING)?;
        self.body.stage(Some(stream), offset, as_bytes(src))
    }
}

impl<T: Item> Vector<T> {
    /// [`Vector::stage_to_device`] for bytes.
    ///
    /// # Errors
    /// `WrongKind` for records; as [`Vector::stage_to_device`].
    pub fn stage_bytes_to_device(&mut self, offset_bytes: u64, src: &[u8]) -> Result<()> {
        self.body.refuse_record(DOING)?;
        self.body.stage(None, offset_bytes, src)
    }

    /// [`Vector::stage_to_device_on`] for bytes.
    ///
    /// # Errors
    /// `WrongKind` for records; as [`Vector::stage_to_device_on`].
    pub fn stage_bytes_to_device_on(&mut self, stream: &Stream, offset_bytes: u64, src: &[u8]) -> Result<()> {
        self.body.refuse_record(DOING)?;
        self.body.stage(Some(stream), offset_bytes, src)
    }
}

impl Body {
    fn stage(&self, stream: Option<&Stream>, offset: u64, src: &[u8]) -> Result<()> {
        if src.len() > MAX_STAGED_BYTES {
            let kind = ErrorKind::TooLarge { need: src.len() as u64, max: MAX_STAGED_BYTES as u64 };
            return Err(Error::new(kind, DOING).with("unit", "bytes"));
        }
        let part = self.part(Operation::Stage, stream.map(Stream::device), offset, src.len() as u64)?;
        if !src.is_empty() {
            part.send(stream, src)?;
        }
        self.settle_at(part.next, Some(&part.held.device));
        Ok(())
    }
}

impl Part {
    fn send(&self, stream: Option<&Stream>, src: &[u8]) -> Result<()> {
        let device = &self.held.device;
        let default;
        let target = match stream {
            Some(stream) => stream,
            None => {
                default = device.default_stream();
                &default
            }
        };
        target.refuse_capturing()?;
        if stream.is_none() {
            device.settle(&self.held.segment)?;
        }
        let range = CopyRange {
            src_offset: 0,
            dst: &self.held.segment,
            dst_offset: self.offset,
            len_bytes: src.len(),
        };
        let capabilities = device.capabilities();
        let is_async = capabilities.async_copies.is_available();
        if is_async && capabilities.pinned_alloc.is_available() {
            let staged = device.stage(target.core_arc(), src)?;
            return Ok(target.copy_to_device(staged, &[range])?);
        }
        // Without pinned memory there is no ring to gain from: the ledger keeps a copy, as of any source.
        target.copy_to_device(src.to_vec(), &[range])?;
        if is_async { Ok(()) } else { target.synchronize() }
    }
}

impl Stream {
    /// Refuses a stream that somebody records into a graph: each replay would read what the ring then holds.
    fn refuse_capturing(&self) -> Result<()> {
        if !self.device().capabilities().stream_capture.is_available() {
            return Ok(());
        }
        match self.is_capturing()? {
            CaptureState::None => Ok(()),
            CaptureState::Active | CaptureState::Spoiled => Err(Error::new(ErrorKind::Capturing, DOING)),
        }
    }
}

impl Device {
    /// Copies bytes into the ring, which is made now if there is none.
    fn stage(&self, stream: &Arc<StreamCore>, src: &[u8]) -> Result<Staged> {
        let ring = {
            let mut slot = lock(&self.staging().0);
            match &*slot {
                Some(ring) => Arc::clone(ring),
                None => {
                    let memory = PinnedHandle::alloc(self, STAGING_RING_BYTES)?;
                    Arc::clone(slot.insert(Arc::new(Ring::over(memory)?)))
                }
            }
        };
        Ring::put(&ring, self, stream, src)
    }

    /// Waits for the non-blocking streams that use the segment.
    fn settle(&self, segment: &crate::segment::Segment) -> Result<()> {
        self.ledger().settle(self.core(), segment)
    }
}
