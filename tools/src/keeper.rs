//! `spoc-loader keeper`: keeps a service's descriptors while it restarts.

use std::path::PathBuf;

use clap::Args;
use spoc_page::keep::KeeperServer;

use crate::failure::{Failure, Result};
use crate::out::Out;

/// Arguments of `keeper`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "It opens no device and maps nothing. Weights are resident until the service lets them go or the keeper
ends. Example:
  spoc-loader keeper --socket /run/spoc/keeper.sock
  spoc-loader serve --park keeper:/run/spoc/keeper.sock"
)]
pub struct KeeperArgs {
    /// Where it listens, for its own user only
    #[arg(long, env = "SPOC_KEEPER_SOCKET", value_name = "PATH")]
    pub socket: PathBuf,
}

/// Keeps until it is ended.
///
/// # Errors
/// `socket_in_use` if a keeper answers there; what the kernel says.
pub fn run(args: &KeeperArgs, out: Out) -> Result<u8> {
    let path = &args.socket;
    let mut keeper = KeeperServer::bind(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            Failure::new("socket_in_use", format_args!("{}: a keeper answers there", path.display())).at(path)
        }
        _ => Failure::io(path, "listening", &error),
    })?;
    out.answer(&serde_json::json!({"ready": true, "socket": path}), |_| {
        format!("keeping on {}", path.display())
    });
    spoc_service::ops::systemd::ready("keeping");
    loop {
        keeper.turn(-1).map_err(|error| Failure::io(path, "serving", &error))?;
    }
}
