//! The writer's side.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::{AT_FDCWD, AtFlags, Flock, FlockArg, OFlag, posix_fallocate};
use nix::unistd::linkat;

use crate::dir::create_dir;
use crate::name::{PageName, ProcessIdentity};

/// More pages than this in one process is a leak, not a use.
const PAGES_PER_PROCESS_MAX: u32 = 1024;

/// A page of this process, unlinked when dropped.
#[derive(Debug)]
pub struct Page {
    map: MmapRaw,
    len_words: usize,
    file: Flock<File>,
    dir: PathBuf,
    published: OnceLock<PathBuf>,
}

impl Page {
    /// Makes a zeroed page of `len_words` 64-bit words in this user's runtime folder. Nobody can see it until
    /// [`Page::publish`], so that a reader never meets a half-written header.
    ///
    /// # Errors
    /// No usable runtime folder, or no room in it. A process can run without a page: treat this as a warning.
    pub fn create(len_words: usize) -> io::Result<Page> {
        Page::create_in(&create_dir()?, len_words)
    }

    /// As [`Page::create`], in a folder of the caller's choice.
    ///
    /// # Errors
    /// As [`Page::create`].
    pub fn create_in(dir: &Path, len_words: usize) -> io::Result<Page> {
        let len_bytes = len_words
            .checked_mul(size_of::<u64>())
            .filter(|bytes| *bytes > 0)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a page has at least one word"))?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .mode(0o600)
            .custom_flags((OFlag::O_TMPFILE | OFlag::O_CLOEXEC).bits())
            .open(dir)?;
        let len = i64::try_from(len_bytes).map_err(io::Error::other)?;
        // Allocated now, because a full file system would otherwise show up as SIGBUS at some later store.
        posix_fallocate(&file, 0, len)?;
        let file = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno)?;
        let map = MmapOptions::new().len(len_bytes).map_raw(&*file)?;
        Ok(Page { map, len_words, file, dir: dir.to_path_buf(), published: OnceLock::new() })
    }

    /// The words, all zero at first. Any number of threads may read and write them.
    pub fn words(&self) -> &[AtomicU64] {
        let start = self.map.as_ptr().cast::<AtomicU64>();
        // SAFETY: `create_in` mapped `len_words` × 8 bytes, shared and writable, at a page boundary, which is aligned
        // for u64, over bytes that are allocated and zeroed; every access in any process is atomic (a view only
        // loads); the mapping lives as long as `self`, to which the slice is bound.
        unsafe { std::slice::from_raw_parts(start, self.len_words) }
    }

    /// Gives the page its name. Call it when the header is complete; again is a no-op.
    ///
    /// # Errors
    /// When `/proc` is not mounted or the folder is gone.
    pub fn publish(&self) -> io::Result<&Path> {
        if let Some(path) = self.published.get() {
            return Ok(path);
        }
        let path = self.link()?;
        if let Err(second) = self.published.set(path) {
            // Another thread was faster, and one name is enough.
            std::fs::remove_file(second)?;
        }
        self.path().ok_or_else(|| io::Error::other("the page has no name"))
    }

    fn link(&self) -> io::Result<PathBuf> {
        let process = ProcessIdentity::current()?;
        let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        for number in 0..PAGES_PER_PROCESS_MAX {
            let path = self.dir.join(PageName { process, number }.to_string());
            match linkat(AT_FDCWD, own.as_str(), AT_FDCWD, &path, AtFlags::AT_SYMLINK_FOLLOW) {
                Ok(()) => return Ok(path),
                Err(nix::Error::EEXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(io::Error::other(format!("this process already has {PAGES_PER_PROCESS_MAX} pages")))
    }

    /// Where the page is, once published.
    pub fn path(&self) -> Option<&Path> {
        self.published.get().map(PathBuf::as_path)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if let Some(path) = self.published.get() {
            // Nobody to report to, and a leftover is recognised as stale by its free lock.
            let _ = std::fs::remove_file(path);
        }
    }
}
