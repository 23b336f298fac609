//! `cachestat`: what caches are doing, seen from outside its process.

#![forbid(unsafe_code)]

mod advise;
mod args;
mod rates;
mod residents;
mod slots;
mod table;
mod target;
mod top;
mod why;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use spoc_cache::stats::{PageError, Reader};
use spoc_tools::cli::parse;
use spoc_tools::failure::{Failure, Result};
use spoc_tools::out::{Out, json_line, write_line};
use spoc_tools::process;

use args::{Cli, Command};
use rates::{HEADER, Interval, Sample};
use table::Table;
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
            look(&target, |reader| match cli.csv() {
                true => slots::table(reader).table().show(out, true),
                false => out.answer(&slots::table(reader), |table| table.to_string()),
            })?;
        }
        Some(Command::Map { target }) => {
            look(&target::find(target.as_deref())?, |reader| {
                let grid = residents::grid(reader);
                match cli.csv() {
                    true => grid.table().show(out, true),
                    false => out.answer(&grid, |grid| grid.to_string()),
                }
            })?;
        }
        Some(Command::Top { targets, delay, once }) => {
            if cli.csv() {
                return Err(Failure::usage("top has no --csv; `top --once --json` is for programs"));
            }
            match *once {
                true => top::once(targets, out)?,
                false if cli.json() => {
                    return Err(Failure::usage("top draws a screen; with --json it wants --once"));
                }
                false => top::run(targets, *delay)?,
            }
        }
        Some(Command::List) => list().show(out, cli.csv()),
        Some(Command::Hot { target, most }) => table(cli, target, out, |page| residents::hot(page, *most))?,
        Some(Command::Why { key, target }) => table(cli, target, out, |page| why::events(page, *key))?,
        Some(Command::Misses { target }) => table(cli, target, out, advise::misses)?,
        Some(Command::Advise { target }) => table(cli, target, out, advise::advise)?,
        Some(Command::Diff { before, target }) => {
            let text =
                std::fs::read_to_string(before).map_err(|error| Failure::io(before, "reading", &error))?;
            let then = serde_json::from_str(&text).unwrap_or_default();
            let found = look(&target::find(target.as_deref())?, |page| advise::diff(page, &then))?;
            let expected = "a line that `cachestat --once --json` printed is expected";
            let no_counters = || Failure::usage(format_args!("{}: {expected}", before.display())).at(before);
            found.ok_or_else(no_counters)?.show(out, cli.csv());
        }
        None => {
            let target = target::find(cli.target.as_deref())?;
            match cli.once {
                true => once(&target, cli.csv(), out)?,
                false => watch(&target, cli.interval(), cli.count, cli.csv(), out)?,
            }
        }
    }
    Ok(0)
}

/// The pages there are.
fn list() -> Table {
    let mut table = Table::new(&["pid", "command", "page", "label", "slots", "slot_bytes", "silent_s"]);
    for target in target::find_all(&[]) {
        let mut row = vec![
            json!(target.pid()),
            json!(target.command()),
            json!(target.name().number),
            json!(target.label()),
        ];
        match look(&target, Sample::take) {
            Ok(sample) => row.extend([
                json!(sample.header().slots),
                json!(sample.header().stride_bytes),
                json!(sample.silent_for().map(|silent| silent.as_secs())),
            ]),
            Err(failure) => {
                row.extend([Value::Null, Value::Null, Value::Null]);
                table.remarks.push(failure.message);
            }
        }
        table.push(row);
    }
    table
}

/// Shows a table made of the page.
fn table(
    cli: &Cli,
    target: &Option<String>,
    out: Out,
    make: impl FnOnce(&Reader<'_>) -> Table,
) -> Result<()> {
    look(&target::find(target.as_deref())?, make)?.show(out, cli.csv());
    Ok(())
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
fn once(target: &Target, csv: bool, out: Out) -> Result<()> {
    let now = look(target, Sample::take)?;
    show(&Interval::since_start(now), target, true, csv, out);
    Ok(())
}

fn watch(target: &Target, every: Duration, count: Option<u64>, csv: bool, out: Out) -> Result<()> {
    let mut before = look(target, Sample::take)?;
    let mut due = Instant::now();
    for line in 0.. {
        if count.is_some_and(|count| line >= count) {
            break;
        }
        due += every;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let now = look(target, Sample::take)?;
        show(
            &Interval::between(&before, now.clone()),
            target,
            if csv { line == 0 } else { line % 20 == 0 },
            csv,
            out,
        );
        before = now;
        if !target.is_live() {
            spoc_tools::out::note(format_args!("{target} has ended"));
            break;
        }
    }
    Ok(())
}

fn show(interval: &Interval, target: &Target, with_header: bool, csv: bool, out: Out) {
    if out.is_json() {
        return json_line(&interval.json(target.pid(), target.command()));
    }
    if csv {
        return interval.csv(with_header);
    }
    if with_header {
        for remark in interval.diagnostics() {
            spoc_tools::out::note(remark);
        }
        write_line(&HEADER);
    }
    write_line(interval);
}

impl Target {
    fn failure(&self, kind: &'static str, error: &dyn std::fmt::Display) -> Failure {
        Failure::new(kind, format_args!("{}: {error}", self.path().display())).at(self.path())
    }
}
