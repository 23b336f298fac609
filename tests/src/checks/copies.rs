//! Bounds, lengths, offsets and contents of every form of copy.

use spoc_driver::{CopyRange, Error, Segment, Stream};

use crate::helpers::{Drops, pattern};
use crate::subject::{download, upload, whole};
use crate::{Subject, refused};

/// Offsets and lengths that leave a segment of 4096 bytes.
const OUTSIDE: [(u64, usize); 7] =
    [(4096, 8), (4088, 16), (0, 4104), (8, 4096), (u64::MAX, 8), (u64::MAX - 7, 8), (1 << 63, 64)];
/// Those that just do not, empty ones included.
const INSIDE: [(u64, usize); 6] = [(0, 4096), (4088, 8), (4096, 0), (0, 0), (2048, 1024), (16, 0)];

type Form = (&'static str, fn(&Subject, &Stream, &Segment, u64, usize) -> Result<(), Error>);

/// Every form of copy, with a range on the device.
const FORMS: [Form; 8] = [
    ("write", |_, _, segment, offset, len| segment.write(offset, &vec![1; len])),
    ("read", |_, _, segment, offset, len| segment.read(offset, &mut vec![1; len])),
    ("fill", |_, _, segment, offset, len| segment.fill(offset, len as u64, 1)),
    ("copy_to_device", |_, stream, segment, offset, len| {
        let range = CopyRange { src_offset: 0, dst: segment, dst_offset: offset, len_bytes: len };
        Ok(stream.copy_to_device(vec![1; len], &[range])?)
    }),
    ("copy_to_host", |_, stream, segment, offset, len| {
        let pending = stream.copy_to_host(segment, offset, vec![1; len])?;
        Ok(pending.wait().map(drop)?)
    }),
    ("copy_device_to_device, source", |subject, stream, segment, offset, len| {
        let other = subject.device.allocate(8192)?;
        stream.copy_device_to_device(segment, offset, &other, 0, len as u64)
    }),
    ("copy_device_to_device, destination", |subject, stream, segment, offset, len| {
        let other = subject.device.allocate(8192)?;
        stream.copy_device_to_device(&other, 0, segment, offset, len as u64)
    }),
    ("fill on a stream", |_, stream, segment, offset, len| stream.fill(segment, offset, len as u64, 1)),
];

/// The same, for forms that this device has; the others are refused whatever the range.
fn forms(subject: &Subject) -> impl Iterator<Item = Form> {
    let has_fill = subject.device.capabilities().fill.is_available();
    FORMS.into_iter().filter(move |(name, _)| has_fill || !name.starts_with("fill"))
}

/// Ranges that leave the memory are refused, overflow included, and nothing is touched.
pub fn copies_outside_the_segment_are_refused(subject: &Subject) {
    let (segment, stream) = (subject.filled_with(&pattern(1, 4096)), subject.stream());
    for (name, copy) in forms(subject) {
        for (offset, len) in OUTSIDE {
            let outcome = copy(subject, &stream, &segment, offset, len);
            let Err(error) = outcome else { panic!("{name} took {len} bytes at {offset}") };
            assert_eq!(error.kind().as_str(), "out_of_bounds", "{name} of {len} at {offset}: {error}");
        }
    }
    stream.synchronize().unwrap();
    assert_eq!(subject.contents(&segment), pattern(1, 4096));
    assert_eq!(subject.device.in_flight(), 0);
}

/// Ranges that end with the memory are fine, and so are empty ones.
pub fn copies_up_to_the_end_and_empty_ones_are_fine(subject: &Subject) {
    let (segment, stream) = (subject.zeroes(4096), subject.stream());
    for (name, copy) in forms(subject) {
        for (offset, len) in INSIDE {
            let outcome = copy(subject, &stream, &segment, offset, len);
            assert!(outcome.is_ok(), "{name} of {len} at {offset}: {outcome:?}");
        }
    }
    stream.synchronize().unwrap();
}

/// Empty copies change nothing, and give everything back.
pub fn copies_of_nothing_change_nothing(subject: &Subject) {
    let (segment, stream) = (subject.filled_with(&pattern(2, 64)), subject.stream());
    let drops = Drops::default();
    stream.copy_to_device(drops.watch(Vec::new()), &[]).unwrap();
    stream.copy_to_device(drops.watch(vec![9; 8]), &[]).unwrap();
    stream
        .copy_to_device(drops.watch(vec![9; 8]), &[CopyRange { len_bytes: 0, ..whole(8, &segment) }])
        .unwrap();
    stream.synchronize().unwrap();
    assert_eq!(drops.count(), 3);
    if subject.device.capabilities().fill.is_available() {
        stream.fill(&segment, 8, 0, 9).unwrap();
        segment.fill(64, 0, 9).unwrap();
    }
    stream.copy_device_to_device(&segment, 0, &segment, 0, 0).unwrap();
    assert_eq!(subject.device.in_flight(), 0, "something was enqueued for nothing");
    let empty = stream.copy_to_host(&segment, 64, drops.watch(Vec::new())).unwrap().wait().unwrap();
    assert!(empty.bytes().is_empty());
    assert_eq!(subject.contents(&segment), pattern(2, 64));
}

/// A source is not read past its end, and comes back if anything is wrong with a copy.
pub fn copies_outside_the_source_are_refused_and_give_it_back(subject: &Subject) {
    let (segment, stream) = (subject.filled_with(&pattern(3, 4096)), subject.stream());
    let drops = Drops::default();
    let wrong = [(0, 72), (64, 8), (8, 64), (usize::MAX, 8), (usize::MAX - 7, 8)];
    for (src_offset, len_bytes) in wrong {
        let fine = CopyRange { src_offset: 0, dst: &segment, dst_offset: 0, len_bytes: 64 };
        let range = CopyRange { src_offset, dst: &segment, dst_offset: 64, len_bytes };
        let source = drops.watch(pattern(4, 64));
        let returned = stream.copy_to_device(source, &[fine, range]).unwrap_err();
        assert_eq!(returned.error.kind().as_str(), "out_of_bounds", "{returned}");
        assert_eq!(returned.source.bytes(), pattern(4, 64));
    }
    assert_eq!(drops.count(), wrong.len());
    let returned = stream.copy_to_host(&segment, 4090, drops.watch(vec![7; 64])).unwrap_err();
    assert_eq!(returned.source.bytes(), [7; 64]);
    stream.synchronize().unwrap();
    assert_eq!(subject.contents(&segment), pattern(3, 4096), "a refused batch was carried out in part");
}

/// Ranged copies are exact at any offset and length that the device allows; others are refused by name.
pub fn rule_04_ranged_copies_are_exact_at_odd_offsets(subject: &Subject) {
    let granule = subject.granule();
    let stream = subject.stream();
    let mut expected = pattern(5, 1024);
    let segment = subject.filled_with(&expected);
    let offsets = [0, 1, 3, 7, 8, 63, 64, 65, 511];
    let lengths = [1, 2, 3, 5, 8, 13, 31, 64, 127, 257];
    for (round, (offset, len)) in
        offsets.iter().flat_map(|offset| lengths.iter().map(move |len| (*offset, *len))).enumerate()
    {
        let source = pattern(100 + round as u64, len + 5);
        let range = CopyRange { src_offset: 5, dst: &segment, dst_offset: offset as u64, len_bytes: len };
        let outcome = stream.copy_to_device(source.clone(), &[range]);
        if offset % granule != 0 || len % granule != 0 {
            refused(outcome, "misaligned");
            continue;
        }
        outcome.unwrap();
        expected[offset..offset + len].copy_from_slice(&source[5..]);
        let back = stream.copy_to_host(&segment, offset as u64, vec![0; len]).unwrap();
        assert_eq!(back.wait().unwrap(), source[5..], "{len} bytes at {offset}");
    }
    assert_eq!(subject.contents(&segment), expected, "neighbours were touched");
}

/// The default stream's copies are exact, too.
pub fn rule_04_copies_without_a_stream_are_exact_at_odd_offsets(subject: &Subject) {
    let granule = subject.granule();
    let mut expected = pattern(6, 600);
    expected.truncate(600 / granule * granule);
    let segment = subject.filled_with(&expected);
    for (round, (offset, len)) in
        [(0, 1), (1, 1), (3, 250), (255, 257), (599, 1), (0, 600), (16, 64)].into_iter().enumerate()
    {
        let bytes = pattern(200 + round as u64, len);
        let outcome = segment.write(offset as u64, &bytes);
        if offset % granule != 0 || len % granule != 0 {
            refused(outcome, "misaligned");
            refused(segment.read(offset as u64, &mut vec![0; len]), "misaligned");
            continue;
        }
        outcome.unwrap();
        expected[offset..offset + len].copy_from_slice(&bytes);
        let mut back = vec![0; len];
        segment.read(offset as u64, &mut back).unwrap();
        assert_eq!(back, bytes, "{len} bytes at {offset}");
    }
    assert_eq!(subject.contents(&segment), expected);
}

/// Copies within the device are exact, between segments and within one; overlapping ranges are refused.
pub fn copies_within_the_device_are_exact(subject: &Subject) {
    let stream = subject.stream();
    let (from, to) = (subject.filled_with(&pattern(7, 4096)), subject.zeroes(4096));
    stream.copy_device_to_device(&from, 1024, &to, 8, 2048).unwrap();
    stream.copy_device_to_device(&to, 8, &to, 2056, 2040).unwrap();
    let mut expected = vec![0; 4096];
    expected[8..2056].copy_from_slice(&pattern(7, 4096)[1024..3072]);
    expected.copy_within(8..2048, 2056);
    assert_eq!(download(&stream, &to), expected);
    refused(stream.copy_device_to_device(&to, 0, &to, 8, 16), "overlap");
    refused(stream.copy_device_to_device(&to, 8, &to, 0, 16), "overlap");
    refused(stream.copy_device_to_device(&to, 8, &to.clone(), 8, 8), "overlap");
    assert_eq!(download(&stream, &to), expected);
}

/// One source, many ranges, several segments, in one call.
pub fn copies_of_many_ranges_arrive_each_in_its_place(subject: &Subject) {
    let stream = subject.stream();
    let source = pattern(8, 1 << 16);
    let segments: Vec<_> = (0..3).map(|_| subject.zeroes(1 << 15)).collect();
    let mut expected = vec![vec![0; 1 << 15]; 3];
    let mut ranges = Vec::new();
    for piece in 0..400_usize {
        // 37 is coprime to 400: the pieces come in no order.
        let (place, len_bytes) = (piece * 37 % 400, 8 * (piece % 9));
        let (target, dst_offset, src_offset) = (place % 3, place / 3 * 72, piece * 96);
        let bytes = &source[src_offset..src_offset + len_bytes];
        expected[target][dst_offset..dst_offset + len_bytes].copy_from_slice(bytes);
        let dst_offset = dst_offset as u64;
        ranges.push(CopyRange { src_offset, dst: &segments[target], dst_offset, len_bytes });
    }
    stream.copy_to_device(source, &ranges).unwrap();
    for (segment, expected) in segments.iter().zip(&expected) {
        assert_eq!(&download(&stream, segment), expected);
    }
}

/// Copies much larger than any internal granule are whole.
pub fn copies_of_megabytes_are_whole(subject: &Subject) {
    let len = (6 << 20) + 8 * 13;
    let (stream, bytes) = (subject.stream(), pattern(9, len));
    let (first, second) = (subject.device.allocate(len as u64).unwrap(), subject.zeroes(len));
    upload(&stream, bytes.clone(), &first);
    stream.copy_device_to_device(&first, 0, &second, 0, len as u64).unwrap();
    assert!(download(&stream, &second) == bytes, "megabytes arrived broken");
    assert!(subject.contents(&first) == bytes, "megabytes arrived broken");
}

/// Filling sets its range and nothing else, on a stream and without one; refused where it is not offered.
pub fn copies_filling_sets_its_range_alone(subject: &Subject) {
    let (segment, stream) = (subject.filled_with(&pattern(10, 4096)), subject.stream());
    if !subject.device.capabilities().fill.is_available() {
        refused(segment.fill(0, 8, 1), "unsupported");
        refused(stream.fill(&segment, 0, 8, 1), "unsupported");
        return;
    }
    let granule = subject.granule();
    let (a, b) = (3_usize.next_multiple_of(granule), 1000_usize.next_multiple_of(granule));
    stream.fill(&segment, a as u64, 13 * granule as u64, 0xC3).unwrap();
    stream.synchronize().unwrap();
    segment.fill(b as u64, granule as u64, 0x7E).unwrap();
    let mut expected = pattern(10, 4096);
    expected[a..a + 13 * granule].fill(0xC3);
    expected[b..b + granule].fill(0x7E);
    assert_eq!(subject.contents(&segment), expected);
}

/// Objects of another device are refused by every call that takes one.
pub fn copies_with_another_devices_objects_are_refused(subject: &Subject) {
    let other = subject.other_device();
    let (stream, segment) = (subject.stream(), subject.filled_with(&pattern(11, 64)));
    let foreign = other.allocate(64).unwrap();
    foreign.write(0, &pattern(12, 64)).unwrap();
    let drops = Drops::default();
    let mixed = [whole(64, &segment), whole(64, &foreign)];
    let returned = stream.copy_to_device(drops.watch(vec![1; 64]), &mixed).unwrap_err();
    assert_eq!(returned.error.kind().as_str(), "wrong_device");
    assert_eq!(drops.count(), 0);
    refused(stream.copy_to_host(&foreign, 0, vec![0; 64]), "wrong_device");
    refused(stream.copy_device_to_device(&foreign, 0, &segment, 0, 64), "wrong_device");
    refused(stream.copy_device_to_device(&segment, 0, &foreign, 0, 64), "wrong_device");
    if subject.device.capabilities().fill.is_available() {
        refused(stream.fill(&foreign, 0, 64, 1), "wrong_device");
    }
    stream.synchronize().unwrap();
    assert_eq!(subject.contents(&segment), pattern(11, 64));
    assert_eq!(subject.contents(&foreign), pattern(12, 64));
}
