//! `spoc-loader replay`: formats, broken traces, and the figures of recorded routing where it is at hand.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::cast_possible_truncation, clippy::print_stdout)]

mod common;

use std::io::Write;
use std::path::{Path, PathBuf};

use common::{Place, answer, failure};
use serde_json::Value;
use spoc_cache::policy::{PolicyKind, Scope};
use spoc_cache::replay::{Bypass, Events, Options, Outcome, Routing, belady, frozen_best, replay};
use spoc_tools::replay::{read_trace, slots_of};

/// 3 layers × 4 experts, 5 steps of two experts: 30 accesses. `cache/src/replay/tests.rs` works it by hand.
const STEPS: [[[u8; 2]; 3]; 5] = [
    [[0, 1], [0, 1], [2, 3]],
    [[0, 2], [0, 1], [2, 0]],
    [[0, 1], [2, 3], [2, 3]],
    [[0, 1], [0, 1], [2, 3]],
    [[3, 0], [0, 3], [1, 2]],
];

/// Calls `with` for every (step, layer, experts) of the toy.
fn rows(mut with: impl FnMut(usize, usize, [u8; 2])) {
    for (step, layers) in STEPS.into_iter().enumerate() {
        for (layer, experts) in layers.into_iter().enumerate() {
            with(step, layer, experts);
        }
    }
}

fn own_format() -> String {
    let mut text = "{\"spoc_trace\":1,\"experts\":4,\"expert_bytes\":[10,20,30]}\n".to_owned();
    rows(|step, layer, experts| {
        text += &format!("{{\"prompt\":0,\"step\":{step},\"layer\":{layer},\"experts\":{experts:?}}}\n");
    });
    text
}

fn csv() -> String {
    let mut text = "# n_layer=3 n_expert=4\n# layer=0 expert_bytes=10\n# layer=1 expert_bytes=20\n\
                    # layer=2 expert_bytes=30\nturn,phase,step,layer,slot,expert\n0,0,0,0,0,3\n"
        .to_owned();
    rows(|step, layer, experts| {
        for (slot, expert) in experts.into_iter().enumerate() {
            text += &format!("0,1,{},{layer},{slot},{expert}\n", step + 7);
        }
    });
    text
}

/// As an engine's dump: other names, a prompt that has a name, layers that begin behind a dense one, no first line.
fn dump() -> String {
    let mut text = String::new();
    rows(|step, layer, experts| {
        let layer = layer + 1;
        text += &format!(
            "{{\"request_id\":\"a-1\",\"token_idx\":{step},\"layer_id\":{layer},\"topk_ids\":[{experts:?}],\"w\":0.5}}\n"
        );
    });
    text
}

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packer.write_all(bytes).unwrap();
    packer.finish().unwrap()
}

fn packed(place: &Place, tokens: usize) -> PathBuf {
    let mut bytes = Vec::new();
    rows(|_, _, experts| bytes.extend(experts));
    let index = format!(
        r#"{{"layers":3,"experts":4,"top_k":2,"layout":"u8[token][layer][slot]","expert_bytes":[10,20,30],
        "traces":[{{"decode_tokens":{tokens},"offset":0}}]}}"#
    );
    place.write("toy.index.json", index.as_bytes());
    place.write("toy.u8.gz", &gz(&bytes))
}

#[test]
fn every_format_of_one_trace_gives_the_figures_worked_by_hand() {
    let place = Place::new();
    let paths = [
        place.write("toy.jsonl", own_format().as_bytes()),
        place.write("toy.csv", csv().as_bytes()),
        place.write("dump.jsonl", dump().as_bytes()),
        packed(&place, 5),
    ];
    for path in &paths {
        let told = answer(
            place
                .loader()
                .args(["replay", "--slots", "6", "--policy", "lru", "--scope", "layer", "--json"])
                .arg(path),
        );
        let count = |name: &str| told[name].as_u64().expect(name);
        assert_eq!((count("requested"), count("hits"), count("misses")), (30, 13, 17), "{told}");
        assert_eq!((count("cold_misses"), count("loads"), count("evictions")), (12, 17, 11), "{told}");
        assert_eq!(told["belady"]["hits"], 13);
        assert_eq!(told["belady_bypass"]["hits"], 17);
        if path != &paths[2] {
            assert_eq!(told["bytes_per_token"], 340.0 / 5.0, "{told}");
        }
    }
    let text = common::stdout(&common::output(
        place
            .loader()
            .args(["replay", "--capacity", "0.5", "--batch", "2", "--inserts-max", "1"])
            .arg(&paths[0]),
    ));
    assert!(text.contains("6 slots (50.0 % of all), 2 prompts at a time, at most 1 loads"), "{text}");
}

