//! Real files, the real reader, the native backend: from file to slots and back.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests are tests

mod common;

use common::{layers, matrix, native, open, pattern, pump, write_model};
use spoc_cache::load::{Cancel, LoadOptions, Slice, load_model, load_slices};
use spoc_cache::stats::Counters;
use spoc_cache::stats::layout::Counter;
use spoc_cache::{CacheOptions, Catalogue, ErrorKind, GroupRules, SlotCache, SlotClass, State};
use spoc_driver::StreamOptions;
use spoc_io::IoMode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const MODES: [IoMode; 4] = [IoMode::Auto, IoMode::Direct, IoMode::Buffered, IoMode::Pread];

#[test]
fn a_whole_model_and_a_selection_arrive_in_every_mode() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_model(folder.path(), &layers(6, 700_001));
    let model = open(&path);
    let device = native();
    for mode in MODES {
        let pump = pump(&device, mode, 1 << 20);
        let loaded = load_model(&pump, &model, &LoadOptions::default()).unwrap();
        assert_eq!(loaded.verify(&model).unwrap(), model.tensor_bytes());
        assert_eq!(loaded.report.bytes, model.tensor_bytes());
        assert_eq!(loaded.report.stages.copied_bytes, model.tensor_bytes());
        let options = LoadOptions { tensors: Some("*.norm.*".to_owned()), ..LoadOptions::default() };
        let some = load_model(&pump, &model, &options).unwrap();
        assert_eq!(some.placements.len(), 6);
        assert_eq!(some.verify(&model).unwrap(), 6 * 129);
        let norms: Vec<u32> = some.placements.iter().map(|placement| placement.tensor).collect();
        // By their numbers, in any order and more than once, and of those what matches.
        let chosen = |list: &[u32]| Some(Arc::from(list));
        let options = LoadOptions { chosen: chosen(&[5, norms[1], 5, 0]), ..LoadOptions::default() };
        let few = load_model(&pump, &model, &options).unwrap();
        let mut expected = vec![0, 5, norms[1]];
        expected.sort_unstable();
        expected.dedup();
        assert_eq!(few.placements.iter().map(|placement| placement.tensor).collect::<Vec<_>>(), expected);
        few.verify(&model).unwrap();
        let tensors = Some("*.norm.*".to_owned());
        let options = LoadOptions { chosen: chosen(&norms[..2]), tensors, ..LoadOptions::default() };
        assert_eq!(load_model(&pump, &model, &options).unwrap().placements.len(), 2);
        let options = LoadOptions { chosen: chosen(&[99_999]), ..LoadOptions::default() };
        assert_eq!(load_model(&pump, &model, &options).unwrap_err().kind().as_str(), "no_tensor");
        let options = LoadOptions { tensors: Some("nothing".to_owned()), ..LoadOptions::default() };
        assert_eq!(load_model(&pump, &model, &options).unwrap_err().kind().as_str(), "no_tensor");
    }
    drop(model);
    assert_eq!(device.memory_in_use(), 0);
}

#[test]
fn what_a_read_can_fill_is_not_copied_unless_it_is_to_be_packed() {
    let folder = tempfile::tempdir().unwrap();
    // The header's length is odd, so that nothing lies at a multiple of anything.
    let model = open(&write_model(folder.path(), &layers(6, 700_001)));
    let device = native();
    for mode in MODES {
        for packed in [false, true] {
            let pump = pump(&device, mode, 1 << 20);
            let loaded =
                load_model(&pump, &model, &LoadOptions { packed, ..LoadOptions::default() }).unwrap();
            assert_eq!(loaded.verify(&model).unwrap(), model.tensor_bytes());
            let report = &loaded.report;
            assert_eq!(report.stages.copied_bytes, model.tensor_bytes());
            if packed {
                assert!(loaded.placements.iter().all(|placement| placement.offset_bytes % 256 == 0));
                assert_eq!(report.reader.in_place_bytes, 0);
                assert!(report.copied_because.unwrap().contains("256") && report.stages.copies > 0);
                continue;
            }
            for placement in &loaded.placements {
                let offset = model.tensors()[placement.tensor as usize].extent.offset;
                assert_eq!(placement.offset_bytes % 4096, offset % 4096);
            }
            assert_eq!((report.copied_because, report.stages.copies), (None, 0));
            assert!(report.reader.in_place_bytes >= model.tensor_bytes(), "{mode}: {:?}", report.reader);
        }
    }
    assert_eq!(device.memory_in_use(), 0);
}

