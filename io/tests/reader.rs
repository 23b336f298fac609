//! The reader against real files: every path brings every byte once, whatever goes wrong.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr, reason = "a test")]
#![allow(clippy::cast_possible_truncation, reason = "test sizes are small")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use spoc_io::{
    AnonymousRegion, Completion, ErrorKind, Extent, Faults, IoMode, IoPath, PlanBuilder, PlanOptions,
    ReadClass, ReadPlan, ReadRequest, Reader, ReaderOptions, WeightFile,
};

const CHUNK: u32 = 64 << 10;
const MODES: [IoMode; 4] = [IoMode::Auto, IoMode::Direct, IoMode::Buffered, IoMode::Pread];

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = vec![0; len];
    for byte in &mut bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *byte = state.to_le_bytes()[3];
    }
    bytes
}

struct Fixture {
    folder: tempfile::TempDir,
    files: Vec<Arc<WeightFile>>,
    bytes: Vec<Vec<u8>>,
}

impl Fixture {
    /// Files of these lengths, on the file system of the build folder.
    fn new(lengths: &[usize]) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let bytes: Vec<Vec<u8>> = (0u64..).zip(lengths).map(|(i, len)| noise(*len, i + 1)).collect();
        let mut files = Vec::new();
        for (i, bytes) in bytes.iter().enumerate() {
            let path = folder.path().join(format!("f{i}"));
            let mut file = std::fs::File::create(&path).unwrap();
            file.write_all(bytes).unwrap();
            file.sync_all().unwrap();
            files.push(Arc::new(WeightFile::open(&path).unwrap()));
        }
        Self { folder, files, bytes }
    }

    fn path(&self, file: usize) -> PathBuf {
        self.folder.path().join(format!("f{file}"))
    }

    /// A plan of whole files, one target a file.
    fn plan(&self) -> Arc<ReadPlan> {
        let extents: Vec<Extent> = (0..)
            .zip(&self.bytes)
            .map(|(file, bytes)| Extent { file, offset: 0, len_bytes: bytes.len() as u64 })
            .collect();
        self.plan_of(&extents)
    }

    fn plan_of(&self, extents: &[Extent]) -> Arc<ReadPlan> {
        let options = PlanOptions { chunk_bytes: CHUNK, ..PlanOptions::default() };
        let mut builder = PlanBuilder::new(&self.files, options);
        for (target, extent) in (0..).zip(extents) {
            builder.add(target, *extent, 0).unwrap();
        }
        Arc::new(builder.build().unwrap())
    }
}

fn options(mode: IoMode) -> ReaderOptions {
    ReaderOptions { mode, chunk_bytes: CHUNK, ..ReaderOptions::default() }
}

fn reader(chunks: usize, options: ReaderOptions) -> Reader {
    Reader::start(Arc::new(AnonymousRegion::new(chunks * CHUNK as usize).unwrap()), options).unwrap()
}

fn submit(reader: &Reader, plan: &Arc<ReadPlan>, token: u64) -> spoc_io::RequestId {
    reader.submit(ReadRequest { plan: Arc::clone(plan), class: ReadClass::Demand, token }).unwrap()
}

fn next(reader: &Reader) -> Completion {
    reader.completions().recv_timeout(Duration::from_secs(20)).expect("a completion within 20 s")
}

/// Carries out a plan and puts the pieces together.
fn load(
    reader: &Reader,
    plan: &Arc<ReadPlan>,
    lengths: &[usize],
) -> Result<Vec<Vec<u8>>, Arc<spoc_io::Error>> {
    let mut targets: Vec<Vec<u8>> = lengths.iter().map(|len| vec![0; *len]).collect();
    let mut seen = vec![false; plan.reads().len()];
    submit(reader, plan, 7);
    let mut failed = None;
    for _ in plan.reads() {
        let completion = next(reader);
        assert_eq!(completion.token, 7);
        assert!(!std::mem::replace(&mut seen[completion.read as usize], true), "completed twice");
        match completion.outcome {
            Ok(chunk) => {
                for piece in plan.pieces_of(&plan.reads()[completion.read as usize]) {
                    let (from, to, len) =
                        (piece.chunk_offset as usize, piece.target_offset as usize, piece.len_bytes as usize);
                    targets[piece.target as usize][to..to + len]
                        .copy_from_slice(&chunk.bytes()[from..from + len]);
                }
            }
            Err(error) => failed = Some(error),
        }
    }
    assert!(reader.completions().is_empty(), "more completions than reads");
    failed.map_or(Ok(targets), Err)
}

