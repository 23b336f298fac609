//! What the core should do, in as few lines as possible: lists and searches, lru.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Set {
    Queued,
    Reserved,
    Failed,
}

/// Keys are group numbers, sets are named by the test.
#[derive(Debug)]
pub struct Reference {
    pub slots: usize,
    /// Resident without a lease, oldest first.
    pub idle: Vec<u32>,
    pub leased: BTreeMap<u32, u32>,
    /// Who waits for what is loading.
    pub loading: BTreeMap<u32, Vec<usize>>,
    /// What is loading for nobody in particular: it goes on without waiters.
    kept: BTreeSet<u32>,
    /// Slots of fills that failed or were given up, until their copies have ended.
    pub dying: usize,
    pub sets: BTreeMap<usize, (Vec<u32>, Set)>,
    queue: Vec<usize>,
    pub hits: u64,
    pub misses: u64,
}

impl Reference {
    pub fn new(slots: usize) -> Reference {
        Reference {
            slots,
            idle: Vec::new(),
            leased: BTreeMap::new(),
            loading: BTreeMap::new(),
            kept: BTreeSet::new(),
            dying: 0,
            sets: BTreeMap::new(),
            queue: Vec::new(),
            hits: 0,
            misses: 0,
        }
    }

    fn free(&self) -> usize {
        self.slots - self.idle.len() - self.leased.len() - self.loading.len() - self.dying
    }

    pub fn open(&mut self, name: usize, keys: Vec<u32>) {
        self.sets.insert(name, (keys, Set::Queued));
        self.queue.push(name);
        self.serve();
    }

    pub fn serve(&mut self) {
        while let Some(&name) = self.queue.first() {
            let keys = self.sets[&name].0.clone();
            let there = |key: &&u32| self.idle.contains(key) || self.leased.contains_key(key);
            let hits: Vec<u32> = keys.iter().filter(there).copied().collect();
            let idle_hits = hits.iter().filter(|key| self.idle.contains(key)).count();
            let new: Vec<u32> = keys
                .iter()
                .filter(|key| !hits.contains(key) && !self.loading.contains_key(key))
                .copied()
                .collect();
            if new.len() > self.free() + self.idle.len() - idle_hits {
                return;
            }
            self.queue.remove(0);
            self.hits += hits.len() as u64;
            self.misses += (keys.len() - hits.len()) as u64;
            hits.iter().for_each(|&key| self.lease(key));
            for &key in &keys {
                if new.contains(&key) {
                    if self.free() == 0 {
                        self.idle.remove(0);
                    }
                    self.loading.insert(key, vec![name]);
                } else if let Some(waiters) = self.loading.get_mut(&key) {
                    waiters.push(name);
                }
            }
            self.sets.get_mut(&name).unwrap().1 = Set::Reserved;
        }
    }

    fn lease(&mut self, key: u32) {
        self.idle.retain(|&idle| idle != key);
        *self.leased.entry(key).or_default() += 1;
    }

    fn give_back(&mut self, key: u32) {
        let count = self.leased.get_mut(&key).unwrap();
        *count -= 1;
        if *count == 0 {
            self.leased.remove(&key);
            self.idle.push(key);
        }
    }

    pub fn ready(&self, name: usize) -> bool {
        self.sets[&name].1 == Set::Reserved && !self.loading.values().any(|waiters| waiters.contains(&name))
    }

    /// Leases what is there, begins to read up to `most` of what is not. Answers what is missing.
    pub fn claim(&mut self, name: usize, keys: &[u32], most: usize) -> Vec<u32> {
        let there = |key: &u32| self.idle.contains(key) || self.leased.contains_key(key);
        let (hits, missing): (Vec<u32>, Vec<u32>) = keys.iter().partition(|key| there(key));
        self.hits += hits.len() as u64;
        self.misses += missing.len() as u64;
        hits.iter().for_each(|&key| self.lease(key));
        self.sets.insert(name, (hits, Set::Reserved));
        let new = missing.iter().filter(|key| !self.loading.contains_key(key)).copied().collect::<Vec<_>>();
        for key in new.into_iter().take(most) {
            if !self.queue.is_empty() || self.free() + self.idle.len() == 0 {
                break;
            }
            if self.free() == 0 {
                self.idle.remove(0);
            }
            self.loading.insert(key, Vec::new());
            self.kept.insert(key);
        }
        missing
    }

    /// Slots go: what is idle in them leaves, sets that cannot fit any more are told.
    pub fn shrink(&mut self, lost: &[u32], unused: usize, have: usize) {
        self.idle.retain(|key| !lost.contains(key));
        self.slots -= lost.len() + unused;
        let wide = |name: &usize| self.sets[name].0.len() > have;
        for name in self.queue.extract_if(.., |name| wide(name)).collect::<Vec<_>>() {
            self.sets.get_mut(&name).unwrap().1 = Set::Failed;
        }
        self.serve();
    }

    pub fn set_slots(&mut self, slots: usize) {
        self.slots = slots;
        self.serve();
    }

    pub fn published(&mut self, key: u32) {
        self.kept.remove(&key);
        let waiters = self.loading.remove(&key).unwrap();
        if waiters.is_empty() {
            self.idle.push(key);
            self.serve();
        }
        waiters.iter().for_each(|_| self.lease(key));
    }

    pub fn failed(&mut self, key: u32) {
        self.dying += 1;
        self.kept.remove(&key);
        for name in self.loading.remove(&key).unwrap() {
            self.revoke(name, Some(key));
            self.sets.get_mut(&name).unwrap().1 = Set::Failed;
        }
        self.serve();
    }

    /// A fill ended; `dying` if it was not published.
    pub fn ended(&mut self, dying: bool) {
        self.dying -= usize::from(dying);
        self.serve();
    }

    /// The owner of a set goes away: a lease comes back, or what it waited for is given up.
    pub fn close(&mut self, name: usize) {
        self.revoke(name, None);
        self.sets.remove(&name);
        self.serve();
    }

    fn revoke(&mut self, name: usize, but: Option<u32>) {
        self.queue.retain(|&queued| queued != name);
        let (keys, state) = self.sets[&name].clone();
        for key in keys.into_iter().filter(|&key| state == Set::Reserved && Some(key) != but) {
            match self.loading.get_mut(&key) {
                Some(waiters) => {
                    waiters.retain(|&waiter| waiter != name);
                    if waiters.is_empty() && !self.kept.contains(&key) {
                        self.loading.remove(&key);
                        self.dying += 1;
                    }
                }
                None => self.give_back(key),
            }
        }
    }
}
