//! Reads what was loaded back from the device and compares it with the files.

use super::Loaded;
use crate::{Error, ErrorKind, Result};
use spoc_io::Model;

/// Bytes compared at a time: the two buffers of this size are all the memory that a check takes.
const STEP_BYTES: usize = 4 << 20;

impl Loaded {
    /// Compares every loaded tensor, as it is in device memory now, with its bytes in the file, which are read
    /// plainly and not through the ring that loaded them. Returns the bytes compared.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] with the first byte that differs; what reading either side answers; the file's
    /// having changed.
    pub fn verify(&self, model: &Model) -> Result<u64> {
        let mut compared = 0;
        let mut expected = vec![0; STEP_BYTES];
        let mut found = vec![0; STEP_BYTES];
        for placement in &self.placements {
            let tensor = &model.tensors()[placement.tensor as usize];
            let Some(file) = model.file_of(tensor) else { continue };
            let segment = &self.segments[placement.segment as usize];
            let mut at_byte = 0;
            while at_byte < placement.len_bytes {
                let left = usize::try_from(placement.len_bytes - at_byte).unwrap_or(usize::MAX);
                let len = left.min(STEP_BYTES);
                file.read_exact_at(&mut expected[..len], tensor.extent.offset + at_byte)?;
                segment.read(placement.offset_bytes + at_byte, &mut found[..len])?;
                if let Some(first) = first_difference(&expected[..len], &found[..len]) {
                    let at_byte = at_byte + first as u64;
                    return Err(Error::new(ErrorKind::Mismatch { tensor: tensor.name.clone(), at_byte }));
                }
                at_byte += len as u64;
            }
            compared += placement.len_bytes;
        }
        for file in model.files() {
            file.check_unchanged()?;
        }
        Ok(compared)
    }
}

pub(super) fn first_difference(expected: &[u8], found: &[u8]) -> Option<usize> {
    if expected == found {
        return None;
    }
    expected.iter().zip(found).position(|(a, b)| a != b)
}
