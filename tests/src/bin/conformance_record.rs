//! Runs the conformance suite and writes down what each device did; makes the table of records.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "it answers on standard output")]

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Parser};
use spoc_tests::record::{self, Sought};
use spoc_tests::{FUNCTIONS, Platform};

/// Runs the conformance suite and writes down what each device did; makes the table of records.
#[derive(Debug, Parser)]
enum Command {
    /// Run every check on every device found; one JSON file a device
    Run(Run),
    /// Print the table of the records
    Table(From),
    /// Put the table of the records into a page, between its two marks
    Page {
        /// The page
        page: PathBuf,
        #[command(flatten)]
        from: From,
    },
}

#[derive(Debug, Args)]
struct Run {
    /// The folder for the records
    #[arg(long, default_value = "docs/conformance", env = "SPOC_RECORDS")]
    into: PathBuf,
    /// Backends by name, with commas between [default: all that are found]
    #[arg(long, value_delimiter = ',', env = "SPOC_RECORD_BACKENDS")]
    backend: Vec<String>,
    /// Only devices with this in their name
    #[arg(long, default_value = "", env = "SPOC_RECORD_DEVICE")]
    device: String,
    /// Checks side by side
    #[arg(long, default_value_t = 2, env = "SPOC_RECORD_JOBS")]
    jobs: usize,
}

#[derive(Debug, Args)]
struct From {
    /// The folder of the records
    #[arg(long, default_value = "docs/conformance", env = "SPOC_RECORDS")]
    from: PathBuf,
}

fn main() -> Result<ExitCode> {
    match Command::parse() {
        Command::Run(run) => record_all(&run),
        Command::Table(From { from }) => {
            println!("{}", record::render(&record::read_folder(&from)?));
            Ok(ExitCode::SUCCESS)
        }
        Command::Page { page, from: From { from } } => {
            let text = fs::read_to_string(&page).with_context(|| format!("reading {}", page.display()))?;
            let made = record::page(&text, &record::read_folder(&from)?)?;
            fs::write(&page, made).with_context(|| format!("writing {}", page.display()))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn record_all(run: &Run) -> Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for platform in Platform::all() {
        let kind = platform.kind;
        if !run.backend.is_empty() && !run.backend.iter().any(|name| name == kind.as_str()) {
            continue;
        }
        match record::record(platform, &run.device, run.jobs)? {
            Sought::Missing(reason) => println!("not run: {kind}: {reason}"),
            Sought::Found(records) => {
                for record in records {
                    record.write_into(&run.into)?;
                    println!("{kind}: {}: {} of {} passed", record.device, record.passed, FUNCTIONS.len());
                    for (check, why) in &record.failed {
                        code = ExitCode::FAILURE;
                        println!("{kind}: {check}: {why}");
                    }
                }
            }
        }
    }
    Ok(code)
}
