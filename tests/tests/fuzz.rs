//! The fuzz targets on the stable compiler: every seed, then mutations of seeds, the same ones every time.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::print_stderr, missing_docs, reason = "a test")]

#[path = "../fuzz/src/lib.rs"]
mod harness;

use std::path::Path;
use std::time::{Duration, Instant};

use harness::{seeds, targets};

#[global_allocator]
static COUNTING: harness::Counting = harness::Counting;

/// Mutations of each target, and the time after which there are enough on a slow machine.
const MUTATIONS: u32 = 10_000;
const TIME: Duration = Duration::from_secs(4);
const BYTES_MAX: usize = 64 << 10;

type Target = (&'static str, fn(&[u8]));

const TARGETS: [Target; 5] = [
    ("safetensors", targets::safetensors::run),
    ("gguf", targets::gguf::run),
    ("index", targets::index::run),
    ("planner", targets::planner::run),
    ("manifest", targets::manifest::run),
];

/// One test: the allocator counts for all threads.
#[test]
fn seeds_and_their_mutations() {
    let cases = std::env::var_os("SPOC_CASES");
    let all = seeds::all(cases.as_deref().map(Path::new)).unwrap();
    for (name, run) in TARGETS {
        let seeds: Vec<&[u8]> =
            all.iter().filter(|(target, ..)| *target == name).map(|(_, _, bytes)| &bytes[..]).collect();
        assert!(!seeds.is_empty(), "{name}");
        seeds.iter().for_each(|seed| run(seed));
        let (mut random, since) = (Random(0x5eed), Instant::now());
        let mut done = 0;
        while done < MUTATIONS && since.elapsed() < TIME {
            let input = mutated(&seeds, &mut random);
            // Shown only if the target panics.
            println!("{name}, mutation {done}: {}", input.escape_ascii());
            run(&input);
            done += 1;
        }
        eprintln!("{name}: {} seeds, {done} mutations", seeds.len());
        assert!(done > 0);
    }
    targets::index::clean_up();
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Below `end`, or 0.
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() >> 16).unwrap() % end.max(1)
    }
}

/// A seed with a few changes of the kinds that parsers trip over.
fn mutated(seeds: &[&[u8]], random: &mut Random) -> Vec<u8> {
    const NUMBERS: [u64; 10] = [0, 1, 7, 0xff, 0xffff, 1 << 31, u32::MAX as u64, 1 << 62, 1 << 63, u64::MAX];
    let mut bytes = seeds[random.below(seeds.len())].to_vec();
    bytes.truncate(BYTES_MAX);
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len());
        let end = bytes.len().min(at + 1 + random.below(16));
        match random.below(7) {
            0 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << random.below(8)),
            1 => {
                let (number, width) =
                    (NUMBERS[random.below(NUMBERS.len())].to_le_bytes(), 1 << random.below(4));
                bytes.iter_mut().skip(at).zip(&number[..width]).for_each(|(byte, new)| *byte = *new);
            }
            2 => drop(bytes.drain(at..end)),
            3 => {
                let copy = bytes[at..end].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, copy);
            }
            4 => {
                let other = seeds[random.below(seeds.len())];
                let from = random.below(other.len());
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..other.len().min(from + BYTES_MAX)]);
            }
            5 => {
                let text = NUMBERS[random.below(NUMBERS.len())].to_string();
                let digits = bytes[at..].iter().position(u8::is_ascii_digit).map(|found| at + found);
                if let Some(start) = digits {
                    let len = bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                    bytes.splice(start..start + len, text.bytes());
                }
            }
            _ => bytes.truncate(at),
        }
    }
    bytes
}
