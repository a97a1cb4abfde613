//! The knee: the highest arrival rate that a server keeps up with, and the search for it.

use crate::bundle::{Knee, Load, Point};

/// Completed/offered that counts as keeping up.
pub const THRESHOLD: f64 = 0.95;
/// The search ends when the overloaded rate is within this factor of one that kept up.
const RESOLUTION: f64 = 1.15;
/// Points of a search at most, those that were asked for included.
const MAX_POINTS: usize = 14;
/// Invalid points in a row after which a search gives up.
const MAX_LATE: usize = 3;

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

/// The knee as far as `points` show it. A point whose client was late shows nothing.
pub fn knee(points: &[Point]) -> Knee {
    let of = |up: bool| {
        points
            .iter()
            .filter(move |p| p.valid && keeps_up(p) == up)
            .filter_map(rate)
    };
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

/// The rate to try next: upwards by doubling until one is too much, then between; a rate whose point is invalid once
/// more. `None` when the knee is found, the search has run its points, or the client is too late to search on.
pub fn next_rate(points: &[Point]) -> Option<f64> {
    let late = points.iter().rev().take_while(|p| !p.valid).count();
    if points.len() >= MAX_POINTS || late >= MAX_LATE {
        return None;
    }
    if late > 0 {
        return points.last().and_then(rate);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bundle::{Counts, Estimate, Latencies, Rates};

    fn estimate(mean: f64) -> Option<Estimate> {
        Some(Estimate {
            n: 1,
            mean,
            min: mean,
            max: mean,
            stddev: None,
            ci95: None,
        })
    }

    /// A server that answers up to `capacity` requests a second.
    fn measured(rate: f64, capacity: f64) -> Point {
        Point {
            load: Load::Open {
                arrivals: "poisson".parse().unwrap(),
                rate_req_per_s: Some(rate),
            },
            requests: 100,
            warmup: 0,
            valid: true,
            invalid: Vec::new(),
            counts: Counts::default(),
            latency: Latencies::default(),
            rates: Rates {
                completed_per_offered_steady: estimate((capacity / rate).min(1.0)),
                in_flight_first_third: estimate(2.0),
                in_flight_last_third: estimate(if rate > capacity { 40.0 } else { 2.5 }),
                ..Rates::default()
            },
            repeats: Vec::new(),
        }
    }

    /// Runs the search from `first` and gives the knee and the rates tried.
    fn search(first: f64, capacity: f64) -> (Knee, Vec<f64>) {
        let mut points = vec![measured(first, capacity)];
        while let Some(rate) = next_rate(&points) {
            points.push(measured(rate, capacity));
        }
        (knee(&points), points.iter().filter_map(rate).collect())
    }

    #[test]
    fn the_search_goes_up_and_then_between() {
        let (knee, rates) = search(1.0, 11.0);
        let (up, over) = (knee.rate_req_per_s.unwrap(), knee.overloaded_at_req_per_s.unwrap());
        assert!(up <= 11.0 && over > 11.0 && over <= RESOLUTION * up, "{rates:?}");
        assert_eq!(rates[..5], [1.0, 2.0, 4.0, 8.0, 16.0]);
    }

    #[test]
    fn the_search_goes_down_when_the_first_rate_is_too_much() {
        let (knee, rates) = search(10.0, 1.0);
        assert!(knee.rate_req_per_s.unwrap() <= 1.0, "{rates:?}");
    }

    #[test]
    fn a_search_without_end_stops() {
        let (knee, rates) = search(1.0, 1e9);
        assert_eq!((rates.len(), knee.overloaded_at_req_per_s), (MAX_POINTS, None));
    }

    #[test]
    fn a_point_whose_client_was_late_shows_nothing_and_is_tried_again() {
        let late = |rate| Point {
            valid: false,
            ..measured(rate, 11.0)
        };
        let mut points = vec![measured(1.0, 11.0), late(2.0)];
        assert_eq!(
            (next_rate(&points), knee(&points).rate_req_per_s),
            (Some(2.0), Some(1.0))
        );
        points.extend([late(2.0), late(2.0)]);
        assert_eq!(
            (next_rate(&points), knee(&points).overloaded_at_req_per_s),
            (None, None)
        );
    }

    #[test]
    fn what_was_not_measured_does_not_keep_up() {
        let mut point = measured(1.0, 2.0);
        assert!(keeps_up(&point));
        point.rates.completed_per_offered_steady = None;
        assert!(!keeps_up(&point));
    }

    #[test]
    fn a_queue_that_grows_is_no_keeping_up() {
        let mut point = measured(1.0, 2.0);
        point.rates.in_flight_last_third = estimate(7.0);
        assert!(!keeps_up(&point));
    }
}
