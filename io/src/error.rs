//! What can go wrong with a weight file, as a kind to match and one line to read.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What went wrong. [`ErrorKind::as_str`] is stable: it is the `kind` of machine-readable output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The file is shorter than its length prefix.
    HeaderTooSmall,
    /// The header claims more bytes than [`crate::OpenOptions::header_bytes_max`].
    HeaderTooLarge,
    /// The header is not what its format prescribes.
    InvalidHeader,
    /// The file ends before the bytes it promises.
    Truncated,
    /// Bytes follow the last tensor.
    TrailingData,
    /// Bytes between two tensors belong to neither.
    Hole,
    /// Two tensors claim the same bytes.
    Overlap,
    /// An extent that ends before it begins.
    InvalidOffsets,
    /// An extent that no file can hold, or outside the file.
    OffsetOutOfBounds,
    /// The number of bytes of a shape does not fit 64 bits.
    ShapeOverflow,
    /// The extent's length is not that of shape × dtype.
    ShapeMismatch,
    /// A sub-byte tensor that does not end on a byte.
    SubbyteMisaligned,
    /// An element type this library does not know.
    BadDtype,
    /// A metadata value of a type the format does not have.
    BadValueType,
    /// Rows that are not whole blocks of their quantised type.
    BlockMisaligned,
    /// More dimensions than the format allows.
    TooManyDims,
    /// Values nested deeper than this library follows.
    NestingTooDeep,
    /// A number of items that cannot fit the file.
    CountOutOfBounds,
    /// A length that cannot fit the file.
    LengthOutOfBounds,
    /// An alignment the format does not allow, or an offset that breaks it.
    AlignmentInvalid,
    /// A version of the format that is not read.
    UnsupportedVersion,
    /// Weights whose bytes are in the other order than the machine's.
    UnsupportedEndianness,
    /// The parts of a split model do not belong together.
    SplitMismatch,
    /// A part of a split model that is not its first.
    SplitNotFirst,
    /// Text that is not UTF-8.
    BadUtf8,
    /// The same key twice in one object.
    DuplicateKey,
    /// The same tensor in two files that are both part of the model.
    DuplicateTensor,
    /// The file is of another format than its place or name says.
    BadMagic,
    /// A Git LFS pointer in place of the file.
    LfsPointer,
    /// A format that is recognised and not supported.
    UnsupportedFormat,
    /// The shard index is not what it must be.
    IndexInvalid,
    /// A shard of the model does not exist.
    MissingShard,
    /// A tensor that the index promises is not in its shard.
    MissingTensor,
    /// A name in an index that leads out of the model's folder.
    PathEscape,
    /// Several models in one folder, and nothing that says which is meant.
    AmbiguousWeights,
    /// A folder without weights.
    NoWeights,
    /// A folder, FIFO, socket or device where a file must be.
    NotARegularFile,
    /// No such file.
    NotFound,
    /// The operating system refused or failed a call.
    IoError,
    /// The process or the system is out of file descriptors.
    TooManyOpenFiles,
    /// The file changed after it was opened.
    Changed,
    /// The request was cancelled, or its reader went away.
    Cancelled,
    /// The staging region cannot hold what the plan or the options need.
    StagingTooSmall,
    /// The reader's queue of requests is full.
    QueueFull,
    /// More reads, pieces or bytes than a limit allows.
    TooLarge,
    /// A value that a caller passed is out of its range.
    InvalidArgument,
    /// The reader was used in a process forked from the one that started it.
    Forked,
    /// A read did not end within [`crate::ReaderOptions::read_deadline`].
    ReadTimeout,
    /// Bytes differ from what a manifest, or the name of a blob, says they are.
    DigestMismatch,
    /// There is nothing to compare a model with.
    NoManifest,
    /// The manifest is not what its format prescribes.
    InvalidManifest,
    /// The manifest is of another model, or of another state of it.
    ManifestMismatch,
    /// The placement map is not what its format prescribes, or says something that no load can do.
    InvalidMap,
}

