//! Memory, copies and events.

use std::time::Instant;

use spoc_driver::{CopyRange, Device, Error, ErrorKind, Segment, Stream, StreamOptions, Vector};

use super::{Ended, Outcome, demand, need};
use crate::units;

/// Bytes without a pattern; the same seed gives the same.
pub(super) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 33).to_le_bytes()[0]
    };
    (0..len).map(|_| next()).collect()
}

/// Demands that bytes are what they should be; tells the first that is not.
pub(super) fn same(found: &[u8], expected: &[u8], what: &str) -> Result<(), Ended> {
    let apart = found.iter().zip(expected).position(|(found, expected)| found != expected);
    demand(found.len() == expected.len() && apart.is_none(), || match apart {
        Some(place) => {
            format!("{what}: byte {place} is {:#04x}, expected {:#04x}", found[place], expected[place])
        }
        None => format!("{what}: {} bytes, expected {}", found.len(), expected.len()),
    })
}

fn contents(segment: &Segment) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; usize::try_from(segment.len_bytes()).unwrap_or(0)];
    segment.read(0, &mut bytes)?;
    Ok(bytes)
}

fn free_stream(device: &Device) -> Result<Stream, Error> {
    device.create_stream(StreamOptions { non_blocking: true, ..StreamOptions::default() })
}

/// Offsets and lengths of copies are multiples of this.
fn granule(device: &Device) -> usize {
    usize::try_from(device.limits().copy_granule_bytes).unwrap_or(1).max(1)
}

/// Segments come, hold what they were given at any offset, and go; what is too large is refused by name.
pub(super) fn memory(device: &Device) -> Outcome {
    let granule = granule(device);
    let mut expected = noise(1, 300 * granule);
    let segment = device.allocate(expected.len() as u64)?;
    segment.write(0, &expected)?;
    for (first, len) in [(1, 1), (3, 64), (77, 150), (299, 1)] {
        let (first, bytes) = (first * granule, noise(2, len * granule));
        segment.write(first as u64, &bytes)?;
        expected[first..first + bytes.len()].copy_from_slice(&bytes);
    }
    same(&contents(&segment)?, &expected, "writes at odd offsets")?;
    if device.capabilities().fill.is_available() {
        segment.fill((5 * granule) as u64, (90 * granule) as u64, 0xC3)?;
        expected[5 * granule..95 * granule].fill(0xC3);
        same(&contents(&segment)?, &expected, "a fill")?;
    }
    let max = device.limits().segment_bytes_max;
    if let Some(more) = max.checked_add(1) {
        let refused = device.allocate(more).err().map(|error| error.kind().as_str());
        demand(refused == Some("too_large"), || format!("a segment of {more} bytes: {refused:?}"))?;
    }
    let info = device.memory()?;
    demand(info.free_bytes <= info.total_bytes, || "more memory is free than there is".to_owned())?;
    Ok(format!("{} of {} free", units::bytes(info.free_bytes), units::bytes(info.total_bytes)))
}

/// Copies both ways and within, large and at odd offsets; the rates are of one run and pageable memory.
pub(super) fn copies(device: &Device) -> Outcome {
    const LEN: usize = 32 << 20;
    let stream = free_stream(device)?;
    let bytes = noise(3, LEN);
    let (first, second) = (device.allocate(LEN as u64)?, device.allocate(LEN as u64)?);
    let whole = |dst| CopyRange { src_offset: 0, dst, dst_offset: 0, len_bytes: LEN };
    // Once before it counts: rings and pages are made.
    stream.copy_to_device(bytes.clone(), &[whole(&second)]).map_err(|returned| returned.error)?;
    stream.synchronize()?;
    let source = bytes.clone();
    let start = Instant::now();
    stream.copy_to_device(source, &[whole(&first)]).map_err(|returned| returned.error)?;
    stream.synchronize()?;
    let up = start.elapsed();
    let granule = granule(device);
    let (from, to) = ((3 * granule) as u64, (8 * granule) as u64);
    let len = LEN as u64 - to;
    stream.copy_device_to_device(&first, from, &second, to, len)?;
    let room = vec![1; LEN];
    let start = Instant::now();
    let back = stream.copy_to_host(&first, 0, room).map_err(|returned| returned.error)?.wait();
    let down = start.elapsed();
    same(&back.map_err(|error| Ended::Failed(error.to_string()))?, &bytes, "there and back")?;
    let moved = stream.copy_to_host(&second, 0, vec![0; LEN]).map_err(|returned| returned.error)?.wait();
    let mut expected = bytes.clone();
    expected[8 * granule..].copy_from_slice(&bytes[3 * granule..LEN - 5 * granule]);
    same(&moved.map_err(|error| Ended::Failed(error.to_string()))?, &expected, "within the device")?;
    let rate = |time: std::time::Duration| LEN as f64 / time.as_secs_f64() / 1e9;
    Ok(format!("{:.2} GB/s up, {:.2} GB/s down, 32 MiB, not pinned", rate(up), rate(down)))
}

