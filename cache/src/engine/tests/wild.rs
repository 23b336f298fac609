//! Random schedules with readers, pins, hints and everything else that an engine can want, without a reference: no
//! launch reads another group than it leased, nobody waits for ever, the figures reconcile, nothing is left over.

use super::harness::{GROUPS, Harness, SLOT_BYTES, bytes_of, read_error};
use super::schedules::{Random, wanted};
use crate::cache::CacheOptions;
use crate::lease::{Acquire, Lease, Pending};
use crate::policy::PolicyKind;
use crate::readers::{Reader, ReaderAcquire, ReaderLease, ReaderPending};
use crate::slots::state::State;
use crate::slots::{Listed, NONE};
use crate::stats::layout::Counter;
use crate::{ErrorKind, Key};
use spoc_driver::{CaptureState, PendingRead, Segment, Stream, StreamOptions};
use std::time::{Duration, Instant};

enum Held<'w> {
    Pending(Pending<&'w Stream>),
    Lease(Lease<&'w Stream>),
    Found(ReaderLease<'w, &'w Stream>),
    Wanted(ReaderPending<'w, &'w Stream>),
}

struct World<'w> {
    random: Random,
    harness: &'w Harness,
    streams: &'w [Stream],
    readers: &'w [Reader<&'w Stream>],
    held: Vec<(Vec<u32>, Held<'w>)>,
    pins: Vec<u32>,
    found: u64,
    reads: Vec<(u32, PendingRead<Vec<u8>>)>,
}

impl<'w> World<'w> {
    fn groups(&mut self) -> (Vec<u32>, Vec<Key>) {
        let width = [1, 1, 2][self.random.below(3)];
        let groups: Vec<u32> =
            (0..width).map(|_| u32::try_from(self.random.below(GROUPS as usize)).unwrap()).collect();
        let keys = groups.iter().map(|&group| self.harness.keys[group as usize]).collect();
        (groups, keys)
    }

    fn acquire(&mut self) {
        let (groups, keys) = self.groups();
        let stream = &self.streams[self.random.below(self.streams.len())];
        match self.harness.cache.acquire(&keys, stream) {
            Ok(Acquire::Ready(lease)) => self.held.push((groups, Held::Lease(lease))),
            Ok(Acquire::Pending(pending)) => self.held.push((groups, Held::Pending(pending))),
            Err(error) => self.expect(&error),
        }
    }

    fn expect(&self, error: &crate::Error) {
        let kind = error.kind().as_str();
        assert!(["too_wide", "capturing", "io_error", "cancelled"].contains(&kind), "{error}");
    }

    fn read(&mut self) {
        let (groups, keys) = self.groups();
        let reader = &self.readers[self.random.below(self.readers.len())];
        if self.random.below(3) > 0 {
            let lease = reader.try_acquire(&keys);
            self.found += u64::from(lease.is_some());
            self.held.extend(lease.map(|lease| (groups, Held::Found(lease))));
            return;
        }
        match reader.acquire(&keys) {
            Ok(ReaderAcquire::Ready(lease)) => self.held.push((groups, Held::Found(lease))),
            Ok(ReaderAcquire::Pending(pending)) => self.held.push((groups, Held::Wanted(pending))),
            Err(error) => self.expect(&error),
        }
    }

    fn claim(&mut self) {
        let (groups, keys) = self.groups();
        let stream = &self.streams[self.random.below(self.streams.len())];
        let claim = self.harness.cache.claim(&keys, stream, self.random.below(3)).unwrap();
        let there = (0..keys.len()).filter(|&index| claim.slot(index).is_some()).map(|index| groups[index]);
        self.held.push((there.collect(), Held::Lease(claim.into_lease())));
    }

    fn look(&mut self) {
        let Some(at) = self.any_held() else { return };
        match self.held.swap_remove(at) {
            (groups, Held::Pending(pending)) => match pending.try_lease() {
                Ok(Acquire::Ready(lease)) => self.held.push((groups, Held::Lease(lease))),
                Ok(Acquire::Pending(pending)) => self.held.push((groups, Held::Pending(pending))),
                Err(error) => self.expect(&error),
            },
            (groups, Held::Wanted(pending)) => match pending.try_lease() {
                Ok(ReaderAcquire::Ready(lease)) => self.held.push((groups, Held::Found(lease))),
                Ok(ReaderAcquire::Pending(pending)) => self.held.push((groups, Held::Wanted(pending))),
                Err(error) => self.expect(&error),
            },
            other => self.held.push(other),
        }
    }

    fn any_held(&mut self) -> Option<usize> {
        (!self.held.is_empty()).then(|| self.random.below(self.held.len()))
    }

