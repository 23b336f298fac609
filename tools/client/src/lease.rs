//! The right to read.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use spoc_driver::{Device, Segment};
use spoc_proto::v1 as pb;

use crate::error::{Error, Result};
use crate::session::Shared;

/// A lease on slots or on an image. Ends when dropped; what it held must not be read after that.
#[derive(Debug)]
pub struct Lease {
    session: Arc<Shared>,
    told: pb::Lease,
    /// Segments of an image that this lease has imported.
    used: Mutex<BTreeSet<u64>>,
    is_left: bool,
}

impl Lease {
    pub(crate) fn new(session: Arc<Shared>, told: pb::Lease) -> Lease {
        Lease { session, told, used: Mutex::default(), is_left: false }
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.told.id
    }

    /// A slot for each group asked for, in their order; empty for an image.
    #[must_use]
    pub fn slots(&self) -> &[pb::Slot] {
        &self.told.slots
    }

    /// Tensors of an image; empty for groups.
    #[must_use]
    pub fn tensors(&self) -> &[pb::Placement] {
        &self.told.tensors
    }

    /// Number of its word and the value that ends the lease: for a device that writes it behind its launches.
    #[must_use]
    pub fn word(&self) -> (u32, u64) {
        (self.told.word, self.told.value)
    }

    /// The memory of the `index`-th slot or tensor and its offset there, imported into `device`: the one that the service
    /// has it on, opened in this process. The first import of a segment asks the service for its descriptor.
    ///
    /// # Errors
    /// `usage` for no such index; `forked`, `session_lost`; what the device says to the import.
    pub fn memory(&self, device: &Device, index: usize) -> Result<(Segment, u64)> {
        let place = match (self.told.slots.get(index), self.told.tensors.get(index)) {
            (Some(slot), _) => Some((slot.segment, slot.offset)),
            (None, Some(tensor)) => Some((tensor.segment, tensor.offset)),
            (None, None) => None,
        };
        let (number, offset_bytes) = place
            .ok_or_else(|| Error::new("usage", format_args!("the lease has no slot or tensor {index}")))?;
        let found = self.told.segments.iter().find(|segment| segment.index == number);
        let id = found.ok_or_else(|| Error::new("protocol", "a slot lies in no segment of its lease"))?.id;
        let segment = self.session.segment(device, id)?;
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if self.told.slots.is_empty() && used.insert(id) {
            self.session.use_segments(std::iter::once(id), true);
        }
        Ok((segment, offset_bytes))
    }

    /// Ends it now: nothing that was launched reads what it held any more.
    pub fn release(self) {
        drop(self);
    }

    /// Leaves its end to the device, which raises the session's word to the value ([`word`](Lease::word)) behind its
    /// launches; or to the end of this process.
    pub fn leave_to_device(mut self) -> (u32, u64) {
        self.is_left = true;
        self.word()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // A forked child's copy ends nothing.
        if !self.session.own.is_here() {
            return;
        }
        let used = std::mem::take(&mut *self.used.lock().unwrap_or_else(PoisonError::into_inner));
        self.session.use_segments(used.into_iter(), false);
        if !self.is_left
            && let Some(word) = self.session.words.words().get(self.told.word as usize)
        {
            word.fetch_max(self.told.value, Ordering::AcqRel);
        }
    }
}
