//! Huge pages, NUMA and the cgroup's limit.

use super::{Finding, System};
use crate::units;

/// Staging ring, code and tables: what a load needs beside device memory.
const HOST_BYTES_MIN: u64 = 256 << 20;

pub(super) fn findings(system: &System) -> Vec<Finding> {
    vec![
        huge_pages(system),
        shared_huge_pages(system),
        reserved_huge_pages(system),
        numa(system),
        cgroup(system),
    ]
}

/// The kernel marks the chosen word with brackets: `always [madvise] never`.
fn chosen(text: &str) -> Option<&str> {
    let start = text.find('[')? + 1;
    text[start..].split(']').next()
}

fn huge_pages(system: &System) -> Finding {
    let check = "memory.transparent_huge_pages";
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    match system.text(path).as_deref().and_then(chosen) {
        Some(mode @ ("always" | "madvise")) => Finding::ok(check, mode),
        Some(mode) => Finding::warn(
            check,
            format!("{mode}: the staging ring uses small pages"),
            format!("echo madvise | sudo tee {path}"),
        ),
        None => Finding::unknown(check, "cannot be read", "use a kernel with CONFIG_TRANSPARENT_HUGEPAGE"),
    }
}

/// Only the native backend keeps device memory in shared memory; small pages there cost time when it is allocated.
fn shared_huge_pages(system: &System) -> Finding {
    let check = "memory.shared_huge_pages";
    let path = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    match system.text(path).as_deref().and_then(chosen) {
        Some(mode @ ("always" | "within_size" | "advise" | "force")) => Finding::ok(check, mode),
        Some(mode) => Finding::warn(
            check,
            format!(
                "{mode}: device memory of the native backend uses small pages and takes longer to allocate"
            ),
            format!("echo advise | sudo tee {path}"),
        ),
        None => Finding::unknown(check, "cannot be read", "use a kernel with CONFIG_TRANSPARENT_HUGEPAGE"),
    }
}

fn reserved_huge_pages(system: &System) -> Finding {
    let total = system.field("/proc/meminfo", "HugePages_Total");
    let size = system.field("/proc/meminfo", "Hugepagesize").unwrap_or_default();
    match total.as_deref() {
        Some("0") => Finding::ok("memory.reserved_huge_pages", "none reserved; none needed"),
        Some(total) => {
            Finding::ok("memory.reserved_huge_pages", format!("{total} of {size}; not used by spoc"))
        }
        None => Finding::unknown("memory.reserved_huge_pages", "cannot be read", "mount /proc"),
    }
}

fn numa(system: &System) -> Finding {
    let folder = "/sys/devices/system/node";
    let is_node = |name: &String| {
        name.strip_prefix("node")
            .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
    };
    match system.names(folder).iter().filter(|name| is_node(name)).count() {
        0 => Finding::unknown("memory.numa", "the kernel shows no nodes", "mount /sys"),
        1 => Finding::ok("memory.numa", "one node"),
        nodes => {
            Finding::ok("memory.numa", format!("{nodes} nodes; staging memory goes to the device's node"))
        }
    }
}

fn cgroup(system: &System) -> Finding {
    let limit = cgroup_limit_bytes(system);
    match limit {
        None => Finding::ok("memory.cgroup_limit", "none"),
        Some(limit) if limit >= HOST_BYTES_MIN => Finding::ok(
            "memory.cgroup_limit",
            format!("{} (page cache and native device memory count)", units::bytes(limit)),
        ),
        Some(limit) => Finding::warn(
            "memory.cgroup_limit",
            format!("{}: less than a load needs", units::bytes(limit)),
            format!("give the container or unit at least {}", units::bytes(HOST_BYTES_MIN)),
        ),
    }
}

/// The smallest limit on the way from this process's group to the root, of either cgroup version.
fn cgroup_limit_bytes(system: &System) -> Option<u64> {
    let membership = system.text("/proc/self/cgroup").unwrap_or_default();
    let mut smallest: Option<u64> = None;
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) =
            (fields.next(), fields.next().unwrap_or(""), fields.next().unwrap_or("/"));
        let (mount, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            names if names.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        for ancestor in std::path::Path::new(path).ancestors() {
            let at = ancestor.to_string_lossy();
            // In a container the path may be the host's; its own limit then stands at the mount's root.
            if let Some(limit) = system.number(&format!("{mount}{}/{file}", at.trim_end_matches('/'))) {
                smallest = Some(smallest.map_or(limit, |least| least.min(limit)));
            }
        }
    }
    // Version 1 writes "no limit" as the largest multiple of a page.
    smallest.filter(|limit| *limit < 1 << 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_marked_word_is_the_chosen_one() {
        assert_eq!(chosen("always [madvise] never"), Some("madvise"));
        assert_eq!(chosen("always"), None);
    }

    #[test]
    fn the_smallest_limit_on_the_way_to_the_root_counts() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().expect("parent")).expect("folder");
            std::fs::write(path, text).expect("write");
        };
        let system = System::at(dir.path());
        assert_eq!(cgroup_limit_bytes(&system), None);
        put("proc/self/cgroup", "5:cpu:/x\n4:memory:/a/b\n0::/u/v\n");
        put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
        assert_eq!(cgroup_limit_bytes(&system), None);
        put("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1000");
        put("sys/fs/cgroup/u/v/memory.max", "max");
        put("sys/fs/cgroup/u/memory.max", "2000");
        assert_eq!(cgroup_limit_bytes(&system), Some(1000));
        put("sys/fs/cgroup/u/memory.max", "500");
        assert_eq!(cgroup_limit_bytes(&system), Some(500));
    }
}
