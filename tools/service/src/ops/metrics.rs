//! The scrape: samples of every family, as they are now.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet, prometheus_text, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::registry::Registry;
use spoc_cache::State;
use spoc_cache::stats::layout::Counter;

use super::calls::{BOUNDS_S, Calls, MethodFigures};
use super::families::{FAMILIES, Family, Kind, is_time, of_counter};
use super::observe::{Observe, Observed, Source};

const STATES: [State; 6] =
    [State::Free, State::Loading, State::Resident, State::Leased, State::Draining, State::Failed];

/// Content type of [`Metrics::openmetrics`].
pub const OPENMETRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Content type of [`Metrics::plain`].
pub const PLAIN_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Values of one family: label values in the family's order, and the sample.
type Samples = Vec<(Vec<String>, f64)>;

/// Everything that a scrape shows.
pub struct Metrics {
    registry: Registry,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    /// Of this service.
    #[must_use]
    pub fn new(service: Arc<dyn Observe>, calls: Arc<Calls>) -> Metrics {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Scrape { service, calls }));
        Metrics { registry }
    }

    /// The OpenMetrics text.
    ///
    /// # Errors
    /// None in practice: memory is the only thing written to.
    pub fn openmetrics(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        text::encode(&mut text, &self.registry)?;
        Ok(text)
    }

    /// The older Prometheus text.
    ///
    /// # Errors
    /// As [`openmetrics`](Metrics::openmetrics).
    pub fn plain(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        prometheus_text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// Every counter and gauge summed over its labels, by family; a label that tells kinds apart stays, behind a dot
/// (`spoc_faults.fill`). Times are nanoseconds, as whole numbers are wanted.
#[must_use]
pub fn sums(observed: &Observed) -> Vec<(String, u64)> {
    let mut sums: Vec<(String, u64)> = Vec::new();
    for counter in Counter::ALL {
        let (name, last) = of_counter(counter);
        let mut name = last.map_or_else(|| name.to_owned(), |last| format!("{name}.{last}"));
        if is_time(counter) {
            name = name.replacen("_seconds", "_ns", 1);
        }
        let sum = observed.sources.iter().fold(0u64, |sum, source| sum.saturating_add(source.count(counter)));
        sums.push((name, sum));
    }
    for (name, value) in [
        ("spoc_leases", observed.leases),
        ("spoc_held_bytes", observed.held_bytes),
        ("spoc_models", observed.models),
        ("spoc_clients_lost", observed.clients_lost),
    ] {
        sums.push((name.to_owned(), value));
    }
    sums
}

struct Scrape {
    service: Arc<dyn Observe>,
    calls: Arc<Calls>,
}

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scrape").finish_non_exhaustive()
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let observed = self.service.observe();
        let calls = self.calls.figures();
        let by_name = samples(&observed, &calls);
        for family in FAMILIES {
            if family.kind == Kind::Histogram {
                histogram(&mut encoder, family, &calls)?;
                continue;
            }
            let metric_type =
                if family.kind == Kind::Counter { MetricType::Counter } else { MetricType::Gauge };
            let mut metric = encoder.encode_descriptor(family.name, family.help, None, metric_type)?;
            for (labels, value) in by_name.get(family.name).into_iter().flatten() {
                one(&mut metric, family, labels, *value)?;
            }
        }
        Ok(())
    }
}

fn one(
    metric: &mut MetricEncoder<'_>,
    family: &Family,
    values: &[String],
    value: f64,
) -> Result<(), fmt::Error> {
    let labels: Vec<(&str, &str)> =
        family.labels.iter().copied().zip(values.iter().map(String::as_str)).collect();
    let mut metric = metric.encode_family(&labels)?;
    match family.kind {
        Kind::Counter => ConstCounter::new(value).encode(metric),
        _ => metric.encode_gauge(&value),
    }
}

fn histogram(
    encoder: &mut DescriptorEncoder<'_>,
    family: &Family,
    calls: &[MethodFigures],
) -> Result<(), fmt::Error> {
    let mut metric = encoder.encode_descriptor(family.name, family.help, None, MetricType::Histogram)?;
    for method in calls {
        let bounds = BOUNDS_S.iter().copied().chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(method.buckets).collect();
        let count = method.buckets.iter().sum();
        let labels = [("method", method.name)];
        let mut metric = metric.encode_family(&labels)?;
        metric.encode_histogram::<NoLabelSet>(method.total_s, count, &buckets, None)?;
    }
    Ok(())
}

#[allow(clippy::cast_precision_loss)] // samples are floats: exact up to 2^53
fn sample(value: u64) -> f64 {
    value as f64
}

