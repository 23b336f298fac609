//! Every kind of bad input ends with exit code 2, one line, and its kind.

mod common;

use std::path::Path;

use common::{Place, failure, output, safetensors, stderr, tensor, with_header};

fn kind_of_load(place: &Place, model: &Path) -> (String, String) {
    let mut command = place.loader();
    command.arg("load").arg(model);
    failure(command, 2)
}

#[test]
fn bad_files() {
    let place = Place::new();
    let good = safetensors(&[tensor("weight", "F32", &[256], 1024)], 0);
    let header = |text: &str| with_header(text, &[0; 1024]);
    let dtype = r#"{"weight":{"dtype":"X9","shape":[256],"data_offsets":[0,1024]}}"#;
    let shape = r#"{"weight":{"dtype":"F32","shape":[255],"data_offsets":[0,1024]}}"#;
    let overflow =
        r#"{"weight":{"dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,1024]}}"#;
    let table: Vec<(&str, Vec<u8>, &str)> = vec![
        ("short", vec![1, 2, 3], "header_too_small"),
        ("empty", vec![], "header_too_small"),
        ("lying", [&u64::MAX.to_le_bytes()[..], b"{}"].concat(), "header_too_large"),
        ("cut", good[..good.len() - 1].to_vec(), "truncated"),
        ("longer", [&good[..], b"x"].concat(), "trailing_data"),
        ("not-json", header("{nonsense}"), "invalid_header"),
        ("dtype", header(dtype), "bad_dtype"),
        ("shape", header(shape), "shape_mismatch"),
        ("overflow", header(overflow), "shape_overflow"),
        (
            "pointer",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n".to_vec(),
            "lfs_pointer",
        ),
    ];
    for (name, bytes, expected) in table {
        let path = place.write(&format!("{name}.safetensors"), &bytes);
        let (kind, message) = kind_of_load(&place, &path);
        assert_eq!(kind, expected, "{message}");
        assert!(message.contains(&format!("{name}.safetensors")), "{message}");
        let mut command = place.loader();
        command.arg("inspect").arg(&path);
        assert_eq!(failure(command, 2).0, expected);
    }
}

