//! A host tier for measurements: pinned memory that holds a model's tensors, one behind the other.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;

use spoc_driver::{Device, HostBuffer, HostMemoryOptions, PinnedHandle};
use spoc_io::Model;

use crate::failure::{Failure, Result};

/// Where tensors begin in the tier, as on the device.
const ALIGN: u64 = 256;
/// Bytes that one thread reads at a time.
const PART_BYTES: usize = 16 << 20;

/// The tensors of a model in pinned memory, each at a multiple of 256.
pub struct Tier {
    pub memory: PinnedHandle,
    /// Offset and length of each tensor, in the model's order.
    pub tensors: Vec<(u64, u64)>,
}

impl Tier {
    /// Takes pinned memory, registered where the device can, and reads the model into it.
    ///
    /// # Errors
    /// What host, device and files say.
    pub fn of(device: &Device, model: &Model) -> Result<Tier> {
        let mut end = 0;
        let place = |tensor: &spoc_io::Tensor| {
            let (offset, len) = (end, tensor.extent.len_bytes);
            end = (offset + len).next_multiple_of(ALIGN);
            (offset, len)
        };
        let tensors: Vec<_> = model.tensors().iter().map(place).collect();
        let mut memory = pinned(device, end.max(1))?;
        fill(model, &tensors, memory.as_mut_slice()?)?;
        Ok(Tier { memory, tensors })
    }
}

/// Registered memory in huge pages, or the driver's own.
pub fn pinned(device: &Device, bytes: u64) -> Result<PinnedHandle> {
    let len = usize::try_from(bytes).map_err(Failure::usage)?;
    if device.capabilities().host_register.is_available() {
        let buffer = HostBuffer::allocate(len, HostMemoryOptions::default())?;
        if let Ok(handle) = PinnedHandle::register(device, buffer) {
            return Ok(handle);
        }
    }
    Ok(PinnedHandle::alloc(device, bytes)?)
}

/// A stretch of a file and where it goes.
struct Stretch<'a> {
    file: u32,
    offset: u64,
    into: &'a mut [u8],
}

fn fill(model: &Model, tensors: &[(u64, u64)], mut left: &mut [u8]) -> Result<()> {
    let files = model
        .files()
        .iter()
        .map(|file| File::open(file.path()).map_err(|error| Failure::io(file.path(), "opening", &error)))
        .collect::<Result<Vec<_>>>()?;
    let (mut stretches, mut at) = (Vec::new(), 0);
    for (tensor, &(start, len)) in model.tensors().iter().zip(tensors) {
        let gap = usize::try_from(start - at).map_err(Failure::usage)?;
        let len = usize::try_from(len).map_err(Failure::usage)?;
        let (own, rest) = left.split_at_mut(gap).1.split_at_mut(len);
        (left, at) = (rest, start + len as u64);
        for (number, into) in own.chunks_mut(PART_BYTES).enumerate() {
            let offset = tensor.extent.offset + (number * PART_BYTES) as u64;
            stretches.push(Stretch { file: tensor.extent.file, offset, into });
        }
    }
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let (stretches, failed) = (Mutex::new(stretches), Mutex::new(None));
    let next = || stretches.lock().ok().and_then(|mut stretches| stretches.pop());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(Stretch { file, offset, into }) = next() {
                    if let Err(error) = files[file as usize].read_exact_at(into, offset)
                        && let Ok(mut failed) = failed.lock()
                    {
                        failed.get_or_insert((file, error));
                    }
                }
            });
        }
    });
    match failed.into_inner() {
        Ok(Some((file, error))) => Err(Failure::io(model.files()[file as usize].path(), "reading", &error)),
        _ => Ok(()),
    }
}
