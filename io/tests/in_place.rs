//! Reads that end in their targets.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr, reason = "a test")]

mod common;

use std::ptr::NonNull;
use std::sync::Arc;

use common::{CHUNK, Fixture, next, noise, reader};
use spoc_io::{
    AnonymousRegion, Extent, HostRegion, HostTargets, IoMode, PlanBuilder, PlanOptions, ReadClass, ReadPlan,
    ReadRequest, ReaderOptions, ReaderReport, Spot, goes_in_place,
};

const PAGE: u64 = 4096;

/// Targets in one mapping: where each begins, its length, and the room on either side.
struct Image {
    memory: AnonymousRegion,
    spots: Vec<(u64, u64, u64, u64)>,
}

// SAFETY: the mapping lives as long as the value, zeroed; the tests give each target its own bytes, or lay them out as
// the file is; `bytes` is called after the last completion.
unsafe impl HostTargets for Image {
    fn spot(&self, target: u32) -> Option<Spot> {
        let (at, len_bytes, before_bytes, after_bytes) = *self.spots.get(target as usize)?;
        let start = NonNull::new(self.memory.as_ptr().as_ptr().wrapping_add(usize::try_from(at).unwrap()))?;
        Some(Spot { start, len_bytes, before_bytes, after_bytes })
    }
}

impl Image {
    fn new(len_bytes: u64, spots: Vec<(u64, u64, u64, u64)>) -> Arc<Self> {
        let memory = AnonymousRegion::new(usize::try_from(len_bytes).unwrap()).unwrap();
        Arc::new(Self { memory, spots })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: no read is in flight any more.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().as_ptr(), self.memory.len_bytes()) }
    }

    fn target(&self, number: usize) -> &[u8] {
        let (at, len, ..) = self.spots[number];
        &self.bytes()[usize::try_from(at).unwrap()..][..usize::try_from(len).unwrap()]
    }
}

fn plan(fixture: &Fixture, extents: &[(u64, u64)]) -> Arc<ReadPlan> {
    plan_by(fixture, extents, CHUNK)
}

fn plan_by(fixture: &Fixture, extents: &[(u64, u64)], chunk_bytes: u32) -> Arc<ReadPlan> {
    let mut builder = PlanBuilder::new(&fixture.files, PlanOptions { chunk_bytes, ..PlanOptions::default() });
    for (target, (offset, len_bytes)) in (0..).zip(extents) {
        builder.add(target, Extent { file: 0, offset: *offset, len_bytes: *len_bytes }, 0).unwrap();
    }
    Arc::new(builder.build().unwrap())
}

