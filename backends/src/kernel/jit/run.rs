//! Running compiled code: groups over the processor's cores, the threads of each in turn.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::ir::Space;
use super::super::run::{Fault, Memory, Runnable};
use super::crew::Crew;
use super::table::{self, Table};
use super::{APART, Compiled, FAULT};
use crate::sync::lock;

/// A launch of fewer instructions than this (threads × the kernel's) runs on the thread that it came to: waking
/// others takes longer.
const SHARED_MIN: u64 = 1 << 18;

/// Groups that a core takes at once: a launch has at least so many shares for each core.
const SHARES_A_CORE: u64 = 16;

/// What one core works with.
struct Core {
    words: Vec<u64>,
    group: Vec<u64>,
    /// For each thread of a group that waits; else for one.
    private: Vec<u64>,
    local: Vec<u64>,
    room: Vec<u64>,
}

/// What all cores share.
struct Launch<'l> {
    compiled: &'l Compiled,
    runnable: &'l Runnable,
    groups: [u32; 3],
    words: Vec<u64>,
    /// The next group that nobody has taken, and how many are taken at once.
    next: AtomicU64,
    share: u64,
    /// The first group that failed; none has while it is the highest number.
    failed: AtomicU64,
    /// The same, and why.
    failure: Mutex<Option<(u64, Fault)>>,
}

fn words_of(bytes: u32) -> usize {
    bytes.div_ceil(8) as usize
}

/// Memory as the code is told of it.
fn address(memory: &mut [u64]) -> u64 {
    memory.as_mut_ptr().expose_provenance() as u64
}

impl Compiled {
    /// Whether the code may run on these vectors: its atomic operations need them aligned.
    ///
    /// # Errors
    /// Why they have to be interpreted.
    pub(crate) fn check(&self, memory: &Memory) -> Result<(), &'static str> {
        let is_aligned = memory.buffers().iter().all(|buffer| buffer.ptr.addr().is_multiple_of(8));
        if self.has_atomics && !is_aligned {
            return Err("atomic operations on a vector that does not begin at a multiple of 8 bytes");
        }
        Ok(())
    }

    /// Runs every group, as [`Runnable::run`] does.
    ///
    /// # Errors
    /// The access that is out of bounds, or the barrier that not every thread reaches: the first group's.
    pub(crate) fn run(
        &self,
        runnable: &Runnable,
        groups: [u32; 3],
        memory: &mut Memory,
        crew: &Crew,
    ) -> Result<(), Fault> {
        let count: u64 = groups.into_iter().map(u64::from).product();
        let threads: u64 = runnable.program.group.into_iter().map(u64::from).product();
        let work = count.saturating_mul(threads).saturating_mul(runnable.code.instructions.len() as u64);
        let cores = if work < SHARED_MIN { 1 } else { (crew.size() as u64 + 1).min(count).max(1) };
        let launch = Launch {
            compiled: self,
            runnable,
            groups,
            words: self.words(memory, groups),
            next: AtomicU64::new(0),
            share: (count / (cores * SHARES_A_CORE)).max(1),
            failed: AtomicU64::new(u64::MAX),
            failure: Mutex::new(None),
        };
        crew.run(usize::try_from(cores - 1).unwrap_or(0), &|| launch.work());
        let failure = lock(&launch.failure).take();
        failure.map_or(Ok(()), |(_, fault)| Err(fault))
    }

    fn words(&self, memory: &mut Memory, groups: [u32; 3]) -> Vec<u64> {
        let mut words = vec![0; self.table.words()];
        words[table::SCALARS] = memory.scalars_mut().as_mut_ptr().expose_provenance() as u64;
        for (side, count) in groups.into_iter().enumerate() {
            words[table::GROUP_COUNT + side] = count.into();
        }
        for (index, buffer) in memory.buffers().iter().enumerate() {
            words[Table::buffer(index)] = buffer.ptr.expose_provenance() as u64;
            words[Table::buffer(index) + 1] = buffer.len_bytes as u64;
        }
        for &array in &self.table.lengths {
            let (buffer, offset, stride) = array;
            words[self.table.length(array)] = memory.length(buffer, offset, stride).into();
        }
        words
    }
}

