//! Why keys were missed, and what another number of slots would have found: counted while the cache runs.
//!
//! The curve comes from miniature pools: one item in so many is followed (so many that about [`SAMPLE`] are), in pools
//! of as small a part of other numbers of slots, each with `cycle` as their policy. Memory is fixed when
//! a model is registered, and a set costs nothing unless a followed item is in it.

use super::Core;
use crate::policy::{Cycle, HALF_LIFE_VISITS, Policy, PolicyKind};
use crate::slots::NONE;
use crate::stats::layout::{CURVE_POINTS, Counter};
use crate::stats::{Counters, CurvePoint};

/// Items that are followed, about.
const SAMPLE: usize = 256;
/// Sizes looked at, in quarters of the pool.
const QUARTERS: [usize; CURVE_POINTS] = [1, 2, 3, 4, 5, 6, 8, 16];
/// Followed requests after which counts are halved, so that the curve is about lately.
const FADE_AFTER: u64 = 1 << 16;
/// Sets between two publications.
const PUBLISH_EVERY: u64 = 16;

/// Why a key that was asked for was not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Why {
    /// Never asked for before.
    #[default]
    Cold,
    /// As many loads as there are slots, or more, since it was last asked for.
    Capacity,
    /// Fewer: another choice of what leaves would have kept it.
    Policy,
}

/// What is remembered of requests.
#[derive(Debug, Default)]
pub(super) struct Reuse {
    /// Loads when the item was last asked for, plus 1; 0 if it never was.
    asked_at: Vec<u64>,
    why: Vec<Why>,
    loads: u64,
    slots: usize,
    one_in: usize,
    followed: Vec<u32>,
    followed_items: u32,
    pools: Vec<Miniature>,
    set: Vec<u32>,
    sets: u64,
    floors: Floors,
}

/// The least that a pool must have: see `SlotCache::min_capacity`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Floors {
    pub layer: usize,
    pub round: usize,
    this_round: usize,
    position: u32,
    rounds: u32,
    pub warned: bool,
}

impl Floors {
    /// A round ends when visits go back to an earlier layer, or stay.
    fn visit(&mut self, position: u32, width: usize) {
        if self.this_round > 0 && position <= self.position {
            self.rounds = self.rounds.saturating_add(1);
            self.round = self.round.max(self.this_round);
            self.this_round = 0;
        }
        self.position = position;
        self.this_round += width;
        self.layer = self.layer.max(width);
    }

    /// Once, after a few rounds: the pool cannot hold one round of what is asked for.
    pub fn should_warn(&mut self, slots: usize) -> bool {
        let below = !self.warned && self.rounds >= 8 && slots < self.round;
        self.warned |= below;
        below
    }
}

#[derive(Debug)]
struct Miniature {
    policy: Cycle,
    resident: Vec<bool>,
    used: usize,
    quarters: usize,
    requested: u64,
    hits: u64,
}

impl Reuse {
    /// Items of one more model.
    pub fn add_model(&mut self, positions: &[u32]) {
        if self.one_in == 0 {
            self.one_in = positions.len().div_ceil(SAMPLE).max(1);
            self.pools = QUARTERS.map(Miniature::new).into();
        }
        let first = self.followed.len();
        let mut sampled = Vec::new();
        for (item, &position) in (first..).zip(positions) {
            let follow = scatter(item).is_multiple_of(self.one_in);
            self.followed.push(if follow { self.followed_items } else { NONE });
            if follow {
                self.followed_items += 1;
                sampled.push(position);
            }
        }
        for pool in &mut self.pools {
            pool.policy.add_model(&sampled);
            pool.resident.resize(self.followed_items as usize, false);
        }
        self.asked_at.resize(self.followed.len(), 0);
        self.why.resize(self.followed.len(), Why::Cold);
        self.set.reserve(positions.len());
    }

    /// Items whose model went: whoever has their numbers next was never asked for.
    pub fn forget(&mut self, items: std::ops::Range<u32>) {
        for item in items {
            (self.asked_at[item as usize], self.why[item as usize]) = (0, Why::Cold);
        }
    }

    pub fn set_slots(&mut self, slots: usize) {
        self.slots = slots;
    }

    pub fn floors(&mut self) -> &mut Floors {
        &mut self.floors
    }

    /// One set, before its misses are loaded. `position` is the layer of its first item.
    pub fn visit(&mut self, items: &[u32], position: u32, counters: &Counters) {
        self.floors.visit(position, items.len());
        self.set.clear();
        for &item in items {
            let at = item as usize;
            let since = self.loads.saturating_sub(self.asked_at[at].saturating_sub(1));
            self.why[at] = match self.asked_at[at] {
                0 => Why::Cold,
                _ if since >= self.slots as u64 => Why::Capacity,
                _ => Why::Policy,
            };
            self.asked_at[at] = self.loads + 1;
            if self.followed[at] != NONE {
                self.set.push(self.followed[at]);
            }
        }
        if !self.set.is_empty() {
            for pool in &mut self.pools {
                pool.visit(&self.set, self.slots, self.one_in);
            }
        }
        self.sets += 1;
        if self.sets.is_multiple_of(PUBLISH_EVERY) {
            self.publish(counters);
        }
    }

