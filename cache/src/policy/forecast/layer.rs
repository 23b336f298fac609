//! One layer's items: what was seen of them, and how likely each is wanted when the layer comes round.

use super::model::{FADE, RATES, Weights, decay, sigmoid};

/// Items of a layer that learn from each other pairwise: 1 MiB of weights.
pub(super) const WIDTH_MAX: usize = 512;
/// Step of the pairwise weights; smaller for wide sets, whose members say little about each other.
const PAIR_STEP: f32 = 0.024;
const PAIR_STEP_WIDTH: f32 = 32.0;
/// A count as good as none. Numbers that fade for ever become so small that processors handle them slowly.
const NOTHING: f32 = 1e-9;
/// Rank of what may not leave.
pub(super) const NEVER: f32 = f32::INFINITY;

#[derive(Debug)]
pub(super) struct Layer {
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
    ones: Vec<f32>,
}

fn faded(count: f32) -> f32 {
    if count < NOTHING { 0.0 } else { count }
}

/// Lanes of a sum or a search: what a processor does at once, in an order that does not depend on it.
const LANES: usize = 8;

/// The sum of the products of two rows of one length.
fn product(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let ((a_chunks, a_rest), (b_chunks, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for (sum, (a, b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    lanes.iter().sum::<f32>() + rest
}

/// The smallest of some numbers, [`NEVER`] for none.
fn least_of(numbers: &[f32]) -> f32 {
    let mut lanes = [NEVER; LANES];
    let (chunks, rest) = numbers.as_chunks::<LANES>();
    for chunk in chunks {
        for (least, &number) in lanes.iter_mut().zip(chunk) {
            *least = if number < *least { number } else { *least };
        }
    }
    lanes.iter().chain(rest).copied().fold(NEVER, f32::min)
}

impl Layer {
    pub fn new(items: Vec<u32>) -> Layer {
        let width = items.len();
        let zeros = || vec![0.0; width];
        Layer {
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
            ones: vec![1.0; width],
            items,
        }
    }

    /// One visit. Learns from what the last one foretold, then foretells the next. `set` holds distinct items.
    pub fn visit(&mut self, set: &[u32], weights: &mut Weights) {
        for &local in set {
            self.used[local as usize] = 1.0;
        }
        self.gather(set);
        let before = self.whole;
        self.foretell(weights);
        if before[0] > 0.0 {
            weights.learn(&self.gradient(before));
            self.learn_pairs();
        }
        self.last.clear();
        self.last.extend(set);
        for &local in set {
            self.used[local as usize] = 0.0;
        }
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
    fn foretell(&mut self, weights: &Weights) {
        let width = self.items.len();
        for (whole, rate) in self.whole.iter_mut().zip(0..) {
            *whole = *whole * decay(rate) + 1.0;
        }
        let per_visit = self.whole.map(|whole| 1.0 / whole);
        let [a, b, c, d] = &mut self.counts;
        let (a, b, c, d) = (&mut a[..width], &mut b[..width], &mut c[..width], &mut d[..width]);
        let (used, evidence) = (&self.used[..width], &self.evidence[..width]);
        let (chance, error) = (&mut self.chance[..width], &mut self.error[..width]);
        let (rank, weight) = (&mut self.rank[..width], &self.weight[..width]);
        for at in 0..width {
            a[at] = faded(a[at] * decay(0)) + used[at];
            b[at] = faded(b[at] * decay(1)) + used[at];
            c[at] = faded(c[at] * decay(2)) + used[at];
            d[at] = faded(d[at] * decay(3)) + used[at];
            let rates =
                [a[at] * per_visit[0], b[at] * per_visit[1], c[at] * per_visit[2], d[at] * per_visit[3]];
            let next = sigmoid(weights.sum(&rates) + evidence[at]);
            error[at] = chance[at] - ((1.0 - FADE) * used[at] + FADE * next);
            chance[at] = next;
            let worth = next * weight[at];
            rank[at] = if rank[at] == NEVER { NEVER } else { worth };
        }
    }

    /// Slopes of the errors over the weights: over the rates as they were before this visit.
    fn gradient(&self, before: [f32; RATES]) -> [f32; RATES + 1] {
        let of_used = product(&self.error, &self.used);
        let mut gradient = [0.0; RATES + 1];
        for (rate, counts) in self.counts.iter().enumerate() {
            let scale = if before[rate] > 0.0 { 1.0 / (before[rate] * decay(rate)) } else { 0.0 };
            gradient[rate + 1] = scale * (product(&self.error, counts) - of_used);
        }
        gradient[0] = product(&self.error, &self.ones);
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

    /// Whether the item may leave, and so its rank changed.
    pub fn weigh(&mut self, local: u32, weight: f32) -> bool {
        let at = local as usize;
        self.weight[at] = weight.clamp(1e-3, 1e3);
        let listed = self.rank[at] != NEVER;
        if listed {
            self.rank[at] = self.worth(local);
        }
        listed
    }

    /// Chance times weight.
    pub fn worth(&self, local: u32) -> f32 {
        self.chance[local as usize] * self.weight[local as usize]
    }

    /// The item may leave; answers its rank.
    pub fn insert(&mut self, local: u32) -> f32 {
        let rank = self.worth(local);
        self.rank[local as usize] = rank;
        rank
    }

    pub fn remove(&mut self, local: u32) {
        self.rank[local as usize] = NEVER;
    }

    /// The item of the smallest rank and that rank; [`NEVER`] if none may leave. Of equals the one with the lowest number.
    #[allow(clippy::cast_possible_truncation)] // at most WIDTH_MAX
    pub fn least(&self) -> (u32, f32) {
        let least = least_of(&self.rank);
        let at = if least == NEVER { None } else { self.rank.iter().position(|&rank| rank == least) };
        (at.unwrap_or(0) as u32, least)
    }
}
