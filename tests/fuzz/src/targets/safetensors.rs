//! Any bytes as a safetensors file. The last two bytes say how long a hole follows, so that headers which promise data
//! can be valid.

use super::super::{MemoryFile, open, split_hole};

/// One execution.
pub fn run(data: &[u8]) {
    let (bytes, hole) = split_hole(data);
    let file = MemoryFile::new(bytes, bytes.len() as u64 + u64::from(hole));
    open(&file.path(), bytes.len() + usize::from(hole));
}
