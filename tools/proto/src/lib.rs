//! The control plane of `spoc-loader serve`: `proto/spoc/v1/spoc.proto` and the code made of it.
//!
//! `src/spoc.v1.rs` is committed, so that a build needs neither a compiler of .proto files nor the network; the test
//! `drift` makes it anew and compares (`SPOC_PROTO_WRITE=1 cargo test -p spoc-proto` writes it).

#![forbid(unsafe_code)]

/// Package `spoc.v1`.
#[allow(missing_docs, unused_qualifications, rust_2018_idioms)] // made by a program, documented in the .proto
#[allow(clippy::all, clippy::needless_pass_by_value)]
pub mod v1 {
    include!("spoc.v1.rs");
}

/// The text of the .proto.
pub const TEXT: &str = include_str!("../proto/spoc/v1/spoc.proto");

/// Trailer that carries an error's kind (docs/errors.md).
pub const ERROR_KIND: &str = "spoc-error-kind";

/// Names of the calls, in their order.
pub fn methods() -> impl Iterator<Item = &'static str> {
    let call = |line: &'static str| line.trim().strip_prefix("rpc ")?.split('(').next();
    TEXT.lines().filter_map(call)
}
