//! Copies from one device to another.

use std::sync::atomic::Ordering;

use crate::backend::Verdict;
use crate::copies::CopyRange;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::ledger::Payload;
use crate::segment::Segment;
use crate::stream::Stream;
use crate::util::lock;

/// Bytes that go through the host at a time, where devices cannot copy from each other.
const STEP_BYTES: u64 = 4 << 20;

/// Which way a copy between devices went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerPath {
    /// From device to device; it has been enqueued.
    Direct,
    /// Through the host, and why. The host has read the source; the copies to the target have been enqueued.
    Host(String),
}

impl Device {
    /// Whether this device copies out of another one's memory without the host.
    #[must_use]
    pub fn peer_verdict(&self, from: &Device) -> Verdict {
        if self.backend() != from.backend() {
            return Verdict::unavailable("the devices are of different backends");
        }
        let (core, from) = (self.core(), from.core());
        core.backend
            .peer_verdict(&core.handle, &from.handle)
            .unwrap_or_else(|error| Verdict::Unknown(error.to_string().into()))
    }
}

impl Stream {
    /// Copies `len_bytes` bytes of a segment of another device into one of this stream's: directly where
    /// [`Device::peer_verdict`] says so, else through the host, which is logged once a device and counted. Either way
    /// the stream's ledger keeps what it needs.
    ///
    /// A stream does not wait for another device's. What wrote the source must have run, as its event says, and nothing may
    /// be enqueued that writes it before this copy has run.
    ///
    /// # Errors
    /// `WrongDevice` if `dst` is not of this stream's device, or `src` is; `OutOfBounds`; `Misaligned`; the failure
    /// of work enqueued on either device; what the backend answers.
    pub fn copy_from_peer(
        &self,
        src: &Segment,
        src_offset: u64,
        dst: &Segment,
        dst_offset: u64,
        len_bytes: u64,
    ) -> Result<PeerPath> {
        const DOING: &str = "copying from another device";
        let core = self.device_core();
        core.check_same(dst.core(), DOING)?;
        if src.device().is(&dst.device()) {
            return Err(Error::new(ErrorKind::WrongDevice, DOING).with("device", core.info.uuid));
        }
        src.check(src_offset, len_bytes, DOING)?;
        dst.check(dst_offset, len_bytes, DOING)?;
        let verdict = self.device().peer_verdict(&src.device());
        if let Some(reason) = verdict.reason() {
            self.through_host((src, src_offset), (dst, dst_offset), len_bytes, reason)?;
            return Ok(PeerPath::Host(reason.to_owned()));
        }
        if len_bytes == 0 {
            return Ok(PeerPath::Direct);
        }
        self.keep_short();
        let _turn = lock(&self.core().submission);
        self.submit(Payload::new(()), [src, dst].into_iter(), |core, stream| {
            let from = (&src.core().handle, src.buffer(), src_offset);
            let to = (dst.buffer(), dst_offset);
            // SAFETY: the ledger keeps both segments until the stream has passed; the ranges were checked just above; that
            // nothing writes the source meanwhile is the caller's word.
            unsafe { core.backend.copy_from_peer(&core.handle, stream, from, to, len_bytes) }
        })?;
        core.counters.peer_bytes.fetch_add(len_bytes, Ordering::Relaxed);
        Ok(PeerPath::Direct)
    }

    fn through_host(
        &self,
        (src, src_offset): (&Segment, u64),
        (dst, dst_offset): (&Segment, u64),
        len_bytes: u64,
        reason: &str,
    ) -> Result<()> {
        let counters = &self.device_core().counters;
        if !counters.warned_of_peers.swap(true, Ordering::Relaxed) {
            let device = self.device_core().info.uuid;
            tracing::warn!(%device, reason, "copies from another device go through the host");
        }
        let mut at = 0;
        while at < len_bytes {
            let len = usize::try_from((len_bytes - at).min(STEP_BYTES)).unwrap_or(usize::MAX);
            let mut bytes = vec![0; len];
            src.read(src_offset + at, &mut bytes)?;
            let range = CopyRange { src_offset: 0, dst, dst_offset: dst_offset + at, len_bytes: len };
            self.copy_to_device(bytes, &[range])?;
            counters.peer_bytes_by_host.fetch_add(len as u64, Ordering::Relaxed);
            at += len as u64;
        }
        Ok(())
    }
}
