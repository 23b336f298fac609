//! Kernels made ready for a device: once each, for as long as it is open, and kept on disk.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex};

use ash::vk;
use spoc_driver::{Error, ErrorKind, Result};

use super::core::Core;
use super::counters::add;
use crate::kernel::library::Origin;
use crate::kernel::store::{Key, Store};
use crate::sync::lock;

const DOING: &str = "making a Vulkan pipeline";

/// What is asked for: SPIR-V, and what it takes.
pub(super) struct Request<'r> {
    /// What the words were made from.
    pub(super) origin: &'r Origin,
    /// Asked only where there is no pipeline yet.
    pub(super) words: &'r dyn Fn() -> Result<Cow<'r, [u32]>>,
    pub(super) entry: &'r str,
    pub(super) bindings: &'r [u32],
    pub(super) scalars_bytes: u32,
}

/// A kernel that can be launched. Destroyed with the device.
#[derive(Debug)]
pub(super) struct Pipeline {
    pub(super) raw: vk::Pipeline,
    pub(super) layout: vk::PipelineLayout,
    pub(super) set_layout: vk::DescriptorSetLayout,
}

/// The pipelines of an opened device.
pub(super) struct Pipelines {
    /// By what they are made from: launches look them up without making a key.
    known: Mutex<HashMap<Origin, Vec<Known>>>,
    store: Store,
}

/// A pipeline, and what else it was asked for with.
struct Known {
    entry: String,
    bindings: Vec<u32>,
    scalars_bytes: u32,
    pipeline: Arc<Pipeline>,
}

#[allow(clippy::mutable_key_type, reason = "a module is told by where it is")]
fn find(known: &HashMap<Origin, Vec<Known>>, request: &Request<'_>) -> Option<Arc<Pipeline>> {
    let fits = |known: &&Known| {
        known.entry == request.entry
            && known.bindings == request.bindings
            && known.scalars_bytes == request.scalars_bytes
    };
    Some(Arc::clone(&known.get(request.origin)?.iter().find(fits)?.pipeline))
}

impl Pipelines {
    pub(super) fn new(core: &Core) -> Self {
        let store = if core.physical.compute.is_some() { Store::from_env() } else { Store::default() };
        Self { known: Mutex::default(), store }
    }

    /// The pipeline for a kernel, made at the first call.
    ///
    /// # Errors
    /// `TooLarge` with the limit's name; the driver's refusal.
    pub(super) fn get(&self, core: &Core, request: &Request<'_>) -> Result<Arc<Pipeline>> {
        if let Some(pipeline) = find(&lock(&self.known), request) {
            return Ok(pipeline);
        }
        let Request { origin, words, entry, bindings, scalars_bytes } = *request;
        let bounds = core.physical.bounds;
        let limit = |need: usize, max: u32, limit: &'static str| match need as u64 > u64::from(max) {
            true => {
                let kind = ErrorKind::TooLarge { need: need as u64, max: max.into() };
                Err(Error::new(kind, DOING).with("limit", limit))
            }
            false => Ok(()),
        };
        limit(bindings.len(), bounds.buffers, "maxPerStageDescriptorStorageBuffers")?;
        limit(scalars_bytes as usize, bounds.scalars_bytes, "maxPushConstantsSize")?;
        let layouts = Layouts::create(core, bindings, scalars_bytes)?;
        let raw = self.create(core, &words()?, entry, layouts.layout)?;
        let (layout, set_layout) = layouts.keep();
        add(&core.counters.pipelines, 1);
        let made = Arc::new(Pipeline { raw, layout, set_layout });
        // Another thread may have been faster: its pipeline stays, and ours goes.
        let mut known = lock(&self.known);
        if let Some(kept) = find(&known, request) {
            made.destroy(core);
            return Ok(kept);
        }
        known.entry(origin.clone()).or_default().push(Known {
            entry: entry.to_owned(),
            bindings: bindings.to_vec(),
            scalars_bytes,
            pipeline: Arc::clone(&made),
        });
        Ok(made)
    }

    fn create(
        &self,
        core: &Core,
        words: &[u32],
        entry: &str,
        layout: vk::PipelineLayout,
    ) -> Result<vk::Pipeline> {
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let identity = core.physical.driver.as_bytes();
        let key = Key::of(&[b"vulkan", &code, entry.as_bytes(), &core.physical.cache_uuid, identity]);
        let kept = self.store.load(key);
        let data = kept.as_deref().unwrap_or_default();
        let cache = DriverCache::create(core, data)?;
        let module = vk::ShaderModuleCreateInfo::default().code(words);
        // SAFETY: the device is live; the words are SPIR-V that naga wrote, or that the kernel's author answers for.
        let module = unsafe { core.raw.create_shader_module(&module, None) }
            .map_err(|result| core.failed(result, DOING))?;
        let made = pipeline(core, module, entry, layout, cache.raw);
        // SAFETY: only needed while pipelines are made of it.
        unsafe { core.raw.destroy_shader_module(module, None) };
        let made = made?;
        if kept.is_none() {
            // SAFETY: the cache is live.
            if let Ok(data) = unsafe { core.raw.get_pipeline_cache_data(cache.raw) } {
                self.store.save(key, &data);
            }
        }
        Ok(made)
    }

    /// Frees all. The device is idle or lost.
    pub(super) fn destroy(&self, core: &Core) {
        for (_, known) in lock(&self.known).drain() {
            known.iter().for_each(|known| known.pipeline.destroy(core));
        }
    }
}

