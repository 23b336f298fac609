//! The little that is learnt for all items of a model together: what faded counts of use say about the next visits.

/// Rates at which uses fade.
pub(super) const RATES: usize = 4;
/// 2^(−1/half-life) for half-lives of 0.7, 4, 16 and 96 visits.
const DECAYS: [f32; RATES] = [0.371_498_6, 0.840_896_4, 0.957_603_3, 0.992_805_66];
/// How much of a chance is about visits after the next one.
pub(super) const FADE: f32 = 0.4;
/// Where learning starts: what recorded routing of several models settles near.
const START: [f32; RATES + 1] = [-3.0, 1.0, 0.8, 1.3, 1.6];
const STEP: f32 = 0.001;

pub(super) fn decay(rate: usize) -> f32 {
    DECAYS[rate]
}

/// Weights of the faded rates of use: a logistic regression, learnt from every visit.
#[derive(Debug)]
pub(super) struct Weights {
    weights: [f32; RATES + 1],
}

impl Default for Weights {
    fn default() -> Weights {
        Weights { weights: START }
    }
}

impl Weights {
    pub fn chance_of_unseen(&self) -> f32 {
        sigmoid(self.weights[0])
    }

    pub fn sum(&self, rates: &[f32; RATES]) -> f32 {
        let [bias, a, b, c, d] = self.weights;
        bias + (a * rates[0] + b * rates[1]) + (c * rates[2] + d * rates[3])
    }

    pub fn learn(&mut self, gradient: &[f32; RATES + 1]) {
        for (weight, slope) in self.weights.iter_mut().zip(gradient) {
            // A set of hundreds must not throw what thousands of visits taught.
            *weight -= (STEP * slope).clamp(-0.05, 0.05);
        }
    }
}

/// 1 / (1 + e^−x) from arithmetic alone: the same on every machine, several at once.
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + power_of_two(-x * std::f32::consts::LOG2_E))
}

/// 2^x for the exponents that matter. Adding 1.5 · 2²³ leaves the whole part of x in the lowest bits, from where it goes
/// into the exponent; a polynomial of the rest, which is between −½ and ½.
#[allow(clippy::approx_constant)] // a coefficient of the polynomial, fitted with the others
fn power_of_two(x: f32) -> f32 {
    const WHOLE: f32 = 12_582_912.0;
    let x = x.clamp(-30.0, 30.0);
    let shifted = x + WHOLE;
    let rest = x - (shifted - WHOLE);
    let mantissa = 1.0 + rest * (0.693_147 + rest * (0.240_227 + rest * (0.055_504 + rest * 0.009_618)));
    let exponent = shifted.to_bits().wrapping_sub(WHOLE.to_bits()).wrapping_add(127);
    f32::from_bits(exponent << 23) * mantissa
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn approximations_are_close() {
        for tenths in -200..=200 {
            let x = tenths as f32 / 10.0;
            let exact = 1.0 / (1.0 + (-x).exp());
            assert!((sigmoid(x) - exact).abs() < 1e-4 * exact.max(1e-6), "{x}: {} {exact}", sigmoid(x));
        }
        for (half_life, decay) in [0.7f32, 4.0, 16.0, 96.0].into_iter().zip(DECAYS) {
            assert!(
                ((-1.0 / half_life).exp2() - decay).abs() < 1e-6,
                "{half_life}: {}",
                (-1.0 / half_life).exp2()
            );
        }
    }

    #[test]
    fn learns_which_rate_matters() {
        let mut weights = Weights::default();
        // What was used at the last visit is used again, whatever the slow rates say.
        for turn in 0..200_000u32 {
            let used = turn % 2 == 0;
            let rates = [f32::from(u8::from(used)), 0.5, 0.5, 0.5];
            let off = sigmoid(weights.sum(&rates)) - f32::from(u8::from(used));
            weights.learn(&[off, off * rates[0], off * 0.5, off * 0.5, off * 0.5]);
        }
        assert!(sigmoid(weights.sum(&[1.0, 0.5, 0.5, 0.5])) > 0.85);
        assert!(sigmoid(weights.sum(&[0.0, 0.5, 0.5, 0.5])) < 0.15);
    }
}
