//! The best set that never changes.

use super::{Events, Outcome};

/// The groups used most over all events are kept for good, `slots` of them; everything else is a miss every time. The
/// first load of each kept group is a miss too. It needs to know the future, but not when.
#[must_use]
pub fn frozen_best(events: &Events, slots: usize) -> Outcome {
    let mut uses = vec![0u64; events.item_count()];
    events.sets().flatten().for_each(|&item| uses[item as usize] += 1);
    let mut order: Vec<usize> = (0..uses.len()).collect();
    order.sort_by_key(|&item| (std::cmp::Reverse(uses[item]), item));
    let requested: u64 = uses.iter().sum();
    let kept = order.iter().take(slots).filter(|&&item| uses[item] > 0);
    let hits = kept.clone().map(|&item| uses[item] - 1).sum();
    let loads = kept.clone().count() as u64;
    Outcome {
        events: events.len() as u64,
        tokens: events.tokens,
        requested,
        hits,
        misses: requested - hits,
        cold_misses: loads,
        loads,
        loaded_bytes: kept.map(|&item| events.bytes[item]).sum(),
        ..Outcome::default()
    }
}