    /// A deferred read of a leased slot, on the stream that may.
    fn launch(&mut self) {
        let Some(at) = self.any_held() else { return };
        let (groups, held) = &self.held[at];
        if groups.is_empty() {
            return;
        }
        let index = self.random.below(groups.len());
        let read = |stream: &Stream, (segment, base): (Segment, u64)| {
            stream.copy_to_host(&segment, base, vec![0; bytes_of(0).len()]).unwrap()
        };
        match held {
            Held::Pending(_) | Held::Wanted(_) => {}
            Held::Lease(lease) => {
                self.reads.push((groups[index], read(lease.stream(), lease.memory(index).unwrap())));
            }
            // Readers find only what need not be waited for; what they acquired is on their stream.
            Held::Found(lease) => {
                let reader = self.readers.iter().position(|reader| lease.is_of(reader)).unwrap();
                // The second has the third stream, too.
                let also = usize::from(reader == 1 && self.random.below(2) == 0);
                let stream = &self.streams[reader + also];
                self.reads.push((groups[index], read(stream, lease.memory(index).unwrap())));
            }
        }
    }

    fn let_go(&mut self) {
        let Some(at) = self.any_held() else { return };
        match self.held.swap_remove(at).1 {
            Held::Lease(lease) if self.random.below(2) == 0 => {
                let stream = lease.stream().id();
                let own = self.streams.iter().find(|own| own.id() == stream);
                lease.release(&[own.unwrap()]).unwrap();
            }
            other => drop(other),
        }
    }

    fn wishes(&mut self) {
        let (groups, keys) = self.groups();
        let cache = &self.harness.cache;
        match self.random.below(8) {
            0 if self.pins.len() < 2 => match cache.pin(&keys[..1]) {
                Ok(()) => self.pins.push(groups[0]),
                Err(error) => self.expect(&error),
            },
            1..=2 => {
                if let Some(group) = self.pins.pop() {
                    cache.unpin(&[self.harness.keys[group as usize]]).unwrap();
                }
            }
            3 => cache.retain(&keys, Duration::from_millis(self.random.below(2) as u64)).unwrap(),
            4..=5 => {
                let deadline = Instant::now() + Duration::from_millis(self.random.below(3) as u64);
                cache.hint(&keys, deadline).unwrap();
            }
            6 => drop(cache.cancel(&keys).unwrap()),
            _ => {
                let profile = cache.profile(keys[0].model);
                cache.warm(keys[0].model, &profile).unwrap();
            }
        }
    }

    fn resize(&mut self) {
        let slots = 2 + u32::try_from(self.random.below(4)).unwrap();
        match self.harness.cache.resize(0, slots, Some(Instant::now())) {
            Ok(_) => {}
            Err(error) => self.expect(&error),
        }
    }

    fn capture(&mut self) {
        let stream = self.harness.control.stream(&self.streams[0]);
        let state = if self.random.below(3) == 0 { CaptureState::Active } else { CaptureState::None };
        self.harness.control.set_capture(stream, state);
    }

    fn end_step(&mut self) {
        let reader = &self.readers[self.random.below(self.readers.len())];
        if let Err(error) = reader.end_step() {
            assert!(matches!(error.kind(), ErrorKind::Capturing), "{error}");
        }
    }

    fn act(&mut self) {
        let jobs = self.harness.jobs();
        match self.random.below(24) {
            0 if self.held.len() < 6 => self.acquire(),
            1..=5 if self.held.len() < 8 => self.read(),
            6 if self.held.len() < 6 => self.claim(),
            7..=8 => self.look(),
            9..=10 => self.launch(),
            11..=12 => self.let_go(),
            13 => self.end_step(),
            14 => self.wishes(),
            15 if self.random.below(4) == 0 => self.resize(),
            16 if self.random.below(4) == 0 => self.capture(),
            17 if self.random.below(6) == 0 => {
                self.random.pick(&jobs).into_iter().for_each(|job| {
                    self.harness.deliver(job, Err(read_error()));
                });
            }
            15..=18 => self.random.pick(&jobs).into_iter().for_each(|job| {
                for _ in 0..[1, 4][self.random.below(2)] {
                    self.harness.deliver(job, Ok(()));
                }
            }),
            // The copies get ahead of the launches: what is slow is what may be overwritten.
            19..=20 => {
                self.harness.control.run(self.harness.control.stream(&self.harness.copies));
                jobs.into_iter().for_each(|job| {
                    self.harness.retire(job);
                });
            }
            21..=22 => {
                let busy = self.harness.control.busy_streams();
                if let Some(stream) = self.random.pick(&busy) {
                    self.harness.control.step(stream);
                }
            }
            _ => self.harness.cache.shared().with(crate::engine::Core::tick),
        }
    }

