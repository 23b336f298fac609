//! What a segment holds, and who uses it.

use super::order::{Access, Clock, Kind, Tracks};
use super::program::{Piece, SEGMENT_BYTES};

/// The bytes of one segment in program order, and the accesses that may not be over.
pub(super) struct Contents {
    bytes: Vec<u8>,
    accesses: Vec<Access>,
}

impl Contents {
    pub(super) fn zeroes() -> Self {
        Self { bytes: vec![0; SEGMENT_BYTES], accesses: Vec::new() }
    }

    pub(super) fn get(&self, piece: Piece) -> &[u8] {
        &self.bytes[piece.offset..][..piece.len]
    }

    pub(super) fn set(&mut self, piece: Piece, bytes: &[u8]) {
        self.bytes[piece.offset..][..piece.len].copy_from_slice(bytes);
    }

    /// The tracks that the next operation of a track would race with.
    pub(super) fn racing(&self, tracks: &Tracks, track: usize, piece: Piece, is_write: bool) -> Vec<usize> {
        let knows = tracks.before_next(track);
        let races = |access: &&Access| access.conflicts(piece, is_write) && !access.is_before(&knows);
        self.accesses.iter().filter(races).map(|access| access.track).collect()
    }

    /// Enters an access that was enqueued.
    pub(super) fn enter(
        &mut self,
        tracks: &Tracks,
        clock: &Clock,
        track: usize,
        piece: Piece,
        is_write: bool,
    ) {
        self.accesses.retain(|access| !tracks.host_covers(&access.clock));
        self.accesses.push(Access { track, clock: clock.clone(), piece, is_write });
    }

    /// What was staged without a stream: ordered as a copy without a stream, but not over when it returns.
    pub(super) fn stage_without_a_stream(&mut self, tracks: &mut Tracks, default: usize, piece: Piece) {
        self.settle(tracks);
        let clock = tracks.enter(default);
        self.enter(tracks, &clock, default, piece, true);
    }

    /// The host waits for what non-blocking streams do with the segment.
    fn settle(&self, tracks: &mut Tracks) {
        for access in &self.accesses {
            if tracks.kind(access.track) == Kind::Free {
                tracks.host_waits(&access.clock);
            }
        }
    }

    /// Everything that used it is over: it was freed.
    pub(super) fn forget(&mut self, tracks: &mut Tracks) {
        for access in self.accesses.drain(..) {
            tracks.host_waits(&access.clock);
        }
    }

    /// A copy without a stream: after all blocking streams, and after what non-blocking ones do with the
    /// segment; over when it returns.
    pub(super) fn copy_without_a_stream(&mut self, tracks: &mut Tracks, default: usize) {
        self.settle(tracks);
        let clock = tracks.enter(default);
        let is_ordered = self.accesses.iter().all(|access| access.is_before(&clock));
        assert!(is_ordered, "the reference does not order a copy without a stream");
        tracks.host_waits(&clock);
        self.accesses.clear();
    }
}
