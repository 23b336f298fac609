//! Whether a map can be carried out on a model: every entry, and every target as a whole.

use super::{MAP_DEVICES_MAX, MapEntry, MapTarget, Pitch, PlacementMap};
use crate::error::quoted;
use crate::{Error, ErrorKind, Model, Result, SliceRuns};

/// Rows of pitched entries that one target may have: each is looked at.
const ROWS_MAX: u64 = 4 << 20;

/// A map that fits a model.
#[derive(Clone, Debug)]
pub struct CheckedMap {
    pub(super) targets: Vec<MapTarget>,
    pub(super) entries: Vec<CheckedEntry>,
    pub(super) devices: u32,
}

#[derive(Clone, Debug)]
pub(super) struct CheckedEntry {
    pub tensor: u32,
    pub runs: SliceRuns,
    pub whole: bool,
    pub target: u32,
    pub offset_bytes: u64,
    /// Only where rows are apart.
    pub pitch: Option<Pitch>,
}

/// A range of a target that an entry fills.
struct Filled {
    start: u64,
    end: u64,
    entry: u32,
}

impl CheckedMap {
    /// The targets, as the map has them.
    #[must_use]
    pub fn targets(&self) -> &[MapTarget] {
        &self.targets
    }

    /// One more than the highest number of a device.
    #[must_use]
    pub fn devices(&self) -> u32 {
        self.devices
    }

    /// Whether every entry is a whole tensor, which is what digests can be compared with.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.entries.iter().all(|entry| entry.whole)
    }

    /// Bytes that a device gets, counted as often as it gets them.
    #[must_use]
    pub fn device_bytes(&self, device: u32) -> u64 {
        let here = |entry: &&CheckedEntry| self.targets[entry.target as usize].device == device;
        self.entries.iter().filter(here).map(|entry| entry.runs.len_bytes()).sum()
    }

    /// Every range of bytes that entries put into a target: `(file, offset in it, offset in the target, length)`.
    /// For comparing a target with its files.
    pub fn pieces_of(&self, target: u32) -> impl Iterator<Item = (u32, u64, u64, u64)> {
        let here = self.entries.iter().filter(move |entry| entry.target == target);
        here.flat_map(CheckedEntry::pieces)
    }
}

impl CheckedEntry {
    /// As [`CheckedMap::pieces_of`].
    pub fn pieces(&self) -> impl Iterator<Item = (u32, u64, u64, u64)> {
        let (offset, pitch) = (self.offset_bytes, self.pitch);
        self.runs.extents().zip(0u64..).flat_map(move |(extent, number)| {
            let first = number * extent.len_bytes;
            // Without a pitch the run is one row.
            let row = pitch.map_or(extent.len_bytes, |pitch| pitch.row_bytes);
            let end = first + extent.len_bytes;
            let mut at = first;
            std::iter::from_fn(move || {
                if at >= end {
                    return None;
                }
                let (place, next) = match pitch {
                    None => (offset + at, end),
                    Some(pitch) => {
                        let place = offset + at / row * pitch.pitch_bytes + at % row;
                        (place, end.min((at / row + 1) * row))
                    }
                };
                let piece = (extent.file, extent.offset + (at - first), place, next - at);
                at = next;
                Some(piece)
            })
        })
    }
}

impl PlacementMap {
    /// Compares the map with a model: its tensors, ranges, blocks and rows; that every target holds what goes there, that
    /// no byte of a target is filled twice, and that complete targets are filled wholly.
    ///
    /// # Errors
    /// Naming the entry, or the target: `missing_tensor`; `offset_out_of_bounds` for a range outside its tensor or a
    /// place outside its target; `block_misaligned` for a slice that cuts a block of its type; `overlap`; `hole`;
    /// `invalid_map` for anything else; `too_large` for a target with more than 4 Mi rows.
    pub fn check(&self, model: &Model) -> Result<CheckedMap> {
        for (number, target) in self.targets.iter().enumerate() {
            if target.device >= MAP_DEVICES_MAX {
                let message = format!(
                    "target {number}, {}: expected a device below {MAP_DEVICES_MAX}, found {}",
                    quoted(&target.name),
                    target.device
                );
                return Err(Error::new(ErrorKind::InvalidMap, message));
            }
        }
        let indices = TensorIndices::of(model);
        let entries = self.entries.iter().enumerate();
        let check = |(number, entry)| self.entry(model, &indices, number, entry);
        let entries = entries.map(check).collect::<Result<Vec<_>>>()?;
        self.check_targets(&entries)?;
        let devices = self.targets.iter().map(|target| target.device + 1).max().unwrap_or(0);
        Ok(CheckedMap { targets: self.targets.clone(), entries, devices })
    }

    fn name(&self, number: usize) -> String {
        let entry = &self.entries[number];
        let target = self.targets.get(entry.target as usize);
        let place = target.map_or_else(
            || format!("target {}", entry.target),
            |target| format!("{} on device {}", quoted(&target.name), target.device),
        );
        format!("entry {number}, tensor {} to {place}", quoted(&entry.tensor))
    }

