//! What the table says has to move, moved. Whole transfers and giving up buffers.

use std::sync::atomic::Ordering;

use super::element::Item;
use super::location::{Location, Moves, Next, Operation, Outcome, Refusal, outcome};
use super::state::Held;
use super::whole::{Body, Vector};
use crate::backend::BackendKind;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::util::host_len;

/// What the table answered for an operation that may go on.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cell {
    /// Move, do, then the location changes.
    Move(Moves, Next),
    /// Do it in the device's memory: the device is a CPU.
    InPlace,
}

impl<T: Item> Vector<T> {
    /// Makes the device's copy current; complete on return. Waits for non-blocking streams that still use the
    /// vector there. Its newest copy may be on another device: it comes by way of the host.
    ///
    /// # Errors
    /// `WrongDevice` for a device-only vector of another device; `OutOfDeviceMemory`; the failure of enqueued
    /// work.
    pub fn to_device(&self, device: &Device) -> Result<()> {
        self.body.perform(Operation::ToDevice, Some(device)).map(drop)
    }

    /// Makes the host copy current; complete on return. Waits for non-blocking streams that still use the
    /// vector.
    ///
    /// # Errors
    /// `WrongLocation` for a device-only vector on a GPU; the failure of enqueued work.
    pub fn to_cpu(&self) -> Result<()> {
        self.body.perform(Operation::ToCpu, None).map(drop)
    }

    /// Gives up the buffer on one device; none there is fine. The only newest copy comes back to the host
    /// first; a device-only vector is discarded.
    ///
    /// # Errors
    /// `InFlight` while work on an explicit stream uses it; `WrongLocation` if a copy would have to come back
    /// and automatic transfers are off; the failure of enqueued work.
    pub fn free_buffer(&mut self, device: &Device) -> Result<()> {
        self.body.free(Operation::FreeBuffer, Some(device))
    }

    /// Gives up the buffers on all devices, as [`Vector::free_buffer`].
    ///
    /// # Errors
    /// As [`Vector::free_buffer`]; then no buffer is given up.
    pub fn free_all_buffers(&mut self) -> Result<()> {
        self.body.free(Operation::FreeAll, None)
    }
}

impl Body {
    /// What the table says, as an error if it refuses. Changes nothing.
    pub(crate) fn look_up(&self, operation: Operation, named: Option<&Device>) -> Result<Cell> {
        const DOING: &str = "using a vector";
        let state = self.state.borrow();
        if state.location == Location::DeviceOnly && state.home_buffer().is_none() {
            return Err(Error::new(ErrorKind::Released, DOING));
        }
        let home = state.home.clone();
        let cell = outcome(state.location, operation, state.relation(named));
        drop(state);
        match cell {
            Outcome::Done(moves, next) => {
                let device = named.or(home.as_ref());
                let is_automatic = moves.is_transfer() && !operation.asks_for_transfer();
                if is_automatic && !device.is_none_or(Device::automatic_transfers) {
                    return Err(self
                        .refusal(ErrorKind::WrongLocation, operation, DOING)
                        .with("reason", "automatic transfers are off"));
                }
                Ok(Cell::Move(moves, next))
            }
            Outcome::HostBacked if home.as_ref().is_some_and(is_host_backed) => Ok(Cell::InPlace),
            Outcome::HostBacked | Outcome::Refused(Refusal::WrongLocation) => {
                Err(self.refusal(ErrorKind::WrongLocation, operation, DOING))
            }
            Outcome::Refused(Refusal::WrongDevice) => {
                Err(self.refusal(ErrorKind::WrongDevice, operation, DOING))
            }
            Outcome::Refused(Refusal::AlreadyAttached) => {
                Err(self.refusal(ErrorKind::AlreadyAttached, operation, DOING))
            }
            Outcome::Impossible => Err(self.refusal(ErrorKind::InvalidArgument, operation, DOING)),
        }
    }

    /// Looks up, moves, and changes the location: for operations that are nothing but that.
    pub(crate) fn perform(&self, operation: Operation, named: Option<&Device>) -> Result<Cell> {
        let cell = self.look_up(operation, named)?;
        if let Cell::Move(moves, next) = cell {
            self.carry_out(moves, named)?;
            self.settle_at(next, named);
        }
        Ok(cell)
    }

    /// Moves. The location says what is true after each step, also if a later one fails.
    pub(crate) fn carry_out(&self, moves: Moves, named: Option<&Device>) -> Result<()> {
        match (moves, named) {
            (Moves::Nothing | Moves::Discard, _) => Ok(()),
            (Moves::BringBack, _) => self.bring_back(),
            (Moves::Upload, Some(device)) => self.upload(device),
            (Moves::BringBackAndUpload, Some(device)) => {
                self.bring_back()?;
                self.upload(device)
            }
            (Moves::Upload | Moves::BringBackAndUpload, None) => {
                Err(Error::new(ErrorKind::InvalidArgument, "moving a vector to no device"))
            }
        }
    }

