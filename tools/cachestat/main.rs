//! `cachestat`: what a cache is doing, seen from outside its process.

#![forbid(unsafe_code)]

mod args;
mod rates;
mod slots;
mod target;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use spoc_cache::stats::{PageError, Reader};
use spoc_tools::cli::parse;
use spoc_tools::failure::{Failure, Result};
use spoc_tools::out::{Out, json_line, write_line};
use spoc_tools::process;

use args::{Cli, Command};
use rates::{HEADER, Interval, Sample};
use target::Target;

/// The page is of a version this program does not know.
const EXIT_VERSION: u8 = 3;

fn main() -> ExitCode {
    let cli: Cli = match parse() {
        Ok(cli) => cli,
        Err(code) => return code.into(),
    };
    process::set_up(0);
    let out = Out::new(cli.json());
    run(&cli, out).unwrap_or_else(|failure| out.fail(&failure)).into()
}

fn run(cli: &Cli, out: Out) -> Result<u8> {
    match &cli.command {
        Some(Command::Slots { target }) => {
            let target = target::find(target.as_deref())?;
            look(&target, |reader| out.answer(&slots::table(reader), |table| table.to_string()))?;
        }
        None => {
            let target = target::find(cli.target.as_deref())?;
            match cli.once {
                true => once(&target, out)?,
                false => watch(&target, cli.interval(), cli.count, out)?,
            }
        }
    }
    Ok(0)
}

/// Looks at the page as it is now.
fn look<T>(target: &Target, with: impl FnOnce(&Reader<'_>) -> T) -> Result<T> {
    let words = target.view.words().map_err(|error| target.failure("damaged_page", &error))?;
    let reader = Reader::new(words).map_err(|error| match error {
        PageError::Version { .. } => target.failure("version_mismatch", &error).exit(EXIT_VERSION),
        PageError::NotAPage { .. } | PageError::Damaged { .. } => target.failure("damaged_page", &error),
    })?;
    Ok(with(&reader))
}

/// Everything since the page was made.
fn once(target: &Target, out: Out) -> Result<()> {
    let now = look(target, Sample::take)?;
    show(&Interval::since_start(now), target, true, out);
    Ok(())
}

fn watch(target: &Target, every: Duration, count: Option<u64>, out: Out) -> Result<()> {
    let mut before = look(target, Sample::take)?;
    let mut due = Instant::now();
    for line in 0.. {
        if count.is_some_and(|count| line >= count) {
            break;
        }
        due += every;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let now = look(target, Sample::take)?;
        show(&Interval::between(&before, now.clone()), target, line % 20 == 0, out);
        before = now;
        if !target.is_live() {
            spoc_tools::out::note(format_args!("{target} has ended"));
            break;
        }
    }
    Ok(())
}

fn show(interval: &Interval, target: &Target, with_header: bool, out: Out) {
    if out.is_json() {
        return json_line(&interval.json(target.pid(), target.command()));
    }
    if with_header {
        write_line(&HEADER);
    }
    write_line(interval);
}

impl Target {
    fn failure(&self, kind: &'static str, error: &dyn std::fmt::Display) -> Failure {
        Failure::new(kind, format_args!("{}: {error}", self.path().display())).at(self.path())
    }
}
