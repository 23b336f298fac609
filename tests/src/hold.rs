//! Making sure that work is pending.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use spoc_driver::fake::FakeStream;
use spoc_driver::{CopyRange, Device, Stream, StreamOptions};

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
    /// A wait for a word that another stream writes: for devices that have both. Where a call waits for the
    /// device, as some APIs' do, nobody would write the word: so it opens by itself after a while.
    Word,
    /// Plenty of work: for devices that nothing can stop. It may be over before anybody looks.
    Load,
}

/// What is enqueued behind it waits until it is opened, or dropped.
pub struct Hold(Held);

enum Held {
    AtGate { _gate: Gate, _turn: Option<Turn> },
    Unstepped { stepper: Arc<Stepper>, stream: FakeStream },
    AtWord(WordHold),
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
            HoldWay::Word => Self(Held::AtWord(WordHold::on(stream))),
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
            Held::AtWord(word) => !word.is_open(),
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

/// How long a held stream waits for a word at most.
const WORD_PATIENCE: Duration = Duration::from_millis(1500);

/// Waits for a word, and whoever writes it.
struct WordHold {
    open: Option<mpsc::Sender<()>>,
    is_open: Arc<AtomicBool>,
    writer: Option<thread::JoinHandle<()>>,
}

impl WordHold {
    fn on(stream: &Stream) -> Self {
        let device = stream.device();
        let (word, writer) = (device.allocate(64).unwrap(), free_stream(device));
        writer.fill(&word, 0, 64, 0).unwrap();
        writer.synchronize().unwrap();
        stream.wait_value(&word, 0, 1).unwrap();
        let (open, opened) = mpsc::channel();
        let is_open = Arc::new(AtomicBool::new(false));
        let tells = Arc::clone(&is_open);
        let writer = thread::spawn(move || {
            let _ = opened.recv_timeout(WORD_PATIENCE);
            tells.store(true, Ordering::SeqCst);
            writer.write_value(&word, 0, 1).unwrap();
            writer.synchronize().unwrap();
        });
        Self { open: Some(open), is_open, writer: Some(writer) }
    }

    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::SeqCst)
    }
}

impl Drop for WordHold {
    fn drop(&mut self) {
        drop(self.open.take());
        if let Some(writer) = self.writer.take() {
            writer.join().unwrap();
        }
    }
}

fn free_stream(device: &Device) -> Stream {
    device.create_stream(StreamOptions { non_blocking: true, ..Default::default() }).unwrap()
}

/// Whether streams of the device can be held by a word.
pub(crate) fn word_holds(device: &Device) -> bool {
    let capabilities = device.capabilities();
    capabilities.write_value.is_available()
        && capabilities.wait_value.is_available()
        && capabilities.fill.is_available()
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
    let others_go_on = returns && {
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
