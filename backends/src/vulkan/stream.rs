//! Streams: dealt to lanes, ordered among each other by values.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use spoc_driver::Result;

use super::counters::add;
use super::device::Shared;
use super::event::Point;
use super::queue::{Recording, Run, WaitList, Waits};
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
    lanes: Lanes,
    role: Role,
    state: Arc<Mutex<State>>,
}

/// The lanes of a stream, by their indices: one family may copy and another run kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lanes {
    pub(super) copies: usize,
    pub(super) kernels: usize,
}

/// How far a stream has come.
#[derive(Debug, Default)]
pub(super) struct State {
    /// The lane that it was last given work on.
    lane: usize,
    /// Reaching this value of its own lane means that all it was given has run.
    last: u64,
    /// Values of other lanes that its next submission has to wait for.
    waits: Waits,
}

impl Stream {
    pub(super) fn new(shared: &Arc<Shared>, lanes: Lanes, role: Role, state: Arc<Mutex<State>>) -> Self {
        Self { shared: Arc::clone(shared), lanes, role, state }
    }

    /// Goes on with another lane: what was given to the one before has to be waited for there.
    fn turn_to(state: &mut State, lane: usize) {
        if state.lane == lane {
            return;
        }
        let before = Point { lane: state.lane, value: state.last };
        state.lane = lane;
        // In order there already.
        state.last = state.waits.get_mut(lane).map_or(0, std::mem::take);
        Self::after(state, before);
    }

    /// Records a launch in the stream's turn. It may wait in a batch for others.
    pub(super) fn launch(&self, run: &Run<'_>) -> Result<Point> {
        let mut state = lock(&self.state);
        Self::turn_to(&mut state, self.lanes.kernels);
        self.order(&mut state);
        let waits = self.waits(&state)?;
        let lane = self.shared.lane(state.lane);
        let value = lane.launch(&self.shared.core, &waits, run)?;
        Ok(self.given(&mut state, &waits, value))
    }

    /// Submits one command buffer in the stream's turn.
    pub(super) fn submit(&self, record: impl FnOnce(&mut Recording<'_>)) -> Result<Point> {
        self.submit_to(self.lanes.copies, record)
    }

    /// Submits one that stays within the device, where kernels run: families made for copies run at the link's rate, and
    /// within the device, a twentieth of what the others do.
    pub(super) fn submit_within(&self, record: impl FnOnce(&mut Recording<'_>)) -> Result<Point> {
        self.submit_to(self.lanes.kernels, record)
    }

    fn submit_to(&self, lane: usize, record: impl FnOnce(&mut Recording<'_>)) -> Result<Point> {
        let mut state = lock(&self.state);
        Self::turn_to(&mut state, lane);
        self.order(&mut state);
        self.submit_locked(&mut state, record)
    }

    fn submit_locked(&self, state: &mut State, record: impl FnOnce(&mut Recording<'_>)) -> Result<Point> {
        let waits = self.waits(state)?;
        let value = self.shared.lane(state.lane).submit(&self.shared.core, &waits, record)?;
        Ok(self.given(state, &waits, value))
    }

    /// What the next submission has to wait for.
    fn waits(&self, state: &State) -> Result<WaitList> {
        let mut waits = WaitList::default();
        for (lane, &value) in self.shared.lanes().iter().zip(&state.waits) {
            // Submits what is waited for, if it still lies in a batch.
            if !lane.is_reached(&self.shared.core, value)? {
                waits.push(lane, value);
            }
        }
        Ok(waits)
    }

    /// Notes what the stream was given.
    fn given(&self, state: &mut State, waits: &WaitList, value: u64) -> Point {
        add(&self.shared.core.counters.waits_submitted, waits.len() as u64);
        state.waits = Waits::default();
        state.last = value;
        let lane = self.shared.lane(state.lane);
        match self.role {
            Role::Default => _ = lane.default.fetch_max(value, Ordering::AcqRel),
            Role::Blocking => _ = lane.blocking.fetch_max(value, Ordering::AcqRel),
            Role::NonBlocking => {}
        }
        Point { lane: state.lane, value }
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
            Self::after(state, Point { lane: index, value: before });
        }
    }

    fn after(state: &mut State, point: Point) {
        if point.lane == state.lane {
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
        let needs_nothing = point.lane == state.lane
            || self.shared.lane(point.lane).is_reached(&self.shared.core, point.value)?;
        if needs_nothing {
            add(&counters.waits_elided, 1);
        }
        if point.lane == state.lane || !needs_nothing {
            Self::after(&mut state, point);
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
            return Ok(Point { lane: state.lane, value: state.last });
        }
        // Other lanes are still waited for: a submission that does nothing else carries the waits.
        self.submit_locked(&mut state, |_| ())
    }

    /// Whether all that the stream was given has run.
    pub(super) fn is_idle(&self) -> Result<bool> {
        let core = &self.shared.core;
        core.check("querying a Vulkan stream")?;
        let (own, waits) = self.targets();
        let mut is_idle = self.shared.lane(own.lane).is_reached(core, own.value)?;
        for (lane, &value) in self.shared.lanes().iter().zip(&waits) {
            is_idle = is_idle && lane.is_reached(core, value)?;
        }
        Ok(is_idle)
    }

    /// Waits on the host until all that the stream was given has run.
    pub(super) fn synchronize(&self) -> Result<()> {
        let core = &self.shared.core;
        core.check("waiting for a Vulkan stream")?;
        let (own, waits) = self.targets();
        self.shared.lane(own.lane).wait(core, own.value)?;
        for (lane, &value) in self.shared.lanes().iter().zip(&waits) {
            lane.wait(core, value)?;
        }
        Ok(())
    }

    /// What the stream was given, and what it waits for. What the default stream and the blocking ones were
    /// given meanwhile is theirs: only the next submission comes after it.
    fn targets(&self) -> (Point, Waits) {
        let state = lock(&self.state);
        (Point { lane: state.lane, value: state.last }, state.waits)
    }
}
