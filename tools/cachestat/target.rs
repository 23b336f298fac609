//! Which page.

use std::fmt;
use std::path::Path;

use spoc_cache::stats::Reader;
use spoc_page::{Entry, PageName, View};
use spoc_tools::failure::{Failure, Result, one_line};

/// A page looked at.
#[derive(Debug)]
pub struct Target {
    entry: Entry,
    label: String,
    /// Its words.
    pub view: View,
}

impl Target {
    /// Process id.
    pub fn pid(&self) -> u32 {
        self.entry.name.process.pid
    }

    /// Process and number of the page.
    pub fn name(&self) -> PageName {
        self.entry.name
    }

    /// Command name, if the process can be seen from here.
    pub fn command(&self) -> Option<&str> {
        self.entry.command.as_deref()
    }

    /// What the page says that it counts; may be empty.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The page's file.
    pub fn path(&self) -> &Path {
        &self.entry.path
    }

    /// Whether the process still lives; yes when in doubt.
    pub fn is_live(&self) -> bool {
        self.view.is_live().unwrap_or(true)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&described(&self.entry, &self.label))
    }
}

/// Finds the page that `wanted` means, or the only process's there is. See [`Wanted`] for what can be written.
pub fn find(wanted: Option<&str>) -> Result<Target> {
    let live = live();
    let labelled: Vec<Labelled> = live.into_iter().map(|entry| (label_of(&entry), entry)).collect();
    let (label, entry) = choose(&labelled, wanted)?.clone();
    let view = open(&entry)?;
    Ok(Target { entry, label, view })
}

/// Every page that one of `wanted` means, all there are if nothing is wanted. Pages that cannot be opened are left out:
/// their process may end at any time.
pub fn find_all(wanted: &[String]) -> Vec<Target> {
    let found = live().into_iter().filter_map(|entry| {
        let view = open(&entry).ok()?;
        let label = view.words().ok().map(label_in).unwrap_or_default();
        Some(Target { entry, label, view })
    });
    let wanted: Vec<Wanted<'_>> = wanted.iter().map(|text| Wanted::parse(text)).collect();
    let is_wanted = |target: &Target| {
        wanted.is_empty() || wanted.iter().any(|wanted| wanted.fits(&target.entry, &target.label))
    };
    found.filter(is_wanted).collect()
}

fn live() -> Vec<Entry> {
    spoc_page::remove_stale();
    spoc_page::list().into_iter().filter(|entry| entry.live).collect()
}

fn open(entry: &Entry) -> Result<View> {
    View::open(&entry.path).map_err(|error| match error.kind() {
        // This error names the file already.
        std::io::ErrorKind::InvalidData => Failure::new("damaged_page", error).at(&entry.path),
        _ => Failure::io(&entry.path, "statistics page", &error),
    })
}

/// Empty where the page cannot be read: whoever chooses it is told why.
fn label_of(entry: &Entry) -> String {
    open(entry).ok().and_then(|view| view.words().ok().map(label_in)).unwrap_or_default()
}

fn label_in(words: &[std::sync::atomic::AtomicU64]) -> String {
    Reader::new(words).map(|reader| one_line(&reader.label())).unwrap_or_default()
}

type Labelled = (String, Entry);

/// `PID`, `NAME` (a command name) or `LABEL`; `PID:PAGE` or `NAME:PAGE` for one page of a process that has several,
/// where `PAGE` is its number or its label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted<'a> {
    whole: &'a str,
    who: &'a str,
    page: Option<&'a str>,
}

