//! What is asked of the API: as little as the adapter needs, so that a double of it is short.

use std::sync::Arc;

use spoc_driver::Result;
use spoc_driver::backend::DeviceInfo;

use crate::kernel::library::Module;

/// A device, as the API tells of it.
#[derive(Debug, Clone)]
pub(super) struct Physical {
    pub(super) info: DeviceInfo,
    /// `maxBufferLength`, in bytes.
    pub(super) buffer_bytes_max: u64,
    /// Most threads of a group, by side.
    pub(super) group_max: [u32; 3],
    /// `maxThreadgroupMemoryLength`, in bytes.
    pub(super) group_bytes_max: u32,
}

/// How far a command buffer has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Progress {
    Running,
    Completed,
    /// It ended with an error, in the API's words.
    Failed(String),
}

/// A kernel to be made ready: its text in the API's language, its function, and what it was written from.
pub(super) struct Code<'c> {
    pub(super) text: &'c str,
    pub(super) function: &'c str,
    /// For doubles, which run it without a compiler.
    #[cfg_attr(target_vendor = "apple", allow(dead_code, reason = "only doubles look at it"))]
    pub(super) module: &'c Arc<Module>,
}

/// One launch, as it is encoded.
pub(super) struct Run<'r, A: Api> {
    pub(super) pipeline: &'r A::Pipeline,
    /// For each place: the memory, the offset of the first byte, and how many may be used.
    pub(super) vectors: &'r [(u32, &'r A::Memory, usize, usize)],
    /// The numbers and the place they go to, if there are any.
    pub(super) scalars: (u32, &'r [u8]),
    /// Bytes of every vector in the order in which the text declares them, and the place they go to.
    pub(super) sizes: (u32, &'r [u32]),
    pub(super) groups: [u32; 3],
    pub(super) group: [u32; 3],
}

/// The API.
pub(super) trait Api: Send + Sync + Sized + 'static {
    /// `MTLDevice`.
    type Device: Send + Sync + 'static;
    /// `MTLBuffer`, in shared storage.
    type Memory: Clone + Send + Sync + 'static;
    /// `MTLCommandQueue`.
    type Queue: Send + Sync + 'static;
    /// `MTLSharedEvent`.
    type Timeline: Send + Sync + 'static;
    /// `MTLCommandBuffer`.
    type Commands: Send + Sync + 'static;
    /// `MTLComputePipelineState`.
    type Pipeline: Send + Sync + 'static;

    fn devices(&self) -> Vec<Physical>;
    fn open(&self, index: u32) -> Result<Self::Device>;
    /// Bytes that the device has given to this process.
    fn allocated_bytes(&self, device: &Self::Device) -> u64;
    /// None if there is not so much.
    fn allocate(&self, device: &Self::Device, len_bytes: usize) -> Option<Self::Memory>;
    /// First byte; stays for the memory's life.
    fn contents(&self, memory: &Self::Memory) -> *mut u8;
    fn queue(&self, device: &Self::Device) -> Result<Self::Queue>;
    fn timeline(&self, device: &Self::Device) -> Result<Self::Timeline>;
    /// Raises a timeline from the host.
    fn signal(&self, timeline: &Self::Timeline, value: u64);
    fn pipeline(&self, device: &Self::Device, code: &Code<'_>) -> Result<Self::Pipeline>;
    /// A command buffer that keeps what is encoded into it.
    fn begin(&self, queue: &Self::Queue) -> Result<Self::Commands>;
    fn encode_wait(&self, commands: &Self::Commands, timeline: &Self::Timeline, value: u64);
    fn encode_signal(&self, commands: &Self::Commands, timeline: &Self::Timeline, value: u64);
    fn encode_run(&self, commands: &Self::Commands, run: &Run<'_, Self>) -> Result<()>;
    /// Command buffers of a queue run in the order in which they were committed.
    fn commit(&self, commands: &Self::Commands);
    fn progress(&self, commands: &Self::Commands) -> Progress;
    /// Waits on the host until a committed command buffer has ended.
    fn wait(&self, commands: &Self::Commands);
}
