//! The vector itself.

use std::cell::{Cell, OnceCell, RefCell};
use std::marker::PhantomData;

use super::element::{ElementKind, Item, kind_of};
use super::host_slice::HostSlice;
use super::location::Location;
use super::state::{Held, HostLink, State};
use super::{Operation, check_elements};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::util::{check_range, host_len};

/// Elements with a host side, buffers on devices, and a [`Location`] that says where the newest copy is.
///
/// Whole transfers ([`Vector::to_device`], [`Vector::to_cpu`]) are complete on return. Host access and launches
/// move what they need by themselves unless the driver's automatic transfers are turned off
/// ([`crate::Driver::set_automatic_transfers`]); `docs/transfers.md` has the table of what moves when.
///
/// Used by one thread at a time:
/// ```compile_fail,E0277
/// fn sync<T: Sync>() {}
/// sync::<spoc_driver::Vector<f32>>();
/// ```
/// ```
/// fn send<T: Send>() {}
/// send::<spoc_driver::Vector<f32>>();
/// ```
/// A host slice cannot be kept across something that changes the vector:
/// ```compile_fail,E0502
/// # fn main() -> spoc_driver::Result<()> {
/// let mut vector = spoc_driver::Vector::from_slice(&[1_i32, 2, 3])?;
/// let slice = vector.as_slice()?;
/// vector.set(0, 7)?;
/// assert_eq!(slice[0], 1);
/// # Ok(()) }
/// ```
pub struct Vector<T: Item> {
    pub(crate) body: Body,
    _items: PhantomData<Cell<T>>,
}

/// A vector without its item type.
pub(crate) struct Body {
    pub(crate) len: u64,
    pub(crate) item_bytes: u64,
    pub(crate) kind: Option<ElementKind>,
    /// Made when it is first needed: a vector that lives on a device may never have one.
    host: OnceCell<HostSlice>,
    pub(crate) state: RefCell<State>,
}

impl<T: Item> Vector<T> {
    /// `len` items (≥ 1) on the host, all bytes zero.
    ///
    /// # Errors
    /// `ZeroSize`; `TooLarge` if the bytes cannot be counted; `OutOfHostMemory`.
    pub fn zeroed(len: u64) -> Result<Self> {
        let body = Body::new::<T>(len)?;
        body.host()?;
        Ok(Self::of(body))
    }

    /// The items, on the host.
    ///
    /// # Errors
    /// As [`Vector::zeroed`].
    pub fn from_slice(items: &[T]) -> Result<Self> {
        let vector = Self::zeroed(items.len() as u64)?;
        let bytes = vector.body.host_bytes_mut()?;
        for (item, place) in items.iter().zip(bytes.chunks_exact_mut(T::LEN_BYTES)) {
            item.store(place);
        }
        Ok(vector)
    }

    /// A vector over host memory of the caller's, whole items of it, contents as they are.
    ///
    /// # Errors
    /// `ZeroSize` if not one item fits; `Misaligned` if the memory begins at no multiple of a plain number's size.
    pub fn over(memory: HostSlice) -> Result<Self> {
        let item = T::LEN_BYTES.max(1) as u64;
        let body = Body::new::<T>(memory.len_bytes() as u64 / item)?;
        let align = body.kind.map_or(1, |kind| kind.len_bytes() as u64);
        crate::util::check_aligned(memory.as_ptr().addr() as u64, align, "making a vector over host memory")?;
        // Just made: it has none yet.
        let _ = body.host.set(memory);
        Ok(Self::of(body))
    }

    /// `len` items on a device, contents unspecified; the host side is made if it is ever needed.
    ///
    /// # Errors
    /// `ZeroSize`; `TooLarge`; `OutOfDeviceMemory`.
    pub fn on_device(device: &Device, len: u64) -> Result<Self> {
        let vector = Self::of(Body::new::<T>(len)?);
        vector.body.ensure_buffer(device)?;
        vector.body.state.borrow_mut().place(Location::Gpu, Some(device.clone()));
        Ok(vector)
    }

    /// `1 ..= i32::MAX` elements that only ever live on a device, contents unspecified. Data moves through
    /// ranged copies and kernels; dropping it discards them.
    ///
    /// # Errors
    /// `WrongKind` for records; `ZeroSize`; `TooLarge`; `OutOfDeviceMemory`.
    pub fn device_only(device: &Device, len: u64) -> Result<Self> {
        const DOING: &str = "making a device-only vector";
        let body = Body::new::<T>(len)?;
        body.refuse_record(DOING)?;
        check_elements(len, DOING)?;
        let vector = Self::of(body);
        vector.body.ensure_buffer(device)?;
        vector.body.state.borrow_mut().place(Location::DeviceOnly, Some(device.clone()));
        Ok(vector)
    }

    fn of(body: Body) -> Self {
        Self { body, _items: PhantomData }
    }

