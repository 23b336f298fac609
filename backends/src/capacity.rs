//! How much memory the machine and the control group can give.

use std::fs;
use std::path::{Path, PathBuf};

/// Left to the rest of the process and of the machine, in bytes.
const HEADROOM_BYTES: u64 = 64 << 20;

/// Bytes of host memory that could be taken now without the machine or this process's memory control groups running
/// out: what the native device gives. `u64::MAX` where the system does not say.
#[must_use]
pub fn host_memory_available() -> u64 {
    match Capacity::now() {
        Capacity { total_bytes: u64::MAX, .. } => u64::MAX,
        Capacity { free_bytes, .. } => free_bytes,
    }
}

/// Memory in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Capacity {
    pub(crate) free_bytes: u64,
    pub(crate) total_bytes: u64,
}

impl Capacity {
    /// What could be allocated now, and what could be if everything else were gone.
    pub(crate) fn now() -> Self {
        let machine = fs::read_to_string("/proc/meminfo").map(|text| Self::of_meminfo(&text));
        let group = fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| Self::of_groups(&text));
        // Where neither can be read, nothing is promised and the kernel has the last word.
        let machine = machine.unwrap_or(Self { free_bytes: u64::MAX, total_bytes: u64::MAX });
        let Self { free_bytes, total_bytes } = group.map_or(machine, |group| machine.least(group));
        Self { free_bytes: free_bytes.saturating_sub(HEADROOM_BYTES), total_bytes }
    }

    fn least(self, other: Self) -> Self {
        Self {
            free_bytes: self.free_bytes.min(other.free_bytes),
            total_bytes: self.total_bytes.min(other.total_bytes),
        }
    }

    fn of_meminfo(text: &str) -> Self {
        let bytes = |key| field(text, key).and_then(|kib| kib.checked_mul(1024)).unwrap_or(u64::MAX);
        Self { free_bytes: bytes("MemAvailable:"), total_bytes: bytes("MemTotal:") }
    }

    /// The least that any group from ours up to the root allows, from the text of `/proc/self/cgroup`.
    fn of_groups(text: &str) -> Option<Self> {
        text.lines()
            .filter_map(Group::of_line)
            .filter_map(|group| group.least_up_to_root())
            .reduce(Self::least)
    }
}

/// A control group with a memory controller, of version 1 or 2.
struct Group {
    root: PathBuf,
    path: PathBuf,
    files: &'static Files,
}

struct Files {
    limit: &'static str,
    usage: &'static str,
    /// Page cache that the kernel gives back before it refuses anybody.
    reclaimable: &'static str,
}

const V1: Files = Files {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file",
};
const V2: Files = Files { limit: "memory.max", usage: "memory.current", reclaimable: "inactive_file" };

impl Group {
    /// `0::/path` names the group of version 2, `4:memory:/path` that of version 1.
    fn of_line(line: &str) -> Option<Self> {
        let mut parts = line.splitn(3, ':');
        let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let (root, files) = match controllers {
            "" if number == "0" => ("/sys/fs/cgroup", &V2),
            _ if controllers.split(',').any(|name| name == "memory") => ("/sys/fs/cgroup/memory", &V1),
            _ => return None,
        };
        let root = PathBuf::from(root);
        let path = root.join(path.trim_start_matches('/'));
        Some(Self { root, path, files })
    }

    fn least_up_to_root(&self) -> Option<Capacity> {
        // In a container the path is often the host's, and the group itself is mounted at the root.
        let inside = self.path.ancestors().take_while(|path| path.starts_with(&self.root));
        inside.filter_map(|path| self.capacity_of(path)).reduce(Capacity::least)
    }

    fn capacity_of(&self, path: &Path) -> Option<Capacity> {
        let read = |name| fs::read_to_string(path.join(name)).ok();
        // "max", and version 1's enormous number, are no limit: the machine's own is smaller.
        let limit: u64 = read(self.files.limit)?.trim().parse().ok()?;
        let usage: u64 = read(self.files.usage)?.trim().parse().ok()?;
        let statistics = read("memory.stat").unwrap_or_default();
        let reclaimable = field(&statistics, self.files.reclaimable).unwrap_or(0);
        Some(Capacity {
            free_bytes: limit.saturating_sub(usage.saturating_sub(reclaimable)),
            total_bytes: limit,
        })
    }
}

/// The number behind a key at the beginning of a line.
fn field(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next()? == key).then(|| words.next()?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_in_kibibytes() {
        let text = "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:    600 kB\n";
        let expected = Capacity { free_bytes: 600 << 10, total_bytes: 1000 << 10 };
        assert_eq!(Capacity::of_meminfo(text), expected);
    }

    #[test]
    fn lines_name_groups_of_both_versions() {
        let v2 = Group::of_line("0::/user.slice/a").unwrap();
        assert_eq!(v2.path, Path::new("/sys/fs/cgroup/user.slice/a"));
        let v1 = Group::of_line("4:cpu,memory:/a").unwrap();
        assert_eq!(v1.path, Path::new("/sys/fs/cgroup/memory/a"));
        assert!(Group::of_line("5:cpuset:/a").is_none());
        assert!(Group::of_line("nonsense").is_none());
    }

    #[test]
    fn the_tightest_group_counts_and_page_cache_does_not() {
        let root = std::env::temp_dir().join(format!("spoc-capacity-{}", std::process::id()));
        let inner = root.join("a/b");
        fs::create_dir_all(&inner).unwrap();
        let write = |path: &Path, name: &str, text: &str| fs::write(path.join(name), text).unwrap();
        write(&inner, "memory.max", "max\n");
        write(&inner, "memory.current", "10\n");
        write(&root.join("a"), "memory.max", "1000\n");
        write(&root.join("a"), "memory.current", "700\n");
        write(&root.join("a"), "memory.stat", "anon 400\ninactive_file 300\n");
        let group = Group { root: root.clone(), path: inner, files: &V2 };
        let capacity = group.least_up_to_root();
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(capacity, Some(Capacity { free_bytes: 600, total_bytes: 1000 }));
    }
}
