//! Making sure that work is pending.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use spoc_driver::fake::FakeStream;
use spoc_driver::{
    Arguments, CopyRange, Device, ElementKind, Error, Grid, Kernel, KindRule, Language, Parameter, Source,
    Stream, StreamOptions,
};

use crate::gate::{Gate, GatedPage, gated_page};
use crate::stepper::Stepper;

/// How a backend's streams can be held.
#[derive(Clone)]
pub enum HoldWay {
    /// The stream's operations are not run: for the fake.
    Steps(Arc<Stepper>),
    /// A copy from a page that nobody can read yet: for devices whose copies run on a CPU thread of their
    /// own.
    Gate,
    /// The same, one at a time in the process: for devices whose streams share a few threads.
    OneGate,
    /// A kernel that takes its time: for devices that run it. It opens by itself and not before: a call that waits
    /// for the device may keep every other call from being made, so nobody can be relied on to open it.
    Spin,
    /// Plenty of work: for devices that nothing can stop. It may be over before anybody looks.
    Load,
}

/// What is enqueued behind it waits until it is opened, or dropped.
pub struct Hold(Held);

enum Held {
    AtGate { _gate: Gate, _turn: Option<Turn> },
    Unstepped { stepper: Arc<Stepper>, stream: FakeStream },
    Spinning { since: Instant },
    Busy,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Self::Unstepped { stepper, stream } = self {
            stepper.release(*stream);
        }
    }
}

/// Copies that a [`HoldWay::Load`] enqueues, and the bytes of each.
const LOAD_COPIES: usize = 24;
const LOAD_BYTES: u64 = 1 << 20;

impl Hold {
    pub(crate) fn on(way: &HoldWay, stream: &Stream) -> Self {
        match way {
            HoldWay::Steps(stepper) => {
                let name = stepper.hold(stream);
                // As the other ways do: something is enqueued, so the stream is not idle.
                stream.fill(&stream.device().allocate(64).unwrap(), 0, 64, 0).unwrap();
                Self(Held::Unstepped { stepper: Arc::clone(stepper), stream: name })
            }
            HoldWay::Gate => Self(Held::AtGate { _gate: gate(stream), _turn: None }),
            HoldWay::OneGate => {
                let turn = Turn::take();
                Self(Held::AtGate { _gate: gate(stream), _turn: Some(turn) })
            }
            HoldWay::Spin => {
                let since = Instant::now();
                spin(stream, SPIN).unwrap();
                Self(Held::Spinning { since })
            }
            HoldWay::Load => {
                load(stream);
                Self(Held::Busy)
            }
        }
    }

    /// Whether what was enqueued behind it cannot have run. If not, a check may only demand that the
    /// answers it gets fit together.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        match &self.0 {
            Held::Busy => false,
            Held::Spinning { since } => since.elapsed() < SPIN / 2,
            Held::AtGate { .. } | Held::Unstepped { .. } => true,
        }
    }

    /// Lets the stream go on.
    pub fn open(self) {
        drop(self);
    }

    /// Asserts that the stream has not come past the hold, where that is certain.
    #[track_caller]
    pub fn assert_pending(&self, stream: &Stream) {
        if self.is_certain() {
            assert!(!stream.query().unwrap(), "a held stream says that it is idle");
        }
    }
}

/// How long a kernel spins. What is looked at within half of it cannot have run.
const SPIN: Duration = Duration::from_millis(200);

/// Keeps a stream busy for a time.
fn spin(stream: &Stream, time: Duration) -> Result<(), Error> {
    let text: Arc<[u8]> = Arc::from(*include_bytes!("spin.ptx"));
    let source = Source { language: Language::Ptx, text, entry: "spin".to_owned() };
    let parameters = [Parameter::scalar(KindRule::Exactly(ElementKind::U64))];
    // SAFETY: it looks at the clock, and at no memory.
    let kernel = unsafe { Kernel::from_sources("spin", &parameters, vec![source]) }?;
    let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    stream.launch(&kernel, Grid::linear(1), &Arguments::new().scalar(nanoseconds))
}

/// Found out by doing: whether a kernel holds one stream of the device, and nothing else.
pub(crate) fn spin_holds(device: &Device) -> bool {
    let stream = || device.create_stream(StreamOptions { non_blocking: true, ..Default::default() }).unwrap();
    let (held, other) = (stream(), stream());
    if spin(&held, SPIN).is_err() {
        return false;
    }
    let scratch = device.allocate(64).unwrap();
    let others_go_on = other.fill(&scratch, 0, 64, 0).is_ok() && other.synchronize().is_ok();
    let is_held = !held.query().unwrap();
    held.synchronize().unwrap();
    is_held && others_go_on
}

fn gate(stream: &Stream) -> Gate {
    let (page, gate) = gated_page().expect("userfaultfd holds faults of user code");
    copy_gated(stream, page);
    gate
}

/// Returns at once where the device's copies run elsewhere; else when the gate is open.
fn copy_gated(stream: &Stream, page: GatedPage) {
    let scratch = stream.device().allocate(64).unwrap();
    let range = CopyRange { src_offset: 0, dst: &scratch, dst_offset: 0, len_bytes: 64 };
    stream.copy_to_device(page, &[range]).unwrap();
}

/// Found out by doing: whether a gate holds one stream of the device, and nothing else.
pub(crate) fn gate_holds(device: &Device) -> bool {
    const PATIENCE: Duration = Duration::from_secs(2);
    let Ok((page, gate)) = gated_page() else { return false };
    let stream = || device.create_stream(StreamOptions { non_blocking: true, ..Default::default() }).unwrap();
    let (held, other) = (stream(), stream());
    // Before the gate: allocating is work for the device, too, and nothing ends that wait.
    let scratch = device.allocate(64).unwrap();
    let enqueuer = thread::spawn(move || {
        copy_gated(&held, page);
        held
    });
    let is_in_time = |is_done: &dyn Fn() -> bool| {
        let deadline = Instant::now() + PATIENCE;
        while !is_done() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        is_done()
    };
    let returns = is_in_time(&|| enqueuer.is_finished());
    // Somebody stands at the gate: before that, a device of a single thread may still do the other copy first.
    let others_go_on = returns && is_in_time(&|| gate.is_reached()) && {
        let range = CopyRange { src_offset: 0, dst: &scratch, dst_offset: 0, len_bytes: 64 };
        other.copy_to_device(vec![0; 64], &[range]).unwrap();
        is_in_time(&|| other.query().unwrap())
    };
    let waiting = if returns { Some(enqueuer.join().unwrap()) } else { None };
    let is_held = waiting.as_ref().is_some_and(|held| !held.query().unwrap());
    drop(gate);
    others_go_on && is_held
}

/// The right to hold a stream, of which there is one in the process.
struct Turn;

static TURN: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

impl Turn {
    fn take() -> Self {
        let is_taken = TURN.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut is_taken =
            TURN.1.wait_while(is_taken, |is_taken| *is_taken).unwrap_or_else(PoisonError::into_inner);
        *is_taken = true;
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *TURN.0.lock().unwrap_or_else(PoisonError::into_inner) = false;
        TURN.1.notify_one();
    }
}

fn load(stream: &Stream) {
    let (from, to) =
        (stream.device().allocate(LOAD_BYTES).unwrap(), stream.device().allocate(LOAD_BYTES).unwrap());
    for _ in 0..LOAD_COPIES {
        stream.copy_device_to_device(&from, 0, &to, 0, LOAD_BYTES).unwrap();
    }
}
