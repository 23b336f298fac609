//! Runs a manifest of weight files that broke other loaders: `SPOC_CASES` names the folder with `cases.json` and the
//! unpacked files. Without it the test says so and passes; `formats.rs` re-creates the cases that matter.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr, reason = "a test")]

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use spoc_io::{DigestKind, Model, OpenOptions, digest_extent, open_model};

/// Outcomes that differ from the manifest's first choice, each with its reason.
const DEVIATIONS: &[(&str, &str, &str)] = &[
    ("gguf_bad_key_len_eof_plus_1", "truncated", CUT),
    ("gguf_bad_str_len_eof_plus_1", "truncated", CUT),
    ("gguf_bad_tensor_name_len_eof_plus_1", "truncated", CUT),
];

const CUT: &str =
    "a length that the file could keep, had it not been cut, is a truncation: nothing tells the two apart";

const RSS_GROWTH_MAX_KIB: u64 = 64 << 10;
const TIME_MAX: Duration = Duration::from_secs(10);

#[test]
fn every_case_of_the_manifest() {
    let Some(folder) = std::env::var_os("SPOC_CASES") else {
        eprintln!("not run: SPOC_CASES does not name a folder of cases");
        return;
    };
    let folder = Path::new(&folder);
    let manifest: Value = serde_json::from_slice(&std::fs::read(folder.join("cases.json")).unwrap()).unwrap();
    let (mut run, mut failures) = (0, Vec::new());
    for case in manifest["cases"].as_array().unwrap() {
        run += 1;
        if let Err(why) = one(folder, case, &manifest["sparse_sha256"]) {
            failures.push(format!("{}: {why}", case["id"]));
        }
    }
    assert!(failures.is_empty(), "{} of {run} cases:\n{}", failures.len(), failures.join("\n"));
    assert!(run > 0);
    eprintln!("{run} cases");
}

fn one(folder: &Path, case: &Value, sparse: &Value) -> Result<(), String> {
    let id = case["id"].as_str().unwrap();
    let path = folder.join(case["path"].as_str().unwrap());
    let socket = case["files"].as_array().into_iter().flatten().find(|f| f["type"] == "socket");
    let _listener = socket.map(|f| {
        let path = folder.join(f["path"].as_str().unwrap());
        let _ = std::fs::remove_file(&path);
        std::os::unix::net::UnixListener::bind(path).unwrap()
    });
    let (before, since) = (peak_rss_kib(true), Instant::now());
    let outcome = open_model(&path, &OpenOptions::default());
    let (grown, took) = (peak_rss_kib(false).saturating_sub(before), since.elapsed());
    if grown > RSS_GROWTH_MAX_KIB || took > TIME_MAX {
        return Err(format!("{grown} KiB and {took:?} to open"));
    }
    let expect = &case["expect"];
    if let Some((_, kind, _)) = DEVIATIONS.iter().find(|(deviates, ..)| *deviates == id) {
        return match outcome {
            Err(e) if e.kind().as_str() == *kind => Ok(()),
            other => Err(format!("expected the deviation {kind}, found {other:?}")),
        };
    }
    match (expect["result"].as_str().unwrap(), outcome) {
        ("ok", Ok(model)) => {
            same_tensors(folder, case, sparse, &model)?;
            if let Some(second) = expect["second_path"].as_str() {
                open_model(&folder.join(second), &OpenOptions::default()).map_err(|e| e.to_string())?;
            }
            Ok(())
        }
        ("ok", Err(e)) => Err(format!("expected tensors, found: {e}")),
        (_, Ok(_)) => Err(format!("expected {}, it loads", expect["category"])),
        (_, Err(e)) => same_error(expect, &e),
    }
}

fn same_error(expect: &Value, error: &spoc_io::Error) -> Result<(), String> {
    let text = error.to_string();
    if expect["category"] != error.kind().as_str() {
        return Err(format!("expected {}, found: {text}", expect["category"]));
    }
    if error.file().is_none() || text.contains('\n') {
        return Err(format!("expected one line that names a file, found: {text}"));
    }
    for part in expect["must_mention"].as_array().into_iter().flatten() {
        if !text.contains(part.as_str().unwrap()) {
            return Err(format!("expected a mention of {part}, found: {text}"));
        }
    }
    Ok(())
}

fn same_tensors(folder: &Path, case: &Value, sparse: &Value, model: &Model) -> Result<(), String> {
    let expected = case["expect"]["tensors"].as_object().ok_or("no tensors in the manifest")?;
    if expected.len() != model.tensors().len() {
        return Err(format!("expected {} tensors, found {}", expected.len(), model.tensors().len()));
    }
    for (name, want) in expected {
        let tensor = model.tensor(name).ok_or(format!("no tensor {name:?}"))?;
        let file = model.file_of(tensor).ok_or("no file")?;
        let shape: Vec<u64> = match &want["shape"] {
            Value::String(ones) => vec![1; ones.strip_prefix("ones:").unwrap().parse().unwrap()],
            list => list.as_array().unwrap().iter().map(|d| d.as_u64().unwrap()).collect(),
        };
        let place = std::fs::canonicalize(folder.join(want["file"].as_str().unwrap())).unwrap();
        let same = want["dtype"] == tensor.dtype.name()
            && shape == tensor.shape
            && want["nbytes"].as_u64() == Some(tensor.extent.len_bytes)
            && want["offset"].as_u64() == Some(tensor.extent.offset)
            && std::fs::canonicalize(file.path()).unwrap() == place;
        if !same {
            return Err(format!("tensor {name:?}: expected {want}, found {tensor:?}"));
        }
        same_bytes(case, want, sparse, model, tensor)?;
    }
    Ok(())
}

fn same_bytes(
    case: &Value,
    want: &Value,
    sparse: &Value,
    model: &Model,
    tensor: &spoc_io::Tensor,
) -> Result<(), String> {
    let file = model.file_of(tensor).ok_or("no file")?;
    for probe in want["probes"].as_array().into_iter().flatten() {
        let hex = probe[1].as_str().unwrap();
        let mut bytes = vec![0; hex.len() / 2];
        let at = tensor.extent.offset + probe[0].as_u64().unwrap();
        file.read_exact_at(&mut bytes, at).map_err(|e| e.to_string())?;
        let found: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        if found != hex {
            return Err(format!("bytes at {at}: expected {hex}, found {found}"));
        }
    }
    // Whole tensors of gigabytes only when asked for: they are holes, and take half a minute.
    let limit = if std::env::var_os("SPOC_CASES_LARGE").is_some() { 8 << 30 } else { 256 << 20 };
    if tensor.extent.len_bytes > limit {
        return Ok(());
    }
    let found = digest_extent(file, tensor.extent, DigestKind::Sha256, limit).map_err(|e| e.to_string())?;
    let found = found.to_string();
    let key = format!(
        "{}:model.safetensors:{}:{}",
        case["id"].as_str().unwrap(),
        tensor.extent.offset,
        tensor.extent.len_bytes
    );
    let expected = want["sha256"].as_str().or_else(|| sparse[&key].as_str());
    match expected {
        Some(expected) if expected == found => Ok(()),
        other => Err(format!("tensor {:?}: expected digest {other:?}, found {found}", tensor.name)),
    }
}

/// Highest resident set of this process in KiB, after setting it back to the present one if `reset`.
fn peak_rss_kib(reset: bool) -> u64 {
    if reset {
        let _ = std::fs::write("/proc/self/clear_refs", "5");
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
