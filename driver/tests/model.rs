//! Random programs over streams, events, segments and read-backs, against a simple reference.
//!
//! The reference runs the same steps and says, after each: which operation ran, what the device's memory
//! holds, how many entries the ledger keeps, which segments live, and which sources have been dropped.
#![cfg(feature = "fake")]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod common;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{NON_BLOCKING, assert_clean, deferred};
use proptest::prelude::*;
use spoc_driver::fake::{FakeControl, FakeSource, FakeStream, Step};
use spoc_driver::{
    CopyRange, Device, Event, HostSink, HostSource, PendingRead, Segment, Stream, StreamOptions,
};

const SEGMENT_BYTES: usize = 32;

/// Host memory that says when it is dropped; `PAD` makes it too large to be stored without a box.
struct Watched<const PAD: usize> {
    inner: FakeSource,
    is_dropped: Arc<AtomicBool>,
    _pad: [usize; PAD],
}

impl<const PAD: usize> Drop for Watched<PAD> {
    fn drop(&mut self) {
        self.is_dropped.store(true, Ordering::SeqCst);
    }
}

// SAFETY: as the inner source, which is dropped with this value.
unsafe impl<const PAD: usize> HostSource for Watched<PAD> {
    fn as_ptr(&self) -> *const u8 {
        self.inner.as_ptr()
    }
    fn len_bytes(&self) -> usize {
        self.inner.len_bytes()
    }
}

// SAFETY: as the inner sink.
unsafe impl<const PAD: usize> HostSink for Watched<PAD> {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.inner.as_mut_ptr()
    }
}

/// An operation of the reference's streams.
enum Op {
    Store { segment: usize, offset: usize, bytes: Vec<u8> },
    Read { segment: usize, read: usize },
    Move { from: usize, to: usize },
    Wait { stream: usize, position: u64 },
}

/// What the reference's ledger keeps.
struct Entry {
    /// Rises over all streams.
    number: u64,
    segments: Vec<usize>,
    source: Option<Arc<AtomicBool>>,
}

#[derive(Default)]
struct ModelStream {
    queue: VecDeque<Op>,
    submitted: u64,
    completed: u64,
    entries: VecDeque<Entry>,
}

struct Read {
    pending: Option<PendingRead<Watched<0>>>,
    is_dropped: Arc<AtomicBool>,
    expected: Option<Vec<u8>>,
    stream: usize,
    position: u64,
    entry: u64,
}

/// Stream, operations before it, entries up to it.
type Record = (usize, u64, u64);

struct Program {
    device: Device,
    control: FakeControl,
    streams: Vec<(Option<Stream>, FakeStream, ModelStream)>,
    events: Vec<(Option<Event>, Option<Record>)>,
    segments: Vec<(Option<Segment>, Vec<u8>)>,
    reads: Vec<Read>,
    sources: Vec<Arc<AtomicBool>>,
    entries: u64,
}

fn index<T>(items: &[T], a: usize) -> Option<usize> {
    (!items.is_empty()).then(|| a % items.len())
}

