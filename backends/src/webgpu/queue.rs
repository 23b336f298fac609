//! The queue: one batch that everything is recorded into, and how far the device has come.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use spoc_driver::{Error, ErrorKind, Result};

use super::counters::{Counters, add};
use super::download::Downloads;
use super::error::{caught, failed};
use super::pipeline::Pipelines;
use super::staging::Uploads;
use crate::sync::lock;

/// A wait looks up this often whether the device was lost elsewhere.
const LOOK_UP: Duration = Duration::from_secs(1);
/// While another thread runs wgpu's callbacks, who waits for them looks again after this.
const MOMENT: Duration = Duration::from_micros(50);

/// The device's queue.
pub(super) struct Queue {
    pub(super) device: wgpu::Device,
    raw: wgpu::Queue,
    batch_max: usize,
    pub(super) counters: Arc<Counters>,
    pub(super) pipelines: Pipelines,
    /// Locked before `downloads`.
    state: Mutex<State>,
    pub(super) downloads: Downloads,
    health: Arc<Health>,
    /// Newest ticket that was submitted.
    submitted: AtomicU64,
}

struct State {
    /// What was recorded and not submitted.
    open: Option<wgpu::CommandEncoder>,
    launches: usize,
    uploads: Uploads,
    /// What wgpu calls the submissions that were not seen over.
    indices: VecDeque<(u64, wgpu::SubmissionIndex)>,
}

/// What wgpu's callbacks tell.
#[derive(Default)]
struct Health {
    completed: AtomicU64,
    is_lost: AtomicBool,
    /// Why recorded work did not become a submission: from then on the queue does nothing.
    failure: OnceLock<Error>,
}

/// The open batch, while something is recorded into it.
pub(super) struct Batch<'q> {
    pub(super) encoder: &'q mut wgpu::CommandEncoder,
    pub(super) uploads: &'q mut Uploads,
    /// What it will be known by.
    pub(super) ticket: u64,
    launches: &'q mut usize,
}

impl Batch<'_> {
    /// Runs a pipeline over groups.
    pub(super) fn dispatch(
        &mut self,
        pipeline: &wgpu::ComputePipeline,
        group: &wgpu::BindGroup,
        scalars: &[u8],
        groups: [u32; 3],
    ) {
        let mut pass = self.encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(pipeline);
        pass.set_bind_group(0, group, &[]);
        if !scalars.is_empty() {
            pass.set_immediates(0, scalars);
        }
        let [x, y, z] = groups;
        pass.dispatch_workgroups(x, y, z);
    }

    /// One more launch is in it.
    pub(super) fn launched(&mut self) {
        *self.launches += 1;
    }
}