#[test]
fn a_broken_trace_is_told_with_its_place() {
    let place = Place::new();
    let refused = |name: &str, bytes: &[u8], said: &str| {
        let path = place.write(name, bytes);
        let mut command = place.loader();
        command.args(["replay", "--capacity", "0.5"]).arg(&path);
        let (kind, message) = failure(command, 2);
        assert_eq!(kind, "malformed_trace", "{message}");
        assert!(message.contains(name) && message.contains(said), "{message}");
    };
    let good = own_format();
    refused("a.jsonl", &good.as_bytes()[..good.len() - 20], "line 16: not JSON");
    let cut = good.lines().take(15).collect::<Vec<_>>().join("\n");
    refused("b.jsonl", cut.as_bytes(), "line 15: step 4 of prompt 0 ends here without layer 2");
    refused("c.jsonl", b"{\"spoc_trace\":2}", "line 1: trace of version 2");
    refused("d.jsonl", b"{\"step\":0,\"experts\":[1]}", "line 1: no field `layer`");
    refused("e.jsonl", b"{\"step\":0,\"layer\":-1,\"experts\":[1]}", "line 1: layer is -1");
    refused("f.jsonl", b"{\"step\":0,\"layer\":99999999,\"experts\":[1]}", "a layer below 4096");
    refused("g.jsonl", b"{\"step\":0,\"layer\":0,\"experts\":[4294967295]}", "expert 4294967295");
    refused("h.jsonl", b"[1,2]", "line 1: a JSON object");
    refused("i.jsonl", &[b'x', 0xff, b'\n'], "line 1: not UTF-8");
    refused("j.jsonl", &vec![b' '; (1 << 20) + 2], "line 1: longer than");
    refused("k.jsonl", b"", "no decoded token");
    refused("l.jsonl", b"{\"spoc_trace\":1,\"experts\":0}", "1 to 65536 experts");
    let rows = csv();
    refused("a.csv", &rows.as_bytes()[..rows.len() - 5], "fields where the header names 6");
    refused(
        "b.csv",
        rows.replace(",expert\n", ",exp\n").as_bytes(),
        "line 5: the header names no column `expert`",
    );
    refused("c.csv", format!("{rows}0,1,9,0,0,x\n").as_bytes(), "line 37: expert is \"x\"");
    refused("d.csv", format!("{rows}0,1,9,0,0,4\n").as_bytes(), "line 37: expert 4: one below 4");
    packed(&place, 6);
    refused("toy.u8.gz", &gz(&[0; 30]), "30 unpacked bytes where the index names 36");
    packed(&place, 5);
    refused("toy.u8.gz", &gz(&[7; 30]), "unpacked byte 0: expert 7");
    let whole = gz(&[1; 30]);
    refused("toy.u8.gz", &whole[..whole.len() / 2], "damaged after");
    refused("toy.index.json", b"{\"layers\":3}", "missing field");
    for index in [
        r#"{"layers":3,"experts":4,"top_k":2,"layout":"u16","traces":[]}"#,
        r#"{"layers":0,"experts":4,"top_k":2,"layout":"u8[token][layer][slot]","traces":[]}"#,
        r#"{"layers":3,"experts":4,"top_k":2,"layout":"u8[token][layer][slot]","traces":[{"decode_tokens":18446744073709551615,"offset":9}]}"#,
    ] {
        refused("toy.index.json", index.as_bytes(), "expected");
    }
    let mut command = place.loader();
    command.args(["replay", "--capacity", "2"]).arg(place.write("t.jsonl", good.as_bytes()));
    assert_eq!(failure(command, 2).0, "usage");
    let mut command = place.loader();
    command.args(["replay", "--slots", "2", "--scope", "layer"]).arg(place.path("t.jsonl"));
    let (kind, message) = failure(command, 2);
    assert!(kind == "usage" && message.contains("2 slots are too few"), "{message}");
}

