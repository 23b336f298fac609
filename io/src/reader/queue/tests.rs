//! What a lane is given, without threads.

use std::io::Write;
use std::sync::Arc;

use super::*;
use crate::{AnonymousRegion, Extent, IoMode, PlanBuilder, PlanOptions, WeightFile};

const CHUNK: u32 = 4096;

struct Fixture {
    _temp: tempfile::NamedTempFile,
    files: [Arc<WeightFile>; 1],
    shared: Arc<Shared>,
    ladder: Ladder,
}

impl Fixture {
    fn new(chunks: u32) -> Self {
        let mut temp = tempfile::NamedTempFile::new().unwrap();
        temp.write_all(&vec![1; 64 * CHUNK as usize]).unwrap();
        let options = ReaderOptions { chunk_bytes: CHUNK, mode: IoMode::Direct, ..ReaderOptions::default() };
        let region = Arc::new(AnonymousRegion::new((chunks * CHUNK) as usize).unwrap());
        let files = [Arc::new(WeightFile::open(temp.path()).unwrap())];
        let shared = Shared::new(region, &options, 4).unwrap();
        Self { _temp: temp, files, shared, ladder: Ladder::with_ring(&options) }
    }

    fn push(&self, class: ReadClass, reads: u32) -> RequestId {
        let options = PlanOptions { chunk_bytes: CHUNK, gap_bytes: 0 };
        let mut builder = PlanBuilder::new(&self.files, options);
        let extent = Extent { file: 0, offset: 0, len_bytes: u64::from(reads * CHUNK) };
        builder.add(0, extent, 0).unwrap();
        let plan = Arc::new(builder.build().unwrap());
        let spans = self.ladder.spans(&plan, &self.shared.counters);
        self.shared.push(ReadRequest { plan, class, token: class as u64 }, spans, None).unwrap()
    }

    /// Everything that the ring may start now, with at most 4 reads of prefetch and refill in flight.
    fn starts(&self) -> Vec<Work> {
        let next = || match self.shared.next_for_ring(&self.ladder, Bounds { background: 4, ..Bounds::NONE })
        {
            Next::Read(work) => Some(work),
            Next::Idle(None) | Next::NoChunk => None,
            _ => panic!("a read, or nothing"),
        };
        std::iter::from_fn(next).collect()
    }

    fn end(&self, work: Work) -> Completion {
        self.shared.finish(work.ticket, Ok(work.chunk)).unwrap().0
    }
}

#[test]
fn prefetch_and_refill_in_flight_are_bounded_together_and_demand_is_not() {
    let fixture = Fixture::new(32);
    fixture.push(ReadClass::Prefetch, 3);
    fixture.push(ReadClass::Refill, 30);
    let mut background = fixture.starts();
    assert_eq!(background.len(), 4);
    fixture.push(ReadClass::Demand, 20);
    let demand = fixture.starts();
    assert_eq!(demand.len(), 20, "at once, whatever is in flight");
    assert!(fixture.starts().is_empty());
    fixture.end(background.remove(0));
    assert_eq!(fixture.starts().len(), 1, "one that ended makes room for one");
    drop((background, demand));
}

#[test]
fn a_promoted_request_leaves_the_bound_with_what_it_has_in_flight() {
    let fixture = Fixture::new(64);
    let prefetch = fixture.push(ReadClass::Prefetch, 10);
    let mut held = fixture.starts();
    assert_eq!(held.len(), 4);
    assert!(fixture.shared.promote(prefetch, ReadClass::Demand));
    held.append(&mut fixture.starts());
    assert_eq!(held.len(), 10);
    fixture.push(ReadClass::Refill, 10);
    held.append(&mut fixture.starts());
    assert_eq!(held.len(), 14, "the bound is free for others");
    for work in held {
        fixture.end(work).outcome.unwrap();
    }
    assert_eq!(fixture.starts().len(), 4);
}

#[test]
fn the_last_chunks_go_to_who_is_more_urgent_on_either_lane() {
    let fixture = Fixture::new(2);
    fixture.push(ReadClass::Demand, 5);
    let mut held = fixture.starts();
    assert_eq!(held.len(), 2, "then no chunk is left");
    // A prefetch of the pool must not take the chunk that the ring's demand waits for.
    let pool = Ladder::new(&ReaderOptions { mode: IoMode::Pread, ..ReaderOptions::default() }, false);
    let options = PlanOptions { chunk_bytes: CHUNK, gap_bytes: 0 };
    let mut builder = PlanBuilder::new(&fixture.files, options);
    builder.add(0, Extent { file: 0, offset: 0, len_bytes: 1 }, 0).unwrap();
    let plan = Arc::new(builder.build().unwrap());
    let spans = pool.spans(&plan, &fixture.shared.counters);
    let request = ReadRequest { plan, class: ReadClass::Prefetch, token: 0 };
    fixture.shared.push(request, spans, None).unwrap();
    fixture.end(held.remove(0));
    assert!(matches!(fixture.shared.lock().choose(Lane::Pool, Bounds::NONE), Choice::NoChunk));
    assert_eq!(fixture.starts().len(), 1);
}

#[test]
fn chunks_beyond_those_that_are_wanted_out_are_left_alone_until_one_comes_back() {
    let fixture = Fixture::new(32);
    fixture.push(ReadClass::Demand, 20);
    let next = |chunks_out| {
        let bounds = Bounds { chunks_out, ..Bounds::NONE };
        fixture.shared.next_for_ring(&fixture.ladder, bounds)
    };
    let mut held = Vec::new();
    while let Next::Read(work) = next(6) {
        held.push(work);
    }
    assert_eq!(held.len(), 6);
    assert!(matches!(next(6), Next::Enough));
    let Next::Read(more) = next(usize::MAX) else { panic!("chunks are free") };
    let kept = fixture.end(more);
    assert!(matches!(next(6), Next::Enough), "a chunk that its receiver still has is out");
    drop(fixture.end(held.remove(0)));
    drop(kept);
    assert!(matches!(next(6), Next::Read(_)));
}
