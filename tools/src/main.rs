//! `spoc-loader`.
#![forbid(unsafe_code)]
fn main() {}