const LENGTHS: [usize; 5] = [3 * CHUNK as usize + 17, 4096, 1, 4097, 20 * CHUNK as usize];

#[test]
fn every_mode_brings_every_byte_cold_and_warm() {
    let fixture = Fixture::new(&LENGTHS);
    for mode in MODES {
        for cold in [true, false] {
            if cold {
                drop_from_cache(&fixture);
            }
            for chunks in [1, 3, 64] {
                let reader = reader(chunks, options(mode));
                let found = load(&reader, &fixture.plan(), &LENGTHS).unwrap();
                assert!(found == fixture.bytes, "{mode:?}, {chunks} chunks, cold: {cold}");
                let report = reader.report();
                assert_eq!(report.chunks_free, chunks);
                assert_eq!(report.need_bytes, LENGTHS.iter().map(|l| *l as u64).sum::<u64>());
                assert!(!report.reason.is_empty());
            }
        }
    }
}

/// Asks the kernel to forget the files' pages; without effect on some file systems.
#[test]
fn a_route_that_is_stale_at_once_is_still_taken() {
    let fixture = Fixture::new(&LENGTHS);
    let options = ReaderOptions { residency_fresh: Duration::ZERO, ..options(IoMode::Auto) };
    assert!(load(&reader(4, options), &fixture.plan(), &LENGTHS).unwrap() == fixture.bytes);
}

#[test]
fn the_next_file_may_begin_before_the_last_one_ended() {
    let fixture = Fixture::new(&[400_000, 200_000]);
    let late = Extent { file: 0, offset: 300_000, len_bytes: 100_000 };
    let early = Extent { file: 1, offset: 0, len_bytes: 50_000 };
    let plan = fixture.plan_of(&[late, early]);
    for mode in MODES {
        let reader = reader(4, options(mode));
        submit(&reader, &plan, 0);
        let mut seen = 0;
        for _ in plan.reads() {
            let completion = next(&reader);
            let read = &plan.reads()[completion.read as usize];
            let chunk = completion.outcome.unwrap();
            for piece in plan.pieces_of(read) {
                let extent = [late, early][piece.target as usize];
                let from = (extent.offset + piece.target_offset) as usize;
                let want = &fixture.bytes[extent.file as usize][from..from + piece.len_bytes as usize];
                let at = piece.chunk_offset as usize;
                assert_eq!(&chunk.bytes()[at..at + want.len()], want, "{mode:?}");
                seen += want.len();
            }
        }
        assert_eq!(seen, 150_000);
    }
}

fn drop_from_cache(fixture: &Fixture) {
    for i in 0..fixture.files.len() {
        let file = std::fs::File::open(fixture.path(i)).unwrap();
        // SAFETY: advice on an open descriptor.
        unsafe {
            libc::posix_fadvise(std::os::fd::AsRawFd::as_raw_fd(&file), 0, 0, libc::POSIX_FADV_DONTNEED)
        };
    }
}

#[test]
fn residency_decides_in_auto_mode() {
    let fixture = Fixture::new(&[40 * CHUNK as usize]);
    let lengths = [40 * CHUNK as usize];
    let warm = fixture.files[0].residency(0, lengths[0] as u64);
    assert!(warm.share > 0.9, "just written: {warm:?}");
    let buffered = reader(8, options(IoMode::Auto));
    load(&buffered, &fixture.plan(), &lengths).unwrap();
    assert_eq!(buffered.report().path, IoPath::PreadBuffered, "{}", buffered.report().reason);
    drop_from_cache(&fixture);
    if fixture.files[0].residency(0, lengths[0] as u64).share > 0.1 {
        eprintln!("not run: this file system keeps its pages");
        return;
    }
    let direct = reader(8, options(IoMode::Auto));
    load(&direct, &fixture.plan(), &lengths).unwrap();
    let report = direct.report();
    assert!(matches!(report.path, IoPath::UringDirect | IoPath::PreadDirect), "{report:?}");
    assert!(report.reason.contains("page cache"), "{}", report.reason);
}

