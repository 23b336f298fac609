//! Models of several files: a shard index says which file holds which tensor, or the files' names say they belong
//! together.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::index_json::{self, Assigned};
use super::{safetensors, sniff};
use crate::error::quoted;
use crate::file::WeightFile;
use crate::model::Metadata;
use crate::{Error, ErrorKind, Format, Model, OpenOptions, Result, Tensor};

/// Opens the model that an index describes. Only tensors that the index assigns to a file are taken from it.
///
/// # Errors
/// The index's own errors, and those of its files; each names the file it concerns.
pub(super) fn open(index_path: &Path, root: &Path, options: &OpenOptions) -> Result<Model> {
    let text = read(index_path, options).map_err(|e| e.in_file(index_path))?;
    let mut weight_map = parse(&text).map_err(|e| e.in_file(index_path))?;
    for (tensor, shard) in &weight_map {
        check_name(tensor, shard).map_err(|e| e.in_file(index_path))?;
    }
    // By shard, then by name: sorted once, nothing is copied or hashed.
    weight_map.sort_unstable_by(|(tensor_a, a), (tensor_b, b)| (a, tensor_a).cmp(&(b, tensor_b)));
    let shards: Vec<&[Assigned<'_>]> = weight_map.chunk_by(|(_, a), (_, b)| a == b).collect();
    let folder = index_path.parent().unwrap_or(Path::new(""));
    let paths: Vec<PathBuf> = shards.iter().map(|shard| folder.join(shard[0].1.as_ref())).collect();
    let mut found = open_files(&paths, ErrorKind::MissingShard, options)?;
    for (file, (wanted, parsed)) in shards.iter().zip(&mut found.parsed).enumerate() {
        let place = |name: &str| wanted.binary_search_by(|(tensor, _)| tensor.as_ref().cmp(name)).ok();
        parsed.retain(|t| place(&t.name).is_some());
        if parsed.len() < wanted.len() {
            let mut held = vec![false; wanted.len()];
            parsed.iter().filter_map(|t| place(&t.name)).for_each(|at| held[at] = true);
            let absent = held.iter().position(|held| !held).unwrap_or(0);
            let message = format!(
                "the index promises tensor {} in {}, which does not hold it",
                quoted(&wanted[absent].0),
                quoted(&wanted[absent].1)
            );
            return Err(Error::new(ErrorKind::MissingTensor, message).in_file(&paths[file]));
        }
    }
    Ok(found.into_model(root))
}

/// Opens files that together are one model.
///
/// # Errors
/// The files' errors, and `duplicate_tensor` when two hold a tensor of the same name.
pub(super) fn open_set(paths: &[PathBuf], root: &Path, options: &OpenOptions) -> Result<Model> {
    let found = open_files(paths, ErrorKind::NotFound, options)?;
    let mut owner: HashMap<&str, usize> = HashMap::new();
    // Inside one file names were found to differ.
    let several = found.parsed.iter().enumerate().filter(|_| found.parsed.len() > 1);
    for (file, tensor) in several.flat_map(|(i, ts)| ts.iter().map(move |t| (i, t))) {
        if let Some(first) = owner.insert(&tensor.name, file) {
            let message = format!(
                "tensor {} is also in '{}', and no index says which is meant",
                quoted(&tensor.name),
                paths[first].display()
            );
            return Err(Error::new(ErrorKind::DuplicateTensor, message).in_file(&paths[file]));
        }
    }
    drop(owner);
    Ok(found.into_model(root))
}

struct Opened {
    files: Vec<Arc<WeightFile>>,
    parsed: Vec<Vec<Tensor>>,
    metadata: Vec<(String, String)>,
}

impl Opened {
    fn into_model(self, root: &Path) -> Model {
        let tensors = self.parsed.into_iter().flatten().collect();
        Model::new(
            Format::Safetensors,
            root.to_path_buf(),
            self.files,
            tensors,
            Metadata::Text(self.metadata),
        )
    }
}

/// Opens and parses every file; one that does not exist is an error of kind `absent`.
fn open_files(paths: &[PathBuf], absent: ErrorKind, options: &OpenOptions) -> Result<Opened> {
    let mut opened = Opened { files: Vec::new(), parsed: Vec::new(), metadata: Vec::new() };
    for (i, path) in paths.iter().enumerate() {
        let file = WeightFile::open(path).map_err(|e| match e.kind() {
            ErrorKind::NotFound => e.with_kind(absent),
            _ => e,
        })?;
        let number = u32::try_from(i).map_err(|_| Error::new(ErrorKind::TooLarge, "more than 2^32 files"))?;
        let parsed = safetensors::parse(&file, number, options)?;
        opened.files.push(Arc::new(file));
        opened.parsed.push(parsed.tensors);
        if opened.metadata.is_empty() {
            opened.metadata = parsed.metadata;
        }
    }
    Ok(opened)
}

fn read(path: &Path, options: &OpenOptions) -> Result<Vec<u8>> {
    let file = WeightFile::open(path)?;
    let size = file.len_bytes();
    if size > options.index_bytes_max {
        let message = format!("the index has {size} bytes, the limit is {}", options.index_bytes_max);
        return Err(Error::new(ErrorKind::IndexInvalid, message));
    }
    let mut text = vec![0; usize::try_from(size).unwrap_or(0)];
    file.read_exact_at(&mut text, 0)?;
    Ok(text)
}

fn parse(text: &[u8]) -> Result<Vec<Assigned<'_>>> {
    if let Some(pointer) = sniff::recognise(text).filter(|e| e.kind() == ErrorKind::LfsPointer) {
        return Err(pointer);
    }
    let weight_map = index_json::read_index(text)?;
    if weight_map.is_empty() {
        return Err(Error::new(ErrorKind::IndexInvalid, "'weight_map' is empty"));
    }
    Ok(weight_map)
}

/// Judges a file name by its text alone, before anything is opened: links that a user made may lead anywhere, the
/// text of an index may not.
fn check_name(tensor: &str, name: &str) -> Result<()> {
    let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    let inside = name.split('/').all(plain)
        && !name.starts_with('~')
        && !name.contains(['\\', '\0'])
        && name.as_bytes().get(1) != Some(&b':');
    if inside {
        return Ok(());
    }
    let message = format!(
        "tensor {} is assigned to {}, expected the plain name of a file in the model's folder",
        quoted(tensor),
        quoted(name)
    );
    Err(Error::new(ErrorKind::PathEscape, message))
}
