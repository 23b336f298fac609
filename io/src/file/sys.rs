//! What Linux alone has, one function each; `sys_elsewhere.rs` has the same for other systems.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use super::open_for_reading;

/// Type number of the file's file system (statfs `f_type`).
pub(crate) fn file_system(file: &File) -> io::Result<i64> {
    let kind = nix::sys::statfs::fstatfs(file)?.filesystem_type().0;
    #[allow(clippy::unnecessary_cast, reason = "the type of f_type differs between architectures")]
    Ok(kind as i64)
}

/// Whether that is FUSE's number.
pub(crate) fn is_fuse(file_system: i64) -> bool {
    const FUSE_SUPER_MAGIC: i64 = 0x6573_5546;
    file_system == FUSE_SUPER_MAGIC
}

/// Opens an open file again, for reads past the page cache.
pub(crate) fn open_direct(file: &File, path: &Path) -> io::Result<File> {
    // Through /proc the descriptor itself is reopened, wherever its name leads by now.
    let by_descriptor = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    match open_for_reading(&by_descriptor, libc::O_DIRECT) {
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => open_for_reading(path, libc::O_DIRECT),
        other => other,
    }
}

/// Memory and offset alignment that the file asks of direct reads, in bytes; `None` where the kernel or the file
/// system does not say.
pub(crate) fn direct_alignment(file: &File) -> Option<(u32, u32)> {
    const EMPTY: &CStr = c"";
    // SAFETY: all-zero bytes are a valid `statx`: it holds integers only.
    let mut answer: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path is a C string, `answer` is a live, writable statx; the descriptor is open while `file` is.
    let rc = unsafe {
        libc::statx(
            file.as_raw_fd(),
            EMPTY.as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            &raw mut answer,
        )
    };
    let said = rc == 0 && answer.stx_mask & libc::STATX_DIOALIGN != 0 && answer.stx_dio_offset_align != 0;
    said.then_some((answer.stx_dio_mem_align, answer.stx_dio_offset_align))
}

#[repr(C)]
struct CachestatRange {
    offset: u64,
    len: u64,
}

#[repr(C)]
#[derive(Default)]
struct Cachestat {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Pages of the range that the page cache holds, by cachestat(2) (Linux 6.5).
pub(crate) fn cached_pages(file: &File, offset: u64, len_bytes: u64) -> io::Result<u64> {
    /// The same number on every architecture.
    const SYS_CACHESTAT: libc::c_long = 451;
    let range = CachestatRange { offset, len: len_bytes };
    let mut answer = Cachestat::default();
    // SAFETY: both structures have the kernel's layout and live across the call; the descriptor is open.
    let rc = unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut answer, 0) };
    if rc == 0 { Ok(answer.cached) } else { Err(io::Error::last_os_error()) }
}

/// Whether one byte at `offset` can be read without waiting for the disk, by preadv2(RWF_NOWAIT).
pub(crate) fn byte_is_cached(file: &File, offset: u64) -> io::Result<bool> {
    let mut byte = 0u8;
    let target = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let offset = libc::off_t::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
    // SAFETY: one iovec over a live byte; the descriptor is open.
    let rc = unsafe { libc::preadv2(file.as_raw_fd(), &raw const target, 1, offset, libc::RWF_NOWAIT) };
    if rc >= 0 {
        return Ok(rc == 1);
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::EAGAIN) { Ok(false) } else { Err(error) }
}

/// Page size of this system in bytes.
pub(crate) fn page_bytes() -> u64 {
    // SAFETY: takes and gives plain integers.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).unwrap_or(4096).max(1)
}
