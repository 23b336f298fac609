//! Random schedules: acquire, claim, launch, release, drop, give up, cancel, fail, resize, deliver, let the device run,
//! in any order.
//!
//! After every action the core agrees with the reference. Every launch is a deferred read of the slot between
//! the acquire's wait and the release's event: if any copy could overtake it, some schedule reads the bytes of
//! another group.

use super::harness::{Did, GROUP_BYTES, GROUPS, Harness, SLOT_BYTES, bytes_of, read_error};
use super::reference::{Reference, Set};
use crate::cache::CacheOptions;
use crate::engine::TicketState;
use crate::lease::{Acquire, Lease, Pending};
use crate::policy::PolicyKind;
use crate::slots::NONE;
use crate::slots::state::State;
use crate::stats::layout::Counter;
use crate::tier::TierOptions;
use spoc_driver::{PendingRead, Stream, StreamOptions};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

/// xorshift: the seed of a failing schedule is printed, and is all that is needed to run it again.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 11) % bound as u64).unwrap()
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        if from.is_empty() { None } else { Some(from[self.below(from.len())]) }
    }
}

enum Held {
    Pending(Pending<Rc<Stream>>),
    Lease(Lease<Rc<Stream>>),
}

struct Run {
    random: Random,
    harness: Harness,
    reference: Option<Reference>,
    streams: Vec<Rc<Stream>>,
    held: BTreeMap<usize, (Vec<u32>, Held)>,
    names: usize,
    /// Launches: what they read, and what they must find.
    reads: Vec<(u32, PendingRead<Vec<u8>>)>,
    slots: u32,
    tiered: bool,
}

impl Run {
    fn new(seed: u64, slots: u32, policy: PolicyKind, tier: TierOptions) -> Run {
        // A slot a segment, and room for two more: so that slots can come and go.
        let options = CacheOptions {
            policy,
            slots_max: slots + 2,
            segment_bytes: SLOT_BYTES,
            tier,
            ..CacheOptions::default()
        };
        let harness = Harness::with(slots, options);
        let stream = || Rc::new(harness.device.create_stream(StreamOptions::default()).unwrap());
        let streams = vec![stream(), stream()];
        // The reference knows lru only; the device's findings are checked for every policy.
        let reference = (policy == PolicyKind::Lru).then(|| Reference::new(slots as usize));
        let random = Random::new(seed);
        let (held, reads) = (BTreeMap::new(), Vec::new());
        Run { random, harness, reference, streams, held, names: 0, reads, slots, tiered: tier.bytes > 0 }
    }

    fn acquire(&mut self) {
        let most = self.harness.cache.slots(0).unwrap() as usize;
        let groups = self.some_groups(most.min(GROUPS as usize));
        let mut keys: Vec<_> = groups.iter().map(|&group| self.harness.keys[group as usize]).collect();
        // A key named twice counts once.
        keys.push(keys[0]);
        let stream = Rc::clone(&self.streams[self.random.below(2)]);
        let name = self.names;
        self.names += 1;
        if let Some(reference) = &mut self.reference {
            reference.open(name, groups.clone());
        }
        let held = match self.harness.cache.acquire(&keys, stream).unwrap() {
            Acquire::Ready(lease) => Held::Lease(lease),
            Acquire::Pending(pending) => Held::Pending(pending),
        };
        self.held.insert(name, (groups, held));
    }

