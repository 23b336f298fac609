//! Runs a program on a backend and on the reference, and compares.

use spoc_driver::fake::{FakeControl, Live, Step, WaitMode};
use spoc_driver::{
    CopyRange, Device, DeviceSelector, Driver, Error, Event, HostSink, HostSource, PendingRead, Pinned,
    Segment, Stream, StreamOptions,
};

use super::order::{Clock, Kind, Tracks};
use super::program::{EVENTS, FREE, Op, Order, Piece, Program, SEGMENT_BYTES, SEGMENTS, STREAMS, VECTORS};
use super::reference::Contents;
use super::vectors::OneVector;
use crate::helpers::{Drops, Watched, pattern};
use crate::platform::Bench;

/// Runs the program on two devices of the bench's backend (or on one, opened by two drivers).
///
/// # Panics
/// If the backend and the reference do not agree.
pub fn run(bench: &Bench, program: &Program) {
    if let Some(control) = &bench.watcher {
        // One thread: waits run what they wait for, the program's steps run the rest.
        control.set_wait_mode(WaitMode::Drive);
    }
    let mut machine = Machine::new(bench);
    program.0.iter().for_each(|op| machine.step(op));
    machine.finish();
    if let Some(control) = &bench.watcher {
        assert_eq!(control.violations(), [""; 0], "violations");
        assert_eq!(control.live(), Live::default(), "backend objects outlive the program");
    }
}

pub(super) struct Machine {
    pub(super) devices: [Device; 2],
    pub(super) streams: Vec<OneStream>,
    segments: Vec<OneSegment>,
    events: Vec<OneEvent>,
    pub(super) vectors: Vec<OneVector>,
    pub(super) reads: Vec<OneRead>,
    pub(super) tracks: Tracks,
    /// By track: the sources and rooms given to it, and those that have been dropped.
    given: Vec<usize>,
    drops: Vec<Drops>,
    control: Option<FakeControl>,
}

pub(super) struct OneStream {
    pub(super) stream: Stream,
    pub(super) track: usize,
}

struct OneSegment {
    segment: Segment,
    contents: Contents,
}

struct OneEvent {
    event: Event,
    record: Option<Clock>,
}

pub(super) struct OneRead {
    pub(super) pending: PendingRead<Host>,
    pub(super) expected: Vec<u8>,
    pub(super) clock: Clock,
}

/// Host memory of either kind.
pub(super) enum Host {
    Pageable(Watched),
    Pinned(Pinned),
}

// SAFETY: both kinds keep the promise, and a value does not change its kind.
unsafe impl HostSource for Host {
    fn as_ptr(&self) -> *const u8 {
        match self {
            Self::Pageable(bytes) => bytes.as_ptr(),
            Self::Pinned(bytes) => bytes.as_ptr(),
        }
    }

    fn len_bytes(&self) -> usize {
        match self {
            Self::Pageable(bytes) => bytes.len_bytes(),
            Self::Pinned(bytes) => HostSource::len_bytes(bytes),
        }
    }
}

// SAFETY: as above; the value has one owner.
unsafe impl HostSink for Host {
    fn as_mut_ptr(&mut self) -> *mut u8 {
        match self {
            Self::Pageable(bytes) => bytes.as_mut_ptr(),
            Self::Pinned(bytes) => bytes.as_mut_ptr(),
        }
    }
}

impl Host {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Pageable(bytes) => bytes.bytes(),
            Self::Pinned(bytes) => bytes.as_slice().unwrap(),
        }
    }
}

