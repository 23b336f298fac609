//! `docs/backends.md` shows the records that are kept.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use spoc_tests::record::{page, read_folder};

#[test]
fn the_page_is_made_of_the_records() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let text = std::fs::read_to_string(docs.join("backends.md")).unwrap();
    let made = page(&text, &read_folder(&docs.join("conformance")).unwrap()).unwrap();
    let again = "cargo run -p spoc-tests --bin conformance_record -- page docs/backends.md";
    assert!(made == text, "the page does not show docs/conformance: {again}");
}
