//! Weight formats: from a path to the tensors' names, types and extents.
//!
//! One format is one file here; [`open_model`] chooses. All arithmetic on numbers from a file is checked, and memory
//! is bounded by what the file really holds.

mod dtype;
mod folder;
mod gguf;
mod header;
mod hub;
mod index;
mod index_json;
mod json;
mod safetensors;
mod sniff;

use std::path::{Path, PathBuf};

pub use dtype::Dtype;
pub use gguf::{Array as GgufArray, ByteOrder, GgmlType, GgufInfo, Value as GgufValue};
pub use header::SafetensorsHeader;

use crate::file::WeightFile;
use crate::{Model, OpenOptions, Result};

/// Opens a model: a weight file, the first file of a split one, a shard index (`*.json`), a folder with weights, or a
/// snapshot or repository folder of a Hugging Face cache. What is no path but looks like `org/name` or
/// `org/name@revision` is looked up in that cache, offline. Every file is opened and every header checked before this
/// returns; no weight is read.
///
/// # Errors
/// One of the kinds for files that are missing, malformed or not readable; the error names the file.
pub fn open_model(path: &Path, options: &OpenOptions) -> Result<Model> {
    if path.is_dir() {
        return folder::open(path, options);
    }
    if !path.exists()
        && let Some(snapshot) = hub::resolve(path, options.hub_cache.as_deref())
    {
        return folder::open(
            &snapshot.map_err(|e| if e.file().is_none() { e.in_file(path) } else { e })?,
            options,
        );
    }
    let extension = path.extension().map(|e| e.to_ascii_lowercase());
    match extension.as_ref().and_then(|e| e.to_str()) {
        Some("json") => index::open(path, path, options),
        Some("gguf") => gguf::open(path, path, options),
        Some("safetensors") => index::open_set(&[PathBuf::from(path)], path, options),
        // Such as a blob of a Hugging Face cache, whose name is a digest: the contents decide.
        _ if begins_like_gguf(path) => gguf::open(path, path, options),
        _ => index::open_set(&[PathBuf::from(path)], path, options),
    }
}

fn begins_like_gguf(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = WeightFile::open(path).and_then(|file| file.read_exact_at(&mut magic, 0));
    read.is_ok() && magic == sniff::GGUF_MAGIC
}
