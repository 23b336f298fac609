//! The default policy: as `cycle`, what will be wanted last leaves, but how likely an item is wanted is learnt.
//!
//! For every item of the layer just visited the chance p that it is wanted when the layer comes round is a logistic
//! regression over
//! - its rates of use, faded with half-lives of 0.7, 4, 16 and 96 visits; their weights are common to a model's items;
//! - which items of its layer were used at this visit: one weight for each pair, so that experts that follow each other
//!   are known to.
//!
//! Both learn from every visit: the old p is moved towards 0.6 · (used or not) + 0.4 · (new p), which makes p about the
//! next few visits. With d visits until the item's layer comes round in a model of L layers, the item with the largest
//! (0.4 · d + 0.6 · L) / (p · weight) leaves. Everything is single precision arithmetic in a fixed order: runs repeat.
//!
//! A visit costs O(items of the layer), vectorised; a victim O(layers) comparisons and one pass over a layer whose least
//! item is not known. A model with a layer of more than 512 items is left to [`Cycle`], whose costs do not grow so.

mod layer;
mod model;

use super::{Cycle, HALF_LIFE_VISITS, Policy, PolicyKind};
use layer::{Layer, NEVER, WIDTH_MAX};
use model::Weights;

/// Layer of an item of a wide model.
const WIDE: u32 = u32::MAX;

/// Evicts what will be wanted last, as far as what was used tells.
#[derive(Debug)]
pub struct Forecast {
    layer_of: Vec<u32>,
    /// Number of the item within its layer.
    local: Vec<u32>,
    layers: Vec<Layer>,
    /// What a victim is chosen from, one a layer: apart from the rest, because all of them are looked at.
    tops: Vec<Top>,
    rings: Vec<Ring>,
    wide: Cycle,
    any_wide: bool,
    scratch: Vec<u32>,
}

/// A layer's place, and the one of its items that should leave first.
#[derive(Debug)]
struct Top {
    ring: u32,
    position: u32,
    local: u32,
    rank: f32,
    /// `local` and `rank` may have changed.
    stale: bool,
}

/// One model's layers in the order they are visited.
#[derive(Debug)]
struct Ring {
    layers: u32,
    now: u32,
    weights: Weights,
}

impl Ring {
    /// Visits until a layer comes round, drawn towards a whole round.
    #[allow(clippy::cast_precision_loss)] // layers are few
    fn visits_until(&self, position: u32) -> f32 {
        let turn = if position > self.now { 0 } else { self.layers };
        let ahead = position + turn - self.now;
        0.4 * ahead as f32 + 0.6 * self.layers as f32
    }
}

impl Default for Forecast {
    fn default() -> Forecast {
        Forecast {
            layer_of: Vec::new(),
            local: Vec::new(),
            layers: Vec::new(),
            tops: Vec::new(),
            rings: Vec::new(),
            wide: Cycle::new(HALF_LIFE_VISITS),
            any_wide: false,
            scratch: Vec::new(),
        }
    }
}

impl Forecast {
    /// The items of one model by layer, if none is too wide.
    fn by_layer(&self, positions: &[u32]) -> Option<Vec<Vec<u32>>> {
        let layers = positions.iter().max().map_or(0, |&last| last as usize + 1);
        let mut members = vec![Vec::new(); layers];
        for (&position, item) in positions.iter().zip(self.layer_of.len()..) {
            members[position as usize].push(u32::try_from(item).ok()?);
        }
        members.iter().all(|layer| layer.len() <= WIDTH_MAX).then_some(members)
    }

    #[allow(clippy::cast_possible_truncation)] // items and layers are numbered by u32
    fn add_layers(&mut self, members: Vec<Vec<u32>>) {
        let ring = self.rings.len() as u32;
        let layers = members.len() as u32;
        self.rings.push(Ring { layers, now: layers.saturating_sub(1), weights: Weights::default() });
        for (items, position) in members.into_iter().zip(0..) {
            for (&item, local) in items.iter().zip(0..) {
                self.layer_of[item as usize] = self.layers.len() as u32;
                self.local[item as usize] = local;
            }
            self.layers.push(Layer::new(items));
            self.tops.push(Top { ring, position, local: 0, rank: NEVER, stale: true });
        }
    }

