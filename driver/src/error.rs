//! One error type for the room: a kind to match, what was being done, key/value context, a source.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::backend::BackendKind;

/// Result of every fallible call in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, to match on. [`ErrorKind::as_str`] names the kind for logs and metrics.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The backend (or this device of it) does not offer the feature. Never a silent no-op.
    #[error("{backend} does not support {feature}")]
    Unsupported {
        /// The backend that refused.
        backend: BackendKind,
        /// The refused feature, as named in [`crate::backend::Capabilities`].
        feature: &'static str,
    },
    /// A handle of another backend, or of another opening of the same backend, was passed.
    #[error("a handle of {found} was passed to {expected}")]
    ForeignHandle {
        /// The backend that was asked, with its generation.
        expected: crate::backend::BackendId,
        /// The owner of the handle, with its generation.
        found: crate::backend::BackendId,
    },
    /// A stream, event, segment or pinned range of another device was passed.
    #[error("an object of another device was passed")]
    WrongDevice,
    /// No device answers to the selector.
    #[error("no such device")]
    NoSuchDevice,
    /// A range leaves the memory it refers to (or its end overflows).
    #[error("{len_bytes} bytes at offset {offset_bytes} leave a range of {size_bytes} bytes")]
    OutOfBounds {
        /// First byte of the range.
        offset_bytes: u64,
        /// Length of the range in bytes.
        len_bytes: u64,
        /// Size of what it refers to, in bytes.
        size_bytes: u64,
    },
    /// An offset, length or address is not a multiple of what the device requires.
    #[error("{value} is not a multiple of {align}")]
    Misaligned {
        /// The offending offset, length or address.
        value: u64,
        /// The required alignment in bytes.
        align: u64,
    },
    /// More than a limit of the device, or of the type, allows.
    #[error("{need} exceeds the limit of {max}")]
    TooLarge {
        /// What was asked for (bytes or elements, as the context says).
        need: u64,
        /// The limit.
        max: u64,
    },
    /// A size of zero where something must be there.
    #[error("a size of zero")]
    ZeroSize,
    /// Source and destination overlap, or a range is already registered.
    #[error("ranges overlap")]
    Overlap,
    /// Refused while work that uses the object has not run. Retry after waiting for it.
    #[error("work in flight still uses it")]
    InFlight,
    /// The event was never recorded. On some APIs waiting for it is silently nothing: refused here.
    #[error("the event was never recorded")]
    NotRecorded,
    /// The pinned memory was released before.
    #[error("released before")]
    Released,
    /// The vector's newest copy is not where the operation needs it, or it has no such side.
    #[error("the vector is not where the operation needs it")]
    WrongLocation,
    /// Host memory can be a buffer on CPU devices alone, and this device is none.
    #[error("not a CPU device")]
    NotCpuDevice,
    /// The vector already has a buffer on the device.
    #[error("the vector has a buffer there already")]
    AlreadyAttached,
    /// A handle owns the range: only the handle may release it.
    #[error("a handle owns the range")]
    HandleOwned,
    /// The elements are of another kind than asked for.
    #[error("element kinds differ")]
    WrongKind,
    /// The device has not enough memory.
    #[error("out of device memory: need {need_bytes} bytes, have {have_bytes}")]
    OutOfDeviceMemory {
        /// Bytes asked for.
        need_bytes: u64,
        /// Bytes that were free.
        have_bytes: u64,
    },
    /// The host has not enough memory, or may not lock that much.
    #[error("out of host memory: need {need_bytes} bytes")]
    OutOfHostMemory {
        /// Bytes asked for.
        need_bytes: u64,
    },
    /// Work that was enqueued earlier failed. Sticky on its stream.
    #[error("enqueued work failed")]
    AsyncFailure,
    /// The device is gone: nothing enqueued on it touches host memory any more.
    #[error("the device is lost")]
    DeviceLost,
    /// The device is gone and took the process's use of the API with it: only a new process helps.
    #[error("the device is lost to this process")]
    ProcessLost,
    /// Refused while somebody records a stream into a graph: the call would spoil the recording.
    #[error("a stream is being captured")]
    Capturing,
    /// A descriptor, a foreign handle or another value passed in is not what it has to be.
    #[error("invalid argument")]
    InvalidArgument,
    /// The operating system refused; the source says why.
    #[error("the operating system refused")]
    Os,
    /// The backend's API refused for a reason of its own; the context carries its code.
    #[error("the backend's API failed")]
    Backend,
}

