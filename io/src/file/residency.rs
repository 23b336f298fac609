//! How much of a file's range the page cache holds.

use std::fs::File;

use super::sys;

/// Share of a range that the page cache holds, and how that was found out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Residency {
    /// Between 0 (cold) and 1 (all of it cached).
    pub share: f64,
    /// How it was measured.
    pub method: ResidencyMethod,
}

/// How a [`Residency`] was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResidencyMethod {
    /// cachestat(2): exact.
    Cachestat,
    /// One-byte reads that do not wait, spread over the range.
    Sampled,
    /// Neither works here: taken as cold.
    Unknown,
}

const SAMPLES_MAX: u64 = 64;

pub(super) fn measure(file: &File, offset: u64, len_bytes: u64) -> Residency {
    if len_bytes == 0 {
        return Residency { share: 1.0, method: ResidencyMethod::Cachestat };
    }
    let page = sys::page_bytes();
    let pages = (offset + len_bytes).div_ceil(page) - offset / page;
    if let Ok(cached) = sys::cached_pages(file, offset, len_bytes) {
        return Residency { share: ratio(cached, pages), method: ResidencyMethod::Cachestat };
    }
    let samples = pages.min(SAMPLES_MAX);
    let mut cached = 0;
    for i in 0..samples {
        // In u128: pages × samples can pass 64 bits for absurd files.
        let within = u64::try_from(u128::from(len_bytes) * u128::from(i) / u128::from(samples)).unwrap_or(0);
        match sys::byte_is_cached(file, offset + within) {
            Ok(true) => cached += 1,
            Ok(false) => {}
            Err(_) => return Residency { share: 0.0, method: ResidencyMethod::Unknown },
        }
    }
    Residency { share: ratio(cached, samples), method: ResidencyMethod::Sampled }
}

#[allow(clippy::cast_precision_loss, reason = "a share needs no more than 52 bits")]
fn ratio(part: u64, whole: u64) -> f64 {
    (part as f64 / whole.max(1) as f64).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_file_just_written_is_resident_and_both_methods_agree() {
        let mut temp = tempfile::NamedTempFile::new().unwrap();
        temp.write_all(&vec![1; 1 << 20]).unwrap();
        let found = measure(temp.as_file(), 100, (1 << 20) - 100);
        assert!(found.method == ResidencyMethod::Unknown || found.share > 0.99, "{found:?}");
        if let Ok(cached) = sys::byte_is_cached(&File::open(temp.path()).unwrap(), 4096) {
            assert!(cached);
        }
    }

    #[test]
    fn an_empty_range_needs_nothing() {
        let temp = tempfile::NamedTempFile::new().unwrap();
        assert!((measure(temp.as_file(), 0, 0).share - 1.0).abs() < f64::EPSILON);
    }
}
