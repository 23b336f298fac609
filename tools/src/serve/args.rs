//! Options of `serve`, `config` and `ctl`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use spoc_service::{Config, Overrides, Size};

use crate::failure::Result;
use crate::units::parse_time;

/// What is configured: each wins over the file.
#[derive(Clone, Debug, Args)]
pub struct ConfigArgs {
    /// Configuration file; without one, and without the options below, the defaults hold
    #[arg(long, env = "SPOC_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Control socket [default: in the user's runtime folder, /run/spoc/spoc.sock for root]
    #[arg(long, env = "SPOC_SOCKET", value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Permission bits of the sockets, octal [default: 0600]
    #[arg(long, env = "SPOC_SOCKET_MODE", value_name = "BITS")]
    pub socket_mode: Option<String>,
    /// Devices, by UUID or as backend:index [default: the first GPU found, else native]
    #[arg(long, env = "SPOC_DEVICES", value_delimiter = ',', value_name = "DEVICE")]
    pub devices: Vec<String>,
    /// Staging ring of each device [default: 64MiB]
    #[arg(long, env = "SPOC_STAGING_BYTES", value_name = "SIZE")]
    pub staging_bytes: Option<Size>,
    /// Folders that models may lie in [default: any that the service can read]
    #[arg(long = "root", env = "SPOC_ROOTS", value_delimiter = ':', value_name = "DIR")]
    pub roots: Vec<PathBuf>,
    /// Where /metrics, /healthz and /readyz are served: 127.0.0.1:PORT, or unix:/PATH [default: nowhere]
    #[arg(long, env = "SPOC_METRICS", value_name = "ADDRESS")]
    pub metrics: Option<String>,
    /// Where descriptors are parked, so that weights outlive the service: keeper:PATH, or systemd [default: nowhere]
    #[arg(long, env = "SPOC_PARK", value_name = "WHERE")]
    pub park: Option<String>,
}

impl ConfigArgs {
    /// The file with what the options say.
    ///
    /// # Errors
    /// `not_found`, `config`.
    pub fn config(&self) -> Result<Config> {
        let config = self.config.as_deref().map(Config::read).transpose()?.unwrap_or_default();
        let over = Overrides {
            socket: self.socket.clone(),
            socket_mode: self.socket_mode.clone(),
            devices: self.devices.clone(),
            staging: self.staging_bytes,
            roots: self.roots.clone(),
            metrics: self.metrics.clone(),
            park: self.park.clone(),
        };
        Ok(config.with(over)?)
    }
}

/// Arguments of `serve`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  spoc-loader serve                                  the first device, a socket of one's own
  spoc-loader serve --config spoc.toml --metrics 127.0.0.1:9464
  spoc-loader ctl register /models/llama && spoc-loader ctl load llama
SIGTERM drains and ends; SIGHUP reads access, quotas and roots again.")]
pub struct ServeArgs {
    /// What is configured.
    #[command(flatten)]
    pub configured: ConfigArgs,
    /// Time for leases to end once the service is told to (500ms, 30s, 2m)
    #[arg(long, env = "SPOC_DRAIN", default_value = "10s", value_parser = parse_time, value_name = "TIME")]
    pub drain: Duration,
    /// Threads that answer requests; reading and copying have their own
    #[arg(long, env = "SPOC_SERVE_THREADS", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64), value_name = "N")]
    pub threads: u16,
}

impl ServeArgs {
    /// See [`ConfigArgs::config`].
    ///
    /// # Errors
    /// As there.
    pub fn config(&self) -> Result<Config> {
        self.configured.config()
    }
}

/// What to do with a configuration.
#[derive(Clone, Debug, Subcommand)]
pub enum ConfigCommand {
    /// Say whether the service would start with it: keys, values, devices
    Check(ConfigArgs),
    /// Write it down with everything that is not said filled in
    Print(ConfigArgs),
}