impl ErrorKind {
    /// Short stable name: `out_of_device_memory`, `foreign_handle`, …
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Unsupported { .. } => "unsupported",
            Self::ForeignHandle { .. } => "foreign_handle",
            Self::WrongDevice => "wrong_device",
            Self::NoSuchDevice => "no_such_device",
            Self::OutOfBounds { .. } => "out_of_bounds",
            Self::Misaligned { .. } => "misaligned",
            Self::TooLarge { .. } => "too_large",
            Self::ZeroSize => "zero_size",
            Self::Overlap => "overlap",
            Self::InFlight => "in_flight",
            Self::NotRecorded => "not_recorded",
            Self::Released => "released",
            Self::WrongLocation => "wrong_location",
            Self::NotCpuDevice => "not_cpu_device",
            Self::AlreadyAttached => "already_attached",
            Self::HandleOwned => "handle_owned",
            Self::WrongKind => "wrong_kind",
            Self::OutOfDeviceMemory { .. } => "out_of_device_memory",
            Self::OutOfHostMemory { .. } => "out_of_host_memory",
            Self::AsyncFailure => "async_failure",
            Self::DeviceLost => "device_lost",
            Self::ProcessLost => "process_lost",
            Self::Capturing => "capturing",
            Self::InvalidArgument => "invalid_argument",
            Self::Os => "os",
            Self::Backend => "backend",
        }
    }
}

/// An error of this room. Cheap to clone: asynchronous errors reach every waiter.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    doing: &'static str,
    context: Vec<(&'static str, Cow<'static, str>)>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `kind` met while `doing` something (a phrase such as "allocating a segment").
    #[must_use]
    pub fn new(kind: ErrorKind, doing: &'static str) -> Self {
        Self(Arc::new(Inner { kind, doing, context: Vec::new(), source: None }))
    }

    /// Shorthand for [`ErrorKind::Unsupported`].
    #[must_use]
    pub fn unsupported(backend: BackendKind, feature: &'static str) -> Self {
        Self::new(ErrorKind::Unsupported { backend, feature }, "asking for a feature")
    }

    /// The calling thread's last operating system error.
    #[must_use]
    pub fn last_os(doing: &'static str) -> Self {
        Self::new(ErrorKind::Os, doing).because(std::io::Error::last_os_error())
    }

    /// Adds a key and its value.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl fmt::Display) -> Self {
        Arc::make_mut(&mut self.0).context.push((key, Cow::Owned(value.to_string())));
        self
    }

    /// Adds the error that caused this one.
    #[must_use]
    pub fn because(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        Arc::make_mut(&mut self.0).source = Some(Arc::new(source));
        self
    }

    /// The kind, to match on.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// What was being done.
    #[must_use]
    pub fn doing(&self) -> &'static str {
        self.0.doing
    }

    /// Whether the device is gone.
    #[must_use]
    pub fn is_device_lost(&self) -> bool {
        matches!(self.0.kind, ErrorKind::DeviceLost | ErrorKind::ProcessLost)
    }
}

/// One line: what was being done, what went wrong, the context, the cause.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.doing, self.0.kind)?;
        for (position, (key, value)) in self.0.context.iter().enumerate() {
            write!(f, "{}{key}={value}", if position == 0 { " (" } else { ", " })?;
        }
        if !self.0.context.is_empty() {
            write!(f, ")")?;
        }
        match &self.0.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({self})")
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref().map(|source| &**source as &(dyn StdError + 'static))
    }
}

/// An error that gives back what the failed call would have kept.
pub struct Returned<S> {
    /// What was moved into the call. Nothing enqueued uses it any more.
    pub source: S,
    /// Why the call failed.
    pub error: Error,
}

impl<S> Returned<S> {
    pub(crate) fn new(source: S, error: Error) -> Self {
        Self { source, error }
    }
}

impl<S> fmt::Debug for Returned<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Returned({})", self.error)
    }
}

impl<S> fmt::Display for Returned<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<S> StdError for Returned<S> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        StdError::source(&self.error)
    }
}

impl<S> From<Returned<S>> for Error {
    fn from(returned: Returned<S>) -> Self {
        returned.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_is_one_line_with_context_and_cause() {
        let error = Error::new(ErrorKind::Os, "mapping host memory")
            .with("bytes", 4096)
            .with("node", 0)
            .because(std::io::Error::other("no"));
        assert_eq!(
            error.to_string(),
            "mapping host memory: the operating system refused (bytes=4096, node=0): no"
        );
        assert!(error.source().is_some());
    }
}
