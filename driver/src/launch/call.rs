//! What a native kernel sees of its launch.

use std::marker::PhantomData;

use super::{Access, Grid, Scalar};
use crate::error::{Error, ErrorKind, Result};
use crate::util::check_aligned;
use crate::vector::{Element, ElementKind};

const DOING: &str = "taking a kernel's argument";

/// A launch as a native kernel sees it: the grid and the arguments, by position.
///
/// Slices live as long as the call, so that several can be held at once. A vector that may be written is given
/// out mutably once, or shared as often as wanted, never both.
///
/// They cannot be kept:
/// ```compile_fail
/// use spoc_driver::{ElementKind, Kernel, KindRule, Parameter};
/// let kept = std::sync::Mutex::new(None);
/// let kind = KindRule::Exactly(ElementKind::F32);
/// Kernel::native("keep", &[Parameter::read(kind)], move |call| {
///     *kept.lock().unwrap() = Some(call.read::<f32>(0)?);
///     Ok(())
/// });
/// ```
pub struct Call<'a> {
    grid: Grid,
    slots: Vec<Slot>,
    _memory: PhantomData<&'a mut [u8]>,
}

/// One argument of a [`Call`], as an adapter hands it over.
#[derive(Debug, Clone, Copy)]
pub enum CallArgument {
    /// A vector's memory.
    Memory {
        /// First byte.
        ptr: *mut u8,
        /// How many bytes.
        len_bytes: usize,
        /// The kind of its elements; none for records.
        kind: Option<ElementKind>,
        /// Whether it may be written.
        access: Access,
    },
    /// A number.
    Scalar(Scalar),
}

struct Slot {
    argument: CallArgument,
    taken: Taken,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Taken {
    No,
    Shared,
    Exclusively,
}

impl<'a> Call<'a> {
    /// A call, made by the adapter that runs it.
    ///
    /// # Safety
    /// For all of `'a`, memory of access `Read` is initialised and written by nobody, and memory of access
    /// `Write` is initialised and accessed by nobody else; no written memory overlaps another argument's.
    pub unsafe fn new(grid: Grid, arguments: impl IntoIterator<Item = CallArgument>) -> Self {
        let slots = arguments.into_iter().map(|argument| Slot { argument, taken: Taken::No }).collect();
        Self { grid, slots, _memory: PhantomData }
    }

    /// The grid it was launched with. A native kernel is called once and may use it as it likes.
    #[must_use]
    pub fn grid(&self) -> Grid {
        self.grid
    }

    /// How many arguments there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The kind of a vector or number; nothing for records.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such argument.
    pub fn kind(&self, position: usize) -> Result<Option<ElementKind>> {
        let slot = self.slots.get(position).ok_or_else(|| no_such(position))?;
        Ok(match &slot.argument {
            CallArgument::Memory { kind, .. } => *kind,
            CallArgument::Scalar(scalar) => Some(scalar.kind()),
        })
    }

    /// A vector's elements.
    ///
    /// # Errors
    /// `WrongKind`; `InvalidArgument` if there is no such vector, or it was taken for writing.
    pub fn read<T: Element>(&mut self, position: usize) -> Result<&'a [T]> {
        let (ptr, len) = self.take::<T>(position, Taken::Shared)?;
        // SAFETY: whoever made the call promised initialised memory that nobody writes for all of `'a` (or that
        // is this call's alone, and `take` has refused mixing); aligned and of kind `T` (checked by `take`).
        Ok(unsafe { std::slice::from_raw_parts(ptr.cast::<T>(), len) })
    }