#[test]
fn a_load_is_cancelled_from_its_own_progress_and_from_another_thread() {
    let folder = tempfile::tempdir().unwrap();
    let model = open(&write_model(folder.path(), &layers(6, 2_000_001)));
    let device = native();
    let pump = pump(&device, IoMode::Auto, 1 << 16);
    let cancel = Cancel::new();
    let (switch, from_progress) = (cancel.clone(), Arc::new(AtomicU64::new(0)));
    let seen = Arc::clone(&from_progress);
    let progress = move |copied, bytes| {
        assert!(copied <= bytes);
        seen.store(copied, Ordering::Relaxed);
        switch.cancel();
    };
    let options = LoadOptions {
        progress: Some(Arc::new(progress)),
        cancel: Some(cancel.clone()),
        ..LoadOptions::default()
    };
    assert_eq!(load_model(&pump, &model, &options).unwrap_err().kind().as_str(), "cancelled");
    // It may have been told everything at once, where a busy machine let all reads end before the first copy.
    assert!(from_progress.load(Ordering::Relaxed) > 0);

    // Thrown already: the next load of the same switch does not begin to wait.
    let options = LoadOptions { cancel: Some(cancel), ..LoadOptions::default() };
    assert_eq!(load_model(&pump, &model, &options).unwrap_err().kind().as_str(), "cancelled");

    // From another thread, whenever that comes: it is cancelled, or it is whole.
    for wait_us in [0, 50, 500, 5000] {
        let cancel = Cancel::new();
        let options = LoadOptions { cancel: Some(cancel.clone()), ..LoadOptions::default() };
        let thread = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_micros(wait_us));
            cancel.cancel();
        });
        match load_model(&pump, &model, &options) {
            Ok(loaded) => assert_eq!(loaded.verify(&model).unwrap(), model.tensor_bytes()),
            Err(error) => assert_eq!(error.kind().as_str(), "cancelled"),
        }
        thread.join().unwrap();
    }
    // The pump is none the worse for it, and nothing is kept.
    let loaded = load_model(&pump, &model, &LoadOptions::default()).unwrap();
    assert_eq!(loaded.verify(&model).unwrap(), model.tensor_bytes());
    drop(loaded);
    assert_eq!(device.memory_in_use(), 0);
}

#[test]
fn a_catalogue_of_some_tensors_has_their_groups_alone() {
    let folder = tempfile::tempdir().unwrap();
    let model = open(&write_model(folder.path(), &layers(4, 10_000)));
    let rules = GroupRules::default();
    let catalogue =
        Catalogue::from_tensors(&model, &rules, |name| name.starts_with("model.layers.")).unwrap();
    let names: Vec<_> = catalogue.groups().iter().map(|group| group.name.as_str()).collect();
    assert_eq!(names, ["model.layers.0", "model.layers.1", "model.layers.2", "model.layers.3"]);
    for tensor in catalogue.tensors(1) {
        assert!(model.tensors()[tensor.tensor as usize].name.starts_with("model.layers.1."));
    }
    assert_eq!(Catalogue::from_tensors(&model, &rules, |_| false).unwrap().groups().len(), 0);
}

