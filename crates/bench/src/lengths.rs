//! Lengths of prompts and completions.

use std::str::FromStr;

use rand::Rng as _;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution as _, LogNormal};

use crate::spec::{SpecError, positive, serde_as_text};

/// How a length in tokens is drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Lengths {
    /// Always the same.
    Fixed(u32),
    /// Each length of the range equally likely, both ends included.
    Uniform(u32, u32),
    /// Log-normal with this median and this standard deviation of the logarithm, at least 1, at most [`Lengths::MAX`].
    LogNormal {
        /// Median, tokens.
        median: f64,
        /// Standard deviation of the natural logarithm.
        sigma: f64,
    },
}

impl Lengths {
    /// The forms that [`FromStr`] understands.
    pub const FORMS: &'static str = "N, LOW..HIGH (uniform, both included) or log-normal:MEDIAN,SIGMA";

    /// Longest length that is ever drawn, so that the tail of a log-normal cannot ask for a whole memory.
    pub const MAX: u32 = 1 << 20;

    /// One length.
    pub fn draw(&self, rng: &mut ChaCha8Rng) -> u32 {
        match *self {
            Self::Fixed(n) => n,
            Self::Uniform(low, high) => rng.random_range(low..=high),
            Self::LogNormal { median, sigma } => match LogNormal::new(median.ln(), sigma) {
                Ok(d) => d.sample(rng).round().clamp(1.0, f64::from(Self::MAX)) as u32,
                Err(_) => median.round().clamp(1.0, f64::from(Self::MAX)) as u32,
            },
        }
    }
}

impl std::fmt::Display for Lengths {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Fixed(n) => write!(f, "{n}"),
            Self::Uniform(low, high) => write!(f, "{low}..{high}"),
            Self::LogNormal { median, sigma } => write!(f, "log-normal:{median},{sigma}"),
        }
    }
}

impl FromStr for Lengths {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let length = |t: &str| t.trim().parse::<u32>().ok().filter(|n| (1..=Self::MAX).contains(n));
        let parsed = if let Some(rest) = text.strip_prefix("log-normal:") {
            rest.split_once(',').and_then(|(median, sigma)| {
                let median = positive(median).filter(|m| (1.0..=f64::from(Self::MAX)).contains(m))?;
                let sigma = positive(sigma)?;
                Some(Self::LogNormal { median, sigma })
            })
        } else if let Some((low, high)) = text.split_once("..") {
            length(low)
                .zip(length(high))
                .filter(|(l, h)| l <= h)
                .map(|(l, h)| Self::Uniform(l, h))
        } else {
            length(text).map(Self::Fixed)
        };
        parsed.ok_or_else(|| SpecError {
            what: "length in tokens",
            found: text.into(),
            expected: Self::FORMS,
        })
    }
}

serde_as_text!(Lengths);

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng as _;

    fn drawn(text: &str) -> Vec<u32> {
        let lengths: Lengths = text.parse().unwrap();
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let mut drawn: Vec<u32> = (0..4001).map(|_| lengths.draw(&mut rng)).collect();
        drawn.sort_unstable();
        drawn
    }

    #[test]
    fn lengths_follow_their_distribution() {
        assert!(drawn("128").iter().all(|n| *n == 128));
        let uniform = drawn("10..20");
        assert_eq!((uniform[0], uniform[4000]), (10, 20));
        let log_normal = drawn("log-normal:100,0.5");
        // The median, and the median times e^±0.5 one standard deviation away.
        assert!((90..=110).contains(&log_normal[2000]));
        assert!((55..=66).contains(&log_normal[635]) && (150..=180).contains(&log_normal[3366]));
    }

    #[test]
    fn the_written_form_is_the_read_form() {
        for text in ["128", "10..20", "log-normal:100,0.5"] {
            assert_eq!(text.parse::<Lengths>().unwrap().to_string(), text);
        }
        for text in ["", "0", "20..10", "-1", "log-normal:100", "log-normal:0,1", "9999999"] {
            assert!(text.parse::<Lengths>().is_err(), "{text}");
        }
    }
}
