//! Events: points of lanes.

use std::sync::Mutex;

use spoc_driver::Result;

use super::api::Api;
use super::lane::Point;
use crate::sync::lock;

/// The latest record: reached when all its points are. More than one where the stream has still to wait for others.
pub(super) struct Event<A: Api>(Mutex<Vec<Point<A>>>);

impl<A: Api> Default for Event<A> {
    fn default() -> Self {
        Self(Mutex::new(Vec::new()))
    }
}

impl<A: Api> Event<A> {
    pub(super) fn record(&self, points: Vec<Point<A>>) {
        *lock(&self.0) = points;
    }

    pub(super) fn points(&self) -> Vec<Point<A>> {
        lock(&self.0).clone()
    }

    pub(super) fn is_reached(&self) -> Result<bool> {
        for point in self.points() {
            if !point.is_reached()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) fn wait(&self) -> Result<()> {
        self.points().iter().try_for_each(Point::wait)
    }
}
