//! Reads that hang: reported in time, by name and place, and their memory left alone until the kernel returns it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr, reason = "a test")]

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{CHUNK, Fixture, next, reader, submit};
use crossbeam_channel::{Receiver, bounded};
use spoc_io::{ErrorKind, Faults, IoMode, ReadClass, Reader, ReaderOptions, WeightFile};

const DEADLINE: Duration = Duration::from_millis(200);

/// Reads at these chunks have no answer until `go_on` closes.
struct Hang {
    chunks: &'static [u64],
    go_on: Receiver<()>,
}

impl Faults for Hang {
    fn answer(&self, answer: Result<usize, i32>, _: &WeightFile, offset: u64) -> Result<usize, i32> {
        if self.chunks.contains(&(offset / u64::from(CHUNK))) {
            let _ = self.go_on.recv();
        }
        answer
    }
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Takes the completions of `reads` reads; the chunks of those that were late.
fn late_chunks(reader: &Reader, reads: usize, path: &Path) -> Vec<u64> {
    let mut late = Vec::new();
    for _ in 0..reads {
        if let Err(error) = next(reader).outcome {
            assert_eq!(error.kind(), ErrorKind::ReadTimeout, "{error}");
            assert_eq!(error.file(), Some(path));
            assert!(error.message().contains("within"), "{error}");
            late.push(error.offset().unwrap() / u64::from(CHUNK));
        }
    }
    late.sort_unstable();
    late
}

#[test]
fn reads_that_hang_are_reported_and_every_other_one_goes_on() {
    // More of them than the pool has threads.
    const HUNG: &[u64] = &[1, 2, 11];
    let fixture = Fixture::new(40);
    let (release, go_on) = bounded(0);
    let faults: Option<Arc<dyn Faults>> = Some(Arc::new(Hang { chunks: HUNG, go_on }));
    let options = ReaderOptions {
        mode: IoMode::Pread,
        threads: 2,
        read_deadline: Some(DEADLINE),
        faults,
        ..ReaderOptions::default()
    };
    let reader = reader(8, options);
    let plan = fixture.plan(0, 40);
    let since = Instant::now();
    submit(&reader, &plan, ReadClass::Demand, 0);
    assert_eq!(late_chunks(&reader, 40, &fixture.path), HUNG);
    assert!(since.elapsed() >= DEADLINE && since.elapsed() < Duration::from_secs(15));
    wait_for("the others come back", || reader.report().chunks_free == 8 - HUNG.len());
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(reader.report().chunks_free, 8 - HUNG.len(), "the kernel may still write to the rest");
    // The reader goes on without them.
    submit(&reader, &fixture.plan(20, 10), ReadClass::Demand, 1);
    assert!(late_chunks(&reader, 10, &fixture.path).is_empty());
    drop(release);
    wait_for("what hung comes back", || reader.report().chunks_free == 8);
    let plan = fixture.plan(0, 40);
    submit(&reader, &plan, ReadClass::Demand, 2);
    for _ in 0..40 {
        assert!(fixture.holds(&plan, &next(&reader)));
    }
    drop(reader);
}

#[test]
fn a_file_that_hangs_leaves_half_of_the_chunks_to_others() {
    const HUNG: &[u64] = &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
    let (hanging, healthy) = (Fixture::new(100), Fixture::new(50));
    let (release, go_on) = bounded(0);
    struct OfFile(PathBuf, Hang);
    impl Faults for OfFile {
        fn answer(&self, answer: Result<usize, i32>, file: &WeightFile, offset: u64) -> Result<usize, i32> {
            if file.path() == self.0 { self.1.answer(answer, file, offset) } else { answer }
        }
    }
    let hang = OfFile(hanging.path.clone(), Hang { chunks: HUNG, go_on });
    let options = ReaderOptions {
        mode: IoMode::Pread,
        threads: 2,
        read_deadline: Some(DEADLINE),
        faults: Some(Arc::new(hang)),
        ..ReaderOptions::default()
    };
    let reader = reader(8, options);
    for token in 0..3 {
        submit(&reader, &hanging.plan(0, 10), ReadClass::Demand, token);
        for _ in 0..10 {
            let error = next(&reader).outcome.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ReadTimeout, "{error}");
        }
    }
    assert!(reader.report().chunks_free >= 3, "two threads may have begun one read more each");
    let plan = healthy.plan(0, 50);
    submit(&reader, &plan, ReadClass::Demand, 9);
    for _ in 0..50 {
        assert!(healthy.holds(&plan, &next(&reader)));
    }
    drop(release);
    wait_for("what hung comes back", || reader.report().chunks_free == 8);
    // And the file is read again.
    let plan = hanging.plan(0, 100);
    submit(&reader, &plan, ReadClass::Demand, 10);
    for _ in 0..100 {
        assert!(hanging.holds(&plan, &next(&reader)));
    }
}

