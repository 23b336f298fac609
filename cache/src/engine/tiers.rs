//! Groups on their way between slots and the host tier.

use super::Core;
use crate::slots::state::State;
use crate::stats::Cause;
use crate::stats::layout::Counter;
use crate::tier::Leaving;
use spoc_bridge::{GivenBack, Kept};
use std::sync::Arc;

impl Core {
    /// What the tier has of an item, for a fill that is about to begin.
    pub(super) fn held(&mut self, item: u32) -> Option<Arc<Kept>> {
        let kept = self.tier.as_mut()?.find(item)?;
        self.counters.add(Counter::TierHits, 1);
        Some(kept)
    }

    /// A slot's group is about to leave it, whole and valid.
    pub(super) fn demote(&mut self, slot: u32, cause: Cause) {
        if self.tier.is_none() || cause == Cause::Closed {
            return;
        }
        if self.table.get(slot).leaving {
            // Memory that is being given back must not wait for one more copy.
            return self.counters.add(Counter::TierDroppedLeaving, 1);
        }
        self.keep(slot);
    }

    /// Every copy of a fill is enqueued, and its event recorded: the group is in its slot.
    pub(super) fn promoted(&mut self, slot: u32) {
        let entry = self.table.get(slot);
        let (item, from_tier) = (entry.item, entry.from_tier);
        let Some(tier) = &mut self.tier else { return };
        match (from_tier, tier.is_inclusive()) {
            (true, inclusive) => {
                self.counters.add(Counter::TierOutBytes, self.models.item(item).slot_bytes);
                if !inclusive {
                    tier.forget(item);
                }
            }
            (false, true) => self.keep(slot),
            (false, false) => {}
        }
    }

    /// A fill went wrong on the device's side, or its bytes are not wanted any more: what the tier has is not trusted.
    pub(super) fn distrust(&mut self, item: u32) {
        if let Some(tier) = &mut self.tier {
            tier.forget(item);
        }
    }

    fn keep(&mut self, slot: u32) {
        let entry = self.table.get(slot);
        let valid = matches!(self.table.state(slot), State::Resident | State::Leased | State::Draining);
        let place = self.arena.place(slot);
        let (Some(tier), Some(segment), true) = (&mut self.tier, self.arena.segment(place.segment), valid)
        else {
            return;
        };
        let item = self.models.item(entry.item);
        let stride_bytes = self.pools[entry.class as usize].stride_bytes;
        tier.keep(&Leaving {
            item: entry.item,
            slot,
            class: entry.class as usize,
            segment: &segment,
            offset_bytes: place.offset_bytes,
            len_bytes: item.slot_bytes.next_multiple_of(crate::arena::SLOT_ALIGN_BYTES).min(stride_bytes),
            ready: (!entry.settled).then_some(&entry.ready),
        });
    }

    /// See [`SlotCache::give_back_tier`](crate::SlotCache::give_back_tier).
    pub fn give_back_tier(&mut self, bytes: u64) -> Vec<GivenBack> {
        self.tier.as_mut().map_or_else(Vec::new, |tier| tier.give_back(bytes))
    }
}
