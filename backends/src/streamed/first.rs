//! First copies out of registered memory, timed: on some drivers a few of them take many times as long as the rest
//! (elsewhere 7 of 50 at a twentieth to a quarter of the rate were seen with HIP).

use std::sync::{Arc, Mutex};

use spoc_driver::Result;

use super::context::Context;
use super::event::Event;
use super::stream::Lane;
use crate::sync::lock;

/// Shorter copies tell nothing of a rate.
pub(crate) const BYTES_MIN: usize = 1 << 20;

/// Most copies that are being timed: what is more is not.
const PENDING_MAX: usize = 64;

/// What fraction of the fastest rate is slow.
const SLOW: f64 = 1.0 / 3.0;

/// Copies that are under way, and what is known of rates.
#[derive(Debug, Default)]
pub(crate) struct FirstCopies(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    pending: Vec<Timed>,
    rates: Rates,
}

/// A copy between two events.
pub(crate) struct Timed {
    begin: Event,
    end: Event,
    bytes: usize,
}

impl std::fmt::Debug for Timed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Timed").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// Rates in bytes a second. A copy is judged by the fastest, so the first ones are judged again.
#[derive(Debug, Default)]
struct Rates {
    fastest: f64,
    all: Vec<f64>,
    /// Those before the ones that are kept.
    counted: (u64, u64),
}

/// Most rates that are kept to be judged again.
const RATES_MAX: usize = 1024;

impl Rates {
    fn add(&mut self, rate: f64) {
        if self.all.len() == RATES_MAX {
            let (count, slow) = self.judged();
            self.counted = (count, slow);
            self.all.clear();
        }
        self.fastest = self.fastest.max(rate);
        self.all.push(rate);
    }

    /// How many there were, and how many of them slow.
    fn judged(&self) -> (u64, u64) {
        let slow = self.all.iter().filter(|rate| **rate < self.fastest * SLOW).count();
        (self.counted.0 + self.all.len() as u64, self.counted.1 + slow as u64)
    }
}

impl FirstCopies {
    /// Begins to time a copy on a stream.
    pub(crate) fn begin(&self, context: &Arc<Context>, lane: &Lane, bytes: usize) -> Result<Option<Timed>> {
        self.harvest();
        if lock(&self.0).pending.len() >= PENDING_MAX {
            return Ok(None);
        }
        let (begin, end) = (Event::create_timed(context)?, Event::create_timed(context)?);
        begin.record(lane)?;
        Ok(Some(Timed { begin, end, bytes }))
    }

    /// The copy is enqueued.
    pub(crate) fn end(&self, lane: &Lane, timed: Timed) -> Result<()> {
        timed.end.record(lane)?;
        lock(&self.0).pending.push(timed);
        Ok(())
    }

    /// How many were timed, and how many of them were slow.
    pub(crate) fn read(&self) -> (u64, u64) {
        self.harvest();
        lock(&self.0).rates.judged()
    }

    fn harvest(&self) {
        let mut state = lock(&self.0);
        let State { pending, rates } = &mut *state;
        pending.retain(|timed| match timed.end.query() {
            Ok(false) => true,
            Ok(true) => {
                if let Ok(seconds) = timed.begin.seconds_to(&timed.end)
                    && seconds > 0.0
                {
                    rates.add(timed.bytes as f64 / seconds);
                }
                false
            }
            // Whatever is wrong shows in the stream's own calls.
            Err(_) => false,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_is_what_the_fastest_says() {
        let mut rates = Rates::default();
        rates.add(1e9);
        assert_eq!(rates.judged(), (1, 0), "alone it is the fastest");
        rates.add(26e9);
        rates.add(9e9);
        assert_eq!(rates.judged(), (3, 1));
        for _ in 0..2 * RATES_MAX {
            rates.add(25e9);
        }
        assert_eq!(rates.judged(), (3 + 2 * RATES_MAX as u64, 1));
    }
}
