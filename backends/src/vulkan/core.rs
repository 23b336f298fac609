//! The logical device itself: what everything made of it holds.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ash::{ext, khr, vk};
use spoc_driver::{Error, ErrorKind, Result};

use super::counters::Counters;
use super::error::failed;
use super::identity::{Family, Physical};
use super::instance::Instance;
use crate::sync::lock;

/// A queue and its lock: the specification wants one thread at a time.
pub(super) type SharedQueue = Arc<Mutex<vk::Queue>>;

/// A logical device. Destroyed when the last object made of it is gone.
pub(super) struct Core {
    pub(super) raw: ash::Device,
    pub(super) physical: Physical,
    pub(super) memory_fd: Option<khr::external_memory_fd::Device>,
    pub(super) host_import: Option<ext::external_memory_host::Device>,
    pub(super) counters: Arc<Counters>,
    pub(super) queues: Vec<SharedQueue>,
    /// Queues of the family that runs kernels, where that is another one.
    pub(super) compute_queues: Vec<SharedQueue>,
    /// Bytes allocated of each heap.
    heaps: [AtomicU64; vk::MAX_MEMORY_HEAPS],
    is_lost: AtomicBool,
    pub(super) instance: Arc<Instance>,
}

impl Core {
    /// Makes the logical device with up to `lanes` queues of the chosen family.
    pub(super) fn open(
        instance: &Arc<Instance>,
        physical: &Physical,
        lanes: Option<usize>,
        counters: &Arc<Counters>,
    ) -> Result<Arc<Self>> {
        let wanted = lanes.unwrap_or(super::queue::COPY_LANES_MAX).min(super::queue::COPY_LANES_MAX);
        let count = |family: Family| u32::try_from(wanted).unwrap_or(1).clamp(1, family.queues);
        let (family, other) = (physical.family, physical.other_family());
        let families = [Some(family), other].into_iter().flatten();
        let raw = create(instance, physical, families.map(|family| (family, count(family))))?;
        let extensions = physical.extensions;
        let memory_fd =
            extensions.memory_fd.then(|| khr::external_memory_fd::Device::new(&instance.raw, &raw));
        let host_import =
            extensions.host_import.then(|| ext::external_memory_host::Device::new(&instance.raw, &raw));
        let queues_of = |family: Family| -> Vec<SharedQueue> {
            // SAFETY: the device was made just above with this family and more queues than `index`.
            let queue = |index| unsafe { raw.get_device_queue(family.index, index) };
            (0..count(family)).map(|index| Arc::new(Mutex::new(queue(index)))).collect()
        };
        Ok(Arc::new(Self {
            physical: physical.clone(),
            memory_fd,
            host_import,
            counters: Arc::clone(counters),
            queues: queues_of(family),
            compute_queues: other.map(queues_of).unwrap_or_default(),
            heaps: Default::default(),
            is_lost: AtomicBool::new(false),
            instance: Arc::clone(instance),
            raw,
        }))
    }

    /// Refuses work once the device is lost: nothing more is handed to it.
    pub(super) fn check(&self, doing: &'static str) -> Result<()> {
        if self.is_lost.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::DeviceLost, doing));
        }
        Ok(())
    }

    /// The error for a failed call; notices the end of the device. The caller holds no queue's lock.
    pub(super) fn failed(&self, result: vk::Result, doing: &'static str) -> Error {
        if result == vk::Result::ERROR_DEVICE_LOST && !self.is_lost.load(Ordering::Acquire) {
            tracing::error!(device = self.physical.info.name, doing, "a Vulkan device is lost");
            // First of all: whoever sees the mark may free the host memory that copies were using.
            self.settle();
            self.is_lost.store(true, Ordering::Release);
        }
        failed(result, doing)
    }

    /// Waits until nothing runs any more, also on a lost device: after this its memory may go.
    pub(super) fn settle(&self) {
        let _turns: Vec<_> =
            self.queues.iter().chain(&self.compute_queues).map(|queue| lock(queue)).collect();
        // SAFETY: the device is live, and the locks of all its queues are held.
        let _ = unsafe { self.raw.device_wait_idle() };
    }

    /// Charges a heap, or says how much of it is left.
    pub(super) fn charge(&self, heap: usize, bytes: u64) -> Result<(), u64> {
        let Some(size) = self.physical.memory.memory_heaps_as_slice().get(heap).map(|heap| heap.size) else {
            return Err(0);
        };
        let Some(charged) = self.heaps.get(heap) else { return Err(0) };
        let grant = |used: u64| used.checked_add(bytes).filter(|used| *used <= size);
        match charged.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grant) {
            Ok(_) => Ok(()),
            Err(used) => Err(size.saturating_sub(used)),
        }
    }

    /// Takes a charge back.
    pub(super) fn discharge(&self, heap: usize, bytes: u64) {
        if let Some(charged) = self.heaps.get(heap) {
            charged.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Bytes charged to a heap.
    pub(super) fn charged(&self, heap: usize) -> u64 {
        self.heaps.get(heap).map_or(0, |charged| charged.load(Ordering::Relaxed))
    }
}

fn create(
    instance: &Instance,
    physical: &Physical,
    families: impl Iterator<Item = (Family, u32)>,
) -> Result<ash::Device> {
    let priorities = [1.0; super::queue::LANES_MAX];
    let family = |(family, queues): (Family, u32)| {
        vk::DeviceQueueCreateInfo::default()
            .queue_family_index(family.index)
            .queue_priorities(priorities.get(..queues as usize).unwrap_or(&priorities))
    };
    let families: Vec<_> = families.map(family).collect();
    let features = physical.features;
    let basic = vk::PhysicalDeviceFeatures::default().shader_int64(features.i64).shader_float64(features.f64);
    let mut halves = vk::PhysicalDeviceShaderFloat16Int8Features::default().shader_float16(features.f16);
    let mut storage =
        vk::PhysicalDevice16BitStorageFeatures::default().storage_buffer16_bit_access(features.storage_16);
    let names = extension_names(physical);
    let names: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
    // Enabled by name: without it some drivers make timeline semaphores all the same, and break later.
    let mut timelines = vk::PhysicalDeviceTimelineSemaphoreFeatures::default().timeline_semaphore(true);
    let info = vk::DeviceCreateInfo::default()
        .queue_create_infos(&families)
        .enabled_extension_names(&names)
        .enabled_features(&basic)
        .push_next(&mut timelines)
        .push_next(&mut halves)
        .push_next(&mut storage);
    // SAFETY: the physical device is of this live instance and offers what is enabled; all that `info`
    // points to lives until the call returns.
    unsafe { instance.raw.create_device(physical.raw, &info, None) }
        .map_err(|result| failed(result, "opening a Vulkan device"))
}

fn extension_names(physical: &Physical) -> Vec<&'static CStr> {
    let extensions = physical.extensions;
    [
        (extensions.memory_fd, khr::external_memory_fd::NAME),
        (extensions.host_import, ext::external_memory_host::NAME),
        (extensions.memory_budget, ext::memory_budget::NAME),
    ]
    .into_iter()
    .filter_map(|(is_there, name)| is_there.then_some(name))
    .collect()
}

impl Drop for Core {
    fn drop(&mut self) {
        // SAFETY: every object made of the device holds it, so none is left, and no queue is in use.
        unsafe { self.raw.destroy_device(None) };
    }
}