impl Program {
    fn new() -> Self {
        let (device, control) = deferred();
        let (streams, events, segments) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            device,
            control,
            streams,
            events,
            segments,
            reads: Vec::new(),
            sources: Vec::new(),
            entries: 0,
        }
    }

    fn run(&mut self, (op, a, b, c): (u8, u8, u8, u8)) {
        let (a, b, c) = (usize::from(a), usize::from(b), usize::from(c));
        match op % 18 {
            0 => self.create_stream(a % 2 == 0),
            1 => self.create_segment(),
            2 => self.events.push((Some(self.device.create_event().unwrap()), None)),
            3 => self.drop_stream(a),
            4 => self.drop_segment(a),
            5 => self.drop_event(a),
            6 | 7 => self.store(a, b, c),
            8 => self.read(a, b),
            9 => self.move_bytes(a, b, c),
            10 | 11 => self.record(a, b),
            12 => self.wait(a, b),
            13 => self.query_event(a),
            14 => self.query_stream(a),
            15 => self.finish_read(a, b % 2 == 0),
            _ => self.step(a),
        }
    }

    fn create_stream(&mut self, blocking: bool) {
        let options = if blocking { StreamOptions::default() } else { NON_BLOCKING };
        let stream = self.device.create_stream(options).unwrap();
        let name = self.control.stream(&stream);
        self.streams.push((Some(stream), name, ModelStream::default()));
        self.collect();
    }

    fn create_segment(&mut self) {
        let segment = self.device.allocate(SEGMENT_BYTES as u64).unwrap();
        self.segments.push((Some(segment), vec![0xDB; SEGMENT_BYTES]));
        self.collect();
    }

    fn drop_stream(&mut self, a: usize) {
        if let Some(which) = index(&self.streams, a)
            && self.streams[which].0.take().is_some()
        {
            self.collect();
        }
    }

    fn drop_segment(&mut self, a: usize) {
        if let Some(which) = index(&self.segments, a) {
            self.segments[which].0 = None;
        }
    }

    fn drop_event(&mut self, a: usize) {
        if let Some(which) = index(&self.events, a) {
            self.events[which] = (None, None);
        }
    }

    fn source<const PAD: usize>(&self, bytes: Vec<u8>) -> (Watched<PAD>, Arc<AtomicBool>) {
        let is_dropped = Arc::new(AtomicBool::new(false));
        let inner = self.control.source(bytes);
        (Watched { inner, is_dropped: Arc::clone(&is_dropped), _pad: [0; PAD] }, is_dropped)
    }

    fn store(&mut self, a: usize, b: usize, c: usize) {
        let (Some(on), Some(to)) = (index(&self.streams, a), index(&self.segments, b)) else { return };
        let other = index(&self.segments, b + c).unwrap_or(to);
        let (Some(stream), Some(first), Some(second)) =
            (&self.streams[on].0, &self.segments[to].0, &self.segments[other].0)
        else {
            return;
        };
        let bytes: Vec<u8> = (0..16).map(|i| (c * 7 + i + self.sources.len()) as u8).collect();
        let offset = c % (SEGMENT_BYTES - 8);
        let ranges = [
            CopyRange { src_offset: 0, dst: first, dst_offset: offset as u64, len_bytes: 8 },
            CopyRange { src_offset: 8, dst: second, dst_offset: 0, len_bytes: c % 9 },
        ];
        let is_dropped = if c.is_multiple_of(2) {
            let (source, is_dropped) = self.source::<0>(bytes.clone());
            stream.copy_to_device(source, &ranges).unwrap();
            is_dropped
        } else {
            let (source, is_dropped) = self.source::<9>(bytes.clone());
            stream.copy_to_device(source, &ranges).unwrap();
            is_dropped
        };
        self.sources.push(Arc::clone(&is_dropped));
        let mut ops = vec![Op::Store { segment: to, offset, bytes: bytes[..8].to_vec() }];
        if !c.is_multiple_of(9) {
            ops.push(Op::Store { segment: other, offset: 0, bytes: bytes[8..8 + c % 9].to_vec() });
        }
        self.enter(on, ops, vec![to, other], Some(is_dropped));
    }

    fn read(&mut self, a: usize, b: usize) {
        let (Some(on), Some(from)) = (index(&self.streams, a), index(&self.segments, b)) else { return };
        let (Some(stream), Some(segment)) = (&self.streams[on].0, &self.segments[from].0) else { return };
        let (sink, is_dropped) = self.source::<0>(vec![0; SEGMENT_BYTES]);
        let pending = stream.copy_to_host(segment, 0, sink).unwrap();
        let read = self.reads.len();
        // First the event inside, then the read: two entries, both after the copy.
        self.enter(on, vec![Op::Read { segment: from, read }], Vec::new(), None);
        self.enter(on, Vec::new(), vec![from], None);
        let position = self.streams[on].2.submitted;
        let entry = self.entries;
        self.reads.push(Read {
            pending: Some(pending),
            is_dropped,
            expected: None,
            stream: on,
            position,
            entry,
        });
    }

    fn move_bytes(&mut self, a: usize, b: usize, c: usize) {
        let Some(on) = index(&self.streams, a) else { return };
        let (Some(from), Some(to)) = (index(&self.segments, b), index(&self.segments, c)) else { return };
        let (Some(stream), Some(source), Some(target)) =
            (&self.streams[on].0, &self.segments[from].0, &self.segments[to].0)
        else {
            return;
        };
        if from == to {
            return;
        }
        stream.copy_device_to_device(source, 0, target, 0, SEGMENT_BYTES as u64).unwrap();
        self.enter(on, vec![Op::Move { from, to }], vec![from, to], None);
    }

    fn record(&mut self, a: usize, b: usize) {
        let (Some(on), Some(which)) = (index(&self.streams, a), index(&self.events, b)) else { return };
        let (Some(stream), Some(event)) = (&self.streams[on].0, &self.events[which].0) else { return };
        stream.record(event).unwrap();
        self.enter(on, Vec::new(), Vec::new(), None);
        let submitted = self.streams[on].2.submitted;
        self.events[which].1 = Some((on, submitted, self.entries));
    }

    fn wait(&mut self, a: usize, b: usize) {
        let (Some(on), Some(which)) = (index(&self.streams, a), index(&self.events, b)) else { return };
        let (Some(stream), Some(event)) = (&self.streams[on].0, &self.events[which].0) else { return };
        match self.events[which].1 {
            None => assert!(stream.wait(event).is_err()),
            Some((other, position, _)) => {
                stream.wait(event).unwrap();
                self.enter(on, vec![Op::Wait { stream: other, position }], Vec::new(), None);
            }
        }
    }

    fn query_event(&mut self, a: usize) {
        let Some(which) = index(&self.events, a) else { return };
        let (Some(event), Some((stream, position, entries))) = (&self.events[which].0, self.events[which].1)
        else {
            return;
        };
        let is_reached = self.streams[stream].2.completed >= position;
        assert_eq!(event.query().unwrap(), is_reached);
        if is_reached {
            // Twice, by waiting too: it must not block now.
            event.synchronize().unwrap();
            self.retire(stream, entries);
        }
    }

    fn query_stream(&mut self, a: usize) {
        let Some(on) = index(&self.streams, a) else { return };
        let is_idle = self.streams[on].2.queue.is_empty();
        let Some(stream) = &self.streams[on].0 else { return };
        assert_eq!(stream.query().unwrap(), is_idle);
        if is_idle {
            stream.synchronize().unwrap();
            self.retire(on, u64::MAX);
        }
    }

    fn finish_read(&mut self, a: usize, by_waiting: bool) {
        let Some(which) = index(&self.reads, a) else { return };
        let read = &mut self.reads[which];
        let is_done = self.streams[read.stream].2.completed >= read.position;
        if by_waiting && !is_done {
            return;
        }
        let Some(pending) = read.pending.take() else { return };
        if by_waiting {
            let sink = pending.wait().unwrap();
            assert_eq!(Some(sink.inner.bytes()), read.expected);
            drop(sink);
            assert!(read.is_dropped.load(Ordering::SeqCst));
            // Its own entry went, and whatever stood before it.
            let (stream, entry) = (read.stream, read.entry);
            self.retire(stream, entry);
        } else {
            drop(pending);
        }
    }

    fn step(&mut self, a: usize) {
        let Some(on) = index(&self.streams, a) else { return };
        let expected = self.model_step(on);
        assert_eq!(self.control.step(self.streams[on].1), expected);
    }

    /// Enters a submission of some operations.
    fn enter(&mut self, on: usize, ops: Vec<Op>, segments: Vec<usize>, source: Option<Arc<AtomicBool>>) {
        self.entries += 1;
        let stream = &mut self.streams[on].2;
        stream.submitted += ops.len() as u64;
        stream.queue.extend(ops);
        stream.entries.push_back(Entry { number: self.entries, segments, source });
    }

    fn retire(&mut self, on: usize, number: u64) {
        let entries = &mut self.streams[on].2.entries;
        while entries.front().is_some_and(|entry| entry.number <= number) {
            entries.pop_front();
        }
    }

    /// What the driver does when it collects: idle streams keep nothing.
    fn collect(&mut self) {
        for (_, _, stream) in &mut self.streams {
            if stream.queue.is_empty() {
                stream.entries.clear();
            }
        }
    }

    fn model_step(&mut self, on: usize) -> Step {
        match self.streams[on].2.queue.front() {
            None => return Step::Idle,
            Some(Op::Wait { stream, position }) if self.streams[*stream].2.completed < *position => {
                return Step::Blocked;
            }
            Some(_) => {}
        }
        let stream = &mut self.streams[on].2;
        stream.completed += 1;
        match stream.queue.pop_front() {
            Some(Op::Store { segment, offset, bytes }) => {
                self.segments[segment].1[offset..offset + bytes.len()].copy_from_slice(&bytes);
            }
            Some(Op::Read { segment, read }) => {
                self.reads[read].expected = Some(self.segments[segment].1.clone());
            }
            Some(Op::Move { from, to }) => self.segments[to].1 = self.segments[from].1.clone(),
            Some(Op::Wait { .. }) | None => {}
        }
        Step::Ran
    }

    /// Compares everything that can be seen. `counting` makes the driver collect first.
    fn check(&mut self, counting: bool) {
        if counting {
            self.collect();
            let kept: usize = self.streams.iter().map(|(_, _, stream)| stream.entries.len()).sum();
            assert_eq!(self.device.in_flight(), kept);
            let is_live = |stream: &&(Option<Stream>, FakeStream, ModelStream)| {
                stream.0.is_some() || !stream.2.entries.is_empty()
            };
            assert_eq!(self.control.live().streams, self.streams.iter().filter(is_live).count());
        }
        let kept: Vec<&Entry> = self.streams.iter().flat_map(|(_, _, stream)| &stream.entries).collect();
        let is_kept = |which| kept.iter().any(|entry| entry.segments.contains(&which));
        let live =
            (0..self.segments.len()).filter(|which| self.segments[*which].0.is_some() || is_kept(*which));
        assert_eq!(self.control.live().segments, live.count());
        for source in &self.sources {
            let of_source =
                |entry: &&Entry| entry.source.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, source));
            let is_kept = kept.iter().any(of_source);
            assert_eq!(source.load(Ordering::SeqCst), !is_kept, "a source goes when its entry does");
        }
        for read in &self.reads {
            let is_kept = read.pending.is_some() || kept.iter().any(|entry| entry.number == read.entry);
            assert_eq!(read.is_dropped.load(Ordering::SeqCst), !is_kept, "so does a destination");
        }
        for (segment, bytes) in &self.segments {
            if let Some(segment) = segment {
                assert_eq!(self.control.peek(segment, 0, SEGMENT_BYTES), *bytes);
            }
        }
    }

    /// Drops everything, kind by kind in the given order, with whatever is still pending.
    fn end(self, order: &[usize]) {
        let Self { device, control, streams, events, segments, reads, sources, .. } = self;
        let (mut device, mut streams, mut events) = (Some(device), Some(streams), Some(events));
        let (mut segments, mut reads) = (Some(segments), Some(reads));
        for kind in order {
            match kind {
                0 => drop(device.take()),
                1 => drop(streams.take()),
                2 => drop(events.take()),
                3 => drop(segments.take()),
                _ => drop(reads.take()),
            }
        }
        assert!(sources.iter().all(|source| source.load(Ordering::SeqCst)));
        assert_clean(&control);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_ledger_agrees_with_the_reference(
        steps in prop::collection::vec(any::<(u8, u8, u8, u8)>(), 1..160),
        order in Just((0..5).collect::<Vec<usize>>()).prop_shuffle(),
    ) {
        let mut program = Program::new();
        // Something to work with from the beginning.
        for op in [0, 0, 1, 1, 2] {
            program.run((op, op, 0, 0));
        }
        for step in steps {
            program.run(step);
            program.check(step.3 % 3 == 0);
        }
        program.end(&order);
    }
}
