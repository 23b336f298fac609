//! Lending device memory as file descriptors.
//!
//! The descriptor does not say how large the memory is, so its length travels beside it. An import cannot be
//! lent on: whoever keeps memory alive keeps the first descriptor.

use std::mem::offset_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use spoc_driver::backend::{Exported, Verdict};
use spoc_driver::{Error, ErrorKind, Result};

use super::device::Shared;
use super::memory::Buffer;
use super::table::MemoryProperties;
use super::vmm::{DESCRIPTOR, Mapped, Physical};

/// A new descriptor of memory that was allocated to be lent.
pub(crate) fn export(shared: &Shared, buffer: &Buffer) -> Result<Exported> {
    const DOING: &str = "exporting device memory";
    let mapped = buffer.mapped().filter(|mapped| mapped.can_be_lent).ok_or_else(|| {
        Error::new(ErrorKind::InvalidArgument, DOING)
            .with("because", "the segment was not allocated as exportable, or is itself imported")
    })?;
    let api = &shared.context.api;
    let mut descriptor = -1;
    let _here = shared.context.enter()?;
    // SAFETY: the place is that of a descriptor; the memory was made for this kind.
    let code = unsafe {
        (api.library.physical_export)((&raw mut descriptor).cast(), mapped.memory.raw, DESCRIPTOR, 0)
    };
    api.check(code, DOING)?;
    Ok(Exported {
        // SAFETY: the call gave us a new descriptor.
        descriptor: unsafe { OwnedFd::from_raw_fd(descriptor) },
        len_bytes: mapped.memory.len_bytes,
        allocation_bytes: mapped.memory.len_bytes,
        backend: api.flavour.kind(),
        device: shared.found.info.uuid,
    })
}

/// Memory that another process exported. The descriptor stays the caller's.
pub(crate) fn import(shared: &Arc<Shared>, exported: &Exported) -> Result<Buffer> {
    const DOING: &str = "importing device memory";
    let invalid =
        |because: &'static str| Error::new(ErrorKind::InvalidArgument, DOING).with("because", because);
    let (len, allocation) = (exported.len_bytes, exported.allocation_bytes);
    if allocation == 0 || len > allocation || !allocation.is_multiple_of(shared.granule) {
        return Err(invalid("its size is not the one that such memory has")
            .with("bytes", len)
            .with("allocation_bytes", allocation));
    }
    let memory = take(shared, exported).map_err(|error| refused(error, DOING))?;
    if device_of(shared, &memory)? != shared.context.device {
        return Err(Error::new(ErrorKind::WrongDevice, DOING));
    }
    // A length that is not the memory's own is refused here.
    let mapped = Mapped::new(memory, false).map_err(|error| refused(error, DOING))?;
    Ok(Buffer::of(mapped))
}

fn take(shared: &Shared, exported: &Exported) -> Result<Physical> {
    let api = &shared.context.api;
    let mut raw = 0;
    let mut descriptor = exported.descriptor.as_raw_fd();
    let passed = api.flavour.descriptor(&mut descriptor);
    let _here = shared.context.enter()?;
    // SAFETY: the descriptor is passed as the API takes it, which leaves it to us.
    let code = unsafe { (api.library.physical_import)(&raw mut raw, passed, DESCRIPTOR) };
    api.check(code, "importing device memory")?;
    // SAFETY: just imported, and nobody else's.
    Ok(unsafe { Physical::owned(&shared.context, raw, exported.allocation_bytes) })
}

/// On which device it lies, whatever its descriptor's token says.
fn device_of(shared: &Shared, memory: &Physical) -> Result<i32> {
    let mut properties = std::mem::MaybeUninit::<MemoryProperties>::zeroed();
    let _here = shared.context.enter()?;
    // SAFETY: the place is valid.
    let code =
        unsafe { (shared.context.api.library.physical_properties)(properties.as_mut_ptr(), memory.raw) };
    shared.context.api.check(code, "asking where memory lies")?;
    // Only this number is read.
    let place = properties.as_ptr().wrapping_byte_add(offset_of!(MemoryProperties, location.id));
    // SAFETY: written by the call, which succeeded, and zero before.
    Ok(unsafe { place.cast::<i32>().read() })
}

/// A refused import is the descriptor's fault, whatever the API calls it, unless the device is gone.
fn refused(error: Error, doing: &'static str) -> Error {
    match error.kind() {
        ErrorKind::InvalidArgument | ErrorKind::Backend | ErrorKind::Os => {
            Error::new(ErrorKind::InvalidArgument, doing).because(error)
        }
        _ => error,
    }
}

/// Whether memory can be lent and borrowed, found out by doing both.
pub(crate) fn verdicts(shared: &Arc<Shared>) -> (Verdict, Verdict) {
    let facts = shared.found.facts;
    if !facts.virtual_memory || !facts.descriptors {
        let no = Verdict::unavailable("the device has no virtual memory management with file descriptors");
        return (no.clone(), no);
    }
    let failed = |error: Error| Verdict::Unavailable(error.to_string().into());
    let lent = Buffer::allocate_to_lend(shared, shared.granule).and_then(|buffer| export(shared, &buffer));
    let exported = match lent {
        Ok(exported) => exported,
        Err(error) => return (failed(error), Verdict::unavailable("nothing could be exported to try")),
    };
    match import(shared, &exported) {
        Ok(_) => (Verdict::Available, Verdict::Available),
        Err(error) => (Verdict::Available, failed(error)),
    }
}
