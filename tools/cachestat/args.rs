//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser, Subcommand};
use spoc_tools::cli::parse_switch;

use crate::why::parse_key;

/// Shows what a cache is doing, once a second, from its process's statistics page.
///
/// The process does not take part: it may hang or be stopped. Exit codes: 0 done, 2 no such process, 3 the page is of
/// another version.
#[derive(Debug, Parser)]
#[command(name = "cachestat", version, max_term_width = 100, after_help = HELP, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// Process id, command name or label; PID:PAGE for one of several [default: the only process]
    #[arg(value_name = "WHO")]
    pub target: Option<String>,
    /// Seconds between lines
    #[arg(allow_negative_numbers = true, value_parser = parse_interval, default_value = "1")]
    interval: Duration,
    /// How many lines [default: until interrupted]
    #[arg(allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Print the totals since the page was made, and end
    #[arg(long)]
    pub once: bool,
    /// One JSON value a line
    #[arg(long, global = true, env = "SPOC_JSON", value_parser = parse_switch, action = ArgAction::SetTrue)]
    json: bool,
    /// Comma-separated rows with a header
    #[arg(long, global = true, env = "SPOC_CSV", value_parser = parse_switch, action = ArgAction::SetTrue, conflicts_with = "json")]
    csv: bool,
    /// Something else to show.
    #[command(subcommand)]
    pub command: Option<Command>,
}

const HELP: &str = "Columns, per interval unless said otherwise:
  HITS MISS     groups asked for that were, and were not, on the device
  HIT%          hits of all asked for
  LOADS         groups loaded
  MB/s          bytes copied to the device, 10^6 a second
  STALL         ms in each second that somebody waited for a group
  EVICT         groups evicted
  INFLIGHT      loads running now
  LEASED        slots leased now
  FREE/SLOTS    slots free now, of all

Examples:
  cachestat                      the only process there is, a line a second
  cachestat spoc-loader 5 12     a minute in twelve lines
  cachestat 4711 --once --json   totals since the start
  cachestat slots 4711           what every slot holds
  cachestat slots 4711:experts   of the page labelled \"experts\"; `cachestat list` shows the pages
  cachestat top                  every process, live, on the whole screen
  cachestat why 0/17             what happened to group 17 of model 0, and why
  cachestat advise               what more slots would buy, and what is wrong";

/// Further views.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List every slot: what it holds, its state, its use
    Slots {
        /// Process id, command name or label; PID:PAGE for one of several [default: the only process]
        #[arg(value_name = "WHO")]
        target: Option<String>,
    },
    /// Show which groups are held, layer by layer
    Map {
        /// Process id, command name or label; PID:PAGE for one of several [default: the only process]
        #[arg(value_name = "WHO")]
        target: Option<String>,
    },
    /// Watch any number of processes on the whole screen
    Top {
        /// Pages to watch: PID, NAME or LABEL, also PID:PAGE [default: all]
        #[arg(value_name = "WHO")]
        targets: Vec<String>,
        /// Seconds between looks
        #[arg(short, long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = parse_interval, default_value = "1")]
        delay: Duration,
        /// Print one screen and end
        #[arg(long)]
        once: bool,
    },
    /// List the pages there are: process, label, slots
    List,
    /// List the groups used most since they were loaded
    Hot {
        /// Process id, command name or label; PID:PAGE for one of several [default: the only process]
        #[arg(value_name = "WHO")]
        target: Option<String>,
        /// How many
        #[arg(short = 'n', long, default_value_t = 20)]
        most: usize,
    },
    /// Say what happened to a key lately, and why
    Why {
        /// MODEL/GROUP, or GROUP of model 0
        #[arg(value_parser = parse_key)]
        key: (u32, u32),
        /// Process id, command name or label; PID:PAGE for one of several [default: the only process]
        #[arg(value_name = "WHO")]
        target: Option<String>,
    },
    /// Count misses by reason: cold, capacity, policy, loading
    Misses {
        /// Process id, command name or label; PID:PAGE for one of several [default: the only process]
        #[arg(value_name = "WHO")]
        target: Option<String>,
    },
    /// Estimate what more or fewer slots would buy, and say what is wrong
    Advise {
        /// Process id, command name or label; PID:PAGE for one of several [default: the only process]
        #[arg(value_name = "WHO")]
        target: Option<String>,
    },
    /// Compare the counters with what `--once --json` printed earlier
    Diff {
        /// A file with that line
        before: PathBuf,
        /// Process id, command name or label; PID:PAGE for one of several [default: the only process]
        #[arg(value_name = "WHO")]
        target: Option<String>,
    },
}

impl Cli {
    /// Whether to answer in JSON.
    pub fn json(&self) -> bool {
        self.json
    }

    /// Whether to answer in comma-separated rows.
    pub fn csv(&self) -> bool {
        self.csv
    }

    /// Time between lines.
    pub fn interval(&self) -> Duration {
        self.interval
    }
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if !(0.01..=86_400.0).contains(&seconds) {
        return Err("between 0.01 and 86400 seconds".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
        let parse = |args: &[&str]| Cli::try_parse_from(args);
        let cli = parse(&["cachestat", "77", "0.5", "3", "--json"]).expect("parses");
        assert_eq!(
            (cli.target.as_deref(), cli.interval, cli.count),
            (Some("77"), Duration::from_millis(500), Some(3))
        );
        let cli = parse(&["cachestat", "slots", "77", "--json"]).expect("parses");
        assert!(cli.json && matches!(cli.command, Some(Command::Slots { target: Some(_) })));
        let cli = parse(&["cachestat", "top", "a", "b:1", "-d", "0.2"]).expect("parses");
        let Some(Command::Top { targets, delay, once: false }) = cli.command else { panic!("top") };
        assert_eq!((targets.len(), delay), (2, Duration::from_millis(200)));
        for wrong in [&["cachestat", "x", "0"], &["cachestat", "x", "nan"], &["cachestat", "x", "-1"]] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
        assert!(parse(&["cachestat", "x", "1", "0"]).is_err());
    }
}
