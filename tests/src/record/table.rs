//! Records as the part of a page.

use std::fmt::Write;

use anyhow::{Context, Result};
use spoc_backends::matrix::{self, Column};
use spoc_driver::BackendKind;

use super::Record;

const BEGIN: &str = "<!-- records: begin; made by conformance_record, not by hand -->\n";
const END: &str = "<!-- records: end -->";

/// The page with the part between its two marks made anew.
///
/// # Errors
/// If the marks are not there.
pub fn page(page: &str, records: &[Record]) -> Result<String> {
    let (before, rest) = page.split_once(BEGIN).with_context(|| format!("the page has no line {BEGIN}"))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("the page has no line {END}"))?;
    Ok(format!("{before}{BEGIN}\n{}\n\n{END}{after}", render(records)))
}

/// The runs, what each device can do, and the backends that have not been run anywhere.
#[must_use]
pub fn render(records: &[Record]) -> String {
    let names = names(records);
    let mut text =
        String::from("| | device | driver | machine | day | checks |\n|---|---|---|---|---|---|\n");
    for (record, name) in records.iter().zip(&names) {
        let Record { device, driver, host, date, .. } = record;
        let cells = [name, device, driver, host, date, &outcome(record)].map(|cell| cell.replace('|', "/"));
        // Writing to a string does not fail; so below.
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    for (record, name) in records.iter().zip(&names) {
        for (check, why) in &record.failed {
            let _ = write!(text, "\n- {name} fails `{check}`: {why}");
        }
    }
    let column = |(record, name): (&Record, &String)| Column {
        name: name.clone(),
        verdicts: record.capabilities.iter().map(|(name, why)| (name.clone(), why.clone())).collect(),
    };
    let columns: Vec<_> = records.iter().zip(&names).map(column).collect();
    let _ = write!(text, "\n{}\n", matrix::markdown(&columns));
    let is_run = |kind: &BackendKind| records.iter().any(|record| record.backend == kind.as_str());
    let never = BackendKind::ALL.iter().filter(|kind| **kind != BackendKind::Fake && !is_run(kind));
    let never: Vec<_> = never.map(|kind| kind.as_str()).collect();
    if !never.is_empty() {
        let _ = write!(text, "\nNo record of a run: {}.", never.join(", "));
    }
    text.trim_end().to_owned()
}

/// Each record by its backend, with a number where there are several.
fn names(records: &[Record]) -> Vec<String> {
    let of = |backend: &str, among: &[Record]| among.iter().filter(|r| r.backend == backend).count();
    let name = |(place, record): (usize, &Record)| match of(&record.backend, records) {
        1 => record.backend.clone(),
        _ => format!("{} {}", record.backend, of(&record.backend, &records[..=place])),
    };
    records.iter().enumerate().map(name).collect()
}

fn outcome(record: &Record) -> String {
    let all = record.passed + record.failed.len();
    let refused = record.capabilities.values().flatten().count();
    format!("{} of {all} passed; {refused} capabilities refused", record.passed)
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    #[test]
    fn a_page_shows_runs_failures_and_what_was_never_run() {
        let records = [sample("opencl", "A"), sample("opencl", "B"), sample("native", "C")];
        let page = page(&format!("before\n{BEGIN}old\n{END}\nafter\n"), &records).unwrap();
        assert!(
            page.starts_with("before\n") && page.ends_with("\nafter\n") && !page.contains("old"),
            "{page}"
        );
        for part in [
            "| opencl 2 | B | made-up 1.0 | a host | 2026-12-31 | 161 of 162 passed; 1 capabilities refused |",
            "- native fails `stress_many_small_copies`: a | b",
            "| | opencl 1 | opencl 2 | native |",
            "No record of a run: cuda, hip, vulkan, metal, webgpu, interpreter.",
        ] {
            assert!(page.contains(part), "{part} is not in\n{page}");
        }
        assert_eq!(super::page(&page, &records).unwrap(), page, "made anew it is the same");
        assert!(super::page("no marks", &records).is_err());
    }
}
