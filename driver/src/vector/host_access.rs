//! Elements, read and written on the host.

use super::element::{Element, Item};
use super::location::Operation;
use super::movement::Cell;
use super::whole::{Body, Vector};
use crate::error::{Error, ErrorKind, Result};
use crate::util::{check_aligned, host_len};

impl<T: Item> Vector<T> {
    /// One item. If a device is newer, the whole vector comes back first.
    ///
    /// # Errors
    /// `OutOfBounds`; `WrongLocation` for a device-only vector on a GPU, or if the vector would have to come
    /// back and automatic transfers are off; the failure of enqueued work.
    pub fn get(&self, index: u64) -> Result<T> {
        const DOING: &str = "reading an element";
        let offset = self.body.range(index, 1, DOING)?;
        match self.body.perform(Operation::Get, None)? {
            Cell::Move(..) => {
                let at = host_len(offset, DOING)?;
                Ok(T::load(&self.body.host_bytes()?[at..at + T::LEN_BYTES]))
            }
            Cell::InPlace => {
                let mut bytes = vec![0; T::LEN_BYTES];
                let held = self.body.home_buffer(DOING)?;
                held.segment.read(held.offset_bytes + offset, &mut bytes)?;
                Ok(T::load(&bytes))
            }
        }
    }

    /// Writes one item. If a device is newer, the whole vector comes back first, so that nothing is lost: in a
    /// loop with launches that is two whole transfers a turn. See [`Vector::stage_to_device`].
    ///
    /// # Errors
    /// As [`Vector::get`].
    pub fn set(&mut self, index: u64, item: T) -> Result<()> {
        const DOING: &str = "writing an element";
        let offset = self.body.range(index, 1, DOING)?;
        match self.body.begin_host_write()? {
            Cell::Move(..) => {
                let at = host_len(offset, DOING)?;
                item.store(&mut self.body.host_bytes_mut()?[at..at + T::LEN_BYTES]);
                Ok(())
            }
            Cell::InPlace => {
                let mut bytes = vec![0; T::LEN_BYTES];
                item.store(&mut bytes);
                let held = self.body.home_buffer(DOING)?;
                held.segment.write(held.offset_bytes + offset, &bytes)
            }
        }
    }

    /// All items, copied out.
    ///
    /// # Errors
    /// As [`Vector::get`].
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let load = |bytes: &[u8]| bytes.chunks_exact(T::LEN_BYTES).map(T::load).collect();
        match self.body.perform(Operation::Get, None)? {
            Cell::Move(..) => Ok(load(self.body.host_bytes()?)),
            Cell::InPlace => {
                let held = self.body.home_buffer("reading a vector")?;
                let mut bytes = vec![0; host_len(self.len_bytes(), "reading a vector")?];
                held.segment.read(held.offset_bytes, &mut bytes)?;
                Ok(load(&bytes))
            }
        }
    }
}

impl<T: Element> Vector<T> {
    /// The elements. If a device is newer, they come back first.
    ///
    /// # Errors
    /// `WrongLocation` for device-only vectors on any device (there is no host side to borrow), or if the
    /// vector would have to come back and automatic transfers are off; the failure of enqueued work.
    pub fn as_slice(&self) -> Result<&[T]> {
        match self.body.perform(Operation::Get, None)? {
            Cell::Move(..) => {
                let bytes = self.body.host_bytes()?;
                check_aligned(bytes.as_ptr().addr() as u64, align_of::<T>() as u64, "borrowing a vector")?;
                let len = bytes.len() / size_of::<T>();
                // SAFETY: aligned (checked just above), of that length, initialised, and every bit pattern is
                // an element (sealed trait); borrowed as long as the bytes are.
                Ok(unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<T>(), len) })
            }
            Cell::InPlace => Err(self.body.no_host_side(Operation::Get)),
        }
    }

    /// The elements, to write; devices are out of date from here on.
    ///
    /// # Errors
    /// As [`Vector::as_slice`].
    pub fn as_mut_slice(&mut self) -> Result<&mut [T]> {
        if self.location() == super::Location::DeviceOnly {
            return Err(self.body.no_host_side(Operation::Set));
        }
        self.body.begin_host_write()?;
        let bytes = self.body.host_bytes_mut()?;
        check_aligned(bytes.as_ptr().addr() as u64, align_of::<T>() as u64, "borrowing a vector")?;
        let len = bytes.len() / size_of::<T>();
        // SAFETY: as in `as_slice`; `&mut self` is exclusive.
        Ok(unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast::<T>(), len) })
    }
}

impl Body {
    /// What a write on the host needs beforehand, kernels that share the memory included.
    fn begin_host_write(&self) -> Result<Cell> {
        let cell = self.look_up(Operation::Set, None)?;
        if let Cell::Move(moves, next) = cell {
            self.carry_out(moves, None)?;
            self.quiet_links()?;
            self.settle_at(next, None);
        }
        Ok(cell)
    }

    fn no_host_side(&self, operation: Operation) -> Error {
        self.refusal(ErrorKind::WrongLocation, operation, "borrowing a vector")
            .with("reason", "a device-only vector has no host side")
    }

    pub(crate) fn home_buffer(&self, doing: &'static str) -> Result<super::state::Held> {
        let held = self.state.borrow().home_buffer().cloned();
        held.ok_or_else(|| Error::new(ErrorKind::Released, doing))
    }
}