    /// Looks at a set that waits; a ready one becomes a lease, a failed one goes.
    fn look(&mut self, name: usize) {
        let pending = self.held.extract_if(name..=name, |_, (_, held)| matches!(held, Held::Pending(_)));
        let Some((_, (groups, Held::Pending(pending)))) = { pending }.next() else { return };
        let expected = self
            .reference
            .as_ref()
            .map(|reference| (reference.ready(name), reference.sets[&name].1 == Set::Failed));
        match pending.try_lease() {
            Ok(Acquire::Ready(lease)) => {
                assert!(expected.is_none_or(|(ready, _)| ready), "set {name} came early");
                self.held.insert(name, (groups, Held::Lease(lease)));
            }
            Ok(Acquire::Pending(pending)) => {
                assert!(expected.is_none_or(|(ready, failed)| !ready && !failed), "set {name} is late");
                self.held.insert(name, (groups, Held::Pending(pending)));
            }
            Err(error) => {
                assert!(expected.is_none_or(|(_, failed)| failed), "set {name} failed: {error}");
                assert!(["io_error", "cancelled", "too_wide"].contains(&error.kind().as_str()), "{error}");
                self.close(name);
            }
        }
    }

    fn close(&mut self, name: usize) {
        if let Some(reference) = &mut self.reference {
            reference.close(name);
        }
    }

    /// A launch on the acquire stream, sometimes a second one on another stream ordered behind it.
    fn launch(&mut self, name: usize) {
        let Some((groups, Held::Lease(lease))) = self.held.get(&name) else { return };
        if groups.is_empty() {
            return;
        }
        if lease.len() > groups.len() {
            assert_eq!(lease.slot(0), lease.slot(groups.len()));
        }
        let index = self.random.below(groups.len());
        let (segment, base) = lease.memory(index).unwrap();
        let len = bytes_of(groups[index]).len();
        let read = lease.stream().copy_to_host(&segment, base, vec![0; len]).unwrap();
        self.reads.push((groups[index], read));
    }

    fn let_go(&mut self, name: usize) {
        let Some((groups, held)) = self.held.remove(&name) else { return };
        match held {
            Held::Pending(pending) => drop(pending),
            Held::Lease(lease) => match self.random.below(3) {
                0 => drop(lease),
                1 if !groups.is_empty() => {
                    let stream = Rc::new(self.harness.device.create_event().unwrap());
                    let own = self.streams.iter().position(|s| s.id() == lease.stream().id()).unwrap();
                    let other = Rc::clone(&self.streams[1 - own]);
                    lease.stream().record(&stream).unwrap();
                    other.wait(&stream).unwrap();
                    let (segment, base) = lease.memory(0).unwrap();
                    let read =
                        other.copy_to_host(&segment, base, vec![0; bytes_of(groups[0]).len()]).unwrap();
                    self.reads.push((groups[0], read));
                    let own = Rc::clone(&self.streams[own]);
                    lease.release(&[&own, &other]).unwrap();
                }
                _ => {
                    let own = self.streams.iter().find(|s| s.id() == lease.stream().id()).unwrap();
                    let own = Rc::clone(own);
                    lease.release(&[&own]).unwrap();
                }
            },
        }
        self.close(name);
    }

    /// Leases what is there of a set.
    fn claim(&mut self) {
        let groups = self.some_groups(4);
        let keys: Vec<_> = groups.iter().map(|&group| self.harness.keys[group as usize]).collect();
        let (stream, most) = (Rc::clone(&self.streams[self.random.below(2)]), self.random.below(3));
        let name = self.names;
        self.names += 1;
        let claim = self.harness.cache.claim(&keys, stream, most).unwrap();
        let missing: Vec<u32> = claim.missing().iter().map(|key| key.group).collect();
        if let Some(reference) = &mut self.reference {
            assert_eq!(reference.claim(name, &groups, most), missing);
        }
        let there: Vec<u32> = groups.iter().copied().filter(|group| !missing.contains(group)).collect();
        for (index, group) in groups.iter().enumerate() {
            assert_eq!(claim.slot(index).is_some(), there.contains(group));
        }
        self.held.insert(name, (there, Held::Lease(claim.into_lease())));
    }

