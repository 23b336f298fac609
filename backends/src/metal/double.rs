//! A test double of the API: host memory, and a thread for each queue that runs kernels on the interpreter, late.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use spoc_driver::backend::{BackendKind, DeviceInfo};
use spoc_driver::{Error, ErrorKind, HostBuffer, HostMemory, HostMemoryOptions, Result};

use super::api::{Api, Code, Physical, Progress, Run};
use crate::identity::derived_uuid;
use crate::kernel::library::Module;
use crate::kernel::run;
use crate::sync::lock;

const MEMORY_BYTES: u64 = 256 << 20;
/// Kernels begin this much after they were committed, so that whoever does not wait is found out.
const LATE: Duration = Duration::from_micros(200);

pub(super) struct Double {
    taken_bytes: Arc<AtomicU64>,
}

/// A number that rises, and a way to wait for it.
#[derive(Clone, Default)]
pub(super) struct Timeline(Arc<(Mutex<u64>, Condvar)>);

#[derive(Clone)]
pub(super) struct Memory(Arc<Taken>);

struct Taken {
    memory: HostMemory,
    bytes: u64,
    of: Arc<AtomicU64>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.of.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

enum Command {
    Wait(Timeline, u64),
    Signal(Timeline, u64),
    Run(Work),
}

struct Work {
    module: Arc<Module>,
    vectors: Vec<(u32, Memory, usize, usize)>,
    scalars: Vec<u8>,
    groups: [u32; 3],
}

/// A command buffer: what is in it, and how it ended.
#[derive(Clone)]
pub(super) struct Commands(Arc<Inner>);

struct Inner {
    list: Mutex<Vec<Command>>,
    end: Mutex<Option<Result<(), String>>>,
    has_ended: Condvar,
    queue: Queue,
}

/// A queue: command buffers that a thread takes one after the other.
#[derive(Clone)]
pub(super) struct Queue(Arc<Shared>);

struct Shared {
    waiting: Mutex<VecDeque<Commands>>,
    is_running: AtomicBool,
}

impl Double {
    pub(super) fn new() -> Self {
        Self { taken_bytes: Arc::default() }
    }
}

impl Timeline {
    fn raise(&self, value: u64) {
        let mut now = lock(&self.0.0);
        *now = value.max(*now);
        self.0.1.notify_all();
    }

    fn wait(&self, value: u64) {
        let now = lock(&self.0.0);
        drop(self.0.1.wait_while(now, |now| *now < value).unwrap_or_else(PoisonError::into_inner));
    }
}

impl Queue {
    /// Runs what waits, on a thread that ends with it.
    fn go_on(&self) {
        if self.0.is_running.swap(true, Ordering::AcqRel) {
            return;
        }
        let queue = self.clone();
        std::thread::spawn(move || {
            loop {
                let next = lock(&queue.0.waiting).pop_front();
                if let Some(commands) = next {
                    std::thread::sleep(LATE);
                    commands.execute();
                    continue;
                }
                queue.0.is_running.store(false, Ordering::Release);
                // Somebody may have come between the look and the word.
                let has_more = !lock(&queue.0.waiting).is_empty();
                if !has_more || queue.0.is_running.swap(true, Ordering::AcqRel) {
                    return;
                }
            }
        });
    }
}

impl Commands {
    fn execute(&self) {
        let list = std::mem::take(&mut *lock(&self.0.list));
        let outcome = list.into_iter().try_for_each(|command| match command {
            Command::Wait(timeline, value) => {
                timeline.wait(value);
                Ok(())
            }
            Command::Signal(timeline, value) => {
                timeline.raise(value);
                Ok(())
            }
            Command::Run(work) => work.run(),
        });
        *lock(&self.0.end) = Some(outcome);
        self.0.has_ended.notify_all();
    }
}

impl Work {
    fn run(&self) -> Result<(), String> {
        let place = |binding: u32| self.vectors.iter().find(|(known, ..)| *known == binding);
        let mut buffers = Vec::new();
        for slot in &self.module.program().buffers {
            let (_, memory, offset, len_bytes) = place(slot.binding).ok_or("a vector is not bound")?;
            let ptr = memory.0.memory.as_ptr().wrapping_add(*offset);
            buffers.push(run::Buffer { ptr, len_bytes: *len_bytes });
        }
        // SAFETY: the memory is kept by this work; the adapter keeps the host away from what is bound until it has run.
        let mut memory = unsafe { run::Memory::new(buffers, self.scalars.clone()) };
        self.module.runnable.run(self.groups, &mut memory).map_err(|fault| format!("{fault:?}"))
    }
}

impl Api for Double {
    type Device = ();
    type Memory = Memory;
    type Queue = Queue;
    type Timeline = Timeline;
    type Commands = Commands;
    type Pipeline = Arc<Module>;

