//! Device memory cut into slots: segments of equal slots at `base + slot · stride`, fixed for life.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::{Error, ErrorKind, Result};
use spoc_driver::{Device, Segment, SegmentOptions};
use std::sync::PoisonError;

/// Slots begin at multiples of this, and so does every tensor in them.
pub const SLOT_ALIGN_BYTES: u64 = 256;

/// Vectors count their elements by i32: a segment of bytes stays within that.
const SEGMENT_ELEMENTS_MAX: u64 = i32::MAX as u64;

/// Where slots go: how many segments of how many slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes from one slot to the next; a multiple of [`SLOT_ALIGN_BYTES`].
    pub stride_bytes: u64,
    /// Slots in all.
    pub slots: u32,
    /// Slots of every segment but perhaps the last.
    pub slots_per_segment: u32,
}

/// One row of the segment table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentRow {
    /// First slot in the segment.
    pub first_slot: u32,
    /// Slots in it.
    pub slots: u32,
    /// Bytes from one slot to the next.
    pub stride_bytes: u64,
    /// Address of its first slot, where the backend has device addresses.
    pub address: Option<u64>,
}

/// Where one slot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotPlace {
    /// Index of the segment.
    pub segment: u32,
    /// Offset in it, bytes.
    pub offset_bytes: u64,
}

impl Geometry {
    /// The largest segment that a device with these limits serves whole, bytes.
    #[must_use]
    pub fn segment_bytes(limits: &spoc_driver::Limits) -> u64 {
        let most = limits.segment_bytes_max.min(limits.binding_bytes_max).min(SEGMENT_ELEMENTS_MAX);
        most - most % SLOT_ALIGN_BYTES
    }

    /// Cuts `slots` slots of at least `slot_bytes` into segments of at most `segment_bytes`.
    ///
    /// # Errors
    /// [`ErrorKind::WiderThanSegment`] if one slot does not fit a segment.
    pub fn new(slot_bytes: u64, slots: u32, align_bytes: u64, segment_bytes: u64) -> Result<Geometry> {
        let align = align_bytes.max(SLOT_ALIGN_BYTES).next_multiple_of(SLOT_ALIGN_BYTES);
        let too_wide = || {
            let what = format!("the slot class of {slot_bytes} bytes");
            Error::new(ErrorKind::WiderThanSegment { what, need_bytes: slot_bytes, segment_bytes })
        };
        let stride_bytes = slot_bytes.max(1).checked_next_multiple_of(align).ok_or_else(too_wide)?;
        if stride_bytes > segment_bytes {
            return Err(too_wide());
        }
        let fit = u32::try_from(segment_bytes / stride_bytes).unwrap_or(u32::MAX);
        Ok(Geometry { stride_bytes, slots, slots_per_segment: fit.min(slots.max(1)) })
    }

    /// Segments there are.
    #[must_use]
    pub fn segments(&self) -> u32 {
        self.slots.div_ceil(self.slots_per_segment)
    }

    /// Slots of one segment.
    #[must_use]
    pub fn slots_of(&self, segment: u32) -> u32 {
        self.slots.saturating_sub(segment * self.slots_per_segment).min(self.slots_per_segment)
    }

    /// Where a slot is.
    #[must_use]
    pub fn place(&self, slot: u32) -> SlotPlace {
        let within = slot % self.slots_per_segment;
        SlotPlace {
            segment: slot / self.slots_per_segment,
            offset_bytes: u64::from(within) * self.stride_bytes,
        }
    }

    /// Device memory it takes, bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.slots).saturating_mul(self.stride_bytes)
    }
}

/// A range of slots in one segment, which may have been given back.
#[derive(Debug)]
struct Row {
    class: u32,
    first_slot: u32,
    slots: u32,
    stride_bytes: u64,
    segment: Option<Segment>,
}

impl Row {
    /// Numbers that no segment has.
    fn is_free(&self) -> bool {
        self.segment.is_none() && self.slots > 0
    }
}

/// Which numbers of slots are to be had.
struct Numbers<'r> {
    rows: &'r [Row],
}

