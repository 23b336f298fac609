//! A session belongs to the process that opened it.

use crate::error::{Error, Result};

/// The process that made something.
#[derive(Clone, Copy, Debug)]
pub struct OwnProcess(u32);

impl OwnProcess {
    /// This one.
    pub fn here() -> OwnProcess {
        OwnProcess(std::process::id())
    }

    /// Whether this is still it.
    pub fn is_here(self) -> bool {
        self.0 == std::process::id()
    }

    /// # Errors
    /// `forked` in a child.
    pub fn check(self) -> Result<()> {
        if self.is_here() {
            return Ok(());
        }
        Err(Error::new(
            "forked",
            format_args!(
                "process {} is a fork of {}, which connected: a fork cannot use its parent's connection, session or leases; \
                 connect again after the fork",
                std::process::id(),
                self.0
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_is_told_to_connect_itself() {
        assert!(OwnProcess::here().check().is_ok());
        let error = OwnProcess(std::process::id() + 1).check().expect_err("not this one");
        assert!(
            error.kind() == "forked" && error.to_string().contains("connect again after the fork"),
            "{error}"
        );
    }
}
