//! What happens in a cache, told to whoever subscribed; nobody is waited for.

use crate::Key;
use crate::stats::layout::Counter;
use crate::stats::{Cause, Counters, LogKind};
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One change of what is resident.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheEvent {
    /// What happened.
    pub kind: LogKind,
    /// Why.
    pub cause: Cause,
    /// To which group.
    pub key: Key,
    /// In which slot.
    pub slot: u32,
    /// When, ns since the counters were set up.
    pub time_ns: u64,
}

/// A bounded channel of events. What does not fit is dropped and counted.
#[derive(Debug)]
pub struct Subscription {
    events: Receiver<CacheEvent>,
    dropped: Arc<AtomicU64>,
}

impl Subscription {
    /// The events; the channel closes with the cache.
    #[must_use]
    pub fn events(&self) -> &Receiver<CacheEvent> {
        &self.events
    }

    /// Events that this subscription was too slow for.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// Everyone who subscribed.
#[derive(Debug, Default)]
pub(super) struct Subscribers(Vec<(Sender<CacheEvent>, Arc<AtomicU64>)>);

impl Subscribers {
    pub fn add(&mut self, capacity: usize) -> Subscription {
        let (sender, events) = bounded(capacity.max(1));
        let dropped = Arc::new(AtomicU64::new(0));
        self.0.push((sender, Arc::clone(&dropped)));
        Subscription { events, dropped }
    }

    pub fn tell(&mut self, counters: &Counters, kind: LogKind, cause: Cause, key: Key, slot: u32) {
        if self.0.is_empty() {
            return;
        }
        let event = CacheEvent { kind, cause, key, slot, time_ns: counters.now_ns() };
        self.0.retain(|(sender, dropped)| match sender.try_send(event) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                dropped.fetch_add(1, Ordering::Relaxed);
                counters.add(Counter::EventsDropped, 1);
                true
            }
            Err(TrySendError::Disconnected(_)) => false,
        });
    }

    pub fn close(&mut self) {
        self.0.clear();
    }
}

impl super::Core {
    /// A channel that holds up to `capacity` events.
    pub fn subscribe(&mut self, capacity: usize) -> Subscription {
        self.events.add(capacity)
    }
}
