//! The head of a run's page: what was served on what, and the figures to remember.

use deltamux_bench::bundle::{Point, Profile, Run};

use super::figures::{self, by_load, median_of};
use super::{Fact, Headline, quality};
use crate::language::Texts;
use crate::number;

/// What was served: the label if one was given, and the base or the only model.
pub fn title(texts: &Texts, run: &Run) -> String {
    let base = run.models.iter().find_map(|model| model.parent.as_deref());
    let served = match (base, run.models.as_slice()) {
        (Some(base), _) => base.to_owned(),
        (None, [only]) => only.name.clone(),
        (None, models) => texts.with("masthead.models", &[("n", &models.len().to_string())]),
    };
    match &run.label {
        Some(label) => format!("{served} · {label}"),
        None => served,
    }
}

/// Whether nothing else used the device.
pub fn operation(texts: &Texts, run: &Run) -> Option<String> {
    run.engine.exclusive.map(|exclusive| {
        texts.get(if exclusive {
            "masthead.exclusive"
        } else {
            "masthead.shared"
        })
    })
}

/// Name and version of the engine.
pub fn engine(run: &Run) -> Option<String> {
    let name = run.engine.name.as_deref()?;
    Some(match &run.engine.version {
        Some(version) => format!("{name} {version}"),
        None => name.to_owned(),
    })
}

/// Topology and device, as the seed pages write them: `TP=1 · Intel Arc Pro B70`.
pub fn device(run: &Run) -> Option<String> {
    let parts: Vec<&str> = [&run.engine.topology, &run.engine.device]
        .into_iter()
        .flatten()
        .map(String::as_str)
        .collect();
    (!parts.is_empty()).then(|| parts.join(" · "))
}

/// The facts under the heading.
pub fn facts(texts: &Texts, run: &Run) -> Vec<Fact> {
    let language = texts.language();
    vec![
        Fact::stated(texts, "masthead.engine", engine(run)),
        Fact::stated(texts, "masthead.device", device(run)),
        Fact::stated(texts, "masthead.precision", run.engine.precision.clone()),
        Fact::stated(texts, "masthead.operation", operation(texts, run)),
        Fact::stated(
            texts,
            "masthead.variants",
            Some(number::count(language, run.models.len() as u64)),
        ),
        Fact::stated(
            texts,
            "masthead.measured",
            Some(number::moment(language, &run.started_at)),
        ),
    ]
}

/// Points that may stand for a run: those in which the client kept its schedule.
fn valid(points: &[Point]) -> Vec<(f64, &Point)> {
    by_load(points).into_iter().filter(|(_, point)| point.valid).collect()
}

/// The figures to remember, by profile; from valid points only.
pub fn headlines(texts: &Texts, run: &Run) -> Vec<Headline> {
    let points = valid(&run.points);
    match run.profile {
        Profile::Arrivals => arrivals(texts, run, &points),
        Profile::Concurrency => concurrency(texts, &points),
        Profile::Quality => quality::headlines(texts, run),
    }
}

/// The best figure of a run in one line, for the list; from valid points only. The quality profile has its own.
pub fn best(run: &Run) -> Option<(f64, &'static str, f64)> {
    let points = valid(&run.points);
    let (pick, unit): (figures::PickRate, _) = match run.profile {
        Profile::Arrivals => (|rates| rates.request_throughput_req_per_s, "req/s"),
        Profile::Concurrency => (|rates| rates.aggregate_decode_tok_per_s, "tok/s"),
        Profile::Quality => return None,
    };
    highest(&points, pick).map(|(x, y)| (y, unit, x))
}

fn highest(points: &[(f64, &Point)], pick: figures::PickRate) -> Option<(f64, f64)> {
    points
        .iter()
        .filter_map(|(x, point)| Some((*x, median_of(&point.repeats, pick)?)))
        .max_by(|a, b| a.1.total_cmp(&b.1))
}

struct Writer<'a>(&'a Texts);

impl Writer<'_> {
    fn headline(&self, label: &str, measured: Option<(f64, f64)>, unit: &str, condition: &str) -> Headline {
        let language = self.0.language();
        let value = measured.and_then(|(_, y)| number::fixed(language, y, number::decimals_for([y])));
        let load = measured
            .and_then(|(x, _)| number::plain(language, x))
            .unwrap_or_default();
        Headline {
            label: self.0.get(label),
            condition: if value.is_some() {
                self.0.with(condition, &[("load", &load)])
            } else {
                String::new()
            },
            value,
            unit: unit.to_owned(),
        }
    }
}

fn arrivals(texts: &Texts, run: &Run, points: &[(f64, &Point)]) -> Vec<Headline> {
    let write = Writer(texts);
    let language = texts.language();
    let top = highest(points, |rates| rates.request_throughput_req_per_s);
    let at_top = |of: fn(&Point) -> Option<f64>| {
        let (x, _) = top?;
        let (_, point) = points.iter().find(|(at, _)| *at == x)?;
        Some((x, of(point)?))
    };
    let knee = run.knee.as_ref();
    let threshold = knee
        .and_then(|knee| number::plain(language, knee.threshold))
        .unwrap_or_default();
    let knee_line = Headline {
        label: texts.get("arrivals.knee"),
        value: knee.and_then(|knee| number::plain(language, knee.rate_req_per_s?)),
        unit: "req/s".to_owned(),
        condition: match knee {
            None => texts.get("headline.knee_not_searched"),
            Some(knee) if knee.rate_req_per_s.is_none() => texts.get("headline.knee_below"),
            Some(knee) if knee.overloaded_at_req_per_s.is_none() => texts.get("headline.knee_above"),
            Some(_) => texts.with("headline.knee", &[("threshold", &threshold)]),
        },
    };
    vec![
        write.headline("headline.throughput", top, "req/s", "headline.at_rate"),
        knee_line,
        write.headline(
            "headline.e2e_p50",
            at_top(|p| p.latency.e2e_s.map(|s| s.p50)),
            "s",
            "headline.at_rate",
        ),
        write.headline(
            "headline.e2e_p99",
            at_top(|p| p.latency.e2e_s.map(|s| s.p99)),
            "s",
            "headline.at_rate",
        ),
        write.headline(
            "headline.ttft_p50",
            at_top(|p| p.latency.ttft_ms.map(|s| s.p50)),
            "ms",
            "headline.at_rate",
        ),
    ]
}

fn concurrency(texts: &Texts, points: &[(f64, &Point)]) -> Vec<Headline> {
    let write = Writer(texts);
    let at = |point: Option<&(f64, &Point)>, of: fn(&Point) -> Option<f64>| {
        let (x, point) = point?;
        Some((*x, of(point)?))
    };
    let (first, last) = (points.first(), points.last());
    vec![
        write.headline(
            "headline.decode",
            highest(points, |rates| rates.aggregate_decode_tok_per_s),
            "tok/s",
            "headline.at_concurrency",
        ),
        write.headline(
            "headline.request_decode",
            at(first, |p| p.latency.decode_tok_per_s.map(|s| s.p50)),
            "tok/s",
            "headline.at_concurrency",
        ),
        write.headline(
            "headline.ttft_p50",
            at(first, |p| p.latency.ttft_ms.map(|s| s.p50)),
            "ms",
            "headline.at_concurrency",
        ),
        write.headline(
            "headline.ttft_p99",
            at(last, |p| p.latency.ttft_ms.map(|s| s.p99)),
            "ms",
            "headline.at_concurrency",
        ),
    ]
}
