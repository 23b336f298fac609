//! Faults made for real: file systems that answer short, fail or hang. Each test says what it needs and prints why it
//! did not run without it. `SPOC_CASES` names a folder with `faultfs.py`, a FUSE server that injects faults.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr, reason = "a test")]
#![allow(clippy::cast_possible_truncation, reason = "test sizes are small")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use spoc_io::{
    AnonymousRegion, ErrorKind, Extent, HostRegion, IoMode, IoPath, PlanBuilder, PlanOptions, ReadClass,
    ReadPlan, ReadRequest, Reader, ReaderOptions, WeightFile,
};

const CHUNK: u32 = 64 << 10;
const MODES: [IoMode; 4] = [IoMode::Auto, IoMode::Direct, IoMode::Buffered, IoMode::Pread];

fn noise(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13).to_le_bytes()[0]).collect()
}

fn plan(path: &Path) -> Arc<ReadPlan> {
    let file = Arc::new(WeightFile::open(path).unwrap());
    let extent = Extent { file: 0, offset: 0, len_bytes: file.len_bytes() };
    let mut builder = PlanBuilder::new(&[file], PlanOptions { chunk_bytes: CHUNK, gap_bytes: 0 });
    builder.add(0, extent, 0).unwrap();
    Arc::new(builder.build().unwrap())
}

fn reader(mode: IoMode, region: Arc<dyn HostRegion>) -> Reader {
    let options = ReaderOptions {
        mode,
        chunk_bytes: CHUNK,
        drain_timeout: Duration::from_millis(200),
        ..ReaderOptions::default()
    };
    Reader::start(region, options).unwrap()
}

fn region() -> Arc<AnonymousRegion> {
    Arc::new(AnonymousRegion::new(8 * CHUNK as usize).unwrap())
}

/// The file's bytes, or the errors of the reads that failed.
fn load(path: &Path, mode: IoMode) -> (Result<Vec<u8>, Vec<Arc<spoc_io::Error>>>, IoPath) {
    let plan = plan(path);
    let reader = reader(mode, region());
    reader.submit(ReadRequest { plan: Arc::clone(&plan), class: ReadClass::Demand, token: 0 }).unwrap();
    let mut bytes = vec![0; plan.wanted_bytes() as usize];
    let mut errors = Vec::new();
    for _ in plan.reads() {
        let completion = reader.completions().recv_timeout(Duration::from_secs(20)).expect("no hang");
        match completion.outcome {
            Ok(chunk) => {
                let start = plan.reads()[completion.read as usize].offset as usize;
                bytes[start..start + chunk.len_bytes()].copy_from_slice(chunk.bytes());
            }
            Err(error) => errors.push(error),
        }
    }
    let path = reader.report().path;
    (if errors.is_empty() { Ok(bytes) } else { Err(errors) }, path)
}

/// A file behind the FUSE server, unmounted when dropped.
struct Fuse {
    server: Child,
    folder: tempfile::TempDir,
}

