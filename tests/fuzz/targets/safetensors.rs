//! See `src/targets/safetensors.rs`.
#![no_main]

#[global_allocator]
static COUNTING: spoc_fuzz::Counting = spoc_fuzz::Counting;

libfuzzer_sys::fuzz_target!(|data: &[u8]| spoc_fuzz::targets::safetensors::run(data));
