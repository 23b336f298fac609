//! What a device can do, found by doing it once when it is opened. A success code proves nothing.

use std::sync::Arc;

use spoc_driver::backend::Verdict;
use spoc_driver::{Error, ErrorKind, Result};

use super::handle::{Context, Queue, Signal};
use super::memory::{Account, Buffer, Pinned};

/// Enough to cross a page and any pattern of a fill.
const BYTES: usize = 12_345;
/// Where the filled part begins, and its length: no multiples of anything.
const FILLED: (usize, usize) = (1001, 5003);
const FILL: u8 = 0xC3;

/// What the trial found.
#[derive(Clone)]
pub(super) struct Findings {
    /// Whether copies return before they have run.
    pub(super) async_copies: Verdict,
    pub(super) pinned_alloc: Verdict,
}

/// Opens the gate and waits for the queue, whatever happens: what is enqueued uses the trial's memory.
struct Gate<'q> {
    signal: Signal,
    queue: &'q Queue,
}

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        // Refused if it was given before, which is what is wanted.
        let _ = self.signal.give();
        if let Err(error) = self.queue.drain().or_else(|_| self.queue.finish()) {
            tracing::error!(%error, "an OpenCL queue was not waited for");
        }
    }
}

/// Tries what every device must do, and what some may not.
///
/// # Errors
/// `Backend` if bytes do not arrive: such a device is not to be used.
pub(super) fn run(context: &Context, queue: &Arc<Queue>, account: &Arc<Account>) -> Result<Findings> {
    let (first, second) = (
        Buffer::allocate(context, queue, account, BYTES)?,
        Buffer::allocate(context, queue, account, BYTES)?,
    );
    let async_copies = copies(context, queue, &first, &second)?;
    let pinned_alloc = match pinned(context, queue, account, &first) {
        Ok(true) => Verdict::Available,
        Ok(false) => Verdict::unavailable("bytes copied from mapped memory did not arrive"),
        Err(error) => Verdict::Unavailable(error.to_string().into()),
    };
    Ok(Findings { async_copies, pinned_alloc })
}

/// Up, across, filled in part, and down again, all of it behind a gate.
fn copies(context: &Context, queue: &Queue, first: &Buffer, second: &Buffer) -> Result<Verdict> {
    let sent = pattern();
    let mut received = vec![0; BYTES];
    let gate = Gate { signal: Signal::by_host(context)?, queue };
    queue.wait_for(&gate.signal)?;
    // SAFETY: `gate` waits for the queue before the vectors go, also on the early returns; the ranges are
    // the buffers' whole lengths or lie inside them.
    unsafe { queue.write(sent.as_ptr(), BYTES, &first.mem, 0) }?;
    // SAFETY: as above.
    unsafe { queue.copy((&first.mem, 0), (&second.mem, 0), BYTES) }?;
    // SAFETY: as above.
    unsafe { queue.fill(&second.mem, FILLED.0, FILLED.1, FILL) }?;
    // SAFETY: as above.
    unsafe { queue.read(&second.mem, 0, received.as_mut_ptr(), BYTES) }?;
    let end = queue.marker()?;
    queue.flush()?;
    let has_waited = !end.query()?;
    gate.signal.give()?;
    end.wait()?;
    drop(gate);
    let mut expected = sent;
    expected[FILLED.0..][..FILLED.1].fill(FILL);
    if received != expected {
        return Err(Error::new(ErrorKind::Backend, "trying an OpenCL device")
            .with("found", "bytes that were copied up and down did not come back"));
    }
    Ok(if has_waited {
        Verdict::Available
    } else {
        Verdict::unavailable("commands were over before what they wait for")
    })
}

/// Whether bytes written to pinned memory arrive, and where they should.
fn pinned(context: &Context, queue: &Arc<Queue>, account: &Account, device: &Buffer) -> Result<bool> {
    let (from, to) = (
        Pinned::allocate(context, queue, account, BYTES)?,
        Pinned::allocate(context, queue, account, BYTES)?,
    );
    let sent = pattern();
    // SAFETY: `from` has as many bytes, mapped, and nobody else knows them.
    unsafe { from.as_ptr().copy_from_nonoverlapping(sent.as_ptr(), BYTES) };
    // SAFETY: as above.
    unsafe { to.as_ptr().write_bytes(0, BYTES) };
    // SAFETY: both outlive the wait below; the ranges are whole.
    let up = unsafe { queue.write(from.as_ptr(), BYTES, &device.mem, 0) };
    // SAFETY: as above.
    let down = unsafe { queue.read(&device.mem, 0, to.as_ptr(), BYTES) };
    queue.drain()?;
    up.and(down)?;
    // SAFETY: written above and by the copy, which is over.
    let received = unsafe { std::slice::from_raw_parts(to.as_ptr(), BYTES) };
    Ok(received == sent)
}

fn pattern() -> Vec<u8> {
    (0..=250).cycle().take(BYTES).collect()
}
