//! Events: a value on a queue's timeline.

use std::sync::Mutex;

use crate::sync::lock;

/// A point that a queue reaches: its timeline has this value, or a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) lane: usize,
    pub(super) value: u64,
}

/// The place of the latest record. Recording submits nothing unless the stream still has waits to submit.
#[derive(Debug, Default)]
pub(super) struct Event {
    point: Mutex<Option<Point>>,
}

impl Event {
    pub(super) fn record(&self, point: Point) {
        *lock(&self.point) = Some(point);
    }

    /// The latest record, if there was one.
    pub(super) fn point(&self) -> Option<Point> {
        *lock(&self.point)
    }
}
