//! Order statistics of a handful of runs.

/// Minimum, median and maximum of some runs, with a 95 % interval of the median.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Smallest value.
    pub min: f64,
    /// Middle value (mean of the two middle ones for an even count).
    pub median: f64,
    /// Largest value.
    pub max: f64,
    /// Order-statistic interval that holds the median with at least 95 %, or the whole range for fewer than six runs.
    pub interval: (f64, f64),
    /// Number of runs.
    pub runs: usize,
}

impl Summary {
    /// Summarises `values`; `None` when there are none or one is not a number.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() || values.iter().any(|v| v.is_nan()) {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let runs = sorted.len();
        let median = f64::midpoint(sorted[(runs - 1) / 2], sorted[runs / 2]);
        let rank = interval_rank(runs);
        let interval = (sorted[rank], sorted[runs - 1 - rank]);
        Some(Self { min: sorted[0], median, max: sorted[runs - 1], interval, runs })
    }
}

/// The largest 0-based rank r for which [r, n - 1 - r] covers the median with ≥ 95 %: the number of
/// values below the median is binomial(n, 1/2), so the two tails hold 2 · P(X ≤ r).
fn interval_rank(runs: usize) -> usize {
    let mut tail = 0.0;
    let mut term = 0.5_f64.powi(i32::try_from(runs).unwrap_or(i32::MAX));
    for rank in 0..runs / 2 {
        tail += term;
        if 2.0 * tail > 0.05 {
            return rank.saturating_sub(1);
        }
        #[allow(clippy::cast_precision_loss, reason = "counts of runs are small")]
        let step = (runs - rank) as f64 / (rank + 1) as f64;
        term *= step;
    }
    runs.saturating_sub(1) / 2
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { min, median, max, interval: (low, high), runs } = self;
        write!(f, "median {median:.3} [95 % {low:.3} … {high:.3}] min {min:.3} max {max:.3} n {runs}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_the_tabled_one() {
        // Tables of the sign test give, for n = 15 at 95 %, the 4th and the 12th value; for n = 6 the extremes.
        let fifteen: Vec<f64> = (1..=15).map(f64::from).collect();
        let summary = Summary::of(&fifteen).unwrap();
        assert_eq!((summary.median, summary.interval), (8.0, (4.0, 12.0)));
        let six: Vec<f64> = (1..=6).map(f64::from).collect();
        assert_eq!(Summary::of(&six).unwrap().interval, (1.0, 6.0));
    }

    #[test]
    fn few_runs_give_their_range() {
        let summary = Summary::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((summary.median, summary.interval), (2.0, (1.0, 3.0)));
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[f64::NAN]), None);
    }
}
