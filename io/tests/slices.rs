//! Slices and targets on several devices, against a reference that looks at every element.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]
#![allow(clippy::cast_possible_truncation, reason = "test sizes are small")]

use std::collections::HashSet;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use proptest::prelude::*;
use spoc_io::{
    Dtype, ElementType, ErrorKind, Extent, GgmlType, PlanBuilder, PlanOptions, SliceRuns, Tensor, WeightFile,
};

const FILE_BYTES: u64 = 1 << 20;

static FILES: LazyLock<(tempfile::NamedTempFile, Vec<Arc<WeightFile>>)> = LazyLock::new(|| {
    let temp = tempfile::NamedTempFile::new().unwrap();
    temp.as_file().set_len(FILE_BYTES).unwrap();
    let files = vec![Arc::new(WeightFile::open(temp.path()).unwrap())];
    (temp, files)
});

const TYPES: [ElementType; 8] = [
    ElementType::Safetensors(Dtype::F4),
    ElementType::Safetensors(Dtype::F6_E2M3),
    ElementType::Safetensors(Dtype::U8),
    ElementType::Safetensors(Dtype::BF16),
    ElementType::Safetensors(Dtype::C64),
    ElementType::Ggml(GgmlType::F16),
    ElementType::Ggml(GgmlType::Q4_0),
    ElementType::Ggml(GgmlType::NVFP4),
];

fn tensor(dtype: ElementType, shape: &[u64], offset: u64) -> Tensor {
    let elements: u64 = shape.iter().product();
    let (block, bytes) = dtype.block();
    let extent = Extent { file: 0, offset, len_bytes: elements / block * bytes };
    Tensor { name: "t".into(), dtype, shape: shape.to_vec(), extent }
}

/// Every byte of the slice in the order of the tensor, or `None` where a block is cut.
fn reference(tensor: &Tensor, ranges: &[Range<u64>]) -> Option<Vec<u64>> {
    let ggml = matches!(tensor.dtype, ElementType::Ggml(_));
    let order: Vec<usize> =
        if ggml { (0..ranges.len()).rev().collect() } else { (0..ranges.len()).collect() };
    let (block, block_bytes) = tensor.dtype.block();
    let elements: u64 = tensor.shape.iter().product();
    let wanted = (0..elements).filter(|flat| {
        let mut left = *flat;
        order.iter().rev().all(|&d| {
            let place = left % tensor.shape[d];
            left /= tensor.shape[d];
            ranges[d].contains(&place)
        })
    });
    let wanted: Vec<u64> = wanted.collect();
    let mut bytes = Vec::new();
    let mut rest = wanted.as_slice();
    while let Some(first) = rest.first() {
        let (whole, after) = rest.split_at_checked(block as usize)?;
        if first % block != 0 || whole.iter().zip(*first..).any(|(found, flat)| *found != flat) {
            return None;
        }
        bytes.extend((0..block_bytes).map(|byte| tensor.extent.offset + first / block * block_bytes + byte));
        rest = after;
    }
    Some(bytes)
}

