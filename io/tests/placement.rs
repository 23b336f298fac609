//! Placement maps: the JSON form, what is refused and with what words, the usual layouts, and that a map's pieces put
//! every byte where it says, against a reference that goes element by element.

#![allow(clippy::single_range_in_vec_init, reason = "slices of one dimension are lists of one range")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]
#![allow(clippy::cast_possible_truncation, reason = "test sizes are small")]

mod common;

use std::fmt::Write as _;

use common::noise;
use proptest::prelude::*;
use spoc_io::{
    ErrorKind, ExpertSplit, LayoutOptions, MapBuilder, MapEntry, MapTarget, Model, OpenOptions, Pitch,
    PlacementMap, PlanOptions, layout,
};

struct Fixture {
    _folder: tempfile::TempDir,
    model: Model,
}

/// A model of BF16 tensors with these names and shapes.
fn model(tensors: &[(&str, &[u64])]) -> Fixture {
    let (mut header, mut at) = (String::from("{"), 0);
    for (name, shape) in tensors {
        let bytes = shape.iter().product::<u64>() * 2;
        let comma = if at == 0 && header.len() == 1 { "" } else { "," };
        let end = at + bytes;
        let shape = shape.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        write!(header, r#"{comma}"{name}":{{"dtype":"BF16","shape":[{shape}],"data_offsets":[{at},{end}]}}"#)
            .unwrap();
        at = end;
    }
    header.push('}');
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend(noise(at as usize, at + 1));
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("m.safetensors");
    std::fs::write(&path, bytes).unwrap();
    let model = spoc_io::open_model(&path, &OpenOptions::default()).unwrap();
    Fixture { _folder: folder, model }
}

fn small() -> Fixture {
    model(&[
        ("model.embed_tokens.weight", &[10, 8]),
        ("model.layers.0.self_attn.q_proj.weight", &[16, 8]),
        ("model.layers.0.self_attn.k_proj.weight", &[4, 8]),
        ("model.layers.0.self_attn.v_proj.weight", &[4, 8]),
        ("model.layers.0.self_attn.o_proj.weight", &[8, 16]),
        ("model.layers.0.input_layernorm.weight", &[8]),
        ("model.layers.0.mlp.gate.weight", &[4, 8]),
        ("model.layers.0.mlp.experts.0.gate_proj.weight", &[12, 8]),
        ("model.layers.0.mlp.experts.0.up_proj.weight", &[12, 8]),
        ("model.layers.0.mlp.experts.0.down_proj.weight", &[8, 12]),
        ("model.layers.0.mlp.experts.1.gate_proj.weight", &[12, 8]),
        ("model.layers.0.mlp.experts.1.up_proj.weight", &[12, 8]),
        ("model.layers.0.mlp.experts.1.down_proj.weight", &[8, 12]),
    ])
}

/// What a target holds, by the map's own words: rows of slices, element by element. `None` where nothing goes.
fn reference(model: &Model, map: &PlacementMap, target: u32) -> Vec<Option<u8>> {
    let mut held = vec![None; map.targets[target as usize].len_bytes as usize];
    for entry in map.entries.iter().filter(|entry| entry.target == target) {
        let tensor = model.tensor(&entry.tensor).unwrap();
        let mut stored = vec![0; tensor.extent.len_bytes as usize];
        model.file_of(tensor).unwrap().read_exact_at(&mut stored, tensor.extent.offset).unwrap();
        let elements: u64 = tensor.shape.iter().product();
        let mut at = 0;
        for flat in 0..elements {
            let mut left = flat;
            let wanted = (0..tensor.shape.len()).rev().all(|d| {
                let place = left % tensor.shape[d];
                left /= tensor.shape[d];
                entry.slice.as_ref().is_none_or(|slice| slice[d].contains(&place))
            });
            if !wanted {
                continue;
            }
            for byte in &stored[flat as usize * 2..flat as usize * 2 + 2] {
                let place = match entry.pitch {
                    None => at,
                    Some(pitch) => at / pitch.row_bytes * pitch.pitch_bytes + at % pitch.row_bytes,
                };
                held[(entry.offset_bytes + place) as usize] = Some(*byte);
                at += 1;
            }
        }
    }
    held
}

/// Carries the map's plans out on the file's bytes, and checks that no byte is read twice within a plan.
fn carried_out(model: &Model, map: &PlacementMap, pieces_max: usize) -> Vec<Vec<Option<u8>>> {
    let checked = map.check(model).unwrap();
    let mut held: Vec<Vec<Option<u8>>> =
        map.targets.iter().map(|target| vec![None; target.len_bytes as usize]).collect();
    for part in checked.parts(pieces_max) {
        let plan = checked.plan(model, &part, PlanOptions::default(), None).unwrap();
        let mut end = 0;
        for (number, read) in (0u32..).zip(plan.reads()) {
            assert!(read.offset >= end, "bytes before {end} are read twice");
            end = read.offset + u64::from(read.len_bytes);
            let mut chunk = vec![0; read.need.end as usize];
            plan.files()[read.file as usize].read_exact_at(&mut chunk, read.offset).unwrap();
            for piece in plan.pieces_of(read) {
                assert_eq!(piece.device, map.targets[piece.target as usize].device);
                assert!(plan.devices_of(number).any(|device| device == piece.device));
                let (from, to) = (piece.chunk_offset as usize, piece.target_offset as usize);
                for byte in 0..piece.len_bytes as usize {
                    let place = &mut held[piece.target as usize][to + byte];
                    assert_eq!(place.replace(chunk[from + byte]), None, "a byte that is copied twice");
                }
            }
        }
    }
    held
}

fn assert_exact(model: &Model, map: &PlacementMap) {
    for pieces_max in [1, 1 << 20] {
        let held = carried_out(model, map, pieces_max);
        for (target, held) in (0u32..).zip(held) {
            assert_eq!(held, reference(model, map, target), "{}", map.targets[target as usize].name);
        }
    }
}

fn text(map: &PlacementMap) -> String {
    let mut text = Vec::new();
    map.write_to(&mut text).unwrap();
    String::from_utf8(text).unwrap()
}

#[test]
fn every_layout_is_exact_and_survives_its_text() {
    let fixture = small();
    let model = &fixture.model;
    for ranks in [1, 2, 4] {
        for (dense, fused, experts) in [
            (true, false, ExpertSplit::Within),
            (true, true, ExpertSplit::Within),
            (true, true, ExpertSplit::Across),
            (false, false, ExpertSplit::Across),
        ] {
            let options =
                LayoutOptions { dense, fused, experts, kv_heads: Some(2), ..LayoutOptions::new(ranks) };
            let map = match layout(model, &options) {
                Ok(map) => map,
                Err(error) => {
                    assert!(ranks == 4 && experts == ExpertSplit::Across, "{error}");
                    assert!(error.message().contains("2 experts"), "{error}");
                    continue;
                }
            };
            assert_eq!(PlacementMap::parse(text(&map).as_bytes()).unwrap(), map);
            assert_exact(model, &map);
            let traffic = map.check(model).unwrap().traffic(model, PlanOptions::default()).unwrap();
            let whole = model.tensor_bytes();
            assert_eq!(traffic.link_bytes, traffic.target_bytes);
            let links: u64 = traffic.link_bytes.iter().sum();
            let own: u64 = traffic.own_bytes.iter().sum();
            assert!(links >= whole && own <= whole && traffic.reads >= 1);
            if ranks == 1 {
                assert_eq!((links, own), (whole, whole));
            }
        }
    }
}

#[test]
fn what_is_divided_adds_up_and_what_is_fused_lies_together() {
    let fixture = small();
    let options = LayoutOptions { fused: true, kv_heads: Some(2), ..LayoutOptions::new(4) };
    let map = layout(&fixture.model, &options).unwrap();
    let of =
        |name: &str| map.targets.iter().filter(|t| t.name == name).map(|t| t.len_bytes).collect::<Vec<_>>();
    // 16 rows of queries among 4, 2 of 4 rows of keys and of values each: 4 + 2 + 2 rows of 16 bytes.
    assert_eq!(of("model.layers.0.self_attn.qkv_proj.weight"), [128; 4]);
    assert_eq!(of("model.layers.0.self_attn.o_proj.weight"), [64; 4]);
    assert_eq!(of("model.embed_tokens.weight"), [48, 48, 48, 16]);
    assert_eq!(of("model.layers.0.input_layernorm.weight"), [16; 4]);
    assert_eq!(of("model.layers.0.mlp.experts.1.gate_up_proj.weight"), [96; 4]);
    assert!(of("model.layers.0.self_attn.q_proj.weight").is_empty());
}

#[test]
fn layouts_refuse_what_they_would_have_to_guess() {
    let strange = model(&[("h.0.attn.c_attn.weight", &[8, 24])]);
    let error = layout(&strange.model, &LayoutOptions::new(2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("c_attn"), "{error}");
    let all = LayoutOptions { replicate_unknown: true, ..LayoutOptions::new(2) };
    assert_eq!(layout(&strange.model, &all).unwrap().targets.len(), 2);
    let odd = model(&[("model.layers.0.mlp.up_proj.weight", &[7, 8])]);
    let error = layout(&odd.model, &LayoutOptions::new(2)).unwrap_err();
    assert!(error.message().contains("7 places of dimension 0"), "{error}");
    let heads = model(&[("model.layers.0.self_attn.k_proj.weight", &[6, 8])]);
    let error =
        layout(&heads.model, &LayoutOptions { kv_heads: Some(3), ..LayoutOptions::new(4) }).unwrap_err();
    assert!(error.message().contains("do not divide among 4"), "{error}");
    assert!(layout(&odd.model, &LayoutOptions::new(0)).is_err());
    let quarter = model(&[("a.up_proj.weight", &[4, 8]), ("a.gate_proj.weight", &[4, 4])]);
    let fused = LayoutOptions { fused: true, ..LayoutOptions::new(2) };
    assert!(layout(&quarter.model, &fused).unwrap_err().message().contains("rows of one shape"));
}

fn entry(tensor: &str, slice: Option<Vec<std::ops::Range<u64>>>, target: u32, offset: u64) -> MapEntry {
    MapEntry { tensor: tensor.to_owned(), slice, target, offset_bytes: offset, pitch: None }
}

fn target(name: &str, len_bytes: u64) -> MapTarget {
    MapTarget { name: name.to_owned(), device: 1, len_bytes, complete: true }
}

#[test]
fn rows_of_two_tensors_interleave() {
    let fixture = model(&[("gate", &[6, 4]), ("up", &[6, 4])]);
    let pitch = Some(Pitch { row_bytes: 8, pitch_bytes: 16 });
    let map = PlacementMap {
        targets: vec![target("gate_up", 96)],
        entries: vec![
            MapEntry { pitch, ..entry("gate", None, 0, 0) },
            MapEntry { pitch, ..entry("up", None, 0, 8) },
        ],
    };
    assert_exact(&fixture.model, &map);
    assert_eq!(PlacementMap::parse(text(&map).as_bytes()).unwrap(), map);
    let error = PlacementMap { entries: map.entries[..1].to_vec(), ..map.clone() }.check(&fixture.model);
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Hole);
}

#[test]
fn a_wrong_map_is_refused_with_its_entry_and_the_reason() {
    let fixture = model(&[("a", &[4, 4]), ("b", &[4, 4])]);
    let rows = |start: u64, end: u64| Some(vec![start..end, 0..4]);
    let pitched = |row_bytes, pitch_bytes| MapEntry {
        pitch: Some(Pitch { row_bytes, pitch_bytes }),
        ..entry("a", None, 0, 0)
    };
    let cases = [
        (
            vec![entry("a", None, 0, 0), entry("c", None, 0, 32)],
            ErrorKind::MissingTensor,
            "entry 1, tensor 'c'",
        ),
        (vec![entry("a", None, 0, 0), entry("b", None, 0, 24)], ErrorKind::Overlap, "bytes 24 to 32"),
        (vec![entry("a", None, 0, 0), entry("b", rows(0, 2), 0, 48)], ErrorKind::Hole, "bytes 32 to 48"),
        (vec![entry("a", None, 0, 0)], ErrorKind::Hole, "bytes 32 to 64"),
        (vec![entry("a", None, 0, 40)], ErrorKind::OffsetOutOfBounds, "bytes 40 to 72 of a target of 64"),
        (vec![entry("a", None, 0, u64::MAX)], ErrorKind::OffsetOutOfBounds, "beyond 64 bits"),
        (vec![entry("a", rows(3, 5), 0, 0)], ErrorKind::OffsetOutOfBounds, "3 to 5 of dimension 0"),
        (
            vec![entry("a", Some(std::iter::once(0..4).collect()), 0, 0)],
            ErrorKind::InvalidArgument,
            "has 2 dimensions",
        ),
        (vec![entry("a", None, 7, 0)], ErrorKind::InvalidMap, "the map has 1 targets"),
        (vec![pitched(5, 8)], ErrorKind::InvalidMap, "expected rows"),
        (vec![pitched(0, 8)], ErrorKind::InvalidMap, "expected rows"),
        (vec![pitched(8, 7)], ErrorKind::InvalidMap, "expected a pitch"),
        (vec![pitched(8, u64::MAX)], ErrorKind::OffsetOutOfBounds, "beyond 64 bits"),
        (vec![pitched(8, 24)], ErrorKind::OffsetOutOfBounds, "of a target of 64 bytes"),
    ];
    for (entries, kind, words) in cases {
        let map = PlacementMap { targets: vec![target("t", 64)], entries };
        let error = map.check(&fixture.model).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains(words), "{error}: expected {words:?}");
        assert!(error.message().contains("'t'") || kind == ErrorKind::InvalidMap, "{error}");
    }
    let far = MapTarget { device: 64, ..target("t", 0) };
    let error = PlacementMap { targets: vec![far], entries: vec![] }.check(&fixture.model).unwrap_err();
    assert!(error.message().contains("below 64, found 64"), "{error}");
    let left = MapTarget { complete: false, ..target("t", 64) };
    PlacementMap { targets: vec![left], entries: vec![entry("b", None, 0, 16)] }
        .check(&fixture.model)
        .unwrap();
}

