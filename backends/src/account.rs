//! How much of the machine's memory a CPU backend has given out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use spoc_driver::{Error, ErrorKind, MemoryInfo, Result};

use crate::capacity::Capacity;

/// What has been allocated, of how much. Shared by all openings of a backend: there is one memory.
pub(crate) struct Account {
    limit_bytes: Option<u64>,
    in_use_bytes: AtomicU64,
    absent_bytes: Arc<AtomicU64>,
}

/// Allocated memory that the machine has not given yet, so that nobody else is promised it. Gone with its last owner.
pub(crate) struct Absent {
    of_all: Arc<AtomicU64>,
    bytes: AtomicU64,
}

impl Absent {
    /// This much more has become present; what was written off already is not taken twice.
    pub(crate) fn present(&self, bytes: u64) {
        let less = |have: u64| Some(have.saturating_sub(bytes));
        let had = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).unwrap_or(0);
        self.of_all.fetch_sub(bytes.min(had), Ordering::Relaxed);
    }

    /// Nobody will note any more when the rest becomes present: it counts as if it were.
    pub(crate) fn write_off(&self) {
        self.of_all.fetch_sub(self.bytes.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Drop for Absent {
    fn drop(&mut self) {
        self.of_all.fetch_sub(*self.bytes.get_mut(), Ordering::Relaxed);
    }
}

/// An allocation on the account, until it is dropped.
pub(crate) struct Charge {
    account: Arc<Account>,
    bytes: u64,
}

impl Account {
    /// Of `limit_bytes`, or of what the machine can give.
    pub(crate) fn new(limit_bytes: Option<u64>) -> Arc<Self> {
        Arc::new(Self { limit_bytes, in_use_bytes: AtomicU64::new(0), absent_bytes: Arc::default() })
    }

    /// What the machine can give, less what it was promised for and has not given yet.
    fn machine(&self) -> Capacity {
        let now = Capacity::now();
        let absent = self.absent_bytes.load(Ordering::Relaxed);
        // No limit known is no figure to take anything from.
        let free_bytes =
            if now.free_bytes == u64::MAX { u64::MAX } else { now.free_bytes.saturating_sub(absent) };
        Capacity { free_bytes, ..now }
    }

    /// Enters memory that becomes present by and by.
    pub(crate) fn absent(&self, bytes: u64) -> Absent {
        self.absent_bytes.fetch_add(bytes, Ordering::Relaxed);
        Absent { of_all: Arc::clone(&self.absent_bytes), bytes: AtomicU64::new(bytes) }
    }

    /// What was promised and is not there yet, in bytes.
    #[cfg(test)]
    pub(crate) fn absent_now(&self) -> u64 {
        self.absent_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn memory(&self) -> MemoryInfo {
        let machine = self.machine();
        let in_use = self.in_use_bytes.load(Ordering::Relaxed);
        match self.limit_bytes {
            None => MemoryInfo { free_bytes: machine.free_bytes, total_bytes: machine.total_bytes },
            Some(limit) => MemoryInfo {
                free_bytes: limit.saturating_sub(in_use).min(machine.free_bytes),
                total_bytes: limit,
            },
        }
    }

    /// Charges an allocation, or says how much there is.
    pub(crate) fn charge(self: &Arc<Self>, bytes: u64, doing: &'static str) -> Result<Charge> {
        // Charged first, so that two threads cannot both be granted the last bytes.
        let charge = Charge { account: Arc::clone(self), bytes };
        let in_use = self.in_use_bytes.fetch_add(bytes, Ordering::Relaxed);
        let machine = self.machine().free_bytes;
        let have_bytes = self.limit_bytes.map_or(machine, |limit| limit.saturating_sub(in_use).min(machine));
        if bytes > have_bytes {
            let kind = ErrorKind::OutOfDeviceMemory { need_bytes: bytes, have_bytes };
            return Err(Error::new(kind, doing));
        }
        Ok(charge)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.in_use_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_promised_and_not_there_yet_is_promised_once() {
        let account = Account::new(None);
        let before = account.memory().free_bytes;
        // More than the machine's other work moves while this test runs.
        let promised = before / 2;
        let absent = account.absent(promised);
        assert!(account.memory().free_bytes < before - promised / 2);
        assert!(account.charge(before - promised / 4, "testing").is_err());
        absent.present(promised / 2);
        drop(absent);
        assert_eq!(account.absent_bytes.load(Ordering::Relaxed), 0);
    }
}
