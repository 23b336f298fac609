//! What a backend says of itself and of its devices.

use std::borrow::Cow;
use std::fmt;
use std::os::fd::OwnedFd;
use std::str::FromStr;

use crate::error::{Error, ErrorKind};

/// An API family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BackendKind {
    /// NVIDIA CUDA.
    Cuda,
    /// AMD HIP.
    Hip,
    /// OpenCL, any vendor.
    OpenCl,
    /// Vulkan, any vendor.
    Vulkan,
    /// Apple Metal.
    Metal,
    /// WebGPU.
    WebGpu,
    /// The CPU, asynchronous on explicit streams, memory in memfds.
    Native,
    /// The CPU, synchronous, for checking kernels.
    Interpreter,
    /// The deferred backend of tests.
    Fake,
}

impl BackendKind {
    /// Every kind, in the order in which reports list them.
    pub const ALL: [Self; 9] = [
        Self::Cuda,
        Self::Hip,
        Self::OpenCl,
        Self::Vulkan,
        Self::Metal,
        Self::WebGpu,
        Self::Native,
        Self::Interpreter,
        Self::Fake,
    ];

    /// The lower-case name, as in configuration: `cuda`, `opencl`, `native`, …
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Hip => "hip",
            Self::OpenCl => "opencl",
            Self::Vulkan => "vulkan",
            Self::Metal => "metal",
            Self::WebGpu => "webgpu",
            Self::Native => "native",
            Self::Interpreter => "interpreter",
            Self::Fake => "fake",
        }
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for BackendKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == name)
            .ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "naming a backend").with("name", name))
    }
}

/// One opening of a backend: its kind and a number no other opening in the process has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BackendId {
    /// The API family.
    pub kind: BackendKind,
    /// Tells two openings of one family apart.
    pub generation: u64,
}

impl fmt::Display for BackendId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.kind, self.generation)
    }
}

/// Whether something can be done. Only [`Verdict::Available`] permits it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It can.
    Available,
    /// It cannot, and why.
    Unavailable(Cow<'static, str>),
    /// It was not possible to find out, and why.
    Unknown(Cow<'static, str>),
}

impl Verdict {
    /// A refusal with a constant reason.
    #[must_use]
    pub const fn unavailable(reason: &'static str) -> Self {
        Self::Unavailable(Cow::Borrowed(reason))
    }

    /// A doubt with a constant reason.
    #[must_use]
    pub const fn unknown(reason: &'static str) -> Self {
        Self::Unknown(Cow::Borrowed(reason))
    }

    /// True for [`Verdict::Available`] alone.
    #[must_use]
    pub fn is_available(&self) -> bool {
        matches!(self, Self::Available)
    }

    /// Why not, if not available.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Available => None,
            Self::Unavailable(reason) | Self::Unknown(reason) => Some(reason),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Available => write!(f, "available"),
            Self::Unavailable(reason) => write!(f, "unavailable: {reason}"),
            Self::Unknown(reason) => write!(f, "unknown: {reason}"),
        }
    }
}

macro_rules! capabilities {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What a device can do beyond the obligatory, one verdict each.
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Capabilities { $($(#[$doc])* pub $name: Verdict,)* }

        impl Capabilities {
            /// All of them with the same verdict, to start from.
            #[must_use]
            pub fn all(verdict: &Verdict) -> Self {
                Self { $($name: verdict.clone(),)* }
            }

            /// Names and verdicts, for reports.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Verdict)> {
                [$((stringify!($name), &self.$name),)*].into_iter()
            }
        }
    };
}

capabilities! {
    /// Copies on an explicit stream return before they have run.
    async_copies,
    /// So do copies from and to host memory that is not pinned.
    pageable_async,
    /// Host memory allocated by the driver for DMA.
    pinned_alloc,
    /// Registering existing host memory for DMA.
    host_register,
    /// Exporting a segment as a descriptor.
    export_memory,
    /// Importing a segment from a descriptor.
    import_memory,
    /// Reserving addresses that memory is put behind, and taken from, piece by piece.
    reserve,
    /// A stream writing a word of device memory.
    write_value,
    /// A stream waiting for a word of device memory.
    wait_value,
    /// Many copies in one call.
    copy_many,
    /// Filling device memory with a byte.
    fill,
    /// Borrowing another library's context.
    adopt_context,
    /// Borrowing another library's stream.
    adopt_stream,
    /// Borrowing another library's allocation.
    adopt_memory,
    /// Device memory that the host can address.
    host_pointer,
    /// A buffer over existing host memory, in place.
    host_buffer,
    /// A device address that kernels and peers can use.
    device_address,
    /// Copies between two devices without the host.
    peer_copies,
    /// Recording a stream into a graph.
    stream_capture,
    /// Running kernels.
    launch,
    /// The UUID names the same hardware for good. Some drivers answer with their version instead: such a
    /// UUID changes with an update, and two devices may share it.
    stable_uuid,
}

/// Bounds of a device. All in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Largest single allocation.
    pub segment_bytes_max: u64,
    /// Largest range one kernel argument can see.
    pub binding_bytes_max: u64,
    /// Offsets and lengths of copies must be multiples of this (1: any).
    pub copy_granule_bytes: u64,
    /// Every segment's address is a multiple of this.
    pub address_align_bytes: u64,
    /// Exported segments, and parts of reserved addresses, take a multiple of this (1: any).
    pub export_granule_bytes: u64,
    /// Freeing and unregistering wait for the whole device, even for memory that is idle: keep them away
    /// from the thread that feeds it.
    pub free_waits_for_device: bool,
}

