//! What went wrong, in the form users and programs see it.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

use serde::Serialize;

/// Bad input, a missing device, a refused option: anything the user can act on.
pub const EXIT_FAILURE: u8 = 2;
/// Bytes are not what somebody wrote down that they are.
pub const EXIT_DAMAGED: u8 = 4;

/// A failure of a command. `docs/errors.md` lists the kinds.
#[derive(Debug, Serialize)]
pub struct Failure {
    /// Machine-readable category, lower case with underscores.
    pub kind: Cow<'static, str>,
    /// One line: file, place, expectation.
    pub message: String,
    /// The offending file, where there is one.
    pub file: Option<String>,
    /// The process's exit code.
    #[serde(skip)]
    pub exit: u8,
}

/// A command's result.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// A failure without a file.
    pub fn new(kind: impl Into<Cow<'static, str>>, message: impl fmt::Display) -> Failure {
        Failure { kind: kind.into(), message: one_line(&message.to_string()), file: None, exit: EXIT_FAILURE }
    }

    /// A value on the command line or in the environment that cannot be used.
    pub fn usage(message: impl fmt::Display) -> Failure {
        Failure::new("usage", message)
    }

    /// The same failure, about `file`.
    pub fn at(self, file: &Path) -> Failure {
        Failure { file: Some(file.to_string_lossy().into_owned()), ..self }
    }

    /// The same failure with another exit code.
    pub fn exit(self, exit: u8) -> Failure {
        Failure { exit, ..self }
    }

    /// A failed system call on `file`.
    pub fn io(file: &Path, doing: &str, error: &std::io::Error) -> Failure {
        let kind = match error.kind() {
            std::io::ErrorKind::NotFound => "not_found",
            _ => "io_error",
        };
        Failure::new(kind, format_args!("{}: {doing}: {error}", file.display())).at(file)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<spoc_client::Error> for Failure {
    fn from(error: spoc_client::Error) -> Failure {
        Failure::new(error.kind().to_owned(), error.message())
    }
}

impl From<spoc_service::Error> for Failure {
    fn from(error: spoc_service::Error) -> Failure {
        Failure::new(error.kind().to_owned(), error.message())
    }
}

impl From<spoc_io::Error> for Failure {
    fn from(error: spoc_io::Error) -> Failure {
        let mut failure = Failure::new(error.kind().as_str(), &error);
        if error.kind() == spoc_io::ErrorKind::DigestMismatch {
            failure = failure.exit(EXIT_DAMAGED);
        }
        match error.file() {
            Some(file) => failure.at(file),
            None => failure,
        }
    }
}

impl From<spoc_driver::Error> for Failure {
    fn from(error: spoc_driver::Error) -> Failure {
        use spoc_driver::ErrorKind;
        let kind = match error.kind() {
            // In the words of the user, who chose the device and not an allocation.
            ErrorKind::OutOfDeviceMemory { .. } => "device_too_small",
            ErrorKind::OutOfHostMemory { .. } => "staging_too_small",
            ErrorKind::NoSuchDevice => "no_device",
            kind => kind.as_str(),
        };
        Failure::new(kind, error)
    }
}

impl From<spoc_cache::Error> for Failure {
    fn from(error: spoc_cache::Error) -> Failure {
        use spoc_cache::ErrorKind;
        match error.kind() {
            ErrorKind::Read(error) => (**error).clone().into(),
            ErrorKind::Device(error) => (**error).clone().into(),
            kind => Failure::new(kind.as_str(), &error),
        }
    }
}

/// Names in weight files and file names may hold anything, line breaks and terminal controls included.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for character in text.trim_end().chars() {
        if character.is_control() {
            line.extend(character.escape_default());
        } else {
            line.push(character);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_without_terminal_controls() {
        let failure = Failure::usage("a\nb\u{1b}[31mc\n");
        assert_eq!(failure.message, "a\\nb\\u{1b}[31mc");
        assert_eq!(failure.exit, 2);
    }

    #[test]
    fn json_has_the_three_fields() {
        let failure = Failure::new("truncated", "m").at(Path::new("/f"));
        let value = serde_json::to_value(&failure).expect("json");
        assert_eq!(value, serde_json::json!({"kind": "truncated", "message": "m", "file": "/f"}));
    }
}
