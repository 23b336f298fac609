//! One line: what happened between two looks.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use spoc_cache::stats::layout::Counter;
use spoc_cache::stats::{Header, Reader, Snapshot};
use spoc_tools::out::write_line;

/// The heading of the columns.
pub const HEADER: &str =
    "     HITS     MISS   HIT%    LOADS     MB/s  STALL    EVICT INFLIGHT LEASED  FREE/SLOTS";
/// A writer shows life at least once a second; three missed beats are worth a word.
const SILENT: Duration = Duration::from_secs(3);

/// A page at one moment.
#[derive(Clone, Debug)]
pub struct Sample {
    unix: Duration,
    header: Header,
    counters: [u64; Counter::ALL.len()],
    snapshot: Snapshot,
    diagnostics: Vec<String>,
}

impl Sample {
    /// Reads the page.
    pub fn take(reader: &Reader<'_>) -> Sample {
        Sample {
            unix: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            header: reader.header(),
            counters: Counter::ALL.map(|counter| reader.counter(counter)),
            snapshot: reader.snapshot(),
            diagnostics: crate::advise::diagnose(reader),
        }
    }

    /// Slots, policy and who writes.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Slots by state, loads running, leases.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// How long the writer has shown no life, once that is worth a word.
    pub fn silent_for(&self) -> Option<Duration> {
        Some(self.heartbeat_age()).filter(|age| *age >= SILENT)
    }

    /// How long ago the writer last showed life.
    fn heartbeat_age(&self) -> Duration {
        let beat = Duration::from_nanos(self.header.created_unix_ns)
            .saturating_add(Duration::from_nanos(self.header.heartbeat_ns));
        self.unix.saturating_sub(beat)
    }
}

/// What happened between two samples.
#[derive(Debug)]
pub struct Interval {
    now: Sample,
    time: Duration,
    counted: [u64; Counter::ALL.len()],
}

impl Interval {
    /// From the making of the page to `now`.
    pub fn since_start(now: Sample) -> Interval {
        let time = now.unix.saturating_sub(Duration::from_nanos(now.header.created_unix_ns));
        Interval { counted: now.counters, time, now }
    }

    /// From `before` to `now`.
    pub fn between(before: &Sample, now: Sample) -> Interval {
        let mut counted = now.counters;
        for (count, earlier) in counted.iter_mut().zip(before.counters) {
            *count = count.saturating_sub(earlier);
        }
        Interval { counted, time: now.unix.saturating_sub(before.unix), now }
    }

    /// How much was counted.
    pub fn count(&self, counter: Counter) -> u64 {
        self.counted[counter as usize]
    }

    /// Per second; 0 for no time.
    pub fn rate(&self, amount: u64) -> f64 {
        let seconds = self.time.as_secs_f64();
        if seconds > 0.0 { amount as f64 / seconds } else { 0.0 }
    }

    /// Hits of all groups asked for; `None` if none was.
    pub fn hit_percent(&self) -> Option<f64> {
        let (hits, misses) = (self.count(Counter::Hits), self.count(Counter::Misses));
        // A damaged page may hold anything.
        let all = hits.saturating_add(misses);
        (all > 0).then(|| hits as f64 * 100.0 / all as f64)
    }

    /// Waiting for groups, all waiters together.
    pub fn stall_ms_per_s(&self) -> f64 {
        self.rate(self.count(Counter::StallNs)) / 1e6
    }

    /// As bytes move, not when a group is complete: a whole-model load shows too.
    pub fn mb_per_s(&self) -> f64 {
        self.rate(self.count(Counter::CopiedBytes)) / 1e6
    }

    /// The later of the two samples.
    pub fn now(&self) -> &Sample {
        &self.now
    }

    /// The line for programs: the columns, and every counter of the interval.
    pub fn json(&self, pid: u32, command: Option<&str>) -> Value {
        let counters: Map<String, Value> = Counter::ALL
            .iter()
            .map(|&counter| (counter.as_str().to_owned(), json!(self.count(counter))))
            .collect();
        let Snapshot { states, in_flight, in_flight_bytes, queued, leases, .. } = self.now.snapshot;
        let [free, loading, resident, leased, draining, failed] = states;
        json!({
            "pid": pid,
            "command": command,
            "unix_seconds": self.now.unix.as_secs_f64(),
            "interval_seconds": self.time.as_secs_f64(),
            "heartbeat_age_seconds": self.now.heartbeat_age().as_secs_f64(),
            "hits": self.count(Counter::Hits),
            "misses": self.count(Counter::Misses),
            "hit_percent": self.hit_percent(),
            "loads": self.count(Counter::FillsDone),
            "mb_per_s": self.mb_per_s(),
            "stall_ms_per_s": self.stall_ms_per_s(),
            "evictions": self.count(Counter::Evictions),
            "in_flight": in_flight,
            "in_flight_bytes": in_flight_bytes,
            "queued": queued,
            "leases": leases,
            "leased": leased,
            "free": free,
            "slots": self.now.header.slots,
            "slot_bytes": self.now.header.stride_bytes,
            "states": { "free": free, "loading": loading, "resident": resident, "leased": leased,
                        "draining": draining, "failed": failed },
            "counters": counters,
            "diagnostics": self.now.diagnostics,
        })
    }

