//! Host-pointer buffers: the vector's host memory itself is a device's buffer.

use super::element::Item;
use super::location::{Moves, Operation};
use super::movement::Cell;
use super::state::{Held, HostLink};
use super::whole::{Body, Vector};
use crate::backend::{BackendKind, HostMap};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::segment::Segment;
use crate::util::check_aligned;

impl<T: Item> Vector<T> {
    /// Makes the vector's host memory its buffer on a device, so that kernels read and write it in place and
    /// nothing is copied. What the host holds now is what the first launch sees.
    ///
    /// The memory belongs to the buffer too: it stays mapped until the vector and all enqueued work are gone.
    ///
    /// # Errors
    /// `NotCpuDevice` for an OpenCL device that is no CPU; `Unsupported` elsewhere; `AlreadyAttached` if the
    /// vector has a buffer on the device; `Misaligned` if the memory begins where the API would make a copy of
    /// its own; `TooLarge`; `WrongLocation` for device-only vectors, or if the newest copy would have to come
    /// back and automatic transfers are off.
    pub fn attach(&mut self, device: &Device) -> Result<()> {
        const DOING: &str = "attaching host memory to a device";
        self.body.refuse_unlinkable(device, DOING)?;
        let Cell::Move(moves, next) = self.body.look_up(Operation::Attach, Some(device))? else {
            return Err(self.body.refusal(ErrorKind::WrongLocation, Operation::Attach, DOING));
        };
        // One that is out of date may be left from before.
        if self.has_buffer(device) {
            return Err(self.body.refusal(ErrorKind::AlreadyAttached, Operation::Attach, DOING));
        }
        self.body.carry_out(moves, None)?;
        let held = self.body.link(device, DOING)?;
        self.body.state.borrow_mut().buffers.push(held);
        self.body.settle_at(next, Some(device));
        Ok(())
    }

    /// Makes what kernels wrote through a host-pointer buffer visible to the host: waits for every stream that
    /// uses the buffer, and maps it. Reading the vector does this by itself.
    ///
    /// # Errors
    /// `WrongLocation` if the device is not the vector's home, or its buffer is a separate one; the failure of
    /// enqueued work.
    pub fn acquire_device_writes(&self, device: &Device) -> Result<()> {
        let held = self.body.linked(device, Operation::Acquire)?;
        match self.body.perform(Operation::Acquire, Some(device))? {
            // Nothing is newer there; the map is made all the same, so that no path relies on aliasing.
            Cell::Move(Moves::Nothing, _) => self.body.map_for_host(&held),
            _ => Ok(()),
        }
    }

    /// Declares what the host holds the newest, and hands it to the device: waits for every stream that uses
    /// the buffer, and maps it. Launches and [`Vector::to_device`] do this by themselves after a host write.
    ///
    /// # Errors
    /// As [`Vector::acquire_device_writes`].
    pub fn publish_host_writes(&mut self, device: &Device) -> Result<()> {
        self.body.linked(device, Operation::Publish)?;
        self.body.perform(Operation::Publish, Some(device)).map(drop)
    }
}

impl Body {
    fn refuse_unlinkable(&self, device: &Device, doing: &'static str) -> Result<()> {
        let core = device.core();
        let Some(reason) = core.capabilities.host_buffer.reason() else { return Ok(()) };
        if core.info.backend == BackendKind::OpenCl {
            return Err(Error::new(ErrorKind::NotCpuDevice, doing).with("reason", reason));
        }
        Err(Error::unsupported(core.info.backend, "host_buffer").with("reason", reason))
    }

    /// The buffer over the host memory.
    fn link(&self, device: &Device, doing: &'static str) -> Result<Held> {
        let (core, host, len_bytes) = (device.core(), self.host()?, self.len_bytes());
        let max = core.limits.segment_bytes_max;
        if len_bytes > max {
            return Err(Error::new(ErrorKind::TooLarge { need: len_bytes, max }, doing).with("unit", "bytes"));
        }
        // Checked here because runtimes accept a bad pointer silently, and keep a copy of their own.
        let align = core.backend.host_buffer_align_bytes(&core.handle)?;
        check_aligned(host.as_ptr().addr() as u64, align, doing)?;
        // SAFETY: the segment keeps the memory mapped for longer than the backend's buffer; the bytes are this
        // vector's alone, and host access to them waits for the device (`quiet_links`, `map_for_host`).
        let segment = unsafe { Segment::over_host(core, host.memory(), host.as_ptr(), len_bytes) }?;
        let link = match core.info.backend {
            BackendKind::Native | BackendKind::Interpreter => HostLink::HostStorage,
            _ => HostLink::HostPtr,
        };
        Ok(Held { device: device.clone(), segment, offset_bytes: 0, link })
    }

    fn linked(&self, device: &Device, operation: Operation) -> Result<Held> {
        let held = self.state.borrow().held(device).cloned();
        held.filter(|held| held.link.is_shared()).ok_or_else(|| {
            self.refusal(ErrorKind::WrongLocation, operation, "mapping a host-pointer buffer")
                .with("reason", "no host-pointer buffer on that device")
        })
    }

    /// Waits for enqueued work that uses host memory this vector shares with devices, whichever they are: they
    /// all see the same bytes.
    pub(crate) fn quiet_links(&self) -> Result<()> {
        let shared: Vec<Held> =
            self.state.borrow().buffers.iter().filter(|held| held.link.is_shared()).cloned().collect();
        shared.iter().try_for_each(|held| held.device.wait_for_users(&held.segment))
    }

    pub(crate) fn map_for_host(&self, held: &Held) -> Result<()> {
        self.quiet_links()?;
        held.segment.map(HostMap::Read)
    }

    pub(crate) fn map_for_device(&self, held: &Held) -> Result<()> {
        self.quiet_links()?;
        held.segment.map(HostMap::Write)
    }
}

impl Device {
    /// Waits for every stream whose enqueued work uses the segment.
    pub(crate) fn wait_for_users(&self, segment: &Segment) -> Result<()> {
        self.hand_over_launches();
        self.ledger().wait_for_users(self.core(), segment)
    }
}
