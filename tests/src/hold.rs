//! Making sure that work is pending.

use std::sync::Arc;

use spoc_driver::fake::FakeStream;
use spoc_driver::{CopyRange, Stream};

use crate::gate::{Gate, gated_page};
use crate::stepper::Stepper;

/// How a backend's streams can be held.
#[derive(Clone)]
pub enum HoldWay {
    /// The stream's operations are not run: for the fake.
    Steps(Arc<Stepper>),
    /// A copy from a page that nobody can read yet: for devices whose copies run on a CPU thread of their
    /// own.
    Gate,
    /// Plenty of work: for devices that nothing can stop. It may be over before anybody looks.
    Load,
}

/// What is enqueued behind it waits until it is opened, or dropped.
pub struct Hold(Held);

enum Held {
    AtGate { _gate: Gate },
    Unstepped { stepper: Arc<Stepper>, stream: FakeStream },
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
            HoldWay::Gate => Self(Held::AtGate { _gate: gate(stream) }),
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
        !matches!(self.0, Held::Busy)
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

fn gate(stream: &Stream) -> Gate {
    let (page, gate) = gated_page().expect("userfaultfd holds faults of user code");
    let scratch = stream.device().allocate(64).unwrap();
    let range = CopyRange { src_offset: 0, dst: &scratch, dst_offset: 0, len_bytes: 64 };
    stream.copy_to_device(page, &[range]).unwrap();
    gate
}

fn load(stream: &Stream) {
    let (from, to) =
        (stream.device().allocate(LOAD_BYTES).unwrap(), stream.device().allocate(LOAD_BYTES).unwrap());
    for _ in 0..LOAD_COPIES {
        stream.copy_device_to_device(&from, 0, &to, 0, LOAD_BYTES).unwrap();
    }
}
