//! Every metric there is. docs/metrics.md says the same in words; a test compares.

use spoc_cache::stats::layout::Counter;

/// How a metric behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only rises; its samples end in `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by upper bound.
    Histogram,
}

/// A metric.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Its name, without the `_total` of a counter's samples.
    pub name: &'static str,
    /// How it behaves.
    pub kind: Kind,
    /// What its samples are told apart by.
    pub labels: &'static [&'static str],
    /// What it counts, in a line.
    pub help: &'static str,
}

const fn family(
    name: &'static str,
    kind: Kind,
    labels: &'static [&'static str],
    help: &'static str,
) -> Family {
    Family { name, kind, labels, help }
}

const SOURCE: &[&str] = &["arena", "device"];

/// What a counter of a statistics page is called here, and the value of its last label if it has one.
///
/// Exhaustive, so that a new counter gets a name or does not compile.
#[must_use]
pub const fn of_counter(counter: Counter) -> (&'static str, Option<&'static str>) {
    match counter {
        Counter::Requested => ("spoc_requested_groups", None),
        Counter::Hits => ("spoc_hits", None),
        Counter::Misses => ("spoc_misses", None),
        Counter::MissesCold => ("spoc_misses_by_reason", Some("cold")),
        Counter::MissesCapacity => ("spoc_misses_by_reason", Some("capacity")),
        Counter::MissesPolicy => ("spoc_misses_by_reason", Some("policy")),
        Counter::Joins => ("spoc_misses_by_reason", Some("loading")),
        Counter::Acquires => ("spoc_acquires", None),
        Counter::Queued => ("spoc_acquires_queued", None),
        Counter::AcquiresFailed => ("spoc_faults", Some("acquire")),
        Counter::StallNs => ("spoc_stall_seconds", None),
        Counter::LeasesGiven => ("spoc_leases_given", None),
        Counter::LeasesReleased => ("spoc_leases_released", None),
        Counter::FillsStarted => ("spoc_fills", Some("started")),
        Counter::FillsDone => ("spoc_fills", Some("done")),
        Counter::FillsFailed => ("spoc_faults", Some("fill")),
        Counter::FillsCancelled => ("spoc_fills", Some("cancelled")),
        Counter::FilledBytes => ("spoc_filled_bytes", None),
        Counter::Evictions => ("spoc_evictions", None),
        Counter::EvictionsDraining => ("spoc_evictions_draining", None),
        Counter::EvictedBytes => ("spoc_evicted_bytes", None),
        Counter::Chunks => ("spoc_chunks", None),
        Counter::ReadBytes => ("spoc_moved_bytes", Some("disk")),
        Counter::CopiedBytes => ("spoc_moved_bytes", Some("device")),
        Counter::Copies => ("spoc_copies", None),
        Counter::WaitReadsNs => ("spoc_stage_seconds", Some("wait_read")),
        Counter::WaitCopiesNs => ("spoc_stage_seconds", Some("wait_copy")),
        Counter::WaitChunksNs => ("spoc_stage_seconds", Some("wait_chunk")),
        Counter::EnqueueNs => ("spoc_stage_seconds", Some("enqueue")),
        Counter::ReleaseWaits => ("spoc_release_waits", None),
        Counter::StreamErrors => ("spoc_faults", Some("stream")),
        Counter::SpeculationIssued => ("spoc_speculation", Some("issued")),
        Counter::SpeculationUseful => ("spoc_speculation", Some("useful")),
        Counter::SpeculationLate => ("spoc_speculation", Some("late")),
        Counter::SpeculationWasted => ("spoc_speculation", Some("wasted")),
        Counter::SpeculationRefused => ("spoc_speculation", Some("refused")),
        Counter::SpeculationWastedBytes => ("spoc_speculation_wasted_bytes", None),
        Counter::EventsDropped => ("spoc_events_dropped", None),
        Counter::TierHits => ("spoc_tier_hits", None),
        Counter::TierOutBytes => ("spoc_tier_moved_bytes", Some("device")),
        Counter::TierInBytes => ("spoc_tier_moved_bytes", Some("host")),
        Counter::TierEvictions => ("spoc_tier_evictions", None),
        Counter::TierDroppedBusy => ("spoc_tier_dropped", Some("busy")),
        Counter::TierDroppedFull => ("spoc_tier_dropped", Some("full")),
        Counter::TierDroppedLeaving => ("spoc_tier_dropped", Some("leaving")),
        Counter::TierDroppedFailed => ("spoc_tier_dropped", Some("failed")),
        Counter::TierUnpinnedBytes => ("spoc_tier_unpinned_bytes", None),
    }
}

/// Whether a counter counts nanoseconds, which become seconds here.
#[must_use]
pub fn is_time(counter: Counter) -> bool {
    counter.as_str().ends_with("_ns")
}

