//! A model's layers come round in order, so what leaves is what will be wanted last.
//!
//! An item of layer l is wanted again after d(l) visits (until its layer comes round) plus, if it is used
//! on a share p of its layer's visits, 1/p − 1 further rounds of L layers. The item with the largest
//! d(l) + L·(1/p − 1) leaves. A dense layer is used on every visit (p = 1), so a cycle longer than the pool
//! loses the layer just used, where LRU would lose every one; an expert that is rarely chosen leaves long
//! before its layer's turn. p decays by half every [`HALF_LIFE_VISITS`] visits of the layer.
//!
//! Within a layer the order of the items changes only when they are used (all decay by one factor), so each
//! layer keeps a heap of its candidates and a victim is one pass over the layers: O(layers) comparisons,
//! O(log n) for the heap.

use super::heap::{Places, RankHeap};
use super::{Policy, PolicyKind};

/// Visits of its layer after which a use counts half.
pub const HALF_LIFE_VISITS: f64 = 8.0;

/// Evicts what will be wanted last if the layers come round as they did.
#[derive(Debug)]
pub struct Cycle {
    half_life: f64,
    places: Places,
    layer_of: Vec<u32>,
    layers: Vec<Layer>,
    rings: Vec<Ring>,
}

#[derive(Debug)]
struct Layer {
    ring: u32,
    position: u32,
    visits: u32,
    candidates: RankHeap,
    /// L·(1/p − 1) of the top candidate; valid until the top or the visits change.
    cost: f64,
    stale: bool,
}

/// One model's layers in the order they are visited.
#[derive(Debug)]
struct Ring {
    layers: u32,
    now: u32,
}

impl Cycle {
    /// A policy whose use counts halve every `half_life` visits of their layer (more than 0).
    #[must_use]
    pub fn new(half_life: f64) -> Cycle {
        Cycle {
            half_life: half_life.max(f64::MIN_POSITIVE),
            places: Places::default(),
            layer_of: Vec::new(),
            layers: Vec::new(),
            rings: Vec::new(),
        }
    }

    /// A new layer visit begins unless the item's layer was already seen in this event.
    fn begin_visits(&mut self, items: &[u32]) {
        for (index, &item) in items.iter().enumerate() {
            let layer = self.layer_of[item as usize];
            // Sets are small and mostly of one layer: looking back is cheaper than a table.
            if items[..index].iter().rev().any(|&seen| self.layer_of[seen as usize] == layer) {
                continue;
            }
            let layer = &mut self.layers[layer as usize];
            layer.visits = layer.visits.saturating_add(1);
            layer.stale = true;
            self.rings[layer.ring as usize].now = layer.position;
        }
    }

    /// The rank is the logarithm of the decayed count, moved back to visit 0 so that it stays comparable.
    fn count_use(&mut self, item: u32) {
        let layer = self.layer_of[item as usize] as usize;
        let now = f64::from(self.layers[layer].visits) / self.half_life;
        let count = (self.places.rank(item) - now).exp2() + 1.0;
        let listed = self.places.holds(item);
        if listed {
            self.layers[layer].candidates.remove(item, &mut self.places);
        }
        self.places.set_rank(item, count.log2() + now);
        if listed {
            self.layers[layer].candidates.insert(item, &mut self.places);
        }
    }

    /// L·(1/p − 1) for a candidate: p is its decayed count over what an item used every time would have.
    fn cost_of(&self, layer: &Layer, top: u32) -> f64 {
        let visits = f64::from(layer.visits) / self.half_life;
        let decay = (-1.0 / self.half_life).exp2();
        let whole = (1.0 - (-visits).exp2()) / (1.0 - decay);
        let count = (self.places.rank(top) - visits).exp2();
        f64::from(self.rings[layer.ring as usize].layers) * (whole / count - 1.0)
    }

    fn visits_until(&self, layer: &Layer) -> u32 {
        let ring = &self.rings[layer.ring as usize];
        match (layer.position + ring.layers - ring.now) % ring.layers {
            0 => ring.layers,
            ahead => ahead,
        }
    }

    fn touch_heap(&mut self, item: u32) -> &mut Layer {
        let layer = &mut self.layers[self.layer_of[item as usize] as usize];
        layer.stale = true;
        layer
    }
}

