//! An open weight file: its identity, how it wants to be read, and how much of it the page cache holds.

pub(crate) mod residency;
#[cfg_attr(target_os = "linux", path = "sys.rs")]
#[cfg_attr(not(target_os = "linux"), path = "sys_elsewhere.rs")]
pub(crate) mod sys;

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::{Error, ErrorKind, Result};

pub use residency::{Residency, ResidencyMethod};

/// What a file is, on its open descriptor. A file rewritten in place with its old times still differs in `ctime_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Device number of the file system.
    pub dev: u64,
    /// Inode number.
    pub ino: u64,
    /// Length in bytes.
    pub len_bytes: u64,
    /// Time of the last change of the contents, in nanoseconds since the epoch.
    pub mtime_ns: i128,
    /// Time of the last change of contents or inode, in nanoseconds since the epoch.
    pub ctime_ns: i128,
}

impl Identity {
    fn of(file: &File) -> io::Result<(Self, std::fs::Metadata)> {
        let meta = file.metadata()?;
        let ns = |seconds: i64, ns: i64| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
        let identity = Self {
            dev: meta.dev(),
            ino: meta.ino(),
            len_bytes: meta.len(),
            mtime_ns: ns(meta.mtime(), meta.mtime_nsec()),
            ctime_ns: ns(meta.ctime(), meta.ctime_nsec()),
        };
        Ok((identity, meta))
    }

    /// What tells `self` from `now`, in words; `None` when they are equal.
    fn difference(&self, now: &Self) -> Option<String> {
        if self == now {
            return None;
        }
        Some(if (self.dev, self.ino) != (now.dev, now.ino) {
            format!(
                "was inode {} of device {}, is inode {} of device {}",
                self.ino, self.dev, now.ino, now.dev
            )
        } else if self.len_bytes != now.len_bytes {
            format!("had {} bytes when it was opened, has {}", self.len_bytes, now.len_bytes)
        } else {
            "was written to after it was opened (its change time moved)".to_owned()
        })
    }
}

/// How direct reads of a file must be aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectAlign {
    /// Alignment of the memory, in bytes.
    pub memory_bytes: u32,
    /// Alignment of offset and length, in bytes.
    pub offset_bytes: u32,
    /// Whether the file system said so; otherwise 4096 is assumed.
    pub known: bool,
}

const ASSUMED_ALIGN_BYTES: u32 = 4096;

/// A regular file opened for reading, held by its descriptor: later renames and replacements do not reach it.
#[derive(Debug)]
pub struct WeightFile {
    path: PathBuf,
    file: File,
    identity: Identity,
    direct_align: DirectAlign,
    file_system: i64,
    refuses_direct: AtomicBool,
    /// Reads that are late and still in the kernel.
    hung: AtomicU32,
}

impl WeightFile {
    /// Opens a regular file. Symbolic links are followed; nothing else is waited for, so a FIFO cannot hang it.
    ///
    /// # Errors
    /// `not_found`, `not_a_regular_file`, `too_many_open_files`, `io_error`.
    pub fn open(path: &Path) -> Result<Self> {
        let file = open_for_reading(path, libc::O_NONBLOCK).map_err(|e| open_error(e, path))?;
        let stat = Identity::of(&file).and_then(|found| Ok((found, sys::file_system(&file)?)));
        let ((identity, meta), file_system) =
            stat.map_err(|e| Error::from_os(e, "reading the file's status").in_file(path))?;
        if !meta.is_file() {
            let kind = name_of_type(&meta);
            let message = format!("expected a regular file, found {kind}");
            return Err(Error::new(ErrorKind::NotARegularFile, message).in_file(path));
        }
        // It was for the opening alone. io_uring takes it as "never wait" on file systems without asynchronous reads.
        nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::empty()))
            .map_err(|e| Error::from_os(e.into(), "setting the descriptor's flags").in_file(path))?;
        let direct_align = direct_align_of(&file);
        Ok(Self {
            path: path.to_path_buf(),
            file,
            identity,
            direct_align,
            file_system,
            refuses_direct: AtomicBool::new(false),
            hung: AtomicU32::new(0),
        })
    }

    /// The path it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Identity when it was opened.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Length when it was opened, in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.identity.len_bytes
    }

    /// Alignment of direct reads.
    #[must_use]
    pub fn direct_align(&self) -> DirectAlign {
        self.direct_align
    }

    /// Whether the file lies on FUSE, where io_uring reads and direct reads can return wrong bytes.
    #[must_use]
    pub fn is_fuse(&self) -> bool {
        sys::is_fuse(self.file_system)
    }

    /// Whether a direct read of this file failed where a buffered one can work.
    pub(crate) fn refuses_direct(&self) -> bool {
        self.refuses_direct.load(Ordering::Relaxed)
    }

    pub(crate) fn refuse_direct(&self) {
        self.refuses_direct.store(true, Ordering::Relaxed);
    }

    /// Whether a read of it is late and still in the kernel.
    pub(crate) fn hangs(&self) -> bool {
        self.hung.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn read_hangs(&self) {
        self.hung.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn hung_read_ended(&self) {
        self.hung.fetch_sub(1, Ordering::Relaxed);
    }

    /// Step in bytes at which direct reads may begin, in the file and in page-aligned memory.
    pub(crate) fn direct_step(&self) -> u32 {
        self.direct_align.offset_bytes.max(self.direct_align.memory_bytes).max(512)
    }

    /// Type number of its file system (statfs `f_type`).
    #[must_use]
    pub fn file_system(&self) -> i64 {
        self.file_system
    }

    /// Compares the open file with what it was when it was opened.
    ///
    /// # Errors
    /// `truncated` when it became shorter, `changed` for any other difference, `io_error`.
    pub fn check_unchanged(&self) -> Result<()> {
        let (now, _) = Identity::of(&self.file)
            .map_err(|e| Error::from_os(e, "reading the file's status").in_file(&self.path))?;
        let Some(difference) = self.identity.difference(&now) else { return Ok(()) };
        let kind =
            if now.len_bytes < self.identity.len_bytes { ErrorKind::Truncated } else { ErrorKind::Changed };
        Err(Error::new(kind, format!("the file {difference}")).in_file(&self.path))
    }

    /// Fills `target` from `offset` through the page cache.
    ///
    /// # Errors
    /// `truncated` when the file ends first, `io_error`.
    pub fn read_exact_at(&self, target: &mut [u8], offset: u64) -> Result<()> {
        let mut done = 0;
        while done < target.len() {
            let place = offset.saturating_add(done as u64);
            match self.file.read_at(&mut target[done..], place) {
                Ok(0) => {
                    let message = format!("expected {} more bytes, the file ends", target.len() - done);
                    return Err(Error::new(ErrorKind::Truncated, message).in_file(&self.path).at(place));
                }
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::from_os(e, "reading").in_file(&self.path).at(place)),
            }
        }
        Ok(())
    }

    /// How much of the range the page cache holds.
    #[must_use]
    pub fn residency(&self, offset: u64, len_bytes: u64) -> Residency {
        residency::measure(&self.file, offset, len_bytes.min(self.len_bytes().saturating_sub(offset)))
    }

    /// The descriptor that reads through the page cache.
    pub(crate) fn buffered(&self) -> &File {
        &self.file
    }

    /// Opens the same file again for direct reads.
    ///
    /// # Errors
    /// `io_error` (EINVAL where direct reads are not supported), `too_many_open_files`, and `changed` when the
    /// name leads to another file by now.
    pub(crate) fn open_direct(&self) -> Result<File> {
        let opened = sys::open_direct(&self.file, &self.path);
        let file = opened.map_err(|e| Error::from_os(e, "opening for direct reads").in_file(&self.path))?;
        let (now, _) = Identity::of(&file)
            .map_err(|e| Error::from_os(e, "reading the file's status").in_file(&self.path))?;
        match self.identity.difference(&now) {
            None => Ok(file),
            Some(difference) => {
                Err(Error::new(ErrorKind::Changed, format!("the file {difference}")).in_file(&self.path))
            }
        }
    }
}

