//! Sizes with units.

const UNITS: [(&str, u64); 8] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

/// Bytes from `64MiB`, `500 MB` or `1048576`; nothing for anything else, zero included.
pub(super) fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let factor = match unit.trim_start() {
        "" | "B" => 1,
        unit => UNITS.iter().find(|(name, _)| *name == unit)?.1,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn sizes_have_units_or_none() {
        assert_eq!(parse("64MiB"), Some(64 << 20));
        assert_eq!(parse(" 2 GB "), Some(2_000_000_000));
        assert_eq!(parse("4096"), Some(4096));
        for wrong in ["", "0", "MiB", "12 parsecs", "-1", "1.5GiB", "99999999999TiB"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
