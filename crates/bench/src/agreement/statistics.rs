//! How near two models' predictions are, from their logits; no model, no file.

use serde::Serialize;

use crate::bundle::DivergenceSums;
use crate::stats::rounded;

/// How near a model's predictions are to a reference's, over the positions of right answers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Agreement {
    /// Positions compared: one a token of the right answers.
    pub positions: usize,
    /// Mean Kullback-Leibler divergence KL(reference ‖ model) of the next token's distribution, nats.
    pub mean_kl: f64,
    /// Share of positions, 0 to 1, at which both find the same token most likely.
    pub top1_agreement: f64,
    /// Perplexity of the right answers under the model: exp of the mean negative log-likelihood of their tokens.
    pub perplexity: f64,
    /// The same under the reference.
    pub reference_perplexity: f64,
}

/// Sums over positions.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sums {
    positions: usize,
    kl: f64,
    same: usize,
    loss: f64,
    reference_loss: f64,
}

impl Sums {
    /// Adds a position: the logits of the model and of the reference, and the token that follows. Tokens that one of the
    /// two does not have take no part; `false`, and nothing is added, if the token itself is one of them or a figure
    /// would be no number.
    pub fn add(&mut self, logits: &[f32], reference: &[f32], token: u32) -> bool {
        let shared = logits.len().min(reference.len());
        let token = token as usize;
        if token >= shared {
            return false;
        }
        let (logits, reference) = (&logits[..shared], &reference[..shared]);
        let (norm, reference_norm) = (log_sum_exp(logits), log_sum_exp(reference));
        let mut kl = 0.0;
        for (a, b) in logits.iter().zip(reference) {
            let (a, b) = (f64::from(*a) - norm, f64::from(*b) - reference_norm);
            let p = b.exp();
            // What the reference excludes (p = 0) adds nothing.
            if p > 0.0 {
                kl += p * (b - a);
            }
        }
        let loss = norm - f64::from(logits[token]);
        let reference_loss = reference_norm - f64::from(reference[token]);
        if !(kl.is_finite() && loss.is_finite() && reference_loss.is_finite()) {
            return false;
        }
        self.positions += 1;
        // Rounding can leave a divergence of nothing a little below it.
        self.kl += kl.max(0.0);
        self.same += usize::from(most_likely(logits) == most_likely(reference));
        self.loss += loss;
        self.reference_loss += reference_loss;
        true
    }

    /// Adds the positions of another.
    pub fn merge(&mut self, other: &Self) {
        self.positions += other.positions;
        self.kl += other.kl;
        self.same += other.same;
        self.loss += other.loss;
        self.reference_loss += other.reference_loss;
    }

    /// The sums as a bundle keeps them; `None` without positions.
    pub fn record(&self) -> Option<DivergenceSums> {
        (self.positions > 0).then(|| DivergenceSums {
            positions: self.positions as u64,
            kl_nats: rounded(self.kl),
            same: self.same as u64,
            loss_nats: rounded(self.loss),
            reference_loss_nats: rounded(self.reference_loss),
        })
    }

    /// The means; `None` without positions.
    pub fn agreement(&self) -> Option<Agreement> {
        let n = self.positions as f64;
        (self.positions > 0).then(|| Agreement {
            positions: self.positions,
            mean_kl: self.kl / n,
            top1_agreement: self.same as f64 / n,
            perplexity: (self.loss / n).exp(),
            reference_perplexity: (self.reference_loss / n).exp(),
        })
    }
}

/// `log Σ exp(x)`.
fn log_sum_exp(x: &[f32]) -> f64 {
    let largest = f64::from(x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    largest + x.iter().map(|x| (f64::from(*x) - largest).exp()).sum::<f64>().ln()
}

/// The first of the largest.
fn most_likely(x: &[f32]) -> usize {
    let better = |best: usize, i: usize| if x[i] > x[best] { i } else { best };
    (0..x.len()).fold(0, better)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn figures_follow_their_definitions() {
        // Probabilities (1/2, 1/4, 1/4) for the reference and (1/4, 1/2, 1/4) for the model.
        let (model, reference) = ([0.25f32, 0.5, 0.25], [0.5f32, 0.25, 0.25]);
        let log = |p: [f32; 3]| p.map(|p| p.ln() + 3.0);
        let mut sums = Sums::default();
        assert!(sums.add(&log(model), &log(reference), 0));
        assert!(sums.add(&log(reference), &log(reference), 0));
        let result = sums.agreement().unwrap();
        // 1/2 ln 2 − 1/4 ln 2, over two positions.
        let expected = Agreement {
            positions: 2,
            mean_kl: 0.25 * std::f64::consts::LN_2 / 2.0,
            top1_agreement: 0.5,
            perplexity: 8f64.sqrt(),
            reference_perplexity: 2.0,
        };
        for (found, expected) in [
            (result.mean_kl, expected.mean_kl),
            (result.perplexity, expected.perplexity),
            (result.reference_perplexity, expected.reference_perplexity),
        ] {
            assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
        }
        assert_eq!((result.positions, result.top1_agreement), (2, 0.5));
    }

    #[test]
    fn without_positions_there_is_nothing() {
        assert_eq!(Sums::default().agreement(), None);
        let mut sums = Sums::default();
        assert!(!sums.add(&[1.0, 2.0], &[1.0, 2.0, 3.0], 2));
        assert!(!sums.add(&[], &[], 0));
        for bad in [f32::NAN, f32::INFINITY] {
            assert!(!sums.add(&[1.0, bad], &[1.0, 2.0], 0));
            assert!(!sums.add(&[1.0, 2.0], &[1.0, bad], 0));
        }
        assert!(!sums.add(&[1.0, f32::NEG_INFINITY], &[1.0, 2.0], 0));
        assert_eq!(sums.agreement(), None);
    }

    proptest! {
        #[test]
        fn equal_logits_agree_and_others_diverge(
            logits in proptest::collection::vec(-30f32..30.0, 2..50),
            other in proptest::collection::vec(-30f32..30.0, 50),
            shift in -50f32..50.0,
        ) {
            let shifted: Vec<f32> = logits.iter().map(|x| x + shift).collect();
            let mut same = Sums::default();
            same.add(&shifted, &logits, 0);
            let same = same.agreement().unwrap();
            prop_assert!(same.mean_kl < 1e-3);
            let mut apart = Sums::default();
            apart.add(&other[..logits.len()], &logits, 1);
            let apart = apart.agreement().unwrap();
            prop_assert!(apart.mean_kl.is_finite() && apart.mean_kl >= 0.0 && apart.perplexity >= 1.0);
        }
    }
}
