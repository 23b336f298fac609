//! The thread that takes one ring's completions to the lanes.

use super::super::jobs::JobId;
use super::table::{Arrived, Core, LegState, ToLane};
use crate::Error;
use crossbeam_channel::{Receiver, RecvTimeoutError};
use spoc_io::{Chunk, Completion};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long it sleeps at most while jobs may wait for room in a reader.
const BEAT: Duration = Duration::from_millis(500);

/// Until the reader has ended.
pub(super) fn run(core: &Core, ring: usize, completions: &Receiver<Completion>) {
    loop {
        match completions.recv_timeout(BEAT) {
            Ok(completion) => take(core, ring, completion),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        while let Some((legs, refused)) = core.hand_over_waiting() {
            if let Some(error) = refused {
                legs.iter().for_each(|leg| fail(core, leg, &error));
            }
            finish(core, &legs);
        }
    }
}

fn take(core: &Core, ring: usize, completion: Completion) {
    let Completion { token, read, outcome, .. } = completion;
    let id = JobId::from_token(token);
    let Some(Arrived { plan, legs }) = core.arrived(id, ring) else { return };
    let wanted = plan.devices_of(read).fold(0u64, |set, device| set | 1 << device);
    let wants =
        |leg: &LegState| !leg.is_dead() && leg.device.is_none_or(|device| wanted & (1 << device) != 0);
    match outcome {
        Ok(chunk) => share(core, &legs, wants, chunk, |leg, chunk| {
            let (leg, plan) = (Arc::clone(leg), Arc::clone(&plan));
            ToLane::Chunk { leg, plan, read, chunk }
        }),
        Err(error) => {
            // A file that changed concerns whoever has anything of it, and is found out with the last read.
            let all = error.kind() == spoc_io::ErrorKind::Changed;
            let error = Error::from(error);
            legs.iter().filter(|leg| all || wants(leg)).for_each(|leg| fail(core, leg, &error));
            core.leg_died(id);
        }
    }
    if let Some(legs) = core.read_done(id) {
        finish(core, &legs);
    }
}

/// The chunk to every leg that wants it; each is a holder of its own.
fn share(
    core: &Core,
    legs: &[Arc<LegState>],
    wants: impl Fn(&LegState) -> bool,
    chunk: Chunk,
    message: impl Fn(&Arc<LegState>, Chunk) -> ToLane,
) {
    let mut left = legs.iter().filter(|leg| wants(leg)).peekable();
    let mut chunk = Some(chunk);
    while let Some(leg) = left.next() {
        let own = match left.peek() {
            Some(_) => chunk.as_ref().and_then(Chunk::share),
            None => chunk.take(),
        };
        if let Some(own) = own {
            core.tell(leg, message(leg, own));
        }
    }
}

/// Nothing more of the leg is copied, and its sink hears why.
fn fail(core: &Core, leg: &Arc<LegState>, error: &Error) {
    if !leg.dead.swap(true, Ordering::AcqRel) {
        core.tell(leg, ToLane::Failed { leg: Arc::clone(leg), error: error.clone() });
    }
}

fn finish(core: &Core, legs: &[Arc<LegState>]) {
    for leg in legs {
        core.tell(leg, ToLane::Finished { leg: Arc::clone(leg) });
    }
}
