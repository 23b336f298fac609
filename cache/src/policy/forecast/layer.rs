//! One layer's items: what was seen of them, and how likely each is wanted when the layer comes round.

use super::model::{FADE, RATES, Weights, decay, sigmoid};

/// Items of a layer that learn from each other pairwise: 1 MiB of weights.
pub(super) const WIDTH_MAX: usize = 512;
/// Step of the pairwise weights; smaller for wide sets, whose members say little about each other.
const PAIR_STEP: f32 = 0.024;
const PAIR_STEP_WIDTH: f32 = 32.0;
/// Rank of what may not leave.
const NEVER: f32 = f32::INFINITY;

#[derive(Debug)]
pub(super) struct Layer {
    pub ring: u32,
    pub position: u32,
    pub items: Vec<u32>,
    /// Visits so far, each faded like the counts: what an item used every time would have.
    whole: [f32; RATES],
    /// Faded counts of use, one row a rate.
    counts: [Vec<f32>; RATES],
    /// Chance of use at the next visits.
    chance: Vec<f32>,
    weight: Vec<f32>,
    /// Chance times weight of what may leave, [`NEVER`] for the rest.
    rank: Vec<f32>,
    /// Row i: what the use of i at one visit says about each item at the next.
    pairs: Vec<f32>,
    /// The last visit's set.
    last: Vec<u32>,
    used: Vec<f32>,
    evidence: Vec<f32>,
    error: Vec<f32>,
    /// The item of the smallest rank, if that is known.
    least: Option<u32>,
}

impl Layer {
    pub fn new(ring: u32, position: u32, items: Vec<u32>) -> Layer {
        let width = items.len();
        let zeros = || vec![0.0; width];
        Layer {
            ring,
            position,
            whole: [0.0; RATES],
            counts: std::array::from_fn(|_| zeros()),
            chance: vec![Weights::default().chance_of_unseen(); width],
            weight: vec![1.0; width],
            rank: vec![NEVER; width],
            pairs: vec![0.0; width * width],
            last: Vec::with_capacity(width),
            used: zeros(),
            evidence: zeros(),
            error: zeros(),
            least: None,
            items,
        }
    }

    /// One visit. Learns from what the last one foretold, then foretells the next. `set` holds distinct items.
    pub fn visit(&mut self, set: &[u32], weights: &mut Weights) {
        for &local in set {
            self.used[local as usize] = 1.0;
        }
        self.gather(set);
        let first = self.whole[0] == 0.0;
        let gradient = self.foretell(weights);
        if !first {
            weights.learn(&gradient);
            self.learn_pairs();
        }
        self.last.clear();
        self.last.extend(set);
        for &local in set {
            self.used[local as usize] = 0.0;
        }
        self.least = None;
    }

    /// What the members of the set say about every item.
    fn gather(&mut self, set: &[u32]) {
        self.evidence.fill(0.0);
        let width = self.items.len();
        for &local in set {
            let row = &self.pairs[local as usize * width..][..width];
            for (sum, pair) in self.evidence.iter_mut().zip(row) {
                *sum += pair;
            }
        }
    }

    /// Moves counts and chances on by one visit. Leaves in `error` how far each old chance was off: from the use now,
    /// and in part from the new chance, so that it is about more than the very next visit.
    fn foretell(&mut self, weights: &Weights) -> [f32; RATES + 1] {
        let width = self.items.len();
        let before = self.whole.map(|whole| if whole > 0.0 { 1.0 / whole } else { 0.0 });
        for (whole, rate) in self.whole.iter_mut().zip(0..) {
            *whole = *whole * decay(rate) + 1.0;
        }
        let after = self.whole.map(|whole| 1.0 / whole);
        let [a, b, c, d] = &mut self.counts;
        let (a, b, c, d) = (&mut a[..width], &mut b[..width], &mut c[..width], &mut d[..width]);
        let (used, evidence) = (&self.used[..width], &self.evidence[..width]);
        let (chance, error) = (&mut self.chance[..width], &mut self.error[..width]);
        let (rank, weight) = (&mut self.rank[..width], &self.weight[..width]);
        let mut gradient = [0.0; RATES + 1];
        for at in 0..width {
            let old = [a[at] * before[0], b[at] * before[1], c[at] * before[2], d[at] * before[3]];
            a[at] = a[at] * decay(0) + used[at];
            b[at] = b[at] * decay(1) + used[at];
            c[at] = c[at] * decay(2) + used[at];
            d[at] = d[at] * decay(3) + used[at];
            let new = [a[at] * after[0], b[at] * after[1], c[at] * after[2], d[at] * after[3]];
            let next = sigmoid(weights.sum(&new) + evidence[at]);
            let off = chance[at] - ((1.0 - FADE) * used[at] + FADE * next);
            error[at] = off;
            chance[at] = next;
            rank[at] = if rank[at] == NEVER { NEVER } else { next * weight[at] };
            gradient[0] += off;
            for (sum, old) in gradient[1..].iter_mut().zip(old) {
                *sum += off * old;
            }
        }
        gradient
    }

    fn learn_pairs(&mut self) {
        let width = self.items.len();
        #[allow(clippy::cast_precision_loss)] // at most WIDTH_MAX
        let members = self.last.len() as f32;
        let step = PAIR_STEP * (PAIR_STEP_WIDTH / members.max(PAIR_STEP_WIDTH));
        for &local in &self.last {
            let row = &mut self.pairs[local as usize * width..][..width];
            for (pair, off) in row.iter_mut().zip(&self.error) {
                *pair -= step * off;
            }
        }
    }

    pub fn weigh(&mut self, local: u32, weight: f32) {
        let at = local as usize;
        self.weight[at] = weight.clamp(1e-3, 1e3);
        if self.rank[at] != NEVER {
            self.insert(local);
        }
    }

    /// Chance times weight.
    pub fn worth(&self, local: u32) -> f32 {
        self.chance[local as usize] * self.weight[local as usize]
    }

    pub fn insert(&mut self, local: u32) {
        let at = local as usize;
        self.rank[at] = self.worth(local);
        match self.least {
            Some(least) if least != local && self.rank[at] < self.rank[least as usize] => {
                self.least = Some(local);
            }
            Some(least) if least != local => {}
            _ => self.least = None,
        }
    }

    pub fn remove(&mut self, local: u32) {
        self.rank[local as usize] = NEVER;
        if self.least == Some(local) {
            self.least = None;
        }
    }

    /// The item of the smallest rank and that rank, if any may leave. Of equals the one with the lowest number.
    #[allow(clippy::cast_possible_truncation)] // at most WIDTH_MAX
    pub fn least(&mut self) -> Option<(u32, f32)> {
        if self.least.is_none() {
            let least = self.rank.iter().copied().fold(NEVER, f32::min);
            let at = self.rank.iter().position(|&rank| rank == least && rank != NEVER)?;
            self.least = Some(at as u32);
        }
        self.least.map(|local| (local, self.rank[local as usize]))
    }
}