    fn some_groups(&mut self, most: usize) -> Vec<u32> {
        let width = 1 + self.random.below(most);
        let mut groups: Vec<u32> = Vec::new();
        while groups.len() < width {
            let group = u32::try_from(self.random.below(GROUPS as usize)).unwrap();
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
        groups
    }

    /// Ends a fill for everyone who waits for it.
    fn cancel(&mut self) {
        let group = self.random.below(GROUPS as usize);
        let loading = self.harness.cache.shared().with(|core| {
            let slot = core.slot_of[group];
            slot != NONE && core.table.state(slot) == State::Loading
        });
        assert_eq!(self.harness.cache.cancel(&[self.harness.keys[group]]).unwrap(), u32::from(loading));
        if loading && let Some(reference) = &mut self.reference {
            reference.failed(u32::try_from(group).unwrap());
        }
    }

    /// A slot more or one less; what is in use stays, for nobody waits here.
    fn resize(&mut self) {
        let have = self.harness.cache.slots(0).unwrap();
        if self.random.below(2) == 0 {
            if have < self.slots + 2 {
                assert_eq!(self.harness.cache.resize(0, have + 1, None).unwrap(), have + 1);
                if let Some(reference) = &mut self.reference {
                    reference.set_slots(have as usize + 1);
                }
            }
            return;
        }
        if have < 3 {
            return;
        }
        let last = self.harness.cache.arena().segments_of(0).last().unwrap().start;
        let (state, item) =
            self.harness.cache.shared().with(|core| (core.table.state(last), core.table.get(last).item));
        let lost: &[u32] = if matches!(state, State::Resident | State::Draining) { &[item] } else { &[] };
        let left = self.harness.cache.resize(0, have - 1, Some(Instant::now())).unwrap();
        if let Some(reference) = &mut self.reference {
            reference.shrink(lost, usize::from(state == State::Free), have as usize - 1);
            reference.set_slots(left as usize);
        }
    }

    /// The group that a slot loads, before the pump's call changes it.
    fn group_in(&self, index: usize) -> Option<u32> {
        let (slot, _) = self.harness.slot_of_job(index)?;
        self.harness.cache.shared().with(|core| {
            let item = core.table.get(slot).item;
            (item != NONE).then_some(item)
        })
    }

    fn deliver(&mut self, index: usize, fail: bool) {
        let group = self.group_in(index);
        let outcome = if fail { Err(read_error()) } else { Ok(()) };
        let did = self.harness.deliver(index, outcome);
        let Some(reference) = &mut self.reference else { return };
        match did {
            Did::Nothing => {}
            Did::Published => reference.published(group.unwrap()),
            Did::Failed => reference.failed(group.unwrap()),
        }
    }

    fn retire(&mut self, index: usize) {
        // A slot that was published, evicted and failed again is not what this job's end frees.
        let failed = self.harness.slot_of_job(index).is_some_and(|(slot, generation)| {
            self.harness.cache.shared().with(|core| {
                core.table.state(slot) == State::Failed && core.table.get(slot).generation == generation
            })
        });
        if self.harness.retire(index)
            && let Some(reference) = &mut self.reference
        {
            reference.ended(failed);
        }
    }

    fn act(&mut self) {
        let names: Vec<usize> = self.held.keys().copied().collect();
        let jobs = self.harness.jobs();
        match self.random.below(if self.tiered { 20 } else { 19 }) {
            19 if self.random.below(40) == 0 => {
                self.harness.cache.give_back_tier(1);
            }
            16 => self.claim(),
            17 if self.random.below(3) == 0 => self.cancel(),
            18 if self.random.below(3) == 0 => self.resize(),
            0..=2 if names.len() < 6 => self.acquire(),
            3..=4 => self.random.pick(&names).into_iter().for_each(|name| self.look(name)),
            5..=6 => self.random.pick(&names).into_iter().for_each(|name| self.launch(name)),
            7 => self.random.pick(&names).into_iter().for_each(|name| self.let_go(name)),
            8 if self.random.below(4) == 0 => {
                self.random.pick(&jobs).into_iter().for_each(|index| self.deliver(index, true));
            }
            8..=11 => self.random.pick(&jobs).into_iter().for_each(|index| self.deliver(index, false)),
            12 => self.random.pick(&jobs).into_iter().for_each(|index| self.retire(index)),
            13..=14 => {
                let busy = self.harness.control.busy_streams();
                if let Some(stream) = self.random.pick(&busy) {
                    self.harness.control.step(stream);
                }
            }
            _ => self.harness.cache.shared().with(crate::engine::Core::retire_all),
        }
    }

    /// A chunk or two, and some of the device's work: groups must come and leave, and come again.
    fn get_on(&mut self) {
        let jobs = self.harness.jobs();
        if let Some(index) = self.random.pick(&jobs) {
            self.deliver(index, false);
            self.retire(index);
        }
        for _ in 0..self.random.below(4) {
            let busy = self.harness.control.busy_streams();
            if let Some(stream) = self.random.pick(&busy) {
                self.harness.control.step(stream);
            }
        }
        let names: Vec<usize> = self.held.keys().copied().collect();
        if names.len() > 3 {
            self.random.pick(&names).into_iter().for_each(|name| self.let_go(name));
        }
    }

    fn check(&self) {
        self.check_tier();
        let Some(reference) = &self.reference else { return };
        let cache = &self.harness.cache;
        cache.shared().with(|core| {
            for group in 0..GROUPS {
                let slot = core.slot_of[group as usize];
                let leases = reference.leased.get(&group).copied().unwrap_or(0);
                let expected = if reference.loading.contains_key(&group) {
                    "loading"
                } else if leases > 0 {
                    "leased"
                } else if reference.idle.contains(&group) {
                    "idle"
                } else {
                    "absent"
                };
                let found = match slot {
                    NONE => "absent",
                    slot => match core.table.state(slot) {
                        State::Loading => "loading",
                        State::Leased => "leased",
                        State::Resident | State::Draining => "idle",
                        other => panic!("group {group} in a slot that is {other}"),
                    },
                };
                assert_eq!(found, expected, "group {group}");
                if slot != NONE {
                    assert_eq!(core.table.get(slot).leases, leases, "leases of group {group}");
                }
            }
            let counts = core.table.counts();
            assert_eq!(counts[State::Failed as usize], reference.dying as u64);
            assert_eq!(counts.iter().sum::<u64>(), reference.slots as u64);
            assert_eq!(core.pools[0].free.len() as u64, counts[State::Free as usize]);
        });
        let get = |counter| cache.counters().get(counter);
        assert_eq!((get(Counter::Hits), get(Counter::Misses)), (reference.hits, reference.misses));
        assert_eq!(get(Counter::Hits) + get(Counter::Misses), get(Counter::Requested));
    }

    /// What is kept is accounted for, and nothing is in two places but while it moves, or where that was asked for.
    fn check_tier(&self) {
        self.harness.cache.shared().with(|core| {
            let Some(tier) = &core.tier else { return };
            let kept: Vec<u32> = (0..GROUPS).filter(|&group| tier.has(group)).collect();
            let (bytes, room) = tier.bytes();
            assert_eq!(bytes, kept.len() as u64 * KEPT_BYTES);
            assert!(kept.len() as u64 * SLOT_BYTES <= room, "{kept:?} in {room} bytes");
            for group in kept {
                let slot = core.slot_of[group as usize];
                assert!(
                    tier.is_inclusive() || slot == NONE || core.table.state(slot) == State::Loading,
                    "group {group} is in slot {slot} and in the tier"
                );
            }
        });
    }

    /// Lets everything go, in random order, then looks for what is left.
    fn end(mut self) {
        while !self.held.is_empty() {
            let names: Vec<usize> = self.held.keys().copied().collect();
            let name = self.random.pick(&names).unwrap();
            self.let_go(name);
            self.check();
        }
        while let Some(&index) = self.harness.jobs().first() {
            self.deliver(index, false);
            self.harness.control.run_all();
            self.retire(index);
        }
        self.check();
        self.harness.control.run_all();
        for (group, read) in self.reads.drain(..) {
            assert!(read.wait().unwrap() == bytes_of(group), "a launch read another group than {group}");
        }
        self.harness.cache.shared().with(|core| {
            core.retire_all();
            assert!(core.is_quiet(), "something is left over");
        });
        let counters = self.harness.cache.counters().clone();
        let sum = |parts: &[Counter]| parts.iter().map(|&part| counters.get(part)).sum::<u64>();
        assert_eq!(
            sum(&[Counter::Requested]),
            sum(&[Counter::Hits, Counter::Misses]),
            "every key is one or the other"
        );
        let reasons = [Counter::MissesCold, Counter::MissesCapacity, Counter::MissesPolicy, Counter::Joins];
        assert_eq!(sum(&[Counter::Misses]), sum(&reasons), "every miss has one reason");
        let Harness { control, device, cache, copies, feed, .. } = self.harness;
        assert_eq!(control.violations(), Vec::<String>::new());
        drop((cache, copies, feed));
        drop(self.streams);
        assert_eq!(device.memory_in_use(), 0);
        assert_eq!((control.live().segments, control.live().pinned), (0, 0));
    }
}

/// What is copied of a group.
const KEPT_BYTES: u64 = (GROUP_BYTES as u64).next_multiple_of(256);

fn schedules(first: u64, count: u64, policy: PolicyKind) {
    schedules_with(first, count, policy, |_| TierOptions::default());
}

/// Bytes of fills that came from the tier.
fn schedules_with(first: u64, count: u64, policy: PolicyKind, tier: impl Fn(u64) -> TierOptions) -> u64 {
    let mut promoted = 0;
    for seed in first..first + count {
        let slots = 2 + u32::try_from(seed % 4).unwrap();
        let tier = tier(seed);
        let ran = std::panic::catch_unwind(|| {
            let mut run = Run::new(seed, slots, policy, tier);
            for _ in 0..if run.tiered { 400 } else { 120 } {
                run.act();
                run.check();
                if run.tiered {
                    run.get_on();
                    run.check();
                }
            }
            let promoted = run.harness.cache.counters().get(Counter::TierOutBytes);
            run.end();
            promoted
        });
        let ran = ran.unwrap_or_else(|_| panic!("schedule {seed} with {slots} slots, {policy} and {tier:?}"));
        promoted += ran;
    }
    promoted
}

/// Thousands by default; `SPOC_SCHEDULES` asks for more.
pub fn wanted() -> u64 {
    std::env::var("SPOC_SCHEDULES").ok().and_then(|text| text.parse().ok()).unwrap_or(2000)
}

#[test]
fn random_schedules_agree_with_the_reference() {
    schedules(1, wanted(), PolicyKind::Lru);
}

#[test]
fn random_schedules_under_cycle_read_what_they_leased() {
    schedules(1_000_000_000, wanted(), PolicyKind::Cycle);
}

#[test]
fn random_schedules_under_forecast_read_what_they_leased() {
    schedules(2_000_000_000, wanted(), PolicyKind::Forecast);
}

#[test]
fn random_schedules_through_a_host_tier_read_what_they_leased() {
    for inclusive in [false, true] {
        let tier =
            |seed| TierOptions { bytes: (1 + seed % 5) * SLOT_BYTES, inclusive, ..TierOptions::default() };
        let promoted = schedules_with(3_000_000_000, wanted() / 32, PolicyKind::Lru, tier);
        assert!(promoted > wanted() / 32 * SLOT_BYTES, "{promoted} bytes came from the tier");
        schedules_with(4_000_000_000, wanted() / 32, PolicyKind::Forecast, tier);
    }
}

#[test]
fn ticket_states_are_small() {
    // They are cloned at every look.
    assert!(size_of::<TicketState>() <= 32);
}