#[test]
fn a_capacity_of_everything_misses_only_first_uses() {
    let place = Place::new();
    let path = place.write("toy.jsonl", own_format().as_bytes());
    for policy in PolicyKind::ALL {
        let told: Value = answer(
            place
                .loader()
                .args(["replay", "--capacity", "1", "--policy", policy.as_str(), "--json"])
                .arg(&path),
        );
        assert_eq!((told["misses"].as_u64(), told["evictions"].as_u64()), (Some(12), Some(0)), "{policy}");
    }
}

fn traces() -> Option<PathBuf> {
    let folder = std::env::var_os("SPOC_TRACES").map(PathBuf::from);
    if folder.is_none() {
        println!("not run: SPOC_TRACES names no folder of traces");
    }
    folder
}

fn trace(folder: &Path, name: &str) -> Routing {
    read_trace(&folder.join(name)).expect("a trace of the folder")
}

fn played(
    events: &Events,
    part: f64,
    policy: PolicyKind,
    scope: Scope,
    inserts_max: Option<usize>,
) -> Outcome {
    let slots = slots_of(part, events.item_count());
    let options = Options { slots, policy, scope, inserts_max, weigh_bytes: false };
    replay(events, &options).expect("can be replayed")
}

fn percent(outcome: &Outcome) -> f64 {
    100.0 * outcome.hit_rate()
}

/// Published figures of an independent simulator, event-atomic like this one.
#[test]
fn recorded_routing_gives_the_figures_of_another_simulator() {
    let Some(folder) = traces() else { return };
    let (small, qwen) =
        (trace(&folder, "gptoss20b/select32.u8.gz"), trace(&folder, "bigmoeonedge/qwen.route.csv"));
    assert_eq!((small.tokens(), small.prompts.len(), qwen.tokens(), qwen.experts), (14_411, 32, 128, 128));
    let (one, four) = (small.events(1, 1), small.events(4, 1));
    let near = |found: f64, other: f64, what: &str| {
        assert!((found - other).abs() <= 0.2, "{what}: {found:.2}, {other}");
    };
    for (events, part, policy, other) in [
        (&one, 0.25, PolicyKind::Lru, 62.1),
        (&one, 0.25, PolicyKind::S3Fifo, 64.7),
        (&one, 0.25, PolicyKind::LfuDecay, 67.8),
        (&one, 0.25, PolicyKind::Cycle, 69.6),
        (&four, 0.25, PolicyKind::Lru, 1.6),
        (&four, 0.25, PolicyKind::Cycle, 48.1),
    ] {
        near(percent(&played(events, part, policy, Scope::Global, None)), other, policy.as_str());
    }
    let best = |bypass| percent(&belady(&one, 192, Scope::Global, bypass).expect("can be replayed"));
    near(best(Bypass::Never), 83.0, "belady");
    near(best(Bypass::Allowed), 83.2, "belady with bypass");
    let layer = belady(&qwen.events(1, 1), 768, Scope::Layer, Bypass::Allowed).expect("can be replayed");
    near(percent(&layer), 77.1, "belady per layer with bypass");
}