/// Carries the plan out. What came in chunks is copied to where its target is, as a pump would.
fn load(plan: &Arc<ReadPlan>, image: &Arc<Image>, mode: IoMode) -> ReaderReport {
    let reader = reader(2, ReaderOptions { mode, ..ReaderOptions::default() });
    let request = ReadRequest { plan: Arc::clone(plan), class: ReadClass::Demand, token: 0 };
    reader.submit_in_place(request, Arc::clone(image) as Arc<dyn HostTargets>).unwrap();
    for _ in plan.reads() {
        let completion = next(&reader);
        let chunk = completion.outcome.unwrap();
        if chunk.is_in_place() {
            continue;
        }
        for piece in plan.pieces_of(&plan.reads()[completion.read as usize]) {
            let spot = image.spot(piece.target).unwrap();
            let to = spot.start.as_ptr().wrapping_add(usize::try_from(piece.target_offset).unwrap());
            let from = &chunk.bytes()[piece.chunk_offset as usize..][..piece.len_bytes as usize];
            // SAFETY: inside the target, which only this read fills.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        }
    }
    reader.report()
}

const MODES: [IoMode; 4] = [IoMode::Auto, IoMode::Direct, IoMode::Buffered, IoMode::Pread];

/// Neighbours with a gap between them, from an odd offset on, laid out as they are in the file.
fn neighbours() -> (Vec<(u64, u64)>, Arc<Image>) {
    let extents = vec![(1000, 3000), (4000, 200_001), (204_100, 77)];
    let high = 208_896;
    let spots = extents.iter().map(|&(at, len)| (at, len, at, high - at - len)).collect();
    (extents, Image::new(high, spots))
}

#[test]
fn targets_that_lie_as_in_the_file_are_filled_without_a_chunk() {
    for mode in MODES {
        for evicted in [false, true] {
            let fixture = Fixture::new(5);
            let (extents, image) = neighbours();
            if evicted {
                fixture.evict(0);
            }
            let plan = plan(&fixture, &extents);
            let report = load(&plan, &image, mode);
            for (number, (at, len)) in extents.iter().enumerate() {
                let (at, len) = (usize::try_from(*at).unwrap(), usize::try_from(*len).unwrap());
                assert!(image.target(number) == &fixture.bytes[at..at + len], "{mode} {number}");
            }
            assert_eq!(
                (report.in_place_bytes, report.chunks_free),
                (report.need_bytes, 2),
                "{mode}: {report:?}"
            );
            assert!(report.need_bytes >= 203_078);
        }
    }
}

#[test]
fn reads_longer_than_a_chunk_are_taken_only_if_none_needs_one() {
    let fixture = Fixture::new(5);
    let (extents, image) = neighbours();
    let plan = plan_by(&fixture, &extents, 64 * CHUNK);
    assert!(plan.reads().len() == 1 && plan.reads()[0].len_bytes > CHUNK);
    for mode in MODES {
        assert!(goes_in_place(&plan, &(Arc::clone(&image) as Arc<dyn HostTargets>)));
        let report = load(&plan, &image, mode);
        assert_eq!((report.in_place_bytes, report.chunks_free), (report.need_bytes, 2), "{mode}");
        for (number, (at, len)) in extents.iter().enumerate() {
            let (at, len) = (usize::try_from(*at).unwrap(), usize::try_from(*len).unwrap());
            assert!(image.target(number) == &fixture.bytes[at..at + len], "{mode} {number}");
        }
    }
    // One byte out of step: a direct read would have to go through a chunk that is too short.
    let spots = image.spots.iter().map(|&(at, len, before, after)| (at + 1, len, before, after)).collect();
    let shifted: Arc<dyn HostTargets> = Image::new(208_897, spots);
    assert!(!goes_in_place(&plan, &shifted));
    let reader = reader(2, ReaderOptions::default());
    let request = ReadRequest { plan, class: ReadClass::Demand, token: 0 };
    let error = reader.submit_in_place(request, shifted).unwrap_err();
    assert!(error.to_string().contains("staging_too_small"), "{error}");
}

#[test]
fn memory_out_of_step_with_the_file_takes_buffered_reads_in_place_and_direct_ones_through_chunks() {
    let fixture = Fixture::new(3);
    let extents = [(PAGE, 3 * u64::from(CHUNK) - 2 * PAGE)];
    for (shift, mode, in_place) in [
        (256, IoMode::Direct, false),
        (256, IoMode::Buffered, true),
        (8, IoMode::Direct, false),
        (PAGE, IoMode::Direct, true),
    ] {
        let image = Image::new(4 * u64::from(CHUNK), vec![(shift, extents[0].1, 0, 0)]);
        let report = load(&plan(&fixture, &extents), &image, mode);
        let direct = report.path_bytes[0] + report.path_bytes[2] > 0;
        // Where the disk takes direct reads at all, memory at 256 is not enough for it, unless it says so.
        let step = fixture.files[0].direct_align().memory_bytes.max(512);
        let expected = in_place || !direct || shift.is_multiple_of(u64::from(step));
        assert_eq!(report.in_place_bytes == report.need_bytes, expected, "{shift} {mode} {report:?}");
        let from = usize::try_from(PAGE).unwrap();
        assert!(image.target(0) == &fixture.bytes[from..][..image.target(0).len()]);
    }
}

#[test]
fn nothing_around_a_target_is_touched_unless_it_may_be() {
    let fixture = Fixture::new(2);
    // No room at all; room behind alone; a target that the read ends in the middle of its page.
    for (before, after) in [(0, 0), (0, PAGE), (PAGE, 0)] {
        let image = Image::new(4 * PAGE, vec![(100, 5000, before.min(100), after)]);
        let report = load(&plan(&fixture, &[(100, 5000)]), &image, IoMode::Auto);
        assert_eq!(report.in_place_bytes, 0);
        assert!(image.target(0) == &fixture.bytes[100..5100]);
        assert!(image.bytes()[..100].iter().chain(&image.bytes()[5100..]).all(|byte| *byte == 0));
    }
}

#[test]
fn bytes_that_two_targets_want_are_copied() {
    let fixture = Fixture::new(2);
    let far = 8 * PAGE;
    let image = Image::new(16 * PAGE, vec![(0, 2 * PAGE, 0, 0), (far, PAGE, 0, 0)]);
    let report = load(&plan(&fixture, &[(0, 2 * PAGE), (0, PAGE)]), &image, IoMode::Auto);
    assert_eq!(report.in_place_bytes, 0);
    assert!(image.target(0) == &fixture.bytes[..8192] && image.target(1) == &fixture.bytes[..4096]);
}

#[test]
fn a_file_that_ends_in_the_middle_of_a_page_is_filled_to_its_end() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (path, bytes) = (folder.path().join("f"), noise(70_001, 3));
    std::fs::write(&path, &bytes).unwrap();
    let files = vec![Arc::new(spoc_io::WeightFile::open(&path).unwrap())];
    for mode in MODES {
        let mut builder =
            PlanBuilder::new(&files, PlanOptions { chunk_bytes: CHUNK, ..PlanOptions::default() });
        builder.add(0, Extent { file: 0, offset: 9, len_bytes: 69_992 }, 0).unwrap();
        let plan = Arc::new(builder.build().unwrap());
        let image = Image::new(18 * PAGE, vec![(9, 69_992, 9, 18 * PAGE - 70_001)]);
        let report = load(&plan, &image, mode);
        assert!(image.target(0) == &bytes[9..], "{mode}");
        assert_eq!(report.in_place_bytes, report.need_bytes, "{mode}");
    }
}

