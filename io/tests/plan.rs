//! The planner against a naive reference that looks at every byte.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]
#![allow(clippy::cast_possible_truncation, reason = "test sizes are small")]

use std::sync::{Arc, LazyLock};

use proptest::prelude::*;
use spoc_io::{ErrorKind, Extent, PlanBuilder, PlanOptions, ReadPlan, WeightFile};

const LENGTHS: [u64; 4] = [0, 1, 100_000, 262_144];

/// Files of these lengths, holes all through: only their lengths matter to a plan.
static FILES: LazyLock<(tempfile::TempDir, Vec<Arc<WeightFile>>)> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let files = LENGTHS.iter().map(|len| {
        let path = folder.path().join(len.to_string());
        std::fs::File::create(&path).unwrap().set_len(*len).unwrap();
        Arc::new(WeightFile::open(&path).unwrap())
    });
    let files = files.collect();
    (folder, files)
});

fn plan(items: &[(Extent, u64)], chunk_bytes: u32, gap_bytes: u32) -> ReadPlan {
    let mut builder = PlanBuilder::new(&FILES.1, PlanOptions { chunk_bytes, gap_bytes });
    for (target, (extent, at)) in (0..).zip(items) {
        builder.add(target, *extent, *at).unwrap();
    }
    builder.build().unwrap()
}

fn extents() -> impl Strategy<Value = Vec<(Extent, u64)>> {
    let one = (0u32..4, any::<u64>(), any::<u64>(), 0u64..1 << 40, any::<bool>()).prop_map(
        |(file, a, b, at, short)| {
            let size = LENGTHS[file as usize];
            let offset = a % (size + 1);
            let len_bytes = b % (size - offset + 1);
            let len_bytes = if short { len_bytes.min(300) } else { len_bytes };
            (Extent { file, offset, len_bytes }, at)
        },
    );
    prop::collection::vec(one, 0..24)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_wanted_byte_arrives_once_in_its_place(
        items in extents(), chunk in 1u32..20, gap in 0u32..40_000,
    ) {
        let chunk = chunk * 4096;
        let plan = plan(&items, chunk, gap);
        // Each byte of each target, from the pieces: where in the file does it come from?
        let mut found: Vec<Vec<Option<(u32, u64)>>> =
            items.iter().map(|(e, _)| vec![None; e.len_bytes as usize]).collect();
        for read in plan.reads() {
            for piece in plan.pieces_of(read) {
                prop_assert!(piece.len_bytes > 0);
                for i in 0..u64::from(piece.len_bytes) {
                    let start = items[piece.target as usize].1;
                    let place = (piece.target_offset - start + i) as usize;
                    let source = (read.file, read.offset + u64::from(piece.chunk_offset) + i);
                    prop_assert!(found[piece.target as usize][place].replace(source).is_none(), "twice");
                }
            }
        }
        for (found, (extent, _)) in found.iter().zip(&items) {
            for (i, source) in (0..).zip(found) {
                prop_assert_eq!(*source, Some((extent.file, extent.offset + i)));
            }
        }
        prop_assert_eq!(plan.wanted_bytes(), items.iter().map(|(e, _)| e.len_bytes).sum::<u64>());
    }

    #[test]
    fn reads_are_aligned_disjoint_ordered_and_need_what_they_hold(
        items in extents(), chunk in 1u32..20, gap in 0u32..40_000,
    ) {
        let chunk = chunk * 4096;
        let plan = plan(&items, chunk, gap);
        let mut after = (0u32, 0u64);
        let mut pieces_after = 0;
        for read in plan.reads() {
            prop_assert!(read.offset.is_multiple_of(4096) && read.len_bytes.is_multiple_of(4096));
            prop_assert!(read.len_bytes > 0 && read.len_bytes <= chunk);
            prop_assert!((read.file, read.offset) >= after, "ordered, and no byte read twice");
            after = (read.file, read.offset + u64::from(read.len_bytes));
            prop_assert_eq!(read.pieces.start, pieces_after);
            pieces_after = read.pieces.end;
            let pieces = plan.pieces_of(read);
            prop_assert!(!pieces.is_empty(), "a read that nobody needs");
            prop_assert_eq!(read.need.start, pieces.iter().map(|p| p.chunk_offset).min().unwrap());
            prop_assert_eq!(read.need.end, pieces.iter().map(|p| p.chunk_offset + p.len_bytes).max().unwrap());
            prop_assert!(read.offset + u64::from(read.need.end) <= LENGTHS[read.file as usize]);
        }
        prop_assert_eq!(pieces_after as usize, plan.pieces().len());
        let empty = items.iter().filter(|(e, _)| e.len_bytes == 0).count();
        prop_assert_eq!(plan.empty_targets().len(), empty);
    }

    #[test]
    fn the_order_of_adding_does_not_matter(items in extents(), chunk in 1u32..20) {
        let chunk = chunk * 4096;
        let forward = plan(&items, chunk, 0);
        let mut builder = PlanBuilder::new(&FILES.1, PlanOptions { chunk_bytes: chunk, gap_bytes: 0 });
        for (target, (extent, at)) in (0..).zip(&items).collect::<Vec<_>>().into_iter().rev() {
            builder.add(target, *extent, *at).unwrap();
        }
        let backward = builder.build().unwrap();
        prop_assert_eq!(forward.reads(), backward.reads());
        prop_assert_eq!(forward.pieces(), backward.pieces());
    }
}