#[test]
fn a_block_is_not_cut() {
    // Four 6-bit floats are three bytes.
    let header = r#"{"f":{"dtype":"F6_E2M3","shape":[2,8],"data_offsets":[0,12]}}"#;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.safetensors");
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(&[0; 12]);
    std::fs::write(&path, bytes).unwrap();
    let model = spoc_io::open_model(&path, &OpenOptions::default()).unwrap();
    let map = |end| PlacementMap {
        targets: vec![MapTarget { complete: false, ..target("t", 12) }],
        entries: vec![entry("f", Some(vec![0..2, 0..end]), 0, 0)],
    };
    map(4).check(&model).unwrap();
    let error = map(6).check(&model).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BlockMisaligned);
    assert!(error.message().starts_with("entry 0, tensor 'f' to 't' on device 1"), "{error}");
}

#[test]
fn text_that_is_no_map_is_refused() {
    let target = r#"{"name":"t","device":0,"bytes":8}"#;
    let cases = [
        (r#"{"spoc_placement":2,"more":1}"#.to_owned(), ErrorKind::UnsupportedVersion, "version 1, found 2"),
        (r#"{"spoc_placement":1"#.to_owned(), ErrorKind::Truncated, "EOF"),
        (r#"{"spoc_placement":1,"targets":[],"entries":[],"x":1}"#.to_owned(), ErrorKind::InvalidMap, "`x`"),
        (
            format!(r#"{{"spoc_placement":1,"targets":[{target},{target}],"entries":[]}}"#),
            ErrorKind::DuplicateKey,
            "'t'",
        ),
        (
            format!(
                r#"{{"spoc_placement":1,"targets":[{target}],"entries":[{{"tensor":"a","device":1,"target":"t","offset":0}}]}}"#
            ),
            ErrorKind::InvalidMap,
            "device 1 has no target 't'",
        ),
        (
            format!(
                r#"{{"spoc_placement":1,"targets":[{target}],"entries":[{{"tensor":"a","device":0,"target":"t","offset":0,"pitch":4}}]}}"#
            ),
            ErrorKind::InvalidMap,
            "row_bytes and pitch together",
        ),
        (
            format!(
                r#"{{"spoc_placement":1,"targets":[{target}],"entries":[{{"tensor":"a","device":0,"target":"t","offset":-1}}]}}"#
            ),
            ErrorKind::InvalidMap,
            "-1",
        ),
    ];
    for (text, kind, words) in cases {
        let error = PlacementMap::parse(text.as_bytes()).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains(words), "{error}: expected {words:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any slices of two tensors, each at a place of its own in some target, with rows apart or not.
    #[test]
    fn any_map_is_carried_out_exactly(
        slices in prop::collection::vec((0..2usize, 0..6u64, 0..6u64, 0..4u64, 0..4u64, 0..3u32, 0..3u64), 1..12),
    ) {
        let fixture = model(&[("a", &[6, 4]), ("b", &[6, 4])]);
        let mut map = PlacementMap {
            targets: (0..3).map(|device| MapTarget { device, complete: false, ..target("t", 0) }).collect(),
            entries: Vec::new(),
        };
        for (tensor, r0, r1, c0, c1, to, gap) in slices {
            let slice = vec![r0.min(r1)..r0.max(r1) + 1, c0.min(c1)..c0.max(c1) + 1];
            let row_bytes = (slice[1].end - slice[1].start) * 2;
            let rows = slice[0].end - slice[0].start;
            let pitch = (gap > 0).then_some(Pitch { row_bytes, pitch_bytes: row_bytes + gap - 1 });
            let at = &mut map.targets[to as usize].len_bytes;
            let offset_bytes = *at + gap;
            *at = offset_bytes + rows * (row_bytes + gap);
            let tensor = ["a", "b"][tensor].to_owned();
            map.entries.push(MapEntry { tensor, slice: Some(slice), target: to, offset_bytes, pitch });
        }
        assert_exact(&fixture.model, &map);
        prop_assert_eq!(&PlacementMap::parse(text(&map).as_bytes()).unwrap(), &map);
    }
}

#[test]
fn a_plan_is_shared_out_without_loss() {
    let fixture = small();
    let mut builder = MapBuilder::new(&fixture.model, 2).unwrap();
    for tensor in fixture.model.tensors() {
        builder.replicate(&tensor.name).unwrap();
    }
    let checked = builder.finish().check(&fixture.model).unwrap();
    let options = PlanOptions { chunk_bytes: 4096, gap_bytes: 0 };
    let part = checked.parts(usize::MAX).remove(0);
    let plan = checked.plan(&fixture.model, &part, options, None).unwrap();
    let shares = plan.split(3, |_, read| read as usize % 3);
    assert_eq!(shares.iter().map(|share| share.reads().len()).sum::<usize>(), plan.reads().len());
    assert_eq!(shares.iter().map(spoc_io::ReadPlan::wanted_bytes).sum::<u64>(), plan.wanted_bytes());
    for share in &shares {
        for read in share.reads() {
            let same = plan.reads().iter().find(|whole| whole.offset == read.offset).unwrap();
            assert_eq!(share.pieces_of(read), plan.pieces_of(same));
        }
    }
}
