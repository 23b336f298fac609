//! Scope per layer: every layer has its share of the pool and a policy of its own.

use super::{Policy, PolicyKind};

/// One policy a layer. Room for an item is made in its own layer, once that has its share; before that in the layer
/// that is furthest above its own.
pub struct PerLayer {
    kind: PolicyKind,
    slots: usize,
    layers: Vec<Layer>,
    layer_of: Vec<u32>,
    /// Number of the item within its layer.
    local: Vec<u32>,
    /// Resident, or wanted and so about to be.
    counted: Vec<bool>,
    scratch: Vec<u32>,
}

struct Layer {
    policy: Box<dyn Policy>,
    members: Vec<u32>,
    counted: usize,
}

impl PerLayer {
    /// Policies of `kind`, one for each layer of the models to come.
    #[must_use]
    pub fn new(kind: PolicyKind) -> PerLayer {
        PerLayer {
            kind,
            slots: 0,
            layers: Vec::new(),
            layer_of: Vec::new(),
            local: Vec::new(),
            counted: Vec::new(),
            scratch: Vec::new(),
        }
    }

    fn layer(&mut self, item: u32) -> (&mut Layer, u32) {
        (&mut self.layers[self.layer_of[item as usize] as usize], self.local[item as usize])
    }

    fn count(&mut self, item: u32) {
        if !std::mem::replace(&mut self.counted[item as usize], true) {
            self.layers[self.layer_of[item as usize] as usize].counted += 1;
        }
    }

    fn share(&self) -> usize {
        self.slots / self.layers.len().max(1)
    }

    fn spread(&mut self) {
        let share = self.share();
        for layer in &mut self.layers {
            layer.policy.set_capacity(share);
        }
    }

    fn victim_in(&mut self, layer: usize) -> Option<u32> {
        let layer = &mut self.layers[layer];
        layer.policy.victim().map(|local| layer.members[local as usize])
    }
}

impl Policy for PerLayer {
    fn kind(&self) -> PolicyKind {
        self.kind
    }

    #[allow(clippy::cast_possible_truncation)] // items and layers are numbered by u32
    fn add_model(&mut self, positions: &[u32]) {
        let first = self.layers.len();
        let layers = positions.iter().max().map_or(0, |&last| last as usize + 1);
        self.layers.extend((0..layers).map(|_| Layer {
            policy: self.kind.create(),
            members: Vec::new(),
            counted: 0,
        }));
        for &position in positions {
            let layer = first + position as usize;
            self.local.push(self.layers[layer].members.len() as u32);
            self.layers[layer].members.push(self.layer_of.len() as u32);
            self.layer_of.push(layer as u32);
            self.counted.push(false);
        }
        for layer in &mut self.layers[first..] {
            layer.policy.add_model(&vec![0; layer.members.len()]);
            self.scratch.reserve(layer.members.len());
        }
        self.spread();
    }

    fn set_capacity(&mut self, slots: usize) {
        self.slots = slots;
        self.spread();
    }

    fn weigh(&mut self, item: u32, weight: f32) {
        let (layer, local) = self.layer(item);
        layer.policy.weigh(local, weight);
    }

    fn distance(&self, item: u32) -> f64 {
        let layer = &self.layers[self.layer_of[item as usize] as usize];
        layer.policy.distance(self.local[item as usize])
    }

    fn visit(&mut self, items: &[u32]) {
        items.iter().for_each(|&item| self.count(item));
        let mut set = std::mem::take(&mut self.scratch);
        let mut from = 0;
        while from < items.len() {
            let layer = self.layer_of[items[from] as usize];
            let run = items[from..].iter().take_while(|&&item| self.layer_of[item as usize] == layer).count();
            set.clear();
            set.extend(items[from..from + run].iter().map(|&item| self.local[item as usize]));
            self.layers[layer as usize].policy.visit(&set);
            from += run;
        }
        self.scratch = set;
    }

    fn insert(&mut self, item: u32) {
        self.count(item);
        let (layer, local) = self.layer(item);
        layer.policy.insert(local);
    }

    fn remove(&mut self, item: u32) {
        let (layer, local) = self.layer(item);
        layer.policy.remove(local);
    }

    fn left(&mut self, item: u32) {
        let was_counted = std::mem::replace(&mut self.counted[item as usize], false);
        let (layer, local) = self.layer(item);
        layer.counted -= usize::from(was_counted);
        layer.policy.left(local);
    }

    fn victim(&mut self) -> Option<u32> {
        let fullest = (0..self.layers.len()).max_by_key(|&layer| self.layers[layer].counted)?;
        if let Some(victim) = self.victim_in(fullest) {
            return Some(victim);
        }
        // Everything of it is leased: the fullest of those that can give.
        let mut best: Option<(usize, u32)> = None;
        for layer in 0..self.layers.len() {
            let counted = self.layers[layer].counted;
            if best.is_none_or(|(most, _)| counted > most)
                && let Some(victim) = self.victim_in(layer)
            {
                best = Some((counted, victim));
            }
        }
        best.map(|(_, victim)| victim)
    }

    fn victim_for(&mut self, item: u32) -> Option<u32> {
        let own = self.layer_of[item as usize] as usize;
        // The item itself is counted: it was visited.
        if self.layers[own].counted > self.share() {
            return self.victim_in(own).or_else(|| self.victim());
        }
        self.victim()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_made_in_the_layer_that_has_its_share() {
        let mut policy = PerLayer::new(PolicyKind::Lru);
        policy.add_model(&[0, 0, 0, 1, 1, 1]);
        policy.set_capacity(4);
        for item in [3, 0, 1, 4] {
            policy.visit(&[item]);
            policy.insert(item);
        }
        policy.visit(&[2]);
        assert_eq!(policy.victim_for(2), Some(0));
        policy.visit(&[5]);
        assert_eq!(policy.victim_for(5), Some(3));
        for item in [0, 1] {
            policy.remove(item);
        }
        assert_eq!(policy.victim_for(2), Some(3), "its own layer has nothing that may leave");
        policy.remove(3);
        policy.remove(4);
        policy.insert(0);
        policy.visit(&[4, 5]);
        assert_eq!(policy.victim_for(4), Some(0), "the fullest layer has nothing that may leave");
    }
}
