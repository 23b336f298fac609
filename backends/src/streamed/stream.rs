//! Streams: the API's own, whose default stream is ordered against blocking ones by the API itself.

use std::any::Any;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use spoc_driver::backend::CaptureState;
use spoc_driver::{Error, ErrorKind, Result, StreamOptions, StreamPriority};

use super::context::{Context, Relaxed};
use super::device::Shared;
use super::error::{Api, NOT_READY, SUCCESS, kind_of};
use super::event::Event;
use super::table::{Code, Handle};
use crate::sync::lock;

/// A stream.
pub(crate) struct Stream {
    pub(crate) lane: Arc<Lane>,
    _shared: Arc<Shared>,
}

/// What a stream is to the API.
pub(crate) struct Lane {
    raw: Handle,
    kind: Kind,
    /// Recorded to wait for the stream: the API's own wait may spin.
    end: Event,
    /// Recorded behind each wait for a word.
    words: OnceLock<Arc<Event>>,
    context: Arc<Context>,
    // Last: what was lent goes after our use of it.
    _keep_alive: KeepAlive,
}

type KeepAlive = Option<Box<dyn Any + Send + Sync>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Made here, and destroyed here.
    Own,
    /// The context's default stream: a name that means something only where the context is current.
    Default,
    /// Another library's.
    Lent,
}

// SAFETY: the API lets any thread use a stream.
unsafe impl Send for Lane {}
// SAFETY: as above.
unsafe impl Sync for Lane {}

/// The handles that name a stream of whatever context is current.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

/// The default stream does not wait for such a one.
const NON_BLOCKING: u32 = 1;

impl Stream {
    /// A new stream.
    pub(crate) fn create(shared: &Arc<Shared>, options: StreamOptions) -> Result<Self> {
        let context = &shared.context;
        let here = context.enter()?;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: the places are valid, and the context is current.
        let code = unsafe { (context.api.library.context_priorities)(&raw mut least, &raw mut greatest) };
        context.api.check(code, "asking for stream priorities")?;
        let flags = if options.non_blocking { NON_BLOCKING } else { 0 };
        let mut raw = std::ptr::null_mut();
        // SAFETY: as above.
        let code = unsafe {
            (context.api.library.stream_create)(&raw mut raw, flags, level(options.priority, least, greatest))
        };
        context.api.check(code, "creating a stream")?;
        drop(here);
        Self::new(shared, raw, Kind::Own, None)
    }

    /// The default stream of the context. Others may use it, too.
    pub(crate) fn default_of(shared: &Arc<Shared>) -> Result<Self> {
        Self::new(shared, default_of(shared), Kind::Default, None)
    }

    /// Somebody else's stream of this context.
    ///
    /// # Safety
    /// It is live, and outlives `keep_alive`.
    pub(crate) unsafe fn lent(shared: &Arc<Shared>, raw: Handle, keep_alive: KeepAlive) -> Result<Self> {
        const DOING: &str = "adopting a stream";
        match raw.addr() {
            0 | LEGACY => {
                return Self::new(shared, default_of(shared), Kind::Default, keep_alive);
            }
            PER_THREAD => {
                return Err(Error::new(ErrorKind::InvalidArgument, DOING)
                    .with("because", "the default stream of a thread is another one on every thread"));
            }
            _ => {}
        }
        let api = &shared.context.api;
        let context = &shared.context;
        // SAFETY: the caller's word: a live stream.
        let is_own = unsafe { api.flavour.is_stream_of(raw, context.raw(), context.device) };
        if !is_own.map_err(|code| api.error(kind_of(code), code, DOING))? {
            return Err(Error::new(ErrorKind::WrongDevice, DOING).with("because", "it is of another context"));
        }
        Self::new(shared, raw, Kind::Lent, keep_alive)
    }

    fn new(shared: &Arc<Shared>, raw: Handle, kind: Kind, keep_alive: KeepAlive) -> Result<Self> {
        let context = Arc::clone(&shared.context);
        if kind != Kind::Default {
            // Whoever makes streams is about to work.
            shared.modules.load_ahead(&context);
        }
        let end = Event::create(&context)?;
        let words = OnceLock::new();
        let lane = Arc::new(Lane { raw, kind, end, words, context, _keep_alive: keep_alive });
        shared.add(&lane);
        Ok(Self { lane, _shared: Arc::clone(shared) })
    }
}

fn default_of(shared: &Shared) -> Handle {
    std::ptr::without_provenance_mut(shared.traits().default_stream)
}

/// A priority between the least and the greatest, which is the smaller number.
fn level(priority: StreamPriority, least: i32, greatest: i32) -> i32 {
    match priority {
        StreamPriority::Low => least,
        StreamPriority::Normal => 0_i32.clamp(greatest.min(least), least.max(greatest)),
        StreamPriority::High => greatest,
    }
}

impl Lane {
    pub(crate) fn api(&self) -> &Api {
        &self.context.api
    }

    /// Whether nobody else uses it.
    pub(crate) fn is_own(&self) -> bool {
        self.kind == Kind::Own
    }

    /// Whether it can be given a batch: the API refuses them on the default stream.
    pub(crate) fn takes_batches(&self) -> bool {
        self.kind != Kind::Default
    }

