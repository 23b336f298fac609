//! Descriptors that a service manager passed on (`LISTEN_FDS`): listening sockets, and what was kept for a restart.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

/// The first one: 0 to 2 are the standard streams.
const FIRST: RawFd = 3;
/// More than any unit passes on; keeps a mistyped number from closing the process's own files.
const MOST: RawFd = 4096;

/// A descriptor passed on.
#[derive(Debug)]
pub struct Inherited {
    /// Its name (`LISTEN_FDNAMES`), or `unknown`.
    pub name: String,
    /// Owned from now on; not passed on to children.
    pub descriptor: OwnedFd,
}

/// Whether [`inherited`] was called: the descriptors have an owner then.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes the descriptors that were passed to this process. Call it before anything else opens a file; a second call finds
/// none, and so does a child, because `LISTEN_PID` names its parent.
///
/// # Errors
/// The variables contradict each other, or name a descriptor that is not open; nothing is taken then.
pub fn inherited() -> io::Result<Vec<Inherited>> {
    let variable = |name: &str| std::env::var(name).ok();
    let names = names(
        std::process::id(),
        variable("LISTEN_PID").as_deref(),
        variable("LISTEN_FDS").as_deref(),
        variable("LISTEN_FDNAMES").as_deref(),
    )?;
    if names.is_empty() || TAKEN.swap(true, Ordering::SeqCst) {
        return Ok(Vec::new());
    }
    let numbered = || (FIRST..).zip(&names);
    for (number, name) in numbered() {
        close_on_exec(number).map_err(|errno| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("LISTEN_FDS: descriptor {number} ({name}): {errno}"),
            )
        })?;
    }
    let own = |(number, name): (RawFd, &String)| Inherited {
        name: name.clone(),
        // SAFETY: the service manager passed this descriptor on to this very process (LISTEN_PID) for it to own; that it
        // is open was checked just above; and nobody else takes it, because `TAKEN` was false before.
        descriptor: unsafe { OwnedFd::from_raw_fd(number) },
    };
    Ok(numbered().map(own).collect())
}

fn close_on_exec(number: RawFd) -> nix::Result<()> {
    // SAFETY: the borrow ends with this call; a number that is not open makes it fail with EBADF and nothing else.
    let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
    fcntl(borrowed, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).map(|_| ())
}

/// One name a descriptor.
fn names(
    own_pid: u32,
    pid: Option<&str>,
    count: Option<&str>,
    names: Option<&str>,
) -> io::Result<Vec<String>> {
    let (Some(pid), Some(count)) = (pid, count) else { return Ok(Vec::new()) };
    let wrong = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, what.to_owned()));
    let Ok(pid) = pid.parse::<u32>() else { return wrong("LISTEN_PID is not a process id") };
    if pid != own_pid {
        return Ok(Vec::new());
    }
    let count = match count.parse::<RawFd>() {
        Ok(count @ 0..=MOST) => count,
        _ => return wrong("LISTEN_FDS is not a number of descriptors"),
    };
    let given: Vec<&str> = names.map(|names| names.split(':').collect()).unwrap_or_default();
    if names.is_some() && i32::try_from(given.len()) != Ok(count) {
        return wrong("LISTEN_FDNAMES has another number of names than LISTEN_FDS says");
    }
    let name = |index: RawFd| {
        let given = usize::try_from(index).ok().and_then(|index| given.get(index));
        given.map_or_else(|| "unknown".to_owned(), |name| (*name).to_owned())
    };
    Ok((0..count).map(name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_must_agree() {
        let read = |pid, count, given| names(7, pid, count, given).map_err(|error| error.to_string());
        assert_eq!(read(None, None, None), Ok(vec![]));
        assert_eq!(read(Some("8"), Some("1"), None), Ok(vec![]), "another process's");
        assert_eq!(read(Some("7"), Some("2"), None), Ok(vec!["unknown".into(), "unknown".into()]));
        assert_eq!(
            read(Some("7"), Some("2"), Some("control:lend")),
            Ok(vec!["control".into(), "lend".into()])
        );
        for (pid, count, given) in [
            ("x", "1", None),
            ("7", "-1", None),
            ("7", "99999999999", None),
            ("7", "5000", None),
            ("7", "2", Some("control")),
        ] {
            assert!(read(Some(pid), Some(count), given).is_err(), "{pid} {count} {given:?}");
        }
    }

    #[test]
    fn this_process_was_passed_none() {
        assert!(inherited().expect("no variables").is_empty());
    }
}
