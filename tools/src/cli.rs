//! The command line of `spoc-loader`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use spoc_cache::policy::PolicyKind;

use crate::ctl::args::CtlArgs;
use crate::demo::model::LAYERS;
use crate::failure::Failure;
use crate::keeper::KeeperArgs;
use crate::out::{Out, write_line};
use crate::placed::args::PlacementArgs;
use crate::placed::plan::PlanArgs;
use crate::replay::args::ReplayArgs;
use crate::serve::args::{ConfigCommand, ServeArgs};
use crate::units::{parse_size, parse_time};

/// Weights from file to device memory at the speed of the wire.
///
/// Exit codes: 0 done; 1 `doctor` found something broken; 2 anything that went wrong, with one line on standard error;
/// 4 bytes differ from what a manifest or a blob's name says.
/// Every option can also be set in the environment, by the name shown; the command line wins.
#[derive(Debug, Parser)]
#[command(name = "spoc-loader", version, max_term_width = 100, after_help = EXAMPLES, arg_required_else_help = false)]
pub struct Cli {
    /// What all commands take.
    #[command(flatten)]
    pub common: Common,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "Examples:
  spoc-loader demo                       see it work, with nothing but this machine
  spoc-loader load model.safetensors --check
  spoc-loader doctor ~/models            what stands between this machine and full speed";

/// Options of every command.
#[derive(Clone, Copy, Debug, Args)]
pub struct Common {
    /// Answer with one JSON value on standard output; failures as {"error":{"kind","message","file"}}
    #[arg(long, global = true, env = "SPOC_JSON", value_parser = parse_switch, action = ArgAction::SetTrue)]
    pub json: bool,
    /// More log lines on standard error (-v info, -vv debug, -vvv trace; SPOC_LOG sets filters)
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
    /// Errors only
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
}

impl Common {
    /// As [`crate::process::set_up`] wants it.
    pub fn verbosity(self) -> i16 {
        if self.quiet { -1 } else { i16::from(self.verbose) }
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write a small model, stream it into slots, check every byte
    Demo(DemoArgs),
    /// Load a model into device memory, of one device or of several
    Load(Box<LoadArgs>),
    /// Say what a load would read, and what would go over each link, before anything moves
    Plan(Box<PlanArgs>),
    /// List a model's tensors
    Inspect(InspectArgs),
    /// Write down what every byte of a model is, in a file beside it
    Manifest(ManifestArgs),
    /// Compare a model with its manifest, or with the digests that Hugging Face blobs are named by
    Verify(VerifyArgs),
    /// Say what an eviction policy would have done on recorded expert routing
    Replay(ReplayArgs),
    /// List the devices found, and why the rest was not
    Devices(DevicesArgs),
    /// Try on every device what backends promise, and print one block to post
    Selftest(SelftestArgs),
    /// Check the kernel, the limits and the hardware; each finding with its one fix
    Doctor(DoctorArgs),
    /// Own device memory, stream weights in, lend them to other processes
    Serve(ServeArgs),
    /// Check or print a configuration of `serve`
    #[command(subcommand, arg_required_else_help = false)]
    Config(ConfigCommand),
    /// Tell a running service what to do
    Ctl(CtlArgs),
    /// Keep a service's descriptors while it restarts, so that weights outlive it
    Keeper(KeeperArgs),
    /// Measure the ceilings that a load cannot pass
    #[command(subcommand, arg_required_else_help = false)]
    Bench(BenchCommand),
}

/// How files are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Io {
    /// The fastest that works, by what the page cache holds and what the kernel allows
    Auto,
    /// Past the page cache, wherever the file system allows it
    Direct,
    /// Through the page cache
    Buffered,
    /// Without io_uring: a pool of threads calling pread
    Pread,
}

impl From<Io> for spoc_io::IoMode {
    fn from(io: Io) -> spoc_io::IoMode {
        match io {
            Io::Auto => spoc_io::IoMode::Auto,
            Io::Direct => spoc_io::IoMode::Direct,
            Io::Buffered => spoc_io::IoMode::Buffered,
            Io::Pread => spoc_io::IoMode::Pread,
        }
    }
}

/// Which device.
#[derive(Clone, Debug, Args)]
pub struct DeviceArgs {
    /// cuda, hip, opencl, vulkan, metal, webgpu, native or interpreter [default: the first GPU found, else native]
    #[arg(long, env = "SPOC_BACKEND", value_name = "NAME")]
    pub backend: Option<String>,
    /// Device index or UUID, as `spoc-loader devices` shows them [default: 0]
    #[arg(long, env = "SPOC_DEVICE", allow_hyphen_values = true, value_name = "N|UUID")]
    pub device: Option<String>,
}

/// Arguments of `devices`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spoc-loader devices
  spoc-loader devices --matrix     what each can do, as a table in Markdown")]
pub struct DevicesArgs {
    /// What each device can do, as a table in Markdown, with the reason for what it cannot
    #[arg(long, env = "SPOC_MATRIX", value_parser = parse_switch, action = ArgAction::SetTrue)]
    pub matrix: bool,
}

/// Arguments of `selftest`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spoc-loader selftest                       every device that is found
  spoc-loader selftest --backend hip         one backend's first device")]
pub struct SelftestArgs {
    /// Which device alone.
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// Arguments of `demo`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spoc-loader demo
  spoc-loader demo --rounds 8 --slots 6 --policy lru     watch LRU fall off its cliff
  spoc-loader demo --json | jq .cache")]
pub struct DemoArgs {
    /// Folder to make the temporary model in [default: the system's temporary folder]
    #[arg(long, env = "SPOC_DEMO_DIR", value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// How many times all layers are visited in order
    #[arg(
        long,
        env = "SPOC_DEMO_ROUNDS",
        allow_negative_numbers = true,
        default_value_t = 4,
        value_name = "N"
    )]
    pub rounds: u32,
    /// How many slots the 12 layers share, 1 to 12 [default: 9]
    #[arg(long, env = "SPOC_DEMO_SLOTS", allow_negative_numbers = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(LAYERS)))]
    pub slots: Option<u32>,
    /// Which layer leaves when a slot is needed: forecast, cycle, lru, lfu-decay, s3-fifo or w-tinylfu
    #[arg(long, env = "SPOC_DEMO_POLICY", default_value_t = PolicyKind::default(), value_name = "NAME")]
    pub policy: PolicyKind,
    /// Pause after each visit, so that cachestat has something to watch
    #[arg(
        long,
        env = "SPOC_DEMO_PACE_MS",
        allow_negative_numbers = true,
        default_value_t = 0,
        value_name = "MS"
    )]
    pub pace_ms: u64,
    /// Keep the model instead of removing it
    #[arg(long, env = "SPOC_DEMO_KEEP", value_parser = parse_switch, action = ArgAction::SetTrue)]
    pub keep: bool,
}