/// Every metric, in the order in which they are written.
pub const FAMILIES: &[Family] = &[
    family("spoc_build_info", Kind::Gauge, &["version"], "1, with the version that runs"),
    family("spoc_uptime_seconds", Kind::Gauge, &[], "Time since the start"),
    family(
        "spoc_start_seconds",
        Kind::Gauge,
        &[],
        "Time from the start to ready, without the GPU drivers' own initialisation",
    ),
    family("spoc_draining", Kind::Gauge, &[], "1 while new work is refused"),
    family(
        "spoc_requests",
        Kind::Counter,
        &["method", "outcome"],
        "Calls of the control plane, by ok or the error's kind",
    ),
    family(
        "spoc_request_seconds",
        Kind::Histogram,
        &["method"],
        "Time until a call was answered; of a stream, until it began",
    ),
    family("spoc_sessions", Kind::Gauge, &["state"], "Sessions of clients"),
    family("spoc_clients_lost", Kind::Counter, &[], "Clients that died holding leases"),
    family("spoc_models", Kind::Gauge, &[], "Models registered"),
    family("spoc_images", Kind::Gauge, &["state"], "Images of whole models and of clients"),
    family("spoc_leases", Kind::Gauge, &[], "Leases out"),
    family("spoc_held_bytes", Kind::Gauge, &[], "Bytes of leases out; what two hold counts twice"),
    family(
        "spoc_bytes",
        Kind::Gauge,
        &["device", "tier", "use"],
        "Memory by tier and by what it is used for",
    ),
    family("spoc_slots", Kind::Gauge, &["arena", "device", "state"], "Slots by state"),
    family("spoc_in_flight_bytes", Kind::Gauge, SOURCE, "Bytes of the groups that are loading"),
    family("spoc_waiting_sets", Kind::Gauge, SOURCE, "Sets of groups that wait for room"),
    family("spoc_requested_groups", Kind::Counter, SOURCE, "Groups asked for: hits and misses"),
    family("spoc_hits", Kind::Counter, SOURCE, "Groups asked for that were resident"),
    family("spoc_misses", Kind::Counter, SOURCE, "Groups asked for that were not"),
    family(
        "spoc_misses_by_reason",
        Kind::Counter,
        &["arena", "device", "reason"],
        "Misses: cold, capacity, policy, or loading already",
    ),
    family("spoc_acquires", Kind::Counter, SOURCE, "Sets of groups served, or refused for their width"),
    family("spoc_acquires_queued", Kind::Counter, SOURCE, "Sets that had to wait for room"),
    family(
        "spoc_stall_seconds",
        Kind::Counter,
        SOURCE,
        "Time that acquires waited for groups, all waiters together",
    ),
    family(
        "spoc_stage_seconds",
        Kind::Counter,
        &["arena", "device", "stage"],
        "Where the time of loads went: waiting for reads, for copies, for a free chunk; enqueuing",
    ),
    family(
        "spoc_moved_bytes",
        Kind::Counter,
        &["arena", "device", "tier"],
        "Bytes read from disk, and bytes copied to the device",
    ),
    family("spoc_filled_bytes", Kind::Counter, SOURCE, "Bytes of groups loaded"),
    family("spoc_evicted_bytes", Kind::Counter, SOURCE, "Bytes of groups evicted"),
    family(
        "spoc_fills",
        Kind::Counter,
        &["arena", "device", "event"],
        "Loads of groups: started, done, cancelled",
    ),
    family("spoc_evictions", Kind::Counter, SOURCE, "Groups evicted"),
    family("spoc_tier_hits", Kind::Counter, SOURCE, "Loads of groups that the host tier served"),
    family(
        "spoc_tier_moved_bytes",
        Kind::Counter,
        &["arena", "device", "tier"],
        "Bytes copied from the host tier to the device, and from the device to the host tier",
    ),
    family("spoc_tier_evictions", Kind::Counter, SOURCE, "Groups that left the host tier for others"),
    family(
        "spoc_tier_dropped",
        Kind::Counter,
        &["arena", "device", "reason"],
        "Groups that left their slot and were not kept: busy, full, leaving, failed",
    ),
    family(
        "spoc_tier_unpinned_bytes",
        Kind::Counter,
        SOURCE,
        "Bytes that the host tier was to have and has not",
    ),
    family(
        "spoc_evictions_draining",
        Kind::Counter,
        SOURCE,
        "Groups evicted while a launch or a client still read them",
    ),
    family("spoc_leases_given", Kind::Counter, SOURCE, "Leases of slots given"),
    family("spoc_leases_released", Kind::Counter, SOURCE, "Leases of slots ended"),
    family(
        "spoc_faults",
        Kind::Counter,
        &["arena", "device", "kind"],
        "What failed: a fill, an acquire for one, the copy stream",
    ),
    family("spoc_chunks", Kind::Counter, SOURCE, "Chunks of the staging ring whose copies were enqueued"),
    family("spoc_copies", Kind::Counter, SOURCE, "Copies enqueued"),
    family(
        "spoc_release_waits",
        Kind::Counter,
        SOURCE,
        "Device waits of the copy stream for releases of evicted slots",
    ),
    family(
        "spoc_speculation",
        Kind::Counter,
        &["arena", "device", "event"],
        "Loads on a hint: issued, useful, late, wasted, refused",
    ),
    family(
        "spoc_speculation_wasted_bytes",
        Kind::Counter,
        SOURCE,
        "Bytes of loads on a hint that nobody wanted",
    ),
    family("spoc_events_dropped", Kind::Counter, SOURCE, "Events that a watcher was too slow for"),
];

/// The family of this name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_has_a_family_with_the_labels_it_needs() {
        for counter in Counter::ALL {
            let (name, last) = of_counter(counter);
            let family = named(name).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(family.kind, Kind::Counter, "{name}");
            assert_eq!(family.labels.len(), 2 + usize::from(last.is_some()), "{name}");
            assert_eq!(is_time(counter), name.ends_with("_seconds"), "{name}");
            assert_eq!(counter.as_str().ends_with("_bytes"), name.ends_with("_bytes"), "{name}");
        }
    }

    #[test]
    fn names_are_unique_and_plain() {
        for (index, family) in FAMILIES.iter().enumerate() {
            assert!(FAMILIES[..index].iter().all(|other| other.name != family.name), "{}", family.name);
            assert!(family.name.starts_with("spoc_") && !family.name.ends_with("_total"), "{}", family.name);
            assert!(!family.help.ends_with('.'), "{}", family.help);
        }
    }
}
