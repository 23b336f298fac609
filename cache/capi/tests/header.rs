//! The committed header says what the sources say.

#![allow(clippy::expect_used)] // helpers of tests are tests

use std::path::Path;

/// Set to write the header anew.
const WRITE: &str = "SPOC_WRITE_HEADER";

#[test]
fn the_header_is_what_the_sources_give() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(package.join("cbindgen.toml")).expect("cbindgen.toml");
    let bindings = cbindgen::Builder::new()
        .with_config(config)
        .with_src(package.join("src/lib.rs"))
        .generate()
        .expect("the sources have bindings");
    let mut generated = Vec::new();
    bindings.write(&mut generated);
    let generated = String::from_utf8(generated).expect("a header is text");
    let path = package.join("include/spoc_cache.h");
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, &generated).expect("the header can be written");
        return;
    }
    let committed = std::fs::read_to_string(&path).expect("include/spoc_cache.h");
    let differs = committed.lines().zip(generated.lines()).position(|(ours, theirs)| ours != theirs);
    assert!(
        committed == generated,
        "the header is not what the sources give, from line {} on: {WRITE}=1 cargo test -p spoc-capi --test header",
        differs.unwrap_or_else(|| committed.lines().count().min(generated.lines().count())) + 1
    );
}

/// Every function of the header is documented on the page, and the page names no other.
#[test]
fn the_page_has_every_call() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = std::fs::read_to_string(package.join("include/spoc_cache.h")).expect("the header");
    let page = std::fs::read_to_string(package.join("../../docs/c-api.md")).expect("docs/c-api.md");
    let mut functions: Vec<&str> = header
        .lines()
        .filter(|line| !line.starts_with("//") && !line.starts_with("typedef"))
        .filter_map(|line| line.split_once('('))
        .filter_map(|(head, _)| head.rsplit([' ', '*']).next())
        .filter(|name| name.starts_with("spoc_"))
        .collect();
    functions.sort_unstable();
    assert!(
        functions.len() > 40,
        "only {} functions found: the header looks another way now",
        functions.len()
    );
    let mut named: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('(').map(|(name, _)| name))
        .collect();
    named.sort_unstable();
    assert_eq!(named, functions);
}