#[test]
fn verify_finds_a_changed_byte() {
    let folder = tempfile::tempdir().unwrap();
    let model = open(&write_model(folder.path(), &layers(1, 5000)));
    let device = native();
    let loaded = load_model(&pump(&device, IoMode::Auto, 1 << 20), &model, &LoadOptions::default()).unwrap();
    let placement = loaded.placements[1];
    let mut byte = [0];
    loaded.segments[0].read(placement.offset_bytes + 77, &mut byte).unwrap();
    loaded.segments[0].write(placement.offset_bytes + 77, &[!byte[0]]).unwrap();
    let error = loaded.verify(&model).unwrap_err();
    match error.kind() {
        ErrorKind::Mismatch { at_byte: 77, .. } => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn layers_come_round_through_fewer_slots() {
    let folder = tempfile::tempdir().unwrap();
    let tensors = layers(8, 300_000);
    let model = open(&write_model(folder.path(), &tensors));
    let catalogue = Arc::new(Catalogue::from_model(&model, &GroupRules::default()).unwrap());
    assert_eq!(catalogue.groups().len(), 10);
    let device = native();
    let pump = pump(&device, IoMode::Auto, 1 << 20);
    let cache = SlotCache::new(&pump, CacheOptions::for_catalogue(&catalogue, 4)).unwrap();
    let id = cache.register(Arc::clone(&catalogue)).unwrap();
    let keys = cache.keys(id);
    let stream = device.create_stream(StreamOptions::default()).unwrap();
    for _ in 0..4 {
        for (group, key) in (0u32..).zip(&keys) {
            let lease = cache.wait_acquire(&[*key], &stream).unwrap();
            let (segment, base) = lease.memory(0).unwrap();
            for tensor in catalogue.tensors(group) {
                let len = usize::try_from(tensor.extent.len_bytes).unwrap();
                let read = stream.copy_to_host(&segment, base + tensor.offset_bytes, vec![0; len]).unwrap();
                let seed = u64::from(tensor.tensor) + 1;
                assert!(read.wait().unwrap() == pattern(seed, len), "tensor {}", tensor.tensor);
            }
            lease.release(&[&stream]).unwrap();
        }
    }
    let counters = cache.counters();
    let get = |counter| counters.get(counter);
    assert_eq!(get(Counter::Requested), 40);
    assert_eq!(get(Counter::Hits) + get(Counter::Misses), 40);
    assert!(get(Counter::Hits) >= 8, "{} hits", get(Counter::Hits));
    assert_eq!(get(Counter::FillsDone), get(Counter::Misses));
    stream.synchronize().unwrap();
    let snapshot = cache.snapshot();
    assert_eq!(snapshot.states[State::Resident as usize], 4);
    drop(cache);
    drop(pump);
    drop(stream);
    assert_eq!(device.memory_in_use(), 0);
    assert_eq!(device.in_flight(), 0);
}

#[test]
fn what_is_to_be_lent_can_be_imported_elsewhere_with_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let model = open(&write_model(folder.path(), &layers(4, 600_001)));
    let (device, borrower) = (native(), native());
    let pump = pump(&device, IoMode::Auto, 1 << 20);
    for packed in [false, true] {
        let options = LoadOptions { packed, exportable: true, ..LoadOptions::default() };
        let loaded = load_model(&pump, &model, &options).unwrap();
        assert_eq!(loaded.report.copied_because.is_some(), packed, "reads end in memory that is lent, too");
        let lent: Vec<_> =
            loaded.segments.iter().map(|own| borrower.import(own.export().unwrap()).unwrap()).collect();
        let borrowed = spoc_cache::load::Loaded { segments: lent, ..loaded };
        assert_eq!(borrowed.verify(&model).unwrap(), model.tensor_bytes());
    }
    let catalogue = Arc::new(Catalogue::from_model(&model, &GroupRules::default()).unwrap());
    let options = CacheOptions { exportable: true, ..CacheOptions::for_catalogue(&catalogue, 2) };
    let cache = SlotCache::new(&pump, options).unwrap();
    let keys = cache.keys(cache.register(Arc::clone(&catalogue)).unwrap());
    let stream = device.create_stream(StreamOptions::default()).unwrap();
    let lease = cache.wait_acquire(&keys[..1], &stream).unwrap();
    stream.synchronize().unwrap();
    let (segment, base) = lease.memory(0).unwrap();
    let lent = borrower.import(segment.export().unwrap()).unwrap();
    let tensor = &catalogue.tensors(0)[0];
    let mut bytes = vec![0; usize::try_from(tensor.extent.len_bytes).unwrap()];
    lent.read(base + tensor.offset_bytes, &mut bytes).unwrap();
    assert!(bytes == pattern(u64::from(tensor.tensor) + 1, bytes.len()));
    // A word that another process raises ends the lease at the next look.
    let word = Arc::new(AtomicU64::new(0));
    lease.release_at(Arc::clone(&word) as Arc<dyn spoc_cache::SequenceWord>, 1);
    assert_eq!(cache.snapshot().states[State::Leased as usize], 1);
    word.store(1, Ordering::Release);
    cache.poll();
    assert_eq!(cache.snapshot().states[State::Leased as usize], 0);
}

#[test]
fn two_caches_on_one_pump_count_for_themselves() {
    let folder = tempfile::tempdir().unwrap();
    let model = open(&write_model(folder.path(), &layers(4, 60_000)));
    let catalogue = Arc::new(Catalogue::from_model(&model, &GroupRules::default()).unwrap());
    let device = native();
    let pump = pump(&device, IoMode::Auto, 512 << 10);
    let stream = device.create_stream(StreamOptions::default()).unwrap();
    let caches = [2u32, 3].map(|slots| {
        let options = CacheOptions::for_catalogue(&catalogue, slots);
        let class = SlotClass { slots, slot_bytes: options.slot_bytes };
        SlotCache::with_counters(&pump, &[class], options, Counters::on_heap(slots as usize)).unwrap()
    });
    for (cache, wanted) in caches.iter().zip(1usize..) {
        let keys = cache.keys(cache.register(Arc::clone(&catalogue)).unwrap());
        cache.wait_acquire(&keys[..wanted], &stream).unwrap().release(&[&stream]).unwrap();
    }
    for (cache, wanted) in caches.iter().zip(1u64..) {
        let count = |counter| cache.counters().get(counter);
        assert_eq!((count(Counter::Misses), count(Counter::FillsDone)), (wanted, wanted));
        assert_eq!(count(Counter::Chunks), 0, "the pump's, not this cache's");
        assert_eq!(cache.snapshot().states.iter().sum::<u64>(), wanted + 1);
    }
    let pumped = pump.counters();
    assert!(pumped.get(Counter::Chunks) > 0 && pumped.get(Counter::Misses) == 0);
}

/// Threads with streams of their own, more keys wanted at once than there are slots, real reads.
#[test]
fn threads_find_what_they_leased() {
    let folder = tempfile::tempdir().unwrap();
    let model = open(&write_model(folder.path(), &layers(10, 60_000)));
    let catalogue = Arc::new(Catalogue::from_model(&model, &GroupRules::default()).unwrap());
    let device = native();
    let pump = pump(&device, IoMode::Auto, 512 << 10);
    let cache = SlotCache::new(&pump, CacheOptions::for_catalogue(&catalogue, 5)).unwrap();
    let keys = cache.keys(cache.register(Arc::clone(&catalogue)).unwrap());
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let (cache, keys, catalogue, device) = (&cache, &keys, &catalogue, &device);
            scope.spawn(move || {
                let stream = device.create_stream(StreamOptions::default()).unwrap();
                for round in 0..60usize {
                    let first = (thread * 7 + round * (thread + 1)) % keys.len();
                    let groups = [first, (first + 1 + round % 3) % keys.len()];
                    let lease = cache.wait_acquire(&groups.map(|group| keys[group]), &stream).unwrap();
                    let mut reads = Vec::new();
                    for (index, group) in groups.into_iter().enumerate() {
                        let (segment, base) = lease.memory(index).unwrap();
                        for tensor in catalogue.tensors(u32::try_from(group).unwrap()) {
                            let len = usize::try_from(tensor.extent.len_bytes).unwrap();
                            let at = base + tensor.offset_bytes;
                            let read = stream.copy_to_host(&segment, at, vec![0; len]).unwrap();
                            reads.push((u64::from(tensor.tensor) + 1, len, read));
                        }
                    }
                    if round % 2 == 0 {
                        lease.release(&[&stream]).unwrap();
                    } else {
                        drop(lease);
                    }
                    for (seed, len, read) in reads {
                        assert!(read.wait().unwrap() == pattern(seed, len), "thread {thread}, round {round}");
                    }
                }
            });
        }
    });
    let get = |counter| cache.counters().get(counter);
    assert_eq!(get(Counter::Hits) + get(Counter::Misses), get(Counter::Requested));
    assert_eq!(get(Counter::Requested), 4 * 60 * 2);
    assert_eq!(get(Counter::LeasesGiven), get(Counter::LeasesReleased));
}