impl Fuse {
    fn new(bytes: &[u8], faults: &[&str]) -> Option<Self> {
        let cases = std::env::var_os("SPOC_CASES").map(PathBuf::from);
        let Some(script) = cases.map(|c| c.join("faultfs.py")).filter(|s| s.exists()) else {
            eprintln!("not run: SPOC_CASES does not name a folder with faultfs.py");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let mount = folder.path().join("mnt");
        std::fs::create_dir(&mount).unwrap();
        std::fs::write(folder.path().join("f"), bytes).unwrap();
        let server = Command::new("python3")
            .arg(script)
            .args([folder.path().join("f"), mount])
            .args(faults)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(server) = server else {
            eprintln!("not run: no python3");
            return None;
        };
        let fuse = Self { server, folder };
        let until = Instant::now() + Duration::from_secs(5);
        while !fuse.path().exists() {
            if Instant::now() > until {
                eprintln!("not run: the FUSE server did not mount (it needs root and /dev/fuse)");
                return None;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(fuse)
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("mnt/f")
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        // First the server, so that nobody waits for its answer for ever.
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = Command::new("umount")
            .arg("-l")
            .arg(self.folder.path().join("mnt"))
            .stderr(Stdio::null())
            .status();
    }
}

#[test]
fn fuse_is_read_right_whatever_it_answers() {
    let bytes = noise(10 * CHUNK as usize + 1728);
    for faults in [&["--short", "4096", "--sync-dio"][..], &["--short", "1000"], &["--sync-dio"], &[]] {
        for mode in MODES {
            let Some(fuse) = Fuse::new(&bytes, faults) else { return };
            let (found, path) = load(&fuse.path(), mode);
            assert!(found.unwrap() == bytes, "{faults:?} {mode:?}");
            assert_eq!(path, IoPath::PreadBuffered);
        }
    }
}

#[test]
fn fuse_errors_are_errors() {
    let bytes = noise(30 * CHUNK as usize);
    for faults in [&["--eio-at", "1000000"][..], &["--eio-at", "1000000", "--sync-dio"]] {
        let Some(fuse) = Fuse::new(&bytes, faults) else { return };
        let errors = load(&fuse.path(), IoMode::Auto).0.unwrap_err();
        assert!(errors.iter().all(|e| e.kind() == ErrorKind::IoError && e.offset().is_some()), "{errors:?}");
    }
    let Some(fuse) = Fuse::new(&bytes, &["--shrink-to", "4096", "--shrink-after", "3"]) else { return };
    let errors = load(&fuse.path(), IoMode::Auto).0.unwrap_err();
    assert!(errors.iter().all(|e| e.kind() == ErrorKind::Truncated), "{errors:?}");
}

#[test]
fn dropping_a_reader_whose_reads_hang_does_not_hang_and_frees_nothing_under_them() {
    let Some(fuse) = Fuse::new(&noise(30 * CHUNK as usize), &["--hang-at", "100000"]) else { return };
    let region = region();
    let reader = reader(IoMode::Auto, Arc::clone(&region) as _);
    reader.submit(ReadRequest { plan: plan(&fuse.path()), class: ReadClass::Demand, token: 0 }).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let since = Instant::now();
    drop(reader);
    assert!(since.elapsed() < Duration::from_secs(5));
    assert!(Arc::strong_count(&region) > 1, "the kernel may still write there");
    drop(fuse);
    let until = Instant::now() + Duration::from_secs(10);
    while Arc::strong_count(&region) > 1 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(Arc::strong_count(&region), 1, "and it is freed once the reads have ended");
}

#[test]
fn a_read_that_hangs_on_fuse_is_reported_in_time_and_its_memory_is_kept() {
    let bytes = noise(30 * CHUNK as usize);
    let Some(fuse) = Fuse::new(&bytes, &["--hang-at", "100000"]) else { return };
    let region = region();
    let options = ReaderOptions {
        chunk_bytes: CHUNK,
        read_deadline: Some(Duration::from_millis(300)),
        drain_timeout: Duration::from_millis(200),
        ..ReaderOptions::default()
    };
    let reader = Reader::start(Arc::clone(&region) as _, options).unwrap();
    let plan = plan(&fuse.path());
    reader.submit(ReadRequest { plan: Arc::clone(&plan), class: ReadClass::Demand, token: 0 }).unwrap();
    let error = loop {
        let completion = reader.completions().recv_timeout(Duration::from_secs(20)).expect("no hang");
        if let Err(error) = completion.outcome {
            break error;
        }
    };
    assert_eq!((error.kind(), error.file()), (ErrorKind::ReadTimeout, Some(&*fuse.path())), "{error}");
    assert!(error.offset().is_some(), "{error}");
    drop(reader);
    assert!(Arc::strong_count(&region) > 1, "the kernel may still write there");
    drop(fuse);
    let until = Instant::now() + Duration::from_secs(10);
    while Arc::strong_count(&region) > 1 {
        assert!(Instant::now() < until, "it is freed once the reads have ended");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// An ext4 file system whose device lost its end.
#[test]
fn a_disk_that_fails_is_an_io_error_with_a_place() {
    const SCRIPT: &str = r#"set -e
        cd "$1"; truncate -s 64M image; mkdir m
        L=$(losetup -f --show image); echo $L > loop
        mkfs.ext4 -q $L; mount $L m
        head -c 20000000 /dev/urandom > m/f; sync
        echo 1 > /proc/sys/vm/drop_caches
        truncate -s 12M image"#;
    let folder = tempfile::tempdir().unwrap();
    let shell = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|s| s.success())
    };
    if shell(SCRIPT) {
        for mode in MODES {
            let errors = load(&folder.path().join("m/f"), mode).0.unwrap_err();
            assert!(errors.iter().all(|e| e.kind() == ErrorKind::IoError), "{errors:?}");
            assert!(errors.iter().all(|e| e.offset().is_some() && e.file().is_some()), "{errors:?}");
        }
    } else {
        eprintln!("not run: a loop device with ext4 needs root, losetup and mkfs.ext4");
    }
    shell("cd \"$1\"; umount -l m; losetup -d $(cat loop)");
}

/// A disk with sectors of 4 KiB takes no direct read at a multiple of 512.
#[test]
fn a_disk_with_long_sectors_is_read_direct() {
    const SCRIPT: &str = r#"set -e
        cd "$1"; truncate -s 64M image; mkdir m
        L=$(losetup -f --show -b 4096 image); echo $L > loop
        mkfs.ext4 -q $L; mount $L m"#;
    let folder = tempfile::tempdir().unwrap();
    let shell = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|s| s.success())
    };
    if shell(SCRIPT) {
        let bytes = noise(7 * CHUNK as usize + 1234);
        let path = folder.path().join("m/f");
        std::fs::write(&path, &bytes).unwrap();
        std::fs::File::open(&path).unwrap().sync_all().unwrap();
        for mode in MODES {
            let (found, path) = load(&path, mode);
            assert!(found.unwrap() == bytes, "{mode:?}");
            assert!(
                mode != IoMode::Direct || matches!(path, IoPath::UringDirect | IoPath::PreadDirect),
                "{path}"
            );
        }
    } else {
        eprintln!("not run: a loop device with ext4 needs root, losetup and mkfs.ext4");
    }
    shell("cd \"$1\"; umount -l m; losetup -d $(cat loop)");
}

/// ramfs refuses direct reads when the file is opened.
#[test]
fn a_file_system_without_direct_reads_is_read_through_the_page_cache() {
    let folder = tempfile::tempdir().unwrap();
    let mount = folder.path().join("m");
    std::fs::create_dir(&mount).unwrap();
    let mounted =
        Command::new("mount").args(["-t", "ramfs", "none"]).arg(&mount).stderr(Stdio::null()).status();
    if !mounted.is_ok_and(|s| s.success()) {
        eprintln!("not run: mounting ramfs needs root");
        return;
    }
    let bytes = noise(5 * CHUNK as usize + 99);
    std::fs::write(mount.join("f"), &bytes).unwrap();
    let outcomes = MODES.map(|mode| load(&mount.join("f"), mode));
    let _ = Command::new("umount").arg(&mount).status();
    for (mode, (found, path)) in MODES.iter().zip(outcomes) {
        assert!(found.unwrap() == bytes, "{mode:?}");
        assert!(matches!(path, IoPath::UringBuffered | IoPath::PreadBuffered), "{mode:?} {path}");
    }
}

/// An overlay over it may take the flag and refuse what it stands for, at any call: only a read that came back counts.
#[test]
fn an_overlay_over_a_file_system_without_direct_reads_is_read_through_the_page_cache() {
    const SCRIPT: &str = r#"set -e
        cd "$1"; mkdir r m; mount -t ramfs none r; mkdir r/a r/b; cp f r/a/f
        mount -t overlay -o lowerdir=$1/r/a:$1/r/b none m"#;
    let folder = tempfile::tempdir().unwrap();
    let bytes = noise(5 * CHUNK as usize + 99);
    std::fs::write(folder.path().join("f"), &bytes).unwrap();
    let shell = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|s| s.success())
    };
    let outcomes = shell(SCRIPT).then(|| MODES.map(|mode| load(&folder.path().join("m/f"), mode)));
    shell("cd \"$1\"; umount -l m; umount -l r");
    let Some(outcomes) = outcomes else {
        eprintln!("not run: mounting an overlay needs root");
        return;
    };
    for (mode, (found, path)) in MODES.iter().zip(outcomes) {
        assert!(found.unwrap() == bytes, "{mode:?}");
        assert!(matches!(path, IoPath::UringBuffered | IoPath::PreadBuffered), "{mode:?} {path}");
    }
}
