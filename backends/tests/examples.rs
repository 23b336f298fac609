//! The examples run, and are short enough to be read.
#![allow(clippy::unwrap_used, dead_code)]

#[path = "../examples/03_pinned_copy.rs"]
mod pinned_copy;
#[path = "../examples/01_probe.rs"]
mod probe;
#[path = "../examples/04_streaming_step.rs"]
mod streaming_step;
#[path = "../examples/02_vector.rs"]
mod vector;

#[test]
fn they_run() {
    probe::main().unwrap();
    vector::main().unwrap();
    pinned_copy::main().unwrap();
    streaming_step::main().unwrap();
}

#[test]
fn they_are_short() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines < 80, "{}: {lines} lines", path.display());
        files += 1;
    }
    assert!(files >= 4);
}
