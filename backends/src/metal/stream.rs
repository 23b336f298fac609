//! Streams: a lane each, ordered against the default stream's.

use std::sync::{Arc, Mutex, Weak};

use spoc_driver::Result;

use super::api::{Api, Run};
use super::lane::{Lane, Point};
use crate::sync::lock;

/// How a stream stands to the default stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// It is the default stream: after what blocking streams were given.
    Default,
    /// After what the default stream was given.
    Blocking,
    /// Neither.
    NonBlocking,
}

/// The lanes of a device.
pub(super) struct Lanes<A: Api> {
    pub(super) default: Arc<Lane<A>>,
    others: Mutex<Vec<(Weak<Lane<A>>, Role)>>,
}

/// A stream.
pub(super) struct Stream<A: Api> {
    lane: Arc<Lane<A>>,
    lanes: Arc<Lanes<A>>,
    role: Role,
    /// What its next launch has to wait for.
    waits: Mutex<Vec<Point<A>>>,
}

impl<A: Api> Lanes<A> {
    pub(super) fn new(default: Arc<Lane<A>>) -> Arc<Self> {
        Arc::new(Self { default, others: Mutex::default() })
    }

    pub(super) fn default_stream(self: &Arc<Self>) -> Stream<A> {
        self.stream(Arc::clone(&self.default), Role::Default)
    }

    pub(super) fn add(self: &Arc<Self>, lane: Arc<Lane<A>>, role: Role) -> Stream<A> {
        let mut others = lock(&self.others);
        others.retain(|(other, _)| other.strong_count() > 0);
        others.push((Arc::downgrade(&lane), role));
        drop(others);
        self.stream(lane, role)
    }

    fn stream(self: &Arc<Self>, lane: Arc<Lane<A>>, role: Role) -> Stream<A> {
        Stream { lane, lanes: Arc::clone(self), role, waits: Mutex::default() }
    }

    fn blocking(&self) -> Vec<Arc<Lane<A>>> {
        let others = lock(&self.others);
        let blocking = others.iter().filter(|(_, role)| *role == Role::Blocking);
        blocking.filter_map(|(lane, _)| lane.upgrade()).collect()
    }

    /// Waits for every lane; answers the first failure.
    pub(super) fn synchronize(&self) -> Result<()> {
        let others: Vec<_> = lock(&self.others).iter().filter_map(|(lane, _)| lane.upgrade()).collect();
        let mut outcome = Ok(());
        for lane in others.iter().chain([&self.default]) {
            outcome = outcome.and(lane.wait(lane.promised()));
        }
        outcome
    }
}

impl<A: Api> Stream<A> {
    pub(super) fn lane(&self) -> &Arc<Lane<A>> {
        &self.lane
    }

    /// What comes next has to wait for these: by the stream's role, and as it was told.
    fn before(&self, waits: &mut Vec<Point<A>>) -> Result<()> {
        let lanes = match self.role {
            Role::Default => self.lanes.blocking(),
            Role::Blocking => vec![Arc::clone(&self.lanes.default)],
            Role::NonBlocking => Vec::new(),
        };
        waits.extend(lanes.into_iter().map(|lane| Point { value: lane.promised(), lane }));
        let mut unmet = Vec::with_capacity(waits.len());
        for point in waits.drain(..) {
            // The own lane is in order.
            if !Arc::ptr_eq(&point.lane, &self.lane) && !point.is_reached()? {
                unmet.push(point);
            }
        }
        *waits = unmet;
        Ok(())
    }

    /// Encodes a launch in the stream's turn; answers the value that it has run at.
    pub(super) fn launch(&self, run: &Run<'_, A>) -> Result<u64> {
        let mut waits = lock(&self.waits);
        self.before(&mut waits)?;
        let value = self.lane.launch(&waits, run)?;
        waits.clear();
        Ok(value)
    }

    /// Later work waits for the points.
    pub(super) fn wait(&self, points: Vec<Point<A>>) {
        lock(&self.waits).extend(points);
    }

    /// Where it stands: all that it was given has run when these are reached. Commits it.
    pub(super) fn points(&self) -> Result<Vec<Point<A>>> {
        let mut waits = lock(&self.waits);
        self.before(&mut waits)?;
        self.lane.commit()?;
        let own = Point { lane: Arc::clone(&self.lane), value: self.lane.promised() };
        Ok(waits.iter().cloned().chain([own]).collect())
    }

    /// Waits until all that it was given has run.
    pub(super) fn synchronize(&self) -> Result<()> {
        self.targets().iter().try_for_each(Point::wait)
    }

    /// Whether it has.
    pub(super) fn is_idle(&self) -> Result<bool> {
        for point in self.targets() {
            if !point.is_reached()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn targets(&self) -> Vec<Point<A>> {
        let own = Point { lane: Arc::clone(&self.lane), value: self.lane.promised() };
        lock(&self.waits).iter().cloned().chain([own]).collect()
    }
}
