//! The table of what devices can do, made of their capabilities: of this machine's, and of recorded runs.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::num::NonZero;
use std::time::{SystemTime, UNIX_EPOCH};

use spoc_driver::{Device, Verdict};

use crate::identity;

/// A device's answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// What stands above it.
    pub name: String,
    /// For each capability by name: nothing if it is there, else why not ([`why_not`]).
    pub verdicts: Vec<(String, Option<String>)>,
}

impl Column {
    /// The column of an opened device.
    #[must_use]
    pub fn of(device: &Device, name: String) -> Self {
        let verdicts = device.capabilities().iter();
        Self { name, verdicts: verdicts.map(|(name, verdict)| (name.to_owned(), why_not(verdict))).collect() }
    }
}

/// Nothing for what is available, else the verdict with its reason, as it is written down.
#[must_use]
pub fn why_not(verdict: &Verdict) -> Option<String> {
    (!verdict.is_available()).then(|| verdict.to_string())
}

/// The table in Markdown, a row a capability, and behind it the reasons for every `—` (no) and `?` (unknown).
#[must_use]
pub fn markdown(columns: &[Column]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in columns.iter().flat_map(|column| &column.verdicts) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let mut text = String::from("| |");
    // Writing to a string does not fail; so below.
    columns.iter().for_each(|column| _ = write!(text, " {} |", column.name));
    text.push_str("\n|---|");
    columns.iter().for_each(|_| text.push_str("---|"));
    for &name in &names {
        let _ = write!(text, "\n| `{name}` |");
        columns.iter().for_each(|column| _ = write!(text, " {} |", mark(answer(column, name))));
    }
    text.push_str("\n\n");
    for name in names {
        if let Some(line) = reasons(columns, name) {
            let _ = writeln!(text, "- `{name}`: {line}");
        }
    }
    text.trim_end().to_owned()
}

/// What a column says of a capability; nothing if it was not asked.
fn answer<'c>(column: &'c Column, name: &str) -> Option<Option<&'c str>> {
    column.verdicts.iter().find(|(known, _)| known == name).map(|(_, why)| why.as_deref())
}

fn mark(answer: Option<Option<&str>>) -> &'static str {
    match answer {
        None => " ",
        Some(None) => "✓",
        Some(Some(why)) if why.starts_with("unknown") => "?",
        Some(Some(_)) => "—",
    }
}

/// The reasons of all columns, those that are alike told once.
fn reasons(columns: &[Column], name: &str) -> Option<String> {
    let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut order = Vec::new();
    for column in columns {
        let Some(Some(why)) = answer(column, name) else { continue };
        let reason = why.split_once(": ").map_or(why, |(_, reason)| reason);
        if !by_reason.contains_key(reason) {
            order.push(reason);
        }
        by_reason.entry(reason).or_default().push(&column.name);
    }
    let told = order.iter().map(|reason| format!("{} ({})", reason, by_reason[reason].join(", ")));
    (!order.is_empty()).then(|| told.collect::<Vec<_>>().join("; "))
}

/// Where and when something is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Processor, cores, memory and kernel.
    pub host: String,
    /// The day, as `2026-12-31`, in UTC.
    pub date: String,
}

impl Place {
    /// This machine, today.
    #[must_use]
    pub fn here() -> Self {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self { host: host(), date: date(seconds / 86_400) }
    }
}

fn host() -> String {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory = memory.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next());
    let kib: u64 = memory.and_then(|kib| kib.parse().ok()).unwrap_or(0);
    let system = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let system = format!("{} {}", std::env::consts::OS, system.trim());
    format!("{}, {cores} cores, {} GiB, {}", identity::name(), kib >> 20, system.trim_end())
}

/// The date so many days after the first of 1970, by the Gregorian calendar.
fn date(days: u64) -> String {
    let is_leap = |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let (mut year, mut left) = (1970, days);
    while left >= 365 + u64::from(is_leap(year)) {
        left -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", left + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(name: &str, verdicts: &[(&str, Option<&str>)]) -> Column {
        let owned = |(name, why): &(&str, Option<&str>)| ((*name).to_owned(), why.map(str::to_owned));
        Column { name: name.to_owned(), verdicts: verdicts.iter().map(owned).collect() }
    }

    #[test]
    fn answers_become_marks_and_reasons_are_told_once() {
        let no = Some("unavailable: the API has none");
        let table = markdown(&[
            column("a", &[("fill", None), ("launch", no)]),
            column("b", &[("fill", Some("unknown: nobody asked")), ("launch", no)]),
            column("c", &[("fill", None)]),
        ]);
        let expected = "| | a | b | c |\n|---|---|---|---|\n| `fill` | ✓ | ? | ✓ |\n| `launch` | — | — |   |\n\n\
            - `fill`: nobody asked (b)\n- `launch`: the API has none (a, b)";
        assert_eq!(table, expected);
    }

    #[test]
    fn days_become_dates() {
        let known = [
            (0, "1970-01-01"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (20_788, "2026-12-01"),
            (20_818, "2026-12-31"),
        ];
        for (days, expected) in known {
            assert_eq!(date(days), expected);
        }
    }
}
