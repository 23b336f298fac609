//! Split GGUF models: `NAME-00001-of-00003.gguf` and its siblings. The metadata decide what belongs together; the
//! names only say where to look.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::header::Header;
use crate::error::quoted;
use crate::file::WeightFile;
use crate::{Error, ErrorKind, OpenOptions, Result};

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

/// Opens the other files of the model when its first file says that there are some, and checks that they belong
/// together. A file without split metadata is whole, whatever its name looks like.
pub(super) fn complete(
    first: &Path,
    parts: &mut Vec<(WeightFile, Header)>,
    options: &OpenOptions,
) -> Result<()> {
    let Some((_, header)) = parts.first() else { return Ok(()) };
    let count = number(header, COUNT).map_err(|e| e.in_file(first))?.unwrap_or(1);
    if count <= 1 {
        return Ok(());
    }
    let own = number(header, NUMBER).map_err(|e| e.in_file(first))?.unwrap_or(0);
    if own != 0 {
        let message = format!("this is part {} of {count}, open the first part", own.saturating_add(1));
        return Err(Error::new(ErrorKind::SplitNotFirst, message).in_file(first));
    }
    for index in 1..count {
        let path = sibling(first, index, count)?;
        let file = WeightFile::open(&path).map_err(|e| match e.kind() {
            ErrorKind::NotFound => missing(&path, index, count),
            _ => e,
        })?;
        let header = Header::read(&file, options.header_bytes_max)?;
        check(&header, index, count).map_err(|e| e.in_file(&path))?;
        parts.push((file, header));
    }
    check_tensors(first, parts)
}

fn number(header: &Header, key: &str) -> Result<Option<u64>> {
    let Some(value) = header.value(key) else { return Ok(None) };
    let number = value.as_u64().filter(|n| *n <= u64::from(u16::MAX) || key == TENSORS);
    match number {
        Some(number) => Ok(Some(number)),
        None => {
            Err(Error::new(ErrorKind::SplitMismatch, format!("'{key}' must be an integer from 0 to 65535")))
        }
    }
}

/// Where part `index` (from 0) lies, going by the name of the first.
fn sibling(first: &Path, index: u64, count: u64) -> Result<PathBuf> {
    let own = format!("-00001-of-{count:05}.gguf");
    let stem = first.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_suffix(&own));
    match stem {
        Some(stem) => Ok(first.with_file_name(format!("{stem}-{:05}-of-{count:05}.gguf", index + 1))),
        None => {
            let message = format!(
                "the file is part 1 of {count}; expected a name that ends in '{own}', to find the others"
            );
            Err(Error::new(ErrorKind::MissingShard, message).in_file(first))
        }
    }
}

fn missing(path: &Path, index: u64, count: u64) -> Error {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let message = format!("part {} of {count} is missing: {}", index + 1, quoted(&name));
    Error::new(ErrorKind::MissingShard, message).in_file(path)
}

fn check(header: &Header, index: u64, count: u64) -> Result<()> {
    let (own, total) = (number(header, NUMBER)?, number(header, COUNT)?);
    if own == Some(index) && total == Some(count) {
        return Ok(());
    }
    let shown = |value: Option<u64>| value.map_or("nothing".to_owned(), |v| v.to_string());
    let message = format!(
        "expected '{NUMBER}' {index} and '{COUNT}' {count}, found {} and {}",
        shown(own),
        shown(total)
    );
    Err(Error::new(ErrorKind::SplitMismatch, message))
}

fn check_tensors(first: &Path, parts: &[(WeightFile, Header)]) -> Result<()> {
    let mut seen = HashSet::new();
    for (file, header) in parts {
        if let Some(twice) = header.tensors.iter().find(|t| !seen.insert(t.name.as_str())) {
            let message = format!("tensor {} is in an earlier part too", quoted(&twice.name));
            return Err(Error::new(ErrorKind::DuplicateTensor, message).in_file(file.path()));
        }
        if header.order != parts[0].1.order {
            let message = "the parts differ in byte order";
            return Err(Error::new(ErrorKind::SplitMismatch, message).in_file(file.path()));
        }
    }
    let promised = number(&parts[0].1, TENSORS).map_err(|e| e.in_file(first))?;
    match promised.filter(|promised| *promised != seen.len() as u64) {
        Some(promised) => {
            let message = format!("'{TENSORS}' is {promised}, the parts hold {}", seen.len());
            Err(Error::new(ErrorKind::SplitMismatch, message).in_file(first))
        }
        None => Ok(()),
    }
}
