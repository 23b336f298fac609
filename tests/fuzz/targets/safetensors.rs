//! Any bytes as a safetensors file. The last two bytes say how long a hole follows, so that headers which promise data
//! can be valid.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[global_allocator]
static COUNTING: spoc_fuzz::Counting = spoc_fuzz::Counting;

fuzz_target!(|data: &[u8]| {
    let (bytes, hole) = match data {
        [bytes @ .., a, b] => (bytes, u16::from_le_bytes([*a, *b])),
        short => (short, 0),
    };
    let file = spoc_fuzz::MemoryFile::new(bytes, bytes.len() as u64 + u64::from(hole));
    spoc_fuzz::open(&file.path(), bytes.len() + usize::from(hole));
});
