//! JSON lines: our own format, and dumps of engines that write one record a (step, layer).
//!
//! Ours begins with `{"spoc_trace":1,"experts":128,"expert_bytes":3059712}` (`expert_bytes` also as a list by layer).
//! A record names a layer and its experts; several records of one (prompt, step, layer) are joined. The names that
//! engines and their tools use are understood too, without a first line.

use std::path::Path;

use serde_json::{Map, Value};
use spoc_cache::replay::Routing;

use super::build::{Builder, at_line};
use super::csv::for_lines;
use crate::failure::Result;

/// The version that this program writes down in docs/traces.md.
const VERSION: u64 = 1;
const PROMPT: [&str; 5] = ["prompt", "request_id", "seq_id", "sequence", "turn"];
const STEP: [&str; 6] = ["step", "token", "token_idx", "token_index", "position", "pos"];
const LAYER: [&str; 4] = ["layer", "layer_id", "layer_idx", "layer_index"];
const EXPERTS: [&str; 5] = ["experts", "expert_ids", "topk_ids", "selected_experts", "topk_indices"];
const PHASE: [&str; 2] = ["phase", "stage"];

/// Reads the whole file.
///
/// # Errors
/// The line that is no record, by its number.
pub fn read(path: &Path) -> Result<Routing> {
    let mut builder = Builder::new(path);
    let mut names: Vec<String> = Vec::new();
    for_lines(path, |number, line| {
        let value: Value = serde_json::from_str(line)
            .map_err(|error| at_line(path, number, format_args!("not JSON: {error}")))?;
        let Value::Object(record) = value else {
            return Err(at_line(path, number, "a JSON object is expected"));
        };
        if record.contains_key("spoc_trace") {
            return head(&mut builder, path, number, &record);
        }
        if field(&record, &PHASE).is_some_and(|phase| phase == "prefill" || phase == 0) {
            return Ok(());
        }
        let prompt = match field(&record, &PROMPT) {
            None => 0,
            Some(Value::String(name)) => named(&mut names, name),
            Some(value) => whole(path, number, PROMPT[0], value)?,
        };
        let step =
            need(path, number, &record, &STEP).and_then(|value| whole(path, number, STEP[0], value))?;
        let layer =
            need(path, number, &record, &LAYER).and_then(|value| whole(path, number, LAYER[0], value))?;
        let mut experts = Vec::new();
        flatten(path, number, need(path, number, &record, &EXPERTS)?, &mut experts)?;
        builder.row(number, (prompt, step), layer, experts)
    })?;
    builder.finish()
}

fn head(builder: &mut Builder<'_>, path: &Path, number: usize, record: &Map<String, Value>) -> Result<()> {
    let version = whole(path, number, "spoc_trace", &record["spoc_trace"])?;
    if version != VERSION {
        let what = format_args!("trace of version {version}: this program reads version {VERSION}");
        return Err(at_line(path, number, what));
    }
    if let Some(experts) = record.get("experts") {
        builder.experts = Some(builder.expert_count(number, whole(path, number, "experts", experts)?)?);
    }
    match record.get("expert_bytes") {
        None => {}
        Some(Value::Array(list)) => {
            for (bytes, layer) in list.iter().zip(0u64..) {
                let layer = builder.layer(number, layer)?;
                builder.expert_bytes.insert(layer, whole(path, number, "expert_bytes", bytes)?);
            }
        }
        Some(bytes) => {
            let bytes = whole(path, number, "expert_bytes", bytes)?;
            builder.expert_bytes.extend((0..4096).map(|layer| (layer, bytes)));
        }
    }
    Ok(())
}

/// Numbers for prompts that have names, in the order in which they appear.
fn named(names: &mut Vec<String>, name: &str) -> u64 {
    let known = names.iter().rposition(|known| known == name);
    known.unwrap_or_else(|| {
        names.push(name.to_owned());
        names.len() - 1
    }) as u64
}

fn field<'a>(record: &'a Map<String, Value>, names: &[&str]) -> Option<&'a Value> {
    names.iter().find_map(|&name| record.get(name))
}

fn need<'a>(path: &Path, number: usize, record: &'a Map<String, Value>, names: &[&str]) -> Result<&'a Value> {
    field(record, names)
        .ok_or_else(|| at_line(path, number, format_args!("no field `{}`", names.join("` or `"))))
}

fn whole(path: &Path, number: usize, name: &str, value: &Value) -> Result<u64> {
    value
        .as_u64()
        .ok_or_else(|| at_line(path, number, format_args!("{name} is {value}: a whole number is expected")))
}

/// Experts as a list, or as lists of the tokens of a step.
fn flatten(path: &Path, number: usize, value: &Value, into: &mut Vec<u64>) -> Result<()> {
    match value {
        Value::Array(list) => list.iter().try_for_each(|value| flatten(path, number, value, into)),
        value => {
            into.push(whole(path, number, EXPERTS[0], value)?);
            Ok(())
        }
    }
}
