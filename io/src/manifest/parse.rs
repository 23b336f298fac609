//! From the text of a manifest to its parts. Memory is a few times the text's length, whatever the text says.

use std::borrow::Cow;

use serde::Deserialize;

use super::{BLOCK_BYTES, Manifest, ManifestFile, ManifestTensor, VERSION, blocks};
use crate::digest::{Digest, DigestKind, decode_hex};
use crate::error::quoted;
use crate::{Error, ErrorKind, Result};

/// Read first: a later version may have anything else.
#[derive(Deserialize)]
struct Head {
    spoc_manifest: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text<'a> {
    #[allow(dead_code, reason = "read as the head's")]
    spoc_manifest: u64,
    #[serde(borrow)]
    made_by: Cow<'a, str>,
    #[serde(borrow)]
    digest: Cow<'a, str>,
    block_bytes: u64,
    #[serde(borrow)]
    format: Cow<'a, str>,
    #[serde(borrow)]
    files: Vec<File<'a>>,
    #[serde(borrow)]
    tensors: Vec<Tensor<'a>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    bytes: u64,
    header_bytes: u64,
    #[serde(borrow)]
    header: Cow<'a, str>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tensor<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    dtype: Cow<'a, str>,
    shape: Vec<u64>,
    file: u32,
    offset: u64,
    bytes: u64,
    #[serde(borrow)]
    digest: Cow<'a, str>,
    #[serde(borrow, default)]
    blocks: Cow<'a, str>,
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidManifest, message)
}

fn from_json(error: &serde_json::Error) -> Error {
    let kind = if error.is_eof() { ErrorKind::Truncated } else { ErrorKind::InvalidManifest };
    Error::new(kind, format!("expected the JSON of a manifest: {error}"))
}

impl Manifest {
    /// Takes a manifest's text apart, and checks all that it says about itself.
    ///
    /// # Errors
    /// `invalid_manifest`, `truncated` where the text ends too early, `unsupported_version`.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let head: Head = serde_json::from_slice(bytes).map_err(|e| from_json(&e))?;
        if head.spoc_manifest != VERSION {
            let message = format!("expected a manifest of version {VERSION}, found {}", head.spoc_manifest);
            return Err(Error::new(ErrorKind::UnsupportedVersion, message));
        }
        let text: Text<'_> = serde_json::from_slice(bytes).map_err(|e| from_json(&e))?;
        let kind = text.digest.parse::<DigestKind>().map_err(|e| invalid(e.message()))?;
        let block_bytes = text.block_bytes;
        if !BLOCK_BYTES.contains(&block_bytes) || !block_bytes.is_power_of_two() {
            let message =
                format!("expected blocks of a power of two from 64 KiB to 64 MiB, found {block_bytes} bytes");
            return Err(invalid(message));
        }
        tracing::debug!(made_by = %text.made_by, "a manifest");
        let mut files = Vec::with_capacity(text.files.len());
        for file in text.files {
            files.push(taken_file(file, kind)?);
        }
        let mut tensors = Vec::with_capacity(text.tensors.len());
        for tensor in text.tensors {
            tensors.push(taken_tensor(tensor, kind, block_bytes)?);
        }
        Ok(Self { digest: kind, block_bytes, format: text.format.into_owned(), files, tensors })
    }
}

fn digest(kind: DigestKind, hex: &str, of: impl FnOnce() -> String) -> Result<Digest> {
    Digest::from_hex(kind, hex).ok_or_else(|| {
        let digits = 2 * kind.len_bytes();
        invalid(format!(
            "{}: expected a {kind} digest of {digits} lower-case digits, found {}",
            of(),
            quoted(hex)
        ))
    })
}

fn taken_file(file: File<'_>, kind: DigestKind) -> Result<ManifestFile> {
    let header = digest(kind, &file.header, || format!("the header of file {}", quoted(&file.name)))?;
    Ok(ManifestFile {
        name: file.name.into_owned(),
        len_bytes: file.bytes,
        header_bytes: file.header_bytes,
        header,
    })
}

fn taken_tensor(tensor: Tensor<'_>, kind: DigestKind, block_bytes: u64) -> Result<ManifestTensor> {
    let named = || format!("tensor {}", quoted(&tensor.name));
    let whole = digest(kind, &tensor.digest, named)?;
    if tensor.offset.checked_add(tensor.bytes).is_none() {
        return Err(invalid(format!("{}: its end does not fit 64 bits", named())));
    }
    let count = blocks::block_count(tensor.offset, tensor.bytes, block_bytes);
    // Where the tensor is one block, its digest is the block's.
    let digits = if count <= 1 { 0 } else { count.saturating_mul(2 * kind.len_bytes() as u64) };
    let found = tensor.blocks.len();
    if found as u64 != digits {
        let message = format!("{}: expected {digits} digits for {count} blocks, found {found}", named());
        return Err(invalid(message));
    }
    let mut blocks = vec![0; found / 2];
    if decode_hex(&tensor.blocks, &mut blocks).is_none() {
        return Err(invalid(format!("{}: expected lower-case hexadecimal digits for its blocks", named())));
    }
    Ok(ManifestTensor {
        name: tensor.name.into_owned(),
        dtype: tensor.dtype.into_owned(),
        shape: tensor.shape,
        file: tensor.file,
        offset: tensor.offset,
        len_bytes: tensor.bytes,
        digest: whole,
        blocks,
    })
}