impl Queue {
    pub(super) fn new(
        device: wgpu::Device,
        raw: wgpu::Queue,
        batch_max: usize,
        counters: &Arc<Counters>,
        pipelines: Pipelines,
    ) -> Arc<Self> {
        let health = Arc::<Health>::default();
        let told = Arc::clone(&health);
        device.set_device_lost_callback(move |reason, message| {
            // Our own end of it says so, too.
            if !matches!(reason, wgpu::DeviceLostReason::Destroyed) {
                tracing::error!(?reason, message, "a WebGPU device is lost");
            }
            told.is_lost.store(true, Ordering::Release);
        });
        let told = Arc::clone(&health);
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            tracing::error!(%error, "WebGPU reports an error that no call caught");
            told.failure.get_or_init(|| failed(&error, "working for a WebGPU queue"));
        }));
        let state = State {
            open: None,
            launches: 0,
            uploads: Uploads::default(),
            indices: VecDeque::with_capacity(64),
        };
        Arc::new(Self {
            device,
            raw,
            batch_max: batch_max.max(1),
            counters: Arc::clone(counters),
            pipelines,
            state: Mutex::new(state),
            downloads: Downloads::default(),
            health,
            submitted: AtomicU64::new(0),
        })
    }

    /// Refuses work once the device is lost, or once recorded work has failed.
    pub(super) fn check(&self, doing: &'static str) -> Result<()> {
        if self.health.is_lost.load(Ordering::Acquire) {
            // What was on its way to the host stays away from it.
            self.downloads.abandon();
            return Err(Error::new(ErrorKind::DeviceLost, doing));
        }
        match self.health.failure.get() {
            Some(failure) => {
                self.downloads.abandon();
                Err(failure.clone())
            }
            None => Ok(()),
        }
    }

    /// Records something into the batch; answers what the batch will be known by.
    pub(super) fn record<T>(&self, record: impl FnOnce(&mut Batch<'_>) -> Result<T>) -> Result<(u64, T)> {
        self.check("recording for a WebGPU queue")?;
        let mut state = lock(&self.state);
        let State { open, launches, uploads, .. } = &mut *state;
        let ticket = self.submitted.load(Ordering::Acquire) + 1;
        let encoder = open.get_or_insert_with(|| {
            self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
        });
        let outcome = record(&mut Batch { encoder, uploads, ticket, launches });
        if state.launches >= self.batch_max {
            self.submit(&mut state)?;
        }
        Ok((ticket, outcome?))
    }

    /// Submits what was recorded, if anything was; answers the newest ticket.
    pub(super) fn flush(&self) -> Result<u64> {
        let mut state = lock(&self.state);
        self.submit(&mut state)?;
        Ok(self.submitted.load(Ordering::Acquire))
    }

    fn submit(&self, state: &mut State) -> Result<()> {
        let Some(encoder) = state.open.take() else { return Ok(()) };
        self.check("submitting to a WebGPU queue")?;
        state.launches = 0;
        state.uploads.seal();
        let outcome =
            caught(&self.device, "submitting to a WebGPU queue", 0, || self.raw.submit([encoder.finish()]));
        let index = match outcome {
            Ok(index) => index,
            // Whoever was promised that it runs is told.
            Err(error) => {
                self.downloads.abandon();
                return Err(self.health.failure.get_or_init(|| error).clone());
            }
        };
        let ticket = self.submitted.load(Ordering::Relaxed) + 1;
        let health = Arc::clone(&self.health);
        self.raw.on_submitted_work_done(move || {
            health.completed.fetch_max(ticket, Ordering::AcqRel);
        });
        state.uploads.reclaim(ticket);
        self.downloads.request(ticket);
        let completed = self.health.completed.load(Ordering::Acquire);
        while state.indices.front().is_some_and(|(ticket, _)| *ticket <= completed) {
            state.indices.pop_front();
        }
        state.indices.push_back((ticket, index));
        self.submitted.store(ticket, Ordering::Release);
        add(&self.counters.submissions, 1);
        Ok(())
    }

    /// Submits the batch if the ticket is its.
    fn keep_promise(&self, ticket: u64) -> Result<()> {
        if ticket > self.submitted.load(Ordering::Acquire) {
            self.flush()?;
        }
        Ok(())
    }

    /// Whether the device is done with it, and its downloads are where they belong.
    fn has_reached(&self, ticket: u64) -> Result<bool> {
        Ok(self.health.completed.load(Ordering::Acquire) >= ticket && self.downloads.are_past(ticket)?)
    }

    /// Whether a point has been reached. Submits it first.
    pub(super) fn is_reached(&self, ticket: u64) -> Result<bool> {
        self.check("querying a WebGPU queue")?;
        self.keep_promise(ticket)?;
        if self.has_reached(ticket)? {
            return Ok(true);
        }
        self.poll(wgpu::PollType::Poll)?;
        self.check("querying a WebGPU queue")?;
        self.has_reached(ticket)
    }

    /// Waits for a point on the host.
    pub(super) fn wait(&self, ticket: u64) -> Result<()> {
        const DOING: &str = "waiting for a WebGPU queue";
        self.check(DOING)?;
        self.keep_promise(ticket)?;
        while !self.has_reached(ticket)? {
            let index = self.index_of(ticket);
            let is_over = index.is_none();
            self.poll(match index {
                Some(index) => wgpu::PollType::Wait { submission_index: Some(index), timeout: Some(LOOK_UP) },
                None => wgpu::PollType::Poll,
            })?;
            self.check(DOING)?;
            // The device is done, but the callbacks that say so may be running on another thread.
            if is_over && !self.has_reached(ticket)? {
                std::thread::sleep(MOMENT);
            }
        }
        Ok(())
    }

    /// Runs wgpu's callbacks that are due.
    pub(super) fn tend(&self) -> Result<()> {
        self.poll(wgpu::PollType::Poll)
    }

    /// Waits for everything that was given so far.
    pub(super) fn synchronize(&self) -> Result<()> {
        let ticket = self.flush()?;
        self.wait(ticket)
    }

    /// The first submission at or after the ticket that was not seen over.
    fn index_of(&self, ticket: u64) -> Option<wgpu::SubmissionIndex> {
        if self.health.completed.load(Ordering::Acquire) >= ticket {
            return None;
        }
        let state = lock(&self.state);
        state.indices.iter().find(|(known, _)| *known >= ticket).map(|(_, index)| index.clone())
    }

    fn poll(&self, how: wgpu::PollType) -> Result<()> {
        match self.device.poll(how) {
            Ok(_) | Err(wgpu::PollError::Timeout) => Ok(()),
            Err(error) => Err(Error::new(ErrorKind::Backend, "waiting for a WebGPU queue").because(error)),
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // Nobody refers to the device any more; what was recorded was promised to run all the same.
        if let Err(error) = self.synchronize()
            && !error.is_device_lost()
        {
            tracing::error!(%error, "work that was enqueued did not run");
        }
        self.downloads.abandon();
    }
}
