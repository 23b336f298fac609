//! What a program does before its command: limits, signals, logs.

use std::panic::PanicHookInfo;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use nix::sys::signal::{SigSet, Signal, raise};
use tracing_subscriber::EnvFilter;

use crate::out;

/// Prepares this process. `verbosity`: −1 errors only, 0 warnings, 1 info, 2 debug, 3 and above trace; `SPOC_LOG` wins.
pub fn set_up(verbosity: i16) {
    std::panic::set_hook(Box::new(report_bug));
    start_logs(verbosity);
    raise_open_files();
}

/// A panic is our fault, never the input's: say so, in a form that can be reported.
fn report_bug(info: &PanicHookInfo<'_>) {
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    let what = info.payload_as_str().unwrap_or("no message");
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("unnamed").to_owned();
    out::note(format_args!(
        "bug in spoc: {what} (thread {name}, {place}); please report this line and what you ran"
    ));
}

fn start_logs(verbosity: i16) {
    let level = match verbosity {
        i16::MIN..=-1 => "error",
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let wanted = std::env::var_os("SPOC_LOG").filter(|filter| !filter.is_empty());
    let filter = match wanted.as_ref().map(|_| EnvFilter::try_from_env("SPOC_LOG")) {
        Some(Ok(filter)) => filter,
        Some(Err(error)) => {
            let told = wanted.unwrap_or_default();
            let told = crate::failure::one_line(&told.to_string_lossy());
            out::note(format_args!("SPOC_LOG={told} is not a filter ({error}); the level is {level}"));
            EnvFilter::new(level)
        }
        None => EnvFilter::new(level),
    };
    let started = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(out::shows_progress())
        .try_init();
    // Only a second call fails, and then logs already run.
    drop(started);
}

/// A model of many shards needs many descriptors, and the soft limit is often 1024.
fn raise_open_files() {
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((soft, hard)) if soft < hard => {
            if let Err(errno) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
                tracing::info!(soft, hard, %errno, "the limit of open files stays");
            }
        }
        _ => {}
    }
}

/// User and system time of the whole process so far, in seconds.
pub fn cpu_seconds() -> f64 {
    getrusage(UsageWho::RUSAGE_SELF).map_or(0.0, |usage| {
        let parts = [usage.user_time(), usage.system_time()];
        parts.iter().map(|time| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6).sum()
    })
}

/// Processor time of the threads alive now whose names begin with one of `prefixes`, in seconds.
pub fn thread_cpu_seconds(prefixes: &[&str]) -> f64 {
    let read =
        |folder: &std::path::Path, file: &str| std::fs::read_to_string(folder.join(file)).unwrap_or_default();
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let of_one = |folder: PathBuf| {
        let name = read(&folder, "comm");
        if !prefixes.iter().any(|prefix| name.starts_with(prefix)) {
            return 0.0;
        }
        // The first field is the time on a processor, in nanoseconds.
        let spent = read(&folder, "schedstat").split(' ').next().and_then(|ns| ns.parse::<f64>().ok());
        spent.unwrap_or(0.0) / 1e9
    };
    // The sum of nothing is -0.0.
    threads.map(|entry| of_one(entry.path())).fold(0.0, |all, one| all + one)
}

/// Ends a run politely on Ctrl-C, SIGTERM or SIGHUP, and when standard output fails: what was promised to be temporary
/// is removed.
#[derive(Clone, Debug)]
pub struct Interrupt {
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    stopping: AtomicBool,
    doomed: Mutex<Vec<PathBuf>>,
}

/// The one that [`end`] asks what to remove.
static WATCHING: OnceLock<Interrupt> = OnceLock::new();

/// Ends this process with `code` from wherever it is; what was promised to be temporary is removed first.
pub fn end(code: u8) -> ! {
    if let Some(interrupt) = WATCHING.get() {
        interrupt.remove_all();
    }
    std::process::exit(code.into())
}

/// Of `signals`, those that whoever started this process did not tell it to ignore, as `nohup` and a shell's `&` do.
fn not_ignored(signals: &[Signal], status: &str) -> Vec<Signal> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    signals.iter().copied().filter(|signal| ignored >> (*signal as i32 - 1) & 1 == 0).collect()
}

