//! The slots of a cache: flat records, every change of state through one method.

pub mod state;

use crate::pump::JobId;
use crate::stats::Counters;
use crate::stats::layout as at;
use spoc_driver::Event;
use state::{State, Step};

/// No item, no slot, no ticket.
pub(crate) const NONE: u32 = u32::MAX;

/// One slot.
#[derive(Debug)]
pub(crate) struct Slot {
    state: State,
    /// Fills so far: what belonged to an earlier fill is recognised by it.
    pub generation: u64,
    /// What it holds or loads; [`NONE`] once the item lost the slot.
    pub item: u32,
    pub leases: u32,
    /// Whether the copies of the current fill are known to have run.
    pub settled: bool,
    /// The running fill's job, until the pump said that nothing of it is in flight.
    pub job: Option<JobId>,
    /// Sets that wait for the running fill.
    pub waiters: Vec<u32>,
    /// Releases whose events may not have fired: launches that may still read this memory.
    pub drains: Vec<u32>,
    /// Recorded on the copy stream behind the last copy of the fill.
    pub ready: Event,
    pub bytes: u64,
    pub uses: u64,
}

/// All slots of a cache.
#[derive(Debug)]
pub(crate) struct SlotTable {
    slots: Vec<Slot>,
    counts: [u64; State::ALL.len()],
    counters: Counters,
}

impl SlotTable {
    pub fn new(events: Vec<Event>, counters: Counters) -> SlotTable {
        let slots: Vec<Slot> = events
            .into_iter()
            .map(|ready| Slot {
                state: State::Free,
                generation: 0,
                item: NONE,
                leases: 0,
                settled: true,
                job: None,
                waiters: Vec::with_capacity(4),
                drains: Vec::with_capacity(4),
                ready,
                bytes: 0,
                uses: 0,
            })
            .collect();
        let mut counts = [0; State::ALL.len()];
        counts[State::Free as usize] = slots.len() as u64;
        SlotTable { slots, counts, counters }
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn get(&self, slot: u32) -> &Slot {
        &self.slots[slot as usize]
    }

    pub fn get_mut(&mut self, slot: u32) -> &mut Slot {
        &mut self.slots[slot as usize]
    }

    pub fn state(&self, slot: u32) -> State {
        self.slots[slot as usize].state
    }

    pub fn counts(&self) -> [u64; State::ALL.len()] {
        self.counts
    }

    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter()
    }

    /// The only way a slot changes its state.
    ///
    /// A forbidden step is a defect of this crate: tests stop at it, a running engine keeps the slot as it was
    /// (at worst the slot is lost) and says so.
    pub fn step(&mut self, slot: u32, step: Step) {
        let entry = &mut self.slots[slot as usize];
        let Some(next) = state::next(entry.state, step) else {
            tracing::error!(slot, state = %entry.state, ?step, "forbidden step of a slot");
            debug_assert!(false, "slot {slot}: {step:?} in state {}", entry.state);
            return;
        };
        self.counts[entry.state as usize] -= 1;
        self.counts[next as usize] += 1;
        entry.state = next;
        if step == Step::Reserve {
            entry.generation += 1;
            entry.uses = 0;
        }
        let word = (entry.generation << 8) | u64::from(next as u8);
        self.counters.slot(slot, &[(at::R_GENERATION_STATE, word)]);
    }

    /// Writes who is in the slot to the statistics page.
    pub fn describe(&self, slot: u32, key_word: u64, layer: u32) {
        let entry = &self.slots[slot as usize];
        let leases_layer = (u64::from(entry.leases) << 32) | u64::from(layer);
        self.counters.slot(
            slot,
            &[(at::R_KEY, key_word), (at::R_BYTES, entry.bytes), (at::R_LEASES_LAYER, leases_layer)],
        );
    }

    /// Writes that the slot was used now.
    pub fn used(&mut self, slot: u32, layer: u32) {
        let now = self.counters.now_ns();
        let entry = &mut self.slots[slot as usize];
        entry.uses += 1;
        let leases_layer = (u64::from(entry.leases) << 32) | u64::from(layer);
        self.counters.slot(
            slot,
            &[(at::R_LAST_USE_NS, now), (at::R_USES, entry.uses), (at::R_LEASES_LAYER, leases_layer)],
        );
    }
}
