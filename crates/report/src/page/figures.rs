//! What the two profiles share: the columns of a point's figures, raw values and medians, quantile charts.

use deltamux_bench::bundle::{Latencies, Load, Point, Rates, Repeat, Statistic};
use deltamux_bench::stats::nearest_rank;

use crate::chart::{Axis, Chart, Dot, Exhibit, Mark, Series};
use crate::language::Texts;
use crate::table::{Cell, Column, TableBuilder};

/// Picks a distribution.
pub type PickStatistic = fn(&Latencies) -> Option<Statistic>;
/// Picks a rate of a repeat.
pub type PickRate = fn(&Rates<f64>) -> Option<f64>;

/// Median by nearest rank, the rule of every quantile here: a value that was observed.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().filter(|x| x.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    nearest_rank(&values, 50.0)
}

/// The median of a rate over the repeats that have it.
pub fn median_of(repeats: &[Repeat], pick: PickRate) -> Option<f64> {
    median(repeats.iter().filter_map(|repeat| pick(&repeat.rates)))
}

/// The load of a point as a number on the horizontal axis: the rate asked for (or, for a trace, offered), or the
/// requests in flight.
pub fn load_value(point: &Point) -> Option<f64> {
    match &point.load {
        Load::Open { rate_req_per_s, .. } => {
            rate_req_per_s.or_else(|| median_of(&point.repeats, |rates| rates.offered_req_per_s))
        }
        Load::Closed { concurrency } => Some(f64::from(*concurrency)),
    }
}

/// Points that have a place on the horizontal axis, in its order.
pub fn by_load(points: &[Point]) -> Vec<(f64, &Point)> {
    let mut points: Vec<_> = points
        .iter()
        .filter_map(|point| load_value(point).filter(|x| x.is_finite()).map(|x| (x, point)))
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points
}

/// What distinguishes the horizontal axes of the profiles.
pub struct LoadAxis {
    /// Name of the load.
    pub label: String,
    /// Heading of its column.
    pub heading: String,
    /// Unit of the load.
    pub unit: &'static str,
    /// Key of its column in the CSV.
    pub key: &'static str,
    /// Whether values stand at equal distances.
    pub category: bool,
}

impl LoadAxis {
    fn axis(&self, points: &[(f64, &Point)]) -> Axis {
        if self.category {
            let mut values: Vec<f64> = points.iter().map(|(x, _)| *x).collect();
            values.dedup();
            Axis::category(&self.label, self.unit, values)
        } else {
            Axis::linear(&self.label, self.unit)
        }
    }

    /// The column of loads.
    pub fn column(&self) -> Column {
        Column::number(self.key, &self.heading, self.unit).meaning(&self.label)
    }
}

/// Words of one exhibit: keys `{key}.title`, `{key}.note`, `{key}.y`.
pub struct ExhibitWords<'a> {
    /// Id on the page.
    pub id: &'static str,
    /// Start of its keys in the string tables.
    pub key: &'static str,
    /// The string table.
    pub texts: &'a Texts,
}

impl ExhibitWords<'_> {
    fn get(&self, end: &str) -> String {
        self.texts.get(&format!("{}.{end}", self.key))
    }
}

