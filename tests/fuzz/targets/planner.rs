//! Any extents of a few sparse files, against a reference that looks at every byte.
#![no_main]

use std::sync::{Arc, LazyLock};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use spoc_io::{Extent, PlanBuilder, PlanOptions, WeightFile};

#[derive(Debug, Arbitrary)]
struct Input {
    chunk: u32,
    gap_bytes: u32,
    wanted: Vec<(u8, u64, u64, u32)>,
}

const LENGTHS: [u64; 4] = [0, 1, 70_001, 1 << 45];
/// Bytes that the reference looks at, at most.
const LOOKED_AT: u64 = 1 << 18;

static FILES: LazyLock<Vec<Arc<WeightFile>>> = LazyLock::new(|| {
    let open = |len| WeightFile::open(&spoc_fuzz::MemoryFile::new(&[], len).path()).map(Arc::new);
    LENGTHS.into_iter().map(open).collect::<Result<_, _>>().expect("files in memory")
});

fuzz_target!(|input: Input| {
    let Input { chunk, gap_bytes, wanted } = input;
    // Any chunk is taken or refused; huge numbers of reads would only be slow.
    let chunk_bytes = if chunk % 8 == 0 { chunk } else { (chunk % 64 + 1) * 4096 };
    let mut builder = PlanBuilder::new(&FILES, PlanOptions { chunk_bytes, gap_bytes });
    let (mut added, mut total) = (Vec::new(), 0u64);
    for (target, (file, offset, len_bytes, at)) in (0u32..).zip(wanted.into_iter().take(64)) {
        let extent = Extent { file: u32::from(file % 5), offset, len_bytes: len_bytes % (1 << 24) };
        let fits = LENGTHS.get(extent.file as usize).is_some_and(|len| {
            extent.offset.checked_add(extent.len_bytes).is_some_and(|end| end <= *len)
        });
        let answer = builder.add(target, extent, u64::from(at));
        assert_eq!(answer.is_ok(), fits, "{extent:?}");
        if fits {
            total += extent.len_bytes;
            added.push((target, extent, u64::from(at)));
        }
    }
    if chunk_bytes != 0 && chunk_bytes < 4096 && total > 1 << 20 {
        return;
    }
    let Ok(plan) = builder.build() else { return };
    let mut after = (0, 0);
    let mut pieces = 0u64;
    for read in plan.reads() {
        assert!((read.file, read.offset) >= after, "no byte twice, in order");
        after = (read.file, read.offset + u64::from(read.len_bytes));
        assert!(read.offset % 4096 == 0 && read.len_bytes % 4096 == 0 && read.len_bytes <= chunk_bytes);
        assert!(read.need.end <= read.len_bytes && !plan.pieces_of(read).is_empty());
        for piece in plan.pieces_of(read) {
            assert!(piece.chunk_offset >= read.need.start && piece.chunk_offset + piece.len_bytes <= read.need.end);
            pieces += u64::from(piece.len_bytes);
            let (_, extent, at) = added.iter().find(|(t, ..)| *t == piece.target).expect("a target that was added");
            let within = piece.target_offset - at;
            assert_eq!(read.offset + u64::from(piece.chunk_offset), extent.offset + within);
            assert!(within + u64::from(piece.len_bytes) <= extent.len_bytes);
        }
    }
    assert_eq!(pieces, total, "every wanted byte has its piece");
    if total <= LOOKED_AT {
        let mut seen: Vec<Vec<bool>> = Vec::new();
        seen.resize_with(64, Vec::new);
        for (target, extent, _) in &added {
            seen[*target as usize] = vec![false; extent.len_bytes as usize];
        }
        for piece in plan.pieces() {
            let (_, _, at) = added.iter().find(|(t, ..)| *t == piece.target).expect("a target that was added");
            for byte in 0..u64::from(piece.len_bytes) {
                let place = (piece.target_offset - at + byte) as usize;
                assert!(!std::mem::replace(&mut seen[piece.target as usize][place], true), "a byte twice");
            }
        }
    }
});