/// How device memory is allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SegmentOptions {
    /// It will be exported: some APIs have to know when they allocate.
    pub exportable: bool,
}

/// Exported device memory: the descriptor, and what cannot be asked of it.
#[derive(Debug)]
pub struct Exported {
    /// Names the memory, and keeps it while it is open. Sent over a socket, or imported.
    pub descriptor: OwnedFd,
    /// Length of the segment in bytes.
    pub len_bytes: u64,
    /// Length of the allocation behind it in bytes, a multiple of the export granule.
    pub allocation_bytes: u64,
    /// The API family whose descriptor it is.
    pub backend: BackendKind,
    /// The device the memory lies on.
    pub device: DeviceUuid,
}

/// Which way a buffer over host memory is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostMap {
    /// So that the host sees what the device wrote.
    Read,
    /// So that the device sees what the host wrote.
    Write,
}

/// Whether a stream is being recorded into a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaptureState {
    /// It is not.
    None,
    /// It is: calls that the capture forbids would spoil it.
    Active,
    /// It was, and a forbidden call has spoiled it.
    Spoiled,
}

/// What names a device for good: the vendor's UUID, or one derived where there is none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceUuid(pub [u8; 16]);

impl fmt::Display for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, byte) in self.0.iter().enumerate() {
            if matches!(position, 4 | 6 | 8 | 10) {
                write!(f, "-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceUuid({self})")
    }
}

impl FromStr for DeviceUuid {
    type Err = Error;

    /// Hexadecimal digits with or without dashes; a leading `GPU-` is accepted.
    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = || Error::new(ErrorKind::InvalidArgument, "reading a device UUID").with("uuid", text);
        let digits: String =
            text.strip_prefix("GPU-").unwrap_or(text).chars().filter(|c| *c != '-').collect();
        if digits.len() != 32 {
            return Err(invalid());
        }
        let value = u128::from_str_radix(&digits, 16).map_err(|_| invalid())?;
        Ok(Self(value.to_be_bytes()))
    }
}

/// A device as its backend describes it, before it is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The API family it is reached through.
    pub backend: BackendKind,
    /// Position among that backend's devices: for people.
    pub index: u32,
    /// Its lasting name: for configuration and messages.
    pub uuid: DeviceUuid,
    /// Whether the UUID is the hardware's own. If not, it was derived from names and positions, and may
    /// change with the driver, with the other devices of the machine, or with a restart.
    pub uuid_is_stable: bool,
    /// The vendor's name of the model.
    pub name: String,
    /// Size of its memory in bytes.
    pub memory_bytes: u64,
    /// The NUMA node it hangs on, where known.
    pub numa_node: Option<u32>,
    /// Whether host and device share one memory.
    pub unified: bool,
}

/// Device memory at one moment, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryInfo {
    /// What an allocation could still get.
    pub free_bytes: u64,
    /// All of it.
    pub total_bytes: u64,
}

/// How urgent a stream's work is to the device, where it has a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StreamPriority {
    /// After everything else.
    Low,
    /// The device's default.
    #[default]
    Normal,
    /// Before everything else.
    High,
}

/// How a stream is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamOptions {
    /// The default stream does not wait for a non-blocking stream.
    pub non_blocking: bool,
    /// A hint, ignored where the device has one level.
    pub priority: StreamPriority,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_round_trip() {
        for kind in BackendKind::ALL {
            assert_eq!(kind.to_string().parse::<BackendKind>().unwrap(), kind);
        }
        assert!("CUDA".parse::<BackendKind>().is_err());
    }

    #[test]
    fn uuids_round_trip() {
        let uuid = DeviceUuid(*b"0123456789abcdef");
        assert_eq!(uuid.to_string().parse::<DeviceUuid>().unwrap(), uuid);
        assert_eq!(format!("GPU-{uuid}").parse::<DeviceUuid>().unwrap(), uuid);
        assert!("GPU-12".parse::<DeviceUuid>().is_err());
    }

    #[test]
    fn only_available_permits() {
        assert!(Verdict::Available.is_available());
        assert!(!Verdict::unknown("not asked").is_available());
        assert_eq!(Verdict::unavailable("no").reason(), Some("no"));
    }
}