fn samples(observed: &Observed, calls: &[MethodFigures]) -> HashMap<&'static str, Samples> {
    let mut all: HashMap<&'static str, Samples> = HashMap::new();
    let mut put = |name: &'static str, labels: &[&str], value: f64| {
        let labels = labels.iter().map(|&label| label.to_owned()).collect();
        all.entry(name).or_default().push((labels, value));
    };
    put("spoc_build_info", &[env!("CARGO_PKG_VERSION")], 1.0);
    put("spoc_uptime_seconds", &[], observed.uptime.as_secs_f64());
    put("spoc_start_seconds", &[], observed.ready_after.as_secs_f64());
    put("spoc_draining", &[], f64::from(u8::from(observed.is_draining)));
    put("spoc_clients_lost", &[], sample(observed.clients_lost));
    put("spoc_models", &[], sample(observed.models));
    put("spoc_leases", &[], sample(observed.leases));
    put("spoc_held_bytes", &[], sample(observed.held_bytes));
    for (state, count) in &observed.sessions {
        put("spoc_sessions", &[state], sample(*count));
    }
    for (state, count) in &observed.images {
        put("spoc_images", &[state], sample(*count));
    }
    for method in calls {
        for (outcome, count) in &method.outcomes {
            put("spoc_requests", &[method.name, outcome], sample(*count));
        }
    }
    for device in &observed.devices {
        for (tier, used_for, bytes) in [
            ("device", "total", device.total),
            ("device", "free", device.free),
            ("device", "arenas", device.arenas),
            ("device", "images", device.images),
            ("host", "staging", device.staging),
        ] {
            put("spoc_bytes", &[&device.device, tier, used_for], sample(bytes));
        }
    }
    for source in &observed.sources {
        counters_of(source, &mut put);
        slots_of(source, &mut put);
    }
    all
}

fn counters_of(source: &Source, put: &mut impl FnMut(&'static str, &[&str], f64)) {
    for counter in Counter::ALL {
        let value = sample(source.count(counter));
        let value = if is_time(counter) { value / 1e9 } else { value };
        let (name, last) = of_counter(counter);
        match last {
            Some(last) => put(name, &[&source.arena, &source.device, last], value),
            None => put(name, &[&source.arena, &source.device], value),
        }
    }
}

fn slots_of(source: &Source, put: &mut impl FnMut(&'static str, &[&str], f64)) {
    if source.arena.is_empty() {
        return;
    }
    for state in STATES {
        let count = source.slots.states[state as usize];
        put("spoc_slots", &[&source.arena, &source.device, state.as_str()], sample(count));
    }
    put("spoc_in_flight_bytes", &[&source.arena, &source.device], sample(source.slots.in_flight_bytes));
    put("spoc_waiting_sets", &[&source.arena, &source.device], sample(source.slots.queued));
}

#[cfg(test)]
mod tests {
    use super::*;
    use spoc_cache::stats::Counters;
    use std::time::Duration;

    pub struct Fixed;

    impl Observe for Fixed {
        fn observe(&self) -> Observed {
            let counters = Counters::on_heap(1);
            let words = counters.words();
            let put = |counter: Counter, value| {
                words[spoc_cache::stats::layout::COUNTERS_AT + counter as usize]
                    .store(value, std::sync::atomic::Ordering::Relaxed);
            };
            put(Counter::StallNs, 1_500_000_000);
            put(Counter::Hits, 7);
            Observed {
                uptime: Duration::from_secs(3),
                sources: vec![
                    Source::read("experts", "gpu\"1", &counters),
                    Source::read("", "gpu\"1", &counters),
                ],
                devices: vec![super::super::observe::DeviceBytes {
                    device: "gpu\"1".into(),
                    total: 5,
                    ..Default::default()
                }],
                sessions: vec![("attached", 2)],
                images: vec![("sealed", 1)],
                ..Observed::default()
            }
        }
        fn ready(&self) -> Result<(), String> {
            Ok(())
        }
        fn live(&self) -> Result<(), String> {
            Ok(())
        }
    }

    #[test]
    fn a_scrape_shows_every_family_and_no_other() {
        let calls = Arc::new(Calls::new(&["Acquire"]));
        calls.count("/spoc.v1.Spoc/Acquire", None, Duration::from_micros(30));
        let metrics = Metrics::new(Arc::new(Fixed), calls);
        let text = metrics.openmetrics().expect("written");
        for expected in [
            "spoc_hits_total{arena=\"experts\",device=\"gpu\\\"1\"} 7",
            "spoc_stall_seconds_total{arena=\"experts\",device=\"gpu\\\"1\"} 1.5",
            "spoc_requests_total{method=\"Acquire\",outcome=\"ok\"} 1",
            "spoc_request_seconds_bucket{le=\"0.00005\",method=\"Acquire\"} 1",
            "spoc_sessions{state=\"attached\"} 2",
            "spoc_slots{arena=\"experts\",device=\"gpu\\\"1\",state=\"free\"} 0",
            "spoc_uptime_seconds 3",
        ] {
            assert!(text.contains(expected), "{expected} is not in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
        let types = |text: &str| {
            let lines = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
            lines.filter_map(|line| line.split(' ').next().map(str::to_owned)).collect::<Vec<_>>()
        };
        let names: Vec<String> = FAMILIES.iter().map(|family| family.name.to_owned()).collect();
        assert_eq!(types(&text), names);
        let sampled: std::collections::HashSet<&str> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split(['{', ' ']).next())
            .collect();
        for family in FAMILIES {
            assert!(
                sampled.iter().any(|name| name.starts_with(family.name)),
                "{} has no sample",
                family.name
            );
        }
        let plain = metrics.plain().expect("written");
        assert!(plain.contains("# TYPE spoc_hits_total counter") && !plain.contains("# EOF"), "{plain}");
    }

    #[test]
    fn sums_are_over_all_sources() {
        let sums: HashMap<String, u64> = sums(&Fixed.observe()).into_iter().collect();
        assert_eq!(
            (sums["spoc_hits"], sums["spoc_stall_ns"], sums["spoc_faults.fill"]),
            (14, 3_000_000_000, 0)
        );
    }
}
