//! Arguments of `replay`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use spoc_cache::policy::{PolicyKind, Scope};

use crate::cli::Io;
use crate::units::parse_size;

/// Arguments of `replay`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spoc-loader replay routes.csv --capacity 0.125                   an eighth of all experts, the default policy
  spoc-loader replay select32.u8.gz --slots 192 --policy lru --batch 4
  spoc-loader replay routes.jsonl --capacity 0.25 --scope layer --inserts-max 1 --json
  spoc-loader replay select32.u8.gz --capacity 0.25 --tokens-max 100 --device    for real, on the first GPU or in host memory")]
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
    /// Only the first tokens of all prompts together, at least one
    #[arg(long, env = "SPOC_REPLAY_TOKENS_MAX", allow_negative_numbers = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub tokens_max: Option<u32>,
    /// Run it for real on a device, by index or UUID: experts from a file into slots, leased and multiplied [default: 0]
    #[arg(long, env = "SPOC_REPLAY_DEVICE", num_args = 0..=1, default_missing_value = "0", value_name = "N|UUID", conflicts_with = "inserts_max")]
    pub device: Option<String>,
    /// How it is run for real.
    #[command(flatten)]
    pub real: RealArgs,
}

/// With `--device`.
#[derive(Debug, Args)]
#[command(next_help_heading = "With --device")]
pub struct RealArgs {
    /// cuda or native [default: the first GPU found, else native]
    #[arg(long, env = "SPOC_BACKEND", value_name = "NAME")]
    pub backend: Option<String>,
    /// Bytes of each expert, rounded up to rows of 16 KiB [default: what the trace says, else 1 MiB]
    #[arg(long, env = "SPOC_REPLAY_EXPERT_BYTES", value_parser = parse_size, value_name = "SIZE")]
    pub expert_bytes: Option<u64>,
    /// How often each expert is multiplied: as much computing as an engine does beside it
    #[arg(long, env = "SPOC_REPLAY_PASSES", allow_negative_numbers = true, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub passes: u32,
    /// Events whose experts are known ahead
    #[arg(long, env = "SPOC_REPLAY_AHEAD", allow_negative_numbers = true, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u32).range(..=64))]
    pub ahead: u32,
    /// Pinned host memory for experts that left their slots [default: none]
    #[arg(long, env = "SPOC_REPLAY_TIER_BYTES", value_parser = parse_size, value_name = "SIZE")]
    pub tier_bytes: Option<u64>,
    /// How the file is read
    #[arg(long, env = "SPOC_IO", value_enum, default_value_t = Io::Auto)]
    pub io: Io,
    /// Size of the pinned ring between disk and device [default: 64 MiB, or what there is]
    #[arg(long, env = "SPOC_STAGING_BYTES", value_parser = parse_size, value_name = "SIZE")]
    pub staging_bytes: Option<u64>,
    /// Folder to make the file of experts in [default: the system's temporary folder]
    #[arg(long, env = "SPOC_REPLAY_DIR", value_name = "DIR")]
    pub dir: Option<PathBuf>,
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