/// Why a call has to be refused: whether each reason holds, and the kind of its error.
pub(super) struct Reasons<const N: usize>(pub(super) [(bool, &'static str); N]);

impl<const N: usize> Reasons<N> {
    pub(super) fn hold(&self) -> bool {
        self.0.iter().any(|(holds, _)| *holds)
    }

    /// Asserts that the call was refused for one of them, if there is one, and else was not.
    #[track_caller]
    pub(super) fn judge(&self, error: Option<&Error>) {
        match error {
            None => assert!(!self.hold(), "not refused: {:?}", self.0),
            Some(error) => {
                let applies = self.0.iter().any(|(holds, kind)| *holds && *kind == error.kind().as_str());
                assert!(applies, "refused for a reason that does not apply: {error}");
            }
        }
    }
}

impl Machine {
    fn new(bench: &Bench) -> Self {
        let (kind, count) = (bench.backend.id().kind, bench.backend.devices().len());
        let open = |index| {
            let driver = Driver::new(vec![bench.backend.clone()]);
            driver.open(&DeviceSelector::index(kind, index)).unwrap()
        };
        let mut machine = Self {
            devices: [open(0), open(u32::from(count > 1))],
            streams: Vec::new(),
            segments: Vec::new(),
            events: Vec::new(),
            vectors: Vec::new(),
            reads: Vec::new(),
            tracks: Tracks::default(),
            given: Vec::new(),
            drops: Vec::new(),
            control: bench.watcher.clone(),
        };
        for number in 0..STREAMS {
            let stream = machine.new_stream(number);
            machine.streams.push(stream);
        }
        machine.segments = (0..SEGMENTS).map(|number| machine.new_segment(number)).collect();
        machine.vectors = (0..VECTORS).map(|_| OneVector::on_host()).collect();
        machine.events = (0..EVENTS).map(|number| machine.new_event(number)).collect();
        machine
    }

    fn new_stream(&mut self, number: usize) -> OneStream {
        let device = &self.devices[number % 2];
        let kind = match number {
            0 | 1 => Kind::Default,
            _ if number < FREE => Kind::Blocking,
            _ => Kind::Free,
        };
        let options = StreamOptions { non_blocking: kind == Kind::Free, ..Default::default() };
        let stream = match kind {
            Kind::Default => device.default_stream(),
            Kind::Blocking | Kind::Free => device.create_stream(options).unwrap(),
        };
        self.given.push(0);
        self.drops.push(Drops::default());
        OneStream { stream, track: self.tracks.add(number % 2, kind) }
    }

    /// A segment of zeroes, written on a stream of its own so that no other is waited for.
    fn new_segment(&self, number: usize) -> OneSegment {
        let device = &self.devices[number % 2];
        let segment = device.allocate(SEGMENT_BYTES as u64).unwrap();
        let options = StreamOptions { non_blocking: true, ..Default::default() };
        let stream = device.create_stream(options).unwrap();
        let range = CopyRange { src_offset: 0, dst: &segment, dst_offset: 0, len_bytes: SEGMENT_BYTES };
        stream.copy_to_device(vec![0; SEGMENT_BYTES], &[range]).unwrap();
        stream.synchronize().unwrap();
        OneSegment { segment, contents: Contents::zeroes() }
    }

    fn new_event(&self, number: usize) -> OneEvent {
        OneEvent { event: self.devices[number % 2].create_event().unwrap(), record: None }
    }

    fn step(&mut self, op: &Op) {
        match op {
            Op::Upload { stream, to, seed, is_pinned, order } => {
                self.upload(*stream, to, *seed, *is_pinned, *order);
            }
            Op::Download { stream, from, is_pinned, order } => {
                self.download(*stream, *from, *is_pinned, *order);
            }
            Op::Move { stream, from, to, order } => self.copy(*stream, *from, *to, *order),
            Op::Fill { stream, to, value, order } => self.fill(*stream, *to, *value, *order),
            Op::Write { to, seed } => self.write(*to, *seed),
            Op::Read { from } => self.read(*from),
            Op::Fetch { read } => self.fetch(*read),
            Op::Abandon { read } if self.reads.is_empty() => drop(read.to_owned()),
            Op::Abandon { read } => drop(self.reads.swap_remove(read % self.reads.len())),
            Op::Record { stream, event } => self.record(*stream, *event),
            Op::Wait { stream, event } => self.wait(*stream, *event),
            Op::QueryEvent { event } => self.query_event(*event),
            Op::SynchronizeEvent { event } => self.synchronize_event(*event),
            Op::Query { stream } => self.query(*stream),
            Op::Synchronize { stream } => self.synchronize(*stream),
            Op::Flush { device } => self.flush(*device),
            Op::RenewSegment { segment } => self.segments[*segment] = self.new_segment(*segment),
            Op::RenewStream { stream } => self.streams[*stream] = self.new_stream(*stream),
            Op::RenewEvent { event } => self.events[*event] = self.new_event(*event),
            Op::Step { choice } => self.let_run(*choice),
            Op::Vector { vector, op } => self.step_vector(*vector, op),
        }
    }

    /// A segment's contents, or a vector's buffer.
    pub(super) fn contents(&mut self, number: usize) -> &mut Contents {
        match number.checked_sub(SEGMENTS) {
            None => &mut self.segments[number].contents,
            Some(buffer) => &mut self.vectors[buffer / 2].buffers[buffer % 2],
        }
    }

    /// Makes the next operation of the stream come after every access that it would race with.
    pub(super) fn order(&mut self, stream: usize, piece: Piece, is_write: bool, order: Order) {
        let track = self.streams[stream].track;
        let tracks = std::mem::take(&mut self.tracks);
        let racing = self.contents(piece.segment).racing(&tracks, track, piece, is_write);
        self.tracks = tracks;
        for other in racing {
            // A stream that was dropped cannot record any more.
            let Some(position) = self.streams.iter().position(|one| one.track == other) else {
                self.flush(stream % 2);
                continue;
            };
            match order {
                Order::ByHost => self.synchronize(position),
                Order::ByEvent => self.wait_for_stream(stream, position),
            }
        }
    }

    fn wait_for_stream(&mut self, stream: usize, other: usize) {
        let OneEvent { event, .. } = self.new_event(stream);
        self.streams[other].stream.record(&event).unwrap();
        let clock = self.tracks.enter(self.streams[other].track);
        self.streams[stream].stream.wait(&event).unwrap();
        let track = self.streams[stream].track;
        self.tracks.enter(track);
        self.tracks.wait(track, &clock);
    }

    /// Enters what a stream was given, and what it uses. Nothing at all is enqueued for empty copies.
    pub(super) fn enter(&mut self, stream: usize, uses: &[(Piece, bool)]) {
        if uses.iter().all(|(piece, _)| piece.len == 0) {
            return;
        }
        let track = self.streams[stream].track;
        let clock = self.tracks.enter(track);
        for (piece, is_write) in uses.iter().copied() {
            let tracks = std::mem::take(&mut self.tracks);
            self.contents(piece.segment).enter(&tracks, &clock, track, piece, is_write);
            self.tracks = tracks;
        }
    }

    pub(super) fn host(&mut self, stream: usize, bytes: Vec<u8>, is_pinned: bool) -> Host {
        let device = &self.devices[stream % 2];
        if is_pinned && device.capabilities().pinned_alloc.is_available() && !bytes.is_empty() {
            let mut pinned = device.alloc_pinned(bytes.len() as u64).unwrap();
            pinned.as_mut_slice().unwrap().copy_from_slice(&bytes);
            return Host::Pinned(pinned);
        }
        let track = self.streams[stream].track;
        self.given[track] += 1;
        Host::Pageable(self.drops[track].watch(bytes))
    }

    fn upload(&mut self, stream: usize, to: &[Piece], seed: u8, is_pinned: bool, order: Order) {
        // Ranges of one batch that overlap would arrive in no particular order: the later ones are left out.
        let mut pieces: Vec<Piece> = Vec::new();
        for piece in to {
            if !pieces.iter().any(|other| other.overlaps(*piece)) {
                pieces.push(*piece);
            }
        }
        let reasons = Reasons([
            (pieces.iter().any(|piece| piece.segment % 2 != stream % 2), "wrong_device"),
            (pieces.iter().any(|piece| !piece.is_inside()), "out_of_bounds"),
        ]);
        if !reasons.hold() {
            pieces.iter().for_each(|piece| self.order(stream, *piece, true, order));
        }
        let bytes = pattern(seed.into(), pieces.iter().map(|piece| piece.len).sum());
        let source = self.host(stream, bytes.clone(), is_pinned);
        let mut src_offset = 0;
        let mut ranges = Vec::new();
        for Piece { segment, offset, len } in pieces.iter().copied() {
            let dst = &self.segments[segment].segment;
            ranges.push(CopyRange { src_offset, dst, dst_offset: offset as u64, len_bytes: len });
            src_offset += len;
        }
        let outcome = self.streams[stream].stream.copy_to_device(source, &ranges);
        reasons.judge(outcome.as_ref().err().map(|returned| &returned.error));
        if let Err(returned) = outcome {
            assert_eq!(returned.source.bytes(), bytes, "a refused source came back changed");
            return;
        }
        let mut rest = &bytes[..];
        for piece in &pieces {
            let (now, later) = rest.split_at(piece.len);
            self.segments[piece.segment].contents.set(*piece, now);
            rest = later;
        }
        let uses: Vec<_> = pieces.into_iter().map(|piece| (piece, true)).collect();
        self.enter(stream, &uses);
    }

    fn download(&mut self, stream: usize, from: Piece, is_pinned: bool, order: Order) {
        let is_foreign = from.segment % 2 != stream % 2;
        let reasons = Reasons([(is_foreign, "wrong_device"), (!from.is_inside(), "out_of_bounds")]);
        if !reasons.hold() {
            self.order(stream, from, false, order);
        }
        let room = self.host(stream, vec![0xA5; from.len], is_pinned);
        let src = &self.segments[from.segment].segment;
        let outcome = self.streams[stream].stream.copy_to_host(src, from.offset as u64, room);
        reasons.judge(outcome.as_ref().err().map(|returned| &returned.error));
        let Ok(pending) = outcome else { return };
        let expected = self.segments[from.segment].contents.get(from).to_vec();
        self.enter(stream, &[(from, false)]);
        // The event behind a read-back, which an empty one has, too.
        let clock = self.tracks.enter(self.streams[stream].track);
        self.reads.push(OneRead { pending, expected, clock });
    }

    fn copy(&mut self, stream: usize, from: Piece, to: Piece, order: Order) {
        let reasons = Reasons([
            (from.segment % 2 != stream % 2 || to.segment % 2 != stream % 2, "wrong_device"),
            (!from.is_inside() || !to.is_inside(), "out_of_bounds"),
            (from.overlaps(to), "overlap"),
        ]);
        if !reasons.hold() {
            self.order(stream, from, false, order);
            self.order(stream, to, true, order);
        }
        let (src, dst) = (&self.segments[from.segment].segment, &self.segments[to.segment].segment);
        let (src_offset, dst_offset, len) = (from.offset as u64, to.offset as u64, from.len as u64);
        let outcome =
            self.streams[stream].stream.copy_device_to_device(src, src_offset, dst, dst_offset, len);
        reasons.judge(outcome.as_ref().err());
        if outcome.is_ok() {
            let bytes = self.segments[from.segment].contents.get(from).to_vec();
            self.segments[to.segment].contents.set(to, &bytes);
            self.enter(stream, &[(from, false), (to, true)]);
        }
    }

    fn fill(&mut self, stream: usize, to: Piece, value: u8, order: Order) {
        let reasons = Reasons([
            (!self.devices[stream % 2].capabilities().fill.is_available(), "unsupported"),
            (to.segment % 2 != stream % 2, "wrong_device"),
            (!to.is_inside(), "out_of_bounds"),
        ]);
        if !reasons.hold() {
            self.order(stream, to, true, order);
        }
        let dst = &self.segments[to.segment].segment;
        let outcome = self.streams[stream].stream.fill(dst, to.offset as u64, to.len as u64, value);
        reasons.judge(outcome.as_ref().err());
        if outcome.is_ok() {
            self.segments[to.segment].contents.set(to, &vec![value; to.len]);
            self.enter(stream, &[(to, true)]);
        }
    }

    fn write(&mut self, to: Piece, seed: u8) {
        let bytes = pattern(seed.into(), to.len);
        let outcome = self.segments[to.segment].segment.write(to.offset as u64, &bytes);
        Reasons([(!to.is_inside(), "out_of_bounds")]).judge(outcome.as_ref().err());
        if outcome.is_ok() && to.len > 0 {
            let default = self.streams[to.segment % 2].track;
            let contents = &mut self.segments[to.segment].contents;
            contents.copy_without_a_stream(&mut self.tracks, default);
            contents.set(to, &bytes);
        }
    }

    fn read(&mut self, from: Piece) {
        let mut bytes = vec![0x5A; from.len];
        let outcome = self.segments[from.segment].segment.read(from.offset as u64, &mut bytes);
        Reasons([(!from.is_inside(), "out_of_bounds")]).judge(outcome.as_ref().err());
        if outcome.is_ok() && from.len > 0 {
            let default = self.streams[from.segment % 2].track;
            let contents = &mut self.segments[from.segment].contents;
            contents.copy_without_a_stream(&mut self.tracks, default);
            assert_eq!(bytes, contents.get(from), "{from:?}");
        }
    }

    fn fetch(&mut self, read: usize) {
        if self.reads.is_empty() {
            return;
        }
        let OneRead { pending, expected, clock } = self.reads.swap_remove(read % self.reads.len());
        assert_eq!(pending.wait().unwrap().bytes(), expected, "a read-back");
        self.tracks.host_waits(&clock);
    }

    fn record(&mut self, stream: usize, event: usize) {
        let outcome = self.streams[stream].stream.record(&self.events[event].event);
        Reasons([(stream % 2 != event % 2, "wrong_device")]).judge(outcome.as_ref().err());
        if outcome.is_ok() {
            let clock = self.tracks.enter(self.streams[stream].track);
            self.events[event].record = Some(clock);
        }
    }

    fn wait(&mut self, stream: usize, event: usize) {
        let record = self.events[event].record.clone();
        let outcome = self.streams[stream].stream.wait(&self.events[event].event);
        Reasons([(stream % 2 != event % 2, "wrong_device"), (record.is_none(), "not_recorded")])
            .judge(outcome.as_ref().err());
        if let (Ok(()), Some(record)) = (outcome, record) {
            let track = self.streams[stream].track;
            self.tracks.enter(track);
            self.tracks.wait(track, &record);
        }
    }

    fn query_event(&mut self, event: usize) {
        let record = self.events[event].record.clone();
        let outcome = self.events[event].event.query();
        Reasons([(record.is_none(), "not_recorded")]).judge(outcome.as_ref().err());
        if let (Ok(is_reached), Some(record)) = (outcome, record) {
            let is_over = self.tracks.host_covers(&record);
            assert!(is_reached || !is_over, "an event that was waited for is not reached");
            if is_reached {
                self.tracks.host_waits(&record);
            }
        }
    }

    fn synchronize_event(&mut self, event: usize) {
        let record = self.events[event].record.clone();
        let outcome = self.events[event].event.synchronize();
        Reasons([(record.is_none(), "not_recorded")]).judge(outcome.as_ref().err());
        if let Some(record) = record {
            self.tracks.host_waits(&record);
        }
    }

    fn query(&mut self, stream: usize) {
        let track = self.streams[stream].track;
        let is_idle = self.streams[stream].stream.query().unwrap();
        assert!(is_idle || !self.tracks.is_idle(track), "a stream that was waited for is not idle");
        if is_idle {
            self.tracks.host_waits_for_track(track);
        }
    }

    fn synchronize(&mut self, stream: usize) {
        let track = self.streams[stream].track;
        self.streams[stream].stream.synchronize().unwrap();
        self.tracks.host_waits_for_track(track);
        // Sources of uploads are gone; only rooms of read-backs may wait to be fetched.
        let kept = self.given[track] - self.drops[track].count();
        assert!(kept <= self.reads.len(), "{kept} are kept for {} reads", self.reads.len());
    }

    fn flush(&mut self, device: usize) {
        self.devices[device].flush().unwrap();
        self.tracks.host_waits_for_device(device);
        assert_eq!(self.devices[device].in_flight(), 0, "flush left something");
        self.vectors.iter_mut().for_each(|vector| vector.is_touched[device] = false);
    }

    fn let_run(&mut self, choice: usize) {
        let Some(control) = &self.control else { return };
        let busy = control.busy_streams();
        if !busy.is_empty() {
            let _: Step = control.step(busy[choice % busy.len()]);
        }
    }

    fn finish(mut self) {
        (0..2).for_each(|device| self.flush(device));
        while !self.reads.is_empty() {
            self.fetch(0);
        }
        for (track, drops) in self.drops.iter().enumerate() {
            assert_eq!(drops.count(), self.given[track], "what track {track} was given");
        }
        for segment in 0..SEGMENTS {
            self.read(Piece { segment, offset: 0, len: SEGMENT_BYTES });
        }
        for (number, device) in self.devices.iter().enumerate() {
            let buffers = self.vectors.iter().filter(|vector| vector.has_buffer[number]).count();
            let live = (SEGMENTS / 2 + buffers) * SEGMENT_BYTES;
            assert_eq!(device.memory_in_use(), live as u64);
            // The staging ring may be left, and nothing else.
            assert!(device.pinned_ranges() <= 1);
        }
        self.compare_vectors();
    }
}
