//! What compiled code is told of its launch: 64-bit words at fixed places.

use super::super::flat::{Code, Instr};
use super::super::ir::{Limit, Space};

pub(super) const SCALARS: usize = 0;
pub(super) const GROUP: usize = 1;
/// Of a group's first thread; the others' follow.
pub(super) const PRIVATE: usize = 2;
pub(super) const LOCAL: usize = 3;
/// Three words each.
pub(super) const GROUP_ID: usize = 4;
pub(super) const GROUP_COUNT: usize = 7;
/// The number of the place that was outside, and the offset in bytes that it came to; the number of a barrier that not
/// every thread came to.
pub(super) const FAULT_PLACE: usize = 10;
pub(super) const FAULT_OFFSET: usize = 11;
/// Address and length of each buffer.
const BUFFERS: usize = 12;

/// Where the words lie.
#[derive(Debug)]
pub(super) struct Table {
    buffers: usize,
    /// Buffer, offset and stride of the runtime-sized arrays, whose elements are counted once a launch.
    pub(super) lengths: Vec<(u32, u32, u32)>,
}

impl Table {
    pub(super) fn of(code: &Code, buffers: usize) -> Self {
        let limits = code.places.iter().flat_map(|place| &place.steps);
        let limits = limits.filter_map(|(_, _, limit)| match *limit {
            Limit::Runtime { buffer, offset, stride } => Some((buffer, offset, stride)),
            Limit::Fixed(_) => None,
        });
        let asked = code.instructions.iter().filter_map(|instruction| match *instruction {
            Instr::Length { buffer, offset, stride, .. } => Some((buffer, offset, stride)),
            _ => None,
        });
        let mut lengths: Vec<_> = limits.chain(asked).collect();
        lengths.sort_unstable();
        lengths.dedup();
        Self { buffers, lengths }
    }

    pub(super) fn words(&self) -> usize {
        BUFFERS + 2 * self.buffers + self.lengths.len()
    }

    pub(super) fn buffer(index: usize) -> usize {
        BUFFERS + 2 * index
    }

    /// Where the count of elements of an array is.
    pub(super) fn length(&self, array: (u32, u32, u32)) -> usize {
        BUFFERS + 2 * self.buffers + self.lengths.binary_search(&array).unwrap_or(0)
    }

    /// Where the address of a memory is.
    pub(super) fn base(space: Space) -> usize {
        match space {
            Space::Buffer(buffer) => Self::buffer(buffer as usize),
            Space::Scalars => SCALARS,
            Space::Group => GROUP,
            Space::Private => PRIVATE,
            Space::Local => LOCAL,
        }
    }
}
