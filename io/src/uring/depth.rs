//! How many reads the ring keeps in flight: as many as the storage's latency × bandwidth asks for, and no more.
//!
//! More in flight than that only adds latency, and turns over more memory: a virtual machine's disk brought a fifth
//! less at depth 8 than at 4. Less leaves the storage idle. Neither number is known, so half of the depth and twice the
//! depth are tried in turn, each between two windows at the depth that is: storage that others use too rises and falls
//! by itself.

use std::time::{Duration, Instant};

/// Reads and time that a rate is taken from, at least.
const WINDOW_READS: u32 = 64;
const WINDOW: Duration = Duration::from_millis(25);
/// What a deeper queue must bring to be kept, against the windows before and after it.
const GAIN: f64 = 1.05;
/// What a shallower one must keep.
const KEPT: f64 = 0.97;
/// Windows after both ways have brought nothing until the next trial.
const REST_WINDOWS: u32 = 32;
/// Fewer reads than this in flight leave the storage idle whenever one ends.
const DEPTH_MIN: u32 = 2;

/// The depth, and the trial that is on.
#[derive(Debug)]
pub(super) struct Depth {
    start: u32,
    max: u32,
    now: u32,
    trial: Option<Trial>,
    /// The way of the next trial.
    way: Way,
    /// Trials since the last that was kept.
    in_vain: u32,
    rest: u32,
    /// Reads of the depth before that are still to come: they say nothing of this one.
    settling: u32,
    window: Option<Instant>,
    bytes: u64,
    reads: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Shallower,
    Deeper,
}

impl Way {
    fn other(self) -> Self {
        match self {
            Self::Shallower => Self::Deeper,
            Self::Deeper => Self::Shallower,
        }
    }

    /// Whether the rate at the depth that is tried is reason enough to stay there.
    fn holds(self, tried: f64, usual: f64) -> bool {
        tried >= usual * if self == Self::Deeper { GAIN } else { KEPT }
    }
}

/// Rates are in bytes a second.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trial {
    /// At the other depth.
    There { usual: f64, from: u32 },
    /// It held against the window before; now the window after.
    Back { tried: f64, at: u32 },
}

impl Depth {
    pub(super) fn new(start: u32, max: u32) -> Self {
        let max = max.max(start);
        Self {
            start,
            max,
            now: start,
            trial: None,
            way: Way::Shallower,
            in_vain: 0,
            rest: 0,
            settling: 0,
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
        if self.settling > 0 {
            self.settling -= 1;
            return;
        }
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
        match self.trial.take() {
            None if self.rest > 0 => self.rest -= 1,
            None => self.begin(rate),
            Some(Trial::There { usual, from }) if self.way.holds(rate, usual) => {
                self.go(from, Trial::Back { tried: rate, at: self.now });
            }
            Some(Trial::There { from, .. }) => {
                self.settle_at(from);
                self.vain();
            }
            Some(Trial::Back { tried, at }) if self.way.holds(tried, rate) => {
                self.settle_at(at);
                self.in_vain = 0;
                // Once more the same way.
            }
            Some(Trial::Back { .. }) => self.vain(),
        }
    }

    fn begin(&mut self, usual: f64) {
        let from = self.now;
        let to = match self.way {
            Way::Shallower => (from / 2).max(DEPTH_MIN),
            Way::Deeper => (from * 2).min(self.max),
        };
        // Near its bound there is nothing to learn.
        if to.abs_diff(from) < (from / 3).max(1) {
            self.vain();
        } else {
            self.go(to, Trial::There { usual, from });
        }
    }

    fn vain(&mut self) {
        self.way = self.way.other();
        self.in_vain += 1;
        if self.in_vain.is_multiple_of(2) {
            self.rest = REST_WINDOWS;
        }
    }

    fn go(&mut self, depth: u32, trial: Trial) {
        self.settle_at(depth);
        self.trial = Some(trial);
    }

    fn settle_at(&mut self, depth: u32) {
        self.settling = self.now.max(depth);
        (self.now, self.window) = (depth, None);
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
    fn near_storage_gets_no_more_than_it_needs() {
        for (latency_s, bytes_per_s) in [(0.000_1, 2e9), (0.000_1, 7e9), (0.001, 0.4e9), (0.0001, 0.1e9)] {
            let (mut deep, mut all) = (0, 0);
            for reads in (2000..6000).step_by(7) {
                let (depth, _) = settled(latency_s, bytes_per_s, 128, reads);
                assert!(depth <= 8, "{latency_s} s, {bytes_per_s} B/s, {reads} reads: {depth}");
                (deep, all) = (deep + u32::from(depth > 4), all + 1);
            }
            assert!(deep * 4 < all, "a trial now and then: {deep} of {all}");
        }
    }

    #[test]
    fn a_queue_that_costs_rate_is_left() {
        // A fifth less from 8 on.
        let mut depth = Depth::new(8, 128);
        let mut now = Instant::now();
        for _ in 0..2000 {
            let rate = if depth.now() > 4 { 2.0e9 } else { 2.5e9 * f64::from(depth.now()).min(4.0) / 4.0 };
            now += Duration::from_secs_f64(f64::from(CHUNK) / rate);
            depth.done_at(CHUNK, now);
        }
        assert!((2..=8).contains(&depth.now()) && depth.in_vain > 0);
        assert_eq!(
            depth.trial.map_or(depth.now(), |trial| match trial {
                Trial::There { from, .. } => from,
                Trial::Back { .. } => depth.now(),
            }),
            4
        );
    }

    #[test]
    fn storage_that_rises_and_falls_by_itself_keeps_its_depth() {
        // A third up and down in 37 windows, and noise of a tenth from one read to the next.
        let mut depth = Depth::new(8, 128);
        let (mut now, mut noise, mut deeper) = (Instant::now(), 1_u32, 0);
        for read in 0..50_000_u32 {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let drift = 1.0 + 0.33 * (f64::from(read) / 1800.0 * std::f64::consts::TAU).sin();
            let shake = 0.95 + 0.1 * f64::from(noise >> 16) / 65536.0;
            now += Duration::from_secs_f64(0.0005 * shake / drift);
            depth.done_at(CHUNK, now);
            assert!(depth.now() <= 32);
            deeper += u32::from(depth.now() > 8);
        }
        assert!(deeper < 5_000, "{deeper} of 50000 reads");
    }

    #[test]
    fn the_depth_never_passes_its_bound_and_starts_anew() {
        let mut depth = Depth::new(8, 48);
        let mut now = Instant::now();
        for _ in 0..20_000 {
            now += Duration::from_secs_f64(0.02 / f64::from(depth.now()));
            depth.done_at(CHUNK, now);
            assert!((4..=48).contains(&depth.now()));
        }
        assert!(depth.now() >= 24, "{}", depth.now());
        depth.reset();
        assert_eq!(depth.now(), 8);
        let fixed = Depth::new(8, 0);
        assert_eq!((fixed.now(), fixed.max), (8, 8));
    }
}
