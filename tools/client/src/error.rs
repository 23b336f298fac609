//! What went wrong, by the kinds of docs/errors.md.

use std::borrow::Cow;
use std::fmt;

use spoc_proto::ERROR_KIND;
use tonic::{Code, Status};

/// A failure: a kind to match on, and a line for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: Cow<'static, str>,
    message: String,
}

/// The client's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// A failure on this side.
    pub(crate) fn new(kind: &'static str, message: impl fmt::Display) -> Error {
        Error { kind: Cow::Borrowed(kind), message: message.to_string() }
    }

    /// One that the service sent in an answer.
    pub(crate) fn sent(kind: String, message: String) -> Error {
        Error { kind: Cow::Owned(kind), message }
    }

    /// Its kind: lower case with underscores, as docs/errors.md lists them. Of this side: `service_unreachable`,
    /// `session_lost`, `forked`, `protocol`.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The line for people.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Whether the service could not be reached: it may be restarting.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        self.kind == "service_unreachable"
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.message)
    }
}

impl std::error::Error for Error {}

impl From<spoc_driver::Error> for Error {
    fn from(error: spoc_driver::Error) -> Error {
        Error::new(error.kind().as_str(), error)
    }
}

/// The kind that the service gave an error; none for what the transport says.
pub(crate) fn kind_of(status: &Status) -> Option<&str> {
    status.metadata().get(ERROR_KIND).and_then(|kind| kind.to_str().ok())
}

impl From<Status> for Error {
    fn from(status: Status) -> Error {
        if let Some(kind) = kind_of(&status) {
            return Error::sent(kind.to_owned(), status.message().to_owned());
        }
        // No trailer: the transport speaks, not the service.
        let kind = match status.code() {
            Code::Unavailable | Code::Unknown | Code::Cancelled => "service_unreachable",
            Code::DeadlineExceeded => "timed_out",
            _ => "protocol",
        };
        Error::new(kind, status.message())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trailer_names_the_kind_and_its_absence_the_transport() {
        let mut status = Status::unavailable("no new work");
        assert!(Error::from(status.clone()).is_unreachable());
        status.metadata_mut().insert(ERROR_KIND, tonic::metadata::MetadataValue::from_static("draining"));
        let error = Error::from(status);
        assert_eq!((error.kind(), error.to_string().as_str()), ("draining", "draining: no new work"));
        assert!(!error.is_unreachable());
    }
}