impl<'a> Wanted<'a> {
    fn parse(text: &'a str) -> Wanted<'a> {
        match text.split_once(':') {
            Some((who, page)) => Wanted { whole: text, who, page: Some(page) },
            None => Wanted { whole: text, who: text, page: None },
        }
    }

    fn fits(&self, entry: &Entry, label: &str) -> bool {
        let is_who = match self.who.parse::<u32>() {
            Ok(pid) => entry.name.process.pid == pid,
            Err(_) => entry.command.as_deref() == Some(self.who),
        };
        let is_page = match self.page {
            None => true,
            Some(page) => page == label || page.parse() == Ok(entry.name.number),
        };
        (is_who && is_page) || (!label.is_empty() && label == self.whole)
    }
}

fn choose<'a>(live: &'a [Labelled], wanted: Option<&str>) -> Result<&'a Labelled> {
    let parsed = wanted.map(Wanted::parse);
    let fits = |(label, entry): &&Labelled| parsed.is_none_or(|wanted| wanted.fits(entry, label));
    let fitting: Vec<&Labelled> = live.iter().filter(fits).collect();
    let (Some(newest), Some(oldest)) = (fitting.last(), fitting.first()) else {
        let what = wanted.map_or("no process".to_owned(), |wanted| format!("no process \"{wanted}\""));
        return Err(Failure::new(
            "no_target",
            format_args!("{what} with a statistics page; found {}", listed(live)),
        ));
    };
    // Several pages of one process are fine: its newest is what it is busy with.
    if newest.1.name.process != oldest.1.name.process {
        return Err(Failure::new("no_target", format_args!("which one? found {}", listed(live))));
    }
    Ok(newest)
}

fn listed(live: &[Labelled]) -> String {
    if live.is_empty() {
        let dirs: Vec<String> =
            spoc_page::search_dirs().iter().map(|dir| dir.display().to_string()).collect();
        return format!("none in {}", dirs.join(", "));
    }
    live.iter().map(|(label, entry)| described(entry, label)).collect::<Vec<_>>().join(", ")
}

fn described(entry: &Entry, label: &str) -> String {
    let command = entry.command.as_deref().unwrap_or("process");
    let pid = entry.name.process.pid;
    if label.is_empty() { format!("{command} {pid}") } else { format!("{command} {pid}:{label}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spoc_page::ProcessIdentity;

    fn entry(pid: u32, command: &str, number: u32) -> Entry {
        let process = ProcessIdentity { pid, start_ticks: 1, boot_id: 2 };
        let name = PageName { process, number };
        Entry { name, path: name.to_string().into(), live: true, command: Some(command.into()) }
    }

    fn plain(pid: u32, command: &str, number: u32) -> Labelled {
        (String::new(), entry(pid, command, number))
    }

    #[test]
    fn by_pid_by_name_or_alone() {
        let all = [plain(1, "vllm", 0), plain(2, "demo", 0), plain(2, "demo", 1)];
        let chosen =
            |wanted| choose(&all, wanted).map(|(_, entry)| (entry.name.process.pid, entry.name.number)).ok();
        assert_eq!(chosen(Some("1")), Some((1, 0)));
        assert_eq!(chosen(Some("demo")), Some((2, 1)));
        assert_eq!(chosen(Some("demo:0")), Some((2, 0)));
        assert_eq!(chosen(Some("3")), None);
        assert_eq!(chosen(None), None);
        assert_eq!(choose(&all[..1], None).map(|(_, entry)| entry.name.process.pid).ok(), Some(1));
        let message = choose(&all, None).expect_err("ambiguous").message;
        assert_eq!(message, "which one? found vllm 1, demo 2, demo 2");
    }

    #[test]
    fn a_page_of_many_by_its_label() {
        let labelled = |label: &str, number| (label.to_owned(), entry(7, "spoc-loader", number));
        let all =
            [labelled("loads", 0), labelled("experts", 1), labelled("12", 2), plain(8, "spoc-loader", 0)];
        let chosen = |wanted| {
            choose(&all, Some(wanted)).map(|(_, entry)| (entry.name.process.pid, entry.name.number)).ok()
        };
        assert_eq!(chosen("7:experts"), Some((7, 1)));
        assert_eq!(chosen("experts"), Some((7, 1)));
        assert_eq!(chosen("spoc-loader:loads"), Some((7, 0)));
        assert_eq!(chosen("7:12"), Some((7, 2)));
        assert_eq!(chosen("7:0"), Some((7, 0)));
        assert_eq!(chosen("7:nothing"), None);
        assert_eq!(chosen("spoc-loader"), None, "two services");
        assert_eq!(chosen(""), None, "no label is not the empty one");
        let message = choose(&all, None).expect_err("ambiguous").message;
        assert!(message.contains("spoc-loader 7:experts, "), "{message}");
    }

    #[test]
    fn nothing_found_says_where_it_looked() {
        let failure = choose(&[], Some("vllm")).expect_err("none");
        assert_eq!((&*failure.kind, failure.exit), ("no_target", 2));
        assert!(
            failure.message.contains("\"vllm\"") && failure.message.contains("none in /"),
            "{}",
            failure.message
        );
    }
}
