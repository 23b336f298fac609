//! docs/errors.md names every kind there is, and docs/spoc-loader.md no field of an answer that is not there.

#![allow(clippy::expect_used)]

mod common;

use std::collections::BTreeSet;
use std::path::Path;

use common::{Place, answer, mixed_tensors, safetensors, stdout};
use serde_json::Value;

/// Kinds that the tools rename.
const RENAMED: [&str; 3] = ["no_such_device", "out_of_device_memory", "out_of_host_memory"];

#[test]
fn every_kind_of_every_room_is_documented() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect(path);
    let table = read("docs/errors.md");
    let mut kinds = 0;
    for room in ["io/src/error.rs", "driver/src/error.rs", "cache/src/error.rs"] {
        let source = read(room);
        let names = source
            .lines()
            .filter_map(|line| line.split_once("=> \"")?.1.split_once('"').map(|(name, _)| name));
        for name in names.filter(|name| !RENAMED.contains(name)) {
            assert!(table.contains(&format!("| `{name}` |")), "{room}: {name} is not in docs/errors.md");
            kinds += 1;
        }
    }
    assert!(kinds > 60, "only {kinds} kinds found: the sources are written in another way now");
}

/// The part of the page under this heading.
fn section(heading: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = std::fs::read_to_string(root.join("docs/spoc-loader.md")).expect("the page");
    let mut parts = page.split("\n## ");
    parts.find(|part| part.starts_with(heading)).expect(heading).to_owned()
}

/// Names of all fields, at any depth.
fn fields(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                names.insert(name.clone());
                fields(value, names);
            }
        }
        Value::Array(list) => list.iter().for_each(|value| fields(value, names)),
        _ => {}
    }
}

fn fields_of(answers: &[Value]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    answers.iter().for_each(|answer| fields(answer, &mut names));
    names
}

/// Words in code spans that look like fields: of lower-case letters and underscores, one at least.
fn spans(text: &str) -> BTreeSet<String> {
    let code = text.split('`').skip(1).step_by(2).filter(|span| span.contains('_'));
    code.filter(|span| span.bytes().all(|b| b == b'_' || b.is_ascii_lowercase())).map(str::to_owned).collect()
}

#[test]
fn fields_that_the_page_names_are_in_the_answers() {
    let place = Place::new();
    place.write("model/model.safetensors", &safetensors(&mixed_tensors(), 1));
    place.write("model/config.json", b"{}");
    let model = place.path("model");
    let run = |words: &[&str]| answer(place.loader().args(words).arg("--json").arg(&model));
    let manifest = run(&["manifest"]);
    let load = run(&["load", "--backend", "native", "--check", "--verify"]);
    let sliced = answer(place.loader().args(["load", "--backend", "interpreter", "--json"]).arg(&model));
    let kinds = |name: &str| name == "read_timeout" || name == "digest_mismatch";

    let there = fields_of(&[load, sliced]);
    let named = spans(&section("load\n"));
    let named: Vec<_> = named.iter().filter(|name| !kinds(name)).collect();
    assert!(named.len() >= 5, "{named:?}");
    assert!(named.iter().all(|name| there.contains(*name)), "{named:?}: {there:?}");

    let there = fields_of(&[manifest, run(&["verify"])]);
    let named = spans(&section("manifest, verify"));
    assert!(named.contains("not_covered"), "{named:?}");
    assert!(
        named.iter().filter(|name| !kinds(name)).all(|name| there.contains(name)),
        "{named:?}: {there:?}"
    );

    let text = section("inspect");
    let example = text.split('`').find(|span| span.starts_with("{\"tensors\"")).expect("the example");
    let named: BTreeSet<_> = example.split('"').skip(1).step_by(2).map(str::to_owned).collect();
    assert!(named.len() >= 9, "{named:?}");
    assert_eq!(fields_of(&[run(&["inspect", "--digest", "xxh3"])]), named);
}

#[test]
fn lines_of_a_load_are_those_of_the_page() {
    let place = Place::new();
    let path = place.write("m.safetensors", &safetensors(&mixed_tensors(), 1));
    let run =
        place.loader().args(["load", "--backend", "native", "--check"]).arg(path).output().expect("runs");
    let printed = stdout(&run);
    let first = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
    let shown: Vec<_> = section("load\n")
        .lines()
        .skip_while(|l| !l.starts_with("$ "))
        .skip(1)
        .take_while(|l| *l != "```")
        .map(first)
        .collect();
    assert_eq!(printed.lines().map(first).collect::<Vec<_>>(), shown, "{printed}");
}