#[test]
fn reads_in_time_are_not_touched_by_a_deadline() {
    let fixture = Fixture::new(60);
    for mode in [IoMode::Auto, IoMode::Direct, IoMode::Buffered, IoMode::Pread] {
        let read_deadline = Some(Duration::from_secs(60));
        let reader = reader(4, ReaderOptions { mode, read_deadline, ..ReaderOptions::default() });
        let plan = fixture.plan(0, 60);
        submit(&reader, &plan, ReadClass::Demand, 0);
        for _ in 0..60 {
            assert!(fixture.holds(&plan, &next(&reader)), "{mode}");
        }
        let since = Instant::now();
        drop(reader);
        assert!(since.elapsed() < Duration::from_secs(4), "{mode}");
    }
}

/// A control group whose reads of one disk nearly stand.
struct SlowDisk {
    folder: PathBuf,
    device: String,
}

impl SlowDisk {
    /// For the calling thread and the threads it starts; `None` where that is not possible.
    fn new(file: &Path) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        let device = std::fs::metadata(file).ok()?.dev();
        let (major, minor) = ((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & !0xff));
        let folder = PathBuf::from(format!("/sys/fs/cgroup/blkio/spoc-late-{}", std::process::id()));
        std::fs::create_dir(&folder).ok()?;
        let slow = Self { folder, device: format!("{major}:{minor}") };
        // SAFETY: takes nothing and gives a number.
        let thread = unsafe { libc::gettid() };
        (slow.hold_to(CHUNK.into()) && std::fs::write(slow.folder.join("tasks"), thread.to_string()).is_ok())
            .then_some(slow)
    }

    /// 0 lifts the limit.
    fn hold_to(&self, bytes_per_second: u64) -> bool {
        let limit = self.folder.join("blkio.throttle.read_bps_device");
        std::fs::write(limit, format!("{} {bytes_per_second}", self.device)).is_ok()
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        // SAFETY: as above.
        let thread = unsafe { libc::gettid() };
        let _ = std::fs::write("/sys/fs/cgroup/blkio/tasks", thread.to_string());
        let _ = std::fs::remove_dir(&self.folder);
    }
}

/// Both lanes, against a real disk: 64 KiB a second, a second for each chunk.
#[test]
fn a_disk_that_nearly_stands_is_reported_by_the_ring_too() {
    for mode in [IoMode::Direct, IoMode::Pread] {
        let fixture = Fixture::new(8);
        if !fixture.evict(0) {
            eprintln!("not run: the file system keeps its pages");
            return;
        }
        let body = move || {
            let Some(disk) = SlowDisk::new(&fixture.path) else {
                eprintln!("not run: slowing a disk down needs root and cgroup v1's blkio");
                return;
            };
            let read_deadline = Some(Duration::from_millis(300));
            let reader =
                reader(8, ReaderOptions { mode, threads: 8, read_deadline, ..ReaderOptions::default() });
            let plan = fixture.plan(0, 8);
            let since = Instant::now();
            submit(&reader, &plan, ReadClass::Demand, 0);
            let late = late_chunks(&reader, 8, &fixture.path);
            assert!(late.len() >= 6, "{mode}: {late:?}");
            assert!(since.elapsed() < Duration::from_secs(3), "{:?}", since.elapsed());
            assert!(reader.report().chunks_free <= 8 - late.len() + 2, "{mode}: their memory is kept");
            disk.hold_to(0);
            wait_for("the disk answers", || reader.report().chunks_free == 8);
            submit(&reader, &plan, ReadClass::Demand, 1);
            for _ in 0..8 {
                assert!(fixture.holds(&plan, &next(&reader)));
            }
        };
        // A thread of its own, so that no other test is slowed down.
        std::thread::spawn(body).join().unwrap();
    }
}
