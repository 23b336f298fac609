//! Digests of extents, read through the page cache in bounded memory.

use std::fmt;
use std::fmt::Write as _;
use std::str::FromStr;

use sha2::Digest as _;

use crate::file::WeightFile;
use crate::{Error, ErrorKind, Extent, Result};

/// Digest function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DigestKind {
    /// SHA-256.
    Sha256,
    /// XXH3 with 128 bits: fast, not cryptographic.
    Xxh3,
}

impl FromStr for DigestKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "sha256" => Ok(Self::Sha256),
            "xxh3" => Ok(Self::Xxh3),
            other => {
                let message = format!("expected sha256 or xxh3, found '{other}'");
                Err(Error::new(ErrorKind::InvalidArgument, message))
            }
        }
    }
}

impl fmt::Display for DigestKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sha256 => "sha256",
            Self::Xxh3 => "xxh3",
        })
    }
}

/// A digest in the making.
pub struct Digester(State);

enum State {
    Sha256(Box<sha2::Sha256>),
    Xxh3(Box<xxhash_rust::xxh3::Xxh3>),
}

impl Digester {
    /// Of no bytes yet.
    #[must_use]
    pub fn new(kind: DigestKind) -> Self {
        Self(match kind {
            DigestKind::Sha256 => State::Sha256(Box::default()),
            DigestKind::Xxh3 => State::Xxh3(Box::default()),
        })
    }

    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            State::Sha256(state) => state.update(bytes),
            State::Xxh3(state) => state.update(bytes),
        }
    }

    /// The digest in lower-case hexadecimal.
    #[must_use]
    pub fn finish(self) -> String {
        match self.0 {
            State::Sha256(state) => state.finalize().iter().fold(String::new(), |mut text, byte| {
                let _ = write!(text, "{byte:02x}");
                text
            }),
            State::Xxh3(state) => format!("{:032x}", state.digest128()),
        }
    }
}

/// Digest of an extent's bytes. Reads `extent.len_bytes` bytes, however sparse the file is: a caller that takes
/// extents from files it does not know sets a limit.
///
/// # Errors
/// `too_large` when the extent is longer than `limit_bytes`, `truncated`, `changed`, `io_error`.
pub fn digest_extent(
    file: &WeightFile,
    extent: Extent,
    kind: DigestKind,
    limit_bytes: u64,
) -> Result<String> {
    const STEP_BYTES: u64 = 1 << 20;
    if extent.len_bytes > limit_bytes {
        let message =
            format!("{} bytes are more than the {limit_bytes} that may be digested", extent.len_bytes);
        return Err(Error::new(ErrorKind::TooLarge, message).in_file(file.path()).at(extent.offset));
    }
    let mut digester = Digester::new(kind);
    let mut buffer = vec![0; usize::try_from(extent.len_bytes.min(STEP_BYTES)).unwrap_or(0)];
    let mut at = extent.offset;
    while at < extent.end() {
        let step = usize::try_from((extent.end() - at).min(STEP_BYTES)).unwrap_or(0);
        file.read_exact_at(&mut buffer[..step], at)?;
        digester.update(&buffer[..step]);
        at += step as u64;
    }
    file.check_unchanged()?;
    Ok(digester.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn known_digests() {
        let of = |kind| {
            let mut digester = Digester::new(kind);
            digester.update(b"a");
            digester.update(b"bc");
            digester.finish()
        };
        assert_eq!(
            of(DigestKind::Sha256),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(of(DigestKind::Xxh3), "06b05ab6733a618578af5f94892f3950");
    }

    #[test]
    fn an_extent_is_digested_in_steps_and_up_to_a_limit() {
        let bytes: Vec<u8> = (0..3u32 << 20).map(|i| i.to_le_bytes()[1]).collect();
        let mut temp = tempfile::NamedTempFile::new().unwrap();
        temp.write_all(&bytes).unwrap();
        let file = WeightFile::open(temp.path()).unwrap();
        let extent = Extent { file: 0, offset: 5, len_bytes: (3 << 20) - 9 };
        let mut whole = Digester::new(DigestKind::Sha256);
        whole.update(&bytes[5..bytes.len() - 4]);
        assert_eq!(digest_extent(&file, extent, DigestKind::Sha256, u64::MAX).unwrap(), whole.finish());
        let error = digest_extent(&file, extent, DigestKind::Xxh3, 1 << 20).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge);
    }
}