    /// The item was asked for, was not there, and nobody was loading it.
    pub fn missed(&mut self, item: u32, counters: &Counters) {
        self.loads += 1;
        // Its own load is not one of those that could push it out.
        self.asked_at[item as usize] = self.loads + 1;
        let counter = match self.why[item as usize] {
            Why::Cold => Counter::MissesCold,
            Why::Capacity => Counter::MissesCapacity,
            Why::Policy => Counter::MissesPolicy,
        };
        counters.add(counter, 1);
    }

    fn publish(&self, counters: &Counters) {
        let mut points = [CurvePoint::default(); CURVE_POINTS];
        for (point, pool) in points.iter_mut().zip(&self.pools) {
            let slots = (self.slots * pool.quarters / 4).max(1) as u64;
            *point = CurvePoint { slots, requested: pool.requested, hits: pool.hits };
        }
        counters.curve(&points, self.floors.layer as u64, self.floors.round as u64);
    }
}

impl Core {
    /// What a pool must have: for one set, and for one round of the layers.
    pub fn floors(&mut self) -> (usize, usize) {
        self.take_visits();
        let floors = self.reuse.floors();
        (floors.layer, floors.round.max(floors.this_round))
    }

    /// Says once that the pool is below one round of what is asked for, and what comes of it.
    pub(super) fn warn_of_floor(&mut self) {
        let slots = self.reuse.slots;
        if !self.reuse.floors.should_warn(slots) {
            return;
        }
        let round = self.reuse.floors.round;
        let (requested, hits) = (self.counters.get(Counter::Requested), self.counters.get(Counter::Hits));
        let found = 100 * hits / requested.max(1);
        let policy = self.pools.first().map_or(PolicyKind::default(), |pool| pool.policy.kind());
        if policy == PolicyKind::Lru {
            tracing::warn!(
                "{slots} slots are fewer than the {round} groups that one round of the layers asks for: with lru \
                 every group leaves before it is wanted again, and hits go towards 0 % ({found} % so far)"
            );
        } else {
            tracing::warn!(
                "{slots} slots are fewer than the {round} groups that one round of the layers asks for: about \
                 {found} % of requests will be hits, as they were so far; with lru there would be next to none"
            );
        }
    }
}

/// Spreads neighbouring numbers: experts of one layer are followed or not independently.
fn scatter(item: usize) -> usize {
    item.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40
}

impl Miniature {
    fn new(quarters: usize) -> Miniature {
        Miniature {
            policy: Cycle::new(HALF_LIFE_VISITS),
            resident: Vec::new(),
            used: 0,
            quarters,
            requested: 0,
            hits: 0,
        }
    }

    fn visit(&mut self, set: &[u32], slots: usize, one_in: usize) {
        let room = (slots * self.quarters / 4).div_ceil(one_in).max(1);
        if self.requested >= FADE_AFTER {
            (self.requested, self.hits) = (self.requested / 2, self.hits / 2);
        }
        self.policy.visit(set);
        for &item in set {
            self.requested += 1;
            if self.resident[item as usize] {
                self.hits += 1;
                self.policy.remove(item);
            }
        }
        for &item in set {
            if !self.resident[item as usize] && self.make_room(room) {
                self.resident[item as usize] = true;
                self.used += 1;
            }
        }
        for &item in set.iter().filter(|&&item| self.resident[item as usize]) {
            self.policy.insert(item);
        }
    }

    /// False if the set itself fills the pool. After the pool shrank, more than one leaves.
    fn make_room(&mut self, room: usize) -> bool {
        while self.used >= room {
            let Some(victim) = self.policy.victim() else { return false };
            self.policy.remove(victim);
            self.resident[victim as usize] = false;
            self.used -= 1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Reader;

    /// Eight layers of one group, visited in turn, four slots: the curve knows that eight are enough and that four are
    /// half of it.
    #[test]
    fn the_curve_of_a_round_of_eight() {
        let counters = Counters::on_heap(4);
        let mut reuse = Reuse::default();
        reuse.add_model(&[0, 1, 2, 3, 4, 5, 6, 7]);
        reuse.set_slots(4);
        for turn in 0..6_400u32 {
            reuse.visit(&[turn % 8], turn % 8, &counters);
        }
        let curve = Reader::new(counters.words()).expect("a page").curve();
        let rate = |slots| {
            let point = curve.iter().find(|point| point.slots == slots).expect("a size of the curve");
            point.hits as f64 / point.requested as f64
        };
        assert!(rate(8) > 0.99 && rate(16) > 0.99, "{curve:?}");
        assert!(rate(1) < 0.01 && rate(4) < rate(5) && rate(4) > 0.2, "{curve:?}");
        assert_eq!((reuse.floors.layer, reuse.floors.round), (1, 8));
        assert!(reuse.floors().should_warn(4) && !reuse.floors().should_warn(4), "once");
    }

    #[test]
    fn misses_have_one_reason_each() {
        let counters = Counters::on_heap(2);
        let mut reuse = Reuse::default();
        reuse.add_model(&[0, 0, 0, 0]);
        reuse.set_slots(2);
        for item in [0, 1, 2, 3, 0, 3] {
            reuse.visit(&[item], 0, &counters);
            reuse.missed(item, &counters);
        }
        let count = |counter| counters.get(counter);
        assert_eq!(count(Counter::MissesCold), 4);
        assert_eq!((count(Counter::MissesCapacity), count(Counter::MissesPolicy)), (1, 1));
    }
}
