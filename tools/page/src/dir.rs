//! Where pages live.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::unistd::geteuid;

/// Folders that may hold pages, in the order of preference: `$SPOC_RUNTIME_DIR` alone if set; otherwise
/// `$XDG_RUNTIME_DIR/spoc`, `/dev/shm/spoc-UID`, `/tmp/spoc-UID`. They need not exist.
///
/// For root the folders of all users follow, so that an administrator can look at anybody's process.
pub fn search_dirs() -> Vec<PathBuf> {
    candidates(std::env::var_os("SPOC_RUNTIME_DIR"), std::env::var_os("XDG_RUNTIME_DIR"), geteuid().as_raw())
}

fn candidates(own: Option<OsString>, xdg: Option<OsString>, uid: u32) -> Vec<PathBuf> {
    if let Some(dir) = own.filter(|dir| !dir.is_empty()) {
        return vec![PathBuf::from(dir)];
    }
    let mut dirs: Vec<PathBuf> =
        xdg.filter(|dir| !dir.is_empty()).map(|dir| Path::new(&dir).join("spoc")).into_iter().collect();
    dirs.push(PathBuf::from(format!("/dev/shm/spoc-{uid}")));
    dirs.push(PathBuf::from(format!("/tmp/spoc-{uid}")));
    if uid == 0 {
        for dir in everybodys() {
            if !dirs.contains(&dir) {
                dirs.push(dir);
            }
        }
    }
    dirs
}

fn everybodys() -> Vec<PathBuf> {
    everybodys_of(&["/dev/shm", "/tmp"], "/run/user")
}

/// `shared` hold folders called `spoc-…`, `users` a folder for each user. Links are left out: anybody can make one in a
/// shared place, to wherever they like.
fn everybodys_of(shared: &[&str], users: &str) -> Vec<PathBuf> {
    let below = |parent: &str| {
        let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let shared = shared.iter().flat_map(|parent| below(parent)).filter(|path| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("spoc-"))
    });
    let mut dirs: Vec<PathBuf> = below(users)
        .into_iter()
        .map(|dir| dir.join("spoc"))
        .chain(shared)
        .filter(|dir| std::fs::symlink_metadata(dir).is_ok_and(|meta| meta.is_dir()))
        .collect();
    dirs.sort();
    dirs
}

/// An open folder: what is looked at through it is in the folder that was checked, whatever its path leads to by now.
pub(crate) struct Folder {
    file: File,
    owner: u32,
}

impl Folder {
    /// Opens a folder; a link to one is none.
    pub(crate) fn open(path: &Path) -> io::Result<Folder> {
        let flags = OFlag::O_NOFOLLOW | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
        let owner = file.metadata()?.uid();
        Ok(Folder { file, owner })
    }

    /// Whose it is.
    pub(crate) fn owner(&self) -> u32 {
        self.owner
    }

    /// Whether it is this user's.
    pub(crate) fn is_own(&self) -> bool {
        self.owner == geteuid().as_raw()
    }

    /// A path to `name` that goes through the open folder.
    pub(crate) fn within(&self, name: &OsStr) -> PathBuf {
        self.here().join(name)
    }

    /// The names in it.
    pub(crate) fn names(&self) -> Vec<OsString> {
        let items = std::fs::read_dir(self.here()).into_iter().flatten().flatten();
        items.map(|item| item.file_name()).collect()
    }

    fn here(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }
}

/// Makes (mode 0700) and returns the folder for this process's pages: the first of [`search_dirs`] that can be made
/// and belongs to this user alone.
///
/// # Errors
/// The last candidate's reason when none serves.
pub fn create_dir() -> io::Result<PathBuf> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "no runtime folder to try");
    for dir in search_dirs() {
        match prepare(&dir) {
            Ok(()) => return Ok(dir),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn prepare(dir: &Path) -> io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    check_private(dir)
}

/// A folder in a world-writable place could be somebody else's trap: it must be a real folder, ours, closed to others.
fn check_private(dir: &Path) -> io::Result<()> {
    let meta = std::fs::symlink_metadata(dir)?;
    let refuse = |why: &str| {
        let message = format!("{}: {why}; remove it or set SPOC_RUNTIME_DIR", dir.display());
        Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
    };
    if !meta.is_dir() {
        return refuse("is not a folder");
    }
    if meta.uid() != geteuid().as_raw() {
        return refuse("belongs to another user");
    }
    if meta.mode() & 0o022 != 0 {
        return refuse("is writable by others");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn preference_is_own_then_xdg_then_shared_memory() {
        let some = |text: &str| Some(OsString::from(text));
        assert_eq!(candidates(some("/a"), some("/b"), 7), vec![PathBuf::from("/a")]);
        let names: Vec<_> = candidates(some(""), some("/b"), 7);
        assert_eq!(names, ["/b/spoc", "/dev/shm/spoc-7", "/tmp/spoc-7"].map(PathBuf::from).to_vec());
        assert_eq!(candidates(None, None, 7)[0], PathBuf::from("/dev/shm/spoc-7"));
    }

    #[test]
    fn links_are_not_among_everybodys_folders() {
        let tmp = tempfile::tempdir().expect("temporary folder");
        let at = |name: &str| tmp.path().join(name);
        for real in ["shared/spoc-1", "shared/else", "users/1/spoc", "users/2", "trap"] {
            std::fs::create_dir_all(at(real)).expect("make");
        }
        for link in ["shared/spoc-2", "users/2/spoc"] {
            std::os::unix::fs::symlink(at("trap"), at(link)).expect("link");
        }
        std::fs::write(at("shared/spoc-3"), b"").expect("write");
        let text = |name: &str| at(name).to_str().expect("UTF-8").to_owned();
        let found = everybodys_of(&[&text("shared")], &text("users"));
        assert_eq!(found, [at("shared/spoc-1"), at("users/1/spoc")]);
        assert!(Folder::open(&at("shared/spoc-1")).is_ok_and(|folder| folder.is_own()));
        assert!(Folder::open(&at("shared/spoc-2")).is_err() && Folder::open(&at("shared/spoc-3")).is_err());
    }

    #[test]
    fn folders_of_others_and_links_are_refused() {
        let tmp = tempfile::tempdir().expect("temporary folder");
        let open = tmp.path().join("open");
        std::fs::create_dir(&open).expect("make");
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).expect("chmod");
        assert!(prepare(&open).expect_err("world-writable").to_string().contains("writable by others"));
        let link = tmp.path().join("link");
        std::os::unix::fs::symlink(tmp.path(), &link).expect("link");
        assert!(prepare(&link).expect_err("link").to_string().contains("not a folder"));
        assert!(prepare(&tmp.path().join("fresh")).is_ok());
    }
}
