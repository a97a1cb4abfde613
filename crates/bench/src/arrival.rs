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
