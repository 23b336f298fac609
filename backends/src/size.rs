//! Sizes as people write them, on command lines and in variables, and as the host addresses them.

use spoc_driver::{Error, ErrorKind, Result};

/// A size of memory that this host can address.
pub(crate) fn host_len(len_bytes: u64) -> Result<usize> {
    let kind = ErrorKind::TooLarge { need: len_bytes, max: usize::MAX as u64 };
    usize::try_from(len_bytes).map_err(|_| Error::new(kind, "sizing memory"))
}

/// Reads `65536`, `64K`, `64KiB`, `64 MiB`, `1.5GiB`, `2GB`: K, M, G, T and KiB… are powers of 1024; KB, MB, GB, TB are
/// powers of 1000.
///
/// # Errors
/// One line that says what is accepted.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let refuse = || {
        format!("\"{text}\" is not a size: write bytes or a number with K, M, G, T, KiB, MiB, GiB, MB or GB")
    };
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let factor = unit_factor(unit.trim_start()).ok_or_else(refuse)?;
    scaled(number, factor).ok_or_else(refuse)
}

fn unit_factor(unit: &str) -> Option<u64> {
    let lower = unit.to_ascii_lowercase();
    let power = |letter: &str| "kmgt".find(letter).and_then(|index| u32::try_from(index + 1).ok());
    match lower.as_str() {
        "" | "b" => Some(1),
        "k" | "m" | "g" | "t" => Some(1 << (10 * power(&lower)?)),
        "kib" | "mib" | "gib" | "tib" => Some(1 << (10 * power(&lower[..1])?)),
        "kb" | "mb" | "gb" | "tb" => Some(1000_u64.pow(power(&lower[..1])?)),
        _ => None,
    }
}

/// Whole numbers exactly; decimals in thousandths, so that no float decides a size.
fn scaled(number: &str, factor: u64) -> Option<u64> {
    let Some((whole, decimals)) = number.split_once('.') else {
        return number.parse::<u64>().ok()?.checked_mul(factor);
    };
    if decimals.is_empty() || decimals.len() > 3 || !decimals.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let thousandths: u64 = format!("{decimals:0<3}").parse().ok()?;
    let whole = whole.parse::<u64>().ok()?.checked_mul(factor)?;
    whole.checked_add(factor.checked_mul(thousandths)? / 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact() {
        for (text, size) in [
            ("0", 0),
            ("65536", 65536),
            ("64K", 65536),
            ("64KiB", 65536),
            ("64M", 64 << 20),
            ("64 MiB", 64 << 20),
            ("1.5GiB", 3 << 29),
            ("2GB", 2_000_000_000),
            ("0.001kb", 1),
            ("1b", 1),
        ] {
            assert_eq!(parse_size(text), Ok(size), "{text}");
        }
    }

    #[test]
    fn nonsense_and_overflow_are_refused_in_one_line() {
        for text in ["", "M", "-1", "1e9", "64 Mi", "1..5G", "1.G", "99999999999T", "0x10", "1.2345K"] {
            let message = parse_size(text).expect_err(text);
            assert!(!message.contains('\n') && message.contains("is not a size"), "{message}");
        }
    }
}
