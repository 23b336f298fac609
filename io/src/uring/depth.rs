//! How many reads the ring keeps in flight: as many as the storage's latency × bandwidth asks for, and no more.
//!
//! More in flight than that only adds latency; less leaves the storage idle. Neither number is known, so the depth is
//! doubled on trial, and kept where the rate rose with it.

use std::time::{Duration, Instant};

/// Reads and time that a rate is taken from, at least.
const WINDOW_READS: u32 = 48;
const WINDOW: Duration = Duration::from_millis(20);
/// What a doubled depth must bring to be kept.
const GAIN: f64 = 1.15;
/// Windows after a trial that brought nothing until the next.
const REST_WINDOWS: u32 = 64;

/// The depth, and the trial that is on.
#[derive(Debug)]
pub(super) struct Depth {
    start: u32,
    max: u32,
    now: u32,
    /// Bytes a second before the trial that is on.
    before: Option<f64>,
    rest: u32,
    /// The first window at a new depth still holds reads of the old one.
    settling: bool,
    window: Option<Instant>,
    bytes: u64,
    reads: u32,
}

impl Depth {
    pub(super) fn new(start: u32, max: u32) -> Self {
        let max = max.max(start);
        Self {
            start,
            max,
            now: start,
            before: None,
            rest: 0,
            settling: false,
            window: None,
            bytes: 0,
            reads: 0,
        }
    }

    pub(super) fn now(&self) -> u32 {
        self.now
    }

    pub(super) fn max(&self) -> u32 {
        self.max
    }

    /// Something else than the storage set the pace: what was counted says nothing.
    pub(super) fn disturbed(&mut self) {
        self.window = None;
    }

    /// Nothing is left to read: the next load may be of other storage.
    pub(super) fn reset(&mut self) {
        *self = Self::new(self.start, self.max);
    }

    /// A read of this many bytes is done.
    pub(super) fn done(&mut self, bytes: u32) {
        if self.start < self.max {
            self.done_at(bytes, Instant::now());
        }
    }

    fn done_at(&mut self, bytes: u32, now: Instant) {
        let Some(since) = self.window else {
            (self.window, self.bytes, self.reads) = (Some(now), 0, 0);
            return;
        };
        self.bytes += u64::from(bytes);
        self.reads += 1;
        let time = now.saturating_duration_since(since);
        if time < WINDOW || self.reads < WINDOW_READS.max(2 * self.now) {
            return;
        }
        #[allow(clippy::cast_precision_loss, reason = "a rate needs no more than 52 bits")]
        let rate = self.bytes as f64 / time.as_secs_f64();
        (self.window, self.bytes, self.reads) = (Some(now), 0, 0);
        self.judge(rate);
    }

    fn judge(&mut self, rate: f64) {
        if std::mem::take(&mut self.settling) {
            return;
        }
        match self.before.take() {
            Some(before) if rate < before * GAIN => {
                self.now = (self.now / 2).max(self.start);
                self.rest = REST_WINDOWS;
            }
            // It rose: once more.
            Some(_) => self.try_deeper(rate),
            None if self.rest > 0 => self.rest -= 1,
            None => self.try_deeper(rate),
        }
    }

    fn try_deeper(&mut self, rate: f64) {
        let deeper = (self.now * 2).min(self.max);
        if deeper >= self.now + self.now / 2 {
            (self.before, self.now, self.settling) = (Some(rate), deeper, true);
        } else {
            self.rest = REST_WINDOWS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u32 = 1 << 20;

    /// Storage that answers after `latency_s` plus its turn at `bytes_per_s`: the depth after `reads` reads, and the
    /// rate there as a share of the storage's.
    fn settled(latency_s: f64, bytes_per_s: f64, max: u32, reads: u32) -> (u32, f64) {
        let mut depth = Depth::new(8, max);
        let mut now = Instant::now();
        let rate = |depth: u32| {
            let in_flight = f64::from(depth) * f64::from(CHUNK);
            (in_flight / (latency_s + f64::from(CHUNK) / bytes_per_s)).min(bytes_per_s)
        };
        for _ in 0..reads {
            now += Duration::from_secs_f64(f64::from(CHUNK) / rate(depth.now()));
            depth.done_at(CHUNK, now);
        }
        (depth.now(), rate(depth.now()) / bytes_per_s)
    }

    #[test]
    fn fast_and_far_storage_gets_the_depth_it_needs() {
        for (latency_s, bytes_per_s) in
            [(0.005, 5e9), (0.010, 3e9), (0.010, 5e9), (0.002, 12e9), (0.050, 1e9)]
        {
            // A load of 10 GB; a multiple of the trials' windows would show the trial itself.
            let (depth, share) = settled(latency_s, bytes_per_s, 128, 10_000);
            assert!(share > 0.95, "{latency_s} s, {bytes_per_s} B/s: depth {depth}, share {share}");
        }
    }

    #[test]
    fn near_storage_keeps_the_depth_it_started_with() {
        for (latency_s, bytes_per_s) in [(0.000_1, 2e9), (0.000_1, 7e9), (0.001, 0.4e9), (0.0001, 0.1e9)] {
            let trials = (500..3000).step_by(7).map(|reads| settled(latency_s, bytes_per_s, 128, reads).0);
            let all: Vec<u32> = trials.collect();
            let deeper = all.iter().filter(|depth| **depth > 8).count();
            assert!(all.iter().all(|depth| *depth <= 16), "one trial at a time");
            assert!(deeper * 4 < all.len(), "and rarely: {deeper} of {}", all.len());
        }
    }

    #[test]
    fn the_depth_never_passes_its_bound_and_starts_anew() {
        let mut depth = Depth::new(8, 48);
        let mut now = Instant::now();
        for _ in 0..20_000 {
            now += Duration::from_secs_f64(0.02 / f64::from(depth.now()));
            depth.done_at(CHUNK, now);
            assert!((8..=48).contains(&depth.now()));
        }
        assert_eq!(depth.now(), 48);
        depth.reset();
        assert_eq!(depth.now(), 8);
        let fixed = Depth::new(8, 0);
        assert_eq!((fixed.now(), fixed.max), (8, 8));
    }
}