/// A set of every group through three slots, then again beside what is there.
#[test]
fn a_set_wider_than_the_pool_comes_in_waves() {
    let folder = tempfile::tempdir().unwrap();
    let model = open(&write_model(folder.path(), &layers(8, 60_000)));
    let catalogue = Arc::new(Catalogue::from_model(&model, &GroupRules::default()).unwrap());
    let device = native();
    let pump = pump(&device, IoMode::Auto, 512 << 10);
    let cache = SlotCache::new(&pump, CacheOptions::for_catalogue(&catalogue, 3)).unwrap();
    let keys = cache.keys(cache.register(Arc::clone(&catalogue)).unwrap());
    let stream = device.create_stream(StreamOptions::default()).unwrap();
    for round in 0..2 {
        let before = cache.counters().get(Counter::Hits);
        let mut waves = cache.acquire_waves(&keys, &stream);
        let (mut served, mut widths) = (Vec::new(), Vec::new());
        while let Some(wave) = waves.wait_next().unwrap() {
            widths.push(wave.slots().count());
            for (index, (place, slot)) in wave.slots().enumerate() {
                let (segment, base) = wave.memory(index).unwrap();
                assert_eq!(base, slot.offset_bytes);
                let group = u32::try_from(place).unwrap();
                for tensor in catalogue.tensors(group) {
                    let len = usize::try_from(tensor.extent.len_bytes).unwrap();
                    let read =
                        stream.copy_to_host(&segment, base + tensor.offset_bytes, vec![0; len]).unwrap();
                    assert!(read.wait().unwrap() == pattern(u64::from(tensor.tensor) + 1, len));
                }
                served.push(place);
            }
            wave.release(&[&stream]).unwrap();
        }
        assert_eq!(widths, [3, 3, 3, 1]);
        served.sort_unstable();
        assert_eq!(served, (0..keys.len()).collect::<Vec<_>>());
        // The last wave is narrower than the pool: something of the one before it is still there.
        let hits = cache.counters().get(Counter::Hits) - before;
        assert_eq!(hits, if round == 0 { 0 } else { 3 });
    }
    cache.pin(&keys[..3]).unwrap();
    let mut waves = cache.acquire_waves(&keys[3..], &stream);
    let error = waves.wait_next().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TooWide { need: 1, have: 0 }), "{error}");
    drop(waves);
}