#[test]
fn several_requests_share_the_chunks_and_complete_once_each() {
    let fixture = Fixture::new(&[30 * CHUNK as usize]);
    let plan = fixture.plan();
    let reader = reader(4, options(IoMode::Direct));
    let requests = 20;
    for token in 0..requests {
        submit(&reader, &plan, token);
    }
    let mut count = vec![0; requests as usize];
    for _ in 0..requests as usize * plan.reads().len() {
        let completion = next(&reader);
        completion.outcome.unwrap();
        count[completion.token as usize] += 1;
    }
    assert_eq!(count, vec![plan.reads().len(); requests as usize]);
}

#[test]
fn a_held_chunk_stops_only_what_needs_it_and_outlives_the_reader() {
    let fixture = Fixture::new(&[6 * CHUNK as usize]);
    let plan = fixture.plan();
    for mode in MODES {
        let reader = reader(2, options(mode));
        submit(&reader, &plan, 0);
        let held = [next(&reader), next(&reader)];
        std::thread::sleep(Duration::from_millis(30));
        assert!(reader.completions().is_empty(), "there is no chunk to read into");
        let [first, second] = held;
        let kept = (second.read as usize, second.outcome.unwrap());
        drop(first);
        for _ in 2..plan.reads().len() {
            next(&reader).outcome.unwrap();
        }
        drop(reader);
        let start = kept.0 * CHUNK as usize;
        assert!(kept.1.bytes() == &fixture.bytes[0][start..start + CHUNK as usize]);
    }
}

#[test]
fn cancelled_reads_complete_as_cancelled_and_return_their_chunks() {
    let fixture = Fixture::new(&[200 * CHUNK as usize]);
    let plan = fixture.plan();
    for mode in MODES {
        let reader = reader(4, options(mode));
        let request = submit(&reader, &plan, 0);
        let first = next(&reader);
        reader.cancel(request);
        drop(first);
        let mut cancelled = 0;
        for _ in 1..plan.reads().len() {
            if let Err(error) = next(&reader).outcome {
                assert_eq!(error.kind(), ErrorKind::Cancelled);
                cancelled += 1;
            }
        }
        assert!(cancelled > 100, "{cancelled} of {}", plan.reads().len());
        assert_eq!(load(&reader, &plan, &[200 * CHUNK as usize]).unwrap(), fixture.bytes);
    }
}

#[test]
fn dropping_the_reader_mid_load_ends_every_read_and_frees_the_region() {
    let fixture = Fixture::new(&[400 * CHUNK as usize]);
    let plan = fixture.plan();
    for mode in MODES {
        for taken in 0..6 {
            let region = Arc::new(AnonymousRegion::new(8 * CHUNK as usize).unwrap());
            let reader = Reader::start(Arc::clone(&region) as _, options(mode)).unwrap();
            let completions = reader.completions().clone();
            submit(&reader, &plan, 0);
            let held: Vec<Completion> = (0..taken).map(|_| next(&reader)).collect();
            drop(reader);
            let rest = completions.iter().count();
            assert_eq!(rest + held.len(), plan.reads().len(), "{mode:?}: every read completes");
            drop(completions);
            drop(held);
            assert_eq!(Arc::strong_count(&region), 1, "{mode:?}: nothing keeps the region");
        }
    }
}

/// Fails as told: every `nth` answer is replaced.
struct Scripted {
    count: AtomicU32,
    nth: u32,
    error: Option<i32>,
    short: usize,
}

impl Faults for Scripted {
    fn answer(&self, answer: Result<usize, i32>, _: &WeightFile, _: u64) -> Result<usize, i32> {
        if !self.count.fetch_add(1, Ordering::Relaxed).is_multiple_of(self.nth) {
            return answer;
        }
        match self.error {
            Some(number) => Err(number),
            None => answer.map(|n| n.min(self.short)),
        }
    }
}

