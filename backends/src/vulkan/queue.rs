//! Lanes: a queue, its timeline, and the command buffers that are used again once their value is reached.
//!
//! Launches are gathered in a **batch**: a command buffer that is submitted when it is full, or when anybody needs
//! what it will signal. Until then its value is promised: the one after the last that was submitted.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use ash::vk;
use spoc_driver::{Error, Result};

use super::core::{Core, SharedQueue};
use super::counters::add;
use super::identity::Family;
use super::pipeline::Pipeline;
use super::sets::Sets;
use crate::sync::lock;

/// Most lanes for copies.
pub(super) const COPY_LANES_MAX: usize = 4;
/// Most lanes a device is given: as many again for kernels, where another family runs them.
pub(super) const LANES_MAX: usize = 2 * COPY_LANES_MAX;
/// Command buffers in flight a lane; submitting more waits for the oldest.
const COMMANDS_MAX: usize = 256;
/// Command buffers are made in groups of this many.
const COMMANDS_EACH: u32 = 16;
/// Regions of one copy command.
const REGIONS_MAX: usize = 1024;
/// A wait for the device looks up this often whether the device was lost elsewhere.
const LOOK_UP: Duration = Duration::from_secs(1);

/// Values to be reached before a submission runs, one a lane; 0 is reached from the start.
pub(super) type Waits = [u64; LANES_MAX];

/// A queue in order, with a timeline of its own.
pub(super) struct Lane {
    queue: SharedQueue,
    timeline: vk::Semaphore,
    /// Whether its family runs kernels.
    computes: bool,
    batch_max: usize,
    submitted: AtomicU64,
    /// Newest value that was promised: that of the open batch, if there is one.
    promised: AtomicU64,
    /// Why a batch was not submitted: from then on the lane does nothing.
    failure: OnceLock<Error>,
    /// Newest value that was seen reached.
    completed: AtomicU64,
    recorder: Mutex<Recorder>,
    /// Newest value that a blocking stream submitted here.
    pub(super) blocking: AtomicU64,
    /// Newest value that the default stream submitted here.
    pub(super) default: AtomicU64,
}

struct Recorder {
    pool: vk::CommandPool,
    idle: Vec<vk::CommandBuffer>,
    /// In the order of their values.
    pending: VecDeque<(u64, vk::CommandBuffer)>,
    regions: Vec<vk::BufferCopy>,
    batch: Option<Batch>,
    /// What the open batch has bound last.
    bound: Bound,
    sets: Sets,
}

/// What is bound in a command buffer, so that it need not be bound again.
#[derive(Default)]
struct Bound {
    pipeline: vk::Pipeline,
    /// Sets and scalars stay only as long as the layout does.
    layout: vk::PipelineLayout,
    set: vk::DescriptorSet,
    scalars: Vec<u8>,
}

impl Bound {
    /// Nothing is, in a new command buffer or for another layout.
    fn clear(&mut self, layout: vk::PipelineLayout) {
        (self.layout, self.set) = (layout, vk::DescriptorSet::null());
        self.scalars.clear();
    }
}

/// Launches that were recorded and not submitted.
struct Batch {
    commands: vk::CommandBuffer,
    launches: usize,
    waits: WaitList,
}

/// What a submission waits for: lanes' semaphores with their values.
#[derive(Clone, Copy, Default)]
pub(super) struct WaitList {
    semaphores: [vk::Semaphore; LANES_MAX],
    values: [u64; LANES_MAX],
    count: usize,
}