    /// Visits the layer of the first of `items` with all that are of it; answers how many at the front were.
    fn visit_layer(&mut self, items: &[u32]) -> usize {
        let number = self.layer_of[items[0] as usize];
        let own = |item: &&u32| self.layer_of[**item as usize] == number;
        let front = items.iter().take_while(own).count();
        self.scratch.clear();
        self.scratch.extend(items.iter().filter(own).map(|&item| self.local[item as usize]));
        let top = &mut self.tops[number as usize];
        let ring = &mut self.rings[top.ring as usize];
        (ring.now, top.stale) = (top.position, true);
        self.layers[number as usize].visit(&self.scratch, &mut ring.weights);
        front
    }

    fn place(&mut self, item: u32) -> Option<(&mut Layer, &mut Top, u32)> {
        let number = self.layer_of[item as usize] as usize;
        let layer = self.layers.get_mut(number)?;
        Some((layer, &mut self.tops[number], self.local[item as usize]))
    }

    /// Visits, weighted, until what will be wanted last is wanted, and that item.
    fn farthest(&mut self) -> Option<(f32, u32)> {
        let mut best: Option<(f32, usize)> = None;
        for (number, top) in self.tops.iter_mut().enumerate() {
            if top.stale {
                (top.local, top.rank) = self.layers[number].least();
                top.stale = false;
            }
            // Of a layer without any, the rank is infinite and this 0.
            let far = self.rings[top.ring as usize].visits_until(top.position) / top.rank;
            if far > best.map_or(0.0, |(most, _)| most) {
                best = Some((far, number));
            }
        }
        best.map(|(far, number)| (far, self.layers[number].items[self.tops[number].local as usize]))
    }
}

