//! `spoc-loader bench`: ceilings of a load, each measured alone with the loader's own parts, and loads against them.

pub mod link;
pub mod load;
pub mod multi;
pub mod overlap;
pub mod read;
pub mod slices;
pub mod small;
pub mod switch;
mod tier;

/// The middle of some values, the lower of the two for an even number; 0 of none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

/// Smallest and largest.
fn spread(values: &[f64]) -> [f64; 2] {
    [values.iter().copied().fold(f64::INFINITY, f64::min), values.iter().copied().fold(0.0, f64::max)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_a_value_that_was_seen() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0]), 1.0);
        assert_eq!(median(&[]), 0.0);
        assert_eq!(spread(&[3.0, 1.0, 2.0]), [1.0, 3.0]);
    }
}