impl WaitList {
    /// Adds a value that has been submitted.
    pub(super) fn push(&mut self, lane: &Lane, value: u64) {
        if let (Some(semaphore), Some(place)) =
            (self.semaphores.get_mut(self.count), self.values.get_mut(self.count))
        {
            (*semaphore, *place) = (lane.timeline, value);
            self.count += 1;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }
}

impl Lane {
    /// A lane over a queue. [`Lane::destroy`] has to be called before it is dropped.
    pub(super) fn create(core: &Core, queue: &SharedQueue, family: Family, batch_max: usize) -> Result<Self> {
        const DOING: &str = "making a Vulkan queue's lane";
        let pool = vk::CommandPoolCreateInfo::default()
            .queue_family_index(family.index)
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER | vk::CommandPoolCreateFlags::TRANSIENT);
        // SAFETY: the device is live and has this family.
        let pool = unsafe { core.raw.create_command_pool(&pool, None) }
            .map_err(|result| core.failed(result, DOING))?;
        let mut kind = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let semaphore = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: the device is live, and timeline semaphores were enabled.
        let timeline = unsafe { core.raw.create_semaphore(&semaphore, None) }.map_err(|result| {
            // SAFETY: made just above, unused.
            unsafe { core.raw.destroy_command_pool(pool, None) };
            core.failed(result, DOING)
        })?;
        let recorder = Recorder {
            pool,
            idle: Vec::with_capacity(COMMANDS_MAX),
            pending: VecDeque::with_capacity(COMMANDS_MAX),
            regions: Vec::with_capacity(REGIONS_MAX),
            batch: None,
            bound: Bound::default(),
            sets: Sets::default(),
        };
        Ok(Self {
            queue: Arc::clone(queue),
            timeline,
            computes: core.physical.compute == Some(family),
            batch_max: batch_max.max(1),
            submitted: AtomicU64::new(0),
            promised: AtomicU64::new(0),
            failure: OnceLock::new(),
            completed: AtomicU64::new(0),
            recorder: Mutex::new(recorder),
            blocking: AtomicU64::new(0),
            default: AtomicU64::new(0),
        })
    }

    /// Frees what the lane holds. The device is idle or lost.
    pub(super) fn destroy(&self, core: &Core) {
        let mut recorder = lock(&self.recorder);
        recorder.sets.destroy(core);
        // SAFETY: nothing is pending, as the caller says; the lane is not used again.
        unsafe { core.raw.destroy_command_pool(recorder.pool, None) };
        // SAFETY: as above.
        unsafe { core.raw.destroy_semaphore(self.timeline, None) };
    }

    /// Ends the device as no test otherwise could: a timeline may not go backwards.
    #[cfg(test)]
    pub(super) fn lose_device(&self, core: &Core) {
        let info = vk::SemaphoreSignalInfo::default().semaphore(self.timeline).value(0);
        // SAFETY: device and semaphore are live; breaking the rule of rising values is the purpose.
        let _ = unsafe { core.raw.signal_semaphore(&info) };
    }

    /// The newest value that the queue was handed, or will be handed with the open batch.
    pub(super) fn promised(&self) -> u64 {
        self.promised.load(Ordering::Acquire)
    }

    /// Submits the open batch, if the value is its.
    fn keep_promise(&self, core: &Core, value: u64) -> Result<()> {
        if value > self.submitted.load(Ordering::Acquire) {
            self.flush(core)?;
        }
        Ok(())
    }

    /// Submits the open batch, if there is one.
    pub(super) fn flush(&self, core: &Core) -> Result<()> {
        let mut recorder = lock(&self.recorder);
        self.hand_over_batch(core, &mut recorder)
    }

    fn hand_over_batch(&self, core: &Core, recorder: &mut Recorder) -> Result<()> {
        if let Some(failure) = self.failure.get() {
            return Err(failure.clone());
        }
        let Some(Batch { commands, waits, .. }) = recorder.batch.take() else { return Ok(()) };
        let value = self.submitted.load(Ordering::Relaxed) + 1;
        // SAFETY: begun when the batch was opened; the pool's lock is held (`recorder` is inside).
        let outcome = unsafe { core.raw.end_command_buffer(commands) }
            .and_then(|()| self.hand_over(core, commands, &waits, value))
            .map_err(|result| core.failed(result, "submitting kernels to a Vulkan queue"));
        if let Err(error) = outcome {
            recorder.idle.push(commands);
            // Its value was promised and will not come: whoever waits for it is told.
            return Err(self.failure.get_or_init(|| error).clone());
        }
        recorder.pending.push_back((value, commands));
        self.submitted.store(value, Ordering::Release);
        add(&core.counters.submissions, 1);
        add(&core.counters.batches, 1);
        Ok(())
    }

