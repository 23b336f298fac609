//! `cachestat`.
#![forbid(unsafe_code)]
fn main() {}
