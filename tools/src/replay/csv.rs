//! Comma-separated rows, one an expert: a header row names the columns.
//!
//! `step`, `layer` and `expert` are needed. `turn` or `prompt` tells prompts apart, `phase` decode (1, decode) from
//! prefill (0, prefill; left out). A preamble of `#` lines may say `n_expert=` and, a layer, `layer= expert_bytes=`:
//! the dumps of BigMoeOnEdge are of this form.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use spoc_cache::replay::Routing;

use super::build::{Builder, at_line};
use crate::failure::{Failure, Result};

/// A line longer than this is no row.
pub const LINE_MAX: usize = 1 << 20;

struct Columns {
    count: usize,
    prompt: Option<usize>,
    phase: Option<usize>,
    step: usize,
    layer: usize,
    expert: usize,
}

/// Reads the whole file.
///
/// # Errors
/// The line that is no row, by its number.
pub fn read(path: &Path) -> Result<Routing> {
    let mut builder = Builder::new(path);
    let mut columns = None;
    for_lines(path, |number, line| match (&columns, line.strip_prefix('#')) {
        (_, Some(comment)) => preamble(&mut builder, number, comment),
        (None, None) => {
            columns = Some(header(path, number, line)?);
            Ok(())
        }
        (Some(columns), None) => row(&mut builder, path, number, line, columns),
    })?;
    builder.finish()
}

/// Calls `with` for every line that is not empty, numbered from 1. Lines are bounded and UTF-8.
///
/// # Errors
/// Reading's, and what `with` says.
pub fn for_lines(path: &Path, mut with: impl FnMut(usize, &str) -> Result<()>) -> Result<()> {
    let file = File::open(path).map_err(|error| Failure::io(path, "opening", &error))?;
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let mut bytes = Vec::new();
    for number in 1.. {
        bytes.clear();
        loop {
            let part = reader.fill_buf().map_err(|error| Failure::io(path, "reading", &error))?;
            let end = part.iter().position(|&byte| byte == b'\n');
            let taken = end.map_or(part.len(), |end| end + 1);
            bytes.extend(&part[..taken]);
            reader.consume(taken);
            if bytes.len() > LINE_MAX {
                return Err(at_line(path, number, format_args!("longer than {LINE_MAX} bytes")));
            }
            if end.is_some() || taken == 0 {
                break;
            }
        }
        if bytes.is_empty() {
            break;
        }
        let line = std::str::from_utf8(&bytes).map_err(|_| at_line(path, number, "not UTF-8"))?.trim();
        if !line.is_empty() {
            with(number, line)?;
        }
    }
    Ok(())
}

/// Words `name=number` of a comment, if they are those that matter.
fn preamble(builder: &mut Builder<'_>, number: usize, comment: &str) -> Result<()> {
    let mut layer = None;
    for (name, value) in comment.split_whitespace().filter_map(|word| word.split_once('=')) {
        let Ok(value) = value.parse::<u64>() else { continue };
        match (name, layer) {
            ("n_expert", _) => builder.experts = Some(builder.expert_count(number, value)?),
            ("layer", _) => layer = Some(builder.layer(number, value)?),
            ("expert_bytes", Some(layer)) => {
                builder.expert_bytes.insert(layer, value);
            }
            _ => {}
        }
    }
    Ok(())
}

fn header(path: &Path, number: usize, line: &str) -> Result<Columns> {
    let names: Vec<&str> = line.split(',').map(str::trim).collect();
    let find = |name: &str| names.iter().position(|&found| found == name);
    let need = |name: &str| {
        find(name).ok_or_else(|| at_line(path, number, format_args!("the header names no column `{name}`")))
    };
    Ok(Columns {
        count: names.len(),
        prompt: find("turn").or_else(|| find("prompt")),
        phase: find("phase"),
        step: need("step")?,
        layer: need("layer")?,
        expert: need("expert")?,
    })
}

fn row(builder: &mut Builder<'_>, path: &Path, number: usize, line: &str, columns: &Columns) -> Result<()> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    if fields.len() != columns.count {
        let what = format_args!("{} fields where the header names {}: cut off?", fields.len(), columns.count);
        return Err(at_line(path, number, what));
    }
    let value = |column: usize, name: &str| {
        fields[column].parse::<u64>().map_err(|_| {
            at_line(path, number, format_args!("{name} is {:?}: a whole number is expected", fields[column]))
        })
    };
    if columns.phase.is_some_and(|column| matches!(fields[column], "0" | "prefill")) {
        return Ok(());
    }
    let prompt = columns.prompt.map_or(Ok(0), |column| value(column, "turn"))?;
    let step = value(columns.step, "step")?;
    let (layer, expert) = (value(columns.layer, "layer")?, value(columns.expert, "expert")?);
    builder.row(number, (prompt, step), layer, [expert])
}