/// Arguments of `load`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spoc-loader load model.safetensors
  spoc-loader load ~/models/llama --io direct --staging-bytes 64MiB --check
  spoc-loader load ~/models/llama --verify               against the manifest that `spoc-loader manifest` wrote
  spoc-loader load ~/models/llama --devices 0,1 --layout tp
  spoc-loader load ~/.cache/huggingface/hub/models--org--name/snapshots/REV --tensors 'model.layers.0.*' --json")]
pub struct LoadArgs {
    /// A weight file, a folder with an index, or a Hugging Face cache snapshot folder
    pub model: PathBuf,
    /// Where to.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Several devices, by index: 0,1, or all; each byte is read once for all of them
    #[arg(long, env = "SPOC_DEVICES", value_name = "LIST", conflicts_with_all = ["device", "tensors"])]
    pub devices: Option<String>,
    /// What goes to which of them.
    #[command(flatten)]
    pub placement: PlacementArgs,
    /// How to read
    #[arg(long, env = "SPOC_IO", value_enum, default_value_t = Io::Auto)]
    pub io: Io,
    /// Size of the staging ring (bytes, or with K, M, G, KiB, MiB, GiB) [default: 64MiB, less where memory is short]
    #[arg(long, env = "SPOC_STAGING_BYTES", value_parser = parse_size, allow_hyphen_values = true, value_name = "SIZE")]
    pub staging_bytes: Option<u64>,
    /// Only tensors whose name matches; * and ? cross dots, {a,b} and [0-9] work
    #[arg(long, env = "SPOC_TENSORS", value_name = "GLOB")]
    pub tensors: Option<String>,
    /// End with an error when a read takes longer than this (500ms, 30s, 2m) [default: wait for ever]
    #[arg(long, env = "SPOC_READ_DEADLINE", value_parser = parse_time, allow_hyphen_values = true, value_name = "TIME")]
    pub read_deadline: Option<Duration>,
    /// Read everything back from the device and compare it with the file
    #[arg(long, env = "SPOC_CHECK", value_parser = parse_switch, action = ArgAction::SetTrue)]
    pub check: bool,
    /// Compare every chunk with the model's manifest before it is copied
    #[arg(long, env = "SPOC_VERIFY", value_parser = parse_switch, action = ArgAction::SetTrue)]
    pub verify: bool,
    /// The manifest to compare with; implies --verify [default: the one beside the model]
    #[arg(long, env = "SPOC_MANIFEST", value_name = "PATH")]
    pub manifest: Option<PathBuf>,
}