#[test]
fn tiny_tensors_are_read_in_bulk() {
    let items: Vec<_> =
        (0..20_000u64).map(|i| (Extent { file: 3, offset: i * 13, len_bytes: 13 }, 0)).collect();
    let chunk = 64 << 10;
    let plan = plan(&items, chunk, 0);
    let bytes = 20_000 * 13;
    assert!(plan.reads().len() as u64 <= bytes / u64::from(chunk) + 2, "{} reads", plan.reads().len());
    assert_eq!(plan.pieces().iter().map(|p| u64::from(p.len_bytes)).sum::<u64>(), bytes);
}

#[test]
fn small_gaps_are_read_along_and_large_ones_are_not() {
    let at = |offset| (Extent { file: 3, offset, len_bytes: 10 }, 0);
    assert_eq!(plan(&[at(0), at(12_000)], 64 << 10, 8192).reads().len(), 1);
    assert_eq!(plan(&[at(0), at(12_000)], 64 << 10, 0).reads().len(), 2);
    assert_eq!(plan(&[at(0), at(100_000)], 64 << 10, 1 << 30).reads().len(), 2, "at most half a chunk");
}

#[test]
fn a_tebibyte_costs_nothing_unless_it_is_wanted() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("sparse");
    let file = std::fs::File::create(&path).unwrap();
    if file.set_len(1 << 40).is_err() {
        return;
    }
    let files = [Arc::new(WeightFile::open(&path).unwrap())];
    let mut builder = PlanBuilder::new(&files, PlanOptions::default());
    builder.add(0, Extent { file: 0, offset: (1 << 40) - 16, len_bytes: 16 }, 0).unwrap();
    let plan = builder.build().unwrap();
    assert_eq!((plan.reads().len(), plan.read_bytes()), (1, 4096));
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut builder = PlanBuilder::new(&FILES.1, PlanOptions::default());
    for (file, offset, len_bytes, at) in
        [(2, 99_999, 2, 0), (2, u64::MAX, 2, 0), (9, 0, 0, 0), (2, 0, 2, u64::MAX), (0, 1, 0, 0)]
    {
        let error = builder.add(0, Extent { file, offset, len_bytes }, at).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OffsetOutOfBounds, "{error}");
    }
    for chunk_bytes in [0, 1000, 4097] {
        let builder = PlanBuilder::new(&FILES.1, PlanOptions { chunk_bytes, gap_bytes: 0 });
        assert_eq!(builder.build().unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}
