//! The batching rule: when the open command buffer is committed.

/// Why a command buffer was committed, or that it was not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Commit {
    /// The device has nothing of this lane to do: waiting would only make it idle.
    DeviceIsIdle,
    /// It holds as many launches as a batch may.
    Full,
    /// More launches may join it.
    NotYet,
}

/// After a launch: `launches` are in the open command buffer, of at most `batch_max`; `is_previous_over` says whether the
/// one before has completed, or there is none.
pub(super) fn after_launch(launches: usize, batch_max: usize, is_previous_over: bool) -> Commit {
    if is_previous_over {
        Commit::DeviceIsIdle
    } else if launches >= batch_max {
        Commit::Full
    } else {
        Commit::NotYet
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_device_is_fed_at_once_and_a_busy_one_in_batches() {
        assert_eq!(after_launch(1, 32, true), Commit::DeviceIsIdle);
        assert_eq!(after_launch(1, 32, false), Commit::NotYet);
        assert_eq!(after_launch(31, 32, false), Commit::NotYet);
        assert_eq!(after_launch(32, 32, false), Commit::Full);
        assert_eq!(after_launch(1, 1, false), Commit::Full);
    }
}