/// Digest of a tensor's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Digest {
    /// XXH3, 128 bits: fast, against accidents
    Xxh3,
    /// CRC-32C: as fast, 32 bits, against accidents
    Crc32c,
    /// BLAKE3: cryptographic, and fast
    Blake3,
    /// SHA-256: cryptographic, and what others publish
    Sha256,
}

impl From<Digest> for spoc_io::DigestKind {
    fn from(digest: Digest) -> spoc_io::DigestKind {
        match digest {
            Digest::Xxh3 => spoc_io::DigestKind::Xxh3,
            Digest::Crc32c => spoc_io::DigestKind::Crc32c,
            Digest::Blake3 => spoc_io::DigestKind::Blake3,
            Digest::Sha256 => spoc_io::DigestKind::Sha256,
        }
    }
}

/// Arguments of `manifest`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spoc-loader manifest model.safetensors
  spoc-loader manifest ~/models/llama --digest blake3 --out llama.spoc-manifest.json")]
pub struct ManifestArgs {
    /// A weight file, a folder with an index, or a Hugging Face name or snapshot folder
    pub model: PathBuf,
    /// The digest function
    #[arg(long, env = "SPOC_DIGEST", value_enum, default_value_t = Digest::Xxh3)]
    pub digest: Digest,
    /// Where to write it [default: beside the file, as NAME.spoc-manifest.json; in the folder, as spoc-manifest.json]
    #[arg(long, env = "SPOC_MANIFEST", value_name = "PATH")]
    pub out: Option<PathBuf>,
}

/// Arguments of `verify`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spoc-loader verify model.safetensors
  spoc-loader verify org/name                 the blobs of a Hugging Face cache, by their names
  spoc-loader verify ~/models/llama --manifest llama.spoc-manifest.json --json")]
pub struct VerifyArgs {
    /// A weight file, a folder with an index, or a Hugging Face name or snapshot folder
    pub model: PathBuf,
    /// The manifest to compare with [default: the one beside the model; without one, the names of its blobs]
    #[arg(long, env = "SPOC_MANIFEST", value_name = "PATH")]
    pub manifest: Option<PathBuf>,
    /// How to read
    #[arg(long, env = "SPOC_IO", value_enum, default_value_t = Io::Auto)]
    pub io: Io,
}

/// Arguments of `inspect`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spoc-loader inspect model.safetensors
  spoc-loader inspect ~/models/llama --digest sha256 --json")]
