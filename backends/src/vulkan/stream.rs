//! Streams: dealt to lanes, ordered among each other by values.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use spoc_driver::Result;

use super::counters::add;
use super::device::Shared;
use super::event::Point;
use super::queue::{LANES_MAX, Lane, Recording, Waits};
use crate::sync::lock;

/// How a stream stands to the default stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// It is the default stream: after all that blocking streams have submitted.
    Default,
    /// After what the default stream has submitted, and waited for by it.
    Blocking,
    /// Neither.
    NonBlocking,
}

/// A stream.
pub(super) struct Stream {
    shared: Arc<Shared>,
    lane: usize,
    role: Role,
    state: Arc<Mutex<State>>,
}

/// How far a stream has come.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Reaching this value of its own lane means that all it was given has run.
    last: u64,
    /// Values of other lanes that its next submission has to wait for.
    waits: Waits,
}

impl Stream {
    pub(super) fn new(shared: &Arc<Shared>, lane: usize, role: Role, state: Arc<Mutex<State>>) -> Self {
        Self { shared: Arc::clone(shared), lane, role, state }
    }

    fn lane(&self) -> &Lane {
        self.shared.lane(self.lane)
    }

    /// Submits one command buffer in the stream's turn.
    pub(super) fn submit(&self, record: impl FnOnce(&mut Recording<'_>)) -> Result<Point> {
        let mut state = lock(&self.state);
        self.order(&mut state);
        self.submit_locked(&mut state, record)
    }

    fn submit_locked(&self, state: &mut State, record: impl FnOnce(&mut Recording<'_>)) -> Result<Point> {
        let core = &self.shared.core;
        let mut waits = [(self.lane(), 0); LANES_MAX];
        let mut count = 0;
        for (lane, &value) in self.shared.lanes().iter().zip(&state.waits) {
            if !lane.is_reached(core, value)? {
                waits[count] = (lane, value);
                count += 1;
            }
        }
        let value = self.lane().submit(core, &waits[..count], record)?;
        add(&core.counters.waits_submitted, count as u64);
        state.waits = Waits::default();
        state.last = value;
        match self.role {
            Role::Default => _ = self.lane().default.fetch_max(value, Ordering::AcqRel),
            Role::Blocking => _ = self.lane().blocking.fetch_max(value, Ordering::AcqRel),
            Role::NonBlocking => {}
        }
        Ok(Point { lane: self.lane, value })
    }

    /// Takes over the order between the default stream and blocking streams: what the others have submitted
    /// by now.
    fn order(&self, state: &mut State) {
        for (index, lane) in self.shared.lanes().iter().enumerate() {
            let before = match self.role {
                Role::Default => lane.blocking.load(Ordering::Acquire),
                Role::Blocking => lane.default.load(Ordering::Acquire),
                Role::NonBlocking => 0,
            };
            Self::after(state, self.lane, Point { lane: index, value: before });
        }
    }

    fn after(state: &mut State, own: usize, point: Point) {
        if point.lane == own {
            state.last = state.last.max(point.value);
        } else if let Some(wait) = state.waits.get_mut(point.lane) {
            *wait = point.value.max(*wait);
        }
    }

    /// Later work waits for the point.
    pub(super) fn wait(&self, point: Point) -> Result<()> {
        let counters = &self.shared.core.counters;
        let mut state = lock(&self.state);
        // The lane is in order: what comes later on it runs after the point anyway.
        let needs_nothing = point.lane == self.lane
            || self.shared.lane(point.lane).is_reached(&self.shared.core, point.value)?;
        if needs_nothing {
            add(&counters.waits_elided, 1);
        }
        if point.lane == self.lane || !needs_nothing {
            Self::after(&mut state, self.lane, point);
        }
        Ok(())
    }

    /// The point at which all that the stream was given has run, its waits included.
    pub(super) fn point(&self) -> Result<Point> {
        let mut state = lock(&self.state);
        self.order(&mut state);
        let core = &self.shared.core;
        let mut is_ahead = true;
        for (lane, &value) in self.shared.lanes().iter().zip(&state.waits) {
            is_ahead &= lane.is_reached(core, value)?;
        }
        if is_ahead {
            core.check("recording a Vulkan event")?;
            return Ok(Point { lane: self.lane, value: state.last });
        }
        // Other lanes are still waited for: a submission that does nothing else carries the waits.
        self.submit_locked(&mut state, |_| ())
    }

    /// Whether all that the stream was given has run.
    pub(super) fn is_idle(&self) -> Result<bool> {
        let core = &self.shared.core;
        core.check("querying a Vulkan stream")?;
        let (last, waits) = self.targets();
        let mut is_idle = self.lane().is_reached(core, last)?;
        for (lane, &value) in self.shared.lanes().iter().zip(&waits) {
            is_idle = is_idle && lane.is_reached(core, value)?;
        }
        Ok(is_idle)
    }

    /// Waits on the host until all that the stream was given has run.
    pub(super) fn synchronize(&self) -> Result<()> {
        let core = &self.shared.core;
        core.check("waiting for a Vulkan stream")?;
        let (last, waits) = self.targets();
        self.lane().wait(core, last)?;
        for (lane, &value) in self.shared.lanes().iter().zip(&waits) {
            lane.wait(core, value)?;
        }
        Ok(())
    }

    /// What the stream was given, and what it waits for. What the default stream and the blocking ones were
    /// given meanwhile is theirs: only the next submission comes after it.
    fn targets(&self) -> (u64, Waits) {
        let state = lock(&self.state);
        (state.last, state.waits)
    }
}
