//! Arguments of `replay`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use spoc_cache::policy::{PolicyKind, Scope};

/// Arguments of `replay`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spoc-loader replay routes.csv --capacity 0.125                   an eighth of all experts, the default policy
  spoc-loader replay select32.u8.gz --slots 192 --policy lru --batch 4
  spoc-loader replay routes.jsonl --capacity 0.25 --scope layer --inserts-max 1 --json")]
pub struct ReplayArgs {
    /// Recorded routing: .jsonl (our own format, or an engine's dump), .csv, or .u8.gz with its .index.json; see docs/traces.md
    pub trace: PathBuf,
    /// Slots of the pool
    #[arg(long, env = "SPOC_REPLAY_SLOTS", allow_negative_numbers = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "capacity", required_unless_present = "capacity")]
    pub slots: Option<u32>,
    /// Slots of the pool as a part of all experts, above 0 and up to 1
    #[arg(long, env = "SPOC_REPLAY_CAPACITY", allow_negative_numbers = true, value_name = "F", value_parser = parse_part)]
    pub capacity: Option<f64>,
    /// Which expert leaves: forecast, cycle, lru, lfu-decay, s3-fifo or w-tinylfu
    #[arg(long, env = "SPOC_REPLAY_POLICY", default_value_t = PolicyKind::default(), value_name = "NAME")]
    pub policy: PolicyKind,
    /// What competes for a slot: global (all experts) or layer (each layer has its share)
    #[arg(long, env = "SPOC_REPLAY_SCOPE", default_value = "global", value_name = "SCOPE")]
    pub scope: Scope,
    /// Prompts that decode at the same time; one that ends is replaced by the next
    #[arg(long, env = "SPOC_REPLAY_BATCH", allow_negative_numbers = true, default_value_t = 1, value_name = "B", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub batch: u32,
    /// Consecutive tokens of a prompt that are served together
    #[arg(long, env = "SPOC_REPLAY_TOKENS", allow_negative_numbers = true, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub tokens_per_event: u32,
    /// At most so many loads a layer and step; other misses are computed elsewhere [default: every miss is loaded]
    #[arg(long, env = "SPOC_REPLAY_INSERTS_MAX", allow_negative_numbers = true, value_name = "K")]
    pub inserts_max: Option<u32>,
    /// Only every second prompt, from the first (even) or the second one (odd)
    #[arg(long, env = "SPOC_REPLAY_PROMPTS", value_enum, default_value_t = Prompts::All)]
    pub prompts: Prompts,
}

/// Which prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Prompts {
    /// All of them
    All,
    /// The first, the third, …
    Even,
    /// The second, the fourth, …
    Odd,
}

fn parse_part(text: &str) -> Result<f64, String> {
    let part: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if part > 0.0 && part <= 1.0 { Ok(part) } else { Err("above 0 and up to 1".to_owned()) }
}
