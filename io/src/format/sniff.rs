//! Files that are not what their name says, told by their first bytes.

use crate::file::WeightFile;
use crate::{Error, ErrorKind};

/// Bytes that [`recognise`] wants to see, as far as the file has them.
pub(super) const PREFIX_BYTES: usize = 64;

pub(super) const GGUF_MAGIC: &[u8] = b"GGUF";

/// The error for a file that is recognisably something other than safetensors.
pub(super) fn recognise(prefix: &[u8]) -> Option<Error> {
    // A length prefix can begin with any bytes; what follows it cannot.
    if prefix.get(8) == Some(&b'{') {
        return None;
    }
    foreign(prefix, "a safetensors file")
}

/// The error for a file that does not begin as a GGUF file does.
pub(super) fn not_gguf(file: &WeightFile) -> Error {
    const EXPECTED: &str = "a GGUF file";
    let mut prefix = [0; PREFIX_BYTES];
    let length = usize::try_from(file.len_bytes()).unwrap_or(PREFIX_BYTES).min(PREFIX_BYTES);
    if let Err(error) = file.read_exact_at(&mut prefix[..length], 0) {
        return error;
    }
    let prefix = &prefix[..length];
    let found = match prefix.get(8) {
        Some(b'{') => "what looks like a safetensors file".to_owned(),
        _ => format!(
            "'{}'",
            prefix.iter().take(4).flat_map(|b| b.escape_ascii()).map(char::from).collect::<String>()
        ),
    };
    let unknown = || Error::new(ErrorKind::BadMagic, format!("expected {EXPECTED}, found {found}"));
    foreign(prefix, EXPECTED).unwrap_or_else(unknown)
}

/// The error for a file of some other kind that is known by its first bytes.
fn foreign(prefix: &[u8], expected: &str) -> Option<Error> {
    if prefix.starts_with(b"version https://git-lfs") {
        let advice = "this is a Git LFS pointer, not the weights: fetch them with `git lfs pull`";
        return Some(Error::new(ErrorKind::LfsPointer, advice));
    }
    let what = if prefix.starts_with(GGUF_MAGIC) {
        "a GGUF file"
    } else if prefix.starts_with(b"PK\x03\x04") {
        "a zip archive (such as a PyTorch checkpoint)"
    } else if matches!(prefix, [0x80, 2..=5, ..]) {
        "a Python pickle (such as an old PyTorch checkpoint)"
    } else if prefix.starts_with(b"\x89HDF\r\n") {
        "an HDF5 file"
    } else if prefix.starts_with(b"\x93NUMPY") {
        "a NumPy file"
    } else if prefix.starts_with(b"\x1f\x8b\x08") {
        "a gzip archive"
    } else if is_markup(prefix) {
        "an HTML or XML page (a failed download?)"
    } else if prefix.starts_with(b"{\"") || prefix.starts_with(b"{\n") {
        "JSON text (a failed download, or an index?)"
    } else {
        return None;
    };
    Some(Error::new(ErrorKind::BadMagic, format!("expected {expected}, found {what}")))
}

fn is_markup(prefix: &[u8]) -> bool {
    let text = prefix.strip_prefix(b"\xef\xbb\xbf").unwrap_or(prefix).trim_ascii_start();
    [&b"<!doctype"[..], b"<html", b"<?xml", b"<head"]
        .iter()
        .any(|tag| text.len() >= tag.len() && text[..tag.len()].eq_ignore_ascii_case(tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_files_are_named() {
        for (bytes, kind) in [
            (&b"version https://git-lfs.github.com/spec/v1\noid"[..], ErrorKind::LfsPointer),
            (b"GGUF\x03\0\0\0\0\0\0\0", ErrorKind::BadMagic),
            (b"PK\x03\x04\0\0\x08\x08\0\0", ErrorKind::BadMagic),
            (b"\x80\x02\x8a\x0a\x6c\xfc", ErrorKind::BadMagic),
            (b" \n<!DOCTYPE html><html>", ErrorKind::BadMagic),
            (b"{\"error\": \"not found\"}", ErrorKind::BadMagic),
        ] {
            assert_eq!(recognise(bytes).map(|e| e.kind()), Some(kind), "{bytes:?}");
        }
    }

    #[test]
    fn a_length_that_looks_like_a_magic_is_a_length() {
        assert!(recognise(b"{\"\0\0\0\0\0\0{\"a\":").is_none());
        assert!(recognise(b"\x80\x02\0\0\0\0\0\0{\"a\":").is_none());
        assert!(recognise(&[64, 0, 0, 0, 0, 0, 0, 0, b'{']).is_none());
    }
}
