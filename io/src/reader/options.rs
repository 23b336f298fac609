//! What a caller sets: how to read, and what.

use std::sync::Arc;
use std::time::Duration;

use crate::file::WeightFile;
use crate::{Error, ErrorKind, ReadPlan, Result};

/// How files are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoMode {
    /// Direct, unless most of the wanted bytes of a file are in the page cache.
    #[default]
    Auto,
    /// Past the page cache wherever the file allows it.
    Direct,
    /// Through the page cache, by io_uring where there is one.
    Buffered,
    /// Without io_uring; direct unless most of the wanted bytes are in the page cache.
    Pread,
}

impl std::fmt::Display for IoMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Auto => "auto",
            Self::Direct => "direct",
            Self::Buffered => "buffered",
            Self::Pread => "pread",
        })
    }
}

impl std::str::FromStr for IoMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Auto),
            "direct" => Ok(Self::Direct),
            "buffered" => Ok(Self::Buffered),
            "pread" => Ok(Self::Pread),
            other => {
                let message = format!("expected auto, direct, buffered or pread, found '{other}'");
                Err(Error::new(ErrorKind::InvalidArgument, message))
            }
        }
    }
}

/// Settings of a reader.
#[derive(Clone)]
pub struct ReaderOptions {
    /// How files are read.
    pub mode: IoMode,
    /// Length of a chunk in bytes, a multiple of 4096. Default 1 MiB.
    pub chunk_bytes: u32,
    /// Reads that the io_uring thread keeps in flight.
    pub depth: u32,
    /// Threads that call pread. 0 means three for every four cores, within 4 and 16.
    pub threads: u32,
    /// Requests that may wait at once. Default 1024.
    pub requests_max: u32,
    /// Whether to register the region with io_uring. Default true; refused registration falls back by itself.
    pub fixed_buffers: bool,
    /// How long dropping the reader waits for reads in flight before it leaves them to themselves. Default 5 s.
    pub drain_timeout: Duration,
    /// Changes the answers of the operating system, for tests.
    pub faults: Option<Arc<dyn Faults>>,
}

impl Default for ReaderOptions {
    fn default() -> Self {
        Self {
            mode: IoMode::Auto,
            chunk_bytes: 1 << 20,
            depth: 8,
            threads: 0,
            requests_max: 1024,
            fixed_buffers: true,
            drain_timeout: Duration::from_secs(5),
            faults: None,
        }
    }
}

/// A twin of a failing storage: sees every answer of the operating system before the reader does.
pub trait Faults: Send + Sync {
    /// The answer the reader is to see in place of `answer` to a read at `offset` of `file`: bytes, or an error
    /// number.
    fn answer(
        &self,
        answer: std::result::Result<usize, i32>,
        file: &WeightFile,
        offset: u64,
    ) -> std::result::Result<usize, i32>;
}

/// Urgency of a request. The reads of a class start only when no more urgent one has reads to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReadClass {
    /// Somebody waits for the bytes.
    Demand = 0,
    /// Somebody will probably want them.
    Prefetch = 1,
    /// Nobody waits: filling what is empty.
    Refill = 2,
}

/// A plan to carry out.
#[derive(Clone)]
pub struct ReadRequest {
    /// What to read.
    pub plan: Arc<ReadPlan>,
    /// Urgency.
    pub class: ReadClass,
    /// The caller's number, given back with every completion.
    pub token: u64,
}

/// Name of a submitted request, unique in its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub(crate) u64);
