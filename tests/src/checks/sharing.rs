//! Lending device memory by descriptor.

use std::fs::File;

use spoc_driver::{DeviceUuid, Segment, SegmentOptions};

use crate::helpers::pattern;
use crate::{Subject, refused};

/// An exportable segment, or nothing where the device has none: then the refusal was checked.
fn exportable(subject: &Subject, len: u64) -> Option<Segment> {
    let outcome = subject.device.allocate_with(len, SegmentOptions { exportable: true });
    if subject.device.capabilities().export_memory.is_available() {
        return Some(outcome.unwrap());
    }
    let error = refused(outcome, "unsupported");
    assert!(error.to_string().contains("export_memory"), "{error}");
    refused(subject.zeroes(64).export(), "unsupported");
    None
}

/// Both sides see the same bytes, and the memory lives while either side does.
pub fn sharing_both_sides_see_the_same_bytes(subject: &Subject) {
    let Some(segment) = exportable(subject, 100_000) else { return };
    segment.write(0, &pattern(1, 100_000)).unwrap();
    let exported = segment.export().unwrap();
    assert_eq!(exported.device, subject.device.info().uuid);
    assert!(exported.len_bytes >= 100_000 && exported.allocation_bytes >= exported.len_bytes);
    if !subject.device.capabilities().import_memory.is_available() {
        refused(subject.device.import(exported), "unsupported");
        return;
    }
    let importer = subject.other_driver();
    let selector = spoc_driver::DeviceSelector::uuid(subject.backend.id().kind, exported.device);
    let other = importer.open(&selector).unwrap();
    let imported = other.import(exported).unwrap();
    assert!(imported.len_bytes() >= 100_000);
    assert_eq!(other.memory_in_use(), imported.len_bytes());
    let mut seen = vec![0; 100_000];
    imported.read(0, &mut seen).unwrap();
    assert!(seen == pattern(1, 100_000));
    imported.write(64, &pattern(2, 4096)).unwrap();
    let mut back = vec![0; 4096];
    segment.read(64, &mut back).unwrap();
    assert_eq!(back, pattern(2, 4096));
    drop(segment);
    imported.read(64, &mut back).unwrap();
    assert_eq!(back, pattern(2, 4096), "the memory went with its first owner");
}

/// A descriptor alone keeps the memory.
pub fn sharing_a_descriptor_keeps_the_memory(subject: &Subject) {
    let Some(segment) = exportable(subject, 8192) else { return };
    segment.write(0, &pattern(3, 8192)).unwrap();
    let exported = segment.export().unwrap();
    drop(segment);
    assert_eq!(subject.device.memory_in_use(), 0);
    if !subject.device.capabilities().import_memory.is_available() {
        refused(subject.device.import(exported), "unsupported");
        return;
    }
    let imported = subject.device.import(exported).unwrap();
    let mut back = vec![0; 8192];
    imported.read(0, &mut back).unwrap();
    assert_eq!(back, pattern(3, 8192));
}

/// Descriptors of another device, of nothing, and of too little are refused.
pub fn sharing_wrong_descriptors_are_refused(subject: &Subject) {
    let Some(segment) = exportable(subject, 8192) else { return };
    if !subject.device.capabilities().import_memory.is_available() {
        refused(subject.device.import(segment.export().unwrap()), "unsupported");
        return;
    }
    let mut elsewhere = segment.export().unwrap();
    elsewhere.device = DeviceUuid(*b"nobody's device!");
    refused(subject.device.import(elsewhere), "wrong_device");
    let mut nothing = segment.export().unwrap();
    nothing.descriptor = File::open("/dev/null").unwrap().into();
    let error = subject.device.import(nothing).unwrap_err();
    assert!(matches!(error.kind().as_str(), "invalid_argument" | "os" | "backend"), "{error}");
    let mut empty = segment.export().unwrap();
    empty.len_bytes = 0;
    refused(subject.device.import(empty), "zero_size");
    let mut too_long = segment.export().unwrap();
    too_long.len_bytes += too_long.allocation_bytes + 1;
    let error = subject.device.import(too_long).unwrap_err();
    assert!(matches!(error.kind().as_str(), "invalid_argument" | "out_of_bounds"), "{error}");
    assert_eq!(subject.device.memory_in_use(), 8192, "a refused import was counted");
}
