//! Descriptor sets: which buffers a launch is given. They live until the launch has run; pools are used again.

use std::collections::VecDeque;

use ash::vk;
use spoc_driver::Result;

use super::core::Core;
use super::queue::{Lane, Run};

/// Sets of a pool.
const SETS: u32 = 64;
/// Sets of the open batch that are shown again to launches over the same buffers.
const SHOWN_MAX: usize = 8;
/// Buffers of all of a pool's sets together.
const BUFFERS: u32 = 512;
const DOING: &str = "describing a Vulkan kernel's buffers";

/// The pools of a lane.
#[derive(Default)]
pub(super) struct Sets {
    current: Option<Pool>,
    /// Used up, with the value from which on they may be used again; in the order of the values.
    used: VecDeque<(u64, Pool)>,
    /// Newest last. They are of the open batch alone: what it uses, lives, so that a buffer's name means that buffer.
    shown: VecDeque<Shown>,
}

struct Shown {
    layout: vk::DescriptorSetLayout,
    buffers: Vec<(u32, vk::DescriptorBufferInfo)>,
    set: vk::DescriptorSet,
}

impl Shown {
    fn fits(&self, run: &Run<'_>) -> bool {
        let is_same = |(one, other): (&(u32, vk::DescriptorBufferInfo), &(u32, vk::DescriptorBufferInfo))| {
            let ((place, one), (other_place, other)) = (one, other);
            place == other_place
                && (one.buffer, one.offset, one.range) == (other.buffer, other.offset, other.range)
        };
        self.layout == run.pipeline.set_layout
            && self.buffers.len() == run.buffers.len()
            && self.buffers.iter().zip(run.buffers).all(is_same)
    }
}

struct Pool {
    raw: vk::DescriptorPool,
    buffers: u32,
    sets_left: u32,
    buffers_left: u32,
}

impl Sets {
    /// A set that shows a launch's buffers, until the lane has reached `value`.
    pub(super) fn take(
        &mut self,
        core: &Core,
        lane: &Lane,
        run: &Run<'_>,
        value: u64,
    ) -> Result<vk::DescriptorSet> {
        if let Some(shown) = self.shown.iter().find(|shown| shown.fits(run)) {
            return Ok(shown.set);
        }
        let buffers = u32::try_from(run.buffers.len()).unwrap_or(u32::MAX);
        let has_room = |pool: &Pool| pool.sets_left > 0 && pool.buffers_left >= buffers;
        if !self.current.as_ref().is_some_and(has_room) {
            // Of the open batch at the latest.
            self.used.extend(self.current.take().map(|pool| (value, pool)));
            self.current = Some(self.pool(core, lane, buffers)?);
        }
        let layouts = [run.pipeline.set_layout];
        let Some(pool) = &mut self.current else {
            return Err(core.failed(vk::Result::ERROR_OUT_OF_POOL_MEMORY, DOING));
        };
        let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(pool.raw).set_layouts(&layouts);
        // SAFETY: pool and layout are live, and the lane's lock is held around this.
        let sets = unsafe { core.raw.allocate_descriptor_sets(&info) }
            .map_err(|result| core.failed(result, DOING))?;
        pool.sets_left -= 1;
        pool.buffers_left -= buffers;
        let set = sets.first().copied().unwrap_or_default();
        write(core, set, run);
        self.show_again(set, run);
        Ok(set)
    }

    fn show_again(&mut self, set: vk::DescriptorSet, run: &Run<'_>) {
        let oldest = if self.shown.len() < SHOWN_MAX { None } else { self.shown.pop_front() };
        let mut buffers = oldest.map(|oldest| oldest.buffers).unwrap_or_default();
        buffers.clear();
        buffers.extend_from_slice(run.buffers);
        self.shown.push_back(Shown { layout: run.pipeline.set_layout, buffers, set });
    }

    /// A batch begins.
    pub(super) fn forget_shown(&mut self) {
        self.shown.clear();
    }

    /// A pool with nothing taken from it.
    fn pool(&mut self, core: &Core, lane: &Lane, buffers: u32) -> Result<Pool> {
        if let Some((value, pool)) = self.used.front()
            && pool.buffers >= buffers
            && lane.has_reached(core, *value)?
            && let Some((_, mut pool)) = self.used.pop_front()
        {
            // SAFETY: every launch that uses the pool's sets has run.
            unsafe { core.raw.reset_descriptor_pool(pool.raw, vk::DescriptorPoolResetFlags::empty()) }
                .map_err(|result| core.failed(result, DOING))?;
            (pool.sets_left, pool.buffers_left) = (SETS, pool.buffers);
            return Ok(pool);
        }
        let buffers = buffers.max(BUFFERS);
        let sizes =
            [vk::DescriptorPoolSize { ty: vk::DescriptorType::STORAGE_BUFFER, descriptor_count: buffers }];
        let info = vk::DescriptorPoolCreateInfo::default().max_sets(SETS).pool_sizes(&sizes);
        // SAFETY: the device is live.
        let raw = unsafe { core.raw.create_descriptor_pool(&info, None) }
            .map_err(|result| core.failed(result, DOING))?;
        Ok(Pool { raw, buffers, sets_left: SETS, buffers_left: buffers })
    }

    /// Frees all. The device is idle or lost.
    pub(super) fn destroy(&mut self, core: &Core) {
        for pool in self.current.take().into_iter().chain(self.used.drain(..).map(|(_, pool)| pool)) {
            // SAFETY: nothing is pending, as the caller says.
            unsafe { core.raw.destroy_descriptor_pool(pool.raw, None) };
        }
    }
}

fn write(core: &Core, set: vk::DescriptorSet, run: &Run<'_>) {
    let writes: Vec<_> = run
        .buffers
        .iter()
        .map(|(binding, info)| {
            vk::WriteDescriptorSet::default()
                .dst_set(set)
                .dst_binding(*binding)
                .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                .buffer_info(std::slice::from_ref(info))
        })
        .collect();
    // SAFETY: the set is new and used by nothing; the buffers live until the launch has run.
    unsafe { core.raw.update_descriptor_sets(&writes, &[]) };
}
