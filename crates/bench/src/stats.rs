//! Statistics on raw samples: nearest-rank quantiles, sample standard deviation, bootstrap over repeats.
//!
//! Every figure is rounded to twelve significant digits and twelve decimals. Nothing that was measured in nanoseconds
//! loses by it, and a figure then survives being written as JSON and read again (serde_json reads more digits, or
//! smaller numbers, only approximately), so that verification can compare with `==`.

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::bundle::{Estimate, Interval, Statistic};

/// Resamples of a bootstrap.
const RESAMPLES: usize = 2000;
/// Repeats from which on an interval is given.
const REPEATS_FOR_INTERVAL: usize = 3;

/// `x` to twelve significant digits and twelve decimals.
pub fn rounded(x: f64) -> f64 {
    // The standard library prints and reads decimals exactly.
    let read = |text: String| text.parse().unwrap_or(x);
    let x = read(format!("{x:.12}"));
    read(format!("{x:.11e}"))
}

/// The quantile `percent` of ascending samples by nearest rank: the smallest sample that at least `percent` per cent
/// of them do not exceed.
pub fn nearest_rank(ascending: &[f64], percent: f64) -> Option<f64> {
    let n = ascending.len();
    // Per mille keeps 2.5 % and 97.5 % exact.
    let per_mille = (percent * 10.0).round() as usize;
    let rank = (n * per_mille).div_ceil(1000).max(1);
    ascending.get(rank - 1).copied()
}

/// The distribution of `samples`; `None` without samples.
pub fn statistic(mut samples: Vec<f64>) -> Option<Statistic> {
    samples.sort_by(f64::total_cmp);
    let quantile = |percent| nearest_rank(&samples, percent).map(rounded);
    Some(Statistic {
        n: samples.len() as u64,
        mean: rounded(mean(&samples)?),
        p50: quantile(50.0)?,
        p90: quantile(90.0)?,
        p95: quantile(95.0)?,
        p99: quantile(99.0)?,
        max: rounded(*samples.last()?),
        stddev: stddev(&samples).map(rounded),
        mean_ci95: None,
    })
}

/// A scalar over repeats; `None` when no repeat has it.
pub fn estimate(values: &[f64]) -> Option<Estimate> {
    let min = values.iter().copied().min_by(f64::total_cmp)?;
    let max = values.iter().copied().max_by(f64::total_cmp)?;
    Some(Estimate {
        n: values.len() as u64,
        mean: rounded(mean(values)?),
        min: rounded(min),
        max: rounded(max),
        stddev: stddev(values).map(rounded),
        ci95: bootstrap(values),
    })
}

/// 95 % percentile-bootstrap interval of the mean of `values`, one value a repeat; `None` below three repeats. The
/// resampling is seeded, so the same values give the same interval.
pub fn bootstrap(values: &[f64]) -> Option<Interval> {
    if values.len() < REPEATS_FOR_INTERVAL {
        return None;
    }
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let mut means: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let sum: f64 = (0..values.len())
                .map(|_| values[rng.random_range(0..values.len())])
                .sum();
            sum / values.len() as f64
        })
        .collect();
    means.sort_by(f64::total_cmp);
    Some(Interval {
        low: rounded(nearest_rank(&means, 2.5)?),
        high: rounded(nearest_rank(&means, 97.5)?),
    })
}

fn mean(samples: &[f64]) -> Option<f64> {
    (!samples.is_empty()).then(|| samples.iter().sum::<f64>() / samples.len() as f64)
}

fn stddev(samples: &[f64]) -> Option<f64> {
    let mean = mean(samples)?;
    let squares: f64 = samples.iter().map(|x| (x - mean).powi(2)).sum();
    (samples.len() > 1).then(|| (squares / (samples.len() - 1) as f64).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_samples_give_no_statistic() {
        assert_eq!(statistic(Vec::new()), None);
        assert_eq!(estimate(&[]), None);
    }

    #[test]
    fn quantiles_are_samples_by_nearest_rank() {
        let s = statistic((1..=10).map(f64::from).rev().collect()).unwrap();
        assert_eq!((s.p50, s.p90, s.p95, s.p99, s.max), (5.0, 9.0, 10.0, 10.0, 10.0));
        assert_eq!((s.n, s.mean), (10, 5.5));
        // numpy.std(range(1, 11), ddof=1)
        assert_eq!(s.stddev, Some(rounded(3.0276503540974917)));
    }

    #[test]
    fn a_hundred_samples_have_their_ninety_ninth_as_p99() {
        let s = statistic((1..=100).map(f64::from).collect()).unwrap();
        assert_eq!((s.p50, s.p99, s.max), (50.0, 99.0, 100.0));
    }

    #[test]
    fn one_sample_has_no_spread() {
        let s = statistic(vec![2.0]).unwrap();
        assert_eq!((s.p50, s.p99, s.stddev), (2.0, 2.0, None));
    }

    #[test]
    fn an_interval_needs_three_repeats_and_lies_within_them() {
        assert_eq!(bootstrap(&[1.0, 2.0]), None);
        let interval = bootstrap(&[1.0, 2.0, 4.0]).unwrap();
        assert!(interval.low >= 1.0 && interval.low < interval.high && interval.high <= 4.0);
        assert_eq!(bootstrap(&[1.0, 2.0, 4.0]), Some(interval));
        assert_eq!(bootstrap(&[3.0; 3]), Some(Interval { low: 3.0, high: 3.0 }));
    }

    proptest::proptest! {
        /// Over the range that durations and rates can have, and the noise of a spread that should be 0.
        #[test]
        fn a_rounded_figure_survives_json(exponent in -20.0f64..12.0) {
            let x = rounded(10f64.powf(exponent));
            let text = serde_json::to_string(&x).unwrap();
            proptest::prop_assert_eq!(serde_json::from_str::<f64>(&text).unwrap().to_bits(), x.to_bits());
        }
    }
}