impl Pipeline {
    /// The device does not use it, nor will.
    fn destroy(&self, core: &Core) {
        // SAFETY: as the caller says; so below.
        unsafe { core.raw.destroy_pipeline(self.raw, None) };
        // SAFETY: as above.
        unsafe { core.raw.destroy_pipeline_layout(self.layout, None) };
        // SAFETY: as above.
        unsafe { core.raw.destroy_descriptor_set_layout(self.set_layout, None) };
    }
}

fn pipeline(
    core: &Core,
    module: vk::ShaderModule,
    entry: &str,
    layout: vk::PipelineLayout,
    cache: vk::PipelineCache,
) -> Result<vk::Pipeline> {
    let invalid = |error| Error::new(ErrorKind::InvalidArgument, DOING).because(error);
    let name = CString::new(entry).map_err(invalid)?;
    let stage = vk::PipelineShaderStageCreateInfo::default()
        .stage(vk::ShaderStageFlags::COMPUTE)
        .module(module)
        .name(&name);
    let info = [vk::ComputePipelineCreateInfo::default().stage(stage).layout(layout)];
    // SAFETY: everything named is live until the call returns.
    match unsafe { core.raw.create_compute_pipelines(cache, &info, None) } {
        Ok(made) => Ok(made.first().copied().unwrap_or_default()),
        Err((_, result)) => Err(core.failed(result, DOING)),
    }
}

/// What the driver remembers of compiling; gone when dropped.
struct DriverCache<'c> {
    raw: vk::PipelineCache,
    core: &'c Core,
}

impl<'c> DriverCache<'c> {
    fn create(core: &'c Core, data: &[u8]) -> Result<Self> {
        let info = vk::PipelineCacheCreateInfo::default().initial_data(data);
        // SAFETY: the device is live; data that is not its own, the driver has to ignore.
        let raw = unsafe { core.raw.create_pipeline_cache(&info, None) }
            .map_err(|result| core.failed(result, DOING))?;
        Ok(Self { raw, core })
    }
}

impl Drop for DriverCache<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `create`, used by nothing any more.
        unsafe { self.core.raw.destroy_pipeline_cache(self.raw, None) };
    }
}

/// Layouts on their way into a pipeline; freed if they do not get there.
struct Layouts<'c> {
    layout: vk::PipelineLayout,
    set_layout: vk::DescriptorSetLayout,
    core: &'c Core,
}

impl<'c> Layouts<'c> {
    fn create(core: &'c Core, bindings: &[u32], scalars_bytes: u32) -> Result<Self> {
        let binding = |binding: &u32| {
            vk::DescriptorSetLayoutBinding::default()
                .binding(*binding)
                .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                .descriptor_count(1)
                .stage_flags(vk::ShaderStageFlags::COMPUTE)
        };
        let bindings: Vec<_> = bindings.iter().map(binding).collect();
        let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
        // SAFETY: the device is live.
        let set_layout = unsafe { core.raw.create_descriptor_set_layout(&info, None) }
            .map_err(|result| core.failed(result, DOING))?;
        let mut layouts = Self { layout: vk::PipelineLayout::null(), set_layout, core };
        let ranges = [vk::PushConstantRange {
            stage_flags: vk::ShaderStageFlags::COMPUTE,
            offset: 0,
            size: scalars_bytes.next_multiple_of(4),
        }];
        let sets = [set_layout];
        let ranges = if scalars_bytes > 0 { ranges.as_slice() } else { &[] };
        let info = vk::PipelineLayoutCreateInfo::default().set_layouts(&sets).push_constant_ranges(ranges);
        // SAFETY: as above.
        layouts.layout = unsafe { core.raw.create_pipeline_layout(&info, None) }
            .map_err(|result| core.failed(result, DOING))?;
        Ok(layouts)
    }

    fn keep(mut self) -> (vk::PipelineLayout, vk::DescriptorSetLayout) {
        (std::mem::take(&mut self.layout), std::mem::take(&mut self.set_layout))
    }
}

impl Drop for Layouts<'_> {
    fn drop(&mut self) {
        // SAFETY: null, which is nothing, or used by nothing.
        unsafe { self.core.raw.destroy_pipeline_layout(self.layout, None) };
        // SAFETY: as above.
        unsafe { self.core.raw.destroy_descriptor_set_layout(self.set_layout, None) };
    }
}