pub(super) fn open_for_reading(path: &Path, flags: libc::c_int) -> io::Result<File> {
    File::options().read(true).custom_flags(flags | libc::O_CLOEXEC | libc::O_NOCTTY).open(path)
}

fn open_error(error: io::Error, path: &Path) -> Error {
    let link = std::fs::read_link(path).ok().filter(|_| error.raw_os_error() == Some(libc::ENOENT));
    let doing = match link {
        Some(target) => format!("opening the symbolic link to '{}'", target.display()),
        None => "opening".to_owned(),
    };
    Error::from_os(error, doing).in_file(path)
}

fn direct_align_of(file: &File) -> DirectAlign {
    match sys::direct_alignment(file) {
        Some((memory_bytes, offset_bytes)) => DirectAlign { memory_bytes, offset_bytes, known: true },
        None => {
            DirectAlign { memory_bytes: ASSUMED_ALIGN_BYTES, offset_bytes: ASSUMED_ALIGN_BYTES, known: false }
        }
    }
}

fn name_of_type(meta: &std::fs::Metadata) -> &'static str {
    let kind = meta.file_type();
    if kind.is_dir() {
        "a folder"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else if kind.is_char_device() || kind.is_block_device() {
        "a device"
    } else {
        "something else"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, Write};

    #[test]
    fn a_rewrite_with_the_old_times_is_still_a_change() {
        let mut temp = tempfile::NamedTempFile::new().unwrap();
        temp.write_all(&[7; 100]).unwrap();
        let file = WeightFile::open(temp.path()).unwrap();
        file.check_unchanged().unwrap();
        let before = temp.as_file().metadata().unwrap().modified().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        temp.rewind().unwrap();
        temp.write_all(&[8; 100]).unwrap();
        temp.as_file().set_modified(before).unwrap();
        assert_eq!(file.check_unchanged().unwrap_err().kind(), ErrorKind::Changed);
        temp.as_file().set_len(10).unwrap();
        assert_eq!(file.check_unchanged().unwrap_err().kind(), ErrorKind::Truncated);
    }

    #[test]
    fn a_fifo_is_refused_without_waiting_for_a_writer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a live C string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let error = WeightFile::open(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotARegularFile);
        assert!(error.to_string().contains("FIFO"), "{error}");
    }

    #[test]
    fn a_folder_and_a_device_are_refused() {
        for path in ["/", "/dev/zero"] {
            assert_eq!(WeightFile::open(Path::new(path)).unwrap_err().kind(), ErrorKind::NotARegularFile);
        }
    }

    #[test]
    fn reading_past_the_end_is_truncated_and_names_the_place() {
        let mut temp = tempfile::NamedTempFile::new().unwrap();
        temp.write_all(&[7; 100]).unwrap();
        let error = WeightFile::open(temp.path()).unwrap().read_exact_at(&mut [0; 20], 90).unwrap_err();
        assert_eq!((error.kind(), error.offset()), (ErrorKind::Truncated, Some(100)));
    }
}
