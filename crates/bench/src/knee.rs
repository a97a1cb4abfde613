//! The knee: the highest arrival rate that a server keeps up with, and the search for it.

use crate::bundle::{Knee, Load, Point};

/// Completed/offered that counts as keeping up.
pub const THRESHOLD: f64 = 0.95;
/// The search ends when the overloaded rate is within this factor of one that kept up.
const RESOLUTION: f64 = 1.15;
/// Points of a search at most, those that were asked for included.
const MAX_POINTS: usize = 14;

/// Whether the server kept up: completed/offered at least [`THRESHOLD`] without the drain tail (a short run of long
/// answers would otherwise never reach it), and no more requests in flight at the end than twice those at the start.
/// A figure that is absent proves nothing.
pub fn keeps_up(point: &Point) -> bool {
    let rates = &point.rates;
    let enough = rates
        .completed_per_offered_steady
        .is_some_and(|share| share.mean >= THRESHOLD);
    // Two more, so that an idle server's 1 in flight may become 3 by chance.
    let bounded = rates
        .in_flight_first_third
        .zip(rates.in_flight_last_third)
        .is_some_and(|(first, last)| last.mean <= 2.0 * first.mean + 2.0);
    enough && bounded
}

fn rate(point: &Point) -> Option<f64> {
    match point.load {
        Load::Open { rate_req_per_s, .. } => rate_req_per_s,
        Load::Closed { .. } => None,
    }
}

/// The knee as far as `points` show it.
pub fn knee(points: &[Point]) -> Knee {
    let of = |up: bool| points.iter().filter(move |p| keeps_up(p) == up).filter_map(rate);
    let highest = of(true).max_by(f64::total_cmp);
    let overloaded = of(false)
        .filter(|rate| highest.is_none_or(|h| *rate > h))
        .min_by(f64::total_cmp);
    Knee {
        threshold: THRESHOLD,
        rate_req_per_s: highest,
        overloaded_at_req_per_s: overloaded,
    }
}

/// The rate to try next: upwards by doubling until one is too much, then between; `None` when the knee is found or the
/// search has run its points.
pub fn next_rate(points: &[Point]) -> Option<f64> {
    if points.len() >= MAX_POINTS {
        return None;
    }
    let knee = knee(points);
    match (knee.rate_req_per_s, knee.overloaded_at_req_per_s) {
        (Some(up), None) => Some(2.0 * up),
        (Some(up), Some(over)) => (over > RESOLUTION * up).then(|| three_digits((up * over).sqrt())),
        (None, Some(over)) => Some(three_digits(over / 2.0)),
        (None, None) => None,
    }
}

/// A rate that a person can read and type again.
fn three_digits(x: f64) -> f64 {
    format!("{x:.2e}").parse().unwrap_or(x)
}