    /// Enqueues something.
    ///
    /// # Errors
    /// `Capturing` if it is the default stream and a blocking stream is being captured: such a call would
    /// spoil the capture. What the API answers.
    pub(crate) fn enqueue(&self, doing: &'static str, call: impl FnOnce(Handle) -> Code) -> Result<()> {
        if self.kind != Kind::Default {
            return self.api().check(call(self.raw), doing);
        }
        let _here = self.context.enter()?;
        self.capturing()?;
        self.api().check(call(self.raw), doing)
    }

    /// As [`Lane::enqueue`], for calls that want the context to be current.
    pub(crate) fn enqueue_here(&self, doing: &'static str, call: impl FnOnce(Handle) -> Code) -> Result<()> {
        let _here = self.context.enter()?;
        if self.kind == Kind::Default {
            self.capturing()?;
        }
        self.api().check(call(self.raw), doing)
    }

    /// Enqueues a wait for a word, when no call is under way that waits for the device.
    pub(crate) fn wait_for_word(&self, call: impl FnOnce(Handle) -> Code) -> Result<()> {
        let words = match self.words.get() {
            Some(words) => words,
            None => {
                let new = Arc::new(Event::create(&self.context)?);
                self.words.get_or_init(|| new)
            }
        };
        self.context.gate.wait(words, || {
            self.enqueue("waiting for a word on a stream", call)?;
            words.record(self)
        })
    }

    /// Asks, which harms nothing. The context is current, or the stream is not the default one.
    fn capturing(&self) -> Result<CaptureState> {
        let mut status = 0_u32;
        // SAFETY: the place is valid; the stream is live.
        let code = unsafe { (self.api().library.stream_is_capturing)(self.raw, &raw mut status) };
        self.api().check(code, "asking whether a stream is captured")?;
        Ok(match status {
            0 => CaptureState::None,
            1 => CaptureState::Active,
            _ => CaptureState::Spoiled,
        })
    }

    /// Whether it is being recorded into a graph. The default stream cannot be; while a blocking stream is,
    /// it may not be used, which is told as a capture of its own.
    pub(crate) fn capture_state(&self) -> Result<CaptureState> {
        if self.kind != Kind::Default {
            return self.capturing();
        }
        let _here = self.context.enter()?;
        match self.capturing() {
            Err(error) if *error.kind() == ErrorKind::Capturing => Ok(CaptureState::Active),
            outcome => outcome,
        }
    }

    pub(crate) fn is_idle(&self) -> Result<bool> {
        const DOING: &str = "querying a stream";
        // Asking how far a stream has come that is captured would spoil the capture.
        if self.kind == Kind::Lent && self.capturing()? != CaptureState::None {
            return Err(Error::new(ErrorKind::Capturing, DOING));
        }
        let code = if self.kind == Kind::Default {
            let _here = self.context.enter()?;
            self.capturing()?;
            // SAFETY: the context's default stream, and the context is current.
            unsafe { (self.api().library.stream_query)(self.raw) }
        } else {
            let _relaxed = Relaxed::new(self.api());
            // SAFETY: live while `self` is.
            unsafe { (self.api().library.stream_query)(self.raw) }
        };
        if code == NOT_READY { Ok(false) } else { self.api().check(code, DOING).map(|()| true) }
    }

    /// Waits for all that it was given. The thread sleeps.
    pub(crate) fn synchronize(&self) -> Result<()> {
        // A stream that is captured has nothing to wait for, and recording an event in it would change the graph.
        if self.kind == Kind::Lent && self.capturing()? != CaptureState::None {
            return Err(Error::new(ErrorKind::Capturing, "waiting for a stream"));
        }
        self.end.record(self)?;
        self.end.synchronize()
    }
}

/// Streams: those of an opening, or those of a context.
#[derive(Default)]
pub(crate) struct Lanes(Mutex<Vec<Weak<Lane>>>);

impl Lanes {
    pub(crate) fn add(&self, lane: &Arc<Lane>) {
        let mut lanes = lock(&self.0);
        lanes.retain(|lane| lane.strong_count() > 0);
        lanes.push(Arc::downgrade(lane));
    }

    /// Those that are still there.
    pub(crate) fn live(&self) -> Vec<Arc<Lane>> {
        lock(&self.0).iter().filter_map(Weak::upgrade).collect()
    }

    /// Whether none has work. One that cannot be asked is none to wait for.
    pub(crate) fn are_idle(&self) -> bool {
        self.live().iter().all(|lane| lane.is_idle().unwrap_or(true))
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if !self.api().is_own_process() {
            return;
        }
        if let Some(words) = self.words.take() {
            self.context.gate.orphan(words);
        }
        if self.kind != Kind::Own {
            return;
        }
        // SAFETY: created here, and destroyed once; pending work goes on.
        let code = unsafe { (self.api().library.stream_destroy)(self.raw) };
        if code != SUCCESS
            && let Err(error) = self.api().check(code, "destroying a stream")
        {
            super::reaper::tell(&error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_levels_of_the_device() {
        let levels = |least, greatest| {
            [StreamPriority::Low, StreamPriority::Normal, StreamPriority::High]
                .map(|priority| level(priority, least, greatest))
        };
        assert_eq!(levels(0, -5), [0, 0, -5]);
        assert_eq!(levels(0, 0), [0, 0, 0]);
        assert_eq!(levels(-1, -5), [-1, -1, -5]);
    }
}
