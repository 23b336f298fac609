//! Options of `ctl`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Subcommand};
use spoc_service::Size;

use crate::cli::parse_switch;
use crate::units::parse_time;

/// Arguments of `ctl`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  spoc-loader ctl info
  spoc-loader ctl register /models/llama --arena experts
  spoc-loader ctl load llama --verify
  spoc-loader ctl --socket /run/spoc/spoc.sock stats")]
pub struct CtlArgs {
    /// Control socket of the service [default: in the user's runtime folder, /run/spoc/spoc.sock for root]
    #[arg(long, env = "SPOC_SOCKET", value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub command: CtlCommand,
}

/// What a service is told.
#[derive(Clone, Debug, Subcommand)]
pub enum CtlCommand {
    /// What runs: version, devices, arenas
    Info,
    /// Registered models
    Models,
    /// Read a model's headers and give it a name
    Register {
        /// A weight file, a folder, or a Hugging Face name
        source: String,
        /// What to call it [default: the last part of the source]
        #[arg(long, env = "SPOC_CTL_NAME", default_value = "")]
        name: String,
        /// Let its groups compete in this arena; `auto` makes one for it [default: it is loaded as a whole]
        #[arg(long, env = "SPOC_CTL_ARENA", default_value = "")]
        arena: String,
        /// Pattern that names groups, as for `inspect --groups`
        #[arg(long, env = "SPOC_CTL_GROUPS", default_value = "")]
        groups: String,
    },
    /// Forget a model that nobody holds
    Unregister {
        /// Its name
        model: String,
    },
    /// A model's groups
    Describe {
        /// Its name
        model: String,
    },
    /// Load a model into device memory
    Load {
        /// Its name
        model: String,
        /// UUID of the device [default: the first]
        #[arg(long, env = "SPOC_CTL_DEVICE", default_value = "")]
        device: String,
        /// Compare with the manifest beside the model on the way
        #[arg(long, env = "SPOC_CTL_VERIFY", value_parser = parse_switch, action = ArgAction::SetTrue)]
        verify: bool,
        /// Only tensors whose name matches
        #[arg(long, env = "SPOC_CTL_TENSORS", default_value = "")]
        tensors: String,
    },
    /// Loaded models, and what clients made
    Images,
    /// Keep an image
    Pin {
        /// Its name
        image: String,
    },
    /// Let an image go when it is told to
    Unpin {
        /// Its name
        image: String,
    },
    /// Free an image that nobody holds, or groups of a model
    Evict {
        /// Name of an image; of a model, with --groups
        name: String,
        /// Numbers of groups
        #[arg(long, env = "SPOC_CTL_GROUP_NUMBERS", value_delimiter = ',')]
        groups: Vec<u32>,
    },
    /// Begin to read groups of a model
    Prefetch {
        /// Its name
        model: String,
        /// Numbers of groups
        #[arg(long, env = "SPOC_CTL_GROUP_NUMBERS", value_delimiter = ',', required = true)]
        groups: Vec<u32>,
    },
    /// Slot caches
    Arenas,
    /// Give an arena another number of slots
    Resize {
        /// Its name
        arena: String,
        /// Slots of its first class
        slots: u32,
        /// Time for leases to end
        #[arg(long, env = "SPOC_CTL_TIMEOUT", default_value = "10s", value_parser = parse_time, value_name = "TIME")]
        timeout: Duration,
    },
    /// Give device memory of an arena back
    GiveBack {
        /// Its name
        arena: String,
        /// How much at least
        bytes: Size,
        /// Time for leases to end
        #[arg(long, env = "SPOC_CTL_TIMEOUT", default_value = "10s", value_parser = parse_time, value_name = "TIME")]
        timeout: Duration,
    },
    /// Counters, arenas, sessions
    Stats,
    /// Print what happens as it happens
    Events,
    /// Refuse new work, and wait until nothing is held
    Drain {
        /// How long to wait
        #[arg(long, env = "SPOC_CTL_TIMEOUT", default_value = "1m", value_parser = parse_time, value_name = "TIME")]
        timeout: Duration,
    },
    /// Drain and end the service
    Shutdown {
        /// How long leases may take to end
        #[arg(long, env = "SPOC_CTL_TIMEOUT", default_value = "10s", value_parser = parse_time, value_name = "TIME")]
        timeout: Duration,
    },
}
