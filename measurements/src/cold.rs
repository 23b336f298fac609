//! Cold files and a steady disk. Both need root; both undo what they did.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Drops the page cache of the whole machine, so that the next read meets the disk.
///
/// # Errors
/// The kernel refuses to anyone but root.
pub fn drop_caches() -> Result<()> {
    fs::write("/proc/sys/vm/drop_caches", "1").context("dropping the page cache needs root")
}

/// A cgroup (v1, blkio) that holds a disk's reads to a steady rate; removed on drop.
#[derive(Debug)]
pub struct Throttle {
    folder: PathBuf,
}

impl Throttle {
    /// Limits reads of the disk below `file` to `bytes_per_second` for commands made by [`Throttle::command`].
    ///
    /// # Errors
    /// There is no cgroup v1 blkio controller, or it refuses.
    pub fn new(file: &Path, bytes_per_second: u64) -> Result<Self> {
        let controller = Path::new("/sys/fs/cgroup/blkio");
        if !controller.join("cgroup.procs").exists() {
            bail!("no blkio controller of cgroup v1 at {}", controller.display());
        }
        let folder = controller.join(format!("spoc-measure-{}", std::process::id()));
        fs::create_dir(&folder).with_context(|| format!("making {}", folder.display()))?;
        let throttle = Self { folder };
        let limit = format!("{} {bytes_per_second}", whole_disk(file)?);
        fs::write(throttle.folder.join("blkio.throttle.read_bps_device"), &limit)
            .with_context(|| format!("limiting reads to `{limit}`"))?;
        Ok(throttle)
    }

    /// A command that runs `program` inside the limit.
    #[must_use]
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        let joined = self.folder.join("cgroup.procs");
        command.arg("-c").arg("echo $$ > \"$0\" && exec \"$@\"").arg(joined).arg(program);
        command
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        // The children have been waited for, so the group is empty; a leftover is harmless and named.
        if let Err(error) = fs::remove_dir(&self.folder) {
            eprintln!("left behind: {} ({error})", self.folder.display());
        }
    }
}

/// `major:minor` of the disk that holds `file`: the throttle knows whole disks, not partitions.
fn whole_disk(file: &Path) -> Result<String> {
    let device = fs::metadata(file).with_context(|| format!("looking at {}", file.display()))?.dev();
    let (major, minor) = (nix_major(device), nix_minor(device));
    let block = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}"))
        .with_context(|| format!("{} lies on no block device", file.display()))?;
    let disk =
        if block.join("partition").exists() { block.parent().unwrap_or(&block).to_path_buf() } else { block };
    Ok(fs::read_to_string(disk.join("dev"))?.trim().to_owned())
}

/// Linux's 64-bit device number keeps the major in bits 8–19 and 44–63.
fn nix_major(device: u64) -> u64 {
    ((device >> 8) & 0xfff) | ((device >> 32) & !0xfff)
}

/// … and the minor in bits 0–7 and 20–43.
fn nix_minor(device: u64) -> u64 {
    (device & 0xff) | ((device >> 12) & !0xff)
}
