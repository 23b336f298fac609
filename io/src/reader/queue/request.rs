//! One request: its reads in spans, each with the route that its place in the page cache asks for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::in_place::{Landing, Placed};
use super::{Lane, Route};
use crate::{Error, ReadClass, ReadPlan, RequestId};

/// Spans beyond the first unread one that the lanes work on at once: where the page cache holds parts of a file,
/// threads copy those while the ring reads the others.
const OPEN_SPANS: usize = 16;

/// Consecutive reads of one file, close together, that are judged and routed as one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    first: u32,
    next: u32,
    end: u32,
    route: Option<Route>,
    decided: Option<Instant>,
    looking: bool,
}

impl Span {
    /// Reads `first .. end`, unrouted.
    pub(crate) fn new(first: u32, end: u32) -> Self {
        Self { first, next: first, end, route: None, decided: None, looking: false }
    }

    pub(crate) fn reads(&self) -> std::ops::Range<u32> {
        self.first..self.end
    }

    /// Sets the route. With `decided`, it is looked at again if its first read starts much later.
    pub(crate) fn decide(&mut self, route: Route, decided: Option<Instant>) {
        (self.route, self.decided, self.looking) = (Some(route), decided, false);
    }

    fn is_stale(&self, fresh: Duration) -> bool {
        self.next == self.first && self.decided.is_some_and(|since| since.elapsed() >= fresh)
    }
}

pub(super) struct Active {
    pub(super) id: RequestId,
    pub(super) token: u64,
    pub(super) class: ReadClass,
    pub(super) plan: Arc<ReadPlan>,
    /// Why all of it fails.
    pub(super) failed: Option<Arc<Error>>,
    pub(super) finished: u32,
    /// Reads that each lane carries out.
    pub(super) in_flight: [u32; 2],
    spans: Box<[Span]>,
    first_open: usize,
    placed: Option<Placed>,
}

/// What a request has for a lane.
pub(super) enum Found {
    /// The next read of this span.
    Read(usize),
    /// A span whose route must be decided, for the first time or again.
    Look(usize),
    Nothing,
}

impl Active {
    pub(super) fn new(
        id: RequestId,
        token: u64,
        class: ReadClass,
        plan: Arc<ReadPlan>,
        spans: Box<[Span]>,
        placed: Option<Placed>,
    ) -> Self {
        let (failed, finished, in_flight, first_open) = (None, 0, [0; 2], 0);
        Self { id, token, class, plan, failed, finished, in_flight, spans, first_open, placed }
    }

    pub(super) fn find(&mut self, lane: Lane, fresh: Duration) -> Found {
        while self.spans.get(self.first_open).is_some_and(|s| s.next == s.end) {
            self.first_open += 1;
        }
        if self.failed.is_some() {
            return if self.handed_out() { Found::Nothing } else { Found::Read(self.first_open) };
        }
        let mut look = None;
        for (at, span) in self.spans.iter().enumerate().skip(self.first_open).take(OPEN_SPANS) {
            if span.next == span.end || span.looking {
                continue;
            }
            match span.route {
                Some(route) if route.lane != lane => {}
                Some(_) if span.is_stale(fresh) => return Found::Look(at),
                Some(_) => return Found::Read(at),
                None => {
                    look.get_or_insert(at);
                }
            }
        }
        look.map_or(Found::Nothing, Found::Look)
    }

    /// Where the span's next read goes without a chunk, if it can.
    pub(super) fn landing(&self, span: usize) -> Option<Landing> {
        let (placed, span) = (self.placed.as_ref()?, &self.spans[span]);
        let read = self.plan.reads().get(span.next as usize)?;
        let file = &self.plan.files()[read.file as usize];
        let direct = span.route.is_some_and(|route| route.direct);
        placed.landing(span.next, direct.then(|| file.direct_step()))
    }

    /// The span's next read, which stays its next.
    pub(super) fn peek(&self, span: usize) -> u32 {
        self.spans[span].next
    }

    pub(super) fn advance(&mut self, span: usize) {
        self.spans[span].next += 1;
    }

    pub(super) fn span_mut(&mut self, span: u32) -> Option<&mut Span> {
        self.spans.get_mut(span as usize)
    }

    /// Marks a span as being looked at. Its reads, and the route it had.
    pub(super) fn begin_look(&mut self, span: u32) -> Option<(std::ops::Range<u32>, Option<Route>)> {
        let span = self.spans.get_mut(span as usize)?;
        span.looking = true;
        Some((span.reads(), span.route))
    }

    /// The route of a read that was handed out.
    pub(super) fn route(&self, read: u32) -> Route {
        let at = self.spans.partition_point(|s| s.end <= read);
        let found = self.spans.get(at).and_then(|s| s.route);
        found.unwrap_or(Route { lane: Lane::Pool, direct: false })
    }

    pub(super) fn read_count(&self) -> u32 {
        u32::try_from(self.plan.reads().len()).unwrap_or(u32::MAX)
    }

    pub(super) fn handed_out(&self) -> bool {
        self.first_open == self.spans.len()
    }
}
