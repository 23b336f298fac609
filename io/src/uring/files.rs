//! The ring's table of open files: a bounded number of descriptors, registered with the kernel where it allows that.

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use io_uring::IoUring;

use crate::file::WeightFile;
use crate::{Error, ErrorKind, Result};

/// Where a read finds its file: a place in the table.
pub(super) type FileSlot = usize;

pub(super) struct FileTable {
    entries: Vec<Option<Entry>>,
    registered: bool,
    clock: u64,
}

struct Entry {
    file: Arc<WeightFile>,
    direct: Option<File>,
    in_flight: u32,
    used: u64,
}

impl Entry {
    fn fd(&self) -> RawFd {
        self.direct.as_ref().unwrap_or(self.file.buffered()).as_raw_fd()
    }
}

impl FileTable {
    /// A table for `slots` files; more than that many reads must never be in flight.
    pub(super) fn new(ring: &IoUring, slots: u32) -> Self {
        let registered = ring.submitter().register_files_sparse(slots).is_ok();
        let entries = (0..slots).map(|_| None).collect();
        Self { entries, registered, clock: 0 }
    }

    /// The place of this file, opened if it is not in the table. Must be released after the read.
    ///
    /// # Errors
    /// Those of opening for direct reads.
    pub(super) fn acquire(
        &mut self,
        ring: &IoUring,
        file: &Arc<WeightFile>,
        direct: bool,
    ) -> Result<FileSlot> {
        self.clock += 1;
        let same = |e: &Entry| Arc::ptr_eq(&e.file, file) && e.direct.is_some() == direct;
        let slot = match self.entries.iter().position(|e| e.as_ref().is_some_and(same)) {
            Some(slot) => slot,
            None => self.insert(ring, file, direct)?,
        };
        if let Some(entry) = &mut self.entries[slot] {
            entry.in_flight += 1;
            entry.used = self.clock;
        }
        Ok(slot)
    }

    fn insert(&mut self, ring: &IoUring, file: &Arc<WeightFile>, direct: bool) -> Result<FileSlot> {
        let idle = |e: &Option<Entry>| e.as_ref().is_none_or(|e| e.in_flight == 0);
        let age = |e: &Option<Entry>| e.as_ref().map_or(0, |e| e.used);
        let places = self.entries.iter().enumerate().filter(|(_, e)| idle(e));
        let Some((slot, _)) = places.min_by_key(|(_, e)| age(e)) else {
            return Err(Error::new(ErrorKind::TooManyOpenFiles, "the reader's table of open files is full"));
        };
        self.remove(ring, slot);
        let direct = if direct { Some(file.open_direct()?) } else { None };
        let entry = Entry { file: Arc::clone(file), direct, in_flight: 0, used: 0 };
        if self.registered && ring.submitter().register_files_update(narrow(slot), &[entry.fd()]).is_err() {
            let message = "the kernel does not take the file into the ring's table";
            return Err(Error::new(ErrorKind::TooManyOpenFiles, message).in_file(file.path()));
        }
        self.entries[slot] = Some(entry);
        Ok(slot)
    }

    fn remove(&mut self, ring: &IoUring, slot: FileSlot) {
        if self.entries[slot].take().is_some() && self.registered {
            let _ = ring.submitter().register_files_update(narrow(slot), &[-1]);
        }
    }

    pub(super) fn release(&mut self, slot: FileSlot) {
        if let Some(entry) = &mut self.entries[slot] {
            entry.in_flight = entry.in_flight.saturating_sub(1);
        }
    }

    /// Closes what no read uses.
    pub(super) fn clear_idle(&mut self, ring: &IoUring) {
        for slot in 0..self.entries.len() {
            if self.entries[slot].as_ref().is_some_and(|e| e.in_flight == 0) {
                self.remove(ring, slot);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.iter().all(Option::is_none)
    }

    /// How the kernel is told of the file.
    pub(super) fn target(&self, slot: FileSlot) -> Target {
        match &self.entries[slot] {
            _ if self.registered => Target::Registered(narrow(slot)),
            Some(entry) => Target::Descriptor(entry.fd()),
            None => Target::Descriptor(-1),
        }
    }

    /// The descriptor itself, for a plain system call.
    pub(super) fn descriptor(&self, slot: FileSlot) -> Option<&File> {
        self.entries[slot].as_ref().map(|e| e.direct.as_ref().unwrap_or(e.file.buffered()))
    }
}

/// A file as a submission names it.
#[derive(Clone, Copy)]
pub(super) enum Target {
    Registered(u32),
    Descriptor(RawFd),
}

fn narrow(slot: FileSlot) -> u32 {
    u32::try_from(slot).unwrap_or(u32::MAX)
}
