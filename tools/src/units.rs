//! Sizes, rates and durations as people write and read them.

use std::time::Duration;

pub use spoc_backends::parse_size;

const BINARY: [(&str, u64); 4] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];

/// `1.5 MiB`, `640 B`.
pub fn bytes(count: u64) -> String {
    match BINARY.iter().rev().find(|(_, size)| count >= *size) {
        None => format!("{count} B"),
        Some((name, size)) if count.is_multiple_of(*size) => format!("{} {name}", count / size),
        Some((name, size)) => format!("{:.2} {name}", count as f64 / *size as f64),
    }
}

/// 10⁹ bytes a second; 0 when no time passed.
pub fn gb_per_s(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds / 1e9 } else { 0.0 }
}

/// A time as people write it: `30`, `30s`, `500ms`, `2m`.
///
/// # Errors
/// One line that says what is accepted.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let ms = match unit {
        "ms" => 1,
        "" | "s" => 1000,
        "m" => 60_000,
        _ => 0,
    };
    match number.parse::<u64>().ok().and_then(|number| number.checked_mul(ms)) {
        Some(ms) if ms > 0 => Ok(Duration::from_millis(ms)),
        _ => Err("write a time above 0 as 30, 30s, 500ms or 2m".to_owned()),
    }
}

/// `12.3 ms`, `4.56 s`.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.1} µs", s * 1e6),
    }
}

/// Nanoseconds as seconds.
pub fn seconds(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_carry_units() {
        let ms = |text: &str| parse_time(text).ok().map(|time| time.as_millis());
        assert_eq!([ms("30"), ms("30s"), ms("500ms"), ms("2m")], [30_000, 30_000, 500, 120_000].map(Some));
        for wrong in
            ["", "0", "0ms", "-1", "1.5", "s", "30 s", "1h", "99999999999999999999", "18446744073709551615m"]
        {
            assert_eq!(ms(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn people_read_short_numbers() {
        assert_eq!(bytes(640), "640 B");
        assert_eq!(bytes(64 << 20), "64 MiB");
        assert_eq!(bytes(3 << 19), "1.50 MiB");
        assert_eq!(duration(Duration::from_micros(1500)), "1.5 ms");
        assert_eq!(gb_per_s(5, 0.0), 0.0);
    }
}
