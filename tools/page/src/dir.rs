//! Where pages live.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

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
    let below = |parent: &str| {
        let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let shared = ["/dev/shm", "/tmp"].into_iter().flat_map(below).filter(|path| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("spoc-"))
    });
    let mut dirs: Vec<PathBuf> = below("/run/user")
        .into_iter()
        .map(|dir| dir.join("spoc"))
        .chain(shared)
        .filter(|dir| dir.is_dir())
        .collect();
    dirs.sort();
    dirs
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
