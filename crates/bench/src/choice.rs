//! Which model each request asks for.

use std::str::FromStr;

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
