//! Headers of safetensors files to write: what stands in front of the tensors' bytes.

use std::collections::HashSet;
use std::ops::Range;

use super::safetensors::byte_len;
use super::{Dtype, json::Entry};
use crate::error::quoted;
use crate::{Error, ErrorKind, Result};

/// Where the data of a file whose writer does not care begins.
const ALIGN_BYTES: usize = 8;

/// The header of a safetensors file whose tensors follow each other in the order in which they are added.
///
/// ```
/// use spoc_io::{Dtype, SafetensorsHeader};
///
/// let mut header = SafetensorsHeader::new();
/// assert_eq!(header.add("w", Dtype::F32, &[2, 3])?, 0..24);
/// assert_eq!(header.add("b", Dtype::BF16, &[3])?, 24..30);
/// let mut file = header.bytes();
/// file.extend([0; 30]);
/// # Ok::<(), spoc_io::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct SafetensorsHeader {
    text: String,
    names: HashSet<String>,
    data_bytes: u64,
}

impl SafetensorsHeader {
    /// Of a file without tensors.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor. Answers where its bytes are, counted from the end of the header.
    ///
    /// # Errors
    /// `invalid_header` for the name that the format keeps to itself, `duplicate_tensor`, `shape_overflow` and
    /// `subbyte_misaligned` for a shape that cannot be written.
    pub fn add(&mut self, name: &str, dtype: Dtype, shape: &[u64]) -> Result<Range<u64>> {
        if name == "__metadata__" {
            let message = "a tensor called '__metadata__' cannot be read back: the format keeps that name";
            return Err(Error::new(ErrorKind::InvalidHeader, message));
        }
        let begin = self.data_bytes;
        let entry = Entry { name: name.to_owned(), dtype, shape: shape.to_vec(), begin, end: begin };
        let end = begin.checked_add(byte_len(&entry)?).ok_or_else(|| {
            let message = format!("tensor {}: the file would have more than 2^64 bytes", quoted(name));
            Error::new(ErrorKind::ShapeOverflow, message)
        })?;
        let json = serde_json::to_string(name)
            .map_err(|error| Error::new(ErrorKind::InvalidHeader, error.to_string()))?;
        if !self.names.insert(entry.name) {
            let message = format!("tensor {} is added twice", quoted(name));
            return Err(Error::new(ErrorKind::DuplicateTensor, message));
        }
        self.text.push(if self.text.is_empty() { '{' } else { ',' });
        self.text +=
            &format!(r#"{json}:{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#);
        self.data_bytes = end;
        Ok(begin..end)
    }

    /// Bytes of all tensors.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// The file up to its first tensor, which then begins at a multiple of 8.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.bytes_until(ALIGN_BYTES, 0)
    }

    /// As [`SafetensorsHeader::bytes`]; the first tensor begins at `rest` bytes behind a multiple of `align_bytes`.
    #[must_use]
    pub fn bytes_until(&self, align_bytes: usize, rest: usize) -> Vec<u8> {
        let mut bytes = vec![0; size_of::<u64>()];
        bytes.extend_from_slice(if self.text.is_empty() { b"{" } else { self.text.as_bytes() });
        bytes.push(b'}');
        while bytes.len() % align_bytes.max(1) != rest % align_bytes.max(1) {
            bytes.push(b' ');
        }
        let len = (bytes.len() - size_of::<u64>()) as u64;
        bytes[..size_of::<u64>()].copy_from_slice(&len.to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OpenOptions, open_model};

    #[test]
    fn what_is_written_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut header = SafetensorsHeader::new();
        let tensors: [(&str, Dtype, &[u64]); 4] = [
            ("a \"quoted\"\n\u{1F600}", Dtype::BF16, &[3, 5]),
            ("empty", Dtype::F32, &[0, u64::MAX]),
            ("half bytes", Dtype::F4, &[6]),
            ("scalar", Dtype::U8, &[]),
        ];
        let ranges = tensors.map(|(name, dtype, shape)| header.add(name, dtype, shape).unwrap());
        assert_eq!(ranges, [0..30, 30..30, 30..33, 33..34]);
        for (align, rest) in [(8, 0), (16, 5), (512, 77), (4096, 4095), (0, 3)] {
            let mut file = header.bytes_until(align, rest);
            let start = file.len() as u64;
            assert!(align == 0 || file.len() % align == rest);
            file.extend([0; 34]);
            let path = folder.path().join("m.safetensors");
            std::fs::write(&path, file).unwrap();
            let model = open_model(&path, &OpenOptions::default()).unwrap();
            for ((name, dtype, shape), range) in tensors.iter().zip(&ranges) {
                let tensor = model.tensor(name).unwrap();
                assert_eq!((tensor.dtype.to_string(), &*tensor.shape), (dtype.to_string(), *shape));
                assert_eq!(tensor.extent.offset, start + range.start);
                assert_eq!(tensor.extent.len_bytes, range.end - range.start);
            }
        }
        let none = folder.path().join("none.safetensors");
        std::fs::write(&none, SafetensorsHeader::new().bytes()).unwrap();
        assert_eq!(open_model(&none, &OpenOptions::default()).unwrap().tensors().len(), 0);
    }

    #[test]
    fn what_could_not_be_read_back_is_not_written() {
        let mut header = SafetensorsHeader::new();
        header.add("a", Dtype::U8, &[7]).unwrap();
        let wrong: [(&str, Dtype, &[u64], ErrorKind); 5] = [
            ("__metadata__", Dtype::U8, &[1], ErrorKind::InvalidHeader),
            ("a", Dtype::U8, &[1], ErrorKind::DuplicateTensor),
            ("b", Dtype::F4, &[3], ErrorKind::SubbyteMisaligned),
            ("b", Dtype::U8, &[1 << 40, 1 << 40], ErrorKind::ShapeOverflow),
            ("b", Dtype::U8, &[u64::MAX - 6], ErrorKind::ShapeOverflow),
        ];
        for (name, dtype, shape, kind) in wrong {
            assert_eq!(header.add(name, dtype, shape).unwrap_err().kind(), kind, "{name} {dtype} {shape:?}");
        }
        assert_eq!((header.data_bytes(), header.add("b", Dtype::U8, &[1]).unwrap()), (7, 7..8));
    }
}