    /// Whether a value has been reached, as far as one sees without submitting anything.
    pub(super) fn has_reached(&self, core: &Core, value: u64) -> Result<bool> {
        match value > self.submitted.load(Ordering::Acquire) {
            true => Ok(false),
            false => self.is_reached(core, value),
        }
    }

    /// Whether a value has been reached. Submits the open batch if it is its.
    pub(super) fn is_reached(&self, core: &Core, value: u64) -> Result<bool> {
        if self.completed.load(Ordering::Acquire) >= value {
            return Ok(true);
        }
        core.check("asking for a Vulkan timeline")?;
        self.keep_promise(core, value)?;
        // The answer is looked at only if the call succeeded: a lost device leaves it as it was.
        // SAFETY: device and semaphore are live.
        let now = unsafe { core.raw.get_semaphore_counter_value(self.timeline) }
            .map_err(|result| core.failed(result, "asking for a Vulkan timeline"))?;
        self.completed.fetch_max(now, Ordering::AcqRel);
        Ok(now >= value)
    }

    /// Waits on the host for a value that was submitted.
    pub(super) fn wait(&self, core: &Core, value: u64) -> Result<()> {
        const DOING: &str = "waiting for a Vulkan timeline";
        let (semaphores, values) = ([self.timeline], [value]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        let timeout = u64::try_from(LOOK_UP.as_nanos()).unwrap_or(u64::MAX);
        let since = Instant::now();
        while !self.is_reached(core, value)? {
            // SAFETY: device and semaphore are live.
            match unsafe { core.raw.wait_semaphores(&info, timeout) } {
                Ok(()) => {}
                Err(vk::Result::TIMEOUT) => {
                    tracing::debug!(seconds = since.elapsed().as_secs(), "a Vulkan queue is still working");
                }
                Err(result) => return Err(core.failed(result, DOING)),
            }
        }
        Ok(())
    }

    /// Records and submits one command buffer, after the values that `waits` names and after all that this
    /// lane was given before. Answers its value. Nothing is enqueued if it fails.
    pub(super) fn submit(
        &self,
        core: &Core,
        waits: &WaitList,
        record: impl FnOnce(&mut Recording<'_>),
    ) -> Result<u64> {
        core.check("submitting to a Vulkan queue")?;
        let mut recorder = lock(&self.recorder);
        self.hand_over_batch(core, &mut recorder)?;
        let commands = recorder.take(core, self)?;
        let value = self.submitted.load(Ordering::Relaxed) + 1;
        let outcome = recorder
            .record(core, commands, self.computes, record)
            .and_then(|()| self.hand_over(core, commands, waits, value))
            .map_err(|result| core.failed(result, "submitting to a Vulkan queue"));
        match outcome {
            Ok(()) => {
                recorder.pending.push_back((value, commands));
                self.submitted.store(value, Ordering::Release);
                self.promised.store(value, Ordering::Release);
                add(&core.counters.submissions, 1);
                Ok(value)
            }
            Err(error) => {
                recorder.idle.push(commands);
                Err(error)
            }
        }
    }

    /// Adds a launch to the open batch, or opens one; after all that the lane was given before and the values
    /// that `waits` names. Answers the value that it will have been done at.
    pub(super) fn launch(&self, core: &Core, waits: &WaitList, run: &Run<'_>) -> Result<u64> {
        const DOING: &str = "recording a kernel for a Vulkan queue";
        core.check(DOING)?;
        let mut recorder = lock(&self.recorder);
        // The batch waits for what its first launch waits for.
        if waits.len() > 0 {
            self.hand_over_batch(core, &mut recorder)?;
        }
        if let Some(failure) = self.failure.get() {
            return Err(failure.clone());
        }
        let value = self.submitted.load(Ordering::Relaxed) + 1;
        if recorder.batch.is_none() {
            let commands = recorder.take(core, self)?;
            if let Err(result) = begin(core, commands) {
                recorder.idle.push(commands);
                return Err(core.failed(result, DOING));
            }
            recorder.batch = Some(Batch { commands, launches: 0, waits: *waits });
            recorder.sets.forget_shown();
        }
        let set = match recorder.sets.take(core, self, run, value) {
            Ok(set) => set,
            Err(error) => {
                recorder.drop_empty_batch(core);
                return Err(error);
            }
        };
        let launches = recorder.record_launch(core, run, set);
        self.promised.store(value, Ordering::Release);
        add(&core.counters.launches, 1);
        if launches >= self.batch_max {
            self.hand_over_batch(core, &mut recorder)?;
            if self.batch_max == 1 {
                drop(recorder);
                self.wait(core, value)?;
            }
        }
        Ok(value)
    }

    fn hand_over(
        &self,
        core: &Core,
        commands: vk::CommandBuffer,
        waits: &WaitList,
        value: u64,
    ) -> Result<(), vk::Result> {
        let WaitList { semaphores, values, count } = *waits;
        let stages = [vk::PipelineStageFlags::ALL_COMMANDS; LANES_MAX];
        let (signal, signalled, commands) = ([self.timeline], [value], [commands]);
        let mut timeline = vk::TimelineSemaphoreSubmitInfo::default()
            .wait_semaphore_values(&values[..count])
            .signal_semaphore_values(&signalled);
        let submission = vk::SubmitInfo::default()
            .wait_semaphores(&semaphores[..count])
            .wait_dst_stage_mask(&stages[..count])
            .command_buffers(&commands)
            .signal_semaphores(&signal)
            .push_next(&mut timeline);
        let queue = lock(&self.queue);
        // SAFETY: the queue's lock and the pool's (the recorder) are held; the command buffer is recorded and
        // not pending; every value waited for was submitted before; the signalled value rises under the lock.
        unsafe { core.raw.queue_submit(*queue, &[submission], vk::Fence::null()) }
    }
}

impl Recorder {
    /// A command buffer that is not pending: used before, else new, else the oldest once it has run.
    fn take(&mut self, core: &Core, lane: &Lane) -> Result<vk::CommandBuffer> {
        while let Some(&(value, commands)) = self.pending.front()
            && lane.is_reached(core, value)?
        {
            self.pending.pop_front();
            self.idle.push(commands);
        }
        if let Some(commands) = self.idle.pop() {
            return Ok(commands);
        }
        if self.pending.len() < COMMANDS_MAX {
            self.make(core)?;
        } else if let Some(&(oldest, _)) = self.pending.front() {
            lane.wait(core, oldest)?;
        }
        match self.idle.pop().or_else(|| self.pending.pop_front().map(|(_, commands)| commands)) {
            Some(commands) => Ok(commands),
            None => Err(core.failed(vk::Result::ERROR_OUT_OF_HOST_MEMORY, "making Vulkan command buffers")),
        }
    }

    fn make(&mut self, core: &Core) -> Result<()> {
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(self.pool)
            .level(vk::CommandBufferLevel::PRIMARY)
            .command_buffer_count(COMMANDS_EACH);
        // SAFETY: the pool is live and its lock is held (`self` is inside).
        let made = unsafe { core.raw.allocate_command_buffers(&info) }
            .map_err(|result| core.failed(result, "making Vulkan command buffers"))?;
        add(&core.counters.command_buffers, made.len() as u64);
        self.idle.extend(made);
        Ok(())
    }

    fn record(
        &mut self,
        core: &Core,
        commands: vk::CommandBuffer,
        computes: bool,
        record: impl FnOnce(&mut Recording<'_>),
    ) -> Result<(), vk::Result> {
        begin(core, commands)?;
        self.regions.clear();
        let mut recording = Recording {
            raw: &core.raw,
            commands,
            regions: &mut self.regions,
            computes,
            pair: (vk::Buffer::null(), vk::Buffer::null()),
        };
        recording.after_all_before();
        record(&mut recording);
        recording.flush();
        // SAFETY: begun just above.
        unsafe { core.raw.end_command_buffer(commands) }
    }

    /// Records a launch into the open batch, behind all before it; answers how many it holds now.
    fn record_launch(&mut self, core: &Core, run: &Run<'_>, set: vk::DescriptorSet) -> usize {
        let Some(batch) = &mut self.batch else { return 0 };
        let (commands, raw, bound) = (batch.commands, &core.raw, &mut self.bound);
        if batch.launches == 0 {
            order_all(raw, commands, true);
            *bound = Bound { scalars: std::mem::take(&mut bound.scalars), ..Bound::default() };
        } else {
            order_launches(raw, commands);
        }
        let Pipeline { raw: pipeline, layout, .. } = *run.pipeline;
        if bound.layout != layout {
            bound.clear(layout);
        }
        let (point, stage) = (vk::PipelineBindPoint::COMPUTE, vk::ShaderStageFlags::COMPUTE);
        if bound.pipeline != pipeline {
            // SAFETY: recording; the pipeline lives as long as the device, and fits set, layout and scalars.
            unsafe { raw.cmd_bind_pipeline(commands, point, pipeline) };
            bound.pipeline = pipeline;
        }
        if bound.set != set {
            // SAFETY: as above.
            unsafe { raw.cmd_bind_descriptor_sets(commands, point, layout, 0, &[set], &[]) };
            bound.set = set;
        }
        if bound.scalars != run.scalars {
            // SAFETY: as above; the layout has a range of as many bytes.
            unsafe { raw.cmd_push_constants(commands, layout, stage, 0, run.scalars) };
            bound.scalars.clear();
            bound.scalars.extend_from_slice(run.scalars);
        }
        let [x, y, z] = run.groups;
        // SAFETY: as above; the counts were held against the device's bounds.
        unsafe { raw.cmd_dispatch(commands, x, y, z) };
        batch.launches += 1;
        batch.launches
    }

    /// Takes back a batch that was opened for a launch that failed.
    fn drop_empty_batch(&mut self, core: &Core) {
        if let Some(batch) = self.batch.take_if(|batch| batch.launches == 0) {
            // SAFETY: begun and empty; what becomes of it does not matter, for it is begun anew before it is used.
            let _ = unsafe { core.raw.end_command_buffer(batch.commands) };
            self.idle.push(batch.commands);
        }
    }
}

/// A launch as it is recorded.
pub(super) struct Run<'r> {
    pub(super) pipeline: &'r Pipeline,
    /// For each binding: the buffer, the offset and the length.
    pub(super) buffers: &'r [(u32, vk::DescriptorBufferInfo)],
    pub(super) scalars: &'r [u8],
    pub(super) groups: [u32; 3],
}

fn begin(core: &Core, commands: vk::CommandBuffer) -> Result<(), vk::Result> {
    let info = vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
    // SAFETY: the buffer is not pending, its pool allows resetting it, and the pool's lock is held.
    unsafe { core.raw.begin_command_buffer(commands, &info) }
}

/// What comes after runs after what came before, and sees what it wrote.
fn order_all(raw: &ash::Device, commands: vk::CommandBuffer, computes: bool) {
    let mut stages = vk::PipelineStageFlags::TRANSFER;
    let mut writes = vk::AccessFlags::TRANSFER_WRITE;
    let mut uses = vk::AccessFlags::TRANSFER_READ | vk::AccessFlags::TRANSFER_WRITE;
    if computes {
        stages |= vk::PipelineStageFlags::COMPUTE_SHADER;
        writes |= vk::AccessFlags::SHADER_WRITE;
        uses |= vk::AccessFlags::SHADER_READ | vk::AccessFlags::SHADER_WRITE;
    }
    let barrier = [vk::MemoryBarrier::default().src_access_mask(writes).dst_access_mask(uses)];
    // SAFETY: recording; the stages are those of the queue's family.
    unsafe {
        raw.cmd_pipeline_barrier(commands, stages, stages, vk::DependencyFlags::empty(), &barrier, &[], &[]);
    };
}

/// A launch after launches.
fn order_launches(raw: &ash::Device, commands: vk::CommandBuffer) {
    let (stage, none) = (vk::PipelineStageFlags::COMPUTE_SHADER, vk::DependencyFlags::empty());
    let uses = vk::AccessFlags::SHADER_READ | vk::AccessFlags::SHADER_WRITE;
    let barrier =
        [vk::MemoryBarrier::default().src_access_mask(vk::AccessFlags::SHADER_WRITE).dst_access_mask(uses)];
    // SAFETY: recording, for a family that runs kernels.
    unsafe { raw.cmd_pipeline_barrier(commands, stage, stage, none, &barrier, &[], &[]) };
}

/// A command buffer while it is written. Its commands are in no order among themselves.
pub(super) struct Recording<'a> {
    raw: &'a ash::Device,
    commands: vk::CommandBuffer,
    regions: &'a mut Vec<vk::BufferCopy>,
    computes: bool,
    /// Source and destination of the regions collected so far.
    pair: (vk::Buffer, vk::Buffer),
}

impl Recording<'_> {
    /// One region. Neighbours between the same two buffers become one command.
    pub(super) fn copy(&mut self, src: vk::Buffer, dst: vk::Buffer, region: vk::BufferCopy) {
        if self.pair != (src, dst) || self.regions.len() == REGIONS_MAX {
            self.flush();
            self.pair = (src, dst);
        }
        self.regions.push(region);
    }

