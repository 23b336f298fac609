//! Naming and opening devices.

use spoc_driver::{BackendKind, DeviceSelector, DeviceUuid};

use crate::{Subject, refused};

/// Index and UUID name the same device, and opening it twice gives the same one.
pub fn devices_are_named_by_index_and_by_uuid(subject: &Subject) {
    let kind = subject.backend.id().kind;
    let info = subject.device.info();
    let by_index = subject.driver.open(&DeviceSelector::index(kind, info.index)).unwrap();
    let by_uuid = subject.driver.open(&DeviceSelector::uuid(kind, info.uuid)).unwrap();
    assert!(by_index.is(&subject.device));
    assert!(by_uuid.is(&subject.device));
    // The name survives being written into a configuration file.
    let text = info.uuid.to_string();
    assert_eq!(text.parse::<DeviceUuid>().unwrap(), info.uuid);
}

/// Every listed device opens as what the list says; names are unique.
pub fn devices_are_what_the_list_says(subject: &Subject) {
    let listed = subject.driver.devices();
    for (position, info) in listed.iter().enumerate() {
        assert_eq!(info.index as usize, position);
        assert_eq!(info.backend, subject.backend.id().kind);
        assert!(!info.name.is_empty());
        assert!(info.memory_bytes > 0);
        assert!(listed.iter().filter(|other| other.uuid == info.uuid).count() == 1, "{info:?}");
        let device = subject.driver.open(&DeviceSelector::uuid(info.backend, info.uuid)).unwrap();
        assert_eq!(device.info().uuid, info.uuid);
        assert_eq!(device.info().index, info.index);
        assert_eq!(device.numa_node(), info.numa_node);
    }
}

/// What does not exist is refused by name, whatever it is named by.
pub fn devices_that_do_not_exist_are_refused(subject: &Subject) {
    let kind = subject.backend.id().kind;
    let past_the_end = u32::try_from(subject.driver.devices().len()).unwrap();
    for index in [past_the_end, u32::MAX] {
        let error = refused(subject.driver.open(&DeviceSelector::index(kind, index)), "no_such_device");
        assert!(error.to_string().contains(&index.to_string()), "{error}");
    }
    let stranger = DeviceUuid(*b"nobody's device!");
    let error = refused(subject.driver.open(&DeviceSelector::uuid(kind, stranger)), "no_such_device");
    assert!(error.to_string().contains(&stranger.to_string()), "{error}");
    let absent = BackendKind::ALL.into_iter().find(|other| *other != kind).unwrap();
    refused(subject.driver.open(&DeviceSelector::index(absent, 0)), "no_such_device");
}

/// Limits and memory figures make sense.
pub fn devices_have_sensible_limits(subject: &Subject) {
    let (limits, memory) = (subject.device.limits(), subject.device.memory().unwrap());
    assert!(limits.copy_granule_bytes.is_power_of_two());
    assert!(limits.address_align_bytes.is_power_of_two());
    assert!(limits.export_granule_bytes.is_power_of_two());
    assert!(limits.segment_bytes_max >= 1 << 20, "{limits:?}");
    assert!(limits.binding_bytes_max >= 1 << 20, "{limits:?}");
    assert!(memory.total_bytes > 0);
    assert!(memory.free_bytes <= memory.total_bytes, "{memory:?}");
}

/// Nothing is kept in statics: what one driver did, another does not see.
pub fn rule_07_drivers_know_nothing_of_each_other(subject: &Subject) {
    let info = subject.device.info();
    let stranger = subject.other_driver().open(&DeviceSelector::index(info.backend, info.index)).unwrap();
    assert!(!stranger.is(&subject.device));
    let segment = subject.device.allocate(4096).unwrap();
    let pinned = subject.device.alloc_pinned(4096);
    assert_eq!(stranger.memory_in_use(), 0);
    assert_eq!(stranger.pinned_ranges(), 0);
    assert_eq!(stranger.in_flight(), 0);
    assert_eq!(subject.device.memory_in_use(), 4096);
    drop((segment, pinned));
    assert_eq!(subject.device.pinned_ranges(), 0);
}
