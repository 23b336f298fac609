//! How large a staging ring may be: what the user wants, within what the machine can give.
//!
//! Memory that is promised and not there ends a process with SIGKILL, which explains nothing.

use crate::failure::{Failure, Result};
use crate::units;

/// Unless the user says otherwise.
pub const DEFAULT_BYTES: u64 = 64 << 20;
/// Two of the smallest chunks.
pub const SMALLEST_BYTES: u64 = 2 * PAGE_BYTES;
const PAGE_BYTES: u64 = 4096;

/// The ring's size. One that the user named is taken or refused; the default shrinks to one `share`-th of what the
/// machine and the memory control group can give now, but not below `least_bytes`.
///
/// # Errors
/// `staging_too_small`, with what is needed and what there is.
pub fn budget(named: Option<u64>, least_bytes: u64, share: u64) -> Result<u64> {
    budget_of(spoc_backends::host_memory_available(), named, least_bytes, share)
}

fn budget_of(have_bytes: u64, named: Option<u64>, least_bytes: u64, share: u64) -> Result<u64> {
    if let Some(bytes) = named {
        return if bytes <= have_bytes { Ok(bytes) } else { Err(too_small(bytes, have_bytes)) };
    }
    let most_bytes = have_bytes / share / PAGE_BYTES * PAGE_BYTES;
    if DEFAULT_BYTES <= most_bytes {
        return Ok(DEFAULT_BYTES);
    }
    if most_bytes < least_bytes {
        return Err(too_small(least_bytes, most_bytes));
    }
    tracing::warn!(
        "the staging ring is {} instead of {}: {} of memory are available",
        units::bytes(most_bytes),
        units::bytes(DEFAULT_BYTES),
        units::bytes(have_bytes)
    );
    Ok(most_bytes)
}

fn too_small(need_bytes: u64, have_bytes: u64) -> Failure {
    let message = format!(
        "the staging ring needs {need_bytes} bytes and has {have_bytes} of what the machine and its memory control group can give"
    );
    Failure::new("staging_too_small", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_default_takes_no_more_than_its_share() {
        let budget = |have| budget_of(have, None, SMALLEST_BYTES, 2).map_err(|failure| failure.message);
        assert_eq!(budget(u64::MAX), Ok(DEFAULT_BYTES));
        assert_eq!(budget(128 * MIB), Ok(DEFAULT_BYTES));
        assert_eq!(budget(128 * MIB - 1), Ok(DEFAULT_BYTES - 4096));
        assert_eq!(budget(16384), Ok(8192));
        for have in [16383, 4096, 0] {
            let message = budget(have).expect_err("too small");
            assert!(message.contains("needs 8192 bytes"), "{message}");
        }
        assert_eq!(budget_of(100 * MIB, None, 65536, 4).ok(), Some(25 * MIB));
    }

    #[test]
    fn what_the_user_names_is_taken_or_refused() {
        assert_eq!(budget_of(100, Some(100), SMALLEST_BYTES, 2).ok(), Some(100));
        assert_eq!(budget_of(u64::MAX, Some(u64::MAX), SMALLEST_BYTES, 2).ok(), Some(u64::MAX));
        let failure = budget_of(100, Some(101), SMALLEST_BYTES, 2).expect_err("more than there is");
        assert_eq!(failure.kind, "staging_too_small");
        assert!(failure.message.contains("needs 101 bytes and has 100"), "{failure}");
    }
}
