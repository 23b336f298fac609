//! `docs/contract-coverage.md` says what is true: every rule has a row, every named test exists, every check
//! is named.
// Helpers of tests stop with a message, as tests do.
#![allow(clippy::expect_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use spoc_tests::CHECKS;

/// Rooms whose tests may prove a rule.
const ROOMS: [&str; 4] = ["tests", "driver", "backends", "measurements"];
const RULES: std::ops::RangeInclusive<usize> = 1..=30;

struct Row {
    rule: String,
    tests: Vec<String>,
    backends: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace").to_path_buf()
}

fn rows() -> Vec<Row> {
    let text = std::fs::read_to_string(root().join("docs/contract-coverage.md")).expect("the table is there");
    let cells = |line: &str| line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect();
    let lines = text.lines().filter(|line| line.starts_with("| "));
    let rows = lines.skip(1).map(|line| {
        let cells: Vec<String> = cells(line);
        assert_eq!(cells.len(), 4, "{line}");
        let quoted = cells[2].split('`').skip(1).step_by(2);
        Row { rule: cells[0].clone(), tests: quoted.map(str::to_owned).collect(), backends: cells[3].clone() }
    });
    rows.collect()
}

fn sources(folder: &Path, found: &mut String) {
    for entry in std::fs::read_dir(folder).expect("a source folder is readable") {
        let path = entry.expect("an entry is readable").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push_str(&std::fs::read_to_string(&path).expect("a source is UTF-8"));
        }
    }
}

#[test]
fn every_rule_has_one_row_with_tests_or_a_reason() {
    let rows = rows();
    for rule in RULES {
        let of_rule: Vec<_> = rows.iter().filter(|row| row.rule == rule.to_string()).collect();
        assert_eq!(of_rule.len(), 1, "rule {rule} has {} rows", of_rule.len());
    }
    for row in &rows {
        let waits = row.backends.strip_prefix("waits for: ");
        assert!(waits.is_none_or(|reason| reason.len() > 6), "rule {} waits for nothing", row.rule);
        assert_eq!(row.tests.is_empty(), waits.is_some(), "rule {}: tests, or what it waits for", row.rule);
    }
}

#[test]
fn every_named_test_exists() {
    let mut text = String::new();
    ROOMS.iter().for_each(|room| sources(&root().join(room), &mut text));
    for row in rows() {
        for test in &row.tests {
            assert!(
                text.contains(&format!("fn {test}(")),
                "rule {} names {test}, which is nowhere",
                row.rule
            );
        }
    }
}

#[test]
fn every_check_is_named_and_stands_in_the_row_of_its_rule() {
    let rows = rows();
    let named: BTreeSet<&str> = rows.iter().flat_map(|row| &row.tests).map(String::as_str).collect();
    for check in CHECKS {
        assert!(named.contains(check), "{check} proves no rule in the table");
        let Some(number) = check.strip_prefix("rule_").and_then(|rest| rest.get(..2)) else { continue };
        let rule = number.trim_start_matches('0');
        let row = rows.iter().find(|row| row.rule == rule).expect("its rule has a row");
        assert!(row.tests.iter().any(|test| test == check), "{check} is not in the row of rule {rule}");
    }
}
