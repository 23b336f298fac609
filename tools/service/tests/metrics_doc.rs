//! docs/metrics.md lists what there is, and nothing else.

#![allow(clippy::expect_used)]

use spoc_service::ops::families::FAMILIES;

#[test]
fn the_document_and_the_code_have_the_same_metrics() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let text = std::fs::read_to_string(path).expect("docs/metrics.md");
    let row = |family: &spoc_service::ops::families::Family| {
        let kind = format!("{:?}", family.kind).to_lowercase();
        format!("| `{}` | {kind} | {} | {} |", family.name, family.labels.join(", "), family.help)
    };
    let expected: Vec<String> = FAMILIES.iter().map(row).collect();
    let found: Vec<&str> = text.lines().filter(|line| line.starts_with("| `spoc_")).collect();
    assert_eq!(found, expected);
}
