//! `spoc-loader`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use spoc_tools::cli::{BenchCommand, Cli, Command, parse};
use spoc_tools::doctor::{System, examine, render};
use spoc_tools::failure::Result;
use spoc_tools::out::Out;
use spoc_tools::{
    bench, ctl, demo, devices, inspect, keeper, load, manifest, placed, process, replay, selftest, serve,
    verify,
};

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
        Command::Demo(args) => demo::run(args, out),
        Command::Load(args) => load::run(args, out),
        Command::Plan(args) => placed::plan::run(args, out),
        Command::Inspect(args) => inspect::run(args, out),
        Command::Manifest(args) => manifest::run(args, out),
        Command::Verify(args) => verify::run(args, out),
        Command::Replay(args) => replay::run(args, out),
        Command::Serve(args) => serve::run(args, out),
        Command::Config(command) => serve::config(command, out),
        Command::Ctl(args) => ctl::run(args, out),
        Command::Keeper(args) => keeper::run(args, out),
        Command::Devices(args) => devices::run(args, out),
        Command::Bench(BenchCommand::Read(args)) => bench::read::run(args, out),
        Command::Bench(BenchCommand::Link(args)) => bench::link::run(args, out),
        Command::Bench(BenchCommand::Load(args)) => bench::load::run(args, out),
        Command::Bench(BenchCommand::Small(args)) => bench::small::run(args, out),
        Command::Bench(BenchCommand::Slices(args)) => bench::slices::run(args, out),
        Command::Bench(BenchCommand::Overlap(args)) => bench::overlap::run(args, out),
        Command::Bench(BenchCommand::Switch(args)) => bench::switch::run(args, out),
        Command::Bench(BenchCommand::Multi(args)) => bench::multi::run(args, out),
        Command::Selftest(args) => selftest::run(args, out),
        Command::Doctor(args) => {
            let report = examine(&System::here(), &args.path);
            out.answer(&report, render);
            // Something is broken, although the command did its work.
            Ok(u8::from(report.fail > 0))
        }
    }
}
