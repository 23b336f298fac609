//! `load --devices`, `plan` and `bench multi`, on several native devices behind links of a rate.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Place, answer, failure, output, safetensors, stdout, tensor};
use std::path::PathBuf;
use std::process::Command;

/// A model of one layer with the usual names, BF16.
fn model(place: &Place) -> PathBuf {
    let tensors = [
        ("model.embed_tokens.weight", [1200, 512]),
        ("model.layers.0.self_attn.q_proj.weight", [1024, 512]),
        ("model.layers.0.self_attn.k_proj.weight", [256, 512]),
        ("model.layers.0.self_attn.v_proj.weight", [256, 512]),
        ("model.layers.0.self_attn.o_proj.weight", [512, 1024]),
        ("model.layers.0.mlp.down_proj.weight", [512, 2048]),
    ];
    let bytes = |shape: [u64; 2]| usize::try_from(shape[0] * shape[1] * 2).unwrap();
    let tensors = tensors.map(|(name, shape)| tensor(name, "BF16", &shape, bytes(shape)));
    place.write("m.safetensors", &safetensors(&tensors, 3))
}

fn with(place: &Place, args: &[&str], (name, value): (&str, &str)) -> Command {
    let mut command = place.loader();
    command.args(args).env(name, value);
    command
}

const DEVICES: (&str, &str) = ("SPOC_NATIVE_DEVICES", "3");

#[test]
fn a_load_onto_several_devices_is_checked_and_reads_once() {
    let place = Place::new();
    let path = model(&place);
    for (layout, devices) in [("whole", "all"), ("tp", "0,2"), ("tp-fused", "1,0")] {
        let mut command = place.loader();
        command.args([
            "load",
            "--backend",
            "native",
            "--layout",
            layout,
            "--devices",
            devices,
            "--check",
            "--json",
        ]);
        let report = answer(command.arg(&path).env(DEVICES.0, DEVICES.1));
        let rows = report["devices"].as_array().unwrap();
        assert_eq!(rows.len(), if devices == "all" { 3 } else { 2 });
        assert_eq!(report["check"]["bytes"], report["bytes"]);
        assert_eq!(rows.iter().map(|row| row["bytes"].as_u64().unwrap()).sum::<u64>(), report["bytes"]);
        let read = report["read_bytes"].as_u64().unwrap();
        assert!(read <= std::fs::metadata(&path).unwrap().len(), "{report}");
        assert!(rows.iter().all(|row| row["stages"]["copied_bytes"] == row["bytes"]), "{report}");
    }
    let text = stdout(&output(
        place
            .loader()
            .args(["load", "--backend", "native", "--devices", "0,1", "--layout", "tp"])
            .arg(&path)
            .env(DEVICES.0, DEVICES.1),
    ));
    assert!(text.contains("over 2 links") && text.contains("device   native 1"), "{text}");
}

#[test]
fn a_plan_says_what_moves_and_its_map_loads() {
    let place = Place::new();
    let path = model(&place);
    let map = place.path("map.json");
    let plan = |more: &[&str]| {
        let mut command = place.loader();
        command.args(["plan", "--json"]).arg(&path).args(more).env(DEVICES.0, DEVICES.1);
        answer(&mut command)
    };
    let report = plan(&["--layout", "tp-fused", "--ranks", "2", "--out", map.to_str().unwrap()]);
    let rows = report["devices"].as_array().unwrap();
    assert_eq!((rows.len(), &report["link_bytes"]), (2, &report["bytes"]));
    assert_eq!(rows[0]["link_bytes"], rows[0]["own_bytes"]);
    assert!(rows[0].get("fits").is_none());
    let whole = plan(&["--devices", "0,1,2", "--backend", "native"]);
    assert_eq!(whole["link_bytes"].as_u64().unwrap(), 3 * whole["bytes"].as_u64().unwrap());
    assert_eq!((&whole["devices"][2]["fits"], &whole["devices"][2]["own_bytes"]), (&true.into(), &0.into()));
    assert_eq!(whole["read_bytes"], report["read_bytes"]);
    let mut command = place.loader();
    command.args(["load", "--backend", "native", "--devices", "1,2", "--check", "--json", "--map"]);
    let loaded = answer(command.arg(&map).arg(&path).env(DEVICES.0, DEVICES.1));
    assert_eq!((&loaded["bytes"], &loaded["check"]["equal"]), (&report["link_bytes"], &true.into()));
    // It is not written over.
    let mut again = place.loader();
    again.args(["plan", "--ranks", "2", "--out"]).arg(&map).arg(&path);
    let (kind, _) = failure(again, 2);
    assert_eq!(kind, "io_error");
}

#[test]
fn what_cannot_be_placed_is_one_line() {
    let place = Place::new();
    let path = model(&place);
    let path = path.to_str().unwrap();
    let wrong = place.path("wrong.json");
    std::fs::write(&wrong, r#"{"spoc_placement":1,"targets":[{"name":"t","device":0,"bytes":8}],"entries":[{"tensor":"nothing","device":0,"target":"t","offset":0}]}"#).unwrap();
    let wrong = wrong.to_str().unwrap();
    for (args, kind, words) in [
        (&["plan", path][..], "usage", "--ranks"),
        (&["load", path, "--layout", "tp"], "usage", "need --devices"),
        (&["load", path, "--backend", "native", "--devices", "0;1"], "usage", "--devices 0;1"),
        (&["load", path, "--backend", "native", "--devices", "0,9"], "no_device", "9"),
        (&["load", path, "--backend", "native", "--devices", "0,0"], "no_device", "different devices"),
        (
            &["load", path, "--backend", "native", "--devices", "0", "--ranks", "2"],
            "usage",
            "--devices has 1",
        ),
        (&["plan", path, "--layout", "tp", "--ranks", "3"], "invalid_argument", "do not divide among 3"),
        (&["plan", path, "--map", wrong], "missing_tensor", "entry 0, tensor 'nothing'"),
    ] {
        let (found, message) = failure(with(&place, args, DEVICES), 2);
        assert!(found == kind && message.contains(words), "{args:?}: {found}: {message}");
    }
    let (kind, message) = failure(with(&place, &["load", path, "--devices", "0"], (DEVICES.0, "0")), 2);
    assert!(kind == "usage" && message.contains("1 to 64"), "{kind}: {message}");
}

#[test]
fn the_benchmark_compares_with_one_device_and_with_all_links() {
    let place = Place::new();
    let path = model(&place);
    let mut command = place.loader();
    command.args(["bench", "multi", "--backend", "native", "--devices", "0,1", "--layout", "tp"]);
    command.args(["--runs", "1", "--check", "--quick", "--staging-bytes", "1MiB", "--json"]).arg(&path);
    let report = answer(command.env(DEVICES.0, DEVICES.1).env("SPOC_NATIVE_LINK", "40MB"));
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    assert_eq!(number(&report["same"]["bytes"]), 2.0 * number(&report["one"]["bytes"]));
    assert_eq!(report["shares"]["bytes"], report["one"]["bytes"]);
    // Both links at once take as long as one; halves take half: with room for a busy machine.
    assert!(number(&report["same_over_one"]) < 1.7, "{report}");
    assert!(number(&report["shares_over_one"]) < 0.95, "{report}");
    assert!(report["links_together_gb_per_s"].is_null() && report["one"]["of_links"].is_null());
}
