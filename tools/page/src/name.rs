//! Whose page it is.

use std::fmt;
use std::io;

/// A process, told apart from a later one with the same pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessIdentity {
    /// Process id in the namespace of the process itself.
    pub pid: u32,
    /// Start time in clock ticks since boot (`/proc/PID/stat`, field 22).
    pub start_ticks: u64,
    /// The kernel's boot id.
    pub boot_id: u128,
}

impl ProcessIdentity {
    /// This process.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn current() -> io::Result<ProcessIdentity> {
        ProcessIdentity::of(std::process::id())
    }

    /// The process that has `pid` now.
    ///
    /// # Errors
    /// `NotFound` when there is none; others when `/proc` cannot be read.
    pub fn of(pid: u32) -> io::Result<ProcessIdentity> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let start_ticks = start_ticks(&stat).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat has no start time"))
        })?;
        Ok(ProcessIdentity { pid, start_ticks, boot_id: boot_id()? })
    }
}

/// The command name stands in parentheses and may contain both spaces and parentheses, so fields count from the last one.
fn start_ticks(stat: &str) -> Option<u64> {
    let after_name = &stat[stat.rfind(')')? + 1..];
    after_name.split_ascii_whitespace().nth(19)?.parse().ok()
}

fn boot_id() -> io::Result<u128> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let hex: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&hex, 16).map_err(|_| {
        io::Error::new(io::ErrorKind::InvalidData, "/proc/sys/kernel/random/boot_id is not a UUID")
    })
}

/// The name of a page's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageName {
    /// Whose page.
    pub process: ProcessIdentity,
    /// Tells several pages of one process apart.
    pub number: u32,
}

impl PageName {
    /// Reads a file name; `None` for any other file.
    pub fn parse(file_name: &str) -> Option<PageName> {
        let mut fields = file_name.strip_suffix(".page")?.split('-');
        let pid = fields.next()?.parse().ok()?;
        let start_ticks = fields.next()?.parse().ok()?;
        let boot_id = u128::from_str_radix(fields.next()?, 16).ok()?;
        let number = fields.next()?.parse().ok()?;
        let name = PageName { process: ProcessIdentity { pid, start_ticks, boot_id }, number };
        // Only the one spelling that `Display` writes.
        (fields.next().is_none() && name.to_string() == file_name).then_some(name)
    }
}

impl fmt::Display for PageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ProcessIdentity { pid, start_ticks, boot_id } = self.process;
        write!(f, "{pid}-{start_ticks}-{boot_id:032x}-{}.page", self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_time_is_found_behind_any_command_name() {
        let tail = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        assert_eq!(start_ticks(&format!("12 (plain) {tail}")), Some(4711));
        assert_eq!(start_ticks(&format!("12 (a) b) (c) {tail}")), Some(4711));
        assert_eq!(start_ticks("12 (cut) S 1 2"), None);
        assert_eq!(start_ticks(""), None);
    }

    #[test]
    fn names_read_back_and_strangers_do_not() {
        let process = ProcessIdentity::current().expect("own identity");
        assert_eq!(process.pid, std::process::id());
        let name = PageName { process, number: 3 };
        assert_eq!(PageName::parse(&name.to_string()), Some(name));
        for stranger in [
            "",
            ".page",
            "1-2-3-4",
            "1-2-3-4.page",
            "+1-2-00000000000000000000000000000003-4.page",
            "1-2-00000000000000000000000000000003-4-5.page",
        ] {
            assert_eq!(PageName::parse(stranger), None, "{stranger}");
        }
    }
}
