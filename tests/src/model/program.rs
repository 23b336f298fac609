//! Programs, how they look, and how random ones are made.

use std::fmt;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::Union;

/// Streams, segments and events are numbered over both devices: those with even numbers belong to the first.
/// Streams 0 and 1 are the default streams; of the others, those below `FREE` are blocking.
pub(super) const STREAMS: usize = 8;
/// The first stream that is non-blocking.
pub(super) const FREE: usize = 4;
/// How many segments.
pub(super) const SEGMENTS: usize = 6;
/// How many events.
pub(super) const EVENTS: usize = 6;
/// How many vectors. The buffer of vector `v` on device `d` is numbered as segment `SEGMENTS + 2 * v + d`.
pub(super) const VECTORS: usize = 3;
/// Size of every segment, and of every vector, in bytes: a multiple of every granule.
pub(super) const SEGMENT_BYTES: usize = 96;

/// A range of a segment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Which segment.
    pub segment: usize,
    /// First byte.
    pub offset: usize,
    /// How many.
    pub len: usize,
}

impl Piece {
    pub(super) fn is_inside(self) -> bool {
        self.offset + self.len <= SEGMENT_BYTES
    }

    pub(super) fn overlaps(self, other: Self) -> bool {
        self.segment == other.segment
            && self.offset < other.offset + other.len
            && other.offset < self.offset + self.len
    }
}

/// How the machine orders an operation after what it would race with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// By an event between the streams.
    ByEvent,
    /// By waiting on the host.
    ByHost,
}

/// One step of a program.
#[derive(Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Op {
    Upload { stream: usize, to: Vec<Piece>, seed: u8, is_pinned: bool, order: Order },
    Download { stream: usize, from: Piece, is_pinned: bool, order: Order },
    Move { stream: usize, from: Piece, to: Piece, order: Order },
    Fill { stream: usize, to: Piece, value: u8, order: Order },
    Write { to: Piece, seed: u8 },
    Read { from: Piece },
    Fetch { read: usize },
    Abandon { read: usize },
    Record { stream: usize, event: usize },
    Wait { stream: usize, event: usize },
    QueryEvent { event: usize },
    SynchronizeEvent { event: usize },
    Query { stream: usize },
    Synchronize { stream: usize },
    Flush { device: usize },
    RenewSegment { segment: usize },
    RenewStream { stream: usize },
    RenewEvent { event: usize },
    Step { choice: usize },
    Vector { vector: usize, op: VectorOp },
}

/// One step on a vector. Offsets and lengths are in bytes, which are its elements.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum VectorOp {
    Get { index: usize },
    Set { index: usize, value: u8 },
    ToCpu,
    ToDevice { device: usize },
    Write { at: Piece, seed: u8, how: How },
    Read { at: Piece, stream: Option<usize>, order: Order },
    Free { device: usize },
    Renew { device: usize, is_device_only: bool },
}

/// How a vector is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct How {
    /// On this stream, or on none.
    pub stream: Option<usize>,
    /// Through the staging ring.
    pub is_staged: bool,
    /// How conflicts are ordered.
    pub order: Order,
}

/// A program, which prints itself as the source that would do the same.
#[derive(Clone, PartialEq, Eq)]
pub struct Program(pub Vec<Op>);

fn stream_name(stream: usize) -> String {
    if stream < 2 { format!("default{stream}") } else { format!("stream{stream}") }
}

fn host_name(is_pinned: bool) -> &'static str {
    if is_pinned { "pinned" } else { "pageable" }
}

