//! `manifest`, `verify` and `load --verify`, as programs.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test")]

mod common;

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Place, answer, failure, mixed_tensors, output, safetensors, stderr, stdout, tensor};
use serde_json::Value;
use sha1::Digest as _;

fn loader(place: &Place, words: &[&str], model: &Path) -> Command {
    let mut command = place.loader();
    command.args(words).arg(model);
    command
}

fn flip(path: &Path, at: u64) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("opens");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("reads");
    file.write_all_at(&[!byte[0]], at).expect("writes");
}

const LOAD: [&str; 4] = ["load", "--backend", "native", "--verify"];

#[test]
fn what_was_written_down_agrees_and_a_flipped_byte_is_named() {
    let place = Place::new();
    let path = place.write("m.safetensors", &safetensors(&mixed_tensors(), 3));
    for digest in ["xxh3", "crc32c", "blake3", "sha256"] {
        let written = answer(&mut loader(&place, &["manifest", "--json", "--digest", digest], &path));
        assert_eq!(written["manifest"], format!("{}.spoc-manifest.json", path.display()), "{written}");
        assert_eq!((&written["digest"], &written["tensors"]), (&digest.into(), &20.into()), "{written}");
        let verified = answer(&mut loader(&place, &["verify", "--json"], &path));
        assert_eq!(verified["against"], "manifest");
        assert_eq!(verified["bytes"].as_u64(), std::fs::metadata(&path).ok().map(|meta| meta.len()));
        let loaded =
            answer(loader(&place, &LOAD, &path).args(["--check", "--json", "--read-deadline", "60s"]));
        assert_eq!(loaded["verify"]["digest"], digest, "{loaded}");
        assert!(loaded["verify"]["bytes"].as_u64() >= loaded["bytes"].as_u64(), "{loaded}");

        let listing = answer(&mut loader(&place, &["inspect", "--json"], &path));
        let rows = listing["tensors"].as_array().expect("tensors");
        let row = rows.iter().find(|row| row["name"] == "embed.weight").expect("embed.weight");
        let at = row["offset"].as_u64().expect("offset") + 1_000_000;
        flip(&path, at);
        for words in [&LOAD[..], &["verify"]] {
            let (kind, message) = failure(loader(&place, words, &path), 4);
            assert_eq!(kind, "digest_mismatch", "{message}");
            let block = at / (256 << 10) * (256 << 10);
            for part in
                ["'embed.weight'", &format!("at byte {block}"), &format!("expected {digest} "), "found "]
            {
                assert!(message.contains(part), "{part}: {message}");
            }
        }
        // What is not loaded is not compared.
        assert!(output(loader(&place, &LOAD, &path).args(["--tensors", "model.*"])).status.success());
        flip(&path, at);
    }
    let people = output(&mut loader(&place, &LOAD, &path));
    assert!(stdout(&people).contains("agree with the manifest (sha256)"), "{}", stdout(&people));
    let people = output(&mut loader(&place, &["verify"], &path));
    assert!(stdout(&people).starts_with("verified "), "{}{}", stdout(&people), stderr(&people));
}