/// What the default policy must reach.
#[test]
fn recorded_routing_reaches_its_floors_with_the_default_policy() {
    let Some(folder) = traces() else { return };
    let (small, qwen) =
        (trace(&folder, "gptoss20b/select32.u8.gz"), trace(&folder, "bigmoeonedge/qwen.route.csv"));
    let policy = PolicyKind::default();
    for (routing, batch, tokens, part, scope, floor) in [
        (&small, 1, 1, 0.25, Scope::Global, 69.4),
        (&small, 4, 1, 0.25, Scope::Global, 48.0),
        (&small, 8, 1, 0.25, Scope::Global, 39.1),
        (&small, 1, 4, 0.25, Scope::Global, 57.8),
        (&qwen, 1, 1, 0.125, Scope::Global, 62.8),
        (&qwen, 1, 4, 0.125, Scope::Global, 51.0),
        (&qwen, 1, 1, 0.125, Scope::Layer, 64.5),
    ] {
        let events = routing.events(batch, tokens);
        let found = percent(&played(&events, part, policy, scope, None));
        println!("batch {batch}, {tokens} tokens, {part}, {scope:?}: {found:.2} (at least {floor})");
        assert!(found >= floor, "batch {batch}, {tokens} tokens an event: {found:.2} < {floor}");
    }
    // Above what any frozen set reaches, with knowledge of the future, one prompt at a time.
    let one = small.events(1, 1);
    for part in [0.156, 0.25, 0.406] {
        let frozen = percent(&frozen_best(&one, slots_of(part, one.item_count())));
        assert!(percent(&played(&one, part, policy, Scope::Global, None)) > frozen, "{part}");
    }
}

#[test]
fn one_load_a_layer_costs_few_points() {
    let Some(folder) = traces() else { return };
    let events = trace(&folder, "bigmoeonedge/qwen.route.csv").events(1, 1);
    let run = |most| played(&events, 0.125, PolicyKind::default(), Scope::Global, most);
    let (all, capped) = (run(None), run(Some(1)));
    let lost = percent(&all) - percent(&capped);
    println!("{:.1} MB a token for {lost:.2} points", capped.bytes_per_token() / 1e6);
    assert!(capped.bytes_per_token() <= 119e6);
    // Four points below the floor of loading every miss; the default policy itself is higher there.
    assert!(percent(&capped) >= 62.8 - 4.0, "{:.2}", percent(&capped));
}

#[test]
fn a_trace_is_run_for_real_and_hits_what_was_foretold() {
    let place = Place::new();
    let trace = place.write("toy.jsonl", own_format().as_bytes());
    for (policy, slots, ahead) in [("lru", "4", "0"), ("forecast", "6", "0"), ("lru", "6", "2")] {
        let mut command = place.loader();
        command.args(["replay", "--json", "--policy", policy, "--slots", slots, "--ahead", ahead]);
        command.args(["--device", "--backend", "native", "--expert-bytes", "40K", "--staging-bytes", "1M"]);
        let replayed = answer(command.arg(&trace));
        let real = &replayed["device"];
        assert_eq!(real["backend"], "native");
        assert_eq!((&real["events"], &real["hits"]), (&replayed["events"], &replayed["hits"]), "{replayed}");
        assert_eq!((&real["misses"], &real["loads"]), (&replayed["misses"], &replayed["loads"]));
        // Rows of 16 KiB, three of them an expert; 30 wanted.
        assert_eq!((&real["rows_checked"], &real["expert_bytes_max"]), (&90.into(), &(48 << 10).into()));
        assert_eq!(real["loaded_bytes"], real["loads"].as_u64().unwrap() * (48 << 10));
        assert!(real["wall_ratio"].as_f64().unwrap() > 0.0 && real["all_hit_ratio"].as_f64().unwrap() > 0.0);
    }
    // The folder with the experts is gone again.
    let left: Vec<_> = std::fs::read_dir(place.path("")).expect("the folder").flatten().collect();
    assert!(left.iter().all(|entry| !entry.file_name().to_string_lossy().starts_with("spoc-")), "{left:?}");
    // A set that no pool of one slot holds.
    let mut command = place.loader();
    command.args(["replay", "--slots", "1", "--device", "--backend", "native", "--expert-bytes", "16K"]);
    command.arg(&trace);
    assert_eq!(failure(command, 2).0, "too_wide");
}

#[test]
fn a_replay_can_be_shorter_than_its_trace() {
    let place = Place::new();
    let trace = place.write("toy.jsonl", own_format().as_bytes());
    let replayed =
        answer(place.loader().args(["replay", "--json", "--slots", "6", "--tokens-max", "2"]).arg(&trace));
    assert_eq!(
        (&replayed["tokens"], &replayed["events"], &replayed["device"]),
        (&2.into(), &6.into(), &Value::Null)
    );
}
