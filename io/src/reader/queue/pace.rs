//! Holds refills to a rate.

use std::time::{Duration, Instant};

/// A start that comes late by less than this is made up for; a longer pause is not saved up into a burst.
const MADE_UP: Duration = Duration::from_millis(10);

/// Each read pushes the start of the next one back by the time it takes at the rate.
#[derive(Debug)]
pub(super) struct Pace {
    bytes_per_second: Option<u64>,
    free_at: Instant,
}

impl Pace {
    pub(super) fn new(bytes_per_second: Option<u64>) -> Self {
        Self { bytes_per_second, free_at: Instant::now() }
    }

    pub(super) fn set(&mut self, bytes_per_second: Option<u64>) {
        *self = Self::new(bytes_per_second);
    }

    /// How long until a read may start; `None` if one may at once.
    pub(super) fn wait(&self) -> Option<Duration> {
        self.bytes_per_second?;
        let left = self.free_at.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    pub(super) fn spend(&mut self, bytes: u64) {
        if let Some(rate) = self.bytes_per_second {
            self.spend_at(bytes, rate, Instant::now());
        }
    }

    fn spend_at(&mut self, bytes: u64, rate: u64, now: Instant) {
        let takes_ns = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
        // A rate of a byte a second holds a chunk back for days, not for ever.
        let takes = Duration::from_nanos(u64::try_from(takes_ns).unwrap_or(u64::MAX))
            .min(Duration::from_secs(1 << 20));
        let start = now.checked_sub(MADE_UP).map_or(self.free_at, |earliest| self.free_at.max(earliest));
        self.free_at = start + takes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_spread_by_the_rate_and_pauses_are_not_saved_up() {
        let start = Instant::now() + Duration::from_secs(100);
        let mut pace = Pace { bytes_per_second: Some(1 << 20), free_at: start };
        pace.spend_at(1 << 20, 1 << 20, start);
        assert_eq!(pace.free_at, start + Duration::from_secs(1));
        // 4 ms late: made up.
        pace.spend_at(1 << 20, 1 << 20, pace.free_at + Duration::from_millis(4));
        assert_eq!(pace.free_at, start + Duration::from_secs(2));
        // A minute of nothing gives no minute's worth of bytes.
        let late = start + Duration::from_secs(62);
        pace.spend_at(1 << 20, 1 << 20, late);
        assert_eq!(pace.free_at, late - MADE_UP + Duration::from_secs(1));
    }

    #[test]
    fn no_rate_never_waits() {
        let mut pace = Pace::new(None);
        pace.spend(u64::MAX);
        assert_eq!(pace.wait(), None);
        pace.set(Some(1));
        pace.spend(1 << 30);
        assert!(pace.wait() > Some(Duration::from_secs(1000)));
    }
}
