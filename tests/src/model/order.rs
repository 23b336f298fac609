//! What the contract promises to run before what.

use super::program::Piece;

/// How far each track has come, as far as somebody knows. A track is one stream for its life.
#[derive(Debug, Clone, Default)]
pub(super) struct Clock(Vec<u64>);

impl Clock {
    fn of(&self, track: usize) -> u64 {
        self.0.get(track).copied().unwrap_or(0)
    }

    /// Knows from now on what the other knows.
    fn join(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// Whether everything the other knows is known here.
    fn covers(&self, other: &Self) -> bool {
        other.0.iter().enumerate().all(|(track, position)| self.of(track) >= *position)
    }

    fn advance(&mut self, track: usize) {
        if self.0.len() <= track {
            self.0.resize(track + 1, 0);
        }
        self.0[track] += 1;
    }
}

/// How a stream stands to the default stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Default,
    Blocking,
    Free,
}

struct Track {
    device: usize,
    kind: Kind,
    knows: Clock,
}

/// All streams that there ever were, and what the host knows to be over.
#[derive(Default)]
pub(super) struct Tracks {
    tracks: Vec<Track>,
    host: Clock,
}

impl Tracks {
    pub(super) fn add(&mut self, device: usize, kind: Kind) -> usize {
        self.tracks.push(Track { device, kind, knows: Clock::default() });
        self.tracks.len() - 1
    }

    pub(super) fn kind(&self, track: usize) -> Kind {
        self.tracks[track].kind
    }

    /// What the track's next operation comes after: what the host has waited for and, by the rule of
    /// blocking streams, the default stream's work, or that of all blocking streams.
    pub(super) fn before_next(&self, track: usize) -> Clock {
        let mut knows = self.tracks[track].knows.clone();
        knows.join(&self.host);
        let (device, kind) = (self.tracks[track].device, self.tracks[track].kind);
        for other in self.tracks.iter().filter(|other| other.device == device) {
            if let (Kind::Default, Kind::Blocking) | (Kind::Blocking, Kind::Default) = (kind, other.kind) {
                knows.join(&other.knows);
            }
        }
        knows
    }

    /// Enters an operation and answers what is over when it is.
    pub(super) fn enter(&mut self, track: usize) -> Clock {
        let mut knows = self.before_next(track);
        knows.advance(track);
        self.tracks[track].knows = knows.clone();
        knows
    }

    /// The track's later operations come after all that the clock covers.
    pub(super) fn wait(&mut self, track: usize, clock: &Clock) {
        self.tracks[track].knows.join(clock);
    }

    /// Whether the host knows the track to be idle.
    pub(super) fn is_idle(&self, track: usize) -> bool {
        self.host.covers(&self.tracks[track].knows)
    }

    /// The host has waited for all that the clock covers.
    pub(super) fn host_waits(&mut self, clock: &Clock) {
        self.host.join(clock);
    }

    /// Whether the host has waited for all that the clock covers.
    pub(super) fn host_covers(&self, clock: &Clock) -> bool {
        self.host.covers(clock)
    }

    /// The host has waited for the track.
    pub(super) fn host_waits_for_track(&mut self, track: usize) {
        self.host.join(&self.tracks[track].knows);
    }

    /// The host has waited for all tracks of the device.
    pub(super) fn host_waits_for_device(&mut self, device: usize) {
        for track in self.tracks.iter().filter(|track| track.device == device) {
            self.host.join(&track.knows);
        }
    }
}

/// One use of a range of a segment.
pub(super) struct Access {
    pub(super) track: usize,
    /// What is over when it is; its own position on its track among it.
    pub(super) clock: Clock,
    pub(super) piece: Piece,
    pub(super) is_write: bool,
}

impl Access {
    pub(super) fn conflicts(&self, piece: Piece, is_write: bool) -> bool {
        self.piece.overlaps(piece) && (self.is_write || is_write)
    }

    /// Whether it is over for whoever knows this.
    pub(super) fn is_before(&self, knows: &Clock) -> bool {
        knows.of(self.track) >= self.clock.of(self.track)
    }
}
