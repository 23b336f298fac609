//! docs/errors.md names every kind there is.

#![allow(clippy::expect_used)]

use std::path::Path;

/// Kinds that the tools rename.
const RENAMED: [&str; 3] = ["no_such_device", "out_of_device_memory", "out_of_host_memory"];

#[test]
fn every_kind_of_every_room_is_documented() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect(path);
    let table = read("docs/errors.md");
    let mut kinds = 0;
    for room in ["io/src/error.rs", "driver/src/error.rs", "cache/src/error.rs"] {
        let source = read(room);
        let names = source
            .lines()
            .filter_map(|line| line.split_once("=> \"")?.1.split_once('"').map(|(name, _)| name));
        for name in names.filter(|name| !RENAMED.contains(name)) {
            assert!(table.contains(&format!("| `{name}` |")), "{room}: {name} is not in docs/errors.md");
            kinds += 1;
        }
    }
    assert!(kinds > 60, "only {kinds} kinds found: the sources are written in another way now");
}
