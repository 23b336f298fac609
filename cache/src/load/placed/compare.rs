//! Reads what was placed back from each device and compares it with the files.

use super::super::verify::first_difference;
use super::Placed;
use crate::{Error, ErrorKind, Result};
use spoc_driver::Segment;
use spoc_io::{CheckedMap, Model, WeightFile};

/// Bytes looked at in one step on either side.
const STEP_BYTES: usize = 4 << 20;

/// The bytes around the place looked at last: pieces are short, and come one behind the other.
struct Window {
    bytes: Vec<u8>,
    start: u64,
    held: usize,
}

impl Window {
    fn new() -> Window {
        Window { bytes: vec![0; STEP_BYTES], start: 0, held: 0 }
    }

    /// `len` bytes (≤ [`STEP_BYTES`]) from `at` on, of a source of `end` bytes.
    fn get(
        &mut self,
        at: u64,
        len: usize,
        end: u64,
        read: impl FnOnce(u64, &mut [u8]) -> Result<()>,
    ) -> Result<&[u8]> {
        let inside = at.checked_sub(self.start).and_then(|offset| usize::try_from(offset).ok());
        let offset = match inside.filter(|offset| offset + len <= self.held) {
            Some(offset) => offset,
            None => {
                self.held = usize::try_from(end.saturating_sub(at)).unwrap_or(STEP_BYTES).min(STEP_BYTES);
                self.start = at;
                read(at, &mut self.bytes[..self.held])?;
                0
            }
        };
        Ok(&self.bytes[offset..offset + len])
    }
}

impl Placed {
    /// Compares every byte that the map puts on a device that did not fail, as it is in device memory now, with its place
    /// in the file. Returns the bytes compared.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] with the target and the first byte that differs; what reading either side answers; a file's
    /// having changed.
    pub fn verify(&self, model: &Model, map: &CheckedMap) -> Result<u64> {
        let mut compared = 0;
        for device in self.devices.iter().flatten() {
            for placement in &device.placements {
                let segment = &device.segments[placement.segment as usize];
                compared += compare(model, map, placement.tensor, (segment, placement.offset_bytes))?;
            }
        }
        for file in model.files() {
            file.check_unchanged()?;
        }
        Ok(compared)
    }
}

fn compare(model: &Model, map: &CheckedMap, target: u32, (segment, base): (&Segment, u64)) -> Result<u64> {
    let described = &map.targets()[target as usize];
    let (mut expected, mut found) = (Window::new(), Window::new());
    let (mut compared, mut windows_of) = (0, None);
    for (file, offset, place, len_bytes) in map.pieces_of(target) {
        let source: &WeightFile = &model.files()[file as usize];
        if windows_of.replace(file) != Some(file) {
            expected.held = 0;
        }
        let mut at = 0;
        while at < len_bytes {
            let step = usize::try_from(len_bytes - at).unwrap_or(STEP_BYTES).min(STEP_BYTES);
            let read_file = |at: u64, bytes: &mut [u8]| Ok(source.read_exact_at(bytes, at)?);
            let wanted = expected.get(offset + at, step, source.len_bytes(), read_file)?;
            let read_device = |at: u64, bytes: &mut [u8]| Ok(segment.read(base + at, bytes)?);
            let there = found.get(place + at, step, described.len_bytes, read_device)?;
            if let Some(first) = first_difference(wanted, there) {
                let tensor = described.name.clone();
                let at_byte = place + at + first as u64;
                return Err(Error::new(ErrorKind::Mismatch { tensor, at_byte }));
            }
            at += step as u64;
        }
        compared += len_bytes;
    }
    Ok(compared)
}
