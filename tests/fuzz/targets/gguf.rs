//! Any bytes as a GGUF file; the magic is put in front, or the other parser would get them.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[global_allocator]
static COUNTING: spoc_fuzz::Counting = spoc_fuzz::Counting;

fuzz_target!(|data: &[u8]| {
    let (bytes, hole) = match data {
        [bytes @ .., a, b] => (bytes, u16::from_le_bytes([*a, *b])),
        short => (short, 0),
    };
    let mut whole = b"GGUF".to_vec();
    whole.extend_from_slice(bytes);
    let file = spoc_fuzz::MemoryFile::new(&whole, whole.len() as u64 + u64::from(hole));
    spoc_fuzz::open(&file.path(), whole.len() + usize::from(hole));
});
