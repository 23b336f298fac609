//! Which files of a folder are the model.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{gguf, hub, index};
use crate::{Error, ErrorKind, Model, OpenOptions, Result};

const INDEX_SUFFIX: &str = ".safetensors.index.json";
const PREFERRED_INDEX: &str = "model.safetensors.index.json";
const WEIGHTS_SUFFIX: &str = ".safetensors";
const GGUF_SUFFIX: &str = ".gguf";

/// Opens the model in a folder: the one its index describes, else its only file, else its only set of shards. The
/// folder of a repository in a Hugging Face cache leads to the snapshot that `refs/main` names.
///
/// # Errors
/// `no_weights`, `ambiguous_weights`, `missing_shard`, and the errors of the files.
pub(super) fn open(folder: &Path, options: &OpenOptions) -> Result<Model> {
    let resolved =
        if folder.join("snapshots").is_dir() { hub::snapshot(folder, None)? } else { folder.to_path_buf() };
    let listing = Listing::read(&resolved).map_err(|e| in_folder(e, &resolved))?;
    if let Some(name) = listing.index().map_err(|e| in_folder(e, &resolved))? {
        return index::open(&resolved.join(name), &resolved, options);
    }
    if let Some(name) = listing.first_gguf().map_err(|e| in_folder(e, &resolved))? {
        return gguf::open(&resolved.join(name), &resolved, options);
    }
    let names = listing.weights().map_err(|e| in_folder(e, &resolved))?;
    let paths: Vec<PathBuf> = names.iter().map(|name| resolved.join(name)).collect();
    index::open_set(&paths, &resolved, options)
}

fn in_folder(error: Error, folder: &Path) -> Error {
    if error.file().is_some() { error } else { error.in_file(folder) }
}

/// The names in a folder that matter, hidden ones and folders left out.
#[derive(Default)]
struct Listing {
    indexes: Vec<String>,
    weights: Vec<String>,
    gguf: Vec<String>,
    other_weights: Option<String>,
}

impl Listing {
    fn read(folder: &Path) -> Result<Self> {
        let mut listing = Self::default();
        let entries = std::fs::read_dir(folder).map_err(|e| Error::from_os(e, "listing the folder"))?;
        for entry in entries {
            let entry = entry.map_err(|e| Error::from_os(e, "listing the folder"))?;
            // Weights with a name that is not text cannot be in an index either, nor be printed.
            let Ok(name) = entry.file_name().into_string() else { continue };
            if !name.starts_with('.') && !entry.path().is_dir() {
                listing.sort_in(name);
            }
        }
        listing.indexes.sort();
        listing.weights.sort();
        listing.gguf.sort();
        Ok(listing)
    }

    fn sort_in(&mut self, name: String) {
        if name.ends_with(INDEX_SUFFIX) {
            self.indexes.push(name);
        } else if name.ends_with(WEIGHTS_SUFFIX) {
            self.weights.push(name);
        } else if name.ends_with(GGUF_SUFFIX) {
            self.gguf.push(name);
        } else if [".bin", ".pt", ".pth", ".ckpt"].iter().any(|suffix| name.ends_with(suffix)) {
            self.other_weights = Some(name);
        }
    }

    fn index(&self) -> Result<Option<&str>> {
        match self.indexes.as_slice() {
            [] => Ok(None),
            [only] => Ok(Some(only)),
            several if several.iter().any(|name| name == PREFERRED_INDEX) => Ok(Some(PREFERRED_INDEX)),
            several => Err(ambiguous(several)),
        }
    }

    /// The GGUF file to open, when the folder holds one model in that format: its only file, or the first of a split
    /// one, whose own metadata then say what else belongs to it.
    fn first_gguf(&self) -> Result<Option<&str>> {
        let [first, others @ ..] = self.gguf.as_slice() else { return Ok(None) };
        if let Some(weights) = self.weights.first() {
            return Err(ambiguous(&[weights.clone(), first.clone()]));
        }
        let set = |name| ShardName::parse(name, GGUF_SUFFIX).map(|s| (s.stem, s.count));
        if others.is_empty() || others.iter().all(|other| set(other).is_some() && set(other) == set(first)) {
            return Ok(Some(first));
        }
        Err(ambiguous(&self.gguf))
    }

    fn weights(&self) -> Result<Vec<String>> {
        if self.weights.is_empty() {
            return Err(self.nothing());
        }
        if let [only] = self.weights.as_slice() {
            return match ShardName::parse(only, WEIGHTS_SUFFIX) {
                Some(shard) => shard.complete(&[shard.number]),
                None => Ok(vec![only.clone()]),
            };
        }
        let mut sets: BTreeMap<(&str, u32), Vec<u32>> = BTreeMap::new();
        for name in &self.weights {
            let Some(shard) = ShardName::parse(name, WEIGHTS_SUFFIX) else {
                return Err(ambiguous(&self.weights));
            };
            sets.entry((shard.stem, shard.count)).or_default().push(shard.number);
        }
        match (sets.len(), sets.pop_first()) {
            (1, Some(((stem, count), numbers))) => ShardName { stem, number: 0, count }.complete(&numbers),
            _ => Err(ambiguous(&self.weights)),
        }
    }

    fn nothing(&self) -> Error {
        let beside = match &self.other_weights {
            Some(name) => format!(", only '{name}', which is neither a safetensors nor a GGUF file"),
            None => String::new(),
        };
        Error::new(
            ErrorKind::NoWeights,
            format!("expected *.safetensors, an index or *.gguf, found none{beside}"),
        )
    }
}

fn ambiguous(names: &[String]) -> Error {
    const SHOWN: usize = 4;
    let mut list = names.iter().take(SHOWN).map(|n| format!("'{n}'")).collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN {
        list.push_str(", …");
    }
    let message = format!("expected one model, found {list}, and no index says which is meant");
    Error::new(ErrorKind::AmbiguousWeights, message)
}

/// `STEM-00002-of-00005.safetensors`.
struct ShardName<'a> {
    stem: &'a str,
    number: u32,
    count: u32,
}

impl<'a> ShardName<'a> {
    const DIGITS: usize = 5;

    fn parse(name: &'a str, suffix: &str) -> Option<Self> {
        let (rest, count) = name.strip_suffix(suffix)?.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let digits = |text: &str| text.len() == Self::DIGITS && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(number) || !digits(count) {
            return None;
        }
        Some(Self { stem, number: number.parse().ok()?, count: count.parse().ok()? })
    }

    /// All names of the set, if each of its numbers is there.
    fn complete(&self, numbers: &[u32]) -> Result<Vec<String>> {
        let name = |number: u32| format!("{}-{number:05}-of-{:05}{WEIGHTS_SUFFIX}", self.stem, self.count);
        if let Some(number) = (1..=self.count).find(|n| !numbers.contains(n)) {
            let message = format!("shard '{}' is missing", name(number));
            return Err(Error::new(ErrorKind::MissingShard, message));
        }
        if let Some(number) = numbers.iter().find(|n| !(1..=self.count).contains(n)) {
            return Err(ambiguous(&[name(1), name(*number)]));
        }
        Ok((1..=self.count).map(name).collect())
    }
}
