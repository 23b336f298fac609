//! Least frequently used, with counts that decay: what was used least in the last rounds leaves.

use super::heap::{Places, RankHeap};
use super::{Policy, PolicyKind};

/// Rounds of a model's layers after which a use counts half.
pub const HALF_LIFE_ROUNDS: f64 = 32.0;

/// Evicts the smallest decayed count of uses. A round of a model begins when the visits go back to an earlier
/// layer (or the same one); one token's pass over the layers is a round.
#[derive(Debug)]
pub struct LfuDecay {
    half_life: f64,
    places: Places,
    candidates: RankHeap,
    model_of: Vec<u32>,
    position_of: Vec<u32>,
    models: Vec<Rounds>,
}

#[derive(Debug)]
struct Rounds {
    number: f64,
    position: u32,
}

impl LfuDecay {
    /// Counts that halve every `half_life` rounds (more than 0).
    #[must_use]
    pub fn new(half_life: f64) -> LfuDecay {
        LfuDecay {
            half_life: half_life.max(f64::MIN_POSITIVE),
            places: Places::default(),
            candidates: RankHeap::default(),
            model_of: Vec::new(),
            position_of: Vec::new(),
            models: Vec::new(),
        }
    }
}

impl Policy for LfuDecay {
    fn kind(&self) -> PolicyKind {
        PolicyKind::LfuDecay
    }

    #[allow(clippy::cast_possible_truncation)] // models are numbered by u32
    fn add_model(&mut self, positions: &[u32]) {
        self.model_of.extend(positions.iter().map(|_| self.models.len() as u32));
        self.models.push(Rounds { number: 0.0, position: u32::MAX });
        self.position_of.extend(positions);
        self.places.grow(self.model_of.len());
        self.candidates.reserve(positions.len());
    }

    fn visit(&mut self, items: &[u32]) {
        for (index, &item) in items.iter().enumerate() {
            let position = self.position_of[item as usize];
            let model = &mut self.models[self.model_of[item as usize] as usize];
            // Members of one set on one layer are one visit.
            let same = index > 0 && self.position_of[items[index - 1] as usize] == position;
            if !same && position <= model.position {
                model.number += 1.0;
            }
            model.position = position;
            // The rank is the logarithm of the count, moved back to round 0 so that it stays comparable.
            let now = model.number / self.half_life;
            let rank = ((self.places.rank(item) - now).exp2() + 1.0).log2() + now;
            let listed = self.places.holds(item);
            if listed {
                self.candidates.remove(item, &mut self.places);
            }
            self.places.set_rank(item, rank);
            if listed {
                self.candidates.insert(item, &mut self.places);
            }
        }
    }

    fn insert(&mut self, item: u32) {
        if !self.places.holds(item) {
            self.candidates.insert(item, &mut self.places);
        }
    }

    fn remove(&mut self, item: u32) {
        if self.places.holds(item) {
            self.candidates.remove(item, &mut self.places);
        }
    }

    fn victim(&mut self) -> Option<u32> {
        self.candidates.top()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_fame_fades() {
        let mut lfu = LfuDecay::new(2.0);
        lfu.add_model(&[0, 0, 0]);
        for _ in 0..4 {
            lfu.visit(&[0, 2]);
        }
        for item in [0, 1, 2] {
            lfu.insert(item);
        }
        assert_eq!(lfu.victim(), Some(1), "never used");
        for _ in 0..12 {
            lfu.visit(&[1]);
            lfu.visit(&[2]);
        }
        assert_eq!(lfu.victim(), Some(0), "four uses long ago weigh less than twelve now");
    }
}
