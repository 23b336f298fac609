//! Lending device memory as opaque file descriptors.

use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use ash::vk;
use spoc_driver::backend::{Exported, SegmentOptions, Verdict};
use spoc_driver::{BackendKind, Error, ErrorKind, Result};

use super::core::Core;
use super::device::Shared;
use super::memory::{Buffer, RawBuffer, types_for_device};

/// The one kind of descriptor that is lent.
pub(super) const HANDLE: vk::ExternalMemoryHandleTypeFlags = vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD;

/// A new descriptor of memory that was allocated to be lent.
pub(super) fn export(core: &Core, buffer: &Buffer) -> Result<Exported> {
    const DOING: &str = "exporting Vulkan memory";
    core.check(DOING)?;
    let functions =
        core.memory_fd.as_ref().ok_or_else(|| Error::unsupported(BackendKind::Vulkan, "export_memory"))?;
    // The API has to know when it allocates; drivers answer success all the same if it did not.
    let allocation = buffer.allocation().filter(|_| buffer.exportable).ok_or_else(|| {
        Error::new(ErrorKind::InvalidArgument, DOING)
            .with("because", "the segment was not allocated as exportable, or is itself imported")
    })?;
    let info = vk::MemoryGetFdInfoKHR::default().memory(allocation.memory).handle_type(HANDLE);
    // SAFETY: the memory is live and was allocated for this kind of handle (checked just above).
    let descriptor =
        unsafe { functions.get_memory_fd(&info) }.map_err(|result| core.failed(result, DOING))?;
    Ok(Exported {
        // SAFETY: the call gave us a new descriptor.
        descriptor: unsafe { OwnedFd::from_raw_fd(descriptor) },
        len_bytes: allocation.bytes,
        allocation_bytes: allocation.bytes,
        backend: BackendKind::Vulkan,
        device: core.physical.info.uuid,
    })
}

/// Memory that another process exported. The descriptor stays the caller's: the API would keep it.
pub(super) fn import(shared: &Arc<Shared>, exported: &Exported) -> Result<Buffer> {
    const DOING: &str = "importing Vulkan memory";
    let core = &shared.core;
    core.check(DOING)?;
    let buffer = RawBuffer::create(core, exported.len_bytes, Some(HANDLE))?;
    // Size and type have to be the exporter's. Both follow from the length, so what does not is a lie.
    if buffer.needs.size != exported.allocation_bytes {
        return Err(Error::new(ErrorKind::InvalidArgument, DOING)
            .with("because", "its size is not the one that such a segment has")
            .with("size_bytes", exported.allocation_bytes)
            .with("expected_bytes", buffer.needs.size));
    }
    let types = types_for_device(&core.physical.memory, buffer.needs.memory_type_bits);
    let Some(&kind) = types.first() else {
        return Err(Error::new(ErrorKind::Backend, DOING).with("because", "no device memory to be lent"));
    };
    let duplicate = Duplicate::of(&exported.descriptor)?;
    let mut import = vk::ImportMemoryFdInfoKHR::default().handle_type(HANDLE).fd(duplicate.raw);
    let mut dedicated = vk::MemoryDedicatedAllocateInfo::default().buffer(buffer.raw);
    let info = vk::MemoryAllocateInfo::default()
        .allocation_size(exported.allocation_bytes)
        .memory_type_index(kind)
        .push_next(&mut import)
        .push_next(&mut dedicated);
    match buffer.back_with_import(info) {
        // A successful import owns the descriptor.
        Ok(allocation) => Ok(Buffer::new(shared, allocation, false)),
        Err(error) => {
            duplicate.close_unless_gone();
            Err(refused(error))
        }
    }
}

/// A descriptor that is handed to the API.
struct Duplicate {
    raw: RawFd,
    file: Option<(libc::dev_t, libc::ino_t)>,
}

impl Duplicate {
    fn of(descriptor: &OwnedFd) -> Result<Self> {
        let duplicate = descriptor
            .try_clone()
            .map_err(|error| Error::new(ErrorKind::Os, "importing Vulkan memory").because(error))?;
        let raw = duplicate.into_raw_fd();
        Ok(Self { raw, file: file_of(raw) })
    }

    /// A failed import leaves the descriptor to us, says the specification; Mesa's lavapipe closes it all the
    /// same. So it is closed only if its number still names the same file: closing somebody else's
    /// descriptor, which may have got the number since, would be worse than leaking one.
    fn close_unless_gone(self) {
        if self.file.is_some() && file_of(self.raw) == self.file {
            // SAFETY: made by `of`, given to nobody but the API, which has not closed it.
            drop(unsafe { OwnedFd::from_raw_fd(self.raw) });
        }
    }
}

/// What identifies an open descriptor's file.
fn file_of(descriptor: RawFd) -> Option<(libc::dev_t, libc::ino_t)> {
    let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the place is large enough; a closed descriptor is an error, not a fault.
    if unsafe { libc::fstat(descriptor, status.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call succeeded, so it has written the whole structure.
    let status = unsafe { status.assume_init() };
    Some((status.st_dev, status.st_ino))
}

/// A refused import is the descriptor's fault, whatever the driver calls it, unless the device is gone.
fn refused(error: Error) -> Error {
    if error.is_device_lost() {
        return error;
    }
    Error::new(ErrorKind::InvalidArgument, "importing Vulkan memory").because(error)
}

/// How much is lent to find out whether it can be.
const PROBE_BYTES: u64 = 4096;

/// Whether memory can be lent and borrowed, found out by doing both.
pub(super) fn verdicts(shared: &Arc<Shared>) -> (Verdict, Verdict) {
    if shared.core.memory_fd.is_none() {
        let no = Verdict::unavailable("the driver has no VK_KHR_external_memory_fd");
        return (no.clone(), no);
    }
    let features = features(&shared.core);
    if !features.contains(vk::ExternalMemoryFeatureFlags::EXPORTABLE) {
        let no = Verdict::unavailable("the driver exports no buffers as opaque descriptors");
        return (no.clone(), no);
    }
    let failed = |error: Error| Verdict::Unavailable(error.to_string().into());
    let lent = Buffer::allocate(shared, PROBE_BYTES, SegmentOptions { exportable: true })
        .and_then(|buffer| export(&shared.core, &buffer));
    let exported = match lent {
        Ok(exported) => exported,
        Err(error) => return (failed(error), Verdict::unavailable("nothing could be exported to try")),
    };
    let exported = Exported { len_bytes: PROBE_BYTES, ..exported };
    match import(shared, &exported) {
        Ok(_) => (Verdict::Available, Verdict::Available),
        Err(error) => (Verdict::Available, failed(error)),
    }
}

fn features(core: &Core) -> vk::ExternalMemoryFeatureFlags {
    let info =
        vk::PhysicalDeviceExternalBufferInfo::default().usage(super::memory::USAGE).handle_type(HANDLE);
    let mut answer = vk::ExternalBufferProperties::default();
    // SAFETY: the physical device is of this live instance.
    unsafe {
        core.instance.raw.get_physical_device_external_buffer_properties(
            core.physical.raw,
            &info,
            &mut answer,
        );
    };
    answer.external_memory_properties.external_memory_features
}
