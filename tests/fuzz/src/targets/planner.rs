//! Any extents and slices of a few sparse files for several devices, against a reference that looks at every byte.
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use arbitrary::{Arbitrary, Unstructured};
use spoc_io::{
    Dtype, ElementType, Extent, GgmlType, PlanBuilder, PlanOptions, SliceRuns, Tensor, WeightFile,
};

use super::super::MemoryFile;

#[derive(Debug, Arbitrary)]
struct Input {
    chunk: u32,
    gap_bytes: u32,
    wanted: Vec<(u8, u64, u64, u32)>,
    slice: (u8, u32, Vec<(u8, u8, u8)>),
}

const TYPES: [ElementType; 4] = [
    ElementType::Safetensors(Dtype::F6_E3M2),
    ElementType::Safetensors(Dtype::BF16),
    ElementType::Ggml(GgmlType::Q4_K),
    ElementType::Ggml(GgmlType::I8),
];

/// The runs of a slice of a small tensor in the longest file, if it is one.
fn slice(kind: u8, at: u32, ranges: &[(u8, u8, u8)]) -> Option<Vec<Extent>> {
    let dtype = TYPES[usize::from(kind) % TYPES.len()];
    let (block, bytes) = dtype.block();
    let scale = |number: u8| u64::from(number % 8) * if number & 128 == 0 { block } else { 1 };
    let shape: Vec<u64> = ranges.iter().take(4).map(|(size, ..)| scale(*size)).collect();
    let elements = shape.iter().try_fold(1u64, |n, d| n.checked_mul(*d))?;
    if elements % block != 0 || elements > 1 << 20 {
        return None;
    }
    let extent = Extent { file: 3, offset: u64::from(at), len_bytes: elements / block * bytes };
    let tensor = Tensor { name: "t".into(), dtype, shape, extent };
    let wanted: Vec<_> = ranges.iter().take(4).map(|(_, from, to)| scale(*from)..scale(*to)).collect();
    let runs = SliceRuns::of(&tensor, &wanted).ok()?;
    let extents: Vec<Extent> = runs.extents().take(4096).collect();
    let mut end = extent.offset;
    for run in &extents {
        assert!(run.offset >= end && run.end() <= extent.end(), "{run:?} of {extent:?}");
        end = run.end();
    }
    Some(extents)
}

const LENGTHS: [u64; 4] = [0, 1, 70_001, 1 << 45];
/// Bytes that the reference looks at, at most.
const LOOKED_AT: u64 = 1 << 18;

static FILES: LazyLock<Vec<Arc<WeightFile>>> = LazyLock::new(|| {
    let open = |len| WeightFile::open(&MemoryFile::new(&[], len).path()).map(Arc::new);
    LENGTHS.into_iter().map(open).collect::<Result<_, _>>().expect("files in memory")
});

/// One execution.
pub fn run(data: &[u8]) {
    let Ok(input) = Input::arbitrary_take_rest(Unstructured::new(data)) else { return };
    let Input { chunk, gap_bytes, wanted, slice: (kind, start, ranges) } = input;
    // Any chunk is taken or refused; huge numbers of reads would only be slow.
    let chunk_bytes = if chunk % 8 == 0 { chunk } else { (chunk % 64 + 1) * 4096 };
    let mut builder = PlanBuilder::new(&FILES, PlanOptions { chunk_bytes, gap_bytes });
    let (mut added, mut total) = (Vec::new(), 0u64);
    for (target, (file, offset, len_bytes, at)) in (0u32..).zip(wanted.into_iter().take(64)) {
        let extent = Extent { file: u32::from(file % 5), offset, len_bytes: len_bytes % (1 << 24) };
        let fits = LENGTHS
            .get(extent.file as usize)
            .is_some_and(|len| extent.offset.checked_add(extent.len_bytes).is_some_and(|end| end <= *len));
        let answer = builder.add(target, extent, u64::from(at));
        assert_eq!(answer.is_ok(), fits, "{extent:?}");
        if fits {
            total += extent.len_bytes;
            added.push((target, extent, u64::from(at)));
        }
    }
    if let Some(runs) = slice(kind, start, &ranges) {
        for (target, extent) in (1000u32..).zip(runs).filter(|(_, e)| e.len_bytes > 0) {
            builder.add_on(1, target, extent, 0).expect("inside the file");
            total += extent.len_bytes;
            added.push((target, extent, 0));
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
            assert!(
                piece.chunk_offset >= read.need.start
                    && piece.chunk_offset + piece.len_bytes <= read.need.end
            );
            pieces += u64::from(piece.len_bytes);
            assert_eq!(piece.device, u32::from(piece.target >= 1000));
            let (_, extent, at) =
                added.iter().find(|(t, ..)| *t == piece.target).expect("a target that was added");
            let within = piece.target_offset - at;
            assert_eq!(read.offset + u64::from(piece.chunk_offset), extent.offset + within);
            assert!(within + u64::from(piece.len_bytes) <= extent.len_bytes);
        }
    }
    assert_eq!(pieces, total, "every wanted byte has its piece");
    if total <= LOOKED_AT {
        let mut seen: HashMap<u32, Vec<bool>> = added
            .iter()
            .map(|(target, extent, _)| (*target, vec![false; looked_at(extent.len_bytes)]))
            .collect();
        for piece in plan.pieces() {
            let (_, _, at) =
                added.iter().find(|(t, ..)| *t == piece.target).expect("a target that was added");
            for byte in 0..u64::from(piece.len_bytes) {
                let place = looked_at(piece.target_offset - at + byte);
                let seen = seen.get_mut(&piece.target).expect("a target that was added");
                assert!(!std::mem::replace(&mut seen[place], true), "a byte twice");
            }
        }
    }
}

/// At most [`LOOKED_AT`].
fn looked_at(bytes: u64) -> usize {
    usize::try_from(bytes).expect("few")
}