fn with_faults(mode: IoMode, nth: u32, error: Option<i32>, short: usize) -> ReaderOptions {
    let faults = Scripted { count: AtomicU32::new(0), nth, error, short };
    ReaderOptions { faults: Some(Arc::new(faults)), ..options(mode) }
}

#[test]
fn short_reads_are_continued() {
    for mode in MODES {
        for (nth, short) in [(1, 5000), (1, 4096), (2, 1), (1, 1000), (3, 60_000)] {
            let fixture = Fixture::new(&LENGTHS);
            let reader = reader(3, with_faults(mode, nth, None, short));
            assert!(
                load(&reader, &fixture.plan(), &LENGTHS).unwrap() == fixture.bytes,
                "{mode:?} {nth} {short}"
            );
            assert!(reader.report().short_reads > 0);
        }
    }
}

#[test]
fn interrupted_and_busy_reads_are_repeated() {
    let fixture = Fixture::new(&LENGTHS);
    for mode in MODES {
        for error in [libc::EINTR, libc::EAGAIN] {
            let reader = reader(3, with_faults(mode, 2, Some(error), 0));
            assert!(load(&reader, &fixture.plan(), &LENGTHS).unwrap() == fixture.bytes);
            assert!(reader.report().retries > 0);
        }
        let reader = reader(3, with_faults(mode, 1, Some(libc::EAGAIN), 0));
        let error = load(&reader, &fixture.plan(), &LENGTHS).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::IoError, "not for ever: {error}");
    }
}

#[test]
fn refused_direct_reads_demote_the_file() {
    for mode in [IoMode::Direct, IoMode::Auto] {
        let fixture = Fixture::new(&LENGTHS);
        drop_from_cache(&fixture);
        let reader = reader(3, with_faults(mode, 4, Some(libc::EINVAL), 0));
        // Direct reads that are refused are repeated; buffered ones that are refused are errors. The first is direct.
        let _ = load(&reader, &fixture.plan(), &LENGTHS);
        let report = reader.report();
        assert!(report.demotions > 0 || report.path_bytes[0] + report.path_bytes[2] == 0, "{report:?}");
    }
}

#[test]
fn an_io_error_names_file_and_offset_and_spares_other_reads() {
    let fixture = Fixture::new(&LENGTHS);
    for mode in MODES {
        let reader = reader(3, with_faults(mode, 10, Some(libc::EIO), 0));
        let error = load(&reader, &fixture.plan(), &LENGTHS).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::IoError);
        assert!(error.offset().is_some() && error.file().is_some(), "{error}");
        assert!(reader.report().failures < 10);
    }
}

#[test]
fn a_file_cut_short_under_way_is_truncated_or_changed() {
    for mode in MODES {
        let fixture = Fixture::new(&[50 * CHUNK as usize]);
        let reader = reader(3, options(mode));
        let plan = fixture.plan();
        submit(&reader, &plan, 0);
        let first = next(&reader);
        std::fs::OpenOptions::new().write(true).open(fixture.path(0)).unwrap().set_len(4096).unwrap();
        drop(first);
        let errors: Vec<_> = (1..plan.reads().len()).filter_map(|_| next(&reader).outcome.err()).collect();
        assert!(!errors.is_empty());
        assert!(errors.iter().all(|e| e.kind() == ErrorKind::Truncated), "{mode:?} {errors:?}");
    }
}

#[test]
fn a_file_rewritten_under_way_fails_the_last_read() {
    for mode in MODES {
        let fixture = Fixture::new(&[10 * CHUNK as usize]);
        let reader = reader(2, options(mode));
        let plan = fixture.plan();
        submit(&reader, &plan, 0);
        let first = next(&reader);
        std::thread::sleep(Duration::from_millis(20));
        let mut file = std::fs::OpenOptions::new().write(true).open(fixture.path(0)).unwrap();
        file.write_all(b"changed").unwrap();
        drop(first);
        let errors: Vec<_> = (1..plan.reads().len()).filter_map(|_| next(&reader).outcome.err()).collect();
        assert_eq!(errors.iter().map(|e| e.kind()).collect::<Vec<_>>(), [ErrorKind::Changed], "{mode:?}");
    }
}

