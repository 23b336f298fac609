//! The manifest of weight files that broke other loaders, through the program: `SPOC_CASES` names the folder with
//! `cases.json` and the unpacked files. Without it the test says so and passes. The library has the same test.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "a test")]

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::Place;
use nix::sys::resource::{UsageWho, getrusage};
use serde_json::Value;

/// Outcomes that differ from the manifest's first choice: a length that the file could keep, had it not been cut, is a
/// truncation, since nothing tells the two apart.
const TRUNCATED: [&str; 3] =
    ["gguf_bad_key_len_eof_plus_1", "gguf_bad_str_len_eof_plus_1", "gguf_bad_tensor_name_len_eof_plus_1"];

const RSS_GROWTH_MAX_KIB: i64 = 64 << 10;
const TIME_MAX: Duration = Duration::from_secs(10);
/// Tensors above this are holes of gigabytes: they are listed, and digested only with `SPOC_CASES_LARGE`.
const DIGESTED_BYTES_MAX: u64 = 256 << 20;

#[test]
fn every_case_of_the_manifest() {
    let Some(folder) = std::env::var_os("SPOC_CASES") else {
        eprintln!("not run: SPOC_CASES does not name a folder of cases");
        return;
    };
    let folder = Path::new(&folder);
    let manifest: Value = serde_json::from_slice(&std::fs::read(folder.join("cases.json")).unwrap()).unwrap();
    let place = Place::new();
    assert!(common::output(place.loader().arg("--version")).status.success());
    let mut peak = children_peak_kib();
    let rss_max = peak + RSS_GROWTH_MAX_KIB;
    let cases = manifest["cases"].as_array().unwrap();
    let mut failures = Vec::new();
    for case in cases {
        let mut outcome = one(&place, folder, case, &manifest["sparse_sha256"]);
        let now = children_peak_kib();
        if now > rss_max.max(peak) {
            outcome = Err(format!("{now} KiB of memory, at most {rss_max} are allowed"));
        }
        peak = now;
        if let Err(why) = outcome {
            failures.push(format!("{}: {why}", case["id"]));
        }
    }
    assert!(failures.is_empty(), "{} of {} cases:\n{}", failures.len(), cases.len(), failures.join("\n"));
    assert!(!cases.is_empty());
}

/// The most that any child held so far.
fn children_peak_kib() -> i64 {
    getrusage(UsageWho::RUSAGE_CHILDREN).unwrap().max_rss()
}

fn one(place: &Place, folder: &Path, case: &Value, sparse: &Value) -> Result<(), String> {
    let path = folder.join(case["path"].as_str().unwrap());
    let socket = case["files"].as_array().into_iter().flatten().find(|file| file["type"] == "socket");
    let _listener = socket.map(|file| {
        let path = folder.join(file["path"].as_str().unwrap());
        let _ = std::fs::remove_file(&path);
        std::os::unix::net::UnixListener::bind(path).unwrap()
    });
    let expect = &case["expect"];
    let tensors = expect["tensors"].as_object();
    let longest = tensors.into_iter().flatten().filter_map(|(_, want)| want["nbytes"].as_u64()).max();
    let large = std::env::var_os("SPOC_CASES_LARGE").is_some();
    let small = longest.unwrap_or(0) <= if large { 8 << 30 } else { DIGESTED_BYTES_MAX };
    let mut command = place.loader();
    command.arg("inspect").arg(&path).arg("--json");
    if small {
        command.args(["--digest", "sha256"]);
    }
    let since = Instant::now();
    let output = common::output(&mut command);
    // The limit is for opening and listing; digests of large files may take longer.
    if since.elapsed() > TIME_MAX && longest.is_none_or(|bytes| bytes < 1 << 20) {
        return Err(format!("took {:?}", since.elapsed()));
    }
    let answer: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("{error}: {}", common::stderr(&output)))?;
    let code = output.status.code();
    match (expect["result"].as_str().unwrap(), code) {
        ("ok", Some(0)) => same_tensors(folder, case, sparse, &answer, small),
        (_, Some(2)) => same_error(case, &answer["error"], &common::stderr(&output)),
        (wanted, _) => {
            Err(format!("expected {wanted}, ended with {:?}: {}", output.status, common::stderr(&output)))
        }
    }
}

fn same_error(case: &Value, error: &Value, told: &str) -> Result<(), String> {
    let expect = &case["expect"];
    let category = match case["id"].as_str().unwrap() {
        id if TRUNCATED.contains(&id) => "truncated",
        _ => expect["category"].as_str().unwrap_or("no error"),
    };
    if error["kind"] != category {
        return Err(format!("expected {category}, found: {error}"));
    }
    let message = error["message"].as_str().unwrap_or_default();
    if !error["file"].is_string() || told != format!("error: {message}\n") || told.lines().count() != 1 {
        return Err(format!("expected one line that names a file, found {error} and {told:?}"));
    }
    for part in expect["must_mention"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if category == expect["category"] && !message.contains(part) {
            return Err(format!("expected a mention of {part:?}, found: {message}"));
        }
    }
    Ok(())
}

fn same_tensors(
    folder: &Path,
    case: &Value,
    sparse: &Value,
    answer: &Value,
    digested: bool,
) -> Result<(), String> {
    let expected = case["expect"]["tensors"].as_object().ok_or("no tensors in the manifest")?;
    let rows = answer["tensors"].as_array().ok_or("no tensors in the answer")?;
    if expected.len() != rows.len() {
        return Err(format!("expected {} tensors, found {}", expected.len(), rows.len()));
    }
    let canonical =
        |path: &Path| std::fs::canonicalize(path).map_err(|error| format!("{}: {error}", path.display()));
    for row in rows {
        let name = row["name"].as_str().unwrap_or_default();
        let want = expected.get(name).ok_or_else(|| format!("tensor {name:?} was not expected"))?;
        let shape = match &want["shape"] {
            Value::String(ones) => {
                vec![Value::from(1); ones.strip_prefix("ones:").unwrap().parse().unwrap()].into()
            }
            list => list.clone(),
        };
        let same = want["dtype"] == row["dtype"]
            && shape == row["shape"]
            && want["nbytes"] == row["bytes"]
            && want["offset"] == row["offset"]
            && canonical(&folder.join(want["file"].as_str().unwrap()))?
                == canonical(Path::new(row["file"].as_str().unwrap_or_default()))?;
        if !same {
            return Err(format!("tensor {name:?}: expected {want}, found {row}"));
        }
        let key =
            format!("{}:model.safetensors:{}:{}", case["id"].as_str().unwrap(), row["offset"], row["bytes"]);
        let digest = want["sha256"].as_str().or_else(|| sparse[&key].as_str());
        if digested && digest != row["digest"].as_str() {
            return Err(format!("tensor {name:?}: expected digest {digest:?}, found {}", row["digest"]));
        }
    }
    Ok(())
}