fn remark(order: Order) -> &'static str {
    match order {
        Order::ByEvent => "",
        Order::ByHost => " // conflicts are waited for on the host",
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segment{}[{}..{}]", self.segment, self.offset, self.offset + self.len)
    }
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Upload { stream, to, seed, is_pinned, order } => {
                let (name, host, remark) = (stream_name(*stream), host_name(*is_pinned), remark(*order));
                write!(f, "{name}.copy_to_device({host}(pattern({seed})), {to:?});{remark}")
            }
            Self::Download { stream, from, is_pinned, order } => {
                let (name, host, remark) = (stream_name(*stream), host_name(*is_pinned), remark(*order));
                write!(f, "reads.push({name}.copy_to_host({from:?}, {host}()));{remark}")
            }
            Self::Move { stream, from, to, order } => {
                let (name, remark) = (stream_name(*stream), remark(*order));
                write!(f, "{name}.copy_device_to_device({from:?}, {to:?});{remark}")
            }
            Self::Fill { stream, to, value, order } => {
                write!(f, "{}.fill({to:?}, {value});{}", stream_name(*stream), remark(*order))
            }
            Self::Write { to, seed } => write!(f, "{to:?}.write(pattern({seed}));"),
            Self::Read { from } => write!(f, "{from:?}.read();"),
            Self::Fetch { read } => write!(f, "reads.swap_remove({read} % reads.len()).wait();"),
            Self::Abandon { read } => write!(f, "drop(reads.swap_remove({read} % reads.len()));"),
            Self::Record { stream, event } => write!(f, "{}.record(event{event});", stream_name(*stream)),
            Self::Wait { stream, event } => write!(f, "{}.wait(event{event});", stream_name(*stream)),
            Self::QueryEvent { event } => write!(f, "event{event}.query();"),
            Self::SynchronizeEvent { event } => write!(f, "event{event}.synchronize();"),
            Self::Query { stream } => write!(f, "{}.query();", stream_name(*stream)),
            Self::Synchronize { stream } => write!(f, "{}.synchronize();", stream_name(*stream)),
            Self::Flush { device } => write!(f, "device{device}.flush();"),
            Self::RenewSegment { segment } => {
                write!(f, "segment{segment} = device{}.allocate({SEGMENT_BYTES});", segment % 2)
            }
            Self::RenewStream { stream } => {
                let kind = if *stream < FREE { "blocking" } else { "non_blocking" };
                write!(f, "{} = device{}.create_stream({kind});", stream_name(*stream), stream % 2)
            }
            Self::RenewEvent { event } => write!(f, "event{event} = device{}.create_event();", event % 2),
            Self::Step { choice } => write!(f, "step({choice}); // where the test lets work run"),
            Self::Vector { vector, op } => print_vector(f, *vector, op),
        }
    }
}

fn print_vector(f: &mut fmt::Formatter<'_>, vector: usize, op: &VectorOp) -> fmt::Result {
    let name = format!("vector{vector}");
    let end = |at: &Piece| at.offset + at.len;
    match op {
        VectorOp::Get { index } => write!(f, "{name}.get({index});"),
        VectorOp::Set { index, value } => write!(f, "{name}.set({index}, {value});"),
        VectorOp::ToCpu => write!(f, "{name}.to_cpu();"),
        VectorOp::ToDevice { device } => write!(f, "{name}.to_device(device{device});"),
        VectorOp::Write { at, seed, how: How { stream, is_staged, order } } => {
            let call = if *is_staged { "stage_to_device" } else { "copy_to_device" };
            let range = format!("{}..{}, pattern({seed})", at.offset, end(at));
            match stream {
                None => write!(f, "{name}.{call}({range});"),
                Some(stream) => {
                    let (stream, remark) = (stream_name(*stream), remark(*order));
                    write!(f, "{name}.{call}_on({stream}, {range});{remark}")
                }
            }
        }
        VectorOp::Read { at, stream: None, .. } => {
            write!(f, "{name}.copy_to_host({}..{});", at.offset, end(at))
        }
        VectorOp::Read { at, stream: Some(stream), order } => {
            let (stream, remark) = (stream_name(*stream), remark(*order));
            write!(f, "reads.push({name}.copy_to_host_on({stream}, {}..{}));{remark}", at.offset, end(at))
        }
        VectorOp::Free { device } => write!(f, "{name}.free_buffer(device{device});"),
        VectorOp::Renew { is_device_only: false, .. } => {
            write!(f, "{name} = Vector::zeroed({SEGMENT_BYTES});")
        }
        VectorOp::Renew { device, .. } => {
            write!(f, "{name} = Vector::device_only(device{device}, {SEGMENT_BYTES}); // zeroed")
        }
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f)?;
        self.0.iter().try_for_each(|op| writeln!(f, "    {op:?}"))
    }
}

/// Random programs of up to `len` steps, whose offsets and lengths are multiples of `granule`.
pub fn programs(len: usize, granule: usize) -> impl Strategy<Value = Program> {
    vec(op(granule), 1..len).prop_map(Program)
}

/// Numbers below `count` that belong to a device, but for one in forty.
fn of(device: usize, count: usize) -> BoxedStrategy<usize> {
    let own = (0..count / 2).prop_map(move |number| number * 2 + device);
    let other = (0..count / 2).prop_map(move |number| number * 2 + 1 - device);
    Union::new_weighted(vec![(39, own.boxed()), (1, other.boxed())]).boxed()
}

/// Mostly within the segment, sometimes up to and past its end.
fn piece(device: usize, granule: usize) -> BoxedStrategy<Piece> {
    let units = SEGMENT_BYTES / granule;
    let inside = (0..units).prop_flat_map(move |first| (Just(first), 0..=(units - first)));
    let anywhere = (0..units + 2, 0..units + 2);
    let range = Union::new_weighted(vec![(30, inside.boxed()), (1, anywhere.boxed())]);
    let piece =
        move |(segment, (offset, len))| Piece { segment, offset: offset * granule, len: len * granule };
    (of(device, SEGMENTS), range).prop_map(piece).boxed()
}

