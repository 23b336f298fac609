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
    /// Fills so far: what belonged to an earlier fill is recognised by it. Also across giving back.
    pub generation: u64,
    /// The class of equal slots that it is of.
    pub class: u32,
    /// Whether there is memory behind it.
    pub exists: bool,
    /// It is to be given back: it is not filled any more.
    pub leaving: bool,
    /// What it holds or loads; [`NONE`] once the item lost the slot.
    pub item: u32,
    pub leases: u32,
    /// Who may choose it as a victim.
    pub listed: Listed,
    /// Somebody who holds no set wants the fill to end: it goes on when the last set gives up.
    pub kept: bool,
    /// Read ahead on a hint, and not wanted by anybody since.
    pub speculative: bool,
    /// When the hint said that it would be wanted at the latest, ns.
    pub hinted_until: u64,
    /// Whether the copies of the current fill are known to have run.
    pub settled: bool,
    /// Whether the current fill came from the host tier.
    pub from_tier: bool,
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

/// Where an item that could leave is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listed {
    /// Nowhere: it may not leave, or is not there.
    No,
    /// The policy may choose it.
    Policy,
    /// Asked to be kept for a while, or read ahead for soon: it leaves when nothing else can.
    Retained,
}

impl Slot {
    fn new(ready: Event, class: u32) -> Slot {
        Slot {
            state: State::Free,
            generation: 0,
            class,
            exists: true,
            leaving: false,
            item: NONE,
            leases: 0,
            listed: Listed::No,
            kept: false,
            speculative: false,
            hinted_until: 0,
            settled: true,
            from_tier: false,
            job: None,
            waiters: Vec::with_capacity(4),
            drains: Vec::with_capacity(4),
            ready,
            bytes: 0,
            uses: 0,
        }
    }
}

/// All slots of a cache.
#[derive(Debug)]
pub(crate) struct SlotTable {
    slots: Vec<Slot>,
    counts: [u64; State::ALL.len()],
    counters: Counters,
}

impl SlotTable {
    pub fn new(counters: Counters) -> SlotTable {
        SlotTable { slots: Vec::new(), counts: [0; State::ALL.len()], counters }
    }

    /// A slot more, or one that was given back and is there again. Slots are added in the order of their numbers.
    pub fn add(
        &mut self,
        slot: u32,
        class: u32,
        ready: impl FnOnce() -> crate::Result<Event>,
    ) -> crate::Result<()> {
        match self.slots.get_mut(slot as usize) {
            Some(entry) => (entry.exists, entry.leaving, entry.class) = (true, false, class),
            None => self.slots.push(Slot::new(ready()?, class)),
        }
        self.counts[State::Free as usize] += 1;
        Ok(())
    }

    /// A free slot loses its memory.
    pub fn remove(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        debug_assert!(entry.exists && entry.state == State::Free);
        (entry.exists, entry.leaving) = (false, false);
        self.counts[State::Free as usize] -= 1;
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn find(&self, slot: u32) -> Option<&Slot> {
        self.slots.get(slot as usize)
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
