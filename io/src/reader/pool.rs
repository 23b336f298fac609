//! The threads that call pread: for files in the page cache, and for everything where io_uring is not to be had.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

use super::ladder::Ladder;
use super::late::{self, Watch};
use super::progress::{Progress, Step};
use super::queue::{Next, Shared, Work};
use super::report::{IoPath, add};
use super::{Outlet, chunk::Chunk};
use crate::file::WeightFile;
use crate::{ErrorKind, Result};

/// The loop of one thread.
pub(super) fn run(shared: &Arc<Shared>, ladder: &Ladder, outlet: &Outlet, watch: Option<&Watch>) {
    let watch = watch.map(|watch| (watch, watch.enter()));
    serve(shared, ladder, outlet, watch);
    if let Some((watch, place)) = watch {
        watch.leave(place);
    }
}

fn serve(shared: &Arc<Shared>, ladder: &Ladder, outlet: &Outlet, watch: Option<(&Watch, usize)>) {
    // The descriptor of the last direct read: consecutive reads are mostly of one file.
    let mut direct: Option<(Arc<WeightFile>, File)> = None;
    loop {
        match shared.next_for_pool(ladder, direct.is_some()) {
            Next::Read(work) => {
                let ticket = work.ticket;
                let planned = &work.plan.reads()[ticket.read as usize];
                let file = &work.plan.files()[planned.file as usize];
                if let Some(error) = late::refusal(shared, file, planned.offset) {
                    drop(work);
                    outlet.deliver(shared, ticket, Err(error));
                    continue;
                }
                if let Some((watch, place)) = watch {
                    watch.begin(place, &work);
                }
                let outcome = carry_out(work, shared, outlet, &mut direct);
                if watch.is_some_and(|(watch, place)| !watch.end(shared, place)) {
                    // It was reported as late, and another thread has taken this one's place.
                    return;
                }
                outlet.deliver(shared, ticket, outcome);
            }
            Next::Fail(ticket) => {
                direct = None;
                outlet.deliver_failed(shared, ticket);
            }
            Next::Stop => return,
            Next::NoChunk | Next::Enough | Next::Idle(_) => direct = None,
        }
    }
}

fn carry_out(
    work: Work,
    shared: &Shared,
    outlet: &Outlet,
    direct: &mut Option<(Arc<WeightFile>, File)>,
) -> Result<Chunk> {
    let Work { ticket, route, plan, mut chunk } = work;
    let planned = &plan.reads()[ticket.read as usize];
    let file = &plan.files()[planned.file as usize];
    let counters = &shared.counters;
    let mut progress = Progress::new(route.direct && open_direct(file, shared, direct)?);
    loop {
        let (start, end) = progress.range(planned, file);
        let source = match direct {
            Some((_, descriptor)) if progress.is_direct() => descriptor,
            _ => file.buffered(),
        };
        add(&counters.submissions, 1);
        add(&counters.submit_calls, 1);
        let since = Instant::now();
        let answer = source.read_at(chunk.fill_target(start, end), planned.offset + u64::from(start));
        counters.waited_for_disk(since.elapsed());
        let answer = outlet.disturb(answer, file, planned.offset + u64::from(start));
        if let Ok(n) = &answer {
            add(&counters.path_bytes[IoPath::new(false, progress.is_direct()) as usize], *n as u64);
        }
        match progress.take(answer, planned, file, counters) {
            Step::Done => {
                counters.brought(planned, chunk.is_in_place());
                return Ok(chunk);
            }
            Step::Again => {}
            Step::Demote(reason) => {
                file.refuse_direct();
                counters.demoted(IoPath::PreadBuffered, Some(file.path()), reason);
                progress.leave_direct();
            }
            Step::Fail(error) => return Err(error),
        }
    }
}

/// Has the file open for direct reads in `held`; false if the file refuses them.
///
/// # Errors
/// What says nothing about the file's direct reads: it changed, or the process is out of descriptors.
fn open_direct(
    file: &Arc<WeightFile>,
    shared: &Shared,
    held: &mut Option<(Arc<WeightFile>, File)>,
) -> Result<bool> {
    if file.refuses_direct() {
        return Ok(false);
    }
    if held.as_ref().is_some_and(|(of, _)| Arc::ptr_eq(of, file)) {
        return Ok(true);
    }
    match file.open_direct() {
        Ok(descriptor) => {
            *held = Some((Arc::clone(file), descriptor));
            Ok(true)
        }
        Err(error) if matches!(error.kind(), ErrorKind::Changed | ErrorKind::TooManyOpenFiles) => Err(error),
        Err(error) => {
            file.refuse_direct();
            shared.counters.demoted(IoPath::PreadBuffered, Some(file.path()), error.message());
            Ok(false)
        }
    }
}
