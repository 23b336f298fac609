//! Segments that can be lent, by numbers that are never used twice.

use crate::error::{Error, Result};
use spoc_driver::{Exported, Segment};
use spoc_proto::v1 as pb;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A segment with its number.
#[derive(Clone, Debug)]
pub struct Numbered {
    pub id: u64,
    pub segment: Segment,
    /// The descriptor that it was imported from: not every backend exports what was imported.
    imported: Option<Arc<OwnedFd>>,
}

impl Numbered {
    /// Length of the allocation behind it.
    pub fn allocation_bytes(&self) -> u64 {
        let granule = self.segment.device().limits().export_granule_bytes.max(1);
        self.segment.len_bytes().next_multiple_of(granule)
    }

    /// A descriptor of its memory.
    ///
    /// # Errors
    /// The device's, the kernel's.
    pub fn export(&self) -> Result<Exported> {
        let Some(imported) = &self.imported else { return Ok(self.segment.export()?) };
        let descriptor = imported.try_clone().map_err(|error| Error::new("os", error))?;
        let info = self.segment.device().info().clone();
        Ok(Exported {
            descriptor,
            len_bytes: self.segment.len_bytes(),
            allocation_bytes: self.allocation_bytes(),
            backend: info.backend,
            device: info.uuid,
        })
    }

    /// As a client is told of it; `index` is what slots and placements call it.
    pub fn told(&self, index: u32) -> pb::Segment {
        let device = self.segment.device();
        let (info, bytes) = (device.info(), self.segment.len_bytes());
        pb::Segment {
            id: self.id,
            bytes,
            allocation_bytes: self.allocation_bytes(),
            backend: info.backend.as_str().to_owned(),
            device: info.uuid.to_string(),
            index,
        }
    }
}

#[derive(Debug)]
struct Entry {
    numbered: Numbered,
    /// The one user that it is lent to: no driver keeps a borrower from writing.
    lent_to: Option<u32>,
}

/// Every segment that somebody may ask for.
#[derive(Debug, Default)]
pub struct SegmentBook {
    next: AtomicU64,
    entries: Mutex<HashMap<u64, Entry>>,
}

impl SegmentBook {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Numbers a segment.
    pub fn add(&self, segment: Segment) -> Numbered {
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let numbered = Numbered { id, segment, imported: None };
        self.lock().insert(id, Entry { numbered: numbered.clone(), lent_to: None });
        numbered
    }

    /// A segment that an earlier process of this service had under this number, and to whom it is lent.
    pub fn adopt(&self, id: u64, segment: Segment, imported: OwnedFd, lent_to: Option<u32>) -> Numbered {
        self.next.fetch_max(id, Ordering::Relaxed);
        let numbered = Numbered { id, segment, imported: Some(Arc::new(imported)) };
        self.lock().insert(id, Entry { numbered: numbered.clone(), lent_to });
        numbered
    }

    /// No number up to this one is given out: something is known by it elsewhere.
    pub fn skip(&self, id: u64) {
        self.next.fetch_max(id, Ordering::Relaxed);
    }

    /// Forgets a segment; whoever holds it keeps its memory.
    pub fn remove(&self, id: u64) {
        self.lock().remove(&id);
    }

    /// The segment, for a process of this user.
    ///
    /// # Errors
    /// `not_permitted` if another user has it: borrowers could write what the other reads.
    pub fn lend(&self, id: u64, uid: u32) -> Result<Numbered> {
        let mut entries = self.lock();
        let entry = entries
            .get_mut(&id)
            .ok_or_else(|| Error::new("not_found", format!("there is no segment {id}")))?;
        let owner = *entry.lent_to.get_or_insert(uid);
        if owner != uid {
            let message = format!(
                "segment {id} is lent to user {owner}: this backend cannot keep a borrower from writing, so that memory is \
                 lent to one user only"
            );
            return Err(Error::new("not_permitted", message));
        }
        Ok(entry.numbered.clone())
    }
}