pub struct InspectArgs {
    /// A weight file, a folder with an index, or a Hugging Face cache snapshot folder
    pub model: PathBuf,
    /// Also read every tensor and print its digest
    #[arg(long, env = "SPOC_DIGEST", value_enum)]
    pub digest: Option<Digest>,
    /// Show the groups that move as one, instead of the tensors
    #[arg(long, env = "SPOC_GROUPS", conflicts_with = "digest", value_parser = parse_switch, action = ArgAction::SetTrue)]
    pub groups: bool,
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spoc-loader doctor
  spoc-loader doctor /mnt/nvme/models --json")]
pub struct DoctorArgs {
    /// Where models lie: its file system is looked at
    #[arg(default_value = ".", env = "SPOC_DOCTOR_PATH")]
    pub path: PathBuf,
}

/// The benchmarks.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Read files through the loader's own reader, to no device
    Read(BenchReadArgs),
    /// Copy pinned host memory to a device, by chunk size
    Link(BenchLinkArgs),
    /// Load a model end to end, against what its reader and the link reach alone
    Load(BenchLoadArgs),
    /// Copy pinned host memory to scattered slots, by chunk size
    Small(BenchSmallArgs),
    /// Load what tensor-parallel ranks take of a model, against the whole of it
    Slices(BenchSlicesArgs),
    /// Fill slots beside a kernel that reads all the others
    Overlap(BenchOverlapArgs),
    /// Replace a model on the device by another one out of pinned host memory
    Switch(BenchSwitchArgs),
    /// Load a model onto several devices, against one alone and all links together
    Multi(Box<BenchMultiArgs>),
}

/// Arguments of `bench read`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spoc-loader bench read model.safetensors --io direct
  spoc-loader bench read shard-*.safetensors --chunk-bytes 4MiB --depth 8 --json")]
pub struct BenchReadArgs {
    /// Files to read, whole
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// How to read
    #[arg(long, env = "SPOC_IO", value_enum, default_value_t = Io::Auto)]
    pub io: Io,
    /// Bytes in one read [default: the reader's own]
    #[arg(long, env = "SPOC_CHUNK_BYTES", value_parser = parse_size, allow_hyphen_values = true, value_name = "SIZE")]
    pub chunk_bytes: Option<u64>,
    /// Reads in flight [default: the reader's own]
    #[arg(long, env = "SPOC_DEPTH", allow_negative_numbers = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub depth: Option<u32>,
    /// Size of the staging ring [default: 64MiB, less where memory is short]
    #[arg(long, env = "SPOC_STAGING_BYTES", value_parser = parse_size, allow_hyphen_values = true, value_name = "SIZE")]
    pub staging_bytes: Option<u64>,
}

/// Arguments of `bench link`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spoc-loader bench link
  spoc-loader bench link --backend cuda --device 0 --json")]
pub struct BenchLinkArgs {
    /// Where to.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Size of the pinned ring that is copied from [default: 64MiB, less where memory is short]
    #[arg(long, env = "SPOC_STAGING_BYTES", value_parser = parse_size, allow_hyphen_values = true, value_name = "SIZE")]
    pub staging_bytes: Option<u64>,
    /// How long each chunk size is measured
    #[arg(
        long,
        env = "SPOC_BENCH_MS",
        allow_negative_numbers = true,
        default_value_t = 300,
        value_name = "MS"
    )]
    pub time_ms: u64,
}

/// Arguments of `bench load`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spoc-loader bench load model.safetensors
  spoc-loader bench load ~/models/llama --backend cuda --chunk-bytes 4MiB --threads 12 --json")]
