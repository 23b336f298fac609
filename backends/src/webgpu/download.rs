//! The way down: slots that the device copies into, and the API maps for the processor to read.

use std::collections::VecDeque;
use std::sync::Mutex;

use spoc_driver::{Error, ErrorKind, Result};

use super::error::caught;
use super::staging::{Mapping, SLOT_BYTES, SLOTS};
use crate::sync::lock;

/// Downloads on their way, in the queue's order. Whoever asks whether a point was reached finishes those before it.
#[derive(Default)]
pub(super) struct Downloads(Mutex<State>);

#[derive(Default)]
struct State {
    made: usize,
    idle: Vec<wgpu::Buffer>,
    pending: VecDeque<Download>,
}

struct Download {
    ticket: u64,
    buffer: wgpu::Buffer,
    /// None until its batch is submitted.
    mapping: Option<Mapping>,
    /// Bytes in the slot before those that were asked for.
    skipped: usize,
    dst: Destination,
    len_bytes: usize,
}

/// Where to.
struct Destination(*mut u8);

// SAFETY: the driver keeps the memory, untouched by others, until the copy has run; it is written by the one thread
// that takes the download out of the table.
unsafe impl Send for Destination {}

/// A slot to copy into, or what to wait for.
pub(super) enum Slot {
    Idle(wgpu::Buffer),
    WaitFor(u64),
}

impl Downloads {
    /// A slot that nobody uses.
    pub(super) fn take(&self, device: &wgpu::Device) -> Result<Slot> {
        let mut state = lock(&self.0);
        if let Some(buffer) = state.idle.pop() {
            return Ok(Slot::Idle(buffer));
        }
        if state.made == SLOTS
            && let Some(oldest) = state.pending.front()
        {
            return Ok(Slot::WaitFor(oldest.ticket));
        }
        let descriptor = wgpu::BufferDescriptor {
            label: Some("spoc download"),
            size: SLOT_BYTES as u64,
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        };
        let doing = "allocating a WebGPU staging buffer";
        let buffer = caught(device, doing, SLOT_BYTES as u64, || device.create_buffer(&descriptor))?;
        state.made += 1;
        Ok(Slot::Idle(buffer))
    }

    /// Enters a copy that was recorded: `len_bytes` go to `dst`, from `skipped` on.
    ///
    /// # Safety
    /// `len_bytes` at `dst` stay valid, and untouched by others, until the copy is over or abandoned.
    pub(super) unsafe fn enter(
        &self,
        ticket: u64,
        buffer: wgpu::Buffer,
        skipped: usize,
        dst: *mut u8,
        len_bytes: usize,
    ) {
        let dst = Destination(dst);
        lock(&self.0).pending.push_back(Download { ticket, buffer, mapping: None, skipped, dst, len_bytes });
    }

    /// Asks for the slots of the batch that was just submitted.
    pub(super) fn request(&self, ticket: u64) {
        let mut state = lock(&self.0);
        for download in state.pending.iter_mut().filter(|download| download.ticket == ticket) {
            download.mapping = Some(Mapping::request(&download.buffer, wgpu::MapMode::Read));
        }
    }

    /// Finishes what has arrived, and says whether all up to the ticket has.
    ///
    /// # Errors
    /// `Backend` if a slot cannot be mapped.
    pub(super) fn are_past(&self, ticket: u64) -> Result<bool> {
        let mut state = lock(&self.0);
        while let Some(download) = state.pending.front() {
            let is_here = match &download.mapping {
                Some(mapping) => mapping.is_done()?,
                None => false,
            };
            if !is_here {
                return Ok(download.ticket > ticket);
            }
            download.finish()?;
            if let Some(download) = state.pending.pop_front() {
                state.idle.push(download.buffer);
            }
        }
        Ok(true)
    }

    /// Forgets where to: from now on these bytes are not written.
    pub(super) fn cancel(&self, dst: *mut u8, len_bytes: usize) {
        let range = dst.addr()..dst.addr().saturating_add(len_bytes);
        for download in lock(&self.0).pending.iter_mut().filter(|known| range.contains(&known.dst.0.addr())) {
            download.len_bytes = 0;
        }
    }

    /// Forgets all: from now on nobody's memory is written.
    pub(super) fn abandon(&self) {
        let mut state = lock(&self.0);
        state.made -= state.pending.len();
        state.pending.clear();
    }
}

impl Download {
    fn finish(&self) -> Result<()> {
        let end = self.skipped + self.len_bytes;
        {
            let view = self.buffer.get_mapped_range(..).map_err(|error| {
                Error::new(ErrorKind::Backend, "mapping a WebGPU staging buffer").because(error)
            })?;
            let bytes = &view[self.skipped..end];
            // SAFETY: whoever entered it keeps the destination until it is taken out of the table, which happens after
            // this and under the same lock; a fresh mapping overlaps nobody's memory.
            unsafe { self.dst.0.copy_from_nonoverlapping(bytes.as_ptr(), self.len_bytes) };
        }
        self.buffer.unmap();
        Ok(())
    }
}