fn order() -> impl Strategy<Value = Order> {
    prop_oneof![3 => Just(Order::ByEvent), 1 => Just(Order::ByHost)]
}

fn op(granule: usize) -> impl Strategy<Value = Op> {
    (0..2_usize).prop_flat_map(move |device| {
        prop_oneof![
            5 => copies(device, granule),
            4 => waits(device),
            1 => renewals(device),
            4 => vectors(device, granule),
        ]
    })
}

fn copies(device: usize, granule: usize) -> BoxedStrategy<Op> {
    let stream = || of(device, STREAMS);
    let piece = || piece(device, granule);
    let is_pinned = || prop::bool::weighted(0.3);
    prop_oneof![
        4 => (stream(), vec(piece(), 1..4), any::<u8>(), is_pinned(), order())
            .prop_map(|(stream, to, seed, is_pinned, order)| Op::Upload { stream, to, seed, is_pinned, order }),
        3 => (stream(), piece(), is_pinned(), order())
            .prop_map(|(stream, from, is_pinned, order)| Op::Download { stream, from, is_pinned, order }),
        4 => (stream(), piece(), piece(), order()).prop_map(moved),
        1 => (stream(), piece(), any::<u8>(), order())
            .prop_map(|(stream, to, value, order)| Op::Fill { stream, to, value, order }),
        1 => (piece(), any::<u8>()).prop_map(|(to, seed)| Op::Write { to, seed }),
        1 => piece().prop_map(|from| Op::Read { from }),
        2 => (0..8_usize).prop_map(|read| Op::Fetch { read }),
        1 => (0..8_usize).prop_map(|read| Op::Abandon { read }),
    ]
    .boxed()
}

/// Both ranges are equally long, and inside if both were.
fn moved((stream, from, mut to, order): (usize, Piece, Piece, Order)) -> Op {
    if from.is_inside() && to.is_inside() {
        to.offset = to.offset.min(SEGMENT_BYTES - from.len);
    }
    to.len = from.len;
    Op::Move { stream, from, to, order }
}

fn waits(device: usize) -> BoxedStrategy<Op> {
    let (stream, event) = (|| of(device, STREAMS), || of(device, EVENTS));
    prop_oneof![
        6 => (stream(), event()).prop_map(|(stream, event)| Op::Record { stream, event }),
        6 => (stream(), event()).prop_map(|(stream, event)| Op::Wait { stream, event }),
        2 => event().prop_map(|event| Op::QueryEvent { event }),
        1 => event().prop_map(|event| Op::SynchronizeEvent { event }),
        2 => stream().prop_map(|stream| Op::Query { stream }),
        1 => stream().prop_map(|stream| Op::Synchronize { stream }),
        1 => Just(Op::Flush { device }),
        6 => (0..STREAMS).prop_map(|choice| Op::Step { choice }),
    ]
    .boxed()
}

fn renewals(device: usize) -> BoxedStrategy<Op> {
    prop_oneof![
        of(device, SEGMENTS).prop_map(|segment| Op::RenewSegment { segment }),
        // The default streams cannot be made anew.
        (2..STREAMS).prop_map(|stream| Op::RenewStream { stream }),
        of(device, EVENTS).prop_map(|event| Op::RenewEvent { event }),
    ]
    .boxed()
}

fn vectors(device: usize, granule: usize) -> BoxedStrategy<Op> {
    let at = || piece(device, granule);
    let stream = || prop::option::weighted(0.7, of(device, STREAMS));
    let how = (stream(), prop::bool::weighted(0.4), order()).prop_map(|(stream, is_staged, order)| How {
        stream,
        is_staged,
        order,
    });
    let index = || 0..SEGMENT_BYTES + 1;
    let op = prop_oneof![
        2 => index().prop_map(|index| VectorOp::Get { index }),
        2 => (index(), any::<u8>()).prop_map(|(index, value)| VectorOp::Set { index, value }),
        1 => Just(VectorOp::ToCpu),
        5 => Just(VectorOp::ToDevice { device }),
        8 => (at(), any::<u8>(), how).prop_map(|(at, seed, how)| VectorOp::Write { at, seed, how }),
        5 => (at(), stream(), order()).prop_map(|(at, stream, order)| VectorOp::Read { at, stream, order }),
        1 => Just(VectorOp::Free { device }),
        1 => any::<bool>().prop_map(move |is_device_only| VectorOp::Renew { device, is_device_only }),
    ];
    (0..VECTORS, op).prop_map(|(vector, op)| Op::Vector { vector, op }).boxed()
}
