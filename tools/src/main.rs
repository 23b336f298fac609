//! `spoc-loader`.
fn main() {}
