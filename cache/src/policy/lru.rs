//! Least recently used: a list through two arrays, every call O(1).

use super::{Policy, PolicyKind};

const NONE: u32 = u32::MAX;

/// Evicts what was given back longest ago.
#[derive(Debug)]
pub struct Lru {
    next: Vec<u32>,
    previous: Vec<u32>,
    listed: Vec<bool>,
    oldest: u32,
    newest: u32,
}

impl Default for Lru {
    fn default() -> Lru {
        Lru { next: Vec::new(), previous: Vec::new(), listed: Vec::new(), oldest: NONE, newest: NONE }
    }
}

impl Policy for Lru {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Lru
    }

    fn add_model(&mut self, positions: &[u32]) {
        let items = self.next.len() + positions.len();
        self.next.resize(items, NONE);
        self.previous.resize(items, NONE);
        self.listed.resize(items, false);
    }

    fn visit(&mut self, _items: &[u32]) {}

    fn insert(&mut self, item: u32) {
        let at = item as usize;
        if std::mem::replace(&mut self.listed[at], true) {
            return;
        }
        self.previous[at] = self.newest;
        self.next[at] = NONE;
        match self.newest {
            NONE => self.oldest = item,
            newest => self.next[newest as usize] = item,
        }
        self.newest = item;
    }

    fn remove(&mut self, item: u32) {
        let at = item as usize;
        if !std::mem::replace(&mut self.listed[at], false) {
            return;
        }
        let (previous, next) = (self.previous[at], self.next[at]);
        match previous {
            NONE => self.oldest = next,
            previous => self.next[previous as usize] = next,
        }
        match next {
            NONE => self.newest = previous,
            next => self.previous[next as usize] = previous,
        }
    }

    fn victim(&mut self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::super::replay::{toy_trace, union_hits};
    use super::*;

    #[test]
    fn oldest_first_and_reinsertion_renews() {
        let mut lru = Lru::default();
        lru.add_model(&[0; 4]);
        for item in [0, 1, 2, 3] {
            lru.insert(item);
        }
        assert_eq!(lru.victim(), Some(0));
        lru.remove(0);
        lru.insert(0);
        assert_eq!(lru.victim(), Some(1));
        for item in [1, 2, 3] {
            lru.remove(item);
            lru.remove(item);
        }
        assert_eq!(lru.victim(), Some(0));
        lru.remove(0);
        assert_eq!(lru.victim(), None);
    }

    /// Worked by hand in `replay::toy_trace`.
    #[test]
    fn toy_trace_by_hand() {
        let (events, positions) = toy_trace();
        let hits = union_hits(&mut Lru::default(), &positions, &events, 3);
        assert_eq!(hits, vec![0, 0, 1, 0, 1, 1, 0, 1, 0, 0]);
    }
}
