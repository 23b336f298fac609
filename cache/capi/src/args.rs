//! What C passes, looked at before it is used.

use crate::failure::{Failure, Result};
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::slice;

/// A structure that grows with the interface: callers say how long theirs is.
///
/// # Safety
/// It is `repr(C)`, begins with its `usize` size, and every bit pattern is a value of it: numbers and pointers alone.
pub unsafe trait Sizeable: Copy {
    /// Its length when the interface began, bytes.
    const FIRST_BYTES: usize;
    /// Its name in the header.
    const NAME: &'static str;
}

/// Declares structures of the header as such.
macro_rules! sized {
    ($($name:ident),* $(,)?) => { $(
        // SAFETY: declared `repr(C)` beside this, `struct_size` first, numbers and pointers alone.
        unsafe impl $crate::args::Sizeable for $name {
            const FIRST_BYTES: usize = size_of::<$name>();
            const NAME: &'static str = stringify!($name);
        }
    )* };
}
pub(crate) use sized;

fn null(name: &str) -> Failure {
    Failure::argument(format_args!("{name}: expected a pointer, found NULL"))
}

fn check<T>(ptr: *const T, name: &str) -> Result<()> {
    if ptr.is_null() {
        Err(null(name))
    } else if !ptr.is_aligned() {
        Err(Failure::argument(format_args!(
            "{name}: expected a pointer aligned to {} bytes",
            align_of::<T>()
        )))
    } else {
        Ok(())
    }
}

/// A text.
///
/// # Safety
/// Null, or it ends with a NUL and stays as it is for `'a`.
pub unsafe fn text<'a>(ptr: *const c_char, name: &str) -> Result<&'a str> {
    // SAFETY: the caller's duty.
    unsafe { optional_text(ptr, name) }?.ok_or_else(|| null(name))
}

/// A text, or none where the pointer is null.
///
/// # Safety
/// As [`text`].
pub unsafe fn optional_text<'a>(ptr: *const c_char, name: &str) -> Result<Option<&'a str>> {
    // SAFETY: the caller's duty.
    let Some(bytes) = (unsafe { bytes(ptr) }) else { return Ok(None) };
    let not_text = |_| Failure::argument(format_args!("{name}: expected UTF-8"));
    std::str::from_utf8(bytes).map(Some).map_err(not_text)
}

/// A text's bytes without the NUL, or none where the pointer is null.
///
/// # Safety
/// As [`text`].
pub unsafe fn bytes<'a>(ptr: *const c_char) -> Option<&'a [u8]> {
    if ptr.is_null() {
        return None;
    }
    // SAFETY: not null, and by the caller's duty it ends with a NUL.
    Some(unsafe { CStr::from_ptr(ptr) }.to_bytes())
}

/// An array; null is one of no elements.
///
/// # Safety
/// Null, or `count` elements that stay as they are for `'a`.
pub unsafe fn list<'a, T: Copy>(ptr: *const T, count: usize, name: &str) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    check(ptr, name)?;
    too_many::<T>(count, name)?;
    // SAFETY: not null, aligned, and no longer than memory can be; the elements are the caller's duty.
    Ok(unsafe { slice::from_raw_parts(ptr, count) })
}

/// An array to be written.
///
/// # Safety
/// Null, or room for `count` elements that nobody else touches for `'a`.
pub unsafe fn room<'a, T: Copy>(ptr: *mut T, count: usize, name: &str) -> Result<&'a mut [MaybeUninit<T>]> {
    if count == 0 {
        return Ok(&mut []);
    }
    check(ptr, name)?;
    too_many::<T>(count, name)?;
    // SAFETY: as in `list`.
    Ok(unsafe { slice::from_raw_parts_mut(ptr.cast(), count) })
}

fn too_many<T>(count: usize, name: &str) -> Result<()> {
    let fits = count.checked_mul(size_of::<T>()).is_some_and(|bytes| isize::try_from(bytes).is_ok());
    if fits { Ok(()) } else { Err(Failure::argument(format_args!("{name}: {count} elements fit no memory"))) }
}

/// Where a result goes.
pub fn out<'a, T>(ptr: Option<&'a mut MaybeUninit<T>>, name: &str) -> Result<&'a mut MaybeUninit<T>> {
    ptr.ok_or_else(|| null(name))
}

fn size_of_theirs<T: Sizeable>(size: usize) -> Result<usize> {
    if size < T::FIRST_BYTES {
        return Err(Failure::argument(format_args!(
            "{}.struct_size: expected at least {}, found {size}",
            T::NAME,
            T::FIRST_BYTES
        )));
    }
    Ok(size)
}

/// The caller's structure, zeros behind its end; all zeros (the defaults) where the pointer is null. One that is
/// longer than this library knows may ask for nothing there.
///
/// # Safety
/// Null, or readable for as many bytes as its `struct_size` says.
pub unsafe fn options<T: Sizeable>(ptr: *const T) -> Result<T> {
    // SAFETY: zeros are a value of every such structure.
    let mut options: T = unsafe { std::mem::zeroed() };
    if ptr.is_null() {
        return Ok(options);
    }
    check(ptr, T::NAME)?;
    // SAFETY: aligned, and readable for its first field at least; it begins with that.
    let theirs = size_of_theirs::<T>(unsafe { ptr.cast::<usize>().read() })?;
    // SAFETY: readable for as many bytes as it says.
    let given = unsafe { slice::from_raw_parts(ptr.cast::<u8>(), theirs) };
    let known = theirs.min(size_of::<T>());
    if given[known..].iter().any(|byte| *byte != 0) {
        let message = format_args!("{}: it asks for something that this library does not know", T::NAME);
        return Err(Failure::argument(message));
    }
    // SAFETY: both are at least `known` bytes, and every bit pattern is a value.
    unsafe { std::ptr::copy_nonoverlapping(given.as_ptr(), (&raw mut options).cast::<u8>(), known) };
    Ok(options)
}

