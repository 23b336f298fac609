//! Why keys were missed, what other numbers of slots would buy, and what is wrong with this cache.

use serde_json::{Value, json};
use spoc_cache::policy::PolicyKind;
use spoc_cache::stats::Reader;
use spoc_cache::stats::layout::Counter;
use spoc_tools::units;

use crate::table::Table;

/// A cache that nobody asked for so long is said to be unused.
const INERT_AFTER_NS: u64 = 10_000_000_000;

fn percent(part: u64, whole: u64) -> Value {
    if whole == 0 { Value::Null } else { json!(100.0 * part as f64 / whole as f64) }
}

/// Misses by reason.
pub fn misses(reader: &Reader<'_>) -> Table {
    let count = |counter| reader.counter(counter);
    let (requested, misses) = (count(Counter::Requested), count(Counter::Misses));
    let late = count(Counter::SpeculationLate);
    let mut table = Table::new(&["reason", "count", "percent_of_misses", "meaning"]);
    for (reason, number, meaning) in [
        ("cold", count(Counter::MissesCold), "never asked for before"),
        (
            "capacity",
            count(Counter::MissesCapacity),
            "a poolful or more was loaded since it was last asked for",
        ),
        ("policy", count(Counter::MissesPolicy), "less was loaded since: another victim would have kept it"),
        ("loading", count(Counter::Joins), "its load was already running"),
    ] {
        table.push(vec![json!(reason), json!(number), percent(number, misses), json!(meaning)]);
    }
    let hits = count(Counter::Hits);
    table.remarks.push(format!("{requested} requested: {hits} hits, {misses} misses"));
    table.remarks.push(format!("of those loading, {late} had been read ahead, too late"));
    table
}

/// What other numbers of slots would have found, by the sample that the cache follows.
pub fn advise(reader: &Reader<'_>) -> Table {
    let slots = reader.slots() as u64;
    let header = reader.header();
    let curve = reader.curve();
    let rate = |hits: u64, requested: u64| 100.0 * hits as f64 / requested as f64;
    let here = curve.iter().find(|point| point.slots == slots).map(|point| rate(point.hits, point.requested));
    let mut table = Table::new(&["slots", "memory", "estimated_hit_percent", "points_gained"]);
    for point in &curve {
        let found = rate(point.hits, point.requested);
        table.push(vec![
            json!(point.slots),
            json!(units::bytes(point.slots.saturating_mul(header.stride_bytes))),
            json!(found),
            here.map_or(Value::Null, |here| json!(found - here)),
        ]);
    }
    let (hits, misses) = (reader.counter(Counter::Hits), reader.counter(Counter::Misses));
    let all = hits.saturating_add(misses);
    if all > 0 {
        table.remarks.push(format!("found with {slots} slots so far: {:.1} %", rate(hits, all)));
    }
    match curve.iter().map(|point| point.requested).max() {
        None => table.remarks.push("too little was asked for to say what other sizes would buy".into()),
        Some(followed) => table.remarks.push(format!(
            "an estimate from the {followed} latest requests of a sample of keys, replayed with the policy cycle: trust the \
             differences more than the values"
        )),
    }
    table.remarks.extend(diagnose(reader));
    table
}

/// What is wrong, a line each; nothing for a cache in order.
pub fn diagnose(reader: &Reader<'_>) -> Vec<String> {
    let header = reader.header();
    let slots = reader.slots() as u64;
    let count = |counter| reader.counter(counter);
    let mut found = Vec::new();
    if slots == 0 {
        return found;
    }
    if header.floor_layer > slots {
        found.push(format!(
            "floor: one set wanted {} groups, the pool has {slots} slots: it is served in waves",
            header.floor_layer
        ));
    } else if header.floor_round > slots {
        let lru = header.policy == PolicyKind::Lru as u64;
        let effect =
            if lru { "with lru nothing is found" } else { "hits are below what locality would give" };
        found.push(format!(
            "floor: one round of the layers wants {} groups, the pool has {slots} slots: {effect}",
            header.floor_round
        ));
    }
    let requested = count(Counter::Requested);
    if requested == 0 && header.heartbeat_ns > INERT_AFTER_NS {
        found.push(format!("inert: no request in {:.0} s", units::seconds(header.heartbeat_ns)));
    } else if requested > slots.saturating_mul(4) && count(Counter::Hits) == 0 {
        found.push("inert: no request was ever a hit".into());
    }
    if header.governor_off {
        found.push("governor: reading ahead is off, less than half of it was of use".into());
    }
    found
}

/// Counters then and now: `then` is what `cachestat --once --json` printed.
pub fn diff(reader: &Reader<'_>, then: &Value) -> Option<Table> {
    let counters = then.get("counters")?.as_object()?;
    let mut table = Table::new(&["counter", "then", "now", "difference"]);
    for counter in Counter::ALL {
        let now = reader.counter(counter);
        let before = counters.get(counter.as_str()).and_then(Value::as_u64).unwrap_or(0);
        if now != before {
            let difference = i128::from(now) - i128::from(before);
            let difference = i64::try_from(difference).map_or(Value::Null, |difference| json!(difference));
            table.push(vec![json!(counter.as_str()), json!(before), json!(now), difference]);
        }
    }
    Some(table)
}
