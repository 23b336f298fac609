//! The loop of the ring thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use super::depth::Depth;
use super::files::{FileSlot, FileTable, Target};
use super::late::CANCEL;
use super::setup::{self, Registered};
use crate::reader::ladder::Ladder;
use crate::reader::late;
use crate::reader::progress::{Progress, Step};
use crate::reader::queue::{Bounds, Next, Shared, Work};
use crate::reader::report::{IoPath, add};
use crate::reader::{Outlet, ReaderOptions};
use crate::{Error, ErrorKind, Result};

/// User data of the armed read of the eventfd.
pub(super) const WAKE: u64 = u64::MAX;
/// Descriptors the ring keeps open at most, unless its depth is larger.
const FILES: u32 = 64;
/// Failed reads reported in a row before completions are looked at again.
const FAILS_AT_ONCE: u32 = 64;

/// Reads in flight, whatever is asked for.
const DEPTH_MAX: u32 = 1024;
/// Reads in flight that the depth grows to by itself.
const DEPTH_MAX_AUTOMATIC: usize = 128;

/// A read that the kernel has. It owns the chunk, and through the plan the file, until its completion.
pub(super) struct Op {
    pub(super) work: Work,
    progress: Progress,
    pub(super) file: FileSlot,
    fixed: bool,
    pub(super) since: Instant,
    /// Reported as failed; only the kernel still needs it.
    pub(super) late: bool,
}

/// Why the ring goes to sleep.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ahead {
    /// As many reads are in flight as may be, or there is more to do at once.
    Busy,
    /// Reads wait for a chunk.
    NoChunk,
    /// The storage is busy, and reads wait for chunks that will soon be back.
    Enough,
    /// Nothing is queued that may start.
    Idle,
    /// Only a refill that its rate holds back is queued.
    Later(Duration),
    /// The reader is closing.
    Stop,
}

pub(super) struct Engine {
    pub(super) ring: IoUring,
    pub(super) shared: Arc<Shared>,
    pub(super) ladder: Ladder,
    pub(super) outlet: Outlet,
    pub(super) files: FileTable,
    pub(super) depth: Depth,
    pub(super) ops: Vec<Option<Op>>,
    pub(super) vacant: Vec<u32>,
    /// How long a read may take.
    pub(super) read_deadline: Option<Duration>,
    /// Reads in flight that were reported as failed because they took longer.
    pub(super) late: usize,
    pub(super) arrived: Vec<(u64, i32)>,
    pub(super) registered: Option<Registered>,
    pub(super) tested: bool,
    pub(super) waits_can_end: bool,
    pub(super) wake_armed: bool,
    /// Where the armed read of the eventfd lands; boxed, so that it stays in place.
    pub(super) wake_value: Box<u64>,
    /// The kernel takes no more calls on the ring.
    pub(super) broken: bool,
}

impl Engine {
    pub(super) fn new(shared: Arc<Shared>, outlet: Outlet, options: &ReaderOptions) -> Result<Self, String> {
        let depth = Depth::new(options.depth.clamp(1, DEPTH_MAX), depth_max(options, shared.chunks()));
        let depth_max = depth.max();
        // The reads, the armed wake, and room to submit again what came back short.
        let ring = setup::ring((depth_max + 1).next_power_of_two())?;
        let files = FileTable::new(&ring, FILES.max(depth_max));
        let waits_can_end = ring.params().is_feature_ext_arg();
        Ok(Self {
            ring,
            shared,
            ladder: Ladder::with_ring(options),
            outlet,
            files,
            depth,
            ops: (0..depth_max).map(|_| None).collect(),
            vacant: (0..depth_max).rev().collect(),
            read_deadline: options.read_deadline,
            late: 0,
            arrived: Vec::with_capacity(2 * depth_max as usize + 8),
            registered: None,
            tested: false,
            waits_can_end,
            wake_armed: false,
            wake_value: Box::new(0),
            broken: false,
        })
    }

    /// Registers the region, and notes how reads go from here on.
    pub(super) fn register(&mut self, options: &ReaderOptions) {
        let registered = if options.fixed_buffers {
            Registered::new(&self.ring, &*self.shared.region, self.shared.chunk_bytes)
        } else {
            Err("the staging ring was not to be registered with io_uring".to_owned())
        };
        let missed = registered.as_ref().map_or_else(Some, |r| r.partly.as_ref());
        if let Some(reason) = missed {
            // Known to whoever asks for the report; with the usual limits every unprivileged load comes here.
            tracing::info!(reason, "reads go to plain memory");
        }
        let how = match &registered {
            Ok(registered) => registered.describe(),
            Err(reason) => format!("io_uring with plain reads: {reason}"),
        };
        for path in [IoPath::UringDirect, IoPath::UringBuffered] {
            self.shared.counters.because(path, None, &how);
        }
        self.registered = registered.ok();
    }

    pub(super) fn in_flight(&self) -> usize {
        self.ops.len() - self.vacant.len()
    }

