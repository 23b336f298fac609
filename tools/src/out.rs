//! The only module that prints.
//!
//! Answers go to standard output: text for people, or one JSON value with `--json`. A failure is one line on standard
//! error, and with `--json` an `{"error": …}` value on standard output as well.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use serde::Serialize;
use serde_json::json;

use crate::failure::{EXIT_FAILURE, Failure};
use crate::process;

/// How this run answers.
#[derive(Clone, Copy, Debug)]
pub struct Out {
    json: bool,
}

impl Out {
    /// Text, or JSON.
    pub fn new(json: bool) -> Out {
        Out { json }
    }

    /// Whether the answer is JSON.
    pub fn is_json(self) -> bool {
        self.json
    }

    /// Prints a line for people; silent with `--json`.
    pub fn line(self, text: impl Display) {
        if !self.json {
            write_line(&text);
        }
    }

    /// Prints a whole answer: `value` with `--json`, otherwise what `text` makes of it.
    pub fn answer<T: Serialize, D: Display>(self, value: &T, text: impl FnOnce(&T) -> D) {
        if self.json { json_line(value) } else { write_line(&text(value)) }
    }

    /// Reports `failure` and returns the exit code.
    pub fn fail(self, failure: &Failure) -> u8 {
        if self.json
            && let Err(error) = try_line(&json!({ "error": failure }))
        {
            // What went wrong first is what the user has to know, and the line below says it.
            tracing::debug!(%error, "standard output");
        }
        // Standard error may be gone; the exit code still tells.
        let _ = writeln!(io::stderr(), "error: {}", failure.message);
        failure.exit
    }
}

/// Prints one JSON value on a line of its own.
pub fn json_line<T: Serialize>(value: &T) {
    match serde_json::to_string(value) {
        Ok(text) => write_line(&text),
        Err(error) => note(format_args!("error: the answer cannot be written as JSON: {error}")),
    }
}

/// Prints one line on standard output at once, so that a reader of a pipe sees each line as it is made. Where that is
/// not possible the process ends, and what was promised to be temporary goes first.
pub fn write_line(text: &dyn Display) {
    match try_line(text) {
        Ok(()) => {}
        // The reader (`head`, a pager) has what it wants: end as a program without a handler for SIGPIPE would.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => process::end(128 + 13),
        Err(error) => {
            note(format_args!("error: standard output: {error}"));
            process::end(EXIT_FAILURE);
        }
    }
}

fn try_line(text: &dyn Display) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{text}").and_then(|()| stdout.flush())
}

/// A remark beside the answer, on standard error.
pub fn note(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Whether a progress bar would be seen.
pub fn shows_progress() -> bool {
    io::stderr().is_terminal()
}