    fn devices(&self) -> Vec<Physical> {
        let info = DeviceInfo {
            backend: BackendKind::Metal,
            index: 0,
            uuid: derived_uuid("a double of Metal"),
            uuid_is_stable: false,
            name: "a test double of Metal".to_owned(),
            memory_bytes: MEMORY_BYTES,
            numa_node: None,
            unified: true,
        };
        let group_max = [1024, 1024, 1024];
        vec![Physical { info, buffer_bytes_max: MEMORY_BYTES / 2, group_max, group_bytes_max: 32 << 10 }]
    }

    fn open(&self, _: u32) -> Result<()> {
        Ok(())
    }

    fn allocated_bytes(&self, (): &()) -> u64 {
        self.taken_bytes.load(Ordering::Relaxed)
    }

    fn allocate(&self, (): &(), len_bytes: usize) -> Option<Memory> {
        let memory = HostBuffer::allocate(len_bytes, HostMemoryOptions::default()).ok()?.share();
        self.taken_bytes.fetch_add(len_bytes as u64, Ordering::Relaxed);
        Some(Memory(Arc::new(Taken { memory, bytes: len_bytes as u64, of: Arc::clone(&self.taken_bytes) })))
    }

    fn contents(&self, memory: &Memory) -> *mut u8 {
        memory.0.memory.as_ptr()
    }

    fn queue(&self, (): &()) -> Result<Queue> {
        let shared = Shared { waiting: Mutex::default(), is_running: AtomicBool::new(false) };
        Ok(Queue(Arc::new(shared)))
    }

    fn timeline(&self, (): &()) -> Result<Timeline> {
        Ok(Timeline::default())
    }

    fn signal(&self, timeline: &Timeline, value: u64) {
        timeline.raise(value);
    }

    fn pipeline(&self, (): &(), code: &Code<'_>) -> Result<Arc<Module>> {
        if !code.text.contains(&format!("kernel void {}(", code.function)) {
            return Err(Error::new(ErrorKind::Backend, "compiling for a double of Metal")
                .with("missing", code.function.to_owned()));
        }
        Ok(Arc::clone(code.module))
    }

    fn begin(&self, queue: &Queue) -> Result<Commands> {
        let (list, end, has_ended) = (Mutex::default(), Mutex::default(), Condvar::new());
        Ok(Commands(Arc::new(Inner { list, end, has_ended, queue: queue.clone() })))
    }

    fn encode_wait(&self, commands: &Commands, timeline: &Timeline, value: u64) {
        lock(&commands.0.list).push(Command::Wait(timeline.clone(), value));
    }

    fn encode_signal(&self, commands: &Commands, timeline: &Timeline, value: u64) {
        lock(&commands.0.list).push(Command::Signal(timeline.clone(), value));
    }

    fn encode_run(&self, commands: &Commands, run: &Run<'_, Self>) -> Result<()> {
        let program = run.pipeline.program();
        let has_lengths = run.sizes.1.len() <= run.vectors.len();
        if run.group != program.group || !has_lengths || run.sizes.0 != run.scalars.0 + 1 {
            return Err(Error::new(ErrorKind::InvalidArgument, "encoding for a double of Metal"));
        }
        let vectors = run.vectors.iter();
        let work = Work {
            module: Arc::clone(run.pipeline),
            vectors: vectors
                .map(|&(place, memory, offset, len)| (place, memory.clone(), offset, len))
                .collect(),
            scalars: run.scalars.1.to_vec(),
            groups: run.groups,
        };
        lock(&commands.0.list).push(Command::Run(work));
        Ok(())
    }

    fn commit(&self, commands: &Commands) {
        let queue = &commands.0.queue;
        lock(&queue.0.waiting).push_back(commands.clone());
        queue.go_on();
    }

    fn progress(&self, commands: &Commands) -> Progress {
        match &*lock(&commands.0.end) {
            None => Progress::Running,
            Some(Ok(())) => Progress::Completed,
            Some(Err(because)) => Progress::Failed(because.clone()),
        }
    }

    fn wait(&self, commands: &Commands) {
        let end = lock(&commands.0.end);
        drop(
            commands.0.has_ended.wait_while(end, |end| end.is_none()).unwrap_or_else(PoisonError::into_inner),
        );
    }
}