impl ErrorKind {
    /// Stable name in snake case.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::HeaderTooSmall => "header_too_small",
            Self::HeaderTooLarge => "header_too_large",
            Self::InvalidHeader => "invalid_header",
            Self::Truncated => "truncated",
            Self::TrailingData => "trailing_data",
            Self::Hole => "hole",
            Self::Overlap => "overlap",
            Self::InvalidOffsets => "invalid_offsets",
            Self::OffsetOutOfBounds => "offset_out_of_bounds",
            Self::ShapeOverflow => "shape_overflow",
            Self::ShapeMismatch => "shape_mismatch",
            Self::SubbyteMisaligned => "subbyte_misaligned",
            Self::BadDtype => "bad_dtype",
            Self::BadValueType => "bad_value_type",
            Self::BlockMisaligned => "block_misaligned",
            Self::TooManyDims => "too_many_dims",
            Self::NestingTooDeep => "nesting_too_deep",
            Self::CountOutOfBounds => "count_out_of_bounds",
            Self::LengthOutOfBounds => "length_out_of_bounds",
            Self::AlignmentInvalid => "alignment_invalid",
            Self::UnsupportedVersion => "unsupported_version",
            Self::UnsupportedEndianness => "unsupported_endianness",
            Self::SplitMismatch => "split_mismatch",
            Self::SplitNotFirst => "split_not_first",
            Self::BadUtf8 => "bad_utf8",
            Self::DuplicateKey => "duplicate_key",
            Self::DuplicateTensor => "duplicate_tensor",
            Self::BadMagic => "bad_magic",
            Self::LfsPointer => "lfs_pointer",
            Self::UnsupportedFormat => "unsupported_format",
            Self::IndexInvalid => "index_invalid",
            Self::MissingShard => "missing_shard",
            Self::MissingTensor => "missing_tensor",
            Self::PathEscape => "path_escape",
            Self::AmbiguousWeights => "ambiguous_weights",
            Self::NoWeights => "no_weights",
            Self::NotARegularFile => "not_a_regular_file",
            Self::NotFound => "not_found",
            Self::IoError => "io_error",
            Self::TooManyOpenFiles => "too_many_open_files",
            Self::Changed => "changed",
            Self::Cancelled => "cancelled",
            Self::StagingTooSmall => "staging_too_small",
            Self::QueueFull => "queue_full",
            Self::TooLarge => "too_large",
            Self::InvalidArgument => "invalid_argument",
            Self::Forked => "forked",
            Self::ReadTimeout => "read_timeout",
            Self::DigestMismatch => "digest_mismatch",
            Self::NoManifest => "no_manifest",
            Self::InvalidManifest => "invalid_manifest",
            Self::ManifestMismatch => "manifest_mismatch",
            Self::InvalidMap => "invalid_map",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error: what it is, where it is, what was expected and what was found.
///
/// Its `Display` is one line, whatever names and bytes the file holds.
#[derive(Clone, Debug)]
pub struct Error {
    inner: Box<Inner>,
}

#[derive(Clone, Debug)]
struct Inner {
    kind: ErrorKind,
    file: Option<PathBuf>,
    offset: Option<u64>,
    message: String,
    source: Option<Arc<std::io::Error>>,
}

/// What this crate's fallible functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind`; `message` says what was expected and what was found.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            inner: Box::new(Inner { kind, file: None, offset: None, message: message.into(), source: None }),
        }
    }

    /// An error of the operating system while `doing` something. The kind follows from the error number.
    pub fn from_os(error: std::io::Error, doing: impl Into<String>) -> Self {
        let kind = match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => ErrorKind::NotFound,
            Some(libc::EMFILE | libc::ENFILE) => ErrorKind::TooManyOpenFiles,
            // Opening a socket, or a device node without a driver.
            Some(libc::ENXIO | libc::ENODEV) => ErrorKind::NotARegularFile,
            _ => ErrorKind::IoError,
        };
        let mut made = Self::new(kind, format!("{}: {error}", doing.into()));
        made.inner.source = Some(Arc::new(error));
        made
    }

    /// The same error, in this file.
    #[must_use]
    pub fn in_file(mut self, file: &Path) -> Self {
        self.inner.file = Some(file.to_path_buf());
        self
    }

    /// The same error, at this offset of the file, in bytes.
    #[must_use]
    pub fn at(mut self, offset: u64) -> Self {
        self.inner.offset = Some(offset);
        self
    }

    /// The same error under another kind: what an error means can depend on who asked.
    #[must_use]
    pub fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.inner.kind = kind;
        self
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// The file it concerns.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.inner.file.as_deref()
    }

    /// The place in the file, in bytes.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        self.inner.offset
    }

    /// What was expected and found, without file and place.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.inner.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.inner.file {
            one_line(f, &file.to_string_lossy())?;
            f.write_str(": ")?;
        }
        write!(f, "{}: ", self.inner.kind)?;
        if let Some(offset) = self.inner.offset {
            write!(f, "at byte {offset}: ")?;
        }
        one_line(f, &self.inner.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.inner.source.as_deref().map(|e| e as &(dyn std::error::Error + 'static))
    }
}

/// Names come from files: a newline or an escape sequence in one must not break a log or a terminal.
fn one_line(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    for c in text.chars() {
        if c.is_control() {
            write!(f, "{}", c.escape_default())?;
        } else {
            fmt::Write::write_char(f, c)?;
        }
    }
    Ok(())
}

/// A name from a file as it appears in a message: quoted, and cut where it is absurdly long.
pub(crate) fn quoted(name: &str) -> String {
    const SHOWN_CHARS: usize = 200;
    match name.char_indices().nth(SHOWN_CHARS) {
        None => format!("'{name}'"),
        Some((cut, _)) => format!("'{}…' ({} bytes)", &name[..cut], name.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_is_one_line_that_names_file_kind_and_place() {
        let error = Error::new(ErrorKind::Truncated, "tensor 'a\nb' needs 8 bytes")
            .in_file(Path::new("/m/x\n.safetensors"))
            .at(72);
        assert_eq!(
            error.to_string(),
            "/m/x\\n.safetensors: truncated: at byte 72: tensor 'a\\nb' needs 8 bytes"
        );
    }

    #[test]
    fn os_errors_keep_their_category() {
        for (number, kind) in [
            (libc::ENOENT, ErrorKind::NotFound),
            (libc::EMFILE, ErrorKind::TooManyOpenFiles),
            (libc::ENXIO, ErrorKind::NotARegularFile),
            (libc::EACCES, ErrorKind::IoError),
            (libc::ELOOP, ErrorKind::IoError),
        ] {
            let error = Error::from_os(std::io::Error::from_raw_os_error(number), "opening");
            assert_eq!(error.kind(), kind, "{error}");
        }
    }

    #[test]
    fn long_names_are_cut() {
        assert!(quoted(&"x".repeat(10_000)).len() < 300);
    }
}
