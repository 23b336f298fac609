//! The committed code is what the .proto says.

#![allow(clippy::expect_used)]

use std::path::Path;

#[test]
fn the_code_is_made_of_the_text() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let set = protox::compile(["spoc/v1/spoc.proto"], [root.join("proto")]).expect("the .proto compiles");
    let out = tempfile::tempdir().expect("temporary folder");
    tonic_prost_build::configure()
        .out_dir(out.path())
        .build_transport(true)
        .compile_fds(set)
        .expect("code is made");
    let made = std::fs::read_to_string(out.path().join("spoc.v1.rs")).expect("one file");
    let committed = root.join("src/spoc.v1.rs");
    if std::env::var_os("SPOC_PROTO_WRITE").is_some() {
        std::fs::write(&committed, made).expect("written");
        return;
    }
    let found = std::fs::read_to_string(&committed).expect("src/spoc.v1.rs");
    assert!(found == made, "src/spoc.v1.rs differs: SPOC_PROTO_WRITE=1 cargo test -p spoc-proto writes it");
}

#[test]
fn the_calls_are_those_of_the_code() {
    let code = include_str!("../src/spoc.v1.rs");
    let mut served: Vec<&str> =
        code.split("\"/spoc.v1.Spoc/").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    served.sort_unstable();
    served.dedup();
    let mut named: Vec<&str> = spoc_proto::methods().collect();
    named.sort_unstable();
    assert_eq!(named, served);
}
