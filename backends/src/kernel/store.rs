//! Compiled kernels kept on disk, by the digest of everything that they were made from.
//!
//! A file is believed only if it says what it is, and its contents have the digest that it names: a torn,
//! truncated or altered file is removed and the kernel compiled again. Files are written under another name and
//! renamed, so concurrent writers leave one whole file, whichever comes last. What is loaded is run by a driver,
//! so the folder has to be this user's alone.
//!
//! `SPOC_KERNEL_CACHE` names the folder, or turns the cache off with `0`; otherwise it is `spoc/kernels` under
//! `XDG_CACHE_HOME` or `~/.cache`.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

/// Where compiled kernels are kept, or that they are not.
pub const CACHE_VARIABLE: &str = "SPOC_KERNEL_CACHE";

/// Begins every file; the last byte is the version of what follows.
const MAGIC: &[u8; 8] = b"spocker\x01";
const HEAD_BYTES: usize = MAGIC.len() + 32 + 32;
/// A compiled kernel larger than this is not kept.
const CODE_BYTES_MAX: u64 = 64 << 20;
/// With so many files in the folder, no more are added.
const FILES_MAX: usize = 4096;

/// What a compiled kernel was made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key([u8; 32]);

impl Key {
    /// The key of source, options, device and driver, whatever says which they are.
    pub(crate) fn of(parts: &[&[u8]]) -> Self {
        let mut digest = Sha256::new();
        for part in parts {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        Self(digest.finalize().into())
    }

    fn file_name(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + ".kernel"
    }
}

/// The folder of compiled kernels.
#[derive(Debug, Clone, Default)]
pub(crate) struct Store {
    /// None if nothing is kept.
    folder: Option<PathBuf>,
}

impl Store {
    /// The folder that the environment names, made if need be. Without one that is this user's alone, nothing is
    /// kept, and the log says why.
    pub(crate) fn from_env() -> Self {
        let path = match std::env::var_os(CACHE_VARIABLE) {
            Some(value) if value == "0" || value.is_empty() => return Self::default(),
            Some(value) => Some(PathBuf::from(value)),
            None => {
                let absolute =
                    |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
                let caches =
                    absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
                caches.map(|caches| caches.join("spoc/kernels"))
            }
        };
        path.map_or_else(Self::default, |path| Self::at(&path))
    }

    /// Keeps compiled kernels in a folder.
    pub(crate) fn at(folder: &Path) -> Self {
        match prepare(folder) {
            Ok(()) => Self { folder: Some(folder.to_owned()) },
            Err(reason) => {
                tracing::info!(folder = %folder.display(), reason, "compiled kernels are not kept");
                Self::default()
            }
        }
    }

    /// A compiled kernel, if a whole one is there.
    pub(crate) fn load(&self, key: Key) -> Option<Vec<u8>> {
        let path = self.folder.as_ref()?.join(key.file_name());
        let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(&path).ok()?;
        let mut bytes = Vec::new();
        let limit = CODE_BYTES_MAX + HEAD_BYTES as u64 + 1;
        let outcome = Read::by_ref(&mut file).take(limit).read_to_end(&mut bytes);
        if outcome.is_err() || !is_whole(&bytes, key) {
            tracing::warn!(file = %path.display(), "a kept kernel is damaged: it is compiled again");
            let _ = fs::remove_file(&path);
            return None;
        }
        Some(bytes.split_off(HEAD_BYTES))
    }

    /// Keeps a compiled kernel. That it could not be kept is told in the log alone.
    pub(crate) fn save(&self, key: Key, code: &[u8]) {
        let Some(folder) = &self.folder else { return };
        if code.is_empty() || code.len() as u64 > CODE_BYTES_MAX {
            return;
        }
        if let Err(error) = write(folder, key, code) {
            tracing::info!(folder = %folder.display(), %error, "a compiled kernel was not kept");
        }
    }

