//! Loading, checking and inspecting generated models in every mode.

mod common;

use common::{Place, answer, failure, mixed_tensors, output, safetensors, stderr, stdout, tensor};
use serde_json::Value;

const MODES: [&str; 4] = ["auto", "direct", "buffered", "pread"];

fn check_load(place: &Place, model: &str, more: &[&str]) -> Value {
    let mut command = place.loader();
    command.args(["load", model, "--backend", "native", "--check", "--json"]).args(more);
    let answer = answer(&mut command);
    assert_eq!(answer["check"]["equal"], true, "{answer}");
    answer
}

#[test]
fn every_byte_arrives_in_every_mode() {
    let place = Place::new();
    let tensors = mixed_tensors();
    let bytes: usize = tensors.iter().map(|tensor| tensor.bytes.len()).sum();
    for (shift, name) in [(0, "plain.safetensors"), (3, "odd.safetensors")] {
        let path = place.write(name, &safetensors(&tensors, shift));
        for mode in MODES {
            let answer = check_load(&place, path.to_str().unwrap(), &["--io", mode]);
            assert_eq!(answer["bytes"], bytes, "{mode}");
            assert_eq!(answer["tensors"], tensors.len(), "{mode}");
            for key in
                ["seconds", "gb_per_s", "cpu_seconds", "staging_bytes", "prepare_seconds", "total_seconds"]
            {
                assert!(answer[key].as_f64().is_some_and(|number| number >= 0.0), "{key}: {answer}");
            }
            let path = answer["io_path"].as_str().expect("io_path");
            if mode == "pread" {
                assert!(path.starts_with("pread"), "{path}");
            }
            assert!(answer["io_path_reason"].is_string() && answer["stages"].is_object(), "{answer}");
        }
    }
}

#[test]
fn a_small_ring_serves_a_large_model() {
    let place = Place::new();
    let tensors: Vec<_> =
        (0..4).map(|at| tensor(&format!("big.{at}"), "U8", &[9_000_001], 9_000_001)).collect();
    let path = place.write("m.safetensors", &safetensors(&tensors, 1));
    let answer = check_load(&place, path.to_str().unwrap(), &["--staging-bytes", "8MiB"]);
    assert!(answer["staging_bytes"].as_u64().is_some_and(|bytes| bytes <= 8 << 20), "{answer}");
}

#[test]
fn shards_and_a_choice_of_tensors() {
    let place = Place::new();
    place.write("m/a.safetensors", &safetensors(&[tensor("layers.0.w", "F32", &[1000], 4000)], 0));
    place.write("m/b.safetensors", &safetensors(&[tensor("layers.1.w", "F32", &[1000], 4000)], 5));
    let index = r#"{"metadata":{},"weight_map":{"layers.0.w":"a.safetensors","layers.1.w":"b.safetensors"}}"#;
    place.write("m/model.safetensors.index.json", index.as_bytes());
    let model = place.path("m");
    let model = model.to_str().unwrap();
    assert_eq!(check_load(&place, model, &[])["bytes"], 8000);
    assert_eq!(check_load(&place, model, &["--tensors", "layers.1.*"])["bytes"], 4000);
    assert_eq!(check_load(&place, model, &["--tensors", "*.{w,b}"])["tensors"], 2);
}

#[test]
fn options_come_from_the_environment_and_the_command_line_wins() {
    let place = Place::new();
    let path = place.write("m.safetensors", &safetensors(&[tensor("w", "F32", &[1000], 4000)], 0));
    let mut command = place.loader();
    command
        .arg("load")
        .arg(&path)
        .env("SPOC_IO", "pread")
        .env("SPOC_JSON", "1")
        .env("SPOC_BACKEND", "native");
    assert!(answer(&mut command)["io_path"].as_str().is_some_and(|path| path.starts_with("pread")));
    command.env("SPOC_IO", "nonsense");
    assert_eq!(output(&mut command).status.code(), Some(2));
    command.args(["--io", "buffered"]);
    assert!(output(&mut command).status.success());
}

#[test]
fn people_get_a_summary() {
    let place = Place::new();
    let path = place.write("m.safetensors", &safetensors(&mixed_tensors(), 0));
    let run = output(place.loader().arg("load").arg(path).args(["--check", "--backend", "native"]));
    let text = stdout(&run);
    assert!(run.status.success(), "{}", stderr(&run));
    assert!(text.contains("GB/s") && text.contains("equal"), "{text}");
    assert_eq!(stderr(&run), "", "quiet when not a terminal");
}

#[test]
fn inspect_lists_and_digests() {
    use sha2::Digest as _;
    let place = Place::new();
    let tensors = mixed_tensors();
    let file = safetensors(&tensors, 3);
    let path = place.write("m.safetensors", &file);
    let listing = answer(place.loader().arg("inspect").arg(&path).args(["--digest", "sha256", "--json"]));
    let rows = listing["tensors"].as_array().expect("tensors");
    assert_eq!(rows.len(), tensors.len());
    for row in rows {
        let spec = tensors.iter().find(|tensor| row["name"] == tensor.name).expect("a tensor we wrote");
        let offset = usize::try_from(row["offset"].as_u64().expect("offset")).expect("offset");
        assert_eq!(row["dtype"], spec.dtype);
        assert_eq!(row["bytes"], spec.bytes.len());
        assert_eq!(&file[offset..offset + spec.bytes.len()], spec.bytes);
        let hex: String =
            sha2::Sha256::digest(&spec.bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(row["digest"], hex);
        assert_eq!(row["file"], path.to_str().expect("path"));
    }
    let listing = answer(place.loader().arg("inspect").arg(&path).args(["--digest", "xxh3", "--json"]));
    for row in listing["tensors"].as_array().expect("tensors") {
        let spec = tensors.iter().find(|tensor| row["name"] == tensor.name).expect("a tensor we wrote");
        assert_eq!(row["digest"], format!("{:032x}", xxhash_rust::xxh3::xxh3_128(&spec.bytes)));
    }
    let plain = answer(place.loader().arg("inspect").arg(&path).arg("--json"));
    assert!(plain["tensors"][0].get("digest").is_none());
    let groups = answer(place.loader().arg("inspect").arg(&path).args(["--groups", "--json"]));
    assert!(groups["groups"].as_array().is_some_and(|groups| groups.len() >= 7), "{groups}");
}

#[test]
fn benchmarks_report_rates() {
    let place = Place::new();
    let file = safetensors(&mixed_tensors(), 0);
    let path = place.write("m.safetensors", &file);
    for mode in MODES {
        let answer = answer(place.loader().args(["bench", "read"]).arg(&path).args(["--io", mode, "--json"]));
        assert_eq!(answer["bytes"], file.len(), "{mode}");
        assert!(answer["gb_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{answer}");
    }
    let link =
        answer(place.loader().args(["bench", "link", "--backend", "native", "--time-ms", "20", "--json"]));
    let sizes = link["sizes"].as_array().expect("sizes");
    assert!(
        sizes.len() >= 5 && sizes.iter().all(|size| size["gb_per_s"].as_f64().is_some_and(|rate| rate > 0.0)),
        "{link}"
    );
    assert!(link["gb_per_s"].as_f64().is_some_and(|rate| rate > 0.0));
    let missing = place.path("missing");
    let mut command = place.loader();
    command.args(["bench", "read"]).arg(missing);
    assert_eq!(failure(command, 2).0, "not_found");
}
