//! What `sys.rs` has for Linux, for other systems: macOS, whose way past the page cache is `F_NOCACHE`. Type-checked, and
//! not run.

use std::fs::File;
use std::io;
use std::path::Path;

use super::open_for_reading;

/// File systems have no numbers that mean anything here.
pub(crate) fn file_system(_: &File) -> io::Result<i64> {
    Ok(0)
}

/// What io_uring and direct reads make of FUSE is Linux's affair.
pub(crate) fn is_fuse(_: i64) -> bool {
    false
}

/// Opens an open file again, for reads past the page cache. Its name may lead elsewhere by now: the caller compares.
pub(crate) fn open_direct(_: &File, path: &Path) -> io::Result<File> {
    let file = open_for_reading(path, 0)?;
    #[cfg(target_vendor = "apple")]
    {
        use std::os::fd::AsRawFd;
        // SAFETY: sets a flag of an open descriptor.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_NOCACHE, 1) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(file)
}

/// Nothing has to be aligned, and nobody says so.
pub(crate) fn direct_alignment(_: &File) -> Option<(u32, u32)> {
    None
}

fn unknown<T>() -> io::Result<T> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

/// No call tells how much of a file the page cache holds.
pub(crate) fn cached_pages(_: &File, _: u64, _: u64) -> io::Result<u64> {
    unknown()
}

/// No read can be told not to wait for the disk.
pub(crate) fn byte_is_cached(_: &File, _: u64) -> io::Result<bool> {
    unknown()
}

/// Page size of this system in bytes.
pub(crate) fn page_bytes() -> u64 {
    // SAFETY: takes and gives plain integers.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).unwrap_or(4096).max(1)
}
