//! Slot cache for model weights in device memory, fed from disk by event-ordered copies.
#![forbid(unsafe_code)]
pub mod key;
pub mod policy;
pub mod slots;
