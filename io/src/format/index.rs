//! Models of several files: a shard index says which file holds which tensor, or the files' names say they belong
//! together.

use std::collections::{HashMap, HashSet};
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
    let weight_map = parse(&text).map_err(|e| e.in_file(index_path))?;
    for (tensor, shard) in &weight_map {
        check_name(tensor, shard).map_err(|e| e.in_file(index_path))?;
    }
    let mut shards: Vec<&str> =
        weight_map.iter().map(|(_, shard)| shard.as_ref()).collect::<HashSet<_>>().into_iter().collect();
    shards.sort_unstable();
    let folder = index_path.parent().unwrap_or(Path::new(""));
    let paths: Vec<PathBuf> = shards.iter().map(|shard| folder.join(shard)).collect();
    let mut found = open_files(&paths, ErrorKind::MissingShard, options)?;
    let assigned: HashMap<&str, &str> =
        weight_map.iter().map(|(name, shard)| (name.as_ref(), shard.as_ref())).collect();
    let mut kept = 0;
    for (shard, parsed) in shards.iter().zip(&mut found.parsed) {
        parsed.retain(|tensor| assigned.get(tensor.name.as_str()) == Some(shard));
        kept += parsed.len();
    }
    if kept < assigned.len() {
        return Err(missing_tensor(&weight_map, &shards, &found.parsed, &paths));
    }
    Ok(found.into_model(root))
}

/// The first promise that is not kept, by shard and by name.
fn missing_tensor(
    promised: &[Assigned<'_>],
    shards: &[&str],
    held: &[Vec<Tensor>],
    paths: &[PathBuf],
) -> Error {
    let names = |file: usize| held[file].iter().map(|tensor| tensor.name.as_str()).collect::<HashSet<_>>();
    let absent = shards.iter().enumerate().find_map(|(file, shard)| {
        let held = names(file);
        let of_shard = promised.iter().filter(|(_, of)| of == shard).map(|(name, _)| name.as_ref());
        Some((file, of_shard.filter(|name| !held.contains(name)).min()?))
    });
    let (file, name) = absent.unwrap_or((0, ""));
    let shard = shards.get(file).copied().unwrap_or_default();
    let message =
        format!("the index promises tensor {} in {}, which does not hold it", quoted(name), quoted(shard));
    Error::new(ErrorKind::MissingTensor, message).in_file(&paths[file])
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