/// Many ranges in one call, each in its place.
pub(super) fn batches(device: &Device) -> Outcome {
    let granule = granule(device);
    let each = 24 * granule;
    let stream = free_stream(device)?;
    let source = noise(4, 256 * each);
    let segment = device.allocate(source.len() as u64)?;
    segment.write(0, &vec![0; source.len()])?;
    let mut expected = vec![0; source.len()];
    let mut ranges = Vec::new();
    for piece in 0..256_usize {
        // 37 is coprime to 256: every place once, in no order.
        let place = piece * 37 % 256;
        let (len_bytes, dst_offset) = ((1 + piece % 24) * granule, place * each);
        let from = piece * each;
        expected[dst_offset..dst_offset + len_bytes].copy_from_slice(&source[from..from + len_bytes]);
        ranges.push(CopyRange { src_offset: from, dst: &segment, dst_offset: dst_offset as u64, len_bytes });
    }
    stream.copy_to_device(source, &ranges).map_err(|returned| returned.error)?;
    stream.synchronize()?;
    same(&contents(&segment)?, &expected, "256 ranges")?;
    Ok("256 ranges in one call".to_owned())
}

/// Pinned memory carries copies both ways.
pub(super) fn pinned(device: &Device) -> Outcome {
    const LEN: usize = 8 << 20;
    need("pinned_alloc", &device.capabilities().pinned_alloc)?;
    let stream = free_stream(device)?;
    let bytes = noise(5, LEN);
    let mut memory = device.alloc_pinned(LEN as u64)?;
    memory.as_mut_slice()?.copy_from_slice(&bytes);
    let segment = device.allocate(LEN as u64)?;
    let start = Instant::now();
    let range = CopyRange { src_offset: 0, dst: &segment, dst_offset: 0, len_bytes: LEN };
    stream.copy_to_device(memory, &[range]).map_err(|returned| returned.error)?;
    stream.synchronize()?;
    let rate = LEN as f64 / start.elapsed().as_secs_f64() / 1e9;
    same(&contents(&segment)?, &bytes, "from pinned memory")?;
    Ok(format!("{rate:.2} GB/s up, 8 MiB"))
}

/// Staged writes between uses: none is lost.
pub(super) fn staging(device: &Device) -> Outcome {
    const WRITES: u64 = 300;
    let stream = free_stream(device)?;
    let mut input = Vector::<u8>::device_only(device, 64)?;
    let mut log = Vector::<u8>::device_only(device, WRITES * 64)?;
    for write in 0..WRITES {
        input.stage_to_device_on(&stream, 0, &noise(write, 64))?;
        log.copy_from_on(&stream, write * 64, &input, 0..64)?;
    }
    stream.synchronize()?;
    let mut found = vec![0; usize::try_from(WRITES * 64).unwrap_or(0)];
    log.copy_to_host(0, &mut found)?;
    let expected: Vec<u8> = (0..WRITES).flat_map(|write| noise(write, 64)).collect();
    same(&found, &expected, "300 staged writes")?;
    Ok("300 staged writes, each used before the next".to_owned())
}

/// Events order streams without the host, and are refused before they were recorded.
pub(super) fn events(device: &Device) -> Outcome {
    const LEN: usize = 1 << 20;
    let (writer, reader) = (free_stream(device)?, free_stream(device)?);
    let (first, second) = (device.allocate(LEN as u64)?, device.allocate(LEN as u64)?);
    let event = device.create_event()?;
    let refused = event.query().err().map(|error| error.kind().clone());
    demand(refused == Some(ErrorKind::NotRecorded), || format!("an event never recorded: {refused:?}"))?;
    for round in 0..32 {
        let bytes = noise(100 + round, LEN);
        let range = CopyRange { src_offset: 0, dst: &first, dst_offset: 0, len_bytes: LEN };
        writer.copy_to_device(bytes.clone(), &[range]).map_err(|returned| returned.error)?;
        writer.record(&event)?;
        reader.wait(&event)?;
        reader.copy_device_to_device(&first, 0, &second, 0, LEN as u64)?;
        let back = reader.copy_to_host(&second, 0, vec![0; LEN]).map_err(|returned| returned.error)?.wait();
        same(&back.map_err(|error| Ended::Failed(error.to_string()))?, &bytes, "behind an event")?;
        demand(event.query()?, || "an event is not reached though its work has run".to_owned())?;
    }
    Ok("32 rounds over two streams".to_owned())
}
