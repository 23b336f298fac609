//! A fleet: groups on one device or on several, each exact, one read for those who ask together.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests are tests

mod common;

use common::{layers, open, write_model};
use spoc_backends::native;
use spoc_cache::{CacheOptions, Catalogue, Fleet, GroupRules, PumpGroup, PumpOptions};
use spoc_driver::{BackendKind, DeviceSelector, Driver, Stream, StreamOptions};
use spoc_io::IoMode;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[test]
fn groups_live_on_one_device_or_on_several() {
    let folder = tempfile::tempdir().unwrap();
    let model = open(&write_model(folder.path(), &layers(6, 100_000)));
    let catalogue = Arc::new(Catalogue::from_model(&model, &GroupRules::default()).unwrap());
    let options = native::Options { devices: 2, ..native::Options::default() };
    let driver = Driver::new(vec![native::backend(options)]);
    let open = |index| driver.open(&DeviceSelector::index(BackendKind::Native, index)).unwrap();
    let devices = [open(0), open(1)];
    let pumps = || PumpGroup::start(&devices, &PumpOptions::new(IoMode::Auto, 1 << 20).unwrap()).unwrap();
    let slots = |count| vec![CacheOptions::for_catalogue(&catalogue, 4); count];
    assert_eq!(Fleet::new(pumps(), slots(3)).unwrap_err().kind().as_str(), "no_device");
    let fleet = Fleet::new(pumps(), slots(2)).unwrap();
    assert_eq!(fleet.register(&catalogue, &[1.0]).unwrap_err().kind().as_str(), "no_device");
    let known = fleet.register(&catalogue, &[1.0, 1.0]).unwrap();
    let streams = devices.each_ref().map(|device| device.create_stream(StreamOptions::default()).unwrap());

    let groups: Vec<u32> = (0u32..).zip(catalogue.groups()).map(|(group, _)| group).collect();
    let mut at_home = [0, 0];
    groups.iter().for_each(|group| at_home[known.home(*group).unwrap()] += 1);
    assert!(at_home.iter().all(|count| *count >= 2), "{at_home:?}");
    let read = |device: usize, group: u32| -> Vec<u8> {
        let stream: &Stream = &streams[device];
        let lease = fleet.wait_acquire(&known, device, &[group], stream).unwrap();
        let (segment, offset) = lease.memory(0).unwrap();
        let len = usize::try_from(catalogue.groups()[group as usize].slot_bytes).unwrap();
        let read = stream.copy_to_host(&segment, offset, vec![0; len]).unwrap();
        lease.release(&[stream]).unwrap();
        read.wait().unwrap()
    };
    // Everything at home, with fewer slots than groups, then one group on both.
    for group in &groups {
        let bytes = read(known.home(*group).unwrap(), *group);
        for tensor in catalogue.tensors(*group) {
            let stored = &model.tensors()[tensor.tensor as usize];
            let mut expected = vec![0; usize::try_from(stored.extent.len_bytes).unwrap()];
            model.file_of(stored).unwrap().read_exact_at(&mut expected, stored.extent.offset).unwrap();
            let at = usize::try_from(tensor.offset_bytes).unwrap();
            assert_eq!(bytes[at..at + expected.len()], expected);
        }
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    let hinted = fleet.hint(&known, &[0, 1], &[2], deadline).unwrap();
    assert_eq!(hinted.len(), 2);
    assert_eq!(read(0, 2), read(1, 2));
    let error = fleet.key(&known, 2, 0).unwrap_err();
    assert!(error.to_string().contains("devices 0 to 2, there are 2"), "{error}");
    assert_eq!(fleet.key(&known, 0, 99).unwrap_err().kind().as_str(), "no_such_group");
    drop(fleet);
    for device in &devices {
        let deadline = Instant::now() + Duration::from_secs(10);
        while device.memory_in_use() > 0 || device.in_flight() > 0 {
            assert!(Instant::now() < deadline, "memory or copies are left");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