impl<'r> Numbers<'r> {
    fn of(rows: &'r [Row]) -> Numbers<'r> {
        Numbers { rows }
    }

    /// The first number that no row has.
    fn next(&self) -> u32 {
        self.rows.iter().map(|row| row.first_slot + row.slots).max().unwrap_or(0)
    }

    /// How many of `wanted` slots one segment can have: all of them if any free row is as wide, else as many as the
    /// widest, else new numbers.
    fn most(&self, wanted: u32, slots_max: u32) -> Result<u32> {
        let widest = self.rows.iter().filter(|row| row.is_free()).map(|row| row.slots).max();
        let end = self.next().saturating_add(wanted);
        match widest {
            Some(widest) => Ok(wanted.min(widest)),
            None if end <= slots_max => Ok(wanted),
            None => Err(ErrorKind::TooManySlots { need: end, have: slots_max }.into()),
        }
    }
}

/// A row of exactly `slots` numbers without a segment: the narrowest free row that has as many, cut to them, else a new
/// one. Answers its index; that of no row with a segment changes.
fn take_numbers(rows: &mut Vec<Row>, slots: u32) -> usize {
    let fits = rows.iter().enumerate().filter(|(_, row)| row.is_free() && row.slots >= slots);
    let found = fits.min_by_key(|(_, row)| (row.slots, row.first_slot)).map(|(index, _)| index);
    let (first_slot, left) = match found {
        Some(index) => (rows[index].first_slot, rows[index].slots - slots),
        None => (Numbers::of(rows).next(), 0),
    };
    let row = |first_slot, slots| Row { class: 0, first_slot, slots, stride_bytes: 0, segment: None };
    let index = put(rows, found, row(first_slot, slots));
    if left > 0 {
        put(rows, None, row(first_slot + slots, left));
    }
    index
}

/// Stores a row at an index, or where none is in use. Answers where.
fn put(rows: &mut Vec<Row>, index: Option<usize>, row: Row) -> usize {
    let index = index.or_else(|| rows.iter().position(|row| row.slots == 0)).unwrap_or(rows.len());
    match rows.get_mut(index) {
        Some(place) => *place = row,
        None => rows.push(row),
    }
    index
}

/// Free rows beside this one become part of it.
fn join_neighbours(rows: &mut [Row], index: usize) {
    for other in 0..rows.len() {
        let (first, end) = (rows[index].first_slot, rows[index].first_slot + rows[index].slots);
        let row = &rows[other];
        let beside = row.first_slot + row.slots == first || row.first_slot == end;
        if other != index && row.is_free() && beside {
            let (start, slots) = (row.first_slot.min(first), row.slots);
            rows[other].slots = 0;
            (rows[index].first_slot, rows[index].slots) = (start, rows[index].slots + slots);
        }
    }
}

/// Where a slot is, readable without the arena's lock.
#[derive(Debug, Default)]
struct SlotCell {
    /// Index of the segment.
    segment: AtomicU64,
    offset_bytes: AtomicU64,
    /// 0 where the backend has no addresses.
    address: AtomicU64,
}

/// The segments themselves. They come and go; a slot that is there stays where it is.
#[derive(Debug)]
pub struct Arena {
    device: Device,
    options: SegmentOptions,
    rows: RwLock<Vec<Row>>,
    cells: Box<[SlotCell]>,
}

impl Arena {
    /// An arena without memory that can number `slots_max` slots, `exportable` ones if other processes are to be lent them.
    #[must_use]
    pub fn new(device: &Device, slots_max: u32, exportable: bool) -> Arena {
        let cells = (0..slots_max).map(|_| SlotCell::default()).collect();
        let options = SegmentOptions { exportable };
        Arena { device: device.clone(), options, rows: RwLock::new(Vec::new()), cells }
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<Row>> {
        // No call under this lock leaves the rows half changed.
        self.rows.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Vec<Row>> {
        self.rows.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Slots that can be numbered.
    #[must_use]
    pub fn slots_max(&self) -> u32 {
        u32::try_from(self.cells.len()).unwrap_or(u32::MAX)
    }

    /// Allocates one segment of up to `slots` slots of a class and says which slots these are: numbers that were given
    /// back first, by whatever class, else new ones. One caller at a time.
    ///
    /// # Errors
    /// [`ErrorKind::TooManySlots`] if no numbers are left; the device's, if it cannot give the memory.
    pub fn grow(&self, class: u32, stride_bytes: u64, slots: u32) -> Result<std::ops::Range<u32>> {
        let most = Numbers::of(&self.read()).most(slots, self.slots_max())?;
        // Allocating may wait for the device: the rows can be read meanwhile.
        let segment =
            self.device.allocate_with(u64::from(most).saturating_mul(stride_bytes), self.options)?;
        let mut rows = self.write();
        // What was given back meanwhile can only have made more room.
        let index = take_numbers(&mut rows, most);
        let row = &mut rows[index];
        let range = row.first_slot..row.first_slot + most;
        for (slot, place) in range.clone().zip(0u64..) {
            let (cell, offset_bytes) = (&self.cells[slot as usize], place * stride_bytes);
            cell.segment.store(index as u64, Ordering::Relaxed);
            cell.offset_bytes.store(offset_bytes, Ordering::Relaxed);
            let address = segment.address().map_or(0, |address| address + offset_bytes);
            // Whoever learns of the slot does so behind the book-keeping's lock or a word that it stored.
            cell.address.store(address, Ordering::Relaxed);
        }
        (row.class, row.stride_bytes, row.segment) = (class, stride_bytes, Some(segment));
        Ok(range)
    }

    /// The segments of a class, as their slots; the one with the highest numbers last.
    #[must_use]
    pub fn segments_of(&self, class: u32) -> Vec<std::ops::Range<u32>> {
        let rows = self.read();
        let own = rows.iter().filter(|row| row.class == class && row.segment.is_some());
        let mut slots: Vec<_> = own.map(|row| row.first_slot..row.first_slot + row.slots).collect();
        slots.sort_unstable_by_key(|slots| slots.start);
        slots
    }

    /// Takes a segment out. Nothing may use its slots any more; dropping it frees the memory, which may block.
    pub(crate) fn give_back(&self, first_slot: u32) -> Option<Segment> {
        let mut rows = self.write();
        let index = rows.iter().position(|row| row.first_slot == first_slot && row.segment.is_some())?;
        let segment = rows[index].segment.take();
        join_neighbours(&mut rows, index);
        segment
    }

    /// Bytes of the segments that are there.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let rows = self.read();
        rows.iter().filter_map(|row| row.segment.as_ref()).map(Segment::len_bytes).sum()
    }

    /// The segments, as [`SlotPlace::segment`] counts them; `None` for one that was given back.
    #[must_use]
    pub fn segments(&self) -> Vec<Option<Segment>> {
        self.read().iter().map(|row| row.segment.clone()).collect()
    }

    /// One segment.
    #[must_use]
    pub fn segment(&self, index: u32) -> Option<Segment> {
        self.read().get(index as usize)?.segment.clone()
    }

    /// The segment table: all that is needed to compute the address of any slot.
    #[must_use]
    pub fn table(&self) -> Vec<SegmentRow> {
        let rows = self.read();
        let there = rows.iter().filter_map(|row| Some((row, row.segment.as_ref()?)));
        there
            .map(|(row, segment)| SegmentRow {
                first_slot: row.first_slot,
                slots: row.slots,
                stride_bytes: row.stride_bytes,
                address: segment.address(),
            })
            .collect()
    }

    /// Where a slot is.
    #[must_use]
    #[allow(clippy::cast_possible_truncation)] // segments are numbered by u32
    pub fn place(&self, slot: u32) -> SlotPlace {
        self.cells.get(slot as usize).map_or(SlotPlace { segment: 0, offset_bytes: 0 }, |cell| SlotPlace {
            segment: cell.segment.load(Ordering::Relaxed) as u32,
            offset_bytes: cell.offset_bytes.load(Ordering::Relaxed),
        })
    }

    /// A slot's device address, where the backend has such.
    #[must_use]
    pub fn address(&self, slot: u32) -> Option<u64> {
        match self.cells.get(slot as usize)?.address.load(Ordering::Relaxed) {
            0 => None,
            address => Some(address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_slot_straddles_two_segments() {
        for (slot_bytes, slots, segment_bytes) in [(1000, 17, 4096), (256, 1, 256), (300, 100, 1 << 20)] {
            let geometry = Geometry::new(slot_bytes, slots, 1, segment_bytes).unwrap();
            assert_eq!(geometry.stride_bytes % SLOT_ALIGN_BYTES, 0);
            let all: u32 = (0..geometry.segments()).map(|segment| geometry.slots_of(segment)).sum();
            assert_eq!(all, slots);
            for slot in 0..slots {
                let place = geometry.place(slot);
                let end = place.offset_bytes + geometry.stride_bytes;
                assert!(end <= u64::from(geometry.slots_of(place.segment)) * geometry.stride_bytes);
                assert!(end <= segment_bytes);
            }
        }
    }

    #[test]
    fn a_class_wider_than_a_segment_is_refused_by_name() {
        let error = Geometry::new(5000, 4, 256, 4096).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::WiderThanSegment { need_bytes: 5000, .. }));
        assert!(error.to_string().contains("slot class of 5000 bytes"), "{error}");
        assert!(Geometry::new(u64::MAX, 4, 256, 4096).is_err());
    }
}