    fn entry(
        &self,
        model: &Model,
        indices: &TensorIndices<'_>,
        number: usize,
        entry: &MapEntry,
    ) -> Result<CheckedEntry> {
        let refuse = |kind, why: String| Error::new(kind, format!("{}: {why}", self.name(number)));
        let target = self.targets.get(entry.target as usize).ok_or_else(|| {
            refuse(ErrorKind::InvalidMap, format!("the map has {} targets", self.targets.len()))
        })?;
        let tensor = indices.find(&entry.tensor).ok_or_else(|| {
            refuse(ErrorKind::MissingTensor, "the model has no tensor of this name".to_owned())
        })?;
        let stored = &model.tensors()[tensor as usize];
        let runs = match &entry.slice {
            None => Ok(SliceRuns::whole(stored)),
            Some(ranges) => SliceRuns::of(stored, ranges),
        };
        let runs = runs.map_err(|error| refuse(error.kind(), error.message().to_owned()))?;
        let len_bytes = runs.len_bytes();
        let rows = entry.pitch.map_or(Ok(1), |pitch| rows(pitch, len_bytes));
        let rows = rows.map_err(|why| refuse(ErrorKind::InvalidMap, why))?;
        let reach = match entry.pitch.filter(|_| rows > 0) {
            None => Some(len_bytes),
            Some(pitch) => {
                (rows - 1).checked_mul(pitch.pitch_bytes).and_then(|last| last.checked_add(pitch.row_bytes))
            }
        };
        let end = reach.and_then(|reach| entry.offset_bytes.checked_add(reach));
        if end.is_none_or(|end| end > target.len_bytes) {
            let end = end.map_or_else(|| "beyond 64 bits".to_owned(), |end| end.to_string());
            let why =
                format!("bytes {} to {end} of a target of {} bytes", entry.offset_bytes, target.len_bytes);
            return Err(refuse(ErrorKind::OffsetOutOfBounds, why));
        }
        let apart = |pitch: &Pitch| pitch.pitch_bytes > pitch.row_bytes && rows > 1;
        let whole = entry.slice.is_none() || len_bytes == stored.extent.len_bytes;
        let (target, offset_bytes) = (entry.target, entry.offset_bytes);
        Ok(CheckedEntry { tensor, runs, whole, target, offset_bytes, pitch: entry.pitch.filter(apart) })
    }

    /// Every target: no byte twice, and none left out where that is promised.
    fn check_targets(&self, entries: &[CheckedEntry]) -> Result<()> {
        let mut filled: Vec<Vec<Filled>> = self.targets.iter().map(|_| Vec::new()).collect();
        for (number, entry) in (0u32..).zip(entries) {
            let (list, len_bytes) = (&mut filled[entry.target as usize], entry.runs.len_bytes());
            if len_bytes == 0 {
                continue;
            }
            let (row_bytes, pitch_bytes) =
                entry.pitch.map_or((len_bytes, len_bytes), |pitch| (pitch.row_bytes, pitch.pitch_bytes));
            let rows = len_bytes / row_bytes;
            if list.len() as u64 + rows > ROWS_MAX {
                let why =
                    format!("{}: expected at most {ROWS_MAX} rows a target", self.name(number as usize));
                return Err(Error::new(ErrorKind::TooLarge, why));
            }
            list.extend((0..rows).map(|row| {
                let start = entry.offset_bytes + row * pitch_bytes;
                Filled { start, end: start + row_bytes, entry: number }
            }));
        }
        for (target, mut list) in self.targets.iter().zip(filled) {
            list.sort_unstable_by_key(|range| (range.start, range.entry));
            self.check_target(target, &list)?;
        }
        Ok(())
    }

    fn check_target(&self, target: &MapTarget, list: &[Filled]) -> Result<()> {
        let mut end = 0;
        let mut last: Option<u32> = None;
        let hole = |from: u64, to: u64| {
            let message = format!(
                "target {} on device {}: nothing fills bytes {from} to {to} of a target that is said to be complete",
                quoted(&target.name),
                target.device
            );
            Err(Error::new(ErrorKind::Hole, message))
        };
        for range in list {
            if let Some(last) = last.filter(|_| range.start < end) {
                let message = format!(
                    "{}: bytes {} to {} are those of entry {last} too",
                    self.name(range.entry as usize),
                    range.start,
                    end.min(range.end)
                );
                return Err(Error::new(ErrorKind::Overlap, message));
            }
            if target.complete && range.start > end {
                return hole(end, range.start);
            }
            (end, last) = (range.end, Some(range.entry));
        }
        if target.complete && end < target.len_bytes {
            return hole(end, target.len_bytes);
        }
        Ok(())
    }
}

/// Number of rows, or what is wrong with them.
fn rows(pitch: Pitch, len_bytes: u64) -> Result<u64, String> {
    let Pitch { row_bytes, pitch_bytes } = pitch;
    if row_bytes == 0 || !len_bytes.is_multiple_of(row_bytes) {
        return Err(format!(
            "expected rows that the slice's {len_bytes} bytes are a multiple of, found {row_bytes}"
        ));
    }
    if pitch_bytes < row_bytes {
        return Err(format!("expected a pitch of at least the row's {row_bytes} bytes, found {pitch_bytes}"));
    }
    Ok(len_bytes / row_bytes)
}

/// Tensors by name.
struct TensorIndices<'a>(std::collections::HashMap<&'a str, u32>);

impl<'a> TensorIndices<'a> {
    fn of(model: &'a Model) -> Self {
        Self((0u32..).zip(model.tensors()).map(|(index, tensor)| (tensor.name.as_str(), index)).collect())
    }

    fn find(&self, name: &str) -> Option<u32> {
        self.0.get(name).copied()
    }
}
