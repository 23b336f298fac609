//! Finding pages and clearing up after the dead.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use crate::dir::search_dirs;
use crate::name::PageName;
use crate::view::open_page;

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

/// All pages in the folders of [`search_dirs`], by pid. What cannot be read is left out.
pub fn list() -> Vec<Entry> {
    let mut entries: Vec<Entry> = search_dirs().iter().flat_map(|dir| list_in(dir)).collect();
    entries.sort_by_key(|entry| (entry.name.process.pid, entry.name.process.start_ticks, entry.name.number));
    entries
}

fn list_in(dir: &Path) -> Vec<Entry> {
    std::fs::read_dir(dir).into_iter().flatten().flatten().filter_map(|item| entry(&item.path())).collect()
}

fn entry(path: &Path) -> Option<Entry> {
    let name = PageName::parse(path.file_name()?.to_str()?)?;
    let live = is_locked(&open_page(path).ok()?).ok()?;
    let command = live.then(|| command_of(&name)).flatten();
    Some(Entry { name, path: path.to_path_buf(), live, command })
}

/// The command name, unless the pid has passed to another process or means nothing in our PID namespace.
fn command_of(name: &PageName) -> Option<String> {
    let pid = name.process.pid;
    let now = crate::ProcessIdentity::of(pid).ok()?;
    if now != name.process {
        return None;
    }
    Some(std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned())
}

/// Removes the pages of dead processes from the folders of [`search_dirs`] and returns how many went.
pub fn remove_stale() -> usize {
    list().iter().filter(|entry| !entry.live && std::fs::remove_file(&entry.path).is_ok()).count()
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
