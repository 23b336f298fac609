//! Errors on their way to C: a code, and a line that the calling thread can ask for.

use crate::entry;
use crate::status::spoc_status;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::fmt;

/// Why a call failed.
#[derive(Debug)]
pub struct Failure {
    pub status: spoc_status,
    pub message: String,
}

/// What the work of an exported function returns.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    pub fn new(status: spoc_status, message: impl fmt::Display) -> Failure {
        Failure { status, message: one_line(&message.to_string()) }
    }

    /// A value that cannot be used.
    pub fn argument(message: impl fmt::Display) -> Failure {
        Failure::new(spoc_status::SPOC_ERROR_INVALID_ARGUMENT, message)
    }

    /// The failure of this kind, as docs/errors.md names it.
    fn of_kind(kind: &str, message: impl fmt::Display) -> Failure {
        Failure::new(spoc_status::of(kind), message)
    }
}

impl From<spoc_io::Error> for Failure {
    fn from(error: spoc_io::Error) -> Failure {
        Failure::of_kind(error.kind().as_str(), error)
    }
}

impl From<spoc_driver::Error> for Failure {
    fn from(error: spoc_driver::Error) -> Failure {
        Failure::of_kind(error.kind().as_str(), error)
    }
}

impl From<spoc_cache::Error> for Failure {
    fn from(error: spoc_cache::Error) -> Failure {
        Failure::of_kind(error.kind().as_str(), error)
    }
}

/// Names in weight files may hold anything, line breaks and terminal controls included; a NUL would end the line.
fn one_line(text: &str) -> String {
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

thread_local! {
    /// As errno: it belongs to the thread whose call failed.
    static LAST: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Keeps the message for this thread and gives the code.
pub fn keep(failure: &Failure) -> spoc_status {
    // No NUL is left in the line, so the text is never lost.
    let text = CString::new(failure.message.as_str()).ok();
    // A thread that is ending has no place for it any more.
    let _ = LAST.try_with(|last| *last.borrow_mut() = text);
    failure.status
}

#[cfg(test)]
pub fn last() -> String {
    LAST.with(|last| {
        last.borrow().as_ref().map_or_else(String::new, |text| text.to_string_lossy().into_owned())
    })
}

/// One line about the last call of this thread that failed; empty if none did. It stands until the thread's next
/// failing call. Any thread; each has its own.
#[unsafe(no_mangle)]
pub extern "C" fn spoc_error_message() -> *const c_char {
    entry::value(c"".as_ptr(), || {
        let text = LAST.try_with(|last| last.borrow().as_ref().map(|text| text.as_ptr()));
        text.ok().flatten().unwrap_or(c"".as_ptr())
    })
}

/// A code's stable name, such as `not_found`; `unknown` for a number that is no code. Static memory. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn spoc_status_name(status: i32) -> *const c_char {
    entry::value(c"unknown", || spoc_status::name(status)).as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_and_belongs_to_its_thread() {
        keep(&Failure::argument("a\nb\0c\u{1b}[31m\n"));
        assert_eq!(last(), "a\\nb\\u{0}c\\u{1b}[31m");
        let other = std::thread::spawn(last).join();
        assert_eq!(other.ok().as_deref(), Some(""));
    }
}
