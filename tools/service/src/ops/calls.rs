//! Every call of the control plane, counted by method and outcome, and timed.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds of the latency buckets, seconds; the last bucket has none.
pub const BOUNDS_S: [f64; 13] =
    [1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 1e-2, 0.1, 0.5, 1.0, 10.0, 60.0];
const BUCKETS: usize = BOUNDS_S.len() + 1;

/// Outcomes of a method that are told apart; further ones are counted as `other`.
const OUTCOMES_MAX: usize = 32;

/// The calls of one method.
#[derive(Debug)]
pub struct Method {
    name: &'static str,
    buckets: [AtomicU64; BUCKETS],
    total_ns: AtomicU64,
    ok: AtomicU64,
    failed: rare::Outcomes,
}

/// All methods; one that is not known is counted under the last, `other`.
#[derive(Debug)]
pub struct Calls {
    methods: Vec<Method>,
}

/// One method's figures at a moment.
#[derive(Clone, Debug, PartialEq)]
pub struct MethodFigures {
    /// Its name, as in the .proto.
    pub name: &'static str,
    /// Calls answered within each of [`BOUNDS_S`] and not within the one before; then the rest.
    pub buckets: [u64; BUCKETS],
    /// Sum of all times, seconds.
    pub total_s: f64,
    /// Calls by outcome: `ok` or an error's kind.
    pub outcomes: Vec<(String, u64)>,
}

impl Calls {
    /// Nothing counted yet, for these methods.
    #[must_use]
    pub fn new(methods: &[&'static str]) -> Calls {
        let names = methods.iter().copied().chain(["other"]);
        Calls { methods: names.map(Method::new).collect() }
    }

    /// Counts a call of the method with this path (`/spoc.v1.Spoc/Acquire`). `kind` is the error's, `None` if it was
    /// answered. For a stream, the time is that of its beginning.
    pub fn count(&self, path: &str, kind: Option<&str>, time: Duration) {
        let name = path.rsplit('/').next().unwrap_or(path);
        let known = self.methods.iter().find(|method| method.name == name);
        if let Some(method) = known.or(self.methods.last()) {
            method.count(kind, time);
        }
    }

    /// All figures; methods that were never called are left out.
    #[must_use]
    pub fn figures(&self) -> Vec<MethodFigures> {
        self.methods.iter().filter_map(Method::figures).collect()
    }
}

impl Method {
    fn new(name: &'static str) -> Method {
        Method {
            name,
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            total_ns: AtomicU64::new(0),
            ok: AtomicU64::new(0),
            failed: rare::Outcomes::default(),
        }
    }

    fn count(&self, kind: Option<&str>, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = BOUNDS_S.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS_S.len());
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.total_ns.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        match kind {
            None => {
                self.ok.fetch_add(1, Relaxed);
            }
            Some(kind) => self.failed.count(kind),
        }
    }

    fn figures(&self) -> Option<MethodFigures> {
        let buckets = std::array::from_fn(|index| self.buckets[index].load(Relaxed));
        if buckets.iter().all(|count| *count == 0) {
            return None;
        }
        let mut outcomes = vec![("ok".to_owned(), self.ok.load(Relaxed))];
        outcomes.extend(self.failed.all());
        #[allow(clippy::cast_precision_loss)] // a sum for people
        let total_s = self.total_ns.load(Relaxed) as f64 / 1e9;
        Some(MethodFigures { name: self.name, buckets, total_s, outcomes })
    }
}

/// Failures are rare: a lock and a small table do.
mod rare {
    use std::sync::{Mutex, PoisonError};

    use super::OUTCOMES_MAX;

    #[derive(Debug, Default)]
    pub struct Outcomes(Mutex<Vec<(String, u64)>>);

    impl Outcomes {
        pub fn count(&self, kind: &str) {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((_, count)) = all.iter_mut().find(|(name, _)| name == kind) {
                *count += 1;
            } else if all.len() < OUTCOMES_MAX - 1 {
                all.push((kind.to_owned(), 1));
            } else if let Some((_, count)) = all.iter_mut().find(|(name, _)| name == "other") {
                *count += 1;
            } else {
                all.push(("other".to_owned(), 1));
            }
        }

        pub fn all(&self) -> Vec<(String, u64)> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_told_apart_by_method_outcome_and_time() {
        let calls = Calls::new(&["Acquire", "Release"]);
        calls.count("/spoc.v1.Spoc/Acquire", None, Duration::from_micros(10));
        calls.count("/spoc.v1.Spoc/Acquire", None, Duration::from_micros(11));
        calls.count("/spoc.v1.Spoc/Acquire", Some("not_resident"), Duration::from_secs(100));
        calls.count("/grpc.health.v1.Health/Check", None, Duration::ZERO);
        let figures = calls.figures();
        assert_eq!(figures.iter().map(|method| method.name).collect::<Vec<_>>(), ["Acquire", "other"]);
        let acquire = &figures[0];
        assert_eq!((acquire.buckets[0], acquire.buckets[1], acquire.buckets[BUCKETS - 1]), (1, 1, 1));
        assert_eq!(acquire.outcomes, [("ok".to_owned(), 2), ("not_resident".to_owned(), 1)]);
        assert!((acquire.total_s - 100.000_021).abs() < 1e-9);
    }

    #[test]
    fn a_client_cannot_make_the_table_grow() {
        let calls = Calls::new(&[]);
        for number in 0..1000 {
            calls.count("x", Some(&format!("kind{number}")), Duration::ZERO);
        }
        let outcomes = &calls.figures()[0].outcomes;
        assert_eq!(outcomes.len(), OUTCOMES_MAX + 1);
        assert_eq!(outcomes.iter().map(|(_, count)| count).sum::<u64>(), 1000);
        assert_eq!(outcomes.last().map(|(name, _)| name.as_str()), Some("other"));
    }
}