    /// How many items.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.body.len
    }

    /// Always false: an empty vector cannot be made.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.body.len == 0
    }

    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.body.len_bytes()
    }

    /// The kind of the elements; nothing for records.
    #[must_use]
    pub fn kind(&self) -> Option<ElementKind> {
        self.body.kind
    }

    /// Where the newest copy is.
    #[must_use]
    pub fn location(&self) -> Location {
        self.body.state.borrow().location
    }

    /// The device that [`Vector::location`] speaks of; none on the CPU.
    #[must_use]
    pub fn home(&self) -> Option<Device> {
        self.body.state.borrow().home.clone()
    }

    /// Whether the device holds a buffer of this vector, current or not.
    #[must_use]
    pub fn has_buffer(&self, device: &Device) -> bool {
        self.body.state.borrow().held(device).is_some()
    }

    /// What the vector's buffer on a device is; nothing if it has none there.
    #[must_use]
    pub fn host_link(&self, device: &Device) -> Option<HostLink> {
        self.body.state.borrow().held(device).map(|held| held.link)
    }
}

impl Body {
    fn new<T: Item>(len: u64) -> Result<Self> {
        const DOING: &str = "sizing a vector";
        let item_bytes = T::LEN_BYTES as u64;
        if len == 0 || item_bytes == 0 {
            return Err(Error::new(ErrorKind::ZeroSize, DOING));
        }
        let max = isize::MAX.unsigned_abs() as u64;
        match len.checked_mul(item_bytes) {
            Some(bytes) if bytes <= max => {}
            _ => {
                let kind = ErrorKind::TooLarge { need: len, max: max / item_bytes };
                return Err(Error::new(kind, DOING).with("unit", "items"));
            }
        }
        let state = RefCell::new(State::on_host());
        Ok(Self { len, item_bytes, kind: kind_of::<T>(), host: OnceCell::new(), state })
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        self.len * self.item_bytes
    }

    /// The host side, made now if it was not needed before.
    pub(crate) fn host(&self) -> Result<&HostSlice> {
        if let Some(host) = self.host.get() {
            return Ok(host);
        }
        let made = HostSlice::allocate(self.len_bytes())?;
        Ok(self.host.get_or_init(|| made))
    }

    /// The host bytes.
    pub(crate) fn host_bytes(&self) -> Result<&[u8]> {
        let (host, len) = (self.host()?, host_len(self.len_bytes(), "reading a vector's host side")?);
        // SAFETY: the slice is this vector's alone and initialised. It is written only through `&mut Vector`,
        // or by `bring_back`, which runs only while the device is newer: then no host borrow is alive, because
        // whatever makes the device newer takes `&mut Vector`. Kernels that share the memory write it only in
        // that state too, and `acquire` waits for them before it ends.
        Ok(unsafe { std::slice::from_raw_parts(host.as_ptr(), len) })
    }

    /// The host bytes, to write. For callers that hold the vector mutably, or before anybody else has it.
    #[allow(clippy::mut_from_ref)]
    pub(crate) fn host_bytes_mut(&self) -> Result<&mut [u8]> {
        let (host, len) = (self.host()?, host_len(self.len_bytes(), "writing a vector's host side")?);
        // SAFETY: as above; the callers are `Vector::from_slice` (not shared yet) and methods on `&mut Vector`
        // that have waited for kernels sharing the memory (`quiet_links`).
        Ok(unsafe { std::slice::from_raw_parts_mut(host.as_ptr(), len) })
    }

    /// The buffer on a device, allocated now if there is none.
    pub(crate) fn ensure_buffer(&self, device: &Device) -> Result<Held> {
        if let Some(held) = self.state.borrow().held(device) {
            return Ok(held.clone());
        }
        let granule = device.limits().copy_granule_bytes.max(1);
        let len_bytes = self.len_bytes().next_multiple_of(granule);
        let segment = device.allocate(len_bytes)?;
        let held = Held { device: device.clone(), segment, offset_bytes: 0, link: HostLink::Separate };
        self.state.borrow_mut().buffers.push(held.clone());
        Ok(held)
    }

    pub(crate) fn refuse_record(&self, doing: &'static str) -> Result<()> {
        match self.kind {
            Some(_) => Ok(()),
            None => Err(Error::new(ErrorKind::WrongKind, doing).with("kind", "record")),
        }
    }

    /// Byte offset of an element range.
    pub(crate) fn range(&self, first: u64, count: usize, doing: &'static str) -> Result<u64> {
        check_range(first, count as u64, self.len, doing)?;
        Ok(first * self.item_bytes)
    }

    pub(crate) fn refusal(&self, kind: ErrorKind, operation: Operation, doing: &'static str) -> Error {
        let location = self.state.borrow().location;
        Error::new(kind, doing).with("operation", format_args!("{operation:?}")).with("location", location)
    }
}

impl<T: Item> std::fmt::Debug for Vector<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vector")
            .field("len", &self.len())
            .field("kind", &self.kind())
            .field("location", &self.location())
            .finish_non_exhaustive()
    }
}