pub struct BenchLoadArgs {
    /// A weight file, a folder with an index, or a Hugging Face cache snapshot folder
    pub model: PathBuf,
    /// Where to.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// How to read
    #[arg(long, env = "SPOC_IO", value_enum, default_value_t = Io::Auto)]
    pub io: Io,
    /// Size of the staging ring [default: 64MiB, less where memory is short]
    #[arg(long, env = "SPOC_STAGING_BYTES", value_parser = parse_size, allow_hyphen_values = true, value_name = "SIZE")]
    pub staging_bytes: Option<u64>,
    /// Bytes of a chunk [default: 1MiB, less in a small ring]
    #[arg(long, env = "SPOC_CHUNK_BYTES", value_parser = parse_size, allow_hyphen_values = true, value_name = "SIZE")]
    pub chunk_bytes: Option<u64>,
    /// Threads that read what the page cache holds [default: three for every four cores, 4 to 16]
    #[arg(long, env = "SPOC_THREADS", allow_negative_numbers = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: Option<u32>,
    /// Reads in flight on the ring [default: the reader's own]
    #[arg(long, env = "SPOC_DEPTH", allow_negative_numbers = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub depth: Option<u32>,
    /// Loads, of which the median counts
    #[arg(long, env = "SPOC_RUNS", allow_negative_numbers = true, default_value_t = 3, value_name = "N")]
    pub runs: usize,
    /// The loads alone, without the ceilings and the first layer
    #[arg(long, env = "SPOC_QUICK", value_parser = parse_switch, action = ArgAction::SetTrue)]
    pub quick: bool,
    /// Read everything back from the device and compare it with the file, after each load
    #[arg(long, env = "SPOC_CHECK", value_parser = parse_switch, action = ArgAction::SetTrue)]
    pub check: bool,
}

/// Arguments of `bench small`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spoc-loader bench small
  spoc-loader bench small --backend cuda --tier-bytes 1GiB --json")]
pub struct BenchSmallArgs {
    /// Where to.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Pinned host memory to copy from
    #[arg(long, env = "SPOC_TIER_BYTES", default_value = "256MiB", value_parser = parse_size, allow_hyphen_values = true, value_name = "SIZE")]
    pub tier_bytes: u64,
    /// Runs of each size, of which the median counts
    #[arg(long, env = "SPOC_RUNS", allow_negative_numbers = true, default_value_t = 5, value_name = "N")]
    pub runs: usize,
}

/// Arguments of `bench slices`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spoc-loader bench slices model.safetensors --ranks 8 --check")]
pub struct BenchSlicesArgs {
    /// A weight file, a folder with an index, or a Hugging Face cache snapshot folder
    pub model: PathBuf,
    /// Where to.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Parts that a tensor is cut into
    #[arg(long, env = "SPOC_RANKS", allow_negative_numbers = true, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub ranks: u32,
    /// Loads of each kind, of which the median counts
    #[arg(long, env = "SPOC_RUNS", allow_negative_numbers = true, default_value_t = 3, value_name = "N")]
    pub runs: usize,
    /// Read everything back from the device and compare it with the file
    #[arg(long, env = "SPOC_CHECK", value_parser = parse_switch, action = ArgAction::SetTrue)]
    pub check: bool,
}

/// Arguments of `bench overlap`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spoc-loader bench overlap --slot-bytes 16MiB
  spoc-loader bench overlap --backend cuda --steps 100 --json")]
pub struct BenchOverlapArgs {
    /// Where to.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Bytes of a slot
    #[arg(long, env = "SPOC_SLOT_BYTES", default_value = "256MiB", value_parser = parse_size, allow_hyphen_values = true, value_name = "SIZE")]
    pub slot_bytes: u64,
    /// Steps of a run: each fills one slot and reads the others
    #[arg(long, env = "SPOC_STEPS", allow_negative_numbers = true, default_value_t = 128, value_name = "N")]
    pub steps: usize,
    /// Runs, of which the median counts
    #[arg(long, env = "SPOC_RUNS", allow_negative_numbers = true, default_value_t = 5, value_name = "N")]
    pub runs: usize,
}

