//! What each backend offers; what it does not is refused by name.

use std::fs::File;

use spoc_backends::native;
use spoc_driver::backend::Foreign;
use spoc_driver::{
    CopyRange, Error, ErrorKind, Exported, HostMemory, HostMemoryOptions, SegmentOptions, StreamOptions,
    Verdict,
};

use crate::helpers::pattern;
use crate::subject::download;
use crate::{Offer, Subject, refused};

/// Asserts a refusal that names the backend and the feature.
#[track_caller]
fn refused_by_name<T: std::fmt::Debug>(subject: &Subject, outcome: Result<T, Error>, name: &'static str) {
    let error = refused(outcome, "unsupported");
    let backend = subject.backend.id().kind;
    assert_eq!(*error.kind(), ErrorKind::Unsupported { backend, feature: name }, "{error}");
    assert!(error.to_string().contains(name), "{error}");
}

/// The device's verdicts are those of the contract's table.
pub fn table_verdicts_are_those_of_the_contract(subject: &Subject) {
    let (table, capabilities) = (subject.table, subject.device.capabilities());
    let rows = [
        ("async_copies", table.async_copies, &capabilities.async_copies),
        ("pinned_alloc", table.pinned_alloc, &capabilities.pinned_alloc),
        ("host_register", table.host_register, &capabilities.host_register),
        ("export_memory", table.export_memory, &capabilities.export_memory),
        ("host_pointer", table.host_pointer, &capabilities.host_pointer),
    ];
    for (name, offer, verdict) in rows {
        match offer {
            Offer::Yes => assert!(verdict.is_available(), "{name}: {verdict}"),
            Offer::No => assert!(!verdict.is_available(), "{name}: {verdict}"),
            Offer::Depends => {}
        }
    }
}

/// A verdict other than yes has a reason for people.
pub fn table_every_refusal_has_a_reason(subject: &Subject) {
    for (name, verdict) in subject.device.capabilities().iter() {
        if let Verdict::Unavailable(reason) | Verdict::Unknown(reason) = verdict {
            assert!(reason.len() > 8, "{name}: `{reason}` says nothing");
        }
    }
}