    /// Forgets one that a driver did not take.
    pub(crate) fn forget(&self, key: Key) {
        if let Some(folder) = &self.folder {
            let _ = fs::remove_file(folder.join(key.file_name()));
        }
    }
}

fn is_whole(bytes: &[u8], key: Key) -> bool {
    let Some((head, code)) = bytes.split_at_checked(HEAD_BYTES) else { return false };
    let (magic, rest) = head.split_at(MAGIC.len());
    let (told_key, told_digest) = rest.split_at(32);
    magic == MAGIC && told_key == key.0 && Sha256::digest(code).as_slice() == told_digest
}

fn write(folder: &Path, key: Key, code: &[u8]) -> std::io::Result<()> {
    static TURN: AtomicU64 = AtomicU64::new(0);
    if fs::read_dir(folder)?.count() >= FILES_MAX {
        return Err(std::io::Error::other(format!("there are {FILES_MAX} files: remove some")));
    }
    let turn = TURN.fetch_add(1, Ordering::Relaxed);
    let temporary = folder.join(format!("{}.{}.{turn}.new", key.file_name(), std::process::id()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let whole = [MAGIC.as_slice(), &key.0, Sha256::digest(code).as_slice(), code].concat();
    let outcome = file.write_all(&whole).and_then(|()| fs::rename(&temporary, folder.join(key.file_name())));
    if outcome.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    outcome
}

/// Makes the folder, or sees that it is this user's alone.
fn prepare(folder: &Path) -> Result<(), String> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|error| error.to_string())?;
    let found = fs::metadata(folder).map_err(|error| error.to_string())?;
    // SAFETY: asking for the user's number has no preconditions.
    let own = unsafe { libc::geteuid() };
    if found.uid() != own {
        return Err(format!("it belongs to user {}, not {own}", found.uid()));
    }
    if found.mode() & 0o022 != 0 {
        return Err(format!("others may write to it (mode {:o})", found.mode() & 0o777));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A folder that goes with the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("spoc-kernels-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_is_kept_comes_back_and_what_is_damaged_does_not() {
        let folder = Folder::new("damage");
        let store = Store::at(&folder.0);
        let key = Key::of(&[b"source", b"device"]);
        assert_ne!(key, Key::of(&[b"sourced", b"evice"]));
        assert_eq!(store.load(key), None);
        store.save(key, b"some code");
        assert_eq!(store.load(key).as_deref(), Some(b"some code".as_slice()));
        let path = folder.0.join(key.file_name());
        let whole = fs::read(&path).unwrap();
        for place in 0..whole.len() {
            let mut altered = whole.clone();
            altered[place] ^= 1;
            fs::write(&path, &altered).unwrap();
            assert_eq!(store.load(key), None, "byte {place} was altered");
            assert!(!path.exists(), "a damaged file was left");
        }
        for len in 0..whole.len() {
            fs::write(&path, &whole[..len]).unwrap();
            assert_eq!(store.load(key), None, "cut to {len}");
        }
        // Another kernel's file under this name.
        let other = Key::of(&[b"other"]);
        store.save(other, b"other code");
        fs::rename(folder.0.join(other.file_name()), &path).unwrap();
        assert_eq!(store.load(key), None);
    }

    #[test]
    fn writers_at_once_leave_a_whole_file() {
        let folder = Folder::new("writers");
        let store = Store::at(&folder.0);
        let key = Key::of(&[b"contended"]);
        std::thread::scope(|scope| {
            for writer in 0..4_u8 {
                let store = &store;
                scope.spawn(move || {
                    for _ in 0..50 {
                        store.save(key, &vec![writer; 10_000]);
                        if let Some(code) = store.load(key) {
                            assert!(code.len() == 10_000 && code.iter().all(|byte| *byte == code[0]));
                        }
                    }
                });
            }
        });
        assert!(store.load(key).is_some(), "no reader ever saw a damaged file");
        let left = fs::read_dir(&folder.0).unwrap().count();
        assert_eq!(left, 1, "temporary files were left");
    }

    #[test]
    fn a_folder_that_others_may_write_to_keeps_nothing() {
        let folder = Folder::new("shared");
        fs::create_dir_all(&folder.0).unwrap();
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o777)).unwrap();
        let store = Store::at(&folder.0);
        store.save(Key::of(&[b"a"]), b"code");
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
    }
}
