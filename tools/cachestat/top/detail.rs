//! What the lower half shows of one page, taken at one look.

use spoc_cache::stats::Reader;
use spoc_tools::units;

use crate::{advise, residents, why};

/// Groups in the list of the busiest.
const HOT_MAX: usize = 100;
/// Events shown, newest first.
const EVENTS_MAX: usize = 200;

/// The texts of the panes, lines each.
#[derive(Debug, Default)]
pub struct Detail {
    /// Layers × groups.
    pub slots: Vec<String>,
    /// The groups used most.
    pub hot: Vec<String>,
    /// Misses by reason.
    pub misses: Vec<String>,
    /// Events, newest first.
    pub events: Vec<String>,
    /// What is wrong, and what more slots would buy.
    pub advice: Vec<String>,
}

fn lines(text: &impl ToString) -> Vec<String> {
    text.to_string().lines().map(str::to_owned).collect()
}

impl Detail {
    /// Reads a page. Each part is consistent by itself.
    pub fn take(page: &Reader<'_>) -> Detail {
        Detail {
            slots: lines(&residents::grid(page)),
            hot: lines(&residents::hot(page, HOT_MAX)),
            misses: lines(&advise::misses(page)),
            events: events(page),
            advice: lines(&advise::advise(page)),
        }
    }
}

fn events(page: &Reader<'_>) -> Vec<String> {
    let heading = "     TIME  KEY           SLOT  WHAT";
    let mut all = vec![heading.to_owned()];
    all.extend(page.log(EVENTS_MAX).iter().rev().map(|entry| {
        let key = entry.key.map_or_else(|| "-".to_owned(), |(model, group)| format!("{model}/{group}"));
        let what = entry.kind.map_or("?", why::what);
        let because = entry.cause.map_or("?", why::because);
        format!("{:7.1} s  {key:<11} {:6}  {what}: {because}", units::seconds(entry.time_ns), entry.slot)
    }));
    all
}