/// Arguments of `bench switch`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spoc-loader bench switch old.safetensors new.safetensors --backend cuda")]
pub struct BenchSwitchArgs {
    /// The model that leaves
    pub from: PathBuf,
    /// The model that comes
    pub to: PathBuf,
    /// Where to.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Switches, of which the median counts
    #[arg(long, env = "SPOC_RUNS", allow_negative_numbers = true, default_value_t = 3, value_name = "N")]
    pub runs: usize,
}

/// Arguments of `bench multi`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  spoc-loader bench multi model.safetensors --devices 0,1 --layout tp --check
  SPOC_NATIVE_DEVICES=2 SPOC_NATIVE_LINK=1GB spoc-loader bench multi model.safetensors --backend native")]
pub struct BenchMultiArgs {
    /// A weight file, a folder with an index, or a Hugging Face cache snapshot folder
    pub model: PathBuf,
    /// Devices, by index: 0,1, or all
    #[arg(long, env = "SPOC_DEVICES", value_name = "LIST", default_value = "all")]
    pub devices: String,
    /// Whose devices.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// The shares to measure.
    #[command(flatten)]
    pub placement: PlacementArgs,
    /// How to read
    #[arg(long, env = "SPOC_IO", value_enum, default_value_t = Io::Auto)]
    pub io: Io,
    /// Size of the staging ring [default: 64MiB, less where memory is short]
    #[arg(long, env = "SPOC_STAGING_BYTES", value_parser = parse_size, allow_hyphen_values = true, value_name = "SIZE")]
    pub staging_bytes: Option<u64>,
    /// Loads of each kind, of which the median counts
    #[arg(long, env = "SPOC_RUNS", allow_negative_numbers = true, default_value_t = 3, value_name = "N")]
    pub runs: usize,
    /// The loads alone, without the links
    #[arg(long, env = "SPOC_QUICK", value_parser = parse_switch, action = ArgAction::SetTrue)]
    pub quick: bool,
    /// Read everything back from the devices and compare it with the files, after each load
    #[arg(long, env = "SPOC_CHECK", value_parser = parse_switch, action = ArgAction::SetTrue)]
    pub check: bool,
}

/// Parses the arguments, or reports why not. `Err` is the exit code: 0 after help and version, 2 after a mistake.
///
/// # Errors
/// See above; everything has been printed.
pub fn parse<P: Parser>() -> Result<P, u8> {
    P::try_parse().map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            write_line(&error.render().to_string().trim_end());
            0
        }
        _ => Out::new(wants_json(std::env::args_os()))
            .fail(&Failure::usage(mistake(&error.render().to_string()))),
    })
}

/// Arguments that cannot be parsed can still say how the caller wants to hear it.
fn wants_json(args: impl Iterator<Item = OsString>) -> bool {
    let mut options = args.take_while(|arg| arg != "--");
    options.any(|arg| arg == "--json")
        || std::env::var("SPOC_JSON").is_ok_and(|value| parse_switch(&value) == Ok(true))
}

/// The value of a variable that stands for a switch, in any case; empty is as if it were not set.
///
/// # Errors
/// One line that says what is accepted.
pub fn parse_switch(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" | "y" | "t" => Ok(true),
        "0" | "false" | "no" | "off" | "n" | "f" | "" => Ok(false),
        _ => Err("write 1, true, yes or on; 0, false, no or off; or nothing".to_owned()),
    }
}

