//! Reads of the ring that do not end in time: reported as failed, asked to end, and kept until they did.

use std::time::{Duration, Instant};

use io_uring::opcode;

use super::engine::{Engine, op_file};
use crate::reader::late::{note, note_end, too_late};

/// User data of the request to end a read.
pub(super) const CANCEL: u64 = u64::MAX - 1;

impl Engine {
    /// Time until the next read is late; `None` if none can be.
    pub(super) fn until_late(&self) -> Option<Duration> {
        let deadline = self.read_deadline?;
        let oldest = self.ops.iter().flatten().filter(|op| !op.late).map(|op| op.since).min()?;
        Some((oldest + deadline).saturating_duration_since(Instant::now()))
    }

    /// Reports reads that are late. The kernel may still write to their chunks: they stay where they are until their
    /// completions come, and only then return to the ring.
    pub(super) fn report_late(&mut self) {
        let Some(deadline) = self.read_deadline else { return };
        if self.until_late().is_none_or(|left| !left.is_zero()) {
            return;
        }
        let now = Instant::now();
        for index in 0..self.ops.len() {
            let Some(op) = &mut self.ops[index] else { continue };
            if op.late || now.duration_since(op.since) < deadline {
                continue;
            }
            op.late = true;
            self.late += 1;
            let ticket = op.work.ticket;
            let planned = &op.work.plan.reads()[ticket.read as usize];
            let file = &op.work.plan.files()[planned.file as usize];
            let error = too_late(file, planned.offset, deadline);
            note(&self.shared, file, &error);
            self.outlet.deliver(&self.shared, ticket, Err(error));
            // Where the kernel can end it, its memory comes back at once.
            let entry = opcode::AsyncCancel::new(index as u64).build().user_data(CANCEL);
            self.submit(&entry);
        }
    }

    /// The end of a read that was reported before: its chunk and its file are free again.
    pub(super) fn late_ended(&mut self, index: u32) {
        if let Some(op) = self.ops[index as usize].take() {
            self.late -= 1;
            note_end(&self.shared, &op_file(&op));
            self.files.release(op.file);
            self.vacant.push(index);
        }
    }
}
