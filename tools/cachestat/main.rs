//! `cachestat`.
fn main() {}
