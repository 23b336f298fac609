//! What can go wrong in a cache or a load, as a kind to match and one line to read.

use std::fmt;
use std::sync::Arc;

/// What this crate's fallible functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A set of keys is wider than the pool: it could never be resident at once.
    #[error("the set needs {need} slots, the pool has {have}")]
    TooWide {
        /// Distinct keys of the set.
        need: usize,
        /// Slots there are.
        have: usize,
    },
    /// The key's model was unregistered.
    #[error("key {key} belongs to a model that was unregistered")]
    StaleKey {
        /// The key.
        key: crate::Key,
    },
    /// The model has no such group.
    #[error("no group {group} in the model")]
    NoSuchGroup {
        /// The number asked for.
        group: u32,
    },
    /// A part is to go to a slot that there is not, or beyond its end.
    #[error("slot {slot} up to its byte {end_bytes}: there are {slots} slots of {slot_bytes} bytes")]
    NoSuchSlot {
        /// The slot.
        slot: u32,
        /// Slots there are.
        slots: u32,
        /// Where the part ends in its slot.
        end_bytes: u64,
        /// What a slot has.
        slot_bytes: u64,
    },
    /// A group is wider than the slots.
    #[error("group {group} needs {need_bytes} bytes, a slot has {slot_bytes}")]
    GroupTooWide {
        /// Its name.
        group: String,
        /// What it needs.
        need_bytes: u64,
        /// What a slot has.
        slot_bytes: u64,
    },
    /// A slot class, or a tensor, is wider than a segment of the device may be.
    #[error("{what} needs {need_bytes} bytes, a segment of this device has at most {segment_bytes}")]
    WiderThanSegment {
        /// The slot class or tensor, by name.
        what: String,
        /// What it needs.
        need_bytes: u64,
        /// What a segment has.
        segment_bytes: u64,
    },
    /// More slots than the cache was set up to number.
    #[error("slot numbers up to {need} needed, the cache was set up for {have}")]
    TooManySlots {
        /// Slots needed.
        need: u32,
        /// Slots that can be numbered.
        have: u32,
    },
    /// The slot table in device memory has too little room.
    #[error("the device table has room for {have} groups, {need} are needed")]
    TableTooSmall {
        /// Groups needed.
        need: usize,
        /// Groups there is room for.
        have: usize,
    },
    /// The cache has no slots of this class.
    #[error("no slot class {class}")]
    NoSuchClass {
        /// The number asked for.
        class: u32,
    },
    /// The device has too little free memory.
    #[error("device too small: {need_bytes} bytes needed, {have_bytes} free")]
    DeviceTooSmall {
        /// Bytes needed.
        need_bytes: u64,
        /// Bytes free.
        have_bytes: u64,
    },
    /// The staging budget cannot hold what the reader needs.
    #[error("staging too small: {have_bytes} bytes, at least {need_bytes} are needed")]
    StagingTooSmall {
        /// Least bytes that work.
        need_bytes: u64,
        /// The budget.
        have_bytes: u64,
    },
    /// The host has too little free memory.
    #[error("host too small: {need_bytes} bytes needed for the host tier, {have_bytes} may be taken")]
    HostTooSmall {
        /// Bytes needed.
        need_bytes: u64,
        /// Bytes that may be taken.
        have_bytes: u64,
    },
    /// A group of devices is none: empty, or one device is in it twice.
    #[error("expected different devices, found {found}, of which one is there twice or none at all")]
    NoDevices {
        /// How many were given.
        found: usize,
    },
    /// A placement map names devices that the group has not.
    #[error("the map has devices 0 to {}, there are {have}", need.saturating_sub(1))]
    TooFewDevices {
        /// Devices of the map.
        need: u32,
        /// Devices of the group.
        have: usize,
    },
    /// Sizes that do not fit 64 bits, or more tensors than can be numbered.
    #[error("the model's groups cannot be numbered or laid out in 64 bits")]
    CatalogueTooLarge,
    /// No tensor of the model was selected.
    #[error("no tensor matches {pattern:?}")]
    NoTensor {
        /// The selection.
        pattern: String,
    },
    /// A pattern cannot be understood.
    #[error("{why}")]
    BadPattern {
        /// What is wrong with it.
        why: String,
    },
    /// The statistics page has too few words.
    #[error("the counter store has {have} words, {need} are needed")]
    StoreTooSmall {
        /// Words needed.
        need: usize,
        /// Words there are.
        have: usize,
    },
    /// A stream of another device than the cache's was passed.
    #[error("the stream belongs to another device")]
    WrongDevice,
    /// The stream is being captured: an event recorded on it would belong to the graph.
    #[error("the stream is being captured: end the capture first")]
    Capturing,
    /// Something of the model is loading or leased.
    #[error("the model is in use: {slots} of its slots are loading, leased or draining")]
    InUse {
        /// How many slots.
        slots: usize,
    },
    /// Device memory differs from the file after a load.
    #[error("tensor {tensor} differs from its file at byte {at_byte} of the tensor")]
    Mismatch {
        /// Its name.
        tensor: String,
        /// First differing byte, counted within the tensor.
        at_byte: u64,
    },
    /// The cache, or the pump that feeds it, has shut down.
    #[error("the cache has shut down")]
    Closed,
    /// Nobody wanted it any more, so the read was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// The time given for waiting passed.
    #[error("not ready in time")]
    TimedOut,
    /// Reading failed.
    #[error(transparent)]
    Read(Arc<spoc_io::Error>),
    /// The device failed.
    #[error(transparent)]
    Device(Arc<spoc_driver::Error>),
}

