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
    /// Reads that the io_uring thread keeps in flight to begin with; prefetch and refill at most half of them, and of the pool's
    /// threads at most three quarters, so that a demand finds room at once. They also leave a quarter of the chunks to
    /// demand, though not more than this many.
    pub depth: u32,
    /// What the reads in flight may grow to, where deeper brings more. Default `None`: half of the chunks, at most 128.
    /// Not above `depth`, the depth is fixed.
    pub depth_max: Option<u32>,
    /// Threads that call pread. 0 means three for every four cores, within 4 and 16.
    pub threads: u32,
    /// Threads that check the chunks of plans with digests ([`crate::PlanBuilder::check_against`]), beside those that
    /// read and those that copy. Default 0: such plans are refused. [`ReaderOptions::CHECK_THREADS`] suits most.
    pub check_threads: u32,
    /// NUMA node of the device that the region's chunks go to: the reader's threads run there. Default `None`: anywhere.
    pub numa_node: Option<u32>,
    /// Requests that may wait at once. Default 1024.
    pub requests_max: u32,
    /// Whether to register the region with io_uring. Default true; refused registration falls back by itself.
    pub fixed_buffers: bool,
    /// Rate that refills are held to, in bytes a second. Default `None`: only more urgent reads hold them back.
    pub refill_bytes_per_second: Option<u64>,
    /// Stretch of a file that is judged as one: in the page cache, or not. Default 64 MiB.
    pub residency_range_bytes: u64,
    /// Age from which such a judgement is made again before the stretch is read. Default 100 ms.
    pub residency_fresh: Duration,
    /// How long a read may take, from its start to its last byte. One that takes longer completes with `read_timeout`;
    /// its memory is not used again before the kernel has returned it, which the reader asks for where it can. Default
    /// `None`: for ever. Opening files and reading headers is not under it.
    pub read_deadline: Option<Duration>,
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
            depth_max: None,
            threads: 0,
            check_threads: 0,
            numa_node: None,
            requests_max: 1024,
            fixed_buffers: true,
            refill_bytes_per_second: None,
            residency_range_bytes: 64 << 20,
            residency_fresh: Duration::from_millis(100),
            read_deadline: None,
            drain_timeout: Duration::from_secs(5),
            faults: None,
        }
    }
}

impl ReaderOptions {
    /// For [`ReaderOptions::check_threads`]: as many as the fastest digest needs at the speed of the fastest disks, and
    /// fewer where there are few cores.
    pub const CHECK_THREADS: u32 = 4;
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

/// Urgency of a request. Read by read, the more urgent class goes first, and inside a class who came first. Only a
/// refill ages: a read of it that 16 prefetch reads have overtaken goes before the next of them.
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
