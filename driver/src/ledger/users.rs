//! Which streams' work uses a segment.

use std::sync::Arc;

use super::Ledger;
use crate::device::DeviceCore;
use crate::error::Result;
use crate::segment::Segment;
use crate::util::lock;

impl Ledger {
    /// A stream other than the default one whose work uses the segment.
    pub(crate) fn explicit_user(&self, segment: &Segment) -> Option<u64> {
        let streams = lock(&self.streams);
        streams.iter().find(|stream| stream.id != 0 && stream.in_flight.uses(segment)).map(|stream| stream.id)
    }

    /// Waits for all streams whose work still uses the segment.
    pub(crate) fn wait_for_users(&self, core: &DeviceCore, segment: &Segment) -> Result<()> {
        let users: Vec<_> = lock(&self.streams)
            .iter()
            .filter(|stream| stream.in_flight.uses(segment))
            .map(Arc::clone)
            .collect();
        // Waiting happens without the lock: what is retired may create or drop streams.
        users.iter().try_for_each(|stream| stream.synchronize(core))
    }
}
