//! What every exported function does around its work.

use crate::failure::{self, Failure};
use crate::status::spoc_status;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a function's work: nothing unwinds into C, and a failure leaves its message.
///
/// What the work changes is behind locks that survive a panic of their holder, so a caught one leaves nothing torn
/// that a later call would see.
pub fn run(work: impl FnOnce() -> Result<(), Failure>) -> spoc_status {
    let outcome = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(caught(&*panic)));
    match outcome {
        Ok(()) => spoc_status::SPOC_OK,
        Err(failure) => failure::keep(&failure),
    }
}

/// Runs a function that cannot fail; `otherwise` if it panics all the same.
pub fn value<T>(otherwise: T, work: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(otherwise)
}

fn caught(panic: &(dyn Any + Send)) -> Failure {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    Failure::new(spoc_status::SPOC_ERROR_INTERNAL, format_args!("a bug in spoc was caught: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::panic)] // it is what is caught
    fn a_panic_is_a_code_and_a_message() {
        let status = run(|| panic!("slot {} of {}", 7, 3));
        assert_eq!(status, spoc_status::SPOC_ERROR_INTERNAL);
        assert_eq!(failure::last(), "a bug in spoc was caught: slot 7 of 3");
        assert_eq!(value(5, || panic!("again")), 5);
    }
}
