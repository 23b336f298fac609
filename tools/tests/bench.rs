//! The benchmarks run on the native device and answer what they promise.

#![allow(clippy::expect_used)] // helpers of tests are tests

mod common;

use common::{Place, answer, failure, safetensors, tensor};
use serde_json::Value;

fn model(place: &Place, name: &str, tensors: usize) -> String {
    let tensors: Vec<_> = (0..tensors)
        .map(|at| tensor(&format!("model.layers.{}.w{}.weight", at / 2, at % 2), "F16", &[64, 800], 102_400))
        .collect();
    place.write(name, &safetensors(&tensors, 3)).to_str().expect("UTF-8").to_owned()
}

fn bench(place: &Place, arguments: &[&str]) -> Value {
    let mut command = place.loader();
    command.arg("bench").args(arguments).args(["--backend", "native", "--runs", "1", "--json"]);
    answer(&mut command)
}

fn positive(answer: &Value, keys: &[&str]) {
    for key in keys {
        let value = key.split('.').fold(answer, |value, key| &value[key]);
        assert!(value.as_f64().is_some_and(|number| number > 0.0), "{key}: {answer}");
    }
}

#[test]
fn a_load_is_compared_with_its_parts() {
    let place = Place::new();
    let path = model(&place, "m.safetensors", 8);
    let answer = bench(&place, &["load", &path, "--check", "--chunk-bytes", "64KiB", "--threads", "2"]);
    assert_eq!((answer["bytes"].as_u64(), answer["tensors"].as_u64()), (Some(819_200), Some(8)));
    assert_eq!((answer["chunk_bytes"].as_u64(), answer["threads"].as_u64()), (Some(65_536), Some(2)));
    positive(&answer, &["gb_per_s", "stream_gb_per_s", "ceilings.ratio", "ceilings.link_gb_per_s"]);
    positive(&answer, &["first_layer.milliseconds", "cpu_seconds_per_10_gb"]);
    assert_eq!(answer["first_layer"]["bytes"], 204_800);
    let quick = bench(&place, &["load", &path, "--quick"]);
    assert!(quick["ceilings"].is_null() && quick["first_layer"].is_null(), "{quick}");
}

#[test]
fn small_chunks_are_compared_by_method() {
    let place = Place::new();
    let answer = bench(&place, &["small", "--tier-bytes", "32MiB"]);
    let sizes = answer["sizes"].as_array().unwrap();
    assert_eq!(sizes.len(), 6, "{answer}");
    for size in sizes {
        positive(size, &["gb_per_s", "single_gb_per_s", "ratio", "eight_us", "alone_us"]);
    }
    let mut command = place.loader();
    command.args(["bench", "small", "--backend", "native", "--tier-bytes", "1MiB"]);
    assert_eq!(failure(command, 2).0, "usage");
}

#[test]
fn slots_are_filled_beside_a_kernel() {
    let place = Place::new();
    let answer = bench(&place, &["overlap", "--slot-bytes", "256KiB", "--steps", "6"]);
    positive(&answer, &["wall_ratio", "balance", "compute_ratio", "copy_gb_per_s"]);
    assert!(answer["slots"].as_u64().is_some_and(|slots| slots >= 4), "{answer}");
}

#[test]
fn ranks_take_their_slices_and_a_model_makes_room_for_another() {
    let place = Place::new();
    let (one, other) = (model(&place, "a.safetensors", 8), model(&place, "b.safetensors", 5));
    let slices = bench(&place, &["slices", &one, "--ranks", "8", "--check"]);
    assert_eq!((slices["column"]["slices"].as_u64(), slices["row"]["slices"].as_u64()), (Some(8), Some(64)));
    assert_eq!(
        (slices["column"]["bytes"].as_u64(), slices["row"]["bytes"].as_u64()),
        (Some(102_400), Some(819_200))
    );
    assert_eq!(slices["row"]["cut"], 64, "{slices}");
    positive(&slices, &["whole_gb_per_s", "column.ratio", "row.ratio"]);
    let switch = bench(&place, &["switch", &one, &other]);
    assert_eq!(switch["bytes"], 512_000);
    positive(&switch, &["seconds", "allowed_seconds", "memory_seconds"]);
}