/// Every feature that a device lacks is refused by its name, and none of those it has.
pub fn table_what_is_lacking_is_refused_by_name(subject: &Subject) {
    let (device, capabilities) = (&subject.device, subject.device.capabilities());
    let (stream, segment) = (subject.stream(), subject.zeroes(64));
    let memory = HostMemory::allocate(4096, HostMemoryOptions::default()).unwrap();
    let outcomes: [(&'static str, &Verdict, Result<(), Error>); 6] = [
        ("pinned_alloc", &capabilities.pinned_alloc, device.alloc_pinned(64).map(drop)),
        ("host_register", &capabilities.host_register, device.pin(&memory).map(drop)),
        (
            "export_memory",
            &capabilities.export_memory,
            device.allocate_with(64, SegmentOptions { exportable: true }).and_then(|s| s.export()).map(drop),
        ),
        ("fill", &capabilities.fill, segment.fill(0, 64, 1)),
        ("fill", &capabilities.fill, stream.fill(&segment, 0, 64, 1)),
        ("write_value", &capabilities.write_value, stream.write_value(&segment, 0, 1)),
    ];
    for (name, verdict, outcome) in outcomes {
        if verdict.is_available() {
            outcome.unwrap_or_else(|error| panic!("{name} was promised: {error}"));
        } else {
            refused_by_name(subject, outcome, name);
        }
    }
    if !capabilities.import_memory.is_available() {
        refused_by_name(subject, device.import(nonsense(subject)).map(drop), "import_memory");
    }
    stream.synchronize().unwrap();
}

/// Something that claims to be this device's memory, and is not.
fn nonsense(subject: &Subject) -> Exported {
    let info = subject.device.info();
    Exported {
        descriptor: File::open("/dev/null").unwrap().into(),
        len_bytes: 4096,
        allocation_bytes: 1 << 16,
        backend: info.backend,
        device: info.uuid,
    }
}

/// Nothing can be borrowed where borrowing is not offered.
pub fn table_borrowing_is_refused_by_name(subject: &Subject) {
    let (device, capabilities) = (&subject.device, subject.device.capabilities());
    let nobody = || Foreign { words: [0; 6], keep_alive: None };
    if !capabilities.adopt_context.is_available() {
        // SAFETY: refused before the words are looked at, as the verdict says.
        let outcome = unsafe { subject.driver.adopt(subject.backend.id().kind, nobody()) };
        refused_by_name(subject, outcome.map(drop), "adopt_context");
    }
    if !capabilities.adopt_stream.is_available() {
        // SAFETY: as above.
        let outcome = unsafe { device.adopt_stream(nobody(), StreamOptions::default()) };
        refused_by_name(subject, outcome.map(drop), "adopt_stream");
    }
    if !capabilities.adopt_memory.is_available() {
        // SAFETY: as above.
        let outcome = unsafe { device.adopt_memory(nobody(), 64) };
        refused_by_name(subject, outcome.map(drop), "adopt_memory");
        assert_eq!(device.memory_in_use(), 0);
    }
}

/// A host pointer is given exactly where one is promised, and points at the bytes.
pub fn table_host_pointers_are_given_where_promised(subject: &Subject) {
    let segment = subject.filled_with(&pattern(1, 4096));
    let promised = subject.device.capabilities().host_pointer.is_available();
    let Some(pointer) = segment.host_pointer() else {
        assert!(!promised, "promised, and not given");
        return;
    };
    assert!(promised, "given, and not promised");
    // SAFETY: the segment lives, has 4096 bytes, and nothing is enqueued.
    let bytes = unsafe { std::slice::from_raw_parts(pointer, 4096) };
    assert_eq!(bytes, pattern(1, 4096));
}

/// A stream writes words in its order; misplaced ones are refused.
pub fn words_are_written_in_stream_order(subject: &Subject) {
    let (stream, segment) = (subject.stream(), subject.zeroes(64));
    if !subject.device.capabilities().write_value.is_available() {
        refused_by_name(subject, stream.write_value(&segment, 0, 1), "write_value");
        return;
    }
    for (offset, kind) in [(4, "misaligned"), (1, "misaligned"), (64, "out_of_bounds"), (60, "out_of_bounds")]
    {
        refused(stream.write_value(&segment, offset, 1), kind);
    }
    refused(stream.write_value(&segment, u64::MAX - 7, 1), "out_of_bounds");
    let other = subject.other_device().allocate(64).unwrap();
    refused(stream.write_value(&other, 0, 1), "wrong_device");
    stream.write_value(&segment, 8, 7).unwrap();
    stream.write_value(&segment, 56, u64::MAX - 1).unwrap();
    stream.write_value(&segment, 8, 0x0102_0304_0506_0708).unwrap();
    let back = download(&stream, &segment);
    assert_eq!(back[8..16], [8, 7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(back[56..], (u64::MAX - 1).to_le_bytes());
    assert_eq!(back[..8], [0; 8]);
}

/// A stream waits for a word that another writes.
pub fn words_are_waited_for(subject: &Subject) {
    let (writer, waiter) = (subject.free_stream(), subject.free_stream());
    let (word, result) = (subject.zeroes(64), subject.zeroes(64));
    if !subject.device.capabilities().wait_value.is_available() {
        refused_by_name(subject, waiter.wait_value(&word, 0, 1), "wait_value");
        return;
    }
    refused(waiter.wait_value(&word, 12, 1), "misaligned");
    refused(waiter.wait_value(&word, 64, 1), "out_of_bounds");
    waiter.wait_value(&word, 16, 5).unwrap();
    let range = CopyRange { src_offset: 0, dst: &result, dst_offset: 0, len_bytes: 64 };
    waiter.copy_to_device(pattern(2, 64), &[range]).unwrap();
    writer.write_value(&word, 16, 4).unwrap();
    writer.synchronize().unwrap();
    assert!(!waiter.query().unwrap(), "a smaller word satisfied the wait");
    writer.write_value(&word, 16, 6).unwrap();
    assert_eq!(download(&waiter, &result), pattern(2, 64));
}

/// A handle of another opening, or another backend, is refused by the port itself.
pub fn devices_foreign_handles_are_refused_by_the_port(subject: &Subject) {
    let stranger = native::backend(native::Options::default());
    let foreign = stranger.open(0).unwrap();
    let port = &subject.backend;
    let own = port.open(subject.device.info().index).unwrap();
    let foreign_stream = stranger.create_stream(&foreign, StreamOptions::default()).unwrap();
    let foreign_event = stranger.create_event(&foreign).unwrap();
    let own_stream = port.create_stream(&own, StreamOptions::default()).unwrap();
    let own_event = port.create_event(&own).unwrap();
    refused(port.memory(&foreign), "foreign_handle");
    refused(port.create_stream(&foreign, StreamOptions::default()).map(drop), "foreign_handle");
    refused(port.create_event(&foreign).map(drop), "foreign_handle");
    refused(port.allocate(&foreign, 64, SegmentOptions::default()).map(drop), "foreign_handle");
    refused(port.synchronize_stream(&own, &foreign_stream), "foreign_handle");
    refused(port.record_event(&own, &foreign_stream, &own_event), "foreign_handle");
    refused(port.record_event(&own, &own_stream, &foreign_event), "foreign_handle");
    // One of the right backend, but of another type.
    refused(port.query_stream(&own, &own_event), "foreign_handle");
    refused(stranger.query_event(&foreign, &own_event), "foreign_handle");
}