/// A rate over the load: every repeat as a dot, the medians as a line; the table keeps them apart. `read_together` adds
/// columns without which the rate would mislead.
pub fn raw_and_median(
    words: &ExhibitWords<'_>,
    load: &LoadAxis,
    points: &[(f64, &Point)],
    unit: &str,
    csv_key: &str,
    pick: PickRate,
    read_together: impl FnOnce(&mut TableBuilder<'_>),
) -> Option<Exhibit> {
    let texts = words.texts;
    let raw: Vec<Dot> = points
        .iter()
        .flat_map(|(x, point)| {
            point.repeats.iter().enumerate().filter_map(move |(i, repeat)| {
                let key = if repeat.valid {
                    "figure.repeat"
                } else {
                    "figure.repeat_invalid"
                };
                let label = texts.with(key, &[("n", &(i + 1).to_string())]);
                pick(&repeat.rates).filter(|y| y.is_finite()).map(|y| Dot(*x, y, label))
            })
        })
        .collect();
    if raw.is_empty() {
        return None;
    }
    let medians: Vec<Dot> = points
        .iter()
        .filter_map(|(x, point)| Some(Dot::at(*x, median_of(&point.repeats, pick)?)))
        .collect();
    let values: Vec<f64> = raw.iter().map(|dot| dot.1).collect();

    let mut table = TableBuilder::new(texts, points.len());
    table.conditions(load.column(), points.iter().map(|(x, _)| Some(*x)));
    let most = points.iter().map(|(_, point)| point.repeats.len()).max().unwrap_or(0);
    for i in 0..most {
        let label = texts.with("figure.raw", &[("n", &(i + 1).to_string())]);
        table.figures(
            Column::number(format!("{csv_key}_repeat_{}", i + 1), label, unit),
            points
                .iter()
                .map(|(_, point)| point.repeats.get(i).and_then(|repeat| pick(&repeat.rates))),
        );
    }
    table.figures(
        Column::number(format!("{csv_key}_median"), texts.get("figure.median"), unit),
        points.iter().map(|(_, point)| median_of(&point.repeats, pick)),
    );
    let columns = table.width();
    read_together(&mut table);
    let side = columns == table.width() && most <= 4;
    flag_invalid(&mut table, points);

    Some(Exhibit {
        title: words.get("title"),
        note: words.get("note"),
        chart: Chart {
            id: words.id.to_owned(),
            summary: words.get("title"),
            x: load.axis(points),
            y: Axis::fitting(words.get("y"), &texts.get("figure.logarithmic"), unit, &values),
            series: vec![
                Series::line(texts.get("figure.median"), 0, medians),
                Series::dots(texts.get("figure.raw_values"), 1, raw),
            ],
            marks: Vec::new(),
        },
        table: table.build(words.id, words.get("title")),
        side,
    })
}

/// Quantiles of a latency over the load.
pub fn quantiles(
    words: &ExhibitWords<'_>,
    load: &LoadAxis,
    points: &[(f64, &Point)],
    unit: &str,
    csv_key: &str,
    pick: PickStatistic,
) -> Option<Exhibit> {
    let texts = words.texts;
    let measured: Vec<(f64, &Point, Statistic)> = points
        .iter()
        .filter_map(|(x, point)| Some((*x, *point, pick(&point.latency)?)))
        .collect();
    if measured.is_empty() {
        return None;
    }
    let line =
        |of: fn(&Statistic) -> f64| -> Vec<Dot> { measured.iter().map(|(x, _, s)| Dot::at(*x, of(s))).collect() };
    let series = vec![
        Series::line("p50", 0, line(|s| s.p50)),
        Series::line("p90", 1, line(|s| s.p90)),
        Series::line("p99", 4, line(|s| s.p99)),
    ];
    let values: Vec<f64> = series
        .iter()
        .flat_map(|series| series.points.iter().map(|dot| dot.1))
        .collect();

    let mut table = TableBuilder::new(texts, points.len());
    table.conditions(load.column(), points.iter().map(|(x, _)| Some(*x)));
    statistic_columns(
        &mut table,
        texts,
        csv_key,
        "",
        unit,
        points.iter().map(|(_, point)| pick(&point.latency)).collect(),
    );
    flag_invalid(&mut table, points);

    Some(Exhibit {
        title: words.get("title"),
        note: words.get("note"),
        chart: Chart {
            id: words.id.to_owned(),
            summary: words.get("title"),
            x: load.axis(points),
            y: Axis::fitting(words.get("y"), &texts.get("figure.logarithmic"), unit, &values),
            series,
            marks: Vec::new(),
        },
        table: table.build(words.id, words.get("title")),
        side: true,
    })
}

/// The columns of a distribution: samples, quantiles, extreme, mean, standard deviation.
pub fn statistic_columns(
    table: &mut TableBuilder<'_>,
    texts: &Texts,
    csv_key: &str,
    prefix: &str,
    unit: &str,
    statistics: Vec<Option<Statistic>>,
) {
    let (stem, csv_unit) = csv_key.rsplit_once('@').unwrap_or((csv_key, ""));
    let key = |name: &str| format!("{stem}_{name}_{csv_unit}");
    let label = |name: &str| {
        if prefix.is_empty() {
            name.to_owned()
        } else {
            format!("{prefix} {name}")
        }
    };
    struct Part(&'static str, String, fn(&Statistic) -> Option<f64>);
    let parts = [
        Part("p50", "p50".to_owned(), |s| Some(s.p50)),
        Part("p90", "p90".to_owned(), |s| Some(s.p90)),
        Part("p95", "p95".to_owned(), |s| Some(s.p95)),
        Part("p99", "p99".to_owned(), |s| Some(s.p99)),
        Part("max", texts.get("figure.max"), |s| Some(s.max)),
        Part("mean", texts.get("figure.mean"), |s| Some(s.mean)),
        Part("stddev", texts.get("figure.stddev"), |s| s.stddev),
    ];
    for Part(name, text, of) in parts {
        let column = Column::number(key(name), label(&text), unit);
        table.figures(column, statistics.iter().map(|s| s.as_ref().and_then(of)));
    }
    let samples = statistics
        .iter()
        .map(|s| s.as_ref().map_or_else(Cell::absent, |s| Cell::count(texts, s.n)));
    let samples: Vec<_> = samples.collect();
    table.cells(
        Column::number(format!("{stem}_samples"), label(&texts.get("figure.samples")), ""),
        samples,
    );
}

/// Medians and tails of every latency, for the table of all figures.
pub fn latency_columns(table: &mut TableBuilder<'_>, texts: &Texts, points: &[(f64, &Point)]) {
    struct Part(&'static str, &'static str, PickStatistic, fn(&Statistic) -> f64);
    let p50: fn(&Statistic) -> f64 = |s| s.p50;
    let p99: fn(&Statistic) -> f64 = |s| s.p99;
    let parts = [
        Part("ttft_p50_ms", "ttft", |l| l.ttft_ms, p50),
        Part("ttft_p99_ms", "ttft", |l| l.ttft_ms, p99),
        Part(
            "ttft_from_schedule_p99_ms",
            "ttft_from_schedule",
            |l| l.ttft_from_schedule_ms,
            p99,
        ),
        Part("tpot_p50_ms", "tpot", |l| l.tpot_ms, p50),
        Part("tpot_p99_ms", "tpot", |l| l.tpot_ms, p99),
        Part("itl_p50_ms", "itl", |l| l.itl_ms, p50),
        Part("itl_p99_ms", "itl", |l| l.itl_ms, p99),
        Part("e2e_p50_s", "e2e", |l| l.e2e_s, p50),
        Part("e2e_p99_s", "e2e", |l| l.e2e_s, p99),
        Part(
            "e2e_from_schedule_p99_s",
            "e2e_from_schedule",
            |l| l.e2e_from_schedule_s,
            p99,
        ),
        Part("prompt_tokens_p50", "isl", |l| l.prompt_tokens, p50),
        Part("completion_tokens_p50", "osl", |l| l.completion_tokens, p50),
        Part("schedule_delay_p99_ms", "schedule_delay", |l| l.schedule_delay_ms, p99),
    ];
    for Part(csv, meaning, pick, of) in parts {
        let unit = match csv.rsplit_once('_') {
            Some((_, unit @ ("ms" | "s"))) => unit.to_owned(),
            _ => texts.get("figure.tokens"),
        };
        let column = Column::number(csv, texts.get(&format!("figure.label.{csv}")), &unit)
            .meaning(texts.get(&format!("meaning.{meaning}")));
        table.figures_if_any(column, points.iter().map(|(_, p)| pick(&p.latency).map(|s| of(&s))));
    }
    table.figures_if_any(
        Column::number("itl_tokens_per_chunk", texts.get("figure.tokens_per_chunk"), "")
            .meaning(texts.get("meaning.tokens_per_chunk")),
        points.iter().map(|(_, p)| p.latency.itl_tokens_per_chunk),
    );
}

/// Marks the rows of points that the client could not keep its schedule for.
pub fn flag_invalid(table: &mut TableBuilder<'_>, points: &[(f64, &Point)]) {
    for (row, (_, point)) in points.iter().enumerate() {
        if !point.valid {
            table.flag(row);
        }
    }
}

/// A mark on the horizontal axis.
pub fn mark_x(at: f64, label: String) -> Mark {
    Mark { axis: "x", at, label }
}

/// The columns that every point has, whatever the profile: what was asked, what became of it, and when it is invalid.
pub fn count_columns(table: &mut TableBuilder<'_>, texts: &Texts, points: &[(f64, &Point)]) {
    let count = |key: &str| Column::number(key, texts.get(&format!("figure.{key}")), "");
    table.counts(count("repeats"), points.iter().map(|(_, p)| p.repeats.len() as u64));
    table.counts(count("requests"), points.iter().map(|(_, p)| p.counts.requests));
    table.counts(count("completed"), points.iter().map(|(_, p)| p.counts.completed));
    table.counts(count("failed"), points.iter().map(|(_, p)| p.counts.failed));
    table.counts(count("warmup"), points.iter().map(|(_, p)| p.counts.warmup));
}

/// Why points are invalid, and which failures there were, as sentences.
pub fn cautions(texts: &Texts, load: &LoadAxis, points: &[(f64, &Point)]) -> Vec<String> {
    let language = texts.language();
    let mut out = Vec::new();
    for (x, point) in points {
        let number = crate::number::plain(language, *x).unwrap_or_default();
        let place = format!(
            "{} {}",
            load.label,
            crate::number::with_unit(language, &number, load.unit)
        );
        for reason in &point.invalid {
            out.push(texts.with("figure.invalid_point", &[("place", &place), ("reason", reason)]));
        }
        if point.counts.failed > 0 {
            let kinds: Vec<String> = point
                .counts
                .failures
                .iter()
                .map(|(kind, n)| format!("{kind}: {}", crate::number::count(language, *n)))
                .collect();
            let failed = crate::number::count(language, point.counts.failed);
            let all = crate::number::count(language, point.counts.requests);
            out.push(texts.with(
                "figure.failures",
                &[
                    ("place", &place),
                    ("failed", &failed),
                    ("all", &all),
                    ("kinds", &kinds.join(", ")),
                ],
            ));
        }
        if point.counts.without_usage > 0 {
            let n = crate::number::count(language, point.counts.without_usage);
            out.push(texts.with("figure.without_usage", &[("place", &place), ("n", &n)]));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_an_observed_value_and_absent_without_any() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 3.0, 2.0]), Some(2.0));
        assert_eq!(median([]), None);
        assert_eq!(median([f64::NAN]), None);
    }
}