    /// As many reads are in flight as may be.
    pub(super) fn is_full(&self) -> bool {
        self.vacant.is_empty() || self.in_flight() - self.late >= self.depth.now() as usize
    }

    /// Prefetch and refill leave half of the reads in flight to a demand that may come.
    ///
    /// While half of the reads are in flight the storage is busy, and a chunk that comes back from the device is worth
    /// waiting for: few chunks in turn stay warm in caches and address translation, where a virtual machine's disk
    /// brought a fifth more into 12 MiB than into 64. A device that keeps chunks longer gets the others one by one.
    fn bounds(&self) -> Bounds {
        let depth = self.depth.now() as usize;
        let busy = self.in_flight() - self.late >= (depth / 2).max(1);
        let chunks_out = if busy { depth + depth.div_ceil(4) } else { usize::MAX };
        Bounds { background: (self.depth.now() / 2).max(1), chunks_out }
    }

    pub(super) fn run(&mut self) {
        loop {
            let ahead = self.start_reads();
            match ahead {
                Ahead::Busy | Ahead::Enough => {}
                Ahead::Idle if self.in_flight() == 0 => self.depth.reset(),
                _ => self.depth.disturbed(),
            }
            self.shared.counters.depth.fetch_max(self.depth.now().into(), Ordering::Relaxed);
            if ahead == Ahead::Stop && self.in_flight() == 0 {
                return;
            }
            self.arm_wake();
            if let Err(error) = self.sleep(ahead) {
                self.give_up(&error);
                return;
            }
            self.reap();
            self.report_late();
        }
    }

    /// Starts reads until the ring is full, or there is nothing to start.
    fn start_reads(&mut self) -> Ahead {
        let mut fails = 0;
        while !self.is_full() && fails < FAILS_AT_ONCE {
            match self.shared.next_for_ring(&self.ladder, self.bounds()) {
                Next::Read(work) => self.start(work),
                Next::Fail(ticket) => {
                    self.outlet.deliver_failed(&self.shared, ticket);
                    fails += 1;
                }
                Next::NoChunk => return Ahead::NoChunk,
                Next::Enough => return Ahead::Enough,
                Next::Idle(None) => return Ahead::Idle,
                Next::Idle(Some(time)) => return Ahead::Later(time),
                Next::Stop => return Ahead::Stop,
            }
        }
        Ahead::Busy
    }

    fn start(&mut self, work: Work) {
        let planned_file = work.plan.reads()[work.ticket.read as usize].file;
        let file = Arc::clone(&work.plan.files()[planned_file as usize]);
        let offset = work.plan.reads()[work.ticket.read as usize].offset;
        if let Some(error) = late::refusal(&self.shared, &file, offset) {
            return self.outlet.deliver(&self.shared, work.ticket, Err(error));
        }
        let mut direct = work.route.direct && !file.refuses_direct();
        let mut slot = self.files.acquire(&self.ring, &file, direct);
        if let (true, Err(error)) = (direct, &slot)
            && !matches!(error.kind(), ErrorKind::Changed | ErrorKind::TooManyOpenFiles)
        {
            file.refuse_direct();
            self.shared.counters.demoted(IoPath::UringBuffered, Some(file.path()), error.message());
            direct = false;
            slot = self.files.acquire(&self.ring, &file, false);
        }
        match slot {
            Ok(slot) => {
                if let Err(error) = self.test_fixed_reads(&work, slot, direct) {
                    // Nothing is known of the reads into the chunk: it must never be used again.
                    self.files.release(slot);
                    let ticket = work.ticket;
                    std::mem::forget(work);
                    let error = Error::from_os(error, "checking registered memory");
                    return self.outlet.deliver(&self.shared, ticket, Err(error));
                }
                let (progress, since) = (Progress::new(direct), Instant::now());
                let op = Op { work, progress, file: slot, fixed: false, since, late: false };
                let Some(index) = self.vacant.pop() else { return };
                self.ops[index as usize] = Some(op);
                self.ask(index);
            }
            Err(error) => self.outlet.deliver(&self.shared, work.ticket, Err(error)),
        }
    }

    /// Puts the next read of an operation into the submission queue.
    fn ask(&mut self, index: u32) {
        let registered = self.registered.as_ref();
        let Some(op) = &mut self.ops[index as usize] else { return };
        let planned = &op.work.plan.reads()[op.work.ticket.read as usize];
        let file = &op.work.plan.files()[planned.file as usize];
        let (start, end) = op.progress.range(planned, file);
        let buffer = registered.and_then(|r| r.index(op.work.chunk.region_offset()?));
        op.fixed = buffer.is_some();
        let address = op.work.chunk.start().as_ptr().wrapping_add(start as usize);
        let entry = read_entry(
            self.files.target(op.file),
            buffer,
            address,
            end - start,
            planned.offset + u64::from(start),
        )
        .user_data(u64::from(index));
        add(&self.shared.counters.submissions, 1);
        add(&self.shared.counters.fixed_reads, u64::from(op.fixed));
        self.submit(&entry);
    }

