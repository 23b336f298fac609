//! Reads a header front to back, never further than the file or the cap, never allocating on a promise.

use std::fmt;

use crate::file::WeightFile;
use crate::{Error, ErrorKind, Result};

/// What one read brings in. A header of a few megabytes takes a handful of reads.
const WINDOW_BYTES: usize = 256 << 10;

/// A position in a file's header. Every length is compared with the bytes left before anything is allocated.
pub(super) struct Cursor<'a> {
    file: &'a WeightFile,
    /// Bytes from `window_start`, as far as they were read.
    window: Vec<u8>,
    window_start: u64,
    position: u64,
    /// The header may not reach beyond this: the file's end, or the cap.
    end: u64,
    header_bytes_max: u64,
    pub(super) order: ByteOrder,
}

/// Order of the bytes of a number in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteOrder {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

impl ByteOrder {
    /// This machine's.
    pub const NATIVE: Self = if cfg!(target_endian = "little") { Self::Little } else { Self::Big };
}

impl fmt::Display for ByteOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Little => "little-endian",
            Self::Big => "big-endian",
        })
    }
}

macro_rules! numbers {
    ($($name:ident $number:ty, $bytes:literal;)*) => {
        $(pub(super) fn $name(&mut self, what: &str) -> Result<$number> {
            let bytes = self.array::<$bytes>(what)?;
            Ok(match self.order {
                ByteOrder::Little => <$number>::from_le_bytes(bytes),
                ByteOrder::Big => <$number>::from_be_bytes(bytes),
            })
        })*
    };
}

impl<'a> Cursor<'a> {
    pub(super) fn new(file: &'a WeightFile, header_bytes_max: u64) -> Self {
        let end = file.len_bytes().min(header_bytes_max);
        Self {
            file,
            window: Vec::new(),
            window_start: 0,
            position: 0,
            end,
            header_bytes_max,
            order: ByteOrder::Little,
        }
    }

    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Bytes of the header that are still unread, at most.
    pub(super) fn left(&self) -> u64 {
        self.end - self.position
    }

    numbers! {
        u8 u8, 1; i8 i8, 1; u16 u16, 2; i16 i16, 2; u32 u32, 4; i32 i32, 4; u64 u64, 8; i64 i64, 8;
        f32 f32, 4; f64 f64, 8;
    }

    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, what)?;
        Ok(bytes)
    }

    /// A count from the file, checked before anything is allocated: that many items of at least `item_bytes` must fit
    /// what is left. A count that no header under the cap can keep is wrong (`kind`); one that some header could keep
    /// means that this file was cut.
    pub(super) fn fits(&self, count: u64, item_bytes: u64, kind: ErrorKind, what: &str) -> Result<usize> {
        let wanted = count.checked_mul(item_bytes).filter(|bytes| *bytes <= self.header_bytes_max);
        let Some(wanted) = wanted else {
            let left = self.left();
            let message =
                format!("{what}: {count} items of at least {item_bytes} bytes, {left} bytes are left");
            return Err(self.error(kind, message));
        };
        if wanted > self.left() {
            return Err(self.too_short(wanted, what));
        }
        usize::try_from(count)
            .map_err(|_| self.error(kind, format!("{what}: {count} items do not fit memory")))
    }

    /// A string: a 64-bit length and that many bytes.
    pub(super) fn bytes(&mut self, what: &str) -> Result<Vec<u8>> {
        let count = self.u64(what)?;
        let count = self.fits(count, 1, ErrorKind::LengthOutOfBounds, what)?;
        let mut bytes = vec![0; count];
        self.fill(&mut bytes, what)?;
        Ok(bytes)
    }

    /// A string that must be UTF-8.
    pub(super) fn text(&mut self, what: &str) -> Result<String> {
        let start = self.position;
        String::from_utf8(self.bytes(what)?).map_err(|error| {
            let shown = String::from_utf8_lossy(error.as_bytes()).chars().take(80).collect::<String>();
            let message = format!("{what} must be UTF-8, found '{shown}'");
            Error::new(ErrorKind::BadUtf8, message).at(start)
        })
    }

    pub(super) fn error(&self, kind: ErrorKind, message: impl Into<String>) -> Error {
        Error::new(kind, message).at(self.position)
    }

    fn fill(&mut self, target: &mut [u8], what: &str) -> Result<()> {
        let wanted = target.len() as u64;
        if wanted > self.left() {
            return Err(self.too_short(wanted, what));
        }
        let mut done = 0;
        while done < target.len() {
            let ready = self.ready()?;
            let take = ready.len().min(target.len() - done);
            target[done..done + take].copy_from_slice(&ready[..take]);
            done += take;
            self.position += take as u64;
        }
        Ok(())
    }

    fn too_short(&self, wanted: u64, what: &str) -> Error {
        let left = self.left();
        if self.end < self.file.len_bytes() {
            let message = format!("{what}: the header passes the cap of {} bytes", self.end);
            return self.error(ErrorKind::HeaderTooLarge, message);
        }
        self.error(ErrorKind::Truncated, format!("expected {wanted} bytes of {what}, {left} are left"))
    }

    /// The bytes at the position that are in memory; at least one, since the caller checked the end.
    fn ready(&mut self) -> Result<&[u8]> {
        let mut skip = usize::try_from(self.position - self.window_start).unwrap_or(usize::MAX);
        if skip >= self.window.len() {
            let length = usize::try_from(self.left()).unwrap_or(usize::MAX).min(WINDOW_BYTES);
            self.window.resize(length, 0);
            self.file.read_exact_at(&mut self.window, self.position)?;
            self.window_start = self.position;
            skip = 0;
        }
        Ok(&self.window[skip..])
    }
}
