//! `spoc-loader`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use spoc_tools::cli::{Cli, Command, parse};
use spoc_tools::doctor::{System, examine, render};
use spoc_tools::failure::{Failure, Result};
use spoc_tools::out::Out;
use spoc_tools::process;

fn main() -> ExitCode {
    let cli: Cli = match parse() {
        Ok(cli) => cli,
        Err(code) => return code.into(),
    };
    process::set_up(cli.common.verbosity());
    let out = Out::new(cli.common.json);
    run(&cli.command, out).unwrap_or_else(|failure| out.fail(&failure)).into()
}

fn run(command: &Command, out: Out) -> Result<u8> {
    match command {
        Command::Doctor(args) => {
            let report = examine(&System::here(), &args.path);
            out.answer(&report, render);
            Ok(u8::from(report.fail > 0))
        }
        _ => Err(Failure::new("unsupported", "this command is not there yet")),
    }
}