/// What happens to the file while it is read, by whoever else may: its name goes, or leads elsewhere, or its bytes are
/// replaced and its times set back.
#[test]
fn a_file_deleted_replaced_or_rewritten_with_its_old_times_under_way_is_never_a_mixture() {
    type Act = fn(&Path);
    let acts: [(&str, Act); 3] = [
        ("deleted", |path| std::fs::remove_file(path).unwrap()),
        ("replaced", |path| {
            let other = path.with_extension("other");
            std::fs::write(&other, noise(30 * CHUNK as usize, 99)).unwrap();
            std::fs::rename(&other, path).unwrap();
        }),
        ("rewritten", |path| {
            let before = std::fs::metadata(path).unwrap();
            let mut file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            file.write_all(&noise(30 * CHUNK as usize, 98)).unwrap();
            let times = std::fs::FileTimes::new();
            let times =
                times.set_modified(before.modified().unwrap()).set_accessed(before.accessed().unwrap());
            file.set_times(times).unwrap();
            assert_eq!(std::fs::metadata(path).unwrap().modified().unwrap(), before.modified().unwrap());
        }),
    ];
    for mode in MODES {
        for (what, act) in acts {
            let fixture = Fixture::new(&[30 * CHUNK as usize]);
            let reader = reader(2, options(mode));
            let plan = fixture.plan();
            submit(&reader, &plan, 0);
            let first = next(&reader);
            // The kernel's clock ticks every few milliseconds.
            std::thread::sleep(Duration::from_millis(20));
            act(&fixture.path(0));
            let mut bytes = vec![0; fixture.bytes[0].len()];
            let mut errors = Vec::new();
            for completion in std::iter::once(first).chain((1..plan.reads().len()).map(|_| next(&reader))) {
                match completion.outcome {
                    Ok(chunk) => {
                        let at = plan.reads()[completion.read as usize].offset as usize;
                        bytes[at..at + chunk.len_bytes()].copy_from_slice(chunk.bytes());
                    }
                    Err(error) => errors.push(error),
                }
            }
            let judged = errors.iter().all(|e| e.kind() == ErrorKind::Changed && e.file().is_some());
            assert!(judged, "{mode:?} {what}: {errors:?}");
            // A file whose name went keeps its bytes: all of them, or an error.
            assert!(
                !errors.is_empty() || (what != "rewritten" && bytes == fixture.bytes[0]),
                "{mode:?} {what}"
            );
        }
    }
}

#[test]
fn a_disk_that_fails_for_ever_fails_every_read_and_nothing_hangs() {
    let fixture = Fixture::new(&LENGTHS);
    for mode in MODES {
        let reader = reader(3, with_faults(mode, 1, Some(libc::EIO), 0));
        let plan = fixture.plan();
        for token in 0..3 {
            submit(&reader, &plan, token);
            for _ in plan.reads() {
                let error = next(&reader).outcome.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::IoError, "{error}");
                assert!(error.file().is_some() && error.offset().is_some(), "{error}");
            }
        }
        assert_eq!(reader.report().chunks_free, 3, "{mode:?}");
    }
}

#[test]
fn replacing_the_name_does_not_change_what_is_read() {
    for mode in MODES {
        let fixture = Fixture::new(&[10 * CHUNK as usize]);
        let other = fixture.folder.path().join("other");
        std::fs::write(&other, noise(10 * CHUNK as usize, 99)).unwrap();
        std::fs::rename(&other, fixture.path(0)).unwrap();
        let reader = reader(2, options(mode));
        match load(&reader, &fixture.plan(), &[10 * CHUNK as usize]) {
            Ok(found) => assert!(found == fixture.bytes),
            // The old inode lost its last name, which moves its change time.
            Err(error) => assert_eq!(error.kind(), ErrorKind::Changed, "{error}"),
        }
    }
}

