//! The concurrency profile: a fixed number of requests in flight.

use deltamux_bench::bundle::{Point, Run};

use super::figures::{self, ExhibitWords, LoadAxis};
use super::{Block, Section};
use crate::language::Texts;
use crate::table::{Column, Table, TableBuilder};

/// The profile's section.
pub fn section(texts: &Texts, run: &Run) -> Section {
    let load = LoadAxis {
        label: texts.get("concurrency.load"),
        heading: texts.get("concurrency.heading"),
        unit: "",
        key: "concurrency",
        category: true,
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
        figures::raw_and_median(
            &words("concurrency-decode", "concurrency.decode"),
            &load,
            &points,
            "tok/s",
            "aggregate_decode_tok_per_s",
            |rates| rates.aggregate_decode_tok_per_s,
            |_| {},
        ),
        figures::quantiles(
            &words("concurrency-ttft", "concurrency.ttft"),
            &load,
            &points,
            "ms",
            "ttft@ms",
            |l| l.ttft_ms,
        ),
        figures::quantiles(
            &words("concurrency-tpot", "concurrency.tpot"),
            &load,
            &points,
            "ms",
            "tpot@ms",
            |l| l.tpot_ms,
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
    Section::new(texts, "concurrency", blocks)
}

fn all_figures(texts: &Texts, load: &LoadAxis, points: &[(f64, &Point)]) -> Table {
    let mut table = TableBuilder::new(texts, points.len());
    table.conditions(load.column(), points.iter().map(|(x, _)| Some(*x)));
    figures::count_columns(&mut table, texts, points);
    let column = |key: &str, csv: &str, unit: &str| {
        Column::number(csv, texts.get(&format!("figure.{key}")), unit).meaning(texts.get(&format!("meaning.{key}")))
    };
    table.figures(
        column("aggregate_decode", "aggregate_decode_mean_tok_per_s", "tok/s"),
        points
            .iter()
            .map(|(_, p)| p.rates.aggregate_decode_tok_per_s.map(|e| e.mean)),
    );
    table.figures_if_any(
        column("ci95_low", "aggregate_decode_ci95_low_tok_per_s", "tok/s"),
        points
            .iter()
            .map(|(_, p)| Some(p.rates.aggregate_decode_tok_per_s?.ci95?.low)),
    );
    table.figures_if_any(
        column("ci95_high", "aggregate_decode_ci95_high_tok_per_s", "tok/s"),
        points
            .iter()
            .map(|(_, p)| Some(p.rates.aggregate_decode_tok_per_s?.ci95?.high)),
    );
    table.figures(
        column("request_decode", "request_decode_p50_tok_per_s", "tok/s"),
        points.iter().map(|(_, p)| p.latency.decode_tok_per_s.map(|s| s.p50)),
    );
    table.figures(
        column("output_throughput", "output_throughput_tok_per_s", "tok/s"),
        points
            .iter()
            .map(|(_, p)| p.rates.output_throughput_tok_per_s.map(|e| e.mean)),
    );
    table.figures(
        column("request_throughput", "request_throughput_req_per_s", "req/s"),
        points
            .iter()
            .map(|(_, p)| p.rates.request_throughput_req_per_s.map(|e| e.mean)),
    );
    table.figures_if_any(
        column("goodput", "goodput_req_per_s", "req/s"),
        points.iter().map(|(_, p)| p.rates.goodput_req_per_s.map(|e| e.mean)),
    );
    figures::latency_columns(&mut table, texts, points);
    figures::flag_invalid(&mut table, points);
    table.build("concurrency-all", texts.get("figure.all"))
}
