//! The API itself. Type-checked for aarch64-apple-darwin, and not run.

use std::ffi::c_void;
use std::ptr::NonNull;

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::{
    MTLBuffer, MTLCommandBuffer, MTLCommandBufferStatus, MTLCommandEncoder, MTLCommandQueue,
    MTLCompileOptions, MTLComputeCommandEncoder, MTLComputePipelineState, MTLCopyAllDevices, MTLDevice,
    MTLLanguageVersion, MTLLibrary, MTLResourceOptions, MTLSharedEvent, MTLSize,
};
use spoc_driver::backend::{BackendKind, DeviceInfo};
use spoc_driver::{Error, ErrorKind, Result};

use super::api::{Api, Code, Physical, Progress, Run};
use crate::identity::derived_uuid;

type Object<P> = Retained<ProtocolObject<P>>;

/// Objects that the API lets any thread use, though their bindings do not say so: buffers and shared events at all times,
/// command buffers by one thread at a time while they are encoded (the lane's lock), by any for their status.
#[derive(Clone)]
pub(super) struct Shared<T>(T);

// SAFETY: as the type's page says; reference counts are atomic.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

/// The API's devices.
pub(super) struct Objc {
    devices: Vec<Object<dyn MTLDevice>>,
}

impl Objc {
    /// Lists the devices.
    ///
    /// # Errors
    /// That there is none.
    pub(super) fn find() -> Result<Self, String> {
        let devices: Vec<_> = MTLCopyAllDevices().to_vec();
        if devices.is_empty() { Err("Metal lists no device".to_owned()) } else { Ok(Self { devices }) }
    }
}

fn refused(doing: &'static str, because: impl std::fmt::Display) -> Error {
    let text = because.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    Error::new(ErrorKind::Backend, doing).with("because", text)
}

fn none(doing: &'static str) -> Error {
    refused(doing, "Metal gave none")
}

fn size([width, height, depth]: [u32; 3]) -> MTLSize {
    MTLSize { width: width as usize, height: height as usize, depth: depth as usize }
}

