//! The way up: slots of host memory that the API maps, filled by the processor and copied from by the device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use spoc_driver::{Error, ErrorKind, Result};

use super::error::caught;

/// Slots, so that the processor fills some while the device empties others.
pub(super) const SLOTS: usize = 8;
/// Bytes of a slot.
pub(super) const SLOT_BYTES: usize = 2 << 20;

/// Whether the API has mapped a buffer, as its callback tells.
#[derive(Clone, Default)]
pub(super) struct Mapping(Arc<AtomicU8>);

const ASKED: u8 = 0;
const MAPPED: u8 = 1;
const REFUSED: u8 = 2;

impl Mapping {
    /// Asks for it.
    pub(super) fn request(buffer: &wgpu::Buffer, mode: wgpu::MapMode) -> Self {
        let mapping = Self::default();
        let told = mapping.clone();
        buffer.map_async(mode, .., move |outcome| {
            told.0.store(if outcome.is_ok() { MAPPED } else { REFUSED }, Ordering::Release);
        });
        mapping
    }

    /// Whether it is mapped.
    ///
    /// # Errors
    /// `Backend` if it never will be.
    pub(super) fn is_done(&self) -> Result<bool> {
        match self.0.load(Ordering::Acquire) {
            ASKED => Ok(false),
            MAPPED => Ok(true),
            _ => Err(Error::new(ErrorKind::Backend, "mapping a WebGPU staging buffer")),
        }
    }
}

/// The ring of a device, made slot by slot when it is used.
#[derive(Default)]
pub(super) struct Uploads {
    slots: Vec<Slot>,
    /// The slot that is being filled.
    current: Option<usize>,
    next: usize,
}

struct Slot {
    buffer: wgpu::Buffer,
    place: Place,
    filled: usize,
}

enum Place {
    /// The processor's.
    Mapped(wgpu::BufferViewMut),
    /// In the batch that is open.
    Recorded,
    /// The device's, until the API maps it again; it was in the submission of this ticket.
    Sent(u64, Mapping),
}

/// What comes of asking for room.
pub(super) enum Room {
    /// So many bytes were taken, from this offset of this buffer.
    Taken { buffer: wgpu::Buffer, offset: u64, len_bytes: usize },
    /// The slot is full: submit, and ask again.
    Full,
    /// All slots are the device's until this ticket.
    WaitFor(u64),
}

impl Uploads {
    /// Copies in as much of the bytes as there is room for, in whole words.
    ///
    /// # Errors
    /// What allocating or mapping a slot answers.
    pub(super) fn fill(&mut self, device: &wgpu::Device, bytes: &[u8]) -> Result<Room> {
        let index = match self.current {
            Some(index) => index,
            None => match self.open_slot(device)? {
                Ok(index) => index,
                Err(ticket) => return Ok(Room::WaitFor(ticket)),
            },
        };
        let slot = &mut self.slots[index];
        let len_bytes = bytes.len().min(SLOT_BYTES - slot.filled);
        let Place::Mapped(view) = &mut slot.place else { return Ok(Room::Full) };
        if len_bytes == 0 {
            return Ok(Room::Full);
        }
        let offset = slot.filled;
        view.slice(offset..offset + len_bytes).copy_from_slice(&bytes[..len_bytes]);
        slot.filled += len_bytes;
        Ok(Room::Taken { buffer: slot.buffer.clone(), offset: offset as u64, len_bytes })
    }

    /// Makes a slot the current one, or says which ticket to wait for.
    fn open_slot(&mut self, device: &wgpu::Device) -> Result<Result<usize, u64>> {
        if self.slots.len() < SLOTS {
            self.slots.push(Slot::create(device)?);
            self.current = Some(self.slots.len() - 1);
            return Ok(Ok(self.slots.len() - 1));
        }
        let index = self.next % SLOTS;
        let slot = &mut self.slots[index];
        if let Place::Sent(ticket, mapping) = &slot.place {
            if !mapping.is_done()? {
                return Ok(Err(*ticket));
            }
            slot.place = Place::Mapped(view(&slot.buffer)?);
            slot.filled = 0;
        }
        self.next += 1;
        self.current = Some(index);
        Ok(Ok(index))
    }

    /// Ends the current slot: its batch is about to be submitted.
    pub(super) fn seal(&mut self) {
        if let Some(slot) = self.current.take().and_then(|index| self.slots.get_mut(index)) {
            slot.place = Place::Recorded;
            slot.buffer.unmap();
        }
    }

    /// Asks for the slots of the batch that was just submitted.
    pub(super) fn reclaim(&mut self, ticket: u64) {
        for slot in self.slots.iter_mut().filter(|slot| matches!(slot.place, Place::Recorded)) {
            slot.place = Place::Sent(ticket, Mapping::request(&slot.buffer, wgpu::MapMode::Write));
        }
    }
}

impl Slot {
    fn create(device: &wgpu::Device) -> Result<Self> {
        let descriptor = wgpu::BufferDescriptor {
            label: Some("spoc upload"),
            size: SLOT_BYTES as u64,
            usage: wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: true,
        };
        let doing = "allocating a WebGPU staging buffer";
        let buffer = caught(device, doing, SLOT_BYTES as u64, || device.create_buffer(&descriptor))?;
        let place = Place::Mapped(view(&buffer)?);
        Ok(Self { buffer, place, filled: 0 })
    }
}

fn view(buffer: &wgpu::Buffer) -> Result<wgpu::BufferViewMut> {
    buffer
        .get_mapped_range_mut(..)
        .map_err(|error| Error::new(ErrorKind::Backend, "mapping a WebGPU staging buffer").because(error))
}
