//! A page of host memory that nobody can read until the test lets them.
//!
//! A copy from such a page stops in the middle, wherever it runs on a CPU: that is how a check makes sure
//! that work is pending. No privilege is needed, because only faults of user code are held.

use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;

use spoc_driver::HostSource;

const USER_MODE_ONLY: libc::c_int = 1;
const API_VERSION: u64 = 0xAA;
const MODE_MISSING: u64 = 1;
// The kernel's numbers: _IOWR(0xAA, 0x3F, 24 bytes) and _IOWR(0xAA, 0x00, 32 bytes).
const IOCTL_API: libc::c_ulong = 0xC018_AA3F;
const IOCTL_REGISTER: libc::c_ulong = 0xC020_AA00;

#[repr(C)]
struct Api {
    version: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

/// Holds readers of its page while it lives.
pub(crate) struct Gate {
    descriptor: OwnedFd,
}

impl Gate {
    /// Whether somebody waits for it.
    pub(crate) fn is_reached(&self) -> bool {
        let mut asked = libc::pollfd { fd: self.descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry, and no waiting.
        let count = unsafe { libc::poll(&raw mut asked, 1, 0) };
        count == 1 && asked.revents & libc::POLLIN != 0
    }
}

/// The page: reading it waits for the gate to go. Then it is zero.
pub(crate) struct GatedPage {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: the value owns its mapping; nothing else knows the address.
unsafe impl Send for GatedPage {}

// SAFETY: the mapping stays in place until the value is dropped, is initialised (zero) and never written.
unsafe impl HostSource for GatedPage {
    fn as_ptr(&self) -> *const u8 {
        self.ptr.as_ptr()
    }

    fn len_bytes(&self) -> usize {
        self.len
    }
}

impl Drop for GatedPage {
    fn drop(&mut self) {
        // SAFETY: mapped by `gated_page`, owned by this value alone.
        unsafe { libc::munmap(self.ptr.as_ptr().cast(), self.len) };
    }
}

/// A page and its gate.
pub(crate) fn gated_page() -> Result<(GatedPage, Gate)> {
    let page = map_page()?;
    // SAFETY: the call makes a descriptor and touches no memory.
    let raw =
        unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY) };
    let raw = RawFd::try_from(raw).map_err(Error::other)?;
    if raw < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: just made, and owned by nobody else.
    let descriptor = unsafe { OwnedFd::from_raw_fd(raw) };
    ask(&descriptor, IOCTL_API, &mut Api { version: API_VERSION, features: 0, ioctls: 0 })?;
    let (start, len) = (page.ptr.as_ptr().addr() as u64, page.len as u64);
    ask(&descriptor, IOCTL_REGISTER, &mut Register { start, len, mode: MODE_MISSING, ioctls: 0 })?;
    Ok((page, Gate { descriptor }))
}

fn map_page() -> Result<GatedPage> {
    // SAFETY: sysconf has no preconditions.
    let len = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let len = usize::try_from(len).map_err(Error::other)?;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a fresh anonymous mapping touches no existing memory.
    let raw = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
    match NonNull::new(raw.cast::<u8>()) {
        Some(ptr) if raw != libc::MAP_FAILED => Ok(GatedPage { ptr, len }),
        _ => Err(Error::last_os_error()),
    }
}

fn ask<T>(descriptor: &OwnedFd, request: libc::c_ulong, argument: &mut T) -> Result<()> {
    // SAFETY: the argument is the struct that the request names, of the kernel's layout, borrowed for the
    // call.
    match unsafe { libc::ioctl(descriptor.as_raw_fd(), request, argument) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_reader_waits_for_the_gate() {
        let (page, gate) = gated_page().unwrap();
        assert!(!gate.is_reached());
        let reader = std::thread::spawn(move || {
            // SAFETY: the page is mapped while `page` lives.
            unsafe { page.as_ptr().read_volatile() }
        });
        let deadline = Instant::now() + Duration::from_secs(10);
        while !gate.is_reached() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(gate.is_reached() && !reader.is_finished());
        drop(gate);
        assert_eq!(reader.join().unwrap(), 0);
    }
}
