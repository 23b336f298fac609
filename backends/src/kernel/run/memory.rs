//! What a running kernel reads and writes, and how far it may.

use std::sync::atomic::{AtomicU32, Ordering};

use half::f16;

use super::super::flat::FlatPlace;
use super::super::ir::{Kind, Limit, Site, Space};

/// A vector's memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Buffer {
    pub(crate) ptr: *mut u8,
    pub(crate) len_bytes: usize,
}

/// Everything that a launch's kernel sees.
pub(crate) struct Memory {
    buffers: Vec<Buffer>,
    scalars: Vec<u8>,
    pub(super) group: Vec<u8>,
}

/// Why a kernel was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// An access outside.
    Outside { site: Site, offset_bytes: u64, len_bytes: u64, size_bytes: u64 },
    /// A barrier that not every thread of the group reaches.
    Apart { site: Site },
}

/// Some bytes that were found to be inside.
pub(super) struct Cell(*mut u8);

impl Memory {
    /// # Safety
    /// While this lives, each buffer's bytes are initialised and used by nobody else; those that the kernel's
    /// declarations only read may be read by others.
    pub(crate) unsafe fn new(buffers: Vec<Buffer>, scalars: Vec<u8>) -> Self {
        Self { buffers, scalars, group: Vec::new() }
    }

    /// The buffers, in the program's order.
    #[cfg(feature = "jit")]
    pub(crate) fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    #[cfg(feature = "jit")]
    pub(crate) fn scalars_mut(&mut self) -> &mut [u8] {
        &mut self.scalars
    }

    /// Elements of a runtime-sized array.
    pub(crate) fn length(&self, buffer: u32, offset: u32, stride: u32) -> u32 {
        let len = self.buffers.get(buffer as usize).map_or(0, |buffer| buffer.len_bytes);
        let count = len.saturating_sub(offset as usize) / (stride.max(1) as usize);
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Where a place is, if it is inside.
    pub(super) fn at(
        &mut self,
        place: &FlatPlace,
        registers: &[u64],
        private: &mut [u8],
        local: &mut [u8],
    ) -> Result<Cell, Fault> {
        let mut offset = u64::from(place.offset);
        let mut is_inside = true;
        for &(index, stride, limit) in &place.steps {
            let index = registers[index as usize];
            is_inside &= index
                < match limit {
                    Limit::Fixed(count) => count.into(),
                    Limit::Runtime { buffer, offset, stride } => self.length(buffer, offset, stride).into(),
                };
            offset = offset.saturating_add(index.saturating_mul(stride.into()));
        }
        let (ptr, size) = match place.space {
            Space::Buffer(buffer) => {
                let buffer = self.buffers.get(buffer as usize);
                buffer.map_or((std::ptr::null_mut(), 0), |buffer| (buffer.ptr, buffer.len_bytes))
            }
            Space::Scalars => (self.scalars.as_mut_ptr(), self.scalars.len()),
            Space::Group => (self.group.as_mut_ptr(), self.group.len()),
            Space::Private => (private.as_mut_ptr(), private.len()),
            Space::Local => (local.as_mut_ptr(), local.len()),
        };
        let len_bytes = u64::from(place.kind.bytes());
        let end = offset.saturating_add(len_bytes);
        match usize::try_from(offset) {
            Ok(start) if is_inside && end <= size as u64 => Ok(Cell(ptr.wrapping_add(start))),
            _ => {
                let size_bytes = size as u64;
                Err(Fault::Outside { site: place.site, offset_bytes: offset, len_bytes, size_bytes })
            }
        }
    }
}

impl Cell {
    /// A buffer may begin anywhere, so nothing is assumed of the alignment.
    fn get<T: Copy>(&self) -> T {
        // SAFETY: `Memory::at` has found the kind's bytes, of which there are as many as of `T`, inside memory
        // that `Memory::new`'s caller answers for.
        unsafe { self.0.cast::<T>().read_unaligned() }
    }

    fn put<T: Copy>(&self, value: T) {
        // SAFETY: as in `get`; a place that is stored to is declared as written.
        unsafe { self.0.cast::<T>().write_unaligned(value) };
    }

    /// As a register holds it.
    pub(super) fn load(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Bool => u64::from(self.get::<u8>() != 0),
            Kind::F16 => f16::from_bits(self.get()).to_f32().to_bits().into(),
            Kind::I32 | Kind::U32 | Kind::F32 => self.get::<u32>().into(),
            Kind::I64 | Kind::U64 | Kind::F64 => self.get(),
        }
    }

    /// Leaves what `change` makes of what is there; answers what was there. Atomic as the machine has it: bytes
    /// beside a vector, in the same word, are another's, who may be writing them.
    pub(super) fn change(&self, kind: Kind, change: impl Fn(u64) -> u64) -> u64 {
        if kind.bytes() != 4 || !self.0.cast::<u32>().is_aligned() {
            let old = self.load(kind);
            self.store(kind, change(old));
            return old;
        }
        // SAFETY: four bytes inside, as in `load`, and aligned.
        let word = unsafe { AtomicU32::from_ptr(self.0.cast()) };
        #[allow(clippy::cast_possible_truncation)]
        let next = |old: u32| Some(change(old.into()) as u32);
        let (Ok(old) | Err(old)) = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
        old.into()
    }

    pub(super) fn store(&self, kind: Kind, bits: u64) {
        #[allow(clippy::cast_possible_truncation)]
        let low = bits as u32;
        match kind {
            Kind::Bool => self.put(u8::from(bits != 0)),
            Kind::F16 => self.put(f16::from_f32(f32::from_bits(low)).to_bits()),
            Kind::I32 | Kind::U32 | Kind::F32 => self.put(low),
            Kind::I64 | Kind::U64 | Kind::F64 => self.put(bits),
        }
    }
}
