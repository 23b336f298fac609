//! What each target does with its bytes; both the fuzzers and a test on the stable compiler call it.

pub mod gguf;
pub mod index;
pub mod manifest;
pub mod planner;
pub mod safetensors;
