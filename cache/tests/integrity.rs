//! Bytes that are not what the manifest says never become resident: not in a load, not in a slot.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests are tests

mod common;

use common::{layers, matrix, native, open, write_model};
use spoc_cache::load::{LoadOptions, Slice, load_model, load_verified_slices};
use spoc_cache::{CacheOptions, Catalogue, GroupRules, Pump, PumpOptions, SlotCache};
use spoc_driver::{Device, StreamOptions};
use spoc_io::{DigestKind, IoMode, Manifest, Model};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

fn pump(device: &Device, mode: IoMode) -> Arc<Pump> {
    let mut options = PumpOptions::new(mode, 16 << 20).unwrap();
    options.reader.check_threads = 2;
    Pump::start(device, options).unwrap()
}

fn manifest(model: &Model) -> Manifest {
    Manifest::of(model, DigestKind::Xxh3, &|_| {}).unwrap()
}

fn flip(path: &Path, at: u64) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[!byte[0]], at).unwrap();
}

#[test]
fn a_load_is_checked_on_its_way_and_leaves_nothing_of_a_bad_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_model(folder.path(), &layers(5, 400_000));
    let manifest = manifest(&open(&path));
    for mode in [IoMode::Auto, IoMode::Pread] {
        let device = native();
        let pump = pump(&device, mode);
        let model = open(&path);
        let digests = manifest.clone().expectations(&model).unwrap();
        let options = LoadOptions { verify: Some(digests), ..LoadOptions::default() };
        let loaded = load_model(&pump, &model, &options).unwrap();
        assert_eq!(loaded.verify(&model).unwrap(), model.tensor_bytes());
        assert!(loaded.report.reader.checked_bytes >= model.tensor_bytes());
        drop(loaded);

        let bad = &model.tensors()[7];
        flip(&path, bad.extent.offset + 300_000);
        let model = open(&path);
        let digests = manifest.clone().expectations(&model).unwrap();
        let options = LoadOptions { verify: Some(digests), ..LoadOptions::default() };
        let error = load_model(&pump, &model, &options).unwrap_err();
        assert_eq!(error.kind().as_str(), "digest_mismatch", "{error}");
        assert!(error.to_string().contains(&bad.name), "{error}");
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while device.memory_in_use() > 0 {
            assert!(std::time::Instant::now() < deadline, "device memory is left");
        }
        // What is not checked does not fail, and what is checked and good neither.
        let options = LoadOptions { tensors: Some("model.layers.[01].*".to_owned()), ..options };
        load_model(&pump, &model, &options).unwrap();
        flip(&path, bad.extent.offset + 300_000);
    }
}

#[test]
fn a_slot_whose_bytes_differ_never_becomes_resident() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_model(folder.path(), &layers(3, 400_000));
    let manifest = manifest(&open(&path));
    let bad = open(&path).tensor("model.layers.1.attn.weight").unwrap().extent;
    flip(&path, bad.offset + 5);
    let model = open(&path);
    let mut catalogue = Catalogue::from_model(&model, &GroupRules::default()).unwrap();
    catalogue.check_against(manifest.expectations(&model).unwrap());
    let catalogue = Arc::new(catalogue);
    let device = native();
    let pump = pump(&device, IoMode::Auto);
    let cache = SlotCache::new(&pump, CacheOptions::for_catalogue(&catalogue, 4)).unwrap();
    let keys = cache.keys(cache.register(Arc::clone(&catalogue)).unwrap());
    let stream = device.create_stream(StreamOptions::default()).unwrap();
    for (group, key) in (0u32..).zip(&keys) {
        let has_bad = catalogue.tensors(group).iter().any(|tensor| tensor.extent == bad);
        for _ in 0..2 {
            match cache.wait_acquire(&[*key], &stream) {
                Ok(lease) if !has_bad => lease.release(&[&stream]).unwrap(),
                Err(error) if has_bad => assert_eq!(error.kind().as_str(), "digest_mismatch", "{error}"),
                other => panic!("group {group}, bad: {has_bad}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_pump_without_checking_threads_refuses_rather_than_not_check() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_model(folder.path(), &layers(1, 100_000));
    let model = open(&path);
    let digests = manifest(&model).expectations(&model).unwrap();
    let options = LoadOptions { verify: Some(digests), ..LoadOptions::default() };
    let pump = Pump::start(&native(), PumpOptions::new(IoMode::Auto, 16 << 20).unwrap()).unwrap();
    let error = load_model(&pump, &model, &options).unwrap_err();
    assert_eq!(error.kind().as_str(), "invalid_argument", "{error}");
    let small = Pump::start(&native(), PumpOptions::new(IoMode::Auto, 64 << 10).unwrap()).unwrap();
    let error = load_model(&small, &model, &options).unwrap_err();
    assert_eq!(error.kind().as_str(), "staging_too_small", "{error}");
}

#[test]
fn slices_are_checked_by_the_blocks_that_they_touch() {
    const BLOCK: u64 = 256 << 10;
    let (rows, columns) = (600, 2048);
    let folder = tempfile::tempdir().unwrap();
    let path = matrix(folder.path(), rows, columns).root().to_path_buf();
    let manifest = manifest(&open(&path));
    let device = native();
    // Stretches of rows are read run by run; columns are cut on the device.
    let by_row = |from: u64, to: u64| Slice { tensor: 0, ranges: vec![from..to, 0..columns] };
    let by_column = |from: u64, to: u64| Slice { tensor: 0, ranges: vec![0..rows, from..to] };
    let slices = [by_row(3, 5), by_row(250, 400), by_column(0, 1024), by_column(1024, 2048)];
    let start = open(&path).tensors()[0].extent.offset;
    // In the rest of the last block that rows 3 and 4 touch: nobody wants this byte, and it is compared along.
    let at = start + 7 * columns * 2;
    assert_eq!(at / BLOCK, (start + 4 * columns * 2) / BLOCK);
    for mode in [IoMode::Auto, IoMode::Pread] {
        let pump = pump(&device, mode);
        let model = open(&path);
        let digests = manifest.clone().expectations(&model).unwrap();
        let loaded = load_verified_slices(&pump, &model, &slices, &digests).unwrap();
        loaded.verify(&model, &slices).unwrap();
        assert_eq!(loaded.cut, 2);
        let checked = |report: &spoc_io::ReaderReport| report.checked_bytes;
        let before = checked(&pump.reader_report().unwrap());
        load_verified_slices(&pump, &model, &slices[..1], &digests).unwrap();
        let blocks = checked(&pump.reader_report().unwrap()) - before;
        assert!(blocks > 2 * columns * 2 && blocks <= 2 * BLOCK, "{blocks}");

        flip(&path, at);
        let model = open(&path);
        let digests = manifest.clone().expectations(&model).unwrap();
        for bad in [&slices[..1], &slices[2..3]] {
            let error = load_verified_slices(&pump, &model, bad, &digests).unwrap_err();
            assert_eq!(error.kind().as_str(), "digest_mismatch", "{error}");
        }
        load_verified_slices(&pump, &model, &slices[1..2], &digests).unwrap();
        flip(&path, at);
    }
}
