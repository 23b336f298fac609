//! `NAME.u8.gz` with `NAME.index.json`: one byte an expert, `u8[token][layer][slot]`, prompts back to back.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use serde::Deserialize;
use spoc_cache::replay::{Prompt, Routing};

use crate::failure::{Failure, Result};

/// More than this is no trace that one would replay.
const BYTES_MAX: u64 = 4 << 30;
const INDEX_MAX: u64 = 64 << 20;

#[derive(Deserialize)]
struct Index {
    layers: usize,
    experts: usize,
    top_k: usize,
    layout: String,
    #[serde(default)]
    expert_bytes: Vec<u64>,
    traces: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    decode_tokens: usize,
    offset: u64,
}

fn malformed(path: &Path, what: impl std::fmt::Display) -> Failure {
    Failure::new("malformed_trace", format_args!("{}: {what}", path.display())).at(path)
}

/// Both names from either.
fn names(path: &Path) -> (PathBuf, PathBuf) {
    let name = path.to_string_lossy();
    let stem = name.strip_suffix(".index.json").or_else(|| name.strip_suffix(".u8.gz")).unwrap_or(&name);
    (PathBuf::from(format!("{stem}.u8.gz")), PathBuf::from(format!("{stem}.index.json")))
}

/// Reads both files.
///
/// # Errors
/// An index that contradicts itself or the data; the offset of an expert that does not exist.
pub fn read(path: &Path) -> Result<Routing> {
    let (data_path, index_path) = names(path);
    let index = read_index(&index_path)?;
    let token_bytes = index.layers * index.top_k;
    let mut end = 0;
    for (entry, number) in index.traces.iter().zip(0..) {
        let bytes = (entry.decode_tokens as u64).checked_mul(token_bytes as u64);
        let past = bytes.and_then(|bytes| entry.offset.checked_add(bytes)).filter(|&past| past <= BYTES_MAX);
        let past = past.ok_or_else(|| {
            malformed(
                &index_path,
                format_args!("traces[{number}] ends beyond what is expected, {BYTES_MAX} bytes"),
            )
        })?;
        end = end.max(past);
    }
    let data = unpack(&data_path, end)?;
    let mut prompts = Vec::with_capacity(index.traces.len());
    for entry in &index.traces {
        // Both were compared with the data's end.
        #[allow(clippy::cast_possible_truncation)]
        let start = entry.offset as usize;
        prompts.push(prompt(&data_path, &index, &data, start, entry.decode_tokens)?);
    }
    Ok(Routing { layers: index.layers, experts: index.experts, expert_bytes: index.expert_bytes, prompts })
}

fn read_index(path: &Path) -> Result<Index> {
    let mut text = Vec::new();
    let file = File::open(path).map_err(|error| Failure::io(path, "opening", &error))?;
    file.take(INDEX_MAX).read_to_end(&mut text).map_err(|error| Failure::io(path, "reading", &error))?;
    let index: Index = serde_json::from_slice(&text).map_err(|error| malformed(path, error))?;
    if index.layout != "u8[token][layer][slot]" {
        return Err(malformed(
            path,
            format_args!("layout {:?}: u8[token][layer][slot] is expected", index.layout),
        ));
    }
    let sane = (1..=4096).contains(&index.layers)
        && (1..=256).contains(&index.experts)
        && (1..=index.experts).contains(&index.top_k);
    if !sane {
        let what = format_args!(
            "{} layers, {} experts, top {}: 1 to 4096, 1 to 256, and no more than the experts are expected",
            index.layers, index.experts, index.top_k
        );
        return Err(malformed(path, what));
    }
    if !index.expert_bytes.is_empty() && index.expert_bytes.len() != index.layers {
        let what = format_args!("{} expert_bytes for {} layers", index.expert_bytes.len(), index.layers);
        return Err(malformed(path, what));
    }
    Ok(index)
}

/// `end` bytes at least; what the index does not name is not unpacked.
fn unpack(path: &Path, end: u64) -> Result<Vec<u8>> {
    let file = File::open(path).map_err(|error| Failure::io(path, "opening", &error))?;
    let mut data = Vec::new();
    let unpacked = MultiGzDecoder::new(file).take(end).read_to_end(&mut data);
    if let Err(error) = unpacked {
        return Err(malformed(path, format_args!("damaged after {} unpacked bytes: {error}", data.len())));
    }
    if (data.len() as u64) < end {
        return Err(malformed(
            path,
            format_args!("{} unpacked bytes where the index names {end}: cut off?", data.len()),
        ));
    }
    Ok(data)
}

fn prompt(path: &Path, index: &Index, data: &[u8], start: usize, tokens: usize) -> Result<Prompt> {
    let mut prompt = Prompt::new(index.layers);
    let mut at = start;
    for _ in 0..tokens {
        for layer in 0..index.layers {
            let set = &data[at..at + index.top_k];
            if let Some(wrong) = set.iter().position(|&expert| usize::from(expert) >= index.experts) {
                let what = format_args!(
                    "unpacked byte {}: expert {}: one below {} is expected",
                    at + wrong,
                    set[wrong],
                    index.experts
                );
                return Err(malformed(path, what));
            }
            // At most 4096 · 256.
            #[allow(clippy::cast_possible_truncation)]
            prompt.push(set.iter().map(|&expert| (layer * index.experts) as u32 + u32::from(expert)));
            at += index.top_k;
        }
    }
    Ok(prompt)
}