    /// Fills with a word; offset and length are multiples of 4.
    pub(super) fn fill(&mut self, dst: vk::Buffer, offset: u64, len_bytes: u64, word: u32) {
        // SAFETY: recording; the driver checked the range, the caller the alignment.
        unsafe { self.raw.cmd_fill_buffer(self.commands, dst, offset, len_bytes, word) };
    }

    /// Makes what was written visible to the host once the submission has completed.
    pub(super) fn show_to_host(&mut self) {
        self.flush();
        let barrier = vk::MemoryBarrier::default()
            .src_access_mask(vk::AccessFlags::TRANSFER_WRITE)
            .dst_access_mask(vk::AccessFlags::HOST_READ);
        self.barrier(barrier, vk::PipelineStageFlags::HOST);
    }

    /// Submissions to one queue start in order but may overlap; with this barrier they are in order.
    fn after_all_before(&self) {
        order_all(self.raw, self.commands, self.computes);
    }

    fn barrier(&self, barrier: vk::MemoryBarrier<'_>, then: vk::PipelineStageFlags) {
        let (first, none) = (vk::PipelineStageFlags::TRANSFER, vk::DependencyFlags::empty());
        // SAFETY: recording.
        unsafe { self.raw.cmd_pipeline_barrier(self.commands, first, then, none, &[barrier], &[], &[]) };
    }

    fn flush(&mut self) {
        if !self.regions.is_empty() {
            let (src, dst) = self.pair;
            // SAFETY: recording; the driver checked the ranges and refused overlaps, and keeps both buffers
            // until the submission has completed.
            unsafe { self.raw.cmd_copy_buffer(self.commands, src, dst, self.regions) };
            self.regions.clear();
        }
    }
}