/// Fills the caller's structure as far as it goes, zeros behind what this library knows. Its `struct_size` stays.
///
/// # Safety
/// Null, or writable for as many bytes as its `struct_size`, which is set, says.
pub unsafe fn fill<T: Sizeable>(ptr: *mut T, value: &T) -> Result<()> {
    check(ptr, T::NAME)?;
    let head = size_of::<usize>();
    // SAFETY: as in `options`.
    let theirs = size_of_theirs::<T>(unsafe { ptr.cast::<usize>().read() })?;
    let known = theirs.min(size_of::<T>());
    let (from, to) = ((&raw const *value).cast::<u8>(), ptr.cast::<u8>());
    // SAFETY: both are at least `known` bytes, and the first of them is the size, which is longer than `head`.
    unsafe { std::ptr::copy_nonoverlapping(from.wrapping_add(head), to.wrapping_add(head), known - head) };
    // SAFETY: the caller's structure is `theirs` bytes.
    unsafe { std::ptr::write_bytes(to.wrapping_add(known), 0, theirs - known) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    #[repr(C)]
    struct old {
        struct_size: usize,
        a: u64,
    }

    #[derive(Clone, Copy)]
    #[repr(C)]
    struct new {
        struct_size: usize,
        a: u64,
        b: u64,
    }

    // SAFETY: as the trait asks.
    unsafe impl Sizeable for old {
        const FIRST_BYTES: usize = 16;
        const NAME: &'static str = "old";
    }
    // SAFETY: as the trait asks. It has grown since the interface began.
    unsafe impl Sizeable for new {
        const FIRST_BYTES: usize = 16;
        const NAME: &'static str = "new";
    }

    #[test]
    fn an_old_caller_and_a_new_library() -> Result<()> {
        let theirs = [old { struct_size: 16, a: 5 }, old { struct_size: 99, a: 99 }];
        // SAFETY: 16 bytes, as it says.
        let read = unsafe { options::<new>(theirs.as_ptr().cast()) }?;
        assert_eq!((read.a, read.b), (5, 0));
        let mut out = theirs;
        // SAFETY: as above.
        unsafe { fill::<new>(out.as_mut_ptr().cast(), &new { struct_size: 24, a: 6, b: 7 }) }?;
        assert_eq!((out[0].struct_size, out[0].a), (16, 6));
        assert_eq!((out[1].struct_size, out[1].a), (99, 99), "behind the caller's structure");
        Ok(())
    }

    #[test]
    fn a_new_caller_and_an_old_library() -> Result<()> {
        let mut theirs = new { struct_size: 24, a: 5, b: 0 };
        // SAFETY: 24 bytes, as it says.
        assert_eq!(unsafe { options::<old>((&raw const theirs).cast()) }?.a, 5);
        theirs.b = 1;
        // SAFETY: as above.
        let refused = unsafe { options::<old>((&raw const theirs).cast()) };
        assert!(refused.is_err_and(|failure| failure.message.contains("does not know")));
        // SAFETY: as above.
        unsafe { fill::<old>((&raw mut theirs).cast(), &old { struct_size: 16, a: 6 }) }?;
        assert_eq!((theirs.struct_size, theirs.a, theirs.b), (24, 6, 0));
        Ok(())
    }

    #[test]
    fn what_is_no_structure_is_refused() -> Result<()> {
        let unset = old { struct_size: 0, a: 5 };
        // SAFETY: its size is not set, which is looked at first.
        let refused = unsafe { options::<old>(&raw const unset) };
        assert!(
            refused.is_err_and(|failure| failure.message == "old.struct_size: expected at least 16, found 0")
        );
        // SAFETY: null.
        assert_eq!(unsafe { options::<old>(std::ptr::null()) }?.a, 0);
        // SAFETY: null.
        assert!(unsafe { fill::<old>(std::ptr::null_mut(), &unset) }.is_err());
        // SAFETY: misaligned, which is looked at before the memory.
        assert!(unsafe { options::<old>(std::ptr::without_provenance(4)) }.is_err());
        // SAFETY: null, or of no length.
        assert!(unsafe { list::<u64>(std::ptr::null(), 1, "keys") }.is_err());
        // SAFETY: too long for any memory, which is looked at before it.
        assert!(unsafe { list::<u64>(std::ptr::without_provenance(8), usize::MAX / 8, "keys") }.is_err());
        // SAFETY: null and empty.
        assert!(unsafe { list::<u64>(std::ptr::null(), 0, "keys") }?.is_empty());
        // SAFETY: ends with a NUL.
        let text = unsafe { text(c"\xff".as_ptr(), "path") };
        assert!(text.is_err_and(|failure| failure.message == "path: expected UTF-8"));
        Ok(())
    }
}