    /// What is wrong with the cache, a line each.
    pub fn diagnostics(&self) -> &[String] {
        &self.now.diagnostics
    }

    /// The line as comma-separated values: the columns of the text, then every counter.
    pub fn csv(&self, with_header: bool) {
        const COLUMNS: &str = "unix_seconds,interval_seconds,hits,misses,hit_percent,loads,mb_per_s,stall_ms_per_s,\
                               evictions,in_flight,leased,free,slots";
        if with_header {
            let counters: Vec<String> =
                Counter::ALL.iter().map(|counter| format!("counter_{}", counter.as_str())).collect();
            write_line(&format_args!("{COLUMNS},{}", counters.join(",")));
        }
        let percent = self.hit_percent().map_or_else(String::new, |percent| format!("{percent:.2}"));
        let Snapshot { states, in_flight, .. } = self.now.snapshot;
        let counters: Vec<String> = self.counted.iter().map(u64::to_string).collect();
        write_line(&format_args!(
            "{:.3},{:.3},{},{},{percent},{},{:.3},{:.3},{},{in_flight},{},{},{},{}",
            self.now.unix.as_secs_f64(),
            self.time.as_secs_f64(),
            self.count(Counter::Hits),
            self.count(Counter::Misses),
            self.count(Counter::FillsDone),
            self.mb_per_s(),
            self.stall_ms_per_s(),
            self.count(Counter::Evictions),
            states[3],
            states[0],
            self.now.header.slots,
            counters.join(","),
        ));
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = self.hit_percent().map_or_else(|| "-".to_owned(), |percent| format!("{percent:.1}"));
        let Snapshot { states, in_flight, .. } = self.now.snapshot;
        write!(
            f,
            "{:9} {:8} {percent:>6} {:8} {:8.1} {:6.0} {:8} {in_flight:8} {:6} {:>11}",
            self.count(Counter::Hits),
            self.count(Counter::Misses),
            self.count(Counter::FillsDone),
            self.mb_per_s(),
            self.stall_ms_per_s(),
            self.count(Counter::Evictions),
            states[3],
            format!("{}/{}", states[0], self.now.header.slots),
        )?;
        if let Some(silent) = self.now.silent_for() {
            write!(f, "  no heartbeat for {:.0} s", silent.as_secs_f64())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;

    use spoc_cache::stats::layout;

    #[test]
    fn a_page_of_nothing_but_large_numbers_is_shown() {
        let words: Vec<AtomicU64> = (0..layout::page_words(2)).map(|_| AtomicU64::new(u64::MAX)).collect();
        words[layout::H_MAGIC].store(layout::MAGIC, Relaxed);
        words[layout::H_VERSION].store(layout::VERSION, Relaxed);
        words[layout::H_SLOTS_MAX].store(2, Relaxed);
        let sample = Sample::take(&Reader::new(&words).expect("a page"));
        let interval = Interval::since_start(sample.clone());
        assert_eq!(interval.hit_percent(), Some(100.0), "as much as can be said");
        assert_eq!(interval.json(1, None)["hits"], u64::MAX);
        assert!(interval.to_string().contains("18446744073709551615"));
        let nothing = Interval::between(&sample, sample.clone());
        assert_eq!(nothing.hit_percent(), None);
        let page = Reader::new(&words).expect("a page");
        for table in
            [crate::advise::advise(&page), crate::advise::misses(&page), crate::residents::hot(&page, 9)]
        {
            assert!(!table.to_string().is_empty());
        }
        assert!(crate::why::events(&page, (0, 1)).to_string().contains("is in no slot"));
        assert!(crate::residents::grid(&page).to_string().contains("MODEL"));
        assert!(page.curve().is_empty() || page.curve().iter().all(|point| point.hits <= point.requested));
        assert!(crate::slots::table(&Reader::new(&words).expect("a page")).to_string().contains("SLOT"));
    }
}
