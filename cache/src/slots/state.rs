//! States of a slot and the only place that says which steps lead where.

use std::fmt;

/// What a slot is doing. The numbers are those of the statistics page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// Holds nothing and may be filled.
    Free = 0,
    /// A fill is running; nobody may read it.
    Loading = 1,
    /// Holds its group; no lease, no launch that may still read it.
    Resident = 2,
    /// At least one lease is out.
    Leased = 3,
    /// Every lease is back, but launches recorded at release may still read it.
    Draining = 4,
    /// Its fill failed or was abandoned; copies into it may still run.
    Failed = 5,
}

impl State {
    /// Every state, in the order of their numbers.
    pub const ALL: [State; 6] =
        [State::Free, State::Loading, State::Resident, State::Leased, State::Draining, State::Failed];

    /// The state with this number on a statistics page.
    #[must_use]
    pub fn from_number(number: u8) -> Option<State> {
        State::ALL.get(usize::from(number)).copied()
    }

    /// Lower-case name, as the tools print it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            State::Free => "free",
            State::Loading => "loading",
            State::Resident => "resident",
            State::Leased => "leased",
            State::Draining => "draining",
            State::Failed => "failed",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What can happen to a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// A fill takes the slot.
    Reserve,
    /// The last copy of the fill is enqueued and its event recorded.
    Publish,
    /// The fill failed, or nobody wants it any more.
    Abandon,
    /// A lease is taken.
    Lease,
    /// A lease comes back while others are still out.
    ReleaseShared,
    /// The last lease comes back with events that have not fired.
    ReleaseLast,
    /// The last lease comes back and nothing was launched under it.
    ReleaseUnused,
    /// The last event that the slot waited for has fired.
    Drained,
    /// The group leaves; its slot may be filled (in stream order after its releases).
    Evict,
    /// The device reported that copies into the slot went wrong after it was published.
    Corrupt,
    /// No copy into a failed slot runs any more and no lease is out.
    Reclaim,
}

#[cfg(test)]
impl Step {
    /// Every step.
    pub const ALL: [Step; 11] = [
        Step::Reserve,
        Step::Publish,
        Step::Abandon,
        Step::Lease,
        Step::ReleaseShared,
        Step::ReleaseLast,
        Step::ReleaseUnused,
        Step::Drained,
        Step::Evict,
        Step::Corrupt,
        Step::Reclaim,
    ];
}

/// Where `step` leads from `state`; `None` if it must not happen there.
///
/// A failed slot keeps its state while leases on it come back: they were given before the device said
/// that the data is bad, and their launches must still end before the memory is used again.
#[must_use]
pub fn next(state: State, step: Step) -> Option<State> {
    use State::{Draining, Failed, Free, Leased, Loading, Resident};
    match (state, step) {
        (Free, Step::Reserve) => Some(Loading),
        (Loading, Step::Publish) => Some(Resident),
        (Loading, Step::Abandon) => Some(Failed),
        (Resident | Leased | Draining, Step::Lease) => Some(Leased),
        (Leased, Step::ReleaseShared) => Some(Leased),
        (Leased, Step::ReleaseLast) => Some(Draining),
        (Leased, Step::ReleaseUnused) => Some(Resident),
        (Draining, Step::Drained) => Some(Resident),
        (Resident | Draining, Step::Evict) => Some(Free),
        (Resident | Leased | Draining, Step::Corrupt) => Some(Failed),
        (Failed, Step::ReleaseShared | Step::ReleaseLast | Step::ReleaseUnused | Step::Drained) => {
            Some(Failed)
        }
        (Failed, Step::Reclaim) => Some(Free),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One row a state, one letter a step in the order of `Step::ALL`; `.` is forbidden.
    const TABLE: [(State, &str); 6] = [
        //                 R P A L s l u d E C r
        (State::Free, "     L . . . . . . . . . ."),
        (State::Loading, "  . R F . . . . . . . ."),
        (State::Resident, " . . . X . . . . - F ."),
        (State::Leased, "   . . . X X D R . . F ."),
        (State::Draining, " . . . X . . . R - F ."),
        (State::Failed, "   . . . . F F F F . . -"),
    ];

    fn named(letter: &str) -> Option<State> {
        match letter {
            "L" => Some(State::Loading),
            "R" => Some(State::Resident),
            "F" => Some(State::Failed),
            "X" => Some(State::Leased),
            "D" => Some(State::Draining),
            "-" => Some(State::Free),
            "." => None,
            other => panic!("letter {other}"),
        }
    }

    #[test]
    fn every_cell_of_the_transition_table() {
        for (state, row) in TABLE {
            let letters: Vec<&str> = row.split_whitespace().collect();
            assert_eq!(letters.len(), Step::ALL.len(), "row of {state}");
            for (step, letter) in Step::ALL.into_iter().zip(letters) {
                assert_eq!(next(state, step), named(letter), "{state} on {step:?}");
            }
        }
    }

    #[test]
    fn numbers_round_trip() {
        for state in State::ALL {
            assert_eq!(State::from_number(state as u8), Some(state));
        }
        assert_eq!(State::from_number(6), None);
    }
}
