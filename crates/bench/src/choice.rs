//! Which model each request asks for.

use std::str::FromStr;

use rand::distr::Distribution as _;
use rand::distr::weighted::WeightedIndex;
use rand_chacha::ChaCha8Rng;

use crate::spec::{SpecError, positive, serde_as_text};

/// How a model is chosen among those of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Choice {
    /// Each equally likely.
    Uniform,
    /// The k-th model of the list with probability proportional to k^−α.
    Zipf(f64),
    /// One after the other.
    RoundRobin,
    /// By given weights.
    Weights,
}

impl Choice {
    /// The forms that [`FromStr`] understands. On the command line a JSON file stands for `weights`.
    pub const FORMS: &'static str = "uniform, zipf:ALPHA, round-robin or weights";
}

impl std::fmt::Display for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Uniform => f.write_str("uniform"),
            Self::Zipf(alpha) => write!(f, "zipf:{alpha}"),
            Self::RoundRobin => f.write_str("round-robin"),
            Self::Weights => f.write_str("weights"),
        }
    }
}

impl FromStr for Choice {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let parsed = match text {
            "uniform" => Some(Self::Uniform),
            "round-robin" => Some(Self::RoundRobin),
            "weights" => Some(Self::Weights),
            _ => text.strip_prefix("zipf:").and_then(positive).map(Self::Zipf),
        };
        parsed.ok_or_else(|| SpecError {
            what: "distribution of variants",
            found: text.into(),
            expected: Self::FORMS,
        })
    }
}

serde_as_text!(Choice);

/// Draws indices into a list of models.
#[derive(Debug)]
pub struct Chooser {
    kind: Kind,
    models: usize,
}

#[derive(Debug)]
enum Kind {
    Next(usize),
    Weighted(WeightedIndex<f64>),
}

impl Chooser {
    /// A chooser among as many models as `weights` has entries; the weights count only for [`Choice::Weights`].
    /// `None` without models, or when no weight is above zero.
    pub fn new(choice: Choice, weights: &[f64]) -> Option<Self> {
        let models = weights.len();
        let weighted = |weights: Vec<f64>| WeightedIndex::new(weights).ok().map(Kind::Weighted);
        let kind = match choice {
            Choice::RoundRobin => (models > 0).then_some(Kind::Next(0)),
            Choice::Uniform => weighted(vec![1.0; models]),
            Choice::Zipf(alpha) => weighted((1..=models).map(|k| (k as f64).powf(-alpha)).collect()),
            Choice::Weights => weighted(weights.to_vec()),
        }?;
        Some(Self { kind, models })
    }

    /// The next model's index.
    pub fn next(&mut self, rng: &mut ChaCha8Rng) -> usize {
        match &mut self.kind {
            Kind::Next(at) => {
                let index = *at;
                *at = (*at + 1) % self.models;
                index
            }
            Kind::Weighted(weights) => weights.sample(rng),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng as _;

    fn shares(choice: Choice, weights: &[f64]) -> Vec<f64> {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let mut chooser = Chooser::new(choice, weights).unwrap();
        let mut counts = vec![0u32; weights.len()];
        for _ in 0..30_000 {
            counts[chooser.next(&mut rng)] += 1;
        }
        counts.into_iter().map(|n| f64::from(n) / 30_000.0).collect()
    }

    #[test]
    fn shares_follow_the_distribution() {
        // Zipf 1.5 over three: 1, 0.3536, 0.1925, together 1.5460.
        for (choice, weights, expected) in [
            (Choice::Uniform, [1.0; 3], [1.0 / 3.0; 3]),
            (Choice::RoundRobin, [1.0; 3], [1.0 / 3.0; 3]),
            (Choice::Zipf(1.5), [1.0; 3], [0.6468, 0.2287, 0.1245]),
            (Choice::Weights, [0.0, 3.0, 1.0], [0.0, 0.75, 0.25]),
        ] {
            for (found, expected) in shares(choice, &weights).iter().zip(expected) {
                assert!((found - expected).abs() < 0.01, "{choice}: {found} for {expected}");
            }
        }
    }

    #[test]
    fn nothing_to_choose_from_is_no_chooser() {
        assert!(Chooser::new(Choice::Uniform, &[]).is_none());
        assert!(Chooser::new(Choice::RoundRobin, &[]).is_none());
        assert!(Chooser::new(Choice::Weights, &[0.0, 0.0]).is_none());
    }

    #[test]
    fn the_written_form_is_the_read_form() {
        for text in ["uniform", "zipf:1.5", "round-robin", "weights"] {
            assert_eq!(text.parse::<Choice>().unwrap().to_string(), text);
        }
        for text in ["", "zipf:", "zipf:-1", "zipf:nan", "normal"] {
            let error = text.parse::<Choice>().unwrap_err().to_string();
            assert!(error.contains(Choice::FORMS), "{error}");
        }
    }
}