    /// Changes the location as the table says.
    pub(crate) fn settle_at(&self, next: Next, named: Option<&Device>) {
        let mut state = self.state.borrow_mut();
        match next {
            Next::Stays | Next::Released => {}
            Next::Becomes(location) => {
                let home = named.cloned().or_else(|| state.home.clone());
                state.place(location, home);
            }
        }
    }

    /// The home's copy comes to the host. Only called while the device is newer.
    fn bring_back(&self) -> Result<()> {
        const DOING: &str = "bringing a vector back";
        let held = self.state.borrow().home_buffer().cloned();
        let held = held.ok_or_else(|| Error::new(ErrorKind::Released, DOING))?;
        if held.link.is_shared() {
            self.map_for_host(&held)?;
        } else {
            // Kernels of other devices may be reading the host memory that is written here.
            self.quiet_links()?;
            let (host, len) = (self.host()?.as_ptr(), self.transfer_len(&held)?);
            // SAFETY: this vector's own memory, `len` within its capacity. The device is newer, so no host
            // borrow is alive (see `host_bytes`), and the read is over when it returns.
            let into = unsafe { std::slice::from_raw_parts_mut(host, len) };
            held.segment.read(held.offset_bytes, into)?;
        }
        self.state.borrow_mut().place(Location::Both, Some(held.device));
        Ok(())
    }

    /// The host copy goes to a device. Only called while the host is current.
    fn upload(&self, device: &Device) -> Result<()> {
        let held = self.ensure_buffer(device)?;
        if held.link.is_shared() {
            self.map_for_device(&held)?;
        } else {
            let (host, len) = (self.host()?.as_ptr(), self.transfer_len(&held)?);
            // SAFETY: this vector's own initialised memory, `len` within its capacity; the host is current, so
            // nothing writes it until this returns: host access needs the vector, which is borrowed here.
            let from = unsafe { std::slice::from_raw_parts(host, len) };
            held.segment.write(held.offset_bytes, from)?;
        }
        self.state.borrow_mut().place(Location::Both, Some(device.clone()));
        Ok(())
    }

    /// How many bytes a whole transfer moves: whole granules.
    fn transfer_len(&self, held: &Held) -> Result<usize> {
        const DOING: &str = "moving a vector";
        let granule = held.device.limits().copy_granule_bytes.max(1);
        let len = host_len(self.len_bytes().next_multiple_of(granule), DOING)?;
        if len > self.host()?.capacity() {
            let kind = ErrorKind::Misaligned { value: self.len_bytes(), align: granule };
            return Err(Error::new(kind, DOING).with("host_memory", "not the vector's own"));
        }
        Ok(len)
    }

    fn free(&self, operation: Operation, named: Option<&Device>) -> Result<()> {
        const DOING: &str = "freeing a vector's buffer";
        let given_up: Vec<Held> = {
            let is_meant = |held: &&Held| named.is_none_or(|device| held.device.is(device));
            self.state.borrow().buffers.iter().filter(is_meant).cloned().collect()
        };
        if given_up.is_empty() {
            return Ok(());
        }
        let cell = self.look_up(operation, named)?;
        for held in &given_up {
            held.device.refuse_in_flight(&held.segment, DOING)?;
        }
        if let Cell::Move(moves, next) = cell {
            self.carry_out(moves, named)?;
            self.state
                .borrow_mut()
                .buffers
                .retain(|held| !given_up.iter().any(|gone| gone.device.is(&held.device)));
            self.settle_at(next, named);
        }
        Ok(())
    }
}

/// Whether device-only vectors can be reached from the host there: on the CPU alone. Unified memory of a GPU
/// does not count, or programs would come to rely on it.
fn is_host_backed(device: &Device) -> bool {
    matches!(device.info().backend, BackendKind::Native | BackendKind::Interpreter)
}

impl Device {
    /// Whether vectors on this device move by themselves: a setting of the driver that opened it.
    #[must_use]
    pub fn automatic_transfers(&self) -> bool {
        self.core().automatic.load(Ordering::Relaxed)
    }

    /// Refuses while work on an explicit stream uses the segment. Work on the default stream has no handle
    /// that the caller was given, so it is waited for.
    pub(crate) fn refuse_in_flight(
        &self,
        segment: &crate::segment::Segment,
        doing: &'static str,
    ) -> Result<()> {
        self.hand_over_launches();
        self.collect();
        match self.ledger().explicit_user(segment) {
            Some(stream) => Err(Error::new(ErrorKind::InFlight, doing).with("stream", stream)),
            None if self.core().default_stream().in_flight.uses(segment) => {
                self.core().default_stream().synchronize(self.core())
            }
            None => Ok(()),
        }
    }
}