/// Memory of a driver may refuse what the kernel writes (EFAULT): nobody may take what was there before for weights.
#[test]
fn memory_that_refuses_reads_fails_them_with_file_and_place() {
    let fixture = Fixture::new(4);
    let extent = (0, u64::from(CHUNK));
    let plan = plan(&fixture, &[extent]);
    for mode in [IoMode::Auto, IoMode::Buffered, IoMode::Pread] {
        let image = Image::new(extent.1, vec![(0, extent.1, 0, 0)]);
        let len = usize::try_from(extent.1).unwrap();
        // SAFETY: the mapping is the image's own, and nobody writes to it while it cannot be written to.
        let refused = unsafe { libc::mprotect(image.memory.as_ptr().as_ptr().cast(), len, libc::PROT_READ) };
        assert_eq!(refused, 0);
        let reader = reader(2, ReaderOptions { mode, ..ReaderOptions::default() });
        let request = ReadRequest { plan: Arc::clone(&plan), class: ReadClass::Demand, token: 0 };
        reader.submit_in_place(request, Arc::clone(&image) as Arc<dyn HostTargets>).unwrap();
        let error = next(&reader).outcome.unwrap_err();
        assert_eq!(error.kind(), spoc_io::ErrorKind::IoError, "{mode}: {error}");
        assert_eq!(
            (error.file(), error.offset()),
            (Some(fixture.files[0].path()), Some(0)),
            "{mode}: {error}"
        );
        assert!(error.to_string().contains("Bad address"), "{mode}: {error}");
        assert!(image.bytes().iter().all(|&byte| byte == 0));
        // The reader goes on with memory that takes them.
        let request = ReadRequest { plan: Arc::clone(&plan), class: ReadClass::Demand, token: 1 };
        reader.submit(request).unwrap();
        next(&reader).outcome.unwrap();
    }
}