/// Clap writes a paragraph; users of this program get a line.
fn mistake(rendered: &str) -> String {
    let told = rendered.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:"));
    let told = told.filter(|line| !line.is_empty() && !line.starts_with("For more information"));
    let line = told.collect::<Vec<_>>().join(" ");
    line.strip_prefix("error: ").unwrap_or(&line).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound_and_every_command_has_help() {
        let mut command = Cli::command();
        command.build();
        command.clone().debug_assert();
        for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
            assert!(sub.get_about().is_some(), "{}", sub.get_name());
        }
    }

    #[test]
    fn slots_of_the_demo_are_at_most_its_layers() {
        let slots = |slots: &str| Cli::try_parse_from(["spoc-loader", "demo", "--slots", slots]);
        assert!(slots("1").is_ok() && slots(&LAYERS.to_string()).is_ok());
        for wrong in ["0", "13", "4294967295", "4294967296"] {
            let line = mistake(&slots(wrong).expect_err(wrong).render().to_string());
            assert!(line.contains(wrong), "{line}");
        }
        let mut command = Cli::command();
        command.build();
        let help = command.find_subcommand_mut("demo").expect("demo").render_help().to_string();
        let said = format!("{LAYERS} layers share, 1 to {LAYERS} [default: {}]", LAYERS * 3 / 4);
        assert!(help.split_whitespace().collect::<Vec<_>>().join(" ").contains(&said), "{help}");
    }

    #[test]
    fn every_option_has_a_variable() {
        fn visit(command: &clap::Command) {
            let exempt = ["help", "version", "verbose", "quiet"];
            for option in command.get_opts().filter(|option| !exempt.contains(&option.get_id().as_str())) {
                let variable = option.get_env().unwrap_or_else(|| panic!("{option} has no variable"));
                assert!(variable.to_string_lossy().starts_with("SPOC_"));
            }
            command.get_subcommands().for_each(visit);
        }
        let mut command = Cli::command();
        command.build();
        visit(&command);
    }

    #[test]
    fn mistakes_fit_on_a_line() {
        let parse = |args: &[&str]| Cli::try_parse_from(args).expect_err("a mistake").render().to_string();
        let line = mistake(&parse(&["spoc-loader", "load", "m", "--io", "fast"]));
        assert!(line.starts_with("invalid value 'fast'") && line.contains("pread"), "{line}");
        assert!(!line.contains('\n') && !line.contains("Usage"), "{line}");
        let line = mistake(&parse(&["spoc-loader", "load"]));
        assert!(line.contains("<MODEL>"), "{line}");
        for (args, names) in [
            (&["spoc-loader"][..], ["demo", "bench"]),
            (&["spoc-loader", "--json"], ["demo", "bench"]),
            (&["spoc-loader", "bench"], ["read", "link"]),
        ] {
            let line = mistake(&parse(args));
            assert!(line.contains("requires a subcommand") && !line.contains("speed of the wire"), "{line}");
            assert!(names.iter().all(|name| line.contains(name)), "{line}");
        }
    }

    #[test]
    fn numbers_below_zero_are_values_and_not_options() {
        for (args, option) in [
            (&["load", "m", "--staging-bytes", "-1"][..], "--staging-bytes"),
            (&["load", "m", "--staging-bytes", "-64MiB"], "--staging-bytes"),
            (&["bench", "read", "m", "--chunk-bytes", "-1"], "--chunk-bytes"),
            (&["bench", "read", "m", "--depth", "-1"], "--depth"),
            (&["bench", "link", "--time-ms", "-1"], "--time-ms"),
            (&["demo", "--slots", "-1"], "--slots"),
            (&["demo", "--rounds", "-1"], "--rounds"),
            (&["demo", "--pace-ms", "-1"], "--pace-ms"),
        ] {
            let args = ["spoc-loader"].iter().chain(args);
            let line = mistake(&Cli::try_parse_from(args).expect_err(option).render().to_string());
            assert!(line.starts_with("invalid value '-") && line.contains(option), "{line}");
            assert!(!line.contains("tip"), "{line}");
        }
        let cli = Cli::try_parse_from(["spoc-loader", "load", "m", "--device", "-1"]).expect("parses");
        assert!(matches!(cli.command, Command::Load(args) if args.device.device.as_deref() == Some("-1")));
    }

    #[test]
    fn switches_in_variables_are_read_in_any_case() {
        for (text, value) in
            [("1", true), ("TRUE", true), ("Yes", true), ("oN", true), ("", false), ("NO", false)]
        {
            assert_eq!(parse_switch(text), Ok(value), "{text}");
        }
        assert!(parse_switch("maybe").is_err() && parse_switch(" ").is_err());
    }
}
