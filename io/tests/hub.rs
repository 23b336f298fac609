//! Models by name in a Hugging Face cache: what is found, and what is said when it is not.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use spoc_io::{ErrorKind, Model, OpenOptions, open_model};

const MAIN: &str = "1111111111111111111111111111111111111111";
const OLD: &str = "1111111222222222222222222222222222222222";

fn weights(value: u8) -> Vec<u8> {
    let header = br#"{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    [&(header.len() as u64).to_le_bytes()[..], header, &[value]].concat()
}

/// A cache with one model of two snapshots, laid out as the publisher's tool does.
fn cache() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let repository = folder.path().join("models--org--Tiny-1.5B");
    for (at, (commit, reference)) in (0u8..).zip([(MAIN, "main"), (OLD, "refs/pr/1")]) {
        let blob = repository.join("blobs").join(commit);
        let snapshot = repository.join("snapshots").join(commit);
        let reference = repository.join("refs").join(reference);
        for folder in [blob.parent().unwrap(), &snapshot, reference.parent().unwrap()] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::write(&blob, weights(at)).unwrap();
        symlink(Path::new("../../blobs").join(commit), snapshot.join("model.safetensors")).unwrap();
        fs::write(reference, commit).unwrap();
    }
    folder
}

fn open(cache: &Path, name: &str) -> Result<Model, spoc_io::Error> {
    open_model(
        Path::new(name),
        &OpenOptions { hub_cache: Some(cache.to_path_buf()), ..OpenOptions::default() },
    )
}

#[test]
fn branches_pull_requests_and_commits_lead_to_their_snapshot() {
    let cache = cache();
    for (name, commit) in [
        ("org/Tiny-1.5B", MAIN),
        ("org/Tiny-1.5B@main", MAIN),
        ("org/Tiny-1.5B@refs/pr/1", OLD),
        (&format!("org/Tiny-1.5B@{OLD}"), OLD),
        ("org/Tiny-1.5B@11111112", OLD),
    ] {
        let model = open(cache.path(), name).unwrap();
        assert!(model.root().ends_with(commit), "{name}: {}", model.root().display());
    }
}

#[test]
fn what_is_not_there_is_named() {
    let cache = cache();
    for (name, kind, says) in [
        ("org/Other", ErrorKind::NotFound, "org/Other"),
        ("org/Other", ErrorKind::NotFound, "HF_HOME"),
        ("org/Tiny-1.5B@v9", ErrorKind::NotFound, "'v9' here, there are main"),
        ("org/Tiny-1.5B@1111111", ErrorKind::AmbiguousWeights, "several snapshots"),
        ("org/Tiny-1.5B@../main", ErrorKind::InvalidArgument, "'../main'"),
        ("org/Tiny-1.5B@", ErrorKind::InvalidArgument, "after '@'"),
        ("no/such/path", ErrorKind::NotFound, "no/such/path"),
    ] {
        let error = open(cache.path(), name).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn a_file_missing_from_a_snapshot_is_named() {
    let cache = cache();
    let snapshot = cache.path().join("models--org--Tiny-1.5B/snapshots").join(MAIN);
    let index =
        r#"{"weight_map":{"w":"model-00001-of-00002.safetensors","v":"model-00002-of-00002.safetensors"}}"#;
    fs::write(snapshot.join("model.safetensors.index.json"), index).unwrap();
    fs::rename(snapshot.join("model.safetensors"), snapshot.join("model-00001-of-00002.safetensors"))
        .unwrap();
    let error = open(cache.path(), "org/Tiny-1.5B").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MissingShard);
    assert!(error.to_string().contains("model-00002-of-00002.safetensors"), "{error}");
    // A link whose blob is gone: both ends are named.
    symlink("../../blobs/gone", snapshot.join("model-00002-of-00002.safetensors")).unwrap();
    let error = open(cache.path(), "org/Tiny-1.5B").unwrap_err().to_string();
    assert!(error.contains("model-00002-of-00002") && error.contains("blobs/gone"), "{error}");
}

#[test]
fn a_path_that_exists_is_a_path() {
    let cache = cache();
    let repository = cache.path().join("models--org--Tiny-1.5B");
    let model = open(Path::new("/nowhere"), repository.to_str().unwrap()).unwrap();
    assert!(model.root().ends_with(MAIN));
}
