//! A link between host and device that has a rate: copies take as long as they would over it.

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use super::queue::lock;

/// How much a stream may be ahead of its link: a sleep overshoots by about as much, and short copies would add that up.
const SLACK: Duration = Duration::from_micros(200);

/// One device's link, shared by its streams.
pub(super) struct Link {
    bytes_per_second: u64,
    /// When it has carried what it was given so far.
    free: Mutex<Instant>,
}

impl Link {
    pub(super) fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1), free: Mutex::new(Instant::now()) }
    }

    /// Queues `len` bytes; answers when they will have passed.
    pub(super) fn enter(&self, len: usize) -> Instant {
        let nanos = (len as u128 * 1_000_000_000).div_ceil(self.bytes_per_second.into());
        let time = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let mut free = lock(&self.free);
        *free = (*free).max(Instant::now()) + time;
        *free
    }

    /// Waits for that, to within [`SLACK`].
    pub(super) fn wait_until(passed: Instant) {
        let left = passed.saturating_duration_since(Instant::now());
        if left > SLACK {
            thread::sleep(left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_pass_one_behind_the_other_at_the_rate() {
        let link = Link::new(1_000_000);
        let began = Instant::now();
        let first = link.enter(1000);
        let second = link.enter(2000);
        assert!(first >= began + Duration::from_millis(1));
        assert_eq!(second, first + Duration::from_millis(2));
        Link::wait_until(second);
        assert!(Instant::now() + SLACK >= second);
        // What was not used while it was idle is not saved up.
        Link::wait_until(second + Duration::from_millis(1));
        assert!(link.enter(1000) > second + Duration::from_millis(1));
    }
}
