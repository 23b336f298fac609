//! Reading the kernel's files below a root that a test can replace.

use std::path::{Path, PathBuf};

/// The machine, seen through `/proc`, `/sys` and `/dev`.
#[derive(Clone, Debug)]
pub struct System {
    root: PathBuf,
}

impl System {
    /// This machine.
    pub fn here() -> System {
        System { root: PathBuf::from("/") }
    }

    /// A tree that looks like one.
    pub fn at(root: &Path) -> System {
        System { root: root.to_path_buf() }
    }

    /// Whether this is the running machine, so that trying things makes sense.
    pub(super) fn is_real(&self) -> bool {
        self.root == Path::new("/")
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// A small text file without the white space around it.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        Some(std::fs::read_to_string(self.path(path)).ok()?.trim().to_owned())
    }

    pub(super) fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// The names in a folder, sorted; none when it is not there.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let items = std::fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> = items.filter_map(|item| item.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// The value after `key` in a file of `key: value` lines.
    pub(super) fn field(&self, path: &str, key: &str) -> Option<String> {
        let text = self.text(path)?;
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        Some(line.trim().to_owned())
    }
}
