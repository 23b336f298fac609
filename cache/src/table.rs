//! The slot table as kernels see it.

use crate::{Key, Result, SlotCache};
use spoc_driver::Segment;

/// Where groups are, in device memory: a 64-bit word each, little endian.
///
/// | bits | |
/// |---|---|
/// | 0..24 | slot |
/// | 24..32 | 3 if the group is there, else 0 and the word is 0 |
/// | 32..64 | generation of the slot: how often it was filled |
///
/// Words are written by the copy stream alone and in its order: a group that leaves is gone from the table before
/// anything else is copied into its slot, one that comes appears behind its copies. A kernel that reads a word sees
/// what was true when it ran, so it must only follow it under a lease, or for groups that are pinned.
#[derive(Debug, Clone)]
pub struct DeviceTable {
    /// The words.
    pub segment: Segment,
    /// How many there are.
    pub groups_max: u32,
}

impl SlotCache {
    /// The slot table in device memory, if the cache was set up with one
    /// ([`CacheOptions::table_groups`](crate::CacheOptions::table_groups)).
    #[must_use]
    pub fn device_table(&self) -> Option<DeviceTable> {
        let (segment, groups_max) = self.shared().with(|core| core.device_table())?;
        Some(DeviceTable { segment, groups_max })
    }

    /// The place of a key's word in the table, for as long as its model is registered.
    ///
    /// # Errors
    /// A stale or unknown key.
    pub fn table_index(&self, key: Key) -> Result<u32> {
        self.shared().with(|core| core.table_index(key))
    }
}
