//! Lanes: a queue, its timeline, and the command buffers that are used again once their value is reached.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ash::vk;
use spoc_driver::Result;

use super::core::{Core, SharedQueue};
use super::counters::add;
use crate::sync::lock;

/// Most lanes a device is given.
pub(super) const LANES_MAX: usize = 4;
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
    submitted: AtomicU64,
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
}

impl Lane {
    /// A lane over a queue. [`Lane::destroy`] has to be called before it is dropped.
    pub(super) fn create(core: &Core, queue: &SharedQueue) -> Result<Self> {
        const DOING: &str = "making a Vulkan queue's lane";
        let pool = vk::CommandPoolCreateInfo::default()
            .queue_family_index(core.physical.family.index)
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
        };
        Ok(Self {
            queue: Arc::clone(queue),
            timeline,
            submitted: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            recorder: Mutex::new(recorder),
            blocking: AtomicU64::new(0),
            default: AtomicU64::new(0),
        })
    }

    /// Frees what the lane holds. The device is idle or lost.
    pub(super) fn destroy(&self, core: &Core) {
        // SAFETY: nothing is pending, as the caller says; the lane is not used again.
        unsafe { core.raw.destroy_command_pool(lock(&self.recorder).pool, None) };
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

    /// The newest value that was handed to the queue.
    pub(super) fn submitted(&self) -> u64 {
        self.submitted.load(Ordering::Acquire)
    }

    /// Whether a value has been reached.
    pub(super) fn is_reached(&self, core: &Core, value: u64) -> Result<bool> {
        if self.completed.load(Ordering::Acquire) >= value {
            return Ok(true);
        }
        core.check("asking for a Vulkan timeline")?;
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
        waits: &[(&Self, u64)],
        record: impl FnOnce(&mut Recording<'_>),
    ) -> Result<u64> {
        core.check("submitting to a Vulkan queue")?;
        let mut recorder = lock(&self.recorder);
        let commands = recorder.take(core, self)?;
        let value = self.submitted.load(Ordering::Relaxed) + 1;
        let outcome = recorder
            .record(core, commands, record)
            .and_then(|()| self.hand_over(core, commands, waits, value))
            .map_err(|result| core.failed(result, "submitting to a Vulkan queue"));
        match outcome {
            Ok(()) => {
                recorder.pending.push_back((value, commands));
                self.submitted.store(value, Ordering::Release);
                add(&core.counters.submissions, 1);
                Ok(value)
            }
            Err(error) => {
                recorder.idle.push(commands);
                Err(error)
            }
        }
    }

    fn hand_over(
        &self,
        core: &Core,
        commands: vk::CommandBuffer,
        waits: &[(&Self, u64)],
        value: u64,
    ) -> Result<(), vk::Result> {
        let mut semaphores = [vk::Semaphore::null(); LANES_MAX];
        let mut values = [0; LANES_MAX];
        let stages = [vk::PipelineStageFlags::ALL_COMMANDS; LANES_MAX];
        let count = waits.len().min(LANES_MAX);
        for (place, (lane, value)) in waits.iter().take(count).enumerate() {
            semaphores[place] = lane.timeline;
            values[place] = *value;
        }
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
        record: impl FnOnce(&mut Recording<'_>),
    ) -> Result<(), vk::Result> {
        let info = vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        // SAFETY: the buffer is not pending, its pool allows resetting it, and the pool's lock is held.
        unsafe { core.raw.begin_command_buffer(commands, &info) }?;
        self.regions.clear();
        let mut recording = Recording {
            raw: &core.raw,
            commands,
            regions: &mut self.regions,
            pair: (vk::Buffer::null(), vk::Buffer::null()),
        };
        recording.after_all_before();
        record(&mut recording);
        recording.flush();
        // SAFETY: begun just above.
        unsafe { core.raw.end_command_buffer(commands) }
    }
}

/// A command buffer while it is written. Its commands are in no order among themselves.
pub(super) struct Recording<'a> {
    raw: &'a ash::Device,
    commands: vk::CommandBuffer,
    regions: &'a mut Vec<vk::BufferCopy>,
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
        let barrier = vk::MemoryBarrier::default()
            .src_access_mask(vk::AccessFlags::TRANSFER_WRITE)
            .dst_access_mask(vk::AccessFlags::TRANSFER_READ | vk::AccessFlags::TRANSFER_WRITE);
        self.barrier(barrier, vk::PipelineStageFlags::TRANSFER);
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