#[test]
fn what_is_no_file_of_weights() {
    let place = Place::new();
    assert_eq!(kind_of_load(&place, &place.path("missing.safetensors")).0, "not_found");
    std::fs::create_dir(place.path("bare")).unwrap();
    assert_eq!(kind_of_load(&place, &place.path("bare")).0, "no_weights");
    nix::unistd::mkfifo(&place.path("pipe.safetensors"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(kind_of_load(&place, &place.path("pipe.safetensors")).0, "not_a_regular_file");
    let index = r#"{"metadata":{},"weight_map":{"weight":"gone.safetensors"}}"#;
    place.write("sharded/model.safetensors.index.json", index.as_bytes());
    assert_eq!(kind_of_load(&place, &place.path("sharded")).0, "missing_shard");
    let index = r#"{"metadata":{},"weight_map":{"weight":"../../etc/passwd"}}"#;
    place.write("escaping/model.safetensors.index.json", index.as_bytes());
    assert_eq!(kind_of_load(&place, &place.path("escaping")).0, "path_escape");
}

#[test]
fn an_unreadable_file() {
    use std::os::unix::fs::PermissionsExt;
    if nix::unistd::geteuid().is_root() {
        println!("not run: root may read everything");
        return;
    }
    let place = Place::new();
    let path = place.write("m.safetensors", &safetensors(&[tensor("weight", "F32", &[256], 1024)], 0));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
    assert_eq!(kind_of_load(&place, &path).0, "io_error");
}

#[test]
fn bad_options() {
    let place = Place::new();
    let path = place.write("m.safetensors", &safetensors(&[tensor("weight", "F32", &[1 << 20], 4 << 20)], 0));
    let path = path.to_str().unwrap();
    let table: &[(&[&str], &str)] = &[
        (&["load", path, "--io", "fast"], "usage"),
        (&["load", path, "--staging-bytes", "many"], "usage"),
        (&["load", path, "--staging-bytes", "-1"], "usage"),
        (&["load", path, "--read-deadline", "soon"], "usage"),
        (&["load", path, "--read-deadline", "-1"], "usage"),
        (&["load", path, "--tensors", "[a"], "bad_pattern"),
        (&["load", path, "--backend", "abacus"], "usage"),
        (&["load", path, "--device", "x"], "usage"),
        (&["load", path, "--device", "-1"], "usage"),
        (&["bench"], "usage"),
        (&["load", path, "--nonsense"], "usage"),
        (&["load"], "usage"),
        (&["juggle"], "usage"),
        (&[], "usage"),
        (&["load", path, "--staging-bytes", "4096"], "staging_too_small"),
        (&["load", path, "--staging-bytes", "0"], "staging_too_small"),
        (&["load", path, "--staging-bytes", "1000T"], "staging_too_small"),
        (&["bench", "read", path, "--staging-bytes", "1000T"], "staging_too_small"),
        (&["bench", "link", "--backend", "native", "--staging-bytes", "1000T"], "staging_too_small"),
        (&["load", path, "--tensors", "nothing.*"], "no_tensor"),
        (&["load", path, "--backend", "native", "--device", "99"], "no_device"),
        (&["load", path, "--device", "00000000-0000-0000-0000-0000000000ff"], "no_device"),
        (&["load", path, "--backend", "metal"], "no_device"),
        (&["bench", "read", path, "--depth", "0"], "usage"),
        (&["bench", "read", path, "--chunk-bytes", "0"], "usage"),
        (&["bench", "read", "/dev/zero"], "not_a_regular_file"),
        (&["demo", "--slots", "0"], "usage"),
        (&["demo", "--slots", "13"], "usage"),
        (&["demo", "--slots", "4294967295"], "usage"),
        (&["demo", "--dir", "/nonexistent"], "not_found"),
    ];
    for (args, expected) in table {
        let mut command = place.loader();
        command.args(*args);
        let (kind, message) = failure(command, 2);
        assert_eq!(kind, *expected, "{args:?}: {message}");
    }
}

#[test]
fn a_device_too_small() {
    let place = Place::new();
    let path = place.write("m.safetensors", &safetensors(&[tensor("weight", "F32", &[1 << 20], 4 << 20)], 0));
    let mut command = place.loader();
    command.arg("load").arg(&path).args(["--backend", "native"]).env("SPOC_NATIVE_BYTES", "1048576");
    assert_eq!(failure(command, 2).0, "device_too_small");
}

#[test]
fn without_json_there_is_one_line_and_nothing_else() {
    let place = Place::new();
    let output = output(place.loader().arg("load").arg(place.path("a\nb\u{1b}[31m.safetensors")));
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    let told = stderr(&output);
    assert!(told.starts_with("error: ") && told.lines().count() == 1 && !told.contains('\u{1b}'), "{told:?}");
}

#[test]
fn a_reader_that_leaves_is_no_panic() {
    use std::process::Stdio;
    let place = Place::new();
    let tensors: Vec<_> = (0..4000).map(|at| tensor(&format!("tensor.{at}"), "U8", &[1], 1)).collect();
    let path = place.write("m.safetensors", &safetensors(&tensors, 0));
    let mut child = place
        .loader()
        .arg("inspect")
        .arg(&path)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(stderr(&output), "");
    assert_eq!(output.status.code(), Some(141));
}

#[test]
fn a_folder_for_the_demo_that_cannot_be_is_the_one_the_user_gave() {
    let place = Place::new();
    let file = place.write("file", b"x");
    for dir in ["/nonexistent", file.to_str().unwrap()] {
        let mut command = place.loader();
        command.args(["demo", "--dir", dir]);
        let (_, message) = failure(command, 2);
        assert!(message.starts_with(&format!("{dir}: ")) && !message.contains("spoc-demo-"), "{message}");
    }
}

#[test]
fn a_failure_is_told_even_when_standard_output_fails_too() {
    let place = Place::new();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let missing = place.path("missing.safetensors");
    let output = place.loader().arg("load").arg(missing).arg("--json").stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let told = stderr(&output);
    assert!(told.contains("missing.safetensors") && told.lines().count() == 1, "{told}");
}

#[test]
fn a_variable_that_is_no_size_is_a_mistake_of_the_user() {
    let place = Place::new();
    let path = place.write("m.safetensors", &safetensors(&[tensor("weight", "F32", &[256], 1024)], 0));
    let path = path.to_str().unwrap();
    let commands: [&[&str]; 5] = [
        &["load", path],
        &["load", path, "--backend", "native"],
        &["devices"],
        &["demo"],
        &["bench", "link"],
    ];
    for args in commands {
        for wrong in ["a lot", "0", "-1", ""] {
            let mut command = place.loader();
            command.args(args).env("SPOC_NATIVE_BYTES", wrong);
            let (kind, message) = failure(command, 2);
            assert!(kind == "usage" && message.contains("SPOC_NATIVE_BYTES"), "{args:?}: {kind}: {message}");
        }
    }
    for right in ["64M", "0.5GiB", "64 MB"] {
        let mut command = place.loader();
        command.args(["load", path, "--backend", "native"]).env("SPOC_NATIVE_BYTES", right);
        assert!(output(&mut command).status.success(), "{right}");
    }
}

#[test]
fn switches_in_variables_mean_the_same_to_mistakes() {
    let place = Place::new();
    for (value, is_json) in [("TRUE", true), ("On", true), ("1", true), ("", false), ("OFF", false)] {
        for args in [&["load"][..], &["load", "/missing"]] {
            let run = output(place.loader().args(args).env("SPOC_JSON", value));
            assert_eq!(run.status.code(), Some(2), "{value:?}");
            assert_eq!(!run.stdout.is_empty(), is_json, "{value:?} {args:?}");
            assert_eq!(stderr(&run).lines().count(), 1, "{value:?} {args:?}");
        }
    }
    let run = output(place.loader().arg("devices").env("SPOC_JSON", "maybe"));
    assert!(run.status.code() == Some(2) && run.stdout.is_empty());
}

#[test]
fn a_bad_filter_of_logs_is_said_once_and_stops_nothing() {
    let place = Place::new();
    let path = place.write("m.safetensors", &safetensors(&[tensor("weight", "F32", &[256], 1024)], 0));
    let run = output(place.loader().arg("inspect").arg(&path).env("SPOC_LOG", "spoc=[loud"));
    assert!(run.status.success());
    let told = stderr(&run);
    assert!(told.starts_with("SPOC_LOG=spoc=[loud is not a filter") && told.lines().count() == 1, "{told}");
    let run = output(place.loader().arg("inspect").arg(&path).env("SPOC_LOG", ""));
    assert!(run.status.success() && stderr(&run).is_empty(), "{}", stderr(&run));
}