    /// A vector's elements, to write. Given out once.
    ///
    /// # Errors
    /// As [`Call::read`]; `InvalidArgument` if it is not declared as written, or was taken before.
    pub fn write<T: Element>(&mut self, position: usize) -> Result<&'a mut [T]> {
        let (ptr, len) = self.take::<T>(position, Taken::Exclusively)?;
        // SAFETY: as above; the memory is this call's alone, and `take` gives it out once.
        Ok(unsafe { std::slice::from_raw_parts_mut(ptr.cast::<T>(), len) })
    }

    /// A vector's bytes, whatever its kind.
    ///
    /// # Errors
    /// As [`Call::read`].
    pub fn read_bytes(&mut self, position: usize) -> Result<&'a [u8]> {
        let (ptr, len, _) = self.claim(position, Taken::Shared)?;
        // SAFETY: as in `read`; bytes need no alignment.
        Ok(unsafe { std::slice::from_raw_parts(ptr, len) })
    }

    /// A vector's bytes, to write. Given out once.
    ///
    /// # Errors
    /// As [`Call::write`].
    pub fn write_bytes(&mut self, position: usize) -> Result<&'a mut [u8]> {
        let (ptr, len, _) = self.claim(position, Taken::Exclusively)?;
        // SAFETY: as in `write`; bytes need no alignment.
        Ok(unsafe { std::slice::from_raw_parts_mut(ptr, len) })
    }

    /// A number.
    ///
    /// # Errors
    /// `WrongKind`; `InvalidArgument` if there is no such number.
    pub fn scalar<T: Element>(&self, position: usize) -> Result<T> {
        match self.slots.get(position).map(|slot| slot.argument) {
            Some(CallArgument::Scalar(scalar)) => {
                scalar.get().ok_or_else(|| wrong_kind(position, Some(scalar.kind()), T::KIND))
            }
            _ => Err(no_such(position)),
        }
    }

    fn take<T: Element>(&mut self, position: usize, how: Taken) -> Result<(*mut u8, usize)> {
        let kind = self.kind(position)?;
        if kind != Some(T::KIND) {
            return Err(wrong_kind(position, kind, T::KIND));
        }
        let (ptr, len_bytes, _) = self.claim(position, how)?;
        check_aligned(ptr.addr() as u64, align_of::<T>() as u64, DOING)?;
        Ok((ptr, len_bytes / size_of::<T>()))
    }

    fn claim(&mut self, position: usize, how: Taken) -> Result<(*mut u8, usize, Access)> {
        let slot = self.slots.get_mut(position).ok_or_else(|| no_such(position))?;
        let CallArgument::Memory { ptr, len_bytes, access, .. } = slot.argument else {
            return Err(no_such(position));
        };
        let is_allowed = match how {
            Taken::Exclusively => slot.taken == Taken::No && access == Access::Write,
            _ => slot.taken != Taken::Exclusively,
        };
        if !is_allowed {
            return Err(Error::new(ErrorKind::InvalidArgument, DOING)
                .with("position", position)
                .with("because", "it was taken before, or is not declared as written"));
        }
        slot.taken = how;
        Ok((ptr, len_bytes, access))
    }
}

fn no_such(position: usize) -> Error {
    Error::new(ErrorKind::InvalidArgument, DOING).with("position", position)
}

fn wrong_kind(position: usize, found: Option<ElementKind>, expected: ElementKind) -> Error {
    Error::new(ErrorKind::WrongKind, DOING)
        .with("position", position)
        .with("kind", found.map_or("record", ElementKind::as_str))
        .with("expected", expected)
}

impl std::fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call")
            .field("grid", &self.grid)
            .field("arguments", &self.slots.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(words: &mut [u32], access: Access) -> CallArgument {
        CallArgument::Memory {
            ptr: words.as_mut_ptr().cast(),
            len_bytes: size_of_val(words),
            kind: Some(ElementKind::U32),
            access,
        }
    }

    #[test]
    fn slices_are_given_out_shared_or_once() {
        let (mut a, mut b) = ([1_u32, 2], [3_u32, 4]);
        let arguments = [
            memory(&mut a, Access::Read),
            memory(&mut b, Access::Write),
            CallArgument::Scalar(Scalar::of(5_u32)),
        ];
        // SAFETY: both arrays outlive the call and are touched by nobody else meanwhile.
        let mut call = unsafe { Call::new(Grid::linear(2), arguments) };
        let x = call.read::<u32>(0).unwrap();
        let again = call.read::<u32>(0).unwrap();
        let y = call.write::<u32>(1).unwrap();
        y[0] = x[1] + again[0] + call.scalar::<u32>(2).unwrap();
        let refused = |error: Error| assert_eq!(*error.kind(), ErrorKind::InvalidArgument, "{error}");
        refused(call.write::<u32>(1).unwrap_err());
        refused(call.read::<u32>(1).unwrap_err());
        refused(call.read_bytes(1).unwrap_err());
        refused(call.write::<u32>(0).unwrap_err());
        refused(call.write_bytes(0).unwrap_err());
        refused(call.read::<u32>(2).unwrap_err());
        refused(call.read::<u32>(3).unwrap_err());
        refused(call.scalar::<u32>(0).unwrap_err());
        assert_eq!(*call.read::<f32>(0).unwrap_err().kind(), ErrorKind::WrongKind);
        assert_eq!(*call.scalar::<f32>(2).unwrap_err().kind(), ErrorKind::WrongKind);
        assert_eq!((call.len(), call.is_empty(), b[0]), (3, false, 8));
    }

    #[test]
    fn what_was_shared_is_not_given_out_for_writing() {
        let mut a = [1_u32];
        // SAFETY: as above.
        let mut call = unsafe { Call::new(Grid::linear(1), [memory(&mut a, Access::Write)]) };
        assert_eq!(call.read_bytes(0).unwrap().len(), 4);
        assert!(call.write::<u32>(0).is_err());
        assert_eq!(call.read::<u32>(0).unwrap(), [1]);
    }

    #[test]
    fn a_misaligned_vector_is_refused() {
        let mut a = [1_u32, 2];
        let ptr = a.as_mut_ptr().cast::<u8>().wrapping_add(1);
        let odd =
            CallArgument::Memory { ptr, len_bytes: 4, kind: Some(ElementKind::U32), access: Access::Read };
        // SAFETY: as above.
        let mut call = unsafe { Call::new(Grid::linear(1), [odd]) };
        assert!(matches!(call.read::<u32>(0).unwrap_err().kind(), ErrorKind::Misaligned { .. }));
    }
}
