//! W-TinyLFU (Einziger et al., 2017): a small window of what is new, behind it a segmented LRU that only lets in what
//! is used more often than what would leave for it. For comparison.

use super::list::{Links, Queue};
use super::{Policy, PolicyKind};

/// A window of 1 % of the pool; of the rest, a fifth is on probation. Frequencies are exact counts (items are dense, a
/// sketch would save nothing), halved after ten uses a slot.
#[derive(Debug, Default)]
pub struct WTinyLfu {
    capacity: usize,
    links: Links,
    window: Queue,
    probation: Queue,
    protected: Queue,
    items: Vec<Entry>,
    resident: usize,
    uses: usize,
    /// Room had to be made: from now on what is new has to earn its place.
    was_full: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    place: Place,
    frequency: u32,
    listed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Place {
    #[default]
    Nowhere,
    Window,
    Probation,
    Protected,
}

impl WTinyLfu {
    fn slots(&self) -> usize {
        if self.capacity > 0 { self.capacity } else { self.resident.max(1) }
    }

    fn window_slots(&self) -> usize {
        (self.slots() / 100).max(1)
    }

    fn queue(&mut self, place: Place) -> Option<&mut Queue> {
        match place {
            Place::Nowhere => None,
            Place::Window => Some(&mut self.window),
            Place::Probation => Some(&mut self.probation),
            Place::Protected => Some(&mut self.protected),
        }
    }

    fn move_to(&mut self, item: u32, place: Place) {
        let before = std::mem::replace(&mut self.items[item as usize].place, place);
        let mut links = std::mem::take(&mut self.links);
        if let Some(queue) = self.queue(before) {
            queue.remove(item, &mut links);
        }
        if let Some(queue) = self.queue(place) {
            queue.push(item, &mut links);
        }
        self.links = links;
    }

    fn used(&mut self, item: u32) {
        match self.items[item as usize].place {
            Place::Nowhere => {}
            Place::Window => self.move_to(item, Place::Window),
            Place::Probation | Place::Protected => {
                self.move_to(item, Place::Protected);
                let most = (self.slots() - self.window_slots().min(self.slots())) * 4 / 5;
                if self.protected.len() > most
                    && let Some(oldest) = self.protected.head()
                {
                    self.move_to(oldest, Place::Probation);
                }
            }
        }
    }

    fn first_listed(&self, queue: &Queue) -> Option<u32> {
        let mut at = queue.head();
        while let Some(item) = at.filter(|&item| !self.items[item as usize].listed) {
            at = queue.after(item, &self.links);
        }
        at
    }

    fn age(&mut self) {
        if self.uses >= 10 * self.slots() {
            self.uses /= 2;
            for entry in &mut self.items {
                entry.frequency /= 2;
            }
        }
    }
}

impl Policy for WTinyLfu {
    fn kind(&self) -> PolicyKind {
        PolicyKind::WTinyLfu
    }

    fn add_model(&mut self, positions: &[u32]) {
        let items = self.items.len() + positions.len();
        self.items.resize(items, Entry::default());
        self.links.grow(items);
    }

    fn set_capacity(&mut self, slots: usize) {
        self.was_full &= slots <= self.capacity;
        self.capacity = slots;
    }

    fn visit(&mut self, items: &[u32]) {
        for &item in items {
            self.items[item as usize].frequency += 1;
            self.uses += 1;
            self.used(item);
        }
        self.age();
    }

    fn insert(&mut self, item: u32) {
        self.items[item as usize].listed = true;
        if self.items[item as usize].place == Place::Nowhere {
            self.resident += 1;
            self.move_to(item, Place::Window);
        }
        if !self.was_full
            && self.window.len() > self.window_slots()
            && let Some(oldest) = self.window.head()
        {
            self.move_to(oldest, Place::Probation);
        }
    }

    fn remove(&mut self, item: u32) {
        self.items[item as usize].listed = false;
    }

    fn left(&mut self, item: u32) {
        self.items[item as usize].listed = false;
        if self.items[item as usize].place != Place::Nowhere {
            self.resident -= 1;
            self.move_to(item, Place::Nowhere);
        }
    }

    fn victim(&mut self) -> Option<u32> {
        self.was_full = true;
        // What the window has no room for asks to come in behind it.
        while self.window.len() >= self.window_slots()
            && let Some(item) = self.window.head()
        {
            let main = self.first_listed(&self.probation).or_else(|| self.first_listed(&self.protected));
            match main {
                Some(main) if self.items[item as usize].listed => {
                    let (new, old) =
                        (self.items[item as usize].frequency, self.items[main as usize].frequency);
                    if new <= old {
                        return Some(item);
                    }
                    self.move_to(item, Place::Probation);
                    return Some(main);
                }
                _ => self.move_to(item, Place::Probation),
            }
        }
        self.first_listed(&self.probation)
            .or_else(|| self.first_listed(&self.protected))
            .or_else(|| self.first_listed(&self.window))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_often_is_not_pushed_out_by_what_is_new() {
        let mut policy = WTinyLfu::default();
        policy.add_model(&[0; 8]);
        policy.set_capacity(3);
        for item in [0, 1] {
            for _ in 0..3 {
                policy.visit(&[item]);
                policy.insert(item);
            }
        }
        for item in 2..8 {
            policy.visit(&[item]);
            if policy.resident == 3 {
                let victim = policy.victim().expect("one is listed");
                assert!(victim >= 2, "{victim} left for {item}");
                policy.remove(victim);
                policy.left(victim);
            }
            policy.insert(item);
        }
    }
}