impl Policy for Forecast {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Forecast
    }

    fn add_model(&mut self, positions: &[u32]) {
        let members = self.by_layer(positions);
        let items = self.layer_of.len() + positions.len();
        self.layer_of.resize(items, WIDE);
        self.local.resize(items, 0);
        self.scratch.reserve(items);
        // The inner policy numbers items alike; those that are not its own are never given to it.
        self.wide.add_model(positions);
        match members {
            Some(members) => self.add_layers(members),
            None => self.any_wide = true,
        }
    }

    fn weigh(&mut self, item: u32, weight: f32) {
        if let Some((layer, top, local)) = self.place(item) {
            top.stale |= layer.weigh(local, weight);
        }
    }

    fn distance(&self, item: u32) -> f64 {
        match self.layer_of[item as usize] {
            WIDE => self.wide.distance(item),
            number => {
                let top = &self.tops[number as usize];
                let until = self.rings[top.ring as usize].visits_until(top.position);
                f64::from(until / self.layers[number as usize].worth(self.local[item as usize]))
            }
        }
    }

    fn visit(&mut self, items: &[u32]) {
        if self.any_wide {
            let mut wide = std::mem::take(&mut self.scratch);
            wide.clear();
            wide.extend(items.iter().filter(|&&item| self.layer_of[item as usize] == WIDE));
            self.wide.visit(&wide);
            self.scratch = wide;
        }
        let mut from = 0;
        while from < items.len() {
            let layer = self.layer_of[items[from] as usize];
            let is_own = |&item: &u32| self.layer_of[item as usize] == layer;
            let seen = layer == WIDE || items[..from].iter().any(is_own);
            from += if seen { 1 } else { self.visit_layer(&items[from..]) };
        }
    }

    fn insert(&mut self, item: u32) {
        match self.place(item) {
            Some((layer, top, local)) => {
                let rank = layer.insert(local);
                // Inserted again with a higher rank, the top may not be it any more.
                top.stale |= top.local == local;
                if rank < top.rank {
                    (top.local, top.rank) = (local, rank);
                }
            }
            None => self.wide.insert(item),
        }
    }

    fn remove(&mut self, item: u32) {
        match self.place(item) {
            Some((layer, top, local)) => {
                layer.remove(local);
                top.stale |= top.local == local;
            }
            None => self.wide.remove(item),
        }
    }

    fn victim(&mut self) -> Option<u32> {
        let own = self.farthest();
        if !self.any_wide {
            return own.map(|(_, item)| item);
        }
        match (own, self.wide.farthest()) {
            (Some((far, item)), Some((wide_far, wide))) => {
                Some(if f64::from(far) >= wide_far { item } else { wide })
            }
            (own, wide) => own.map(|(_, item)| item).or(wide.map(|(_, item)| item)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::replay::union_hits;
    use super::*;

    /// Six dense layers, four slots: the optimum keeps three for good and reloads the rest.
    #[test]
    fn dense_layers_keep_all_but_one_slot() {
        let positions: Vec<u32> = (0..6).collect();
        let events: Vec<Vec<u32>> = (0..60).map(|step| vec![step % 6]).collect();
        let hits = union_hits(&mut Forecast::default(), &positions, &events, 4);
        let steady: usize = hits[6..].iter().sum();
        // Belady on a cycle of 6 through 4 slots: 3 hits in 5 accesses (54 · 3/5 = 32.4).
        assert!((30..=34).contains(&steady), "{steady} hits in 54");
    }

    /// Two experts take turns after each other: the one that was not used now is the next one.
    #[test]
    fn learns_who_follows_whom() {
        let mut policy = Forecast::default();
        policy.add_model(&[0, 0, 0]);
        for turn in 0..2_000 {
            policy.visit(&[turn % 3]);
        }
        // 1 was used last: 2 is next, 0 after it, 1 itself last of all.
        for item in [0, 1, 2] {
            policy.insert(item);
        }
        assert_eq!(policy.victim(), Some(1));
        policy.remove(1);
        assert_eq!(policy.victim(), Some(0));
    }

    #[test]
    fn what_is_cheap_to_load_again_leaves_first() {
        let mut policy = Forecast::default();
        policy.add_model(&[0, 0]);
        policy.visit(&[0, 1]);
        policy.insert(0);
        policy.insert(1);
        assert_eq!(policy.victim(), Some(0), "of equals the lower number");
        policy.weigh(0, 2.0);
        assert_eq!(policy.victim(), Some(1));
    }

    /// A layer wider than what is learnt in pairs, beside one that is not.
    #[test]
    fn wide_layers_are_served_too() {
        let mut policy = Forecast::default();
        policy.add_model(&vec![0; WIDTH_MAX + 1]);
        policy.add_model(&[0, 1]);
        let first = u32::try_from(WIDTH_MAX + 1).expect("small");
        for _ in 0..8 {
            policy.visit(&[0, first]);
            policy.visit(&[first + 1]);
        }
        policy.visit(&[1]);
        for item in [0, 1, 2, first, first + 1] {
            policy.insert(item);
        }
        assert_eq!(policy.victim(), Some(2), "never used");
        for item in [2, 0, 1] {
            policy.remove(item);
        }
        assert!(policy.victim().is_some_and(|item| item >= first));
        policy.remove(first);
        policy.remove(first + 1);
        assert_eq!(policy.victim(), None);
    }

    #[test]
    fn a_layer_named_twice_in_a_set_is_one_visit() {
        let mut policy = Forecast::default();
        policy.add_model(&[0, 1, 0, 0]);
        policy.visit(&[0, 1, 2, 3]);
        let mut other = Forecast::default();
        other.add_model(&[0, 1, 0, 0]);
        other.visit(&[0, 2, 3]);
        other.visit(&[1]);
        for item in 0..4 {
            policy.insert(item);
            other.insert(item);
        }
        while let Some(item) = policy.victim() {
            assert_eq!(other.victim(), Some(item));
            policy.remove(item);
            other.remove(item);
        }
    }
}
