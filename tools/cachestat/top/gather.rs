//! Looking at the pages there are.

use spoc_cache::stats::Reader;
use spoc_page::PageName;
use spoc_tools::failure::one_line;

use super::board::Seen;
use super::detail::Detail;
use crate::rates::Sample;
use crate::target::{self, Target};

/// Every page that `wanted` means. One that cannot be read (another version, a process that has just ended) is left out,
/// and how many were is said beside.
pub fn look(wanted: &[String]) -> (Vec<Seen>, usize) {
    let targets = target::find_all(wanted);
    let count = targets.len();
    let seen: Vec<Seen> = targets.iter().filter_map(seen).collect();
    let unread = count - seen.len();
    (seen, unread)
}

fn seen(target: &Target) -> Option<Seen> {
    let page = Reader::new(target.view.words().ok()?).ok()?;
    Some(Seen {
        name: target.name(),
        command: one_line(target.command().unwrap_or_default()),
        label: target.label().to_owned(),
        sample: Sample::take(&page),
    })
}

/// The details of one page; `None` if it is gone.
pub fn details(name: PageName) -> Option<Detail> {
    let target = target::find_all(&[]).into_iter().find(|target| target.name() == name)?;
    let page = Reader::new(target.view.words().ok()?).ok()?;
    Some(Detail::take(&page))
}
