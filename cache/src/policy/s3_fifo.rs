//! S3-FIFO (Yang et al., SOSP 2023): a small queue for what is new, a main one for what was used again, and a
//! memory of what left the small one early. For comparison.

use super::list::{Links, Queue};
use super::{Policy, PolicyKind};

/// Evicts from the small queue while it has more than a tenth of the pool, else from the main one; items that were
/// used meanwhile go round (main) or move up (small). What left the small queue and comes back goes to the main one.
#[derive(Debug, Default)]
pub struct S3Fifo {
    capacity: usize,
    links: Links,
    small: Queue,
    main: Queue,
    ghosts: Queue,
    items: Vec<Entry>,
    /// Items in the pool.
    resident: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    place: Place,
    /// Uses since it came into its queue, at most 3.
    uses: u8,
    /// May leave now.
    listed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Place {
    #[default]
    Nowhere,
    Small,
    Main,
    Ghost,
}

const USES_MAX: u8 = 3;

impl S3Fifo {
    fn slots(&self) -> usize {
        // Without being told, the pool is what it holds.
        if self.capacity > 0 { self.capacity } else { self.resident.max(1) }
    }

    fn move_to_main(&mut self, item: u32) {
        self.main.push(item, &mut self.links);
        let entry = &mut self.items[item as usize];
        (entry.place, entry.uses) = (Place::Main, 0);
    }

    /// The first of the small queue that may leave and was not used again; those that were move up on the way.
    fn leaving_small(&mut self) -> Option<u32> {
        let mut at = self.small.head();
        while let Some(item) = at {
            at = self.small.after(item, &self.links);
            let entry = self.items[item as usize];
            if entry.uses > 1 {
                self.small.remove(item, &mut self.links);
                self.move_to_main(item);
            } else if entry.listed {
                return Some(item);
            }
        }
        None
    }

    /// The first of the main queue that may leave and has no use left; the others go round with one use less.
    fn leaving_main(&mut self) -> Option<u32> {
        // Every pass takes a use from each: after four, one that may leave is found or there is none.
        for _ in 0..(usize::from(USES_MAX) + 1) * self.main.len() {
            let item = self.main.head()?;
            let entry = &mut self.items[item as usize];
            if entry.uses == 0 && entry.listed {
                return Some(item);
            }
            entry.uses = entry.uses.saturating_sub(1);
            self.main.remove(item, &mut self.links);
            self.main.push(item, &mut self.links);
        }
        None
    }
}

impl Policy for S3Fifo {
    fn kind(&self) -> PolicyKind {
        PolicyKind::S3Fifo
    }

    fn add_model(&mut self, positions: &[u32]) {
        let items = self.items.len() + positions.len();
        self.items.resize(items, Entry::default());
        self.links.grow(items);
    }

    fn set_capacity(&mut self, slots: usize) {
        self.capacity = slots;
    }

    fn visit(&mut self, items: &[u32]) {
        for &item in items {
            let entry = &mut self.items[item as usize];
            entry.uses = (entry.uses + 1).min(USES_MAX);
        }
    }

    fn insert(&mut self, item: u32) {
        let entry = &mut self.items[item as usize];
        entry.listed = true;
        match entry.place {
            Place::Small | Place::Main => return,
            Place::Ghost => {
                self.ghosts.remove(item, &mut self.links);
                self.move_to_main(item);
            }
            Place::Nowhere => {
                (entry.place, entry.uses) = (Place::Small, 0);
                self.small.push(item, &mut self.links);
            }
        }
        self.resident += 1;
    }

    fn remove(&mut self, item: u32) {
        self.items[item as usize].listed = false;
    }

    fn left(&mut self, item: u32) {
        let entry = &mut self.items[item as usize];
        entry.listed = false;
        match entry.place {
            Place::Small => {
                entry.place = Place::Ghost;
                self.small.remove(item, &mut self.links);
                self.ghosts.push(item, &mut self.links);
            }
            Place::Main => {
                entry.place = Place::Nowhere;
                self.main.remove(item, &mut self.links);
            }
            Place::Ghost | Place::Nowhere => return,
        }
        self.resident -= 1;
        if self.ghosts.len() > self.slots() * 9 / 10
            && let Some(forgotten) = self.ghosts.pop(&mut self.links)
        {
            self.items[forgotten as usize].place = Place::Nowhere;
        }
    }

    fn victim(&mut self) -> Option<u32> {
        let first_small = self.small.len() * 10 >= self.slots().max(10);
        let chosen = if first_small { self.leaving_small() } else { self.leaving_main() };
        chosen.or_else(|| self.leaving_main()).or_else(|| self.leaving_small())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_use_leaves_first_and_a_comeback_stays() {
        let mut policy = S3Fifo::default();
        policy.add_model(&[0; 6]);
        policy.set_capacity(4);
        for item in 0..4 {
            policy.visit(&[item]);
            policy.insert(item);
        }
        policy.visit(&[0]);
        policy.visit(&[0]);
        assert_eq!(policy.victim(), Some(1), "0 was used again and moves up");
        policy.remove(1);
        policy.left(1);
        policy.visit(&[1]);
        policy.insert(1);
        assert_eq!(policy.items[1].place, Place::Main, "remembered");
        for item in [2, 3] {
            assert_eq!(policy.victim(), Some(item));
            policy.remove(item);
            policy.left(item);
        }
        assert!(policy.victim().is_some());
        policy.remove(0);
        policy.remove(1);
        assert_eq!(policy.victim(), None, "both are leased");
    }
}
