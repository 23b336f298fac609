//! Small things every check needs.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use spoc_driver::{Error, HostSink, HostSource};

/// `len` bytes that depend on the seed and on their place: no two neighbourhoods look alike.
#[must_use]
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let word = |index: usize| {
        // SplitMix64, whose every output bit depends on every bit of the position.
        let mut z = seed.wrapping_add((index as u64).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)).to_le_bytes()
    };
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(word).collect();
    bytes.truncate(len);
    bytes
}

/// Asserts that a call was refused with this kind (as [`spoc_driver::ErrorKind::as_str`] names it).
#[track_caller]
pub fn refused<T: Debug, E: Into<Error>>(result: Result<T, E>, kind: &str) -> Error {
    match result {
        Ok(value) => panic!("expected a refusal with `{kind}`, got {value:?}"),
        Err(error) => {
            let error = error.into();
            assert_eq!(error.kind().as_str(), kind, "{error}");
            error
        }
    }
}

/// A source or destination that says when it was dropped.
#[derive(Debug)]
pub struct Watched {
    bytes: Vec<u8>,
    drops: Arc<AtomicUsize>,
}

/// Counts the drops of the values made from it.
#[derive(Debug, Clone, Default)]
pub struct Drops(Arc<AtomicUsize>);

impl Drops {
    /// A value that counts here.
    #[must_use]
    pub fn watch(&self, bytes: Vec<u8>) -> Watched {
        Watched { bytes, drops: Arc::clone(&self.0) }
    }

    /// How many have been dropped.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl Watched {
    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // Whoever still copies from here will show it in what arrives.
        self.bytes.fill(0xEE);
        self.drops.fetch_add(1, Ordering::SeqCst);
    }
}

// SAFETY: a vector's bytes stay in place when the vector moves, and nothing writes them before the drop.
unsafe impl HostSource for Watched {
    fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }

    fn len_bytes(&self) -> usize {
        self.bytes.len()
    }
}

// SAFETY: as above; the value has one owner.
unsafe impl HostSink for Watched {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.bytes.as_mut_ptr()
    }
}