impl Interrupt {
    /// Starts watching. Call once, and before any other thread starts, because the signals are blocked for the threads to
    /// come. Signals that the process was started to ignore stay ignored.
    pub fn watch() -> Interrupt {
        let interrupt = WATCHING.get_or_init(|| Interrupt { state: Arc::default() }).clone();
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let signals = not_ignored(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP], &status);
        if signals.is_empty() {
            return interrupt;
        }
        let signals: SigSet = signals.into_iter().collect();
        let watcher = interrupt.clone();
        let started = signals.thread_block().is_ok()
            && std::thread::Builder::new()
                .name("spoc-signals".into())
                .spawn(move || watcher.wait(&signals))
                .is_ok();
        if !started {
            tracing::warn!("signals are not watched: an interrupted run may leave temporary files");
            let _ = signals.thread_unblock();
        }
        interrupt
    }

    /// Makes a file or a folder that is removed when a signal or a failing standard output ends the run: from the moment
    /// it is there, because the removal waits for the making. Never returns once the run is ending.
    ///
    /// # Errors
    /// What `make` says.
    pub fn temporary<T, E>(
        &self,
        make: impl FnOnce() -> Result<T, E>,
        path: impl FnOnce(&T) -> PathBuf,
    ) -> Result<T, E> {
        {
            let mut doomed = self.state.doomed.lock().unwrap_or_else(PoisonError::into_inner);
            if !self.state.stopping.load(Ordering::Relaxed) {
                let made = make()?;
                doomed.push(path(&made));
                return Ok(made);
            }
        }
        loop {
            std::thread::park();
        }
    }

    /// `path` is to stay, or gone.
    pub fn keep(&self, path: &std::path::Path) {
        self.state.doomed.lock().unwrap_or_else(PoisonError::into_inner).retain(|doomed| doomed != path);
    }

    /// Once a signal came, never returns: whoever writes files asks, so as not to race with their removal. The signal
    /// ends the process in a moment.
    pub fn pause_if_stopping(&self) {
        while self.state.stopping.load(Ordering::Relaxed) {
            std::thread::park();
        }
    }

    fn remove_all(&self) {
        self.state.stopping.store(true, Ordering::Relaxed);
        for path in self.state.doomed.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            remove(&path);
        }
    }

    fn wait(&self, signals: &SigSet) {
        let Ok(signal) = signals.wait() else { return };
        self.remove_all();
        // The default action of the signal itself ends the process, so that a shell sees why.
        let _ = signals.thread_unblock();
        let _ = raise(signal);
        std::process::exit(130);
    }
}

/// A writer may still be adding files: try until the folder is gone, but not for long.
fn remove(path: &std::path::Path) {
    for _ in 0..50 {
        let done = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
        if done.is_ok() || !path.exists() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    out::note(format_args!("{} could not be removed", path.display()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_ignored_from_the_start_are_not_watched() {
        let all = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
        let left = |mask: &str| not_ignored(&all, &format!("Name:\tx\nSigIgn:\t{mask}\nSigCgt:\t0\n"));
        assert_eq!(left("0000000000001000"), all);
        assert_eq!(left("0000000000000001"), [Signal::SIGINT, Signal::SIGTERM]);
        assert_eq!(left("0000000000000003"), [Signal::SIGTERM]);
        assert_eq!(left("ffffffffffffffff"), []);
        assert_eq!(not_ignored(&all, ""), all);
    }

    #[test]
    fn nothing_temporary_is_made_behind_the_back_of_the_removal() {
        let interrupt = Interrupt { state: Arc::default() };
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("made");
        let (begun, wait_begun) = std::sync::mpsc::channel();
        let maker = {
            let (interrupt, path) = (interrupt.clone(), path.clone());
            let make = move || {
                begun.send(()).map_err(std::io::Error::other)?;
                std::thread::sleep(std::time::Duration::from_millis(100));
                std::fs::create_dir(&path).map(|()| path)
            };
            std::thread::spawn(move || interrupt.temporary(make, PathBuf::clone))
        };
        wait_begun.recv().expect("the making has begun");
        interrupt.remove_all();
        let made = maker.join().expect("no panic").expect("made");
        assert!(made == path && !path.exists());
        let late = interrupt.clone();
        std::thread::spawn(move || late.temporary(|| std::fs::create_dir(&path), |()| PathBuf::new()));
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!made.exists());
    }

    #[test]
    fn no_thread_costs_a_plain_zero() {
        assert!(thread_cpu_seconds(&["there is no such thread"]).is_sign_positive());
        assert!(cpu_seconds().is_sign_positive());
    }
}
