//! General caches that an engine might take instead, asked for the same keys.

use std::hint::black_box;

use spoc_cache::Key;

use crate::setup::SET;

/// Each holds a slot's number for every key.
pub struct Rivals {
    quick_cache: quick_cache::sync::Cache<(u32, u32), u32>,
    moka: moka::sync::Cache<(u32, u32), u32>,
}

impl Rivals {
    pub fn new(resident: &[Key]) -> Rivals {
        let room = 2 * resident.len();
        let rivals = Rivals {
            quick_cache: quick_cache::sync::Cache::new(room),
            moka: moka::sync::Cache::new(room as u64),
        };
        for (key, slot) in resident.iter().zip(0..) {
            rivals.quick_cache.insert((key.model.0, key.group), slot);
            rivals.moka.insert((key.model.0, key.group), slot);
        }
        rivals.moka.run_pending_tasks();
        rivals
    }

    pub fn quick_cache(&self, set: &[Key; SET]) {
        for key in set {
            black_box(self.quick_cache.get(&(key.model.0, key.group)));
        }
    }

    pub fn moka(&self, set: &[Key; SET]) {
        for key in set {
            black_box(self.moka.get(&(key.model.0, key.group)));
        }
    }
}
