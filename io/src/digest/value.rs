//! A digest as a value.

use std::fmt;

use super::DigestKind;

const LONGEST: usize = 32;

/// The value of a digest, up to 32 bytes. Its `Display` is lower-case hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest {
    bytes: [u8; LONGEST],
    len: u8,
}

impl Digest {
    pub(crate) fn new(value: &[u8]) -> Self {
        let mut bytes = [0; LONGEST];
        let len = value.len().min(LONGEST);
        bytes[..len].copy_from_slice(&value[..len]);
        Self { bytes, len: u8::try_from(len).unwrap_or(0) }
    }

    /// The digest of this kind that `hex` writes out in lower case; `None` if it is none.
    #[must_use]
    pub fn from_hex(kind: DigestKind, hex: &str) -> Option<Self> {
        let mut bytes = [0; LONGEST];
        let len = kind.len_bytes();
        decode_hex(hex, &mut bytes[..len])?;
        Some(Self { bytes, len: u8::try_from(len).ok()? })
    }

    /// Its bytes, most significant first.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Fills `target` from exactly twice as many lower-case hexadecimal digits.
pub(crate) fn decode_hex(hex: &str, target: &mut [u8]) -> Option<()> {
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    if hex.len() != 2 * target.len() {
        return None;
    }
    for (byte, pair) in target.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(())
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}
