//! The file system that models lie on, and the folder for statistics pages.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::sys::statfs::statfs;
use spoc_io::WeightFile;

use super::{Finding, System};

pub(super) fn findings(system: &System, models: &Path) -> Vec<Finding> {
    let mut findings = vec![file_system(models)];
    if system.is_real() {
        findings.push(direct_io(models));
        findings.push(runtime_folder());
    }
    findings
}

/// Names of the magic numbers in `statfs`(2) that weights are met on.
fn file_system_name(magic: i64) -> Option<&'static str> {
    Some(match magic {
        0xEF53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683E => "btrfs",
        0xF2F5_2010 => "f2fs",
        0x2FC1_2FC1 => "zfs",
        0x0102_1994 => "tmpfs",
        0x8584_58F6 => "ramfs",
        0x794C_7630 => "overlay",
        0x6573_5546 => "fuse",
        0x6969 => "nfs",
        0xFF53_4D42 => "cifs",
        0xFE53_4D42 => "smb2",
        0x0BD0_0BD0 => "lustre",
        0x4750_4653 => "gpfs",
        0x00C3_6400 => "ceph",
        0x7371_7368 => "squashfs",
        0xE0F5_E1E2 => "erofs",
        0x0102_1997 => "9p",
        _ => return None,
    })
}

fn file_system(models: &Path) -> Finding {
    let check = "storage.file_system";
    match statfs(models) {
        Ok(info) => {
            #[allow(clippy::unnecessary_cast, reason = "the type differs between C libraries")]
            let magic = info.filesystem_type().0 as i64;
            let name = file_system_name(magic).map_or_else(|| format!("type {magic:#x}"), str::to_owned);
            Finding::ok(check, format!("{}: {name}", models.display()))
        }
        Err(errno) => Finding::fail(
            check,
            format!("{}: {}", models.display(), errno.desc()),
            "give the folder your models are in: spoc-loader doctor DIR",
        ),
    }
}

/// Tries it on a file that is there, because a file system may accept the flag and still be the wrong answer.
fn direct_io(models: &Path) -> Finding {
    let check = "storage.direct_io";
    let Some(file) = some_file(models) else {
        let fix = "name a weight file: spoc-loader doctor FILE";
        return Finding::unknown(check, format!("no regular file in {} to try", models.display()), fix);
    };
    let opened =
        OpenOptions::new().read(true).custom_flags((OFlag::O_DIRECT | OFlag::O_CLOEXEC).bits()).open(&file);
    match opened {
        Ok(_) => Finding::ok(check, format!("{} opens with O_DIRECT{}", file.display(), alignment(&file))),
        Err(error) if error.raw_os_error() == Some(nix::libc::EINVAL) => Finding::warn(
            check,
            format!("{}: refused by the file system; reads go through the page cache", file.display()),
            "keep models on ext4 or xfs",
        ),
        Err(error) => {
            Finding::unknown(check, format!("{}: {error}", file.display()), "make the file readable")
        }
    }
}

fn alignment(file: &Path) -> String {
    match WeightFile::open(file).map(|file| file.direct_align()) {
        Ok(align) if align.known => {
            format!(", aligned to {} in memory and {} in the file", align.memory_bytes, align.offset_bytes)
        }
        Ok(align) => format!(", alignment not told by the file system, {} assumed", align.offset_bytes),
        Err(_) => String::new(),
    }
}

/// The path itself, or the first regular file directly in it, weight files first.
fn some_file(path: &Path) -> Option<PathBuf> {
    if path.is_file() {
        return Some(path.to_path_buf());
    }
    let is_weights =
        |path: &PathBuf| path.extension().is_some_and(|end| end == "safetensors" || end == "gguf");
    let items = std::fs::read_dir(path).ok()?.flatten().map(|item| item.path());
    items.filter(|path| path.is_file()).min_by_key(|path| (!is_weights(path), path.clone()))
}

fn runtime_folder() -> Finding {
    match spoc_page::create_dir() {
        Ok(dir) => Finding::ok("statistics.folder", dir.display().to_string()),
        Err(error) => Finding::warn(
            "statistics.folder",
            format!("{error}: cachestat will see nothing"),
            "set SPOC_RUNTIME_DIR",
        ),
    }
}