#[test]
fn groups_of_a_real_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut tensors = layers(11, 1000);
    tensors.push(("model.layers.3.empty".to_owned(), 0));
    tensors.push(("model.only_empty.weight".to_owned(), 0));
    let model = open(&write_model(folder.path(), &tensors));
    let catalogue = Catalogue::from_model(&model, &GroupRules::default()).unwrap();
    let names: Vec<&str> = catalogue.groups().iter().map(|group| group.name.as_str()).collect();
    // Layers by number and not by text, the embedding before them, the rest behind.
    assert_eq!(names[..4], ["model.embed_tokens", "model.layers.0", "model.layers.1", "model.layers.2"]);
    assert_eq!(names[10..], ["model.layers.9", "model.layers.10", "lm_head", "model.only_empty"]);
    assert_eq!(catalogue.group_named("model.layers.10"), Some(11));
    assert_eq!(catalogue.tensor_bytes(), model.tensor_bytes());
    for (number, group) in (0u32..).zip(catalogue.groups()) {
        let mut end = 0;
        for tensor in catalogue.tensors(number) {
            assert_eq!(tensor.offset_bytes % 256, 0);
            assert!(tensor.offset_bytes >= end);
            end = tensor.offset_bytes + tensor.extent.len_bytes;
            assert!(model.tensors()[tensor.tensor as usize].name.starts_with(&group.name));
        }
        assert_eq!((group.slot_bytes, group.position), (end, number));
    }
    assert_eq!(catalogue.tensors(4).len(), 4);

    // A group of empty tensors is there without a read.
    let device = native();
    let pump = pump(&device, IoMode::Auto, 1 << 20);
    let cache = SlotCache::new(&pump, CacheOptions::for_catalogue(&catalogue, 2)).unwrap();
    let keys = cache.keys(cache.register(Arc::new(catalogue)).unwrap());
    let stream = device.create_stream(StreamOptions::default()).unwrap();
    let lease = cache.wait_acquire(&[keys[13], keys[4]], &stream).unwrap();
    assert_eq!(lease.len(), 2);
}