impl ErrorKind {
    /// Stable name in snake case; for reads and devices that of their own kind.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            ErrorKind::TooWide { .. } => "too_wide",
            ErrorKind::StaleKey { .. } => "stale_key",
            ErrorKind::NoSuchGroup { .. } => "no_such_group",
            ErrorKind::NoSuchSlot { .. } => "no_such_slot",
            ErrorKind::GroupTooWide { .. } => "group_too_wide",
            ErrorKind::WiderThanSegment { .. } => "wider_than_segment",
            ErrorKind::TooManySlots { .. } => "too_many_slots",
            ErrorKind::NoDevices { .. } | ErrorKind::TooFewDevices { .. } => "no_device",
            ErrorKind::NoSuchClass { .. } => "no_such_class",
            ErrorKind::TableTooSmall { .. } => "table_too_small",
            ErrorKind::DeviceTooSmall { .. } => "device_too_small",
            ErrorKind::StagingTooSmall { .. } | ErrorKind::HostTooSmall { .. } => "staging_too_small",
            ErrorKind::CatalogueTooLarge => "catalogue_too_large",
            ErrorKind::NoTensor { .. } => "no_tensor",
            ErrorKind::BadPattern { .. } => "bad_pattern",
            ErrorKind::StoreTooSmall { .. } => "store_too_small",
            ErrorKind::WrongDevice => "wrong_device",
            ErrorKind::Capturing => "capturing",
            ErrorKind::InUse { .. } => "in_use",
            ErrorKind::Mismatch { .. } => "mismatch",
            ErrorKind::Closed => "closed",
            ErrorKind::Cancelled => "cancelled",
            ErrorKind::TimedOut => "timed_out",
            ErrorKind::Read(error) => error.kind().as_str(),
            ErrorKind::Device(error) => error.kind().as_str(),
        }
    }
}

/// An error: cheap to clone, because one failed fill is told to everyone who waited for it.
#[derive(Clone)]
pub struct Error {
    kind: Arc<ErrorKind>,
    context: Option<Arc<str>>,
}

impl Error {
    /// An error of this kind.
    #[must_use]
    pub fn new(kind: ErrorKind) -> Error {
        Error { kind: Arc::new(kind), context: None }
    }

    /// The same error, with what was being done.
    #[must_use]
    pub fn while_doing(mut self, what: impl AsRef<str>) -> Error {
        self.context = Some(Arc::from(what.as_ref()));
        self
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// The file it concerns, if it is about one.
    #[must_use]
    pub fn file(&self) -> Option<&std::path::Path> {
        match &*self.kind {
            ErrorKind::Read(error) => error.file(),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.context {
            Some(context) => write!(f, "{context}: {}", self.kind),
            None => self.kind.fmt(f),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({self})")
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.kind.source()
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Error {
        Error::new(kind)
    }
}

impl From<spoc_io::Error> for Error {
    fn from(error: spoc_io::Error) -> Error {
        Error::new(ErrorKind::Read(Arc::new(error)))
    }
}

impl From<Arc<spoc_io::Error>> for Error {
    fn from(error: Arc<spoc_io::Error>) -> Error {
        Error::new(ErrorKind::Read(error))
    }
}

impl From<spoc_driver::Error> for Error {
    fn from(error: spoc_driver::Error) -> Error {
        Error::new(ErrorKind::Device(Arc::new(error)))
    }
}

impl From<BadPatternError> for Error {
    fn from(error: BadPatternError) -> Error {
        Error::new(ErrorKind::BadPattern { why: error.to_string() })
    }
}

type BadPatternError = crate::catalogue::BadPattern;