fn short(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn describe(device: &ProtocolObject<dyn MTLDevice>, index: usize) -> Physical {
    let max = device.maxThreadsPerThreadgroup();
    let info = DeviceInfo {
        backend: BackendKind::Metal,
        index: short(index),
        uuid: derived_uuid(&format!("metal {} {:x}", device.name(), device.registryID())),
        uuid_is_stable: false,
        name: device.name().to_string(),
        memory_bytes: device.recommendedMaxWorkingSetSize(),
        numa_node: None,
        unified: device.hasUnifiedMemory(),
    };
    Physical {
        info,
        buffer_bytes_max: device.maxBufferLength() as u64,
        group_max: [short(max.width), short(max.height), short(max.depth)],
        group_bytes_max: short(device.maxThreadgroupMemoryLength()),
    }
}

impl Api for Objc {
    type Device = Object<dyn MTLDevice>;
    type Memory = Shared<Object<dyn MTLBuffer>>;
    type Queue = Object<dyn MTLCommandQueue>;
    type Timeline = Shared<Object<dyn MTLSharedEvent>>;
    type Commands = Shared<Object<dyn MTLCommandBuffer>>;
    type Pipeline = Object<dyn MTLComputePipelineState>;

    fn devices(&self) -> Vec<Physical> {
        self.devices.iter().enumerate().map(|(index, device)| describe(device, index)).collect()
    }

    fn open(&self, index: u32) -> Result<Self::Device> {
        let device = self.devices.get(index as usize).cloned();
        device.ok_or_else(|| Error::new(ErrorKind::NoSuchDevice, "opening a Metal device"))
    }

    fn allocated_bytes(&self, device: &Self::Device) -> u64 {
        device.currentAllocatedSize() as u64
    }

    fn allocate(&self, device: &Self::Device, len_bytes: usize) -> Option<Self::Memory> {
        // Hazards between queues are ordered by events, within one by the queue: the API tracks the latter.
        device.newBufferWithLength_options(len_bytes, MTLResourceOptions::StorageModeShared).map(Shared)
    }

    fn contents(&self, memory: &Self::Memory) -> *mut u8 {
        memory.0.contents().as_ptr().cast()
    }

    fn queue(&self, device: &Self::Device) -> Result<Self::Queue> {
        device.newCommandQueue().ok_or_else(|| none("making a Metal command queue"))
    }

    fn timeline(&self, device: &Self::Device) -> Result<Self::Timeline> {
        device.newSharedEvent().map(Shared).ok_or_else(|| none("making a Metal shared event"))
    }

    fn signal(&self, timeline: &Self::Timeline, value: u64) {
        if timeline.0.signaledValue() < value {
            timeline.0.setSignaledValue(value);
        }
    }

    fn pipeline(&self, device: &Self::Device, code: &Code<'_>) -> Result<Self::Pipeline> {
        const DOING: &str = "compiling a Metal kernel";
        autoreleasepool(|_| {
            let options = MTLCompileOptions::new();
            options.setLanguageVersion(MTLLanguageVersion::Version2_4);
            // Kernels mean what they say: the same bytes as everywhere. Its successor came with macOS 15.
            #[allow(deprecated)]
            options.setFastMathEnabled(false);
            let text = NSString::from_str(code.text);
            let library = device
                .newLibraryWithSource_options_error(&text, Some(&options))
                .map_err(|error| refused(DOING, error.localizedDescription()))?;
            let function = library.newFunctionWithName(&NSString::from_str(code.function));
            let function = function.ok_or_else(|| refused(DOING, "the text lacks its function"))?;
            device
                .newComputePipelineStateWithFunction_error(&function)
                .map_err(|error| refused(DOING, error.localizedDescription()))
        })
    }

    fn begin(&self, queue: &Self::Queue) -> Result<Self::Commands> {
        // It retains what is encoded into it, unlike one with unretained references.
        autoreleasepool(|_| {
            queue.commandBuffer().map(Shared).ok_or_else(|| none("making a Metal command buffer"))
        })
    }

    fn encode_wait(&self, commands: &Self::Commands, timeline: &Self::Timeline, value: u64) {
        commands.0.encodeWaitForEvent_value(ProtocolObject::from_ref(&*timeline.0), value);
    }

    fn encode_signal(&self, commands: &Self::Commands, timeline: &Self::Timeline, value: u64) {
        commands.0.encodeSignalEvent_value(ProtocolObject::from_ref(&*timeline.0), value);
    }

    fn encode_run(&self, commands: &Self::Commands, run: &Run<'_, Self>) -> Result<()> {
        autoreleasepool(|_| {
            let encoder = commands.0.computeCommandEncoder();
            let encoder = encoder.ok_or_else(|| none("encoding a Metal kernel"))?;
            encoder.setComputePipelineState(run.pipeline);
            for (place, memory, offset, _) in run.vectors {
                // SAFETY: the driver checked that the range lies in the memory, which the command buffer retains; places
                // are below the 31 that there are, as whoever wrote the text saw to.
                unsafe { encoder.setBuffer_offset_atIndex(Some(&memory.0), *offset, *place as usize) };
            }
            let (place, sizes) = run.sizes;
            let sizes: Vec<u8> = sizes.iter().flat_map(|size| size.to_ne_bytes()).collect();
            for (place, bytes) in [run.scalars, (place, sizes.as_slice())] {
                let Some(pointer) = NonNull::new(bytes.as_ptr().cast_mut().cast::<c_void>()) else {
                    continue;
                };
                if !bytes.is_empty() {
                    // SAFETY: so many bytes are readable there, and are copied before this returns.
                    unsafe { encoder.setBytes_length_atIndex(pointer, bytes.len(), place as usize) };
                }
            }
            encoder.dispatchThreadgroups_threadsPerThreadgroup(size(run.groups), size(run.group));
            encoder.endEncoding();
            Ok(())
        })
    }

    fn commit(&self, commands: &Self::Commands) {
        commands.0.commit();
    }

    fn progress(&self, commands: &Self::Commands) -> Progress {
        match commands.0.status() {
            MTLCommandBufferStatus::Completed => Progress::Completed,
            MTLCommandBufferStatus::Error => {
                let error = commands.0.error();
                let code = error.as_ref().map_or(0, |error| error.code());
                let text = error.map_or_else(String::new, |error| error.localizedDescription().to_string());
                Progress::Failed(format!("MTLCommandBufferError {code}: {text}"))
            }
            _ => Progress::Running,
        }
    }

    fn wait(&self, commands: &Self::Commands) {
        commands.0.waitUntilCompleted();
    }
}