    fn check(&self) {
        let cache = &self.harness.cache;
        cache.shared().with(|core| {
            core.retire_all();
            let mut listed = 0;
            for (slot, entry) in (0u32..).zip(core.table.iter()) {
                let state = core.table.state(slot);
                listed += usize::from(entry.listed != Listed::No);
                if entry.listed != Listed::No {
                    assert!(matches!(state, State::Resident | State::Draining), "listed while {state}");
                    assert!(!core.models.is_pinned(entry.item), "listed while pinned");
                }
                if entry.item != NONE {
                    assert_eq!(core.slot_of[entry.item as usize], slot);
                }
                assert!(entry.leases == 0 || matches!(state, State::Leased | State::Failed));
                assert!(entry.leases > 0 || state != State::Leased);
            }
            assert_eq!(listed, core.pools[0].evictable);
            let free = core.pools[0].free.len() as u64;
            assert_eq!(
                free,
                core.table.counts()[State::Free as usize],
                "slots at rest are free or hold something"
            );
        });
        let get = |counter| cache.counters().get(counter);
        assert_eq!(get(Counter::Hits) + get(Counter::Misses), get(Counter::Requested));
        assert!(get(Counter::LeasesGiven) >= get(Counter::LeasesReleased));
    }

    /// Everything is let go: whoever waits is served, whatever was launched read what it leased.
    fn end(mut self) -> u64 {
        self.harness.control.set_capture(self.harness.control.stream(&self.streams[0]), CaptureState::None);
        self.harness.control.run_all();
        self.harness.cache.recover().unwrap();
        for group in std::mem::take(&mut self.pins) {
            self.harness.cache.unpin(&[self.harness.keys[group as usize]]).unwrap();
        }
        for round in 0.. {
            self.harness.finish_jobs();
            self.readers.iter().for_each(|reader| reader.end_step().unwrap());
            let before = self.held.len();
            for (groups, held) in std::mem::take(&mut self.held) {
                match held {
                    Held::Pending(pending) => match pending.try_lease() {
                        Ok(Acquire::Pending(pending)) => self.held.push((groups, Held::Pending(pending))),
                        Ok(Acquire::Ready(_)) => {}
                        Err(error) => self.expect(&error),
                    },
                    Held::Wanted(pending) => match pending.try_lease() {
                        Ok(ReaderAcquire::Pending(pending)) => {
                            self.held.push((groups, Held::Wanted(pending)));
                        }
                        Ok(ReaderAcquire::Ready(_)) => {}
                        Err(error) => self.expect(&error),
                    },
                    other => drop(other),
                }
            }
            if self.held.is_empty() {
                break;
            }
            assert!(round < 20 || self.held.len() < before, "{} sets wait for ever", self.held.len());
        }
        self.readers.iter().for_each(|reader| reader.end_step().unwrap());
        self.harness.finish_jobs();
        self.harness.control.run_all();
        self.check();
        for (group, read) in self.reads.drain(..) {
            assert!(read.wait().unwrap() == bytes_of(group), "a launch read another group than {group}");
        }
        self.found
    }
}

/// Answers how many sets readers found by themselves.
fn run(seed: u64, policy: PolicyKind) -> u64 {
    let slots = 2 + u32::try_from(seed % 4).unwrap();
    let options = CacheOptions { policy, slots_max: 6, segment_bytes: SLOT_BYTES, ..CacheOptions::default() };
    let harness = Harness::with(slots, options);
    let streams: Vec<Stream> =
        (0..3).map(|_| harness.device.create_stream(StreamOptions::default()).unwrap()).collect();
    let found = {
        let readers: Vec<Reader<&Stream>> = [(&streams[0], vec![]), (&streams[1], vec![&streams[2]])]
            .map(|(stream, others)| harness.cache.reader_on(stream, others).unwrap())
            .into();
        let mut world = World {
            random: Random::new(seed),
            harness: &harness,
            streams: &streams,
            readers: &readers,
            held: Vec::new(),
            pins: Vec::new(),
            found: 0,
            reads: Vec::new(),
        };
        // Something is there, and the readers know the model.
        for (index, reader) in (0..slots as usize).zip(readers.iter().cycle()) {
            let waiting = reader.acquire(&harness.keys[index..=index]).unwrap();
            harness.finish_jobs();
            drop(waiting);
        }
        for _ in 0..150 {
            world.act();
            world.check();
        }
        world.end()
    };
    harness.control.run_all();
    harness.cache.shared().with(|core| {
        core.retire_all();
        assert!(core.is_quiet(), "something is left over");
    });
    let Harness { control, device, cache, copies, feed, .. } = harness;
    assert_eq!(control.violations(), Vec::<String>::new());
    drop((cache, copies, feed, streams));
    assert_eq!(device.memory_in_use(), 0);
    assert_eq!(control.live().segments, 0);
    found
}

#[test]
fn whatever_happens_launches_read_what_they_leased() {
    let mut found = 0;
    // They take longer than the others: a quarter of the default, as many as asked for.
    let count = if std::env::var_os("SPOC_SCHEDULES").is_some() { wanted() } else { wanted() / 4 };
    for seed in 0..count {
        let policy = PolicyKind::ALL[usize::try_from(seed).unwrap() % PolicyKind::ALL.len()];
        let ran = std::panic::catch_unwind(|| run(seed, policy));
        assert!(ran.is_ok(), "schedule {seed} with {policy}");
        found += ran.unwrap_or(0);
    }
    let each = found / count;
    assert!(each >= 3, "readers found no more than {each} sets a schedule: the test tests little");
}
