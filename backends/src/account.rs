//! How much of the machine's memory a CPU backend has given out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use spoc_driver::{Error, ErrorKind, MemoryInfo, Result};

use crate::capacity::Capacity;

/// What has been allocated, of how much. Shared by all openings of a backend: there is one memory.
pub(crate) struct Account {
    limit_bytes: Option<u64>,
    in_use_bytes: AtomicU64,
}

/// An allocation on the account, until it is dropped.
pub(crate) struct Charge {
    account: Arc<Account>,
    bytes: u64,
}

impl Account {
    /// Of `limit_bytes`, or of what the machine can give.
    pub(crate) fn new(limit_bytes: Option<u64>) -> Arc<Self> {
        Arc::new(Self { limit_bytes, in_use_bytes: AtomicU64::new(0) })
    }

    pub(crate) fn memory(&self) -> MemoryInfo {
        let machine = Capacity::now();
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
        let machine = Capacity::now().free_bytes;
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
