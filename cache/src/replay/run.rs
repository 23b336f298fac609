//! One policy on one sequence of events.

use super::{Events, ReplayError};
use crate::policy::{Policy, PolicyKind, Scope, reload_weight};

/// How to replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Slots of the pool.
    pub slots: usize,
    /// Which policy.
    pub policy: PolicyKind,
    /// What competes for a slot. Per layer every layer has `slots ÷ layers`, strictly.
    pub scope: Scope,
    /// At most so many loads an event; other misses are computed elsewhere.
    pub inserts_max: Option<usize>,
    /// Whether larger groups are worth more to keep; without it every group counts alike.
    pub weigh_bytes: bool,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Events.
    pub events: u64,
    /// Tokens they served.
    pub tokens: u64,
    /// Members of all sets.
    pub requested: u64,
    /// Members that were resident as their event began.
    pub hits: u64,
    /// Members that were not.
    pub misses: u64,
    /// Misses of items that were never resident before.
    pub cold_misses: u64,
    /// Misses that were loaded.
    pub loads: u64,
    /// Their bytes.
    pub loaded_bytes: u64,
    /// Groups that left.
    pub evictions: u64,
    /// Loads that found no slot beside their own set, and were served in a further wave.
    pub overflows: u64,
}

impl Outcome {
    /// Hits of all requested, 0 to 1; 0 for nothing.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        if self.requested == 0 { 0.0 } else { self.hits as f64 / self.requested as f64 }
    }

    /// Bytes loaded for each token.
    #[must_use]
    pub fn bytes_per_token(&self) -> f64 {
        if self.tokens == 0 { 0.0 } else { self.loaded_bytes as f64 / self.tokens as f64 }
    }
}

/// Contents of a pool: what is resident, and how much of each share is used.
pub(super) struct Pool {
    pub resident: Vec<bool>,
    seen: Vec<bool>,
    used: Vec<usize>,
    share: usize,
    per_layer: bool,
}

impl Pool {
    pub fn new(events: &Events, slots: usize, scope: Scope) -> Result<Pool, ReplayError> {
        let layers = events.layers().max(1);
        let per_layer = scope == Scope::Layer;
        let share = if per_layer { slots / layers } else { slots };
        match (share, slots) {
            (0, 0) => Err(ReplayError::NoSlots),
            (0, slots) => Err(ReplayError::SharesTooSmall { slots, layers }),
            _ => Ok(Pool {
                resident: vec![false; events.item_count()],
                seen: vec![false; events.item_count()],
                used: vec![0; if per_layer { layers } else { 1 }],
                share,
                per_layer,
            }),
        }
    }

    fn part(&mut self, position: u32) -> &mut usize {
        &mut self.used[if self.per_layer { position as usize } else { 0 }]
    }

    pub fn is_full(&mut self, position: u32) -> bool {
        *self.part(position) >= self.share
    }

    pub fn enter(&mut self, item: u32, position: u32) {
        self.resident[item as usize] = true;
        self.seen[item as usize] = true;
        *self.part(position) += 1;
    }

    pub fn leave(&mut self, item: u32, position: u32) {
        self.resident[item as usize] = false;
        *self.part(position) -= 1;
    }

    /// Judges a set. Answers its misses, in order.
    pub fn judge(&mut self, set: &[u32], outcome: &mut Outcome, misses: &mut Vec<u32>) {
        misses.clear();
        misses.extend(set.iter().filter(|&&item| !self.resident[item as usize]));
        let (wanted, missed) = (set.len() as u64, misses.len() as u64);
        outcome.events += 1;
        outcome.requested += wanted;
        outcome.hits += wanted - missed;
        outcome.misses += missed;
        outcome.cold_misses += misses.iter().filter(|&&item| !self.seen[item as usize]).count() as u64;
    }
}

/// A miss that need not be loaded is, if its next want is so many times nearer than that of what would leave: below
/// that loads buy next to no hits.
const WORTH_A_LOAD: f64 = 2.0;

/// Replays a policy from an empty pool.
///
/// # Errors
/// No slots, or per layer fewer than layers.
pub fn replay(events: &Events, options: &Options) -> Result<Outcome, ReplayError> {
    let mut pool = Pool::new(events, options.slots, options.scope)?;
    let mut policy = options.policy.create_for(options.scope);
    policy.add_model(&events.positions);
    policy.set_capacity(options.slots);
    if options.weigh_bytes {
        weigh(events, policy.as_mut());
    }
    let mut outcome = Outcome { tokens: events.tokens, ..Outcome::default() };
    let (mut misses, mut entered) = (Vec::new(), Vec::new());
    for set in events.sets() {
        policy.visit(set);
        pool.judge(set, &mut outcome, &mut misses);
        if let Some(most) = options.inserts_max {
            // What will be wanted soonest is worth a load first.
            misses.sort_by(|&a, &b| policy.distance(a).total_cmp(&policy.distance(b)));
            misses.truncate(most);
        }
        for &item in set.iter().filter(|&&item| pool.resident[item as usize]) {
            policy.remove(item);
            entered.push(item);
        }
        for &item in &misses {
            if options.inserts_max.is_some() && !pays(events, &mut pool, policy.as_mut(), item) {
                continue;
            }
            outcome.loads += 1;
            outcome.loaded_bytes += events.bytes[item as usize];
            if make_room(events, &mut pool, policy.as_mut(), item, &mut outcome) {
                pool.enter(item, events.positions[item as usize]);
                entered.push(item);
            }
        }
        entered.drain(..).for_each(|item| policy.insert(item));
    }
    Ok(outcome)
}

/// As the live cache does when a model is registered.
fn weigh(events: &Events, policy: &mut dyn Policy) {
    let mean = events.bytes.iter().sum::<u64>() as f64 / events.bytes.len().max(1) as f64;
    for (&bytes, item) in events.bytes.iter().zip(0..) {
        policy.weigh(item, reload_weight(bytes, mean));
    }
}

/// Whether a miss that need not be loaded is worth what would leave for it.
fn pays(events: &Events, pool: &mut Pool, policy: &mut dyn Policy, item: u32) -> bool {
    if !pool.is_full(events.positions[item as usize]) {
        return true;
    }
    let (distance, victim) = (policy.distance(item), policy.victim_for(item));
    victim.is_some_and(|victim| distance == 0.0 || policy.distance(victim) > WORTH_A_LOAD * distance)
}

/// False if only members of the set itself are there: the item is served in a further wave and not kept.
fn make_room(
    events: &Events,
    pool: &mut Pool,
    policy: &mut dyn Policy,
    item: u32,
    outcome: &mut Outcome,
) -> bool {
    let position = events.positions[item as usize];
    if !pool.is_full(position) {
        return true;
    }
    let victim = policy.victim_for(item);
    let victim = victim.filter(|&victim| !pool.per_layer || events.positions[victim as usize] == position);
    let Some(victim) = victim else {
        outcome.overflows += 1;
        return false;
    };
    policy.remove(victim);
    policy.left(victim);
    pool.leave(victim, events.positions[victim as usize]);
    outcome.evictions += 1;
    true
}
