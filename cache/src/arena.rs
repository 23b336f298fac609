//! Device memory cut into slots: segments of equal slots at `base + slot · stride`, fixed for life.

use crate::{Error, ErrorKind, Result};
use spoc_driver::{Device, Segment};

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

/// The segments themselves.
#[derive(Debug)]
pub struct Arena {
    geometry: Geometry,
    segments: Vec<Segment>,
}

impl Arena {
    /// Allocates every segment.
    ///
    /// # Errors
    /// The device's, if it cannot give the memory; what was allocated is freed again.
    pub fn allocate(device: &Device, geometry: Geometry) -> Result<Arena> {
        let segments = (0..geometry.segments())
            .map(|segment| device.allocate(u64::from(geometry.slots_of(segment)) * geometry.stride_bytes))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Arena { geometry, segments })
    }

    /// How it is cut.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The segments, as [`SlotPlace::segment`] counts them.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The segment table: all that is needed to compute the address of any slot.
    pub fn table(&self) -> impl Iterator<Item = SegmentRow> + '_ {
        self.segments.iter().zip(0u32..).map(|(segment, index)| SegmentRow {
            first_slot: index * self.geometry.slots_per_segment,
            slots: self.geometry.slots_of(index),
            address: segment.address(),
        })
    }

    /// A slot's device address, where the backend has such.
    #[must_use]
    pub fn address(&self, slot: u32) -> Option<u64> {
        let place = self.geometry.place(slot);
        Some(self.segments.get(place.segment as usize)?.address()? + place.offset_bytes)
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