#[test]
fn slices_of_every_rank_arrive_whole_or_cut_on_the_device() {
    let folder = tempfile::tempdir().unwrap();
    let device = native();
    let pump = pump(&device, IoMode::Auto, 1 << 20);
    for (rows, columns, ranks) in [(640, 512, 8), (33, 24, 8), (100, 70, 7), (9, 1 << 18, 2), (40, 36, 5)] {
        let model = matrix(folder.path(), rows, columns);
        let (wide, high) = (columns / ranks, rows / ranks);
        let by_row = |rank: u64| Slice { tensor: 0, ranges: vec![0..rows, rank * wide..(rank + 1) * wide] };
        let by_column =
            |rank: u64| Slice { tensor: 0, ranges: vec![rank * high..(rank + 1) * high, 0..columns] };
        let slices: Vec<_> = (0..ranks).flat_map(|rank| [by_row(rank), by_column(rank)]).collect();
        let loaded = load_slices(&pump, &model, &slices).unwrap();
        let bytes = ranks * 2 * (rows * wide + high * columns);
        assert_eq!(loaded.verify(&model, &slices).unwrap(), bytes);
        // Runs of 128 KiB have copies of their own, and so have those that a gather cannot name.
        let cut = if wide == 1 << 17 || columns % wide != 0 { 0 } else { ranks };
        assert_eq!(loaded.cut as u64, cut, "{rows}x{columns}");
        let one = load_slices(&pump, &model, &slices[..1]).unwrap();
        assert_eq!(one.verify(&model, &slices[..1]).unwrap(), 2 * rows * wide);
    }
    assert_eq!(load_slices(&pump, &matrix(folder.path(), 2, 2), &[]).unwrap().placements, vec![]);
    let wrong = Slice { tensor: 3, ranges: vec![] };
    let error = load_slices(&pump, &matrix(folder.path(), 2, 2), &[wrong]).unwrap_err();
    assert_eq!(error.kind().as_str(), "no_tensor");
}

#[test]
fn reads_end_in_memory_of_our_own_and_nowhere_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_model(folder.path(), &layers(2, 300_000));
    let driver = spoc_driver::Driver::new(spoc_backends::found(&spoc_backends::probe()));
    for info in driver.devices() {
        let selector = spoc_driver::DeviceSelector::index(info.backend, 0);
        let Ok(device) = driver.open(&selector) else { continue };
        let pump = pump(&device, IoMode::Auto, 1 << 20);
        let model = open(&path);
        let loaded = load_model(&pump, &model, &LoadOptions::default()).unwrap();
        loaded.verify(&model).unwrap();
        // What a driver maps may refuse reads: bytes go there by copies, and the report says why.
        let in_place = loaded.report.reader.in_place_bytes;
        let own =
            matches!(info.backend, spoc_driver::BackendKind::Native | spoc_driver::BackendKind::Interpreter);
        assert!(own || (in_place == 0 && loaded.report.copied_because.is_some()), "{}", info.backend);
    }
}

#[test]
fn what_is_leased_stays_until_it_is_released_whatever_else_is_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_model(folder.path(), &layers(8, 60_000));
    let model = open(&path);
    let device = native();
    let pump = pump(&device, IoMode::Auto, 1 << 20);
    let catalogue = Arc::new(Catalogue::from_model(&model, &GroupRules::default()).unwrap());
    let policy = spoc_cache::policy::PolicyKind::Lru;
    let options = CacheOptions { policy, ..CacheOptions::for_catalogue(&catalogue, 3) };
    let cache = SlotCache::new(&pump, options).unwrap();
    let keys = cache.keys(cache.register(Arc::clone(&catalogue)).unwrap());
    let stream = device.create_stream(StreamOptions::default()).unwrap();
    let bytes_of = |(segment, offset): &(spoc_driver::Segment, u64)| {
        let mut bytes = vec![0; 60_000];
        segment.read(*offset, &mut bytes).unwrap();
        bytes
    };
    let lease = cache.wait_acquire(&keys[1..2], &stream).unwrap();
    stream.synchronize().unwrap();
    let memory = lease.memory(0).unwrap();
    let before = bytes_of(&memory);
    for _ in 0..5 {
        for key in &keys[2..] {
            cache.wait_acquire(&[*key], &stream).unwrap().release(&[&stream]).unwrap();
        }
    }
    assert!(cache.counters().get(Counter::Evictions) > 5);
    assert!(bytes_of(&memory) == before, "overwritten while it was leased");
    // Only after the release does another group come to lie there.
    lease.release(&[&stream]).unwrap();
    for _ in 0..5 {
        for key in &keys[2..] {
            cache.wait_acquire(&[*key], &stream).unwrap().release(&[&stream]).unwrap();
        }
    }
    stream.synchronize().unwrap();
    assert!(bytes_of(&memory) != before, "the slot was never used again");
}
