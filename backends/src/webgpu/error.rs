//! wgpu's errors as the driver's, and waiting for what it calls futures.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use spoc_driver::{Error, ErrorKind};

/// An error met while `doing` something that asked for `need_bytes`. wgpu has three kinds, and texts; the text stays.
pub(super) fn failed_for(error: &wgpu::Error, doing: &'static str, need_bytes: u64) -> Error {
    let (kind, name) = match error {
        wgpu::Error::OutOfMemory { .. } => {
            (ErrorKind::OutOfDeviceMemory { need_bytes, have_bytes: 0 }, "out-of-memory")
        }
        wgpu::Error::Validation { .. } => (ErrorKind::Backend, "validation"),
        wgpu::Error::Internal { .. } => (ErrorKind::Backend, "internal"),
    };
    Error::new(kind, doing).with("error", name).with("because", in_one_line(error))
}

/// As [`failed_for`], where no memory was asked for.
pub(super) fn failed(error: &wgpu::Error, doing: &'static str) -> Error {
    failed_for(error, doing, 0)
}

/// An error and its causes.
fn in_one_line(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Descriptions repeat what they were made from.
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Runs a call, and answers the first error that it raised.
pub(super) fn caught<T>(
    device: &wgpu::Device,
    doing: &'static str,
    need_bytes: u64,
    call: impl FnOnce() -> T,
) -> Result<T, Error> {
    let filters =
        [wgpu::ErrorFilter::OutOfMemory, wgpu::ErrorFilter::Validation, wgpu::ErrorFilter::Internal];
    let [memory, validation, internal] = filters.map(|filter| device.push_error_scope(filter));
    let outcome = call();
    // Innermost first.
    let found = [internal.pop(), validation.pop(), memory.pop()].map(|scope| ready(scope).flatten());
    match found.into_iter().flatten().next() {
        Some(error) => Err(failed_for(&error, doing, need_bytes)),
        None => Ok(outcome),
    }
}

/// The answer of a future that has it: without a browser under it, all of wgpu's do.
pub(super) fn ready<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_keep_their_text_in_one_line() {
        let source = Box::new(std::io::Error::other("the cause"));
        let error = wgpu::Error::Validation { source, description: "In a\n  call".to_owned() };
        let text = failed(&error, "testing").to_string();
        assert!(text.contains("In a call: the cause") && text.contains("validation"), "{text}");
        let error = wgpu::Error::OutOfMemory { source: Box::new(std::io::Error::other("full")) };
        let kind = ErrorKind::OutOfDeviceMemory { need_bytes: 7, have_bytes: 0 };
        assert_eq!(*failed_for(&error, "testing", 7).kind(), kind);
    }
}
