//! Which page.

use std::fmt;
use std::path::Path;

use spoc_page::{Entry, View};
use spoc_tools::failure::{Failure, Result};

/// The process looked at.
#[derive(Debug)]
pub struct Target {
    entry: Entry,
    /// Its page.
    pub view: View,
}

impl Target {
    /// Process id.
    pub fn pid(&self) -> u32 {
        self.entry.name.process.pid
    }

    /// Command name, if the process can be seen from here.
    pub fn command(&self) -> Option<&str> {
        self.entry.command.as_deref()
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
        f.write_str(&described(&self.entry))
    }
}

/// Finds the page of the process called `wanted` (a pid or a command name), or the only one there is.
pub fn find(wanted: Option<&str>) -> Result<Target> {
    spoc_page::remove_stale();
    let live: Vec<Entry> = spoc_page::list().into_iter().filter(|entry| entry.live).collect();
    let entry = choose(&live, wanted)?.clone();
    let view = View::open(&entry.path).map_err(|error| match error.kind() {
        // This error names the file already.
        std::io::ErrorKind::InvalidData => Failure::new("damaged_page", error).at(&entry.path),
        _ => Failure::io(&entry.path, "statistics page", &error),
    })?;
    Ok(Target { entry, view })
}

fn choose<'a>(live: &'a [Entry], wanted: Option<&str>) -> Result<&'a Entry> {
    let pid: Option<u32> = wanted.and_then(|text| text.parse().ok());
    let fits = |entry: &&Entry| match (wanted, pid) {
        (None, _) => true,
        (Some(_), Some(pid)) => entry.name.process.pid == pid,
        (Some(name), None) => entry.command.as_deref() == Some(name),
    };
    let fitting: Vec<&Entry> = live.iter().filter(fits).collect();
    let (Some(newest), Some(oldest)) = (fitting.last(), fitting.first()) else {
        let what = wanted.map_or("no process".to_owned(), |wanted| format!("no process \"{wanted}\""));
        return Err(Failure::new(
            "no_target",
            format_args!("{what} with a statistics page; found {}", listed(live)),
        ));
    };
    // Several pages of one process are fine: its newest is what it is busy with.
    if newest.name.process != oldest.name.process {
        return Err(Failure::new("no_target", format_args!("which one? found {}", listed(live))));
    }
    Ok(newest)
}

fn listed(live: &[Entry]) -> String {
    if live.is_empty() {
        let dirs: Vec<String> =
            spoc_page::search_dirs().iter().map(|dir| dir.display().to_string()).collect();
        return format!("none in {}", dirs.join(", "));
    }
    live.iter().map(described).collect::<Vec<_>>().join(", ")
}

fn described(entry: &Entry) -> String {
    format!("{} {}", entry.command.as_deref().unwrap_or("process"), entry.name.process.pid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use spoc_page::{PageName, ProcessIdentity};

    fn entry(pid: u32, command: &str, number: u32) -> Entry {
        let process = ProcessIdentity { pid, start_ticks: 1, boot_id: 2 };
        let name = PageName { process, number };
        Entry { name, path: name.to_string().into(), live: true, command: Some(command.into()) }
    }

    #[test]
    fn by_pid_by_name_or_alone() {
        let all = [entry(1, "vllm", 0), entry(2, "demo", 0), entry(2, "demo", 1)];
        let chosen =
            |wanted| choose(&all, wanted).map(|entry| (entry.name.process.pid, entry.name.number)).ok();
        assert_eq!(chosen(Some("1")), Some((1, 0)));
        assert_eq!(chosen(Some("demo")), Some((2, 1)));
        assert_eq!(chosen(Some("3")), None);
        assert_eq!(chosen(None), None);
        assert_eq!(choose(&all[..1], None).map(|entry| entry.name.process.pid).ok(), Some(1));
        let message = choose(&all, None).expect_err("ambiguous").message;
        assert_eq!(message, "which one? found vllm 1, demo 2, demo 2");
    }

    #[test]
    fn nothing_found_says_where_it_looked() {
        let failure = choose(&[], Some("vllm")).expect_err("none");
        assert_eq!((failure.kind, failure.exit), ("no_target", 2));
        assert!(
            failure.message.contains("\"vllm\"") && failure.message.contains("none in /"),
            "{}",
            failure.message
        );
    }
}
