//! Whether reading ahead pays: counted, and stopped below break-even.

use super::Core;
use crate::slots::Listed;
use crate::stats::layout::Counter;

/// Fills that a judgement looks back on.
const WINDOW: u32 = 64;

/// Share of fills that must have been of use. Below it more is read for nothing than for somebody, and what is read
/// for nothing took room from something.
const BREAK_EVEN: f64 = 0.5;

/// While it is off, one hinted key in so many is read all the same: else nobody would notice better times.
const PROBE: u32 = 16;

/// Decayed counts of fills read ahead.
#[derive(Debug, Default)]
pub(super) struct Governor {
    useful: f64,
    settled: f64,
    off: bool,
    hinted_while_off: u32,
}

/// What became of a fill read ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Useful,
    /// Half of the use: the read had begun when it was wanted.
    Late,
    Wasted,
}

impl Governor {
    /// Whether one more key may be read ahead.
    pub fn allows(&mut self) -> bool {
        if !self.off {
            return true;
        }
        self.hinted_while_off += 1;
        self.hinted_while_off.is_multiple_of(PROBE)
    }

    pub fn is_off(&self) -> bool {
        self.off
    }

    /// Share of use lately, if enough is known.
    pub fn share(&self) -> Option<f64> {
        (self.settled >= f64::from(WINDOW) / 4.0).then(|| self.useful / self.settled)
    }

    fn judge(&mut self, outcome: Outcome) {
        let keep = 1.0 - 1.0 / f64::from(WINDOW);
        let use_ = match outcome {
            Outcome::Useful => 1.0,
            Outcome::Late => 0.5,
            Outcome::Wasted => 0.0,
        };
        self.useful = self.useful * keep + use_;
        self.settled = self.settled * keep + 1.0;
        let Some(share) = self.share() else { return };
        // A band around break-even, so that it does not flicker.
        let off = if self.off { share < BREAK_EVEN * 1.1 } else { share < BREAK_EVEN };
        if off != self.off {
            self.off = off;
            self.hinted_while_off = 0;
            let percent = share * 100.0;
            if off {
                tracing::warn!("reading ahead is off: {percent:.0} % of it was of use, break-even is 50 %");
            } else {
                tracing::info!("reading ahead is on again: {percent:.0} % of it was of use");
            }
        }
    }
}

impl Core {
    /// Somebody wants what is in the slot, or on its way there.
    pub(super) fn note_useful(&mut self, slot: u32) {
        let entry = self.table.get_mut(slot);
        if !std::mem::take(&mut entry.speculative) {
            return;
        }
        let late = self.table.state(slot) == crate::slots::state::State::Loading;
        let (outcome, counter) = if late {
            (Outcome::Late, Counter::SpeculationLate)
        } else {
            (Outcome::Useful, Counter::SpeculationUseful)
        };
        self.counters.add(counter, 1);
        self.governor.judge(outcome);
        if self.table.get(slot).listed == Listed::Retained {
            // From now on the policy knows it.
            self.unlist(slot);
            self.list(slot);
        }
    }

    /// The slot loses what it held, or was to hold.
    pub(super) fn note_wasted(&mut self, slot: u32) {
        let entry = self.table.get_mut(slot);
        if std::mem::take(&mut entry.speculative) {
            let bytes = entry.bytes;
            self.counters.add(Counter::SpeculationWasted, 1);
            self.counters.add(Counter::SpeculationWastedBytes, bytes);
            self.governor.judge(Outcome::Wasted);
        }
    }

    /// Whether reading ahead is turned off, and which share of it was of use lately.
    pub fn speculation(&self) -> (bool, Option<f64>) {
        (self.governor.is_off(), self.governor.share())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn off_below_break_even_and_on_again_by_probing() {
        let mut governor = Governor::default();
        for _ in 0..WINDOW {
            assert!(governor.allows());
            governor.judge(Outcome::Useful);
        }
        for _ in 0..2 * WINDOW {
            governor.judge(Outcome::Wasted);
        }
        assert!(governor.is_off());
        let allowed = (0..160).filter(|_| governor.allows()).count();
        assert_eq!(allowed, 10);
        for _ in 0..2 * WINDOW {
            governor.judge(Outcome::Useful);
        }
        assert!(!governor.is_off() && governor.allows());
    }
}
