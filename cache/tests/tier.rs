//! The host tier on every device of this machine: real reads, real copies, every byte compared.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests are tests

mod common;

use common::{open, pattern, pump, write_model};
use spoc_cache::stats::layout::Counter;
use spoc_cache::{CacheOptions, Catalogue, GroupRules, SlotCache, TierOptions};
use spoc_driver::{BackendKind, Device, DeviceSelector, Driver, StreamOptions};
use spoc_io::IoMode;
use std::sync::Arc;

const LAYERS: usize = 6;
const BYTES: usize = 700_001;

fn devices() -> Vec<Device> {
    let driver = Driver::new(spoc_backends::found(&spoc_backends::probe()));
    [BackendKind::Native, BackendKind::OpenCl, BackendKind::Vulkan]
        .into_iter()
        .filter_map(|kind| driver.open(&DeviceSelector::index(kind, 0)).ok())
        .collect()
}

fn walk(device: &Device, inclusive: bool) {
    let folder = tempfile::tempdir().unwrap();
    let tensors: Vec<_> =
        (0..LAYERS).map(|layer| (format!("model.layers.{layer}.mlp.weight"), BYTES)).collect();
    let model = open(&write_model(folder.path(), &tensors));
    let catalogue = Arc::new(Catalogue::from_model(&model, &GroupRules::default()).unwrap());
    let pump = pump(device, IoMode::Auto, 1 << 20);
    let tier = TierOptions { bytes: 16 << 20, inclusive, ..TierOptions::default() };
    let options = CacheOptions { tier, ..CacheOptions::for_catalogue(&catalogue, 2) };
    let cache = SlotCache::new(&pump, options).unwrap();
    let keys = cache.keys(cache.register(Arc::clone(&catalogue)).unwrap());
    cache.wait_tier();
    let stream = device.create_stream(StreamOptions::default()).unwrap();
    for step in 0..10 * LAYERS {
        // Forwards, and every third round backwards.
        let at = if step / LAYERS % 3 == 2 { LAYERS - 1 - step % LAYERS } else { step % LAYERS };
        let lease = cache.wait_acquire(&[keys[at]], &stream).unwrap();
        let (segment, base) = lease.memory(0).unwrap();
        let read = stream.copy_to_host(&segment, base, vec![0; BYTES]).unwrap();
        lease.release(&[&stream]).unwrap();
        let expected = pattern(at as u64 + 1, BYTES);
        assert!(read.wait().unwrap() == expected, "{}: layer {at} in step {step}", device.info().name);
    }
    let get = |counter| cache.counters().get(counter);
    let hits = get(Counter::TierHits);
    assert!(hits > 0, "{}: nothing came from the tier", device.info().name);
    assert_eq!(get(Counter::TierUnpinnedBytes), 0);
    assert_eq!(get(Counter::FillsStarted), get(Counter::FillsDone));
    if inclusive {
        // Each layer is read once: afterwards it is in the tier for good.
        assert_eq!(get(Counter::FillsDone) - hits, LAYERS as u64);
    }
    drop((cache, pump));
    assert_eq!(device.pinned_ranges(), 0);
}

#[test]
fn layers_come_back_from_the_tier_byte_for_byte() {
    for device in devices() {
        for inclusive in [false, true] {
            walk(&device, inclusive);
        }
    }
}