    fn reap(&mut self) {
        let mut arrived = std::mem::take(&mut self.arrived);
        arrived.clear();
        let room = arrived.capacity();
        arrived.extend(self.ring.completion().take(room).map(|c: cqueue::Entry| (c.user_data(), c.result())));
        for (name, answer) in &arrived {
            self.take_answer(*name, *answer);
        }
        self.arrived = arrived;
    }

    fn take_answer(&mut self, name: u64, answer: i32) {
        if name == WAKE {
            self.wake_armed = false;
            return;
        }
        let Ok(index) = u32::try_from(name) else {
            debug_assert_eq!(name, CANCEL);
            return;
        };
        if self.ops.get(index as usize).and_then(Option::as_ref).is_some_and(|op| op.late) {
            return self.late_ended(index);
        }
        let Some(mut op) = self.ops.get_mut(index as usize).and_then(Option::take) else { return };
        match self.judge(&mut op, answer) {
            Step::Again => {
                self.ops[index as usize] = Some(op);
                self.ask(index);
            }
            Step::Demote(reason) => {
                let file = op_file(&op);
                file.refuse_direct();
                self.shared.counters.demoted(IoPath::UringBuffered, Some(file.path()), reason);
                op.progress.leave_direct();
                self.files.release(op.file);
                match self.files.acquire(&self.ring, &file, false) {
                    Ok(slot) => {
                        op.file = slot;
                        self.ops[index as usize] = Some(op);
                        self.ask(index);
                    }
                    Err(error) => self.end(index, op.work, Some(error)),
                }
            }
            Step::Done => {
                self.files.release(op.file);
                self.end(index, op.work, None);
            }
            Step::Fail(error) => {
                self.files.release(op.file);
                self.end(index, op.work, Some(error));
            }
        }
    }

    fn judge(&mut self, op: &mut Op, answer: i32) -> Step {
        let planned = &op.work.plan.reads()[op.work.ticket.read as usize];
        let file = &op.work.plan.files()[planned.file as usize];
        let answer = usize::try_from(answer).map_err(|_| io::Error::from_raw_os_error(-answer));
        let refused = |e: &io::Error| matches!(e.raw_os_error(), Some(libc::EFAULT | libc::EOPNOTSUPP));
        if op.fixed && answer.as_ref().is_err_and(refused) {
            // Not the file's fault, as far as is known: the same again into plain memory decides.
            self.leave_fixed("the kernel refused a read into registered memory");
            return Step::Again;
        }
        let counters = &self.shared.counters;
        let (start, _) = op.progress.range(planned, file);
        let answer = self.outlet.disturb(answer, file, planned.offset + u64::from(start));
        if let Ok(n) = &answer {
            add(&counters.path_bytes[IoPath::new(true, op.progress.is_direct()) as usize], *n as u64);
        }
        let step = op.progress.take(answer, planned, file, counters);
        if matches!(step, Step::Done) {
            self.depth.done(planned.len_bytes);
            counters.brought(planned, op.work.chunk.is_in_place());
        }
        step
    }

    fn end(&mut self, index: u32, work: Work, error: Option<Error>) {
        self.vacant.push(index);
        let Work { ticket, chunk, .. } = work;
        let outcome = match error {
            Some(error) => Err(error),
            None => Ok(chunk),
        };
        self.outlet.deliver(&self.shared, ticket, outcome);
    }

    pub(super) fn leave_fixed(&mut self, reason: &str) {
        if self.registered.take().is_some() {
            self.shared.counters.demoted(IoPath::UringDirect, None, reason);
        }
    }
}

/// By itself the depth grows to half of the chunks: the others are on their way to the device.
fn depth_max(options: &ReaderOptions, chunks: usize) -> u32 {
    let automatic = || u32::try_from((chunks / 2).min(DEPTH_MAX_AUTOMATIC)).unwrap_or(DEPTH_MAX);
    options.depth_max.unwrap_or_else(automatic).min(DEPTH_MAX)
}

pub(super) fn op_file(op: &Op) -> Arc<crate::WeightFile> {
    let planned = &op.work.plan.reads()[op.work.ticket.read as usize];
    Arc::clone(&op.work.plan.files()[planned.file as usize])
}

pub(super) fn read_entry(
    file: Target,
    buffer: Option<u16>,
    address: *mut u8,
    len: u32,
    offset: u64,
) -> squeue::Entry {
    match (file, buffer) {
        (Target::Registered(slot), Some(buffer)) => {
            opcode::ReadFixed::new(types::Fixed(slot), address, len, buffer).offset(offset).build()
        }
        (Target::Registered(slot), None) => {
            opcode::Read::new(types::Fixed(slot), address, len).offset(offset).build()
        }
        (Target::Descriptor(fd), Some(buffer)) => {
            opcode::ReadFixed::new(types::Fd(fd), address, len, buffer).offset(offset).build()
        }
        (Target::Descriptor(fd), None) => {
            opcode::Read::new(types::Fd(fd), address, len).offset(offset).build()
        }
    }
}
