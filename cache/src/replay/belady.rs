//! The optimum that knows the future.

use super::run::Pool;
use super::{Events, Outcome, ReplayError};
use crate::policy::Scope;
use std::collections::BTreeSet;

/// Whether a miss must be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bypass {
    /// Every member of a set holds a slot, as the cache's own misses do: the fair end for a policy.
    Never,
    /// A miss that would be wanted later than everything kept is used and not kept.
    Allowed,
}

const NEVER: u32 = u32::MAX;

/// Belady's replacement, from an empty pool: what is wanted farthest in the future leaves.
///
/// # Errors
/// As [`replay`](super::replay).
pub fn belady(events: &Events, slots: usize, scope: Scope, bypass: Bypass) -> Result<Outcome, ReplayError> {
    let mut pool = Pool::new(events, slots, scope)?;
    let next = next_uses(events);
    let parts = if scope == Scope::Layer { events.layers() } else { 1 };
    let part = |item: u32| if parts > 1 { events.positions[item as usize] as usize } else { 0 };
    // (next use, item) of everything resident; within one use, the higher number leaves first.
    let mut order: Vec<BTreeSet<(u32, u32)>> = vec![BTreeSet::new(); parts];
    let mut due = vec![NEVER; events.item_count()];
    let mut outcome = Outcome { tokens: events.tokens, ..Outcome::default() };
    let (mut misses, mut from) = (Vec::new(), 0);
    for set in events.sets() {
        pool.judge(set, &mut outcome, &mut misses);
        for (&item, &later) in set.iter().zip(&next[from..]) {
            let before = std::mem::replace(&mut due[item as usize], later);
            if pool.resident[item as usize] {
                order[part(item)].remove(&(before, item));
                // With bypass a member may leave for another one once the event is over.
                if bypass == Bypass::Allowed {
                    order[part(item)].insert((later, item));
                }
            }
        }
        from += set.len();
        if bypass == Bypass::Allowed {
            // The soonest wanted are offered first, so that each is compared with what stays.
            misses.sort_unstable_by_key(|&item| (due[item as usize], item));
        }
        for &item in &misses {
            outcome.loads += 1;
            outcome.loaded_bytes += events.bytes[item as usize];
            let position = events.positions[item as usize];
            if pool.is_full(position) {
                let farthest = order[part(item)].last().copied();
                let leaves = match (bypass, farthest) {
                    (_, None) => None,
                    (Bypass::Never, Some(farthest)) => Some(farthest),
                    (Bypass::Allowed, Some(farthest)) => {
                        (farthest.0 > due[item as usize]).then_some(farthest)
                    }
                };
                let Some(victim) = leaves else {
                    outcome.overflows += u64::from(bypass == Bypass::Never);
                    continue;
                };
                order[part(item)].remove(&victim);
                pool.leave(victim.1, events.positions[victim.1 as usize]);
                outcome.evictions += 1;
            }
            pool.enter(item, position);
            if bypass == Bypass::Allowed {
                order[part(item)].insert((due[item as usize], item));
            }
        }
        if bypass == Bypass::Never {
            for &item in set.iter().filter(|&&item| pool.resident[item as usize]) {
                order[part(item)].insert((due[item as usize], item));
            }
        }
    }
    Ok(outcome)
}

/// For every member of every set, the number of the next event that wants it.
#[allow(clippy::cast_possible_truncation)] // a trace of 2³² events does not fit memory
fn next_uses(events: &Events) -> Vec<u32> {
    let mut next = vec![NEVER; events.item_count()];
    let mut later: Vec<u32> = Vec::new();
    for (number, set) in events.sets().enumerate().rev() {
        for &item in set.iter().rev() {
            later.push(std::mem::replace(&mut next[item as usize], number as u32));
        }
    }
    later.reverse();
    later
}
