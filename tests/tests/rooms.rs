//! The direction of knowledge between rooms, checked against what cargo resolves and what the
//! sources say. A room that needs a new dependency changes the table here first.

// Helpers of tests stop with a message, as tests do.
#![allow(clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};

/// Package → the workspace packages it may name as ordinary dependencies.
const ALLOWED: &[(&str, &[&str])] = &[
    ("spoc-driver", &[]),
    ("spoc-io", &[]),
    ("spoc-backends", &["spoc-driver"]),
    ("spoc-bridge", &["spoc-driver", "spoc-io"]),
    ("spoc-cache", &["spoc-driver", "spoc-io", "spoc-bridge"]),
    ("spoc-capi", &["spoc-driver", "spoc-backends", "spoc-io", "spoc-cache"]),
    ("spoc-page", &[]),
    ("spoc-proto", &[]),
    ("spoc-client", &["spoc-driver", "spoc-page", "spoc-proto"]),
    ("spoc-python", &["spoc-driver", "spoc-backends", "spoc-io", "spoc-cache"]),
    ("spoc-service", &["spoc-driver", "spoc-io", "spoc-cache", "spoc-backends", "spoc-page", "spoc-proto"]),
    (
        "spoc-tools",
        &[
            "spoc-driver",
            "spoc-backends",
            "spoc-io",
            "spoc-bridge",
            "spoc-cache",
            "spoc-page",
            "spoc-proto",
            "spoc-client",
            "spoc-service",
        ],
    ),
];

/// Rooms that may name anything, and that nothing may name.
const OUTER: &[&str] = &["spoc-tests", "spoc-measurements"];

/// What a test of a room may name beyond its ordinary dependencies.
const ALLOWED_IN_TESTS: &[(&str, &[&str])] = &[
    ("spoc-driver", &["spoc-driver"]),
    ("spoc-backends", &["spoc-driver"]),
    ("spoc-cache", &["spoc-driver", "spoc-io", "spoc-bridge", "spoc-backends"]),
    ("spoc-service", &["spoc-backends"]),
    ("spoc-client", &["spoc-backends", "spoc-cache", "spoc-service"]),
];

/// Crates that load or link a GPU API, or open shared objects at run time.
const GPU_OR_DLOPEN: &[&str] = &[
    "ash",
    "cl-sys",
    "cl3",
    "cubecl-hip-sys",
    "cudarc",
    "dlib",
    "dlopen",
    "dlopen2",
    "hip-runtime-sys",
    "hip-sys",
    "libloading",
    "metal",
    "objc2-metal",
    "opencl-sys",
    "opencl3",
    "vulkano",
    "wgpu",
    "wgpu-core",
    "wgpu-hal",
];

/// Packages below which no GPU library and no dlopen may appear.
const GPU_FREE: &[&str] = &["spoc-driver", "spoc-io", "spoc-bridge", "spoc-cache"];

fn metadata() -> Metadata {
    MetadataCommand::new().manifest_path(root().join("Cargo.toml")).exec().expect("cargo metadata runs")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace").to_path_buf()
}

fn table(rows: &'static [(&str, &[&str])], name: &str) -> BTreeSet<&'static str> {
    rows.iter()
        .filter(|(package, _)| *package == name)
        .flat_map(|(_, allowed)| allowed.iter().copied())
        .collect()
}

fn named<'a>(package: &'a Package, members: &BTreeSet<&str>, dev: bool) -> Vec<&'a str> {
    let of_kind = |kind| (kind == DependencyKind::Development) == dev;
    let mut names: Vec<&str> =
        package.dependencies.iter().filter(|d| of_kind(d.kind)).map(|d| d.name.as_str()).collect();
    names.retain(|name| members.contains(name));
    names
}

#[test]
fn rooms_name_only_the_rooms_below_them() {
    let metadata = metadata();
    let packages = metadata.workspace_packages();
    let members: BTreeSet<&str> = packages.iter().map(|p| p.name.as_str()).collect();
    for package in &packages {
        let name = package.name.as_str();
        if OUTER.contains(&name) {
            continue;
        }
        assert!(ALLOWED.iter().any(|(known, _)| *known == name), "{name} is in no room of the table");
        let allowed = table(ALLOWED, name);
        for dependency in named(package, &members, false) {
            assert!(allowed.contains(dependency), "{name} may not depend on {dependency}");
        }
        let in_tests = table(ALLOWED_IN_TESTS, name);
        for dependency in named(package, &members, true) {
            let fine = allowed.contains(dependency) || in_tests.contains(dependency);
            assert!(fine, "tests of {name} may not depend on {dependency}");
        }
    }
}

