//! Finding pages and clearing up after the dead.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use crate::dir::{Folder, search_dirs};
use crate::name::PageName;
use crate::view::open_in;

/// A page found in a runtime folder.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Whose it is.
    pub name: PageName,
    /// Its file.
    pub path: PathBuf,
    /// Whether its process still lives.
    pub live: bool,
    /// The process's command name, if it lives and can be seen from here.
    pub command: Option<String>,
}

/// All pages in the folders of [`search_dirs`], by pid. What cannot be read is left out, and so is what its owner cannot
/// answer for: a page counts only in a folder of its file's owner, and if the process that it names is that owner's.
/// In this user's own folder the process may be one that cannot be seen from here (in another PID namespace); then only
/// the lock tells that it lives.
pub fn list() -> Vec<Entry> {
    let mut entries: Vec<Entry> = search_dirs().iter().flat_map(|dir| list_in(dir)).collect();
    entries.sort_by_key(|entry| (entry.name.process.pid, entry.name.process.start_ticks, entry.name.number));
    entries
}

fn list_in(dir: &Path) -> Vec<Entry> {
    let Ok(folder) = Folder::open(dir) else { return Vec::new() };
    let entry = |name: OsString| entry(&folder, dir, &name).filter(|entry| is_vouched_for(&folder, entry));
    folder.names().into_iter().filter_map(entry).collect()
}

fn entry(folder: &Folder, dir: &Path, file_name: &OsStr) -> Option<Entry> {
    let name = PageName::parse(file_name.to_str()?)?;
    let live = is_locked(&open_in(folder, file_name).ok()?).ok()?;
    let command = live.then(|| command_of(&name)).flatten();
    Some(Entry { name, path: dir.join(file_name), live, command })
}

/// Whether the owner of the folder, who is its file's, is also the owner of the process that it names.
fn is_vouched_for(folder: &Folder, entry: &Entry) -> bool {
    match owner_of(&entry.name) {
        Some(owner) => owner == folder.owner(),
        None => folder.is_own(),
    }
}

/// Whose process it is, unless the pid has passed to another process or means nothing in our PID namespace.
fn owner_of(name: &PageName) -> Option<u32> {
    let owner = std::fs::metadata(format!("/proc/{}", name.process.pid)).ok()?.uid();
    is_now(name).then_some(owner)
}

/// The command name, on the same terms.
fn command_of(name: &PageName) -> Option<String> {
    let command = std::fs::read_to_string(format!("/proc/{}/comm", name.process.pid)).ok()?;
    is_now(name).then(|| command.trim_end().to_owned())
}

fn is_now(name: &PageName) -> bool {
    crate::ProcessIdentity::of(name.process.pid).is_ok_and(|now| now == name.process)
}

/// Removes the pages of dead processes from those folders of [`search_dirs`] that are this user's own, and returns how
/// many went.
pub fn remove_stale() -> usize {
    search_dirs().iter().map(|dir| remove_stale_in(dir)).sum()
}

fn remove_stale_in(dir: &Path) -> usize {
    let Ok(folder) = Folder::open(dir) else { return 0 };
    if !folder.is_own() {
        return 0;
    }
    let is_stale = |name: &OsString| entry(&folder, dir, name).is_some_and(|entry| !entry.live);
    let stale = folder.names().into_iter().filter(is_stale);
    stale.filter(|name| std::fs::remove_file(folder.within(name)).is_ok()).count()
}

/// Whether some other open of the file holds its lock. A lock taken to find out is given back at once; nobody else
/// ever asks for it, because a writer locks its page before it has a name.
pub(crate) fn is_locked(file: &File) -> io::Result<bool> {
    let probe = file.as_fd().try_clone_to_owned()?;
    match Flock::lock(File::from(probe), FlockArg::LockSharedNonblock) {
        // Unlocked on drop. The lock belongs to the open description, which `file` shares.
        Ok(_lock) => Ok(false),
        Err((_, nix::Error::EWOULDBLOCK)) => Ok(true),
        Err((_, errno)) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ProcessIdentity;

    const STRANGER: u32 = 54_321;

    fn name_of(process: ProcessIdentity, number: u32) -> String {
        PageName { process, number }.to_string()
    }

    fn locked(path: &Path) -> Flock<File> {
        std::fs::write(path, [0; 64]).expect("write");
        Flock::lock(File::open(path).expect("open"), FlockArg::LockExclusiveNonblock).expect("lock")
    }

    #[test]
    fn own_pages_count_and_their_dead_are_removed() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let process = ProcessIdentity::current().expect("identity");
        let elsewhere = ProcessIdentity { start_ticks: process.start_ticks + 1, ..process };
        let _mine = locked(&dir.path().join(name_of(process, 0)));
        let _of_another_namespace = locked(&dir.path().join(name_of(elsewhere, 0)));
        std::fs::write(dir.path().join(name_of(elsewhere, 1)), [0; 64]).expect("write");
        let live = list_in(dir.path()).into_iter().filter(|entry| entry.live);
        let mut named: Vec<bool> = live.map(|entry| entry.command.is_some()).collect();
        named.sort_unstable();
        assert_eq!(named, [false, true]);
        assert_eq!(remove_stale_in(dir.path()), 1);
        assert_eq!(list_in(dir.path()).len(), 2);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).expect("link");
        assert!(list_in(&link).is_empty(), "links are not followed");
        assert_eq!(remove_stale_in(&link), 0);
    }

    #[test]
    fn others_speak_for_their_own_processes_only() {
        if !nix::unistd::geteuid().is_root() {
            println!("not run: only root looks at others' folders");
            return;
        }
        let chown = |path: &Path, uid| std::os::unix::fs::chown(path, Some(uid), None).expect("chown");
        let dir = tempfile::tempdir().expect("temporary folder");
        let root = ProcessIdentity::current().expect("identity");
        let dead = ProcessIdentity { start_ticks: 1, ..root };
        let held: Vec<_> = [name_of(root, 0), name_of(dead, 0), name_of(root, 1)]
            .map(|name| (locked(&dir.path().join(&name)), dir.path().join(name)))
            .into();
        let stale = dir.path().join(name_of(dead, 1));
        std::fs::write(&stale, [0; 64]).expect("write");
        // The last one stays root's, a link's way into somebody's folder.
        held[..2].iter().for_each(|(_, path)| chown(path, STRANGER));
        chown(&stale, STRANGER);
        chown(dir.path(), STRANGER);
        assert!(list_in(dir.path()).is_empty(), "{:?}", list_in(dir.path()));
        assert_eq!(remove_stale_in(dir.path()), 0, "not ours to remove");
        assert!(stale.exists());

        let mut child = std::process::Command::new("sleep");
        std::os::unix::process::CommandExt::uid(&mut child, STRANGER);
        let mut child = child.arg("60").spawn().expect("starts");
        let theirs = dir.path().join(name_of(ProcessIdentity::of(child.id()).expect("identity"), 0));
        let _held = locked(&theirs);
        chown(&theirs, STRANGER);
        let seen: Vec<_> = list_in(dir.path()).into_iter().map(|entry| entry.path).collect();
        // In root's own folder nobody may name another's process either.
        chown(dir.path(), 0);
        chown(&theirs, 0);
        let in_ours = list_in(dir.path()).iter().any(|entry| entry.path == theirs);
        child.kill().expect("kill");
        child.wait().expect("ends");
        assert_eq!(seen, [theirs]);
        assert!(!in_ours);
    }
}
