//! Reads by pread that do not end in time. A thread in the kernel cannot be called back: its read is reported as failed,
//! another thread takes its place, and it keeps its chunk until the kernel lets go of it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Outlet;
use super::queue::{Shared, Ticket, Work};
use crate::file::WeightFile;
use crate::{Error, ErrorKind};

/// The error of a read that did not end in time.
pub(crate) fn too_late(file: &WeightFile, offset: u64, deadline: Duration) -> Error {
    let message = format!("expected an answer within {deadline:?}, the read has none: the storage hangs");
    Error::new(ErrorKind::ReadTimeout, message).in_file(file.path()).at(offset)
}

struct Reading {
    since: Instant,
    ticket: Ticket,
    file: Arc<WeightFile>,
    offset: u64,
}

#[derive(Default)]
enum Place {
    #[default]
    Idle,
    Reading(Reading),
    /// Reported as failed; whoever reads there ends with its read.
    Late,
}

/// What the threads of the pool are at, for the thread that watches them.
pub(super) struct Watch {
    deadline: Duration,
    places: Mutex<Vec<Place>>,
}

impl Watch {
    pub(super) fn new(deadline: Duration) -> Self {
        Self { deadline, places: Mutex::new(Vec::new()) }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one more thread.
    pub(super) fn enter(&self) -> usize {
        let mut places = self.lock();
        places.push(Place::Idle);
        places.len() - 1
    }

    pub(super) fn begin(&self, place: usize, work: &Work) {
        let planned = &work.plan.reads()[work.ticket.read as usize];
        let file = Arc::clone(&work.plan.files()[planned.file as usize]);
        let reading = Reading { since: Instant::now(), ticket: work.ticket, file, offset: planned.offset };
        self.lock()[place] = Place::Reading(reading);
    }

    /// True if the read ended in time: its end is the thread's to report.
    pub(super) fn end(&self, place: usize) -> bool {
        matches!(std::mem::take(&mut self.lock()[place]), Place::Reading(_))
    }

    /// A read that is late, which is the caller's to report from now on.
    fn next_late(&self, now: Instant) -> Option<(Ticket, Error)> {
        let mut places = self.lock();
        let is_late = |place: &Place| matches!(place, Place::Reading(r) if now.duration_since(r.since) >= self.deadline);
        let place = places.iter_mut().find(|place| is_late(place))?;
        match std::mem::replace(place, Place::Late) {
            Place::Reading(r) => Some((r.ticket, too_late(&r.file, r.offset, self.deadline))),
            _ => None,
        }
    }

    /// The loop of the thread that watches; ends when `readers` says that no thread of the pool is left.
    pub(super) fn run(
        &self,
        shared: &Arc<Shared>,
        outlet: &Outlet,
        readers: impl Fn() -> usize,
        replace: impl Fn() -> std::io::Result<()>,
    ) {
        let nap = (self.deadline / 8).clamp(Duration::from_millis(1), Duration::from_millis(20));
        while readers() > 0 {
            std::thread::sleep(nap);
            while let Some((ticket, error)) = self.next_late(Instant::now()) {
                tracing::warn!(%error, "a read hangs; its memory is kept until the kernel returns it");
                outlet.deliver(shared, ticket, Err(error));
                if !shared.stopping()
                    && let Err(error) = replace()
                {
                    tracing::error!(%error, "no thread takes the place of one whose read hangs");
                }
            }
        }
    }
}
