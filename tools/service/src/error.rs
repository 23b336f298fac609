//! What goes wrong, by the kinds of docs/errors.md, and what gRPC calls it.

use spoc_proto::ERROR_KIND;
use std::borrow::Cow;
use std::fmt;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

/// A failure: a kind to match on, and a line for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: Cow<'static, str>,
    message: String,
}

/// The service's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn new(kind: &'static str, message: impl fmt::Display) -> Error {
        Error { kind: Cow::Borrowed(kind), message: one_line(message.to_string()) }
    }

    /// Lower case with underscores, as docs/errors.md lists them.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The line for people.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    fn code(&self) -> Code {
        match &*self.kind {
            "usage" | "bad_pattern" | "config" => Code::InvalidArgument,
            "unknown_model" | "unknown_image" | "unknown_arena" | "unknown_session" | "no_device"
            | "not_found" | "no_such_group" | "not_resident" => Code::NotFound,
            "already_registered" => Code::AlreadyExists,
            "not_permitted" | "path_not_allowed" => Code::PermissionDenied,
            "quota_exceeded" | "device_too_small" | "out_of_device_memory" | "too_many_slots" => {
                Code::ResourceExhausted
            }
            "in_use" | "too_wide" | "wrong_state" | "not_attached" => Code::FailedPrecondition,
            "draining" => Code::Unavailable,
            "timed_out" => Code::DeadlineExceeded,
            "cancelled" => Code::Cancelled,
            "unsupported" => Code::Unimplemented,
            "digest_mismatch" | "truncated" | "changed" => Code::DataLoss,
            "internal" => Code::Internal,
            _ => Code::FailedPrecondition,
        }
    }
}

/// Messages repeat what clients wrote, and go into logs: none has a second line.
fn one_line(text: String) -> String {
    if text.chars().any(char::is_control) {
        return text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    }
    text
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.message)
    }
}

impl std::error::Error for Error {}

impl From<Error> for Status {
    fn from(error: Error) -> Status {
        let mut status = Status::new(error.code(), error.message.clone());
        if let Ok(kind) = MetadataValue::try_from(&*error.kind) {
            status.metadata_mut().insert(ERROR_KIND, kind);
        }
        status
    }
}

/// The kinds of the tools: who asks knows devices and staging rings, and not allocations.
fn in_our_words(kind: &'static str) -> &'static str {
    match kind {
        "out_of_device_memory" => "device_too_small",
        "out_of_host_memory" => "staging_too_small",
        "no_such_device" => "no_device",
        kind => kind,
    }
}

impl From<spoc_cache::Error> for Error {
    fn from(error: spoc_cache::Error) -> Error {
        // A device's error keeps its kind within the cache's.
        Error::new(in_our_words(error.kind().as_str()), error)
    }
}

impl From<spoc_io::Error> for Error {
    fn from(error: spoc_io::Error) -> Error {
        Error { kind: Cow::Owned(error.kind().as_str().to_owned()), message: one_line(error.to_string()) }
    }
}

impl From<spoc_driver::Error> for Error {
    fn from(error: spoc_driver::Error) -> Error {
        Error::new(in_our_words(error.kind().as_str()), error)
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Error {
        Error::new("os", error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_device_has_one_kind_wherever_it_is_found_out() {
        let full = || {
            let kind = spoc_driver::ErrorKind::OutOfDeviceMemory { need_bytes: 2, have_bytes: 1 };
            spoc_driver::Error::new(kind, "allocating")
        };
        let in_cache = spoc_cache::Error::from(full());
        for error in [Error::from(full()), Error::from(in_cache)] {
            assert_eq!((error.kind(), error.code()), ("device_too_small", Code::ResourceExhausted));
        }
    }

    #[test]
    fn a_message_is_one_line_whatever_a_client_wrote() {
        assert_eq!(Error::new("usage", "a\nb\u{1b}[c").message(), "a\u{fffd}b\u{fffd}[c");
        assert_eq!(Error::new("usage", "größe").message(), "größe");
    }

    #[test]
    fn the_kind_travels_beside_the_code() {
        let status = Status::from(Error::new("draining", "no new work"));
        assert_eq!((status.code(), status.message()), (Code::Unavailable, "no new work"));
        assert_eq!(status.metadata().get(ERROR_KIND).and_then(|kind| kind.to_str().ok()), Some("draining"));
    }
}
