//! Any bytes as a GGUF file; the magic is put in front, or the other parser would get them.

use super::super::{MemoryFile, open, split_hole};

/// One execution.
pub fn run(data: &[u8]) {
    let (bytes, hole) = split_hole(data);
    let mut whole = b"GGUF".to_vec();
    whole.extend_from_slice(bytes);
    let file = MemoryFile::new(&whole, whole.len() as u64 + u64::from(hole));
    open(&file.path(), whole.len() + usize::from(hole));
}
