//! Arrival processes: when requests are due.

use std::str::FromStr;

use rand::Rng as _;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution as _, Exp1, Gamma};

use crate::spec::{SpecError, positive, serde_as_text};

/// How the gaps between requests are drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrivals {
    /// Independent arrivals: exponential gaps.
    Poisson,
    /// Gamma gaps of this shape: below 1 burstier than Poisson, above 1 steadier.
    Gamma(f64),
    /// Equal gaps.
    Constant,
    /// The timestamps of a workload file.
    Trace,
}

impl Arrivals {
    /// The forms that [`FromStr`] understands.
    pub const FORMS: &'static str = "poisson, gamma:SHAPE (below 1 is burstier), constant or trace";

    /// Due times in seconds from the start, ascending, `count` of them at `rate` requests a second. The first request
    /// is due after one gap, so that no process opens with a burst. `Trace` has no times of its own: it gives none.
    pub fn times(self, rate: f64, count: usize, rng: &mut ChaCha8Rng) -> Vec<f64> {
        let mut now = 0.0;
        let mut gap: Box<dyn FnMut() -> f64> = match self {
            Self::Poisson => Box::new(|| rng.sample::<f64, _>(Exp1) / rate),
            Self::Gamma(shape) => match Gamma::new(shape, 1.0 / (shape * rate)) {
                Ok(gamma) => Box::new(move || gamma.sample(rng)),
                Err(_) => return Vec::new(),
            },
            Self::Constant => Box::new(|| 1.0 / rate),
            Self::Trace => return Vec::new(),
        };
        (0..count)
            .map(|_| {
                now += gap();
                now
            })
            .collect()
    }
}

impl std::fmt::Display for Arrivals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Poisson => f.write_str("poisson"),
            Self::Gamma(shape) => write!(f, "gamma:{shape}"),
            Self::Constant => f.write_str("constant"),
            Self::Trace => f.write_str("trace"),
        }
    }
}

impl FromStr for Arrivals {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let parsed = match text.split_once(':') {
            None => match text {
                "poisson" => Some(Self::Poisson),
                "constant" => Some(Self::Constant),
                "trace" => Some(Self::Trace),
                _ => None,
            },
            Some(("gamma", shape)) => positive(shape).map(Self::Gamma),
            Some(_) => None,
        };
        parsed.ok_or_else(|| SpecError {
            what: "arrival process",
            found: text.into(),
            expected: Self::FORMS,
        })
    }
}

serde_as_text!(Arrivals);

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng as _;

    fn gaps(arrivals: Arrivals, seed: u64) -> Vec<f64> {
        let times = arrivals.times(4.0, 4000, &mut ChaCha8Rng::seed_from_u64(seed));
        std::iter::once(times[0])
            .chain(times.windows(2).map(|w| w[1] - w[0]))
            .collect()
    }

    /// Mean and coefficient of variation.
    fn moments(gaps: &[f64]) -> (f64, f64) {
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        (mean, variance.sqrt() / mean)
    }

    #[test]
    fn gaps_have_the_rate_and_the_spread_of_their_process() {
        // The coefficient of variation of gamma gaps is 1/sqrt(shape).
        for (arrivals, spread) in [
            (Arrivals::Poisson, 1.0),
            (Arrivals::Gamma(0.25), 2.0),
            (Arrivals::Gamma(4.0), 0.5),
            (Arrivals::Constant, 0.0),
        ] {
            let (mean, cv) = moments(&gaps(arrivals, 1));
            assert!((mean - 0.25).abs() < 0.02, "{arrivals}: mean gap {mean}");
            assert!((cv - spread).abs() < 0.1, "{arrivals}: coefficient of variation {cv}");
        }
    }

    #[test]
    fn one_seed_fixes_the_schedule() {
        assert_eq!(gaps(Arrivals::Poisson, 5), gaps(Arrivals::Poisson, 5));
        assert_ne!(gaps(Arrivals::Poisson, 5), gaps(Arrivals::Poisson, 6));
    }

    #[test]
    fn the_written_form_is_the_read_form() {
        for text in ["poisson", "gamma:0.5", "constant", "trace"] {
            assert_eq!(text.parse::<Arrivals>().unwrap().to_string(), text);
        }
        for text in ["", "gamma", "gamma:0", "gamma:inf", "Poisson"] {
            assert!(text.parse::<Arrivals>().is_err(), "{text}");
        }
    }
}
