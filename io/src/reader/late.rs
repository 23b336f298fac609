//! Reads by pread that do not end in time. A thread in the kernel cannot be called back: its read is reported as failed,
//! another thread takes its place, and it keeps its chunk until the kernel lets go of it.

use std::sync::atomic::Ordering;
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

/// Notes that a read is late.
pub(crate) fn note(shared: &Shared, file: &WeightFile, error: &Error) {
    tracing::warn!(%error, "a read hangs; its memory is kept until the kernel returns it");
    file.read_hangs();
    shared.hung.fetch_add(1, Ordering::Relaxed);
}

/// Notes that the kernel has returned a late read's memory.
pub(crate) fn note_end(shared: &Shared, file: &WeightFile) {
    file.hung_read_ended();
    shared.hung.fetch_sub(1, Ordering::Relaxed);
}

/// Why a read of this file is not started: once half of the chunks hang, the rest is for files that answer.
pub(crate) fn refusal(shared: &Shared, file: &WeightFile, offset: u64) -> Option<Error> {
    let hung = shared.hung.load(Ordering::Relaxed);
    if hung == 0 || hung < shared.chunks().div_ceil(2) || !file.hangs() {
        return None;
    }
    let message = format!("earlier reads of the file still hang, {hung} in all: no more are started");
    Some(Error::new(ErrorKind::ReadTimeout, message).in_file(file.path()).at(offset))
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
    Late(Arc<WeightFile>),
    /// Its thread has ended; the next one takes it.
    Vacant,
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

    /// A place for one more thread: there are as many as threads were alive at a time, however many have come and gone.
    pub(super) fn enter(&self) -> usize {
        let mut places = self.lock();
        if let Some(vacant) = places.iter().position(|place| matches!(place, Place::Vacant)) {
            places[vacant] = Place::Idle;
            return vacant;
        }
        places.push(Place::Idle);
        places.len() - 1
    }

    /// A thread has ended.
    pub(super) fn leave(&self, place: usize) {
        self.lock()[place] = Place::Vacant;
    }

    pub(super) fn begin(&self, place: usize, work: &Work) {
        let planned = &work.plan.reads()[work.ticket.read as usize];
        let file = Arc::clone(&work.plan.files()[planned.file as usize]);
        let reading = Reading { since: Instant::now(), ticket: work.ticket, file, offset: planned.offset };
        self.lock()[place] = Place::Reading(reading);
    }

    /// True if the read ended in time: its end is the thread's to report.
    pub(super) fn end(&self, shared: &Shared, place: usize) -> bool {
        let was = std::mem::take(&mut self.lock()[place]);
        if let Place::Late(file) = &was {
            note_end(shared, file);
        }
        matches!(was, Place::Reading(_))
    }

    /// A read that is late, which is the caller's to report from now on.
    fn next_late(&self, shared: &Shared, now: Instant) -> Option<(Ticket, Error)> {
        let mut places = self.lock();
        let is_late = |place: &Place| matches!(place, Place::Reading(r) if now.duration_since(r.since) >= self.deadline);
        let place = places.iter_mut().find(|place| is_late(place))?;
        let Place::Reading(r) = std::mem::take(place) else { return None };
        let error = too_late(&r.file, r.offset, self.deadline);
        note(shared, &r.file, &error);
        *place = Place::Late(r.file);
        Some((r.ticket, error))
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
            while let Some((ticket, error)) = self.next_late(shared, Instant::now()) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_come_and_go_take_the_places_of_others() {
        let watch = Watch::new(Duration::from_secs(1));
        let stays = watch.enter();
        for _ in 0..1000 {
            let (one, other) = (watch.enter(), watch.enter());
            assert!(one != other && one != stays && other != stays);
            watch.leave(one);
            watch.leave(other);
        }
        assert_eq!(watch.lock().len(), 3);
    }
}
