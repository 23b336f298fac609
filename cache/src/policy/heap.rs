//! A binary heap of items that can also take one out of the middle: what a layer's candidates need.

/// Smallest rank on top; equal ranks by item number, so that runs repeat.
#[derive(Debug, Default)]
pub(super) struct RankHeap {
    items: Vec<u32>,
}

/// Where items are in their heap, and their ranks; shared by the heaps of one policy.
#[derive(Debug, Default)]
pub(super) struct Places {
    at: Vec<u32>,
    rank: Vec<f64>,
}

const OUT: u32 = u32::MAX;

impl Places {
    pub(super) fn grow(&mut self, items: usize) {
        self.at.resize(items, OUT);
        self.rank.resize(items, f64::NEG_INFINITY);
    }

    pub(super) fn rank(&self, item: u32) -> f64 {
        self.rank[item as usize]
    }

    pub(super) fn holds(&self, item: u32) -> bool {
        self.at[item as usize] != OUT
    }

    /// Only for items that are in no heap.
    pub(super) fn set_rank(&mut self, item: u32, rank: f64) {
        debug_assert!(!self.holds(item));
        self.rank[item as usize] = rank;
    }

    fn before(&self, a: u32, b: u32) -> bool {
        let (ra, rb) = (self.rank[a as usize], self.rank[b as usize]);
        ra < rb || (ra == rb && a < b)
    }
}

impl RankHeap {
    pub(super) fn reserve(&mut self, more: usize) {
        self.items.reserve(more);
    }

    pub(super) fn top(&self) -> Option<u32> {
        self.items.first().copied()
    }

    pub(super) fn insert(&mut self, item: u32, places: &mut Places) {
        let index = self.items.len();
        self.items.push(item);
        self.put(index, item, places);
        self.sift_up(index, places);
    }

    pub(super) fn remove(&mut self, item: u32, places: &mut Places) {
        let index = places.at[item as usize] as usize;
        places.at[item as usize] = OUT;
        let Some(last) = self.items.pop() else { return };
        if last == item {
            return;
        }
        self.put(index, last, places);
        self.sift_up(index, places);
        self.sift_down(places.at[last as usize] as usize, places);
    }

    #[allow(clippy::cast_possible_truncation)] // a heap holds at most u32::MAX items
    fn put(&mut self, index: usize, item: u32, places: &mut Places) {
        self.items[index] = item;
        places.at[item as usize] = index as u32;
    }

    fn swap(&mut self, a: usize, b: usize, places: &mut Places) {
        let (at_a, at_b) = (self.items[a], self.items[b]);
        self.put(a, at_b, places);
        self.put(b, at_a, places);
    }

    fn sift_up(&mut self, mut index: usize, places: &mut Places) {
        while index > 0 {
            let parent = (index - 1) / 2;
            if !places.before(self.items[index], self.items[parent]) {
                return;
            }
            self.swap(index, parent, places);
            index = parent;
        }
    }

    fn sift_down(&mut self, mut index: usize, places: &mut Places) {
        loop {
            let mut least = index;
            for child in [2 * index + 1, 2 * index + 2] {
                if child < self.items.len() && places.before(self.items[child], self.items[least]) {
                    least = child;
                }
            }
            if least == index {
                return;
            }
            self.swap(index, least, places);
            index = least;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_least_on_top_under_removals() {
        let mut places = Places::default();
        let mut heap = RankHeap::default();
        places.grow(200);
        let mut seed = 7u64;
        let mut inside = std::collections::BTreeSet::new();
        for _ in 0..5_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let item = u32::try_from((seed >> 33) % 200).unwrap();
            if places.holds(item) {
                heap.remove(item, &mut places);
                inside.remove(&item);
            } else {
                places.set_rank(item, f64::from(u32::try_from((seed >> 20) % 50).unwrap()));
                heap.insert(item, &mut places);
                inside.insert(item);
            }
            let least = inside
                .iter()
                .copied()
                .min_by(|&a, &b| places.rank(a).total_cmp(&places.rank(b)).then(a.cmp(&b)));
            assert_eq!(heap.top(), least);
        }
    }
}