prop_compose! {
    fn slices()(
        dtype in prop::sample::select(&TYPES[..]),
        raw in prop::collection::vec((0u64..6, any::<u64>(), any::<u64>()), 0..5),
        aligned in any::<bool>(),
        offset in 0u64..9000,
    ) -> (Tensor, Vec<Range<u64>>) {
        let (block, _) = dtype.block();
        let ggml = matches!(dtype, ElementType::Ggml(_));
        let innermost = if ggml { 0 } else { raw.len().saturating_sub(1) };
        let (mut shape, mut ranges) = (Vec::new(), Vec::new());
        for (i, (size, a, b)) in raw.iter().enumerate() {
            let unit = if i == innermost { block } else { 1 };
            let step = if aligned { unit } else { 1 };
            let size = size * unit;
            let (a, b) = (a % (size + 1) / step * step, b % (size + 1) / step * step);
            shape.push(size);
            ranges.push(a.min(b)..a.max(b));
        }
        if raw.is_empty() {
            // A scalar of several bytes: only plain types have those.
            return (tensor(ElementType::Safetensors(Dtype::BF16), &[], offset), Vec::new());
        }
        (tensor(dtype, &shape, offset), ranges)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn a_slice_is_the_bytes_of_its_elements_or_refused_for_a_cut_block((tensor, ranges) in slices()) {
        match (SliceRuns::of(&tensor, &ranges), reference(&tensor, &ranges)) {
            (Ok(runs), Some(expected)) => {
                let found: Vec<u64> = runs.extents().flat_map(|e| e.offset..e.end()).collect();
                prop_assert_eq!(&found, &expected);
                prop_assert_eq!(runs.len_bytes(), expected.len() as u64);
                prop_assert!(runs.extents().all(|e| e.len_bytes == runs.run_bytes()));
                if let (Some(first), Some(last)) = (expected.first(), expected.last()) {
                    prop_assert_eq!((runs.stretch().offset, runs.stretch().end()), (*first, last + 1));
                }
            }
            (Err(error), expected) => {
                prop_assert_eq!(error.kind(), ErrorKind::BlockMisaligned);
                // Runs are judged one by one; two halves of a block next to each other are refused too.
                let cut = expected.is_none() || tensor.dtype.block().0 > 1;
                prop_assert!(cut, "{}", error);
            }
            (Ok(runs), None) => prop_assert!(false, "a cut block was taken: {:?}", runs),
        }
    }

    #[test]
    fn several_devices_get_every_byte_and_it_is_read_once(
        wanted in prop::collection::vec((slices(), 0u32..3, 0u64..1000), 1..6),
        chunk in 1u32..8, gap in 0u32..20_000,
    ) {
        let options = PlanOptions { chunk_bytes: chunk * 4096, gap_bytes: gap };
        let mut builder = PlanBuilder::new(&FILES.1, options);
        let mut expected = Vec::new();
        for (target, ((tensor, ranges), device, at)) in (0u32..).zip(&wanted) {
            let Ok(runs) = SliceRuns::of(tensor, ranges) else { continue };
            builder.add_slice(*device, target, &runs, *at).unwrap();
            let bytes = runs.extents().flat_map(|e| e.offset..e.end());
            expected.extend((*at..).zip(bytes).map(|(place, source)| (*device, target, place, source)));
        }
        let plan = builder.build().unwrap();
        let (mut found, mut read) = (Vec::new(), HashSet::new());
        for planned in plan.reads() {
            for byte in planned.offset..planned.offset + u64::from(planned.len_bytes) {
                prop_assert!(read.insert(byte), "read twice");
            }
            for piece in plan.pieces_of(planned) {
                let source = planned.offset + u64::from(piece.chunk_offset);
                let bytes = 0..u64::from(piece.len_bytes);
                found.extend(bytes.map(|i| (piece.device, piece.target, piece.target_offset + i, source + i)));
            }
        }
        found.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(found, expected);
    }
}

#[test]
#[allow(clippy::single_range_in_vec_init, reason = "one dimension")]
fn refusals_say_what_is_wrong() {
    let q4 = tensor(ElementType::Ggml(GgmlType::Q4_0), &[64, 4], 0);
    let cut = SliceRuns::of(&q4, &[16..48, 0..4]).unwrap_err();
    assert_eq!(cut.kind(), ErrorKind::BlockMisaligned);
    assert!(cut.to_string().contains("'t'") && cut.to_string().contains("blocks of 32"), "{cut}");
    let rank = SliceRuns::of(&q4, &[0..64]).unwrap_err();
    assert_eq!(rank.kind(), ErrorKind::InvalidArgument);
    let outside = SliceRuns::of(&q4, &[0..64, 2..5]).unwrap_err();
    assert_eq!(outside.kind(), ErrorKind::OffsetOutOfBounds);
    assert!(outside.to_string().contains("dimension 1"), "{outside}");
}

#[test]
fn many_short_runs_are_cheaper_whole_and_few_long_ones_are_not() {
    let options = PlanOptions::default();
    let half = |columns: u64, wanted: u64| {
        let tensor = tensor(ElementType::Safetensors(Dtype::BF16), &[4096, columns], 0);
        SliceRuns::of(&tensor, &[0..4096, 0..wanted]).unwrap().is_cheaper_whole(&options)
    };
    assert!(half(4096, 2048), "runs of 4 KiB, every other one");
    assert!(half(4096, 1024) && !half(4096, 1000), "up to 4 times the slice");
    assert!(!half(131_072, 65_536), "runs of 128 KiB are copies worth their call");
    assert!(!half(4096, 4096), "one run");
    assert!(!half(65_536, 16_384 + 8192), "80 KiB between runs are not read along");
}

#[test]
fn a_column_slice_is_read_along_in_few_reads() {
    let wide = tensor(ElementType::Safetensors(Dtype::U8), &[256, 4096], 0);
    let runs = SliceRuns::of(&wide, &[0..256, 0..64]).unwrap();
    let mut builder = PlanBuilder::new(&FILES.1, PlanOptions::default());
    builder.add_slice(1, 0, &runs, 0).unwrap();
    let plan = builder.build().unwrap();
    assert_eq!((plan.reads().len(), plan.pieces().len()), (1, 256));
}