#[test]
fn a_manifest_that_contradicts_itself_is_found_by_verify() {
    let place = Place::new();
    // Several reads, several blocks, and a neighbour of one block.
    let tensors = [tensor("long", "U8", &[9_000_000], 9_000_000), tensor("short", "U8", &[1000], 1000)];
    let path = place.write("m.safetensors", &safetensors(&tensors, 1));
    let beside = place.path("m.safetensors.spoc-manifest.json");
    answer(&mut loader(&place, &["manifest", "--json"], &path));
    for io in ["auto", "direct", "buffered", "pread"] {
        let verified = answer(loader(&place, &["verify", "--json", "--io", io], &path).arg("-q"));
        assert_eq!(verified["tensors"], 2, "{io}");
    }
    let text = std::fs::read_to_string(&beside).expect("written");
    let line = text.lines().find(|line| line.contains("\"long\"")).expect("its line");
    let digest =
        line.split("\"digest\":\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a digest");
    let other = "0".repeat(digest.len());
    std::fs::write(&beside, text.replacen(digest, &other, 1)).expect("write");
    let (kind, message) = failure(loader(&place, &["verify"], &path), 4);
    assert_eq!(kind, "digest_mismatch");
    for part in ["'long'", &other, digest, "contradicts itself"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    // The blocks say what every byte must be: that is what a load compares.
    assert!(output(&mut loader(&place, &LOAD, &path)).status.success());
}

#[test]
fn what_a_manifest_says_nothing_about_is_listed() {
    let place = Place::new();
    let path = place.write("model/model.safetensors", &safetensors(&mixed_tensors(), 1));
    let folder = path.parent().expect("a folder").to_path_buf();
    place.write("model/config.json", b"{}");
    place.write("model/sub/more.json", b"{}");
    std::os::unix::fs::symlink("nowhere", folder.join("gone.txt")).expect("link");
    answer(&mut loader(&place, &["manifest", "--json"], &folder));
    let listed = |words: &[&str], model: &Path| -> Vec<String> {
        let verified = answer(&mut loader(&place, words, model));
        let list = verified["not_covered"].as_array().expect("a list");
        list.iter().map(|name| name.as_str().expect("text").rsplit('/').next().unwrap().to_owned()).collect()
    };
    assert_eq!(listed(&["verify", "--json"], &folder), ["config.json", "gone.txt"]);
    assert!(stdout(&output(&mut loader(&place, &["verify"], &folder))).contains("no word  "));
    // A single file has nothing beside it that would be part of it.
    answer(&mut loader(&place, &["manifest", "--json"], &path));
    assert_eq!(listed(&["verify", "--json"], &path), [""; 0]);
}

#[test]
fn several_bad_blocks_are_counted_and_the_first_is_named() {
    let place = Place::new();
    let path = place.write("m.safetensors", &safetensors(&[tensor("w", "U8", &[5_000_000], 5_000_000)], 0));
    answer(loader(&place, &["manifest", "--json"], &path).args(["--out"]).arg(place.path("elsewhere.json")));
    for at in [4_000_000, 900_000, 3_000_000] {
        flip(&path, at);
    }
    let mut command = loader(&place, &["verify"], &path);
    command.arg("--manifest").arg(place.path("elsewhere.json"));
    let (kind, message) = failure(command, 4);
    assert_eq!(kind, "digest_mismatch");
    assert!(message.contains("at byte 786432: ") && message.ends_with("; 2 more differ"), "{message}");
    let mut command = loader(&place, &["load", "--backend", "native"], &path);
    command.arg("--manifest").arg(place.path("elsewhere.json"));
    assert_eq!(failure(command, 4).0, "digest_mismatch", "naming a manifest asks for the comparison");
}

#[test]
fn manifests_that_are_missing_broken_or_of_something_else() {
    let place = Place::new();
    let path = place.write("m.safetensors", &safetensors(&[tensor("w", "F32", &[1000], 4000)], 0));
    let beside = place.path("m.safetensors.spoc-manifest.json");
    let check = |expected: &str, part: &str| {
        for words in [&LOAD[..], &["verify"]] {
            let (kind, message) = failure(loader(&place, words, &path), 2);
            assert_eq!(kind, expected, "{message}");
            assert!(message.contains(part), "{part}: {message}");
        }
    };
    check("no_manifest", "spoc-loader manifest");
    answer(&mut loader(&place, &["manifest", "--json"], &path));
    let good = std::fs::read(&beside).expect("written");
    let write = |bytes: &[u8]| std::fs::write(&beside, bytes).expect("write");
    write(&good[..good.len() / 2]);
    check("truncated", "spoc-manifest.json");
    write(b"[]");
    check("invalid_manifest", "spoc-manifest.json");
    write(&String::from_utf8_lossy(&good).replace("\"spoc_manifest\":1", "\"spoc_manifest\":7").into_bytes());
    check("unsupported_version", "found 7");
    write(&good);
    place.write("m.safetensors", &safetensors(&[tensor("w", "F32", &[1001], 4004)], 0));
    check("manifest_mismatch", "bytes, found");
    place.write("m.safetensors", &safetensors(&[tensor("v", "F32", &[1000], 4000)], 0));
    check("manifest_mismatch", "tensor 'v' is not in the manifest");
}

#[test]
fn a_folder_that_may_not_be_written_to_is_told() {
    let place = Place::new();
    let path = place.write("ro/m.safetensors", &safetensors(&[tensor("w", "F32", &[1000], 4000)], 0));
    let folder = path.parent().expect("a folder").to_path_buf();
    let mount = |words: &[&str]| {
        Command::new("mount").args(words).arg(&folder).output().is_ok_and(|o| o.status.success())
    };
    let bound = folder.to_str().expect("UTF-8").to_owned();
    if !mount(&["--bind", &bound]) || !mount(&["-o", "remount,bind,ro"]) {
        let _ = Command::new("umount").arg(&folder).output();
        println!("not run: mounting read-only needs root");
        return;
    }
    let told = std::panic::catch_unwind(|| failure(loader(&place, &["manifest"], &path), 2));
    let out = output(loader(&place, &["manifest", "--out"], &place.path("m.json")).arg(&path));
    let _ = Command::new("umount").arg(&folder).output();
    let (kind, message) = told.expect("fails as agreed");
    assert_eq!(kind, "io_error");
    assert!(message.contains("--out") && message.contains("Read-only"), "{message}");
    assert!(out.status.success(), "{}", stderr(&out));
}

/// A repository of a Hugging Face cache: blobs named by what they hold, and links to them.
fn hub(place: &Place) -> (PathBuf, PathBuf) {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let weights = safetensors(&mixed_tensors(), 1);
    let config = b"{\"hidden_size\": 8}\n";
    let git = [format!("blob {}\0", config.len()).as_bytes(), config].concat();
    let repo = place.path("hub/models--org--name");
    let snapshot = repo.join("snapshots/0123456789abcdef0123456789abcdef01234567");
    for folder in [&snapshot, &repo.join("refs"), &repo.join("blobs")] {
        std::fs::create_dir_all(folder).expect("folder");
    }
    std::fs::write(repo.join("refs/main"), "0123456789abcdef0123456789abcdef01234567").expect("write");
    let blobs: [(&str, String, &[u8]); 2] = [
        ("model.safetensors", hex(&sha2::Sha256::digest(&weights)), &weights),
        ("config.json", hex(&sha1::Sha1::digest(git)), config),
    ];
    for (name, blob, bytes) in &blobs {
        std::fs::write(repo.join("blobs").join(blob), bytes).expect("write");
        std::os::unix::fs::symlink(format!("../../blobs/{blob}"), snapshot.join(name)).expect("link");
    }
    (snapshot, repo)
}

#[test]
fn blobs_of_a_hugging_face_cache_are_what_their_names_say() {
    let place = Place::new();
    let (snapshot, repo) = hub(&place);
    let by_name = |words: &[&str]| {
        let mut command = loader(&place, words, Path::new("org/name"));
        command.env("HF_HUB_CACHE", place.path("hub"));
        command
    };
    let verified = answer(&mut by_name(&["verify", "--json"]));
    assert_eq!(verified["against"], "blob_names");
    assert_eq!(
        (&verified["files"], &verified["not_covered"]),
        (&2.into(), &Value::Array(vec![])),
        "{verified}"
    );
    assert_eq!(verified["digests"], serde_json::json!(["git-sha1", "sha256"]));
    std::fs::write(snapshot.join("notes.txt"), "mine").expect("write");
    let verified = answer(&mut by_name(&["verify", "--json"]));
    assert_eq!(verified["not_covered"][0], snapshot.join("notes.txt").to_str().expect("UTF-8"));
    assert!(stdout(&output(&mut by_name(&["verify"]))).contains("no word  "));

    for name in ["config.json", "model.safetensors"] {
        let path = snapshot.join(name);
        let at = std::fs::metadata(&path).expect("there").len() - 2;
        flip(&path, at);
        let (kind, message) = failure(by_name(&["verify"]), 4);
        assert_eq!(kind, "digest_mismatch", "{message}");
        assert!(
            message.contains(name) && message.contains("expected ") && message.contains("found "),
            "{message}"
        );
        flip(&path, at);
    }
    // A weight file that is no link says nothing of itself.
    std::fs::remove_file(snapshot.join("model.safetensors")).expect("removed");
    std::fs::write(snapshot.join("model.safetensors"), safetensors(&mixed_tensors(), 1)).expect("write");
    assert_eq!(failure(by_name(&["verify"]), 2).0, "no_manifest");
    drop(repo);
}

#[test]
fn a_manifest_never_takes_the_place_of_weights() {
    let place = Place::new();
    let bytes = safetensors(&[tensor("w", "F32", &[1000], 4000)], 0);
    let path = place.write("m.safetensors", &bytes);
    let mut command = loader(&place, &["manifest", "--out"], &path);
    command.arg(&path);
    let (kind, message) = failure(command, 2);
    assert_eq!(kind, "invalid_argument");
    assert!(message.contains("m.safetensors") && message.contains("another file"), "{message}");
    assert_eq!(std::fs::read(&path).expect("still there"), bytes);
}

#[test]
fn an_interrupted_manifest_leaves_nothing() {
    let place = Place::new();
    // Long enough to be interrupted: a hole of 256 GiB.
    let len: u64 = 256 << 30;
    let header = format!("{{\"w\":{{\"dtype\":\"U8\",\"shape\":[{len}],\"data_offsets\":[0,{len}]}}}}");
    let path = place.write("big/m.safetensors", &common::with_header(&header, &[]));
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("opens");
    file.set_len(8 + header.len() as u64 + len).expect("a sparse file");
    let folder = path.parent().expect("a folder");
    let names = || -> Vec<_> {
        std::fs::read_dir(folder).expect("lists").map(|entry| entry.expect("entry").file_name()).collect()
    };
    let mut command = loader(&place, &["manifest"], &path);
    let mut child = command.stderr(std::process::Stdio::null()).spawn().expect("starts");
    let since = std::time::Instant::now();
    while names().len() < 2 {
        assert!(since.elapsed().as_secs() < 20, "nothing temporary was seen");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).expect("signal");
    assert!(!child.wait().expect("ends").success());
    assert_eq!(names(), ["m.safetensors"]);
}