#[test]
fn folder_x_holds_package_spoc_x() {
    for package in metadata().workspace_packages() {
        let folder =
            package.manifest_path.parent().and_then(|p| p.file_name()).expect("a manifest lies in a folder");
        assert_eq!(package.name.as_str(), format!("spoc-{folder}"));
    }
}

/// Every package reached from `from` over ordinary and build dependencies.
fn reached(metadata: &Metadata, from: &str) -> BTreeSet<String> {
    let resolve = metadata.resolve.as_ref().expect("cargo resolved the workspace");
    let nodes: BTreeMap<_, _> = resolve.nodes.iter().map(|n| (&n.id, n)).collect();
    let start = metadata.packages.iter().find(|p| p.name.as_str() == from).expect("a workspace package");
    let (mut seen, mut todo) = (BTreeSet::new(), vec![&start.id]);
    while let Some(id) = todo.pop() {
        if !seen.insert(id) {
            continue;
        }
        let ordinary =
            |d: &&cargo_metadata::NodeDep| d.dep_kinds.iter().any(|k| k.kind != DependencyKind::Development);
        todo.extend(nodes[id].deps.iter().filter(ordinary).map(|d| &d.pkg));
    }
    metadata.packages.iter().filter(|p| seen.contains(&p.id)).map(|p| p.name.to_string()).collect()
}

#[test]
fn no_gpu_library_and_no_dlopen_below_the_cache() {
    let metadata = metadata();
    for package in GPU_FREE {
        let names = reached(&metadata, package);
        for gpu in GPU_OR_DLOPEN {
            assert!(!names.contains(*gpu), "{package} pulls in {gpu}");
        }
    }
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a source folder is readable") {
        let path = entry.expect("an entry is readable").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// Asserts that `needle` stands in no source below `folders` except in paths for which `allowed` holds.
fn absent(needles: &[&str], folders: &[&str], allowed: impl Fn(&Path) -> bool) {
    let root = root();
    for folder in folders {
        let mut files = Vec::new();
        sources(&root.join(folder), &mut files);
        assert!(!files.is_empty(), "{folder} has no sources");
        for file in files {
            let relative = file.strip_prefix(&root).expect("a source lies in the workspace");
            let text = std::fs::read_to_string(&file).expect("a source is UTF-8");
            for needle in needles {
                let found =
                    text.lines().any(|line| !line.trim_start().starts_with("//") && line.contains(needle));
                assert!(!found || allowed(relative), "{} says `{needle}`", relative.display());
            }
        }
    }
}

#[test]
fn only_backends_open_shared_objects() {
    let rooms = [
        "driver/src",
        "io/src",
        "cache/src",
        "cache/bridge/src",
        "tools/src",
        "tools/cachestat",
        "tools/page/src",
    ];
    absent(&["dlopen(", "dlsym(", "libloading"], &rooms, |_| false);
}

#[test]
fn io_uring_is_called_in_one_module() {
    let rooms = ["driver/src", "io/src", "cache/src", "cache/bridge/src", "tools/src", "backends/src"];
    absent(&["io_uring::", "use io_uring"], &rooms, |path| {
        path.starts_with("io/src/uring") || path == Path::new("io/src/uring.rs")
    });
}

#[test]
fn weights_are_never_mapped() {
    let rooms = ["io/src", "cache/src", "cache/bridge/src", "tools/src"];
    absent(&["memmap2", "mmap("], &rooms, |_| false);
}

#[test]
fn cache_and_tools_forbid_unsafe() {
    for entry in ["cache/src/lib.rs", "tools/src/main.rs", "tools/cachestat/main.rs"] {
        let text = std::fs::read_to_string(root().join(entry)).expect("the crate root is readable");
        assert!(text.contains("#![forbid(unsafe_code)]"), "{entry} does not forbid unsafe code");
    }
}

#[test]
fn no_source_stops_the_process_on_an_unfinished_path() {
    let rooms = ["driver/src", "backends/src", "io/src", "cache", "tools"];
    absent(&["todo!(", "unimplemented!(", "static mut "], &rooms, |_| false);
}