impl Policy for Cycle {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Cycle
    }

    #[allow(clippy::cast_possible_truncation)] // items and layers are numbered by u32
    fn add_model(&mut self, positions: &[u32]) {
        let ring = self.rings.len() as u32;
        let first = self.layers.len() as u32;
        let layers = positions.iter().max().map_or(0, |&last| last + 1);
        self.rings.push(Ring { layers, now: layers.saturating_sub(1) });
        self.layers.extend((0..layers).map(|position| Layer {
            ring,
            position,
            visits: 0,
            candidates: RankHeap::default(),
            cost: 0.0,
            stale: true,
        }));
        for &position in positions {
            self.layer_of.push(first + position);
            self.layers[(first + position) as usize].candidates.reserve(1);
        }
        for layer in &mut self.layers[first as usize..] {
            let members = positions.iter().filter(|&&at| at == layer.position).count();
            layer.candidates.reserve(members);
        }
        self.places.grow(self.layer_of.len());
    }

    fn distance(&self, item: u32) -> f64 {
        let layer = &self.layers[self.layer_of[item as usize] as usize];
        self.cost_of(layer, item) + f64::from(self.visits_until(layer))
    }

    fn visit(&mut self, items: &[u32]) {
        self.begin_visits(items);
        for &item in items {
            self.count_use(item);
        }
    }

    fn insert(&mut self, item: u32) {
        if self.places.holds(item) {
            return;
        }
        let layer = self.layer_of[item as usize] as usize;
        self.layers[layer].candidates.insert(item, &mut self.places);
        self.touch_heap(item);
    }

    fn remove(&mut self, item: u32) {
        if !self.places.holds(item) {
            return;
        }
        let layer = self.layer_of[item as usize] as usize;
        self.layers[layer].candidates.remove(item, &mut self.places);
        self.touch_heap(item);
    }

    fn victim(&mut self) -> Option<u32> {
        self.farthest().map(|(_, item)| item)
    }
}

impl Cycle {
    /// Visits until what will be wanted last is wanted, and that item.
    pub(super) fn farthest(&mut self) -> Option<(f64, u32)> {
        let mut best: Option<(f64, u32)> = None;
        for index in 0..self.layers.len() {
            let layer = &self.layers[index];
            let Some(top) = layer.candidates.top() else { continue };
            let cost = if layer.stale { self.cost_of(layer, top) } else { layer.cost };
            let score = cost + f64::from(self.visits_until(layer));
            if best.is_none_or(|(most, _)| score > most) {
                best = Some((score, top));
            }
            let layer = &mut self.layers[index];
            (layer.cost, layer.stale) = (cost, false);
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::super::replay::{toy_trace, union_hits};
    use super::*;

    /// Six dense layers, four slots: the optimum keeps three for good and reloads the rest.
    #[test]
    fn dense_layers_keep_all_but_one_slot() {
        let positions: Vec<u32> = (0..6).collect();
        let events: Vec<Vec<u32>> = (0..60).map(|step| vec![step % 6]).collect();
        let hits = union_hits(&mut Cycle::new(8.0), &positions, &events, 4);
        let steady: usize = hits[6..].iter().sum();
        // Belady on a cycle of 6 through 4 slots: 3 hits in 5 accesses (54 · 3/5 = 32.4).
        assert!((30..=34).contains(&steady), "{steady} hits in 54");
        let mut lru = super::super::Lru::default();
        assert_eq!(union_hits(&mut lru, &positions, &events, 4).iter().sum::<usize>(), 0);
    }

    /// Worked by hand in `replay::toy_trace`.
    #[test]
    fn toy_trace_by_hand() {
        let (events, positions) = toy_trace();
        let hits = union_hits(&mut Cycle::new(8.0), &positions, &events, 3);
        assert_eq!(hits, vec![0, 0, 1, 0, 1, 1, 0, 1, 0, 1]);
    }

    #[test]
    fn a_rarely_used_item_leaves_before_a_steady_one() {
        let mut cycle = Cycle::new(8.0);
        cycle.add_model(&[0, 0, 1]);
        cycle.visit(&[0, 1]);
        for _ in 0..6 {
            cycle.visit(&[2]);
            cycle.visit(&[0]);
        }
        for item in [0, 1, 2] {
            cycle.insert(item);
        }
        assert_eq!(cycle.victim(), Some(1));
        cycle.remove(1);
        // Layer 0 was visited last: its steady item is a whole round away, layer 1 comes next.
        assert_eq!(cycle.victim(), Some(0));
    }
}