#[test]
fn demand_goes_before_prefetch() {
    let fixture = Fixture::new(&[64 * CHUNK as usize]);
    let whole = fixture.plan();
    let one = fixture.plan_of(&[Extent { file: 0, offset: 0, len_bytes: u64::from(CHUNK) }]);
    let reader = reader(2, options(IoMode::Direct));
    let request = |plan: &Arc<ReadPlan>, class, token| {
        reader.submit(ReadRequest { plan: Arc::clone(plan), class, token }).unwrap();
    };
    request(&whole, ReadClass::Prefetch, 1);
    let held = [next(&reader), next(&reader)];
    request(&one, ReadClass::Demand, 2);
    drop(held);
    let order: Vec<u64> = (0..whole.reads().len() - 1).map(|_| next(&reader).token).collect();
    let place = order.iter().position(|t| *t == 2).unwrap();
    assert!(place < 4, "the demand came as number {place}");
}

#[test]
fn refusals_are_typed() {
    let fixture = Fixture::new(&[4096]);
    let small = Reader::start(Arc::new(AnonymousRegion::new(4096).unwrap()), options(IoMode::Auto));
    assert_eq!(small.err().unwrap().kind(), ErrorKind::StagingTooSmall);
    let odd = ReaderOptions { chunk_bytes: 1000, ..options(IoMode::Auto) };
    let odd = Reader::start(Arc::new(AnonymousRegion::new(1 << 20).unwrap()), odd);
    assert_eq!(odd.err().unwrap().kind(), ErrorKind::InvalidArgument);
    let reader = Reader::start(
        Arc::new(AnonymousRegion::new(1 << 20).unwrap()),
        ReaderOptions { chunk_bytes: 4096, requests_max: 1, ..ReaderOptions::default() },
    )
    .unwrap();
    let plan = fixture.plan();
    let refused = reader.submit(ReadRequest { plan, class: ReadClass::Demand, token: 0 });
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::StagingTooSmall);
}

#[test]
fn the_queue_of_requests_is_bounded() {
    let fixture = Fixture::new(&[8 * CHUNK as usize]);
    let plan = fixture.plan();
    let reader = reader(1, ReaderOptions { requests_max: 2, ..options(IoMode::Auto) });
    submit(&reader, &plan, 0);
    submit(&reader, &plan, 0);
    let third = reader.submit(ReadRequest { plan: Arc::clone(&plan), class: ReadClass::Refill, token: 0 });
    assert_eq!(third.unwrap_err().kind(), ErrorKind::QueueFull);
    for _ in 0..2 * plan.reads().len() {
        next(&reader).outcome.unwrap();
    }
    submit(&reader, &plan, 0);
}

#[test]
fn threads_run_on_the_node_that_was_asked_for_and_anywhere_else_where_it_is_not_there() {
    let fixture = Fixture::new(&LENGTHS);
    for node in [0, 4000] {
        let region = AnonymousRegion::on_node(8 * CHUNK as usize, Some(node)).unwrap();
        let options = ReaderOptions { numa_node: Some(node), threads: 2, ..options(IoMode::Auto) };
        let reader = Reader::start(Arc::new(region), options).unwrap();
        assert!(load(&reader, &fixture.plan(), &LENGTHS).unwrap() == fixture.bytes);
        let there = Path::new("/sys/devices/system/node/node0").exists() && node == 0;
        let bound = reader.report().bound_threads;
        assert!(if there { (1..=3).contains(&bound) } else { bound == 0 }, "node {node}: {bound}");
    }
}

#[test]
fn tmpfs_is_read() {
    let shm = Path::new("/dev/shm");
    if !shm.is_dir() {
        eprintln!("not run: no /dev/shm");
        return;
    }
    let bytes = noise(3 * CHUNK as usize + 5, 3);
    let mut temp = tempfile::NamedTempFile::new_in(shm).unwrap();
    temp.write_all(&bytes).unwrap();
    let files = vec![Arc::new(WeightFile::open(temp.path()).unwrap())];
    let fixture = Fixture { folder: tempfile::tempdir().unwrap(), files, bytes: vec![bytes] };
    for mode in MODES {
        let reader = reader(2, options(mode));
        assert!(
            load(&reader, &fixture.plan(), &[3 * CHUNK as usize + 5]).unwrap() == fixture.bytes,
            "{mode:?}"
        );
    }
}
