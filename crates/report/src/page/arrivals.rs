//! The arrivals profile: what was offered, what was completed, and how long answers took.

use deltamux_bench::bundle::{Estimate, Point, Rates, Run};

use super::figures::{self, ExhibitWords, LoadAxis};
use super::{Block, Section};
use crate::chart::{Dot, Exhibit, Series};
use crate::language::Texts;
use crate::table::{Column, Table, TableBuilder};

/// The profile's section.
pub fn section(texts: &Texts, run: &Run) -> Section {
    let load = LoadAxis {
        label: texts.get("arrivals.load"),
        heading: texts.get("arrivals.heading"),
        unit: "req/s",
        key: "offered_rate_req_per_s",
        category: false,
    };
    let points = figures::by_load(&run.points);
    let words = |id, key| ExhibitWords { id, key, texts };
    let mut blocks = Vec::new();
    let reasons = figures::cautions(texts, &load, &points);
    if !reasons.is_empty() {
        blocks.push(Block::Notice {
            title: texts.get("figure.cautions"),
            reasons,
        });
    }
    let exhibits = [
        throughput(
            &words("arrivals-throughput", "arrivals.throughput"),
            &load,
            &points,
            run,
        ),
        figures::quantiles(
            &words("arrivals-e2e", "arrivals.e2e"),
            &load,
            &points,
            "s",
            "e2e@s",
            |l| l.e2e_s,
        ),
        figures::quantiles(
            &words("arrivals-ttft", "arrivals.ttft"),
            &load,
            &points,
            "ms",
            "ttft@ms",
            |l| l.ttft_ms,
        ),
    ];
    blocks.extend(exhibits.into_iter().flatten().map(|exhibit| Block::Exhibit {
        exhibit: Box::new(exhibit),
    }));
    if points.is_empty() {
        blocks.push(Block::Absent {
            text: texts.get("absent.no_points"),
        });
    } else {
        blocks.push(Block::Table {
            table: all_figures(texts, &load, &points),
            summary: texts.get("figure.all"),
            note: texts.get("figure.all_note"),
        });
    }
    Section::new(texts, "arrivals", blocks)
}

fn throughput(words: &ExhibitWords<'_>, load: &LoadAxis, points: &[(f64, &Point)], run: &Run) -> Option<Exhibit> {
    let texts = words.texts;
    let pick: figures::PickRate = |rates| rates.request_throughput_req_per_s;
    let key = "request_throughput_req_per_s";
    let mut exhibit = figures::raw_and_median(words, load, points, "req/s", key, pick, |table| {
        keeping_up(table, texts, points);
    })?;
    let highest = points.last().map_or(0.0, |(x, _)| *x);
    // What keeping up would look like.
    exhibit.chart.series.push(Series::guide(
        texts.get("arrivals.throughput.guide"),
        vec![Dot::at(0.0, 0.0), Dot::at(highest, highest)],
    ));
    if let Some(rate) = run.knee.as_ref().and_then(|knee| knee.rate_req_per_s) {
        exhibit
            .chart
            .marks
            .push(figures::mark_x(rate, texts.get("arrivals.knee")));
    }
    Some(exhibit)
}

fn all_figures(texts: &Texts, load: &LoadAxis, points: &[(f64, &Point)]) -> Table {
    let mut table = TableBuilder::new(texts, points.len());
    table.conditions(load.column(), points.iter().map(|(x, _)| Some(*x)));
    figures::count_columns(&mut table, texts, points);
    let label = |key: &str| texts.get(&format!("figure.{key}"));
    let meaning = |key: &str| texts.get(&format!("meaning.{key}"));
    let rate = |key: &str, csv: &str, unit: &str| Column::number(csv, label(key), unit).meaning(meaning(key));

    table.figures(
        rate("request_throughput", "request_throughput_mean_req_per_s", "req/s"),
        points
            .iter()
            .map(|(_, p)| p.rates.request_throughput_req_per_s.map(|e| e.mean)),
    );
    table.figures_if_any(
        rate("ci95_low", "request_throughput_ci95_low_req_per_s", "req/s"),
        points
            .iter()
            .map(|(_, p)| Some(p.rates.request_throughput_req_per_s?.ci95?.low)),
    );
    table.figures_if_any(
        rate("ci95_high", "request_throughput_ci95_high_req_per_s", "req/s"),
        points
            .iter()
            .map(|(_, p)| Some(p.rates.request_throughput_req_per_s?.ci95?.high)),
    );
    keeping_up(&mut table, texts, points);
    table.figures_if_any(
        rate("goodput", "goodput_req_per_s", "req/s"),
        points.iter().map(|(_, p)| p.rates.goodput_req_per_s.map(|e| e.mean)),
    );
    table.figures(
        rate("output_throughput", "output_throughput_tok_per_s", "tok/s"),
        points
            .iter()
            .map(|(_, p)| p.rates.output_throughput_tok_per_s.map(|e| e.mean)),
    );
    table.figures(
        rate("aggregate_decode", "aggregate_decode_tok_per_s", "tok/s"),
        points
            .iter()
            .map(|(_, p)| p.rates.aggregate_decode_tok_per_s.map(|e| e.mean)),
    );
    figures::latency_columns(&mut table, texts, points);
    figures::flag_invalid(&mut table, points);
    table.build("arrivals-all", texts.get("figure.all"))
}

/// Without these a throughput misleads: an arrival-bound server and a saturated one look the same.
fn keeping_up(table: &mut TableBuilder<'_>, texts: &Texts, points: &[(f64, &Point)]) {
    let column = |key: &str, csv: &str, unit: &str| {
        Column::number(csv, texts.get(&format!("figure.{key}")), unit).meaning(texts.get(&format!("meaning.{key}")))
    };
    let means = |of: fn(&Rates<Estimate>) -> Option<Estimate>| -> Vec<Option<f64>> {
        points
            .iter()
            .map(|(_, point)| of(&point.rates).map(|estimate| estimate.mean))
            .collect()
    };
    table.figures(
        column("offered", "offered_measured_req_per_s", "req/s"),
        means(|r| r.offered_req_per_s),
    );
    table.figures(
        column("completed_per_offered", "completed_per_offered", ""),
        means(|r| r.completed_per_offered),
    );
    table.figures(
        column("completed_per_offered_steady", "completed_per_offered_steady", ""),
        means(|r| r.completed_per_offered_steady),
    );
    table.figures(column("drain_tail", "drain_tail_s", "s"), means(|r| r.drain_tail_s));
}
