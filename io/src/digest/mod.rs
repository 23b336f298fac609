//! Digests of bytes: of a whole extent in order, or of one block at a time.

mod ordered;
mod value;

use std::fmt;
use std::str::FromStr;

use sha2::Digest as _;

pub use ordered::{InOrder, read_in_order};
pub use value::Digest;
pub(crate) use value::decode_hex;

use crate::file::WeightFile;
use crate::{Error, ErrorKind, Extent, Result};

/// Digest function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DigestKind {
    /// XXH3 with 128 bits: finds accidents; not cryptographic. About 10 GB/s a core.
    Xxh3,
    /// CRC-32C, 32 bits: finds accidents but one in four billion. About 13 GB/s a core.
    Crc32c,
    /// BLAKE3 with 256 bits: cryptographic. About 4.5 GB/s a core.
    Blake3,
    /// SHA-256: cryptographic; what the names of Hugging Face blobs are. About 1.8 GB/s a core.
    Sha256,
}

impl DigestKind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Xxh3, Self::Crc32c, Self::Blake3, Self::Sha256];

    /// Stable name, as in manifests and options.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Xxh3 => "xxh3",
            Self::Crc32c => "crc32c",
            Self::Blake3 => "blake3",
            Self::Sha256 => "sha256",
        }
    }

    /// Length of a digest in bytes.
    #[must_use]
    pub const fn len_bytes(self) -> usize {
        match self {
            Self::Xxh3 => 16,
            Self::Crc32c => 4,
            Self::Blake3 | Self::Sha256 => 32,
        }
    }

    /// The digest of these bytes. Takes no memory.
    #[must_use]
    pub fn of(self, bytes: &[u8]) -> Digest {
        match self {
            Self::Xxh3 => Digest::new(&xxhash_rust::xxh3::xxh3_128(bytes).to_be_bytes()),
            Self::Crc32c => Digest::new(&crc32c::crc32c(bytes).to_be_bytes()),
            Self::Blake3 => Digest::new(blake3::hash(bytes).as_bytes()),
            Self::Sha256 => Digest::new(&sha2::Sha256::digest(bytes)),
        }
    }
}

impl FromStr for DigestKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text).ok_or_else(|| {
            let message =
                format!("expected xxh3, crc32c, blake3 or sha256, found {}", crate::error::quoted(text));
            Error::new(ErrorKind::InvalidArgument, message)
        })
    }
}

impl fmt::Display for DigestKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A digest in the making, fed in order.
pub struct Digester(State);

enum State {
    Xxh3(Box<xxhash_rust::xxh3::Xxh3>),
    Crc32c(u32),
    Blake3(Box<blake3::Hasher>),
    Sha256(Box<sha2::Sha256>),
}

impl Digester {
    /// Of no bytes yet.
    #[must_use]
    pub fn new(kind: DigestKind) -> Self {
        Self(match kind {
            DigestKind::Xxh3 => State::Xxh3(Box::default()),
            DigestKind::Crc32c => State::Crc32c(0),
            DigestKind::Blake3 => State::Blake3(Box::default()),
            DigestKind::Sha256 => State::Sha256(Box::default()),
        })
    }

    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            State::Xxh3(state) => state.update(bytes),
            State::Crc32c(state) => *state = crc32c::crc32c_append(*state, bytes),
            State::Blake3(state) => {
                state.update(bytes);
            }
            State::Sha256(state) => state.update(bytes),
        }
    }

    /// The digest of what was taken.
    #[must_use]
    pub fn finish(self) -> Digest {
        match self.0 {
            State::Xxh3(state) => Digest::new(&state.digest128().to_be_bytes()),
            State::Crc32c(state) => Digest::new(&state.to_be_bytes()),
            State::Blake3(state) => Digest::new(state.finalize().as_bytes()),
            State::Sha256(state) => Digest::new(&state.finalize()),
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
) -> Result<Digest> {
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

    /// Published digests of "abc" and of nothing, each from its definition's own test vectors.
    const KNOWN: [(DigestKind, &str, &str); 4] = [
        (DigestKind::Xxh3, "06b05ab6733a618578af5f94892f3950", "99aa06d3014798d86001c324468d497f"),
        (DigestKind::Crc32c, "364b3fb7", "00000000"),
        (
            DigestKind::Blake3,
            "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85",
            "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
        ),
        (
            DigestKind::Sha256,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        ),
    ];

    #[test]
    fn known_digests_at_once_and_in_parts() {
        for (kind, abc, empty) in KNOWN {
            let mut digester = Digester::new(kind);
            digester.update(b"a");
            digester.update(b"bc");
            assert_eq!(digester.finish().to_string(), abc, "{kind}");
            assert_eq!(kind.of(b"abc").to_string(), abc);
            assert_eq!(kind.of(b"").to_string(), empty);
            assert_eq!(Digester::new(kind).finish().to_string(), empty);
            assert_eq!(kind.of(b"").bytes().len(), kind.len_bytes());
            assert_eq!(Digest::from_hex(kind, abc), Some(kind.of(b"abc")));
            assert_eq!(kind.as_str().parse::<DigestKind>().ok(), Some(kind));
        }
    }

    #[test]
    fn a_digest_is_read_from_lower_case_hexadecimal_of_its_length_alone() {
        for wrong in ["", "0", "364b3fb", "364B3FB7", "364b3fb7a", "364b3fbg", "é64b3fb7"] {
            assert_eq!(Digest::from_hex(DigestKind::Crc32c, wrong), None, "{wrong}");
        }
        assert!("md5".parse::<DigestKind>().is_err());
    }

    #[test]
    fn an_extent_is_digested_in_steps_and_up_to_a_limit() {
        let bytes: Vec<u8> = (0..3u32 << 20).map(|i| i.to_le_bytes()[1]).collect();
        let mut temp = tempfile::NamedTempFile::new().unwrap();
        temp.write_all(&bytes).unwrap();
        let file = WeightFile::open(temp.path()).unwrap();
        let extent = Extent { file: 0, offset: 5, len_bytes: (3 << 20) - 9 };
        for kind in DigestKind::ALL {
            let whole = kind.of(&bytes[5..bytes.len() - 4]);
            assert_eq!(digest_extent(&file, extent, kind, u64::MAX).unwrap(), whole);
        }
        let error = digest_extent(&file, extent, DigestKind::Xxh3, 1 << 20).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge);
    }
}
