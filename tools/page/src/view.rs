//! The reader's side.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::AtomicU64;

use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::OFlag;

use crate::dir::Folder;

/// More than any page can need; keeps a foreign file from being mapped by the terabyte.
const LEN_BYTES_MAX: u64 = 1 << 30;

/// Somebody's page. The file is opened read-only: nothing here can change it.
#[derive(Debug)]
pub struct View {
    map: MmapRaw,
    len_words: usize,
    file: File,
}

impl View {
    /// Maps the page at `path`.
    ///
    /// # Errors
    /// When it is not a regular file of whole 64-bit words, or cannot be read.
    pub fn open(path: &Path) -> io::Result<View> {
        let file = open_page(path)?;
        let len_bytes = file.metadata()?.len();
        if len_bytes == 0 || len_bytes > LEN_BYTES_MAX || !len_bytes.is_multiple_of(8) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{}: {len_bytes} bytes long, not a statistics page", path.display()),
            ));
        }
        let len_bytes = usize::try_from(len_bytes).map_err(io::Error::other)?;
        // SAFETY: the mapping becomes a raw one at once, so no reference to bytes that another process writes is made;
        // private, because an atomic that must not be stored to would be a trap in a safe slice.
        let map = unsafe { MmapOptions::new().len(len_bytes).map_copy(&file) }?;
        let map = MmapRaw::from(map);
        Ok(View { map, len_words: len_bytes / 8, file })
    }

    /// Length in 64-bit words.
    pub fn len_words(&self) -> usize {
        self.len_words
    }

    /// The words as they are now, checking first that the file is still as long as the mapping. Ask again for every
    /// look: what a truncation after the check does is told in the crate's documentation.
    ///
    /// Loads see what the writer stores; a store stays in this process.
    ///
    /// # Errors
    /// `UnexpectedEof` when the file has become shorter than what was mapped.
    pub fn words(&self) -> io::Result<&[AtomicU64]> {
        self.check_len()?;
        let start = self.map.as_ptr().cast::<AtomicU64>();
        // SAFETY: `open` mapped `len_words` × 8 bytes of a file that was at least that long, as it was just now, at a
        // page boundary, which is aligned for u64. The mapping is private and writable, so that even a store is no
        // fault and reaches nobody; the other process only accesses the words atomically; and the mapping lives as
        // long as `self`, to which the slice is bound.
        Ok(unsafe { std::slice::from_raw_parts(start, self.len_words) })
    }

    /// Whether the process that made the page still holds it.
    ///
    /// # Errors
    /// When the lock cannot be asked for.
    pub fn is_live(&self) -> io::Result<bool> {
        crate::entry::is_locked(&self.file)
    }

    fn check_len(&self) -> io::Result<()> {
        let now_bytes = self.file.metadata()?.len();
        if now_bytes < (self.len_words as u64) * 8 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the statistics page was truncated"));
        }
        Ok(())
    }
}

/// Opens without following a link or waiting for a FIFO's other end, and accepts only a regular file that belongs to
/// the owner of its folder.
pub(crate) fn open_in(folder: &Folder, name: &OsStr) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(folder.within(name))?;
    let meta = file.metadata()?;
    if !meta.is_file() || meta.uid() != folder.owner() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(file)
}

fn open_page(path: &Path) -> io::Result<File> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    open_in(&Folder::open(parent)?, name).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => {
            let message = format!("{}: not a regular file of the folder's owner", path.display());
            io::Error::new(io::ErrorKind::InvalidData, message)
        }
        _ => error,
    })
}