impl Launch<'_> {
    /// One core's part: groups in rising order, until there are none or an earlier one has failed.
    fn work(&self) {
        let mut core = self.core();
        let [x, y, z] = self.groups.map(u64::from);
        let count = x * y * z;
        loop {
            let first = self.next.fetch_add(self.share, Ordering::Relaxed);
            if first >= count {
                return;
            }
            for number in first..count.min(first + self.share) {
                if self.failed.load(Ordering::Relaxed) < number {
                    return;
                }
                let id = [number % x, number / x % y, number / (x * y)];
                core.words[table::GROUP_ID..][..3].copy_from_slice(&id);
                core.group.fill(0);
                if let Err(fault) = self.group(&mut core) {
                    let mut failure = lock(&self.failure);
                    if failure.is_none_or(|(failed, _)| number < failed) {
                        self.failed.store(number, Ordering::Relaxed);
                        *failure = Some((number, fault));
                    }
                    return;
                }
            }
        }
    }

    fn threads(&self) -> usize {
        self.runnable.program.group.into_iter().map(|side| side as usize).product()
    }

    fn core(&self) -> Core {
        let program = &self.runnable.program;
        let threads = if self.compiled.barriers.is_empty() { 1 } else { self.threads() };
        let mut core = Core {
            words: self.words.clone(),
            group: vec![0; words_of(program.group_bytes)],
            private: vec![0; words_of(program.private_bytes) * threads],
            local: vec![0; words_of(self.runnable.code.local_bytes) * threads],
            room: vec![0; self.compiled.kept * threads],
        };
        core.words[table::GROUP] = address(&mut core.group);
        core.words[table::PRIVATE] = address(&mut core.private);
        core.words[table::LOCAL] = address(&mut core.local);
        core
    }

    fn group(&self, core: &mut Core) -> Result<(), Fault> {
        let [_, y, z] = self.runnable.program.group;
        if !self.compiled.barriers.is_empty() {
            return self.call(core, 0, 0);
        }
        for z in 0..z {
            for y in 0..y {
                self.call(core, y, z)?;
            }
        }
        Ok(())
    }

    /// Runs a row of threads, or the whole group where there are barriers.
    fn call(&self, core: &mut Core, y: u32, z: u32) -> Result<(), Fault> {
        let (words, room) = (core.words.as_mut_ptr(), core.room.as_mut_ptr());
        // SAFETY: `Memory::new`'s caller answers for the buffers; the other memory is this core's, made in `core` as
        // large as the program says for this many threads. The code checks every access against those sizes.
        match unsafe { (self.compiled.entry)(words, room, y, z) } {
            FAULT => Err(self.fault(core)),
            APART => {
                let number = usize::try_from(core.words[table::FAULT_PLACE]).unwrap_or(usize::MAX);
                let site = self.compiled.barriers.get(number.wrapping_sub(1));
                Err(Fault::Apart { site: site.copied().unwrap_or_default() })
            }
            _ => Ok(()),
        }
    }

    fn fault(&self, core: &Core) -> Fault {
        let number = usize::try_from(core.words[table::FAULT_PLACE]).unwrap_or(usize::MAX);
        let offset_bytes = core.words[table::FAULT_OFFSET];
        let program = &self.runnable.program;
        let Some(place) = self.runnable.code.places.get(number) else {
            return Fault::Outside {
                site: super::Site::default(),
                offset_bytes,
                len_bytes: 0,
                size_bytes: 0,
            };
        };

        let size_bytes = match place.space {
            Space::Buffer(buffer) => core.words[Table::buffer(buffer as usize) + 1],
            Space::Scalars => program.scalars_bytes.into(),
            Space::Group => program.group_bytes.into(),
            Space::Private => program.private_bytes.into(),
            Space::Local => self.runnable.code.local_bytes.into(),
        };
        Fault::Outside { site: place.site, offset_bytes, len_bytes: place.kind.bytes().into(), size_bytes }
    }
}
