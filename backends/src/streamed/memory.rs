//! Device memory.

use std::any::Any;
use std::sync::Arc;

use spoc_driver::{Error, ErrorKind, Result};

use super::counters::add;
use super::device::Shared;
use super::error::SUCCESS;
use super::reaper::Doomed;
use super::table::{DevicePtr, Handle};
use super::vmm::{Addresses, Mapped, Physical};

/// Attributes of addresses.
const CONTEXT: u32 = 1;
pub(crate) const MEMORY_TYPE: u32 = 2;
const DEVICE_ORDINAL: u32 = 9;

/// Device memory at one address for life.
pub(crate) struct Buffer {
    address: DevicePtr,
    place: Place,
}

/// Whose memory it is.
enum Place {
    /// Mapped behind addresses of its own.
    Mapped(Mapped),
    /// Addresses without memory.
    Reserved(Arc<Addresses>),
    /// Allocated by the API.
    Plain(#[allow(dead_code)] Plain),
    /// Another library's, for as long as it keeps it.
    Lent(#[allow(dead_code)] Option<Box<dyn Any + Send + Sync>>),
}

impl Buffer {
    /// Mapped memory from a granule on, because freeing it waits for nothing; a plain allocation below, and
    /// where the driver does not map.
    pub(crate) fn allocate(shared: &Arc<Shared>, len_bytes: u64) -> Result<Self> {
        if !shared.found.facts.virtual_memory || len_bytes < shared.granule {
            return Self::plain(shared, len_bytes);
        }
        match Self::map_new(shared, len_bytes, false) {
            Err(error) if matches!(error.kind(), ErrorKind::Backend | ErrorKind::InvalidArgument) => {
                tracing::warn!(%error, bytes = len_bytes, "no memory is mapped: a plain allocation instead");
                add(&shared.counters.plain_for_want_of_mapping, 1);
                Self::plain(shared, len_bytes)
            }
            outcome => outcome,
        }
    }

    /// Memory that can be lent to another process.
    pub(crate) fn allocate_to_lend(shared: &Arc<Shared>, len_bytes: u64) -> Result<Self> {
        Self::map_new(shared, len_bytes, true)
    }

    fn map_new(shared: &Arc<Shared>, len_bytes: u64, can_be_lent: bool) -> Result<Self> {
        let too_much = || shared.out_of_memory(len_bytes);
        let whole = len_bytes.checked_next_multiple_of(shared.granule).ok_or_else(too_much)?;
        let mapped = Mapped::new(Physical::create(shared, whole, can_be_lent)?, can_be_lent)?;
        add(&shared.counters.mapped_segments, 1);
        Ok(Self::of(mapped))
    }

    fn plain(shared: &Arc<Shared>, len_bytes: u64) -> Result<Self> {
        let plain = Plain::allocate(shared, len_bytes)?;
        add(&shared.counters.plain_segments, 1);
        Ok(Self { address: plain.address, place: Place::Plain(plain) })
    }

    /// Memory that is mapped already.
    pub(crate) fn of(mapped: Mapped) -> Self {
        Self { address: mapped.first(), place: Place::Mapped(mapped) }
    }

    /// Addresses for memory to come.
    pub(crate) fn reserve(shared: &Shared, len_bytes: u64) -> Result<Self> {
        let addresses = Addresses::reserve(&shared.context, len_bytes)?;
        Ok(Self { address: addresses.first, place: Place::Reserved(Arc::new(addresses)) })
    }

    /// Memory behind a part of reserved addresses. The driver checked that it has none.
    pub(crate) fn commit(
        &self,
        shared: &Shared,
        offset: u64,
        len_bytes: u64,
        can_be_lent: bool,
    ) -> Result<Self> {
        let Place::Reserved(addresses) = &self.place else {
            return Err(Error::new(ErrorKind::InvalidArgument, "mapping device memory")
                .with("because", "these are no reserved addresses"));
        };
        let memory = Physical::create(shared, len_bytes, can_be_lent)?;
        let mapped = Mapped::at(addresses, offset, memory, can_be_lent)?;
        add(&shared.counters.mapped_segments, 1);
        Ok(Self::of(mapped))
    }

    /// The mapping, where it is one.
    pub(crate) fn mapped(&self) -> Option<&Mapped> {
        match &self.place {
            Place::Mapped(mapped) => Some(mapped),
            Place::Reserved(_) | Place::Plain(_) | Place::Lent(_) => None,
        }
    }

    /// Memory that another library allocated, and answers for.
    ///
    /// # Safety
    /// `len_bytes` live bytes at the address, in device memory, which outlive `keep_alive`.
    pub(crate) unsafe fn lent(
        shared: &Shared,
        address: DevicePtr,
        len_bytes: u64,
        keep_alive: Option<Box<dyn Any + Send + Sync>>,
    ) -> Result<Self> {
        check_lent(shared, address, len_bytes)?;
        Ok(Self { address, place: Place::Lent(keep_alive) })
    }

    /// Where an offset of it is. The driver checked that the offset lies inside.
    pub(crate) fn at(&self, offset: u64) -> DevicePtr {
        self.address + offset
    }
}

/// An allocation, freed when it is dropped.
struct Plain {
    address: DevicePtr,
    len_bytes: u64,
    shared: Arc<Shared>,
}

impl Plain {
    fn allocate(shared: &Arc<Shared>, len_bytes: u64) -> Result<Self> {
        let address = shared.take(len_bytes, |library, len| {
            let mut address = 0;
            // SAFETY: the place is valid, and the context is current.
            let code = unsafe { (library.memory_allocate)(&raw mut address, len) };
            (code, address)
        })?;
        Ok(Self { address, len_bytes, shared: Arc::clone(shared) })
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        if self.shared.context.api.is_own_process() {
            self.shared.reaper.bury(Doomed::Device(self.address, self.len_bytes));
        }
    }
}

/// Refuses an address that the API does not know as memory of this device, as far as it tells: the size of
/// memory that was mapped piece by piece is not known to it, and neither is its context.
fn check_lent(shared: &Shared, address: DevicePtr, len_bytes: u64) -> Result<()> {
    const DOING: &str = "adopting device memory";
    let refuse = |kind, because: &'static str| {
        Err(Error::new(kind, DOING)
            .with("address", format_args!("{address:#x}"))
            .with("bytes", len_bytes)
            .with("because", because))
    };
    let _here = shared.context.enter()?;
    let end = address.checked_add(len_bytes - 1);
    for place in [Some(address), end] {
        let Some(place) = place else {
            return refuse(ErrorKind::InvalidArgument, "its end is no address");
        };
        let mut kind = 0_u32;
        let known = ask(shared, (&raw mut kind).cast(), MEMORY_TYPE, place);
        // 2 is memory of a device.
        if !known || kind != 2 {
            return refuse(ErrorKind::InvalidArgument, "the API knows no device memory there");
        }
        let mut device = -1_i32;
        let ordinal = DEVICE_ORDINAL;
        let known = ask(shared, (&raw mut device).cast(), ordinal, place);
        if known && device != shared.context.device {
            return refuse(ErrorKind::WrongDevice, "it is another device's");
        }
        let mut context: Handle = std::ptr::null_mut();
        let known = ask(shared, (&raw mut context).cast(), CONTEXT, place);
        if known && !context.is_null() && context != shared.context.raw() {
            return refuse(ErrorKind::WrongDevice, "it is of another context");
        }
    }
    Ok(())
}

/// One attribute of an address. False where the API knows none.
fn ask(shared: &Shared, place: *mut std::ffi::c_void, attribute: u32, address: DevicePtr) -> bool {
    // SAFETY: the callers give places as wide as the attribute; an unknown address is an error, not a fault.
    unsafe { (shared.context.api.library.pointer_attribute)(place, attribute, address) == SUCCESS }
}
