//! The page cache decides stretch by stretch, and again before a stretch is read.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr, reason = "a test")]

mod common;

use std::time::Duration;

use common::{CHUNK, Fixture, next, reader, submit};
use spoc_io::{IoMode, IoPath, ReadClass, Reader, ReaderOptions, ReaderReport};

const CHUNKS: u32 = 128;

fn options(mode: IoMode) -> ReaderOptions {
    ReaderOptions {
        mode,
        residency_range_bytes: 16 * u64::from(CHUNK),
        residency_fresh: Duration::from_millis(10),
        ..ReaderOptions::default()
    }
}

/// Reads the whole file through two chunks; `meanwhile` is called while both are held and nothing moves.
fn load(fixture: &Fixture, reader: &Reader, meanwhile: impl FnOnce()) -> ReaderReport {
    let plan = fixture.plan(0, CHUNKS);
    submit(reader, &plan, ReadClass::Demand, 0);
    let held = [next(reader), next(reader)];
    std::thread::sleep(Duration::from_millis(20));
    meanwhile();
    assert!(held.iter().all(|c| fixture.holds(&plan, c)));
    drop(held);
    for _ in 2..CHUNKS {
        assert!(fixture.holds(&plan, &next(reader)));
    }
    reader.report()
}

fn share(report: &ReaderReport, paths: [IoPath; 2]) -> f64 {
    let bytes: u64 = paths.iter().map(|p| report.path_bytes[*p as usize]).sum();
    f64::from(u32::try_from(bytes).unwrap()) / f64::from(CHUNKS * CHUNK)
}

/// Else one buffered read after the eviction would bring the whole small file back.
fn read_nothing_ahead(fixture: &Fixture) {
    let numbers = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|e| Some(e.ok()?.path()));
    for fd in numbers.filter(|fd| std::fs::read_link(fd).is_ok_and(|to| to == fixture.path)) {
        let number = fd.file_name().unwrap().to_str().unwrap().parse().unwrap();
        // SAFETY: advice on a descriptor that the fixture keeps open.
        unsafe { libc::posix_fadvise(number, 0, 0, libc::POSIX_FADV_RANDOM) };
    }
}

const DIRECT: [IoPath; 2] = [IoPath::UringDirect, IoPath::PreadDirect];
const BUFFERED: [IoPath; 2] = [IoPath::UringBuffered, IoPath::PreadBuffered];

fn said(report: &ReaderReport, words: &str) -> bool {
    report.reasons.iter().any(|r| r.reason.contains(words) && r.file.is_some())
}

#[test]
fn a_file_that_becomes_resident_while_it_is_read_changes_lane() {
    for mode in [IoMode::Auto, IoMode::Pread] {
        let fixture = Fixture::new(CHUNKS);
        if !fixture.evict(0) {
            eprintln!("not run: this file system keeps its pages");
            return;
        }
        let reader = reader(2, options(mode));
        let report = load(&fixture, &reader, || drop(std::fs::read(&fixture.path).unwrap()));
        assert!(share(&report, DIRECT) > 0.01 && share(&report, BUFFERED) > 0.8, "{report:?}");
        assert!(
            report.lane_changes >= 6 && said(&report, "read into the page cache meanwhile"),
            "{report:?}"
        );
    }
}

#[test]
fn a_file_that_is_evicted_while_it_is_read_changes_lane() {
    for mode in [IoMode::Auto, IoMode::Pread] {
        let fixture = Fixture::new(CHUNKS);
        read_nothing_ahead(&fixture);
        let reader = reader(2, options(mode));
        let mut evicted = true;
        let report = load(&fixture, &reader, || evicted = fixture.evict(0));
        if !evicted {
            eprintln!("not run: this file system keeps its pages");
            return;
        }
        assert!(share(&report, DIRECT) > 0.7 && share(&report, BUFFERED) > 0.01, "{report:?}");
        assert!(
            report.lane_changes >= 6 && said(&report, "evicted from the page cache meanwhile"),
            "{report:?}"
        );
    }
}

#[test]
fn a_file_half_in_the_page_cache_is_read_both_ways() {
    let fixture = Fixture::new(CHUNKS);
    if !fixture.evict(CHUNKS / 2) {
        eprintln!("not run: this file system keeps its pages");
        return;
    }
    // Nothing changes meanwhile: one judgement a stretch.
    let fresh = ReaderOptions { residency_fresh: Duration::from_secs(60), ..options(IoMode::Auto) };
    let reader = reader(8, fresh);
    let report = load(&fixture, &reader, || ());
    assert!((0.4..0.6).contains(&share(&report, DIRECT)), "{report:?}");
    assert!((0.4..0.6).contains(&share(&report, BUFFERED)), "{report:?}");
    assert_eq!(report.lane_changes, 0);
    assert!(said(&report, "100 % of bytes 0 to") && said(&report, "0 % of bytes 4194304 to"), "{report:?}");
}

#[test]
fn a_mode_that_was_asked_for_is_kept_to() {
    for (mode, paths) in [(IoMode::Direct, DIRECT), (IoMode::Buffered, BUFFERED)] {
        let fixture = Fixture::new(CHUNKS);
        let reader = reader(2, options(mode));
        let report = load(&fixture, &reader, || {
            fixture.evict(0);
        });
        assert!(share(&report, paths) > 0.99, "{report:?}");
        assert_eq!(report.lane_changes, 0);
    }
}
