//! A run as a text table.

use comfy_table::{CellAlignment, Table, presets};
use deltamux_bench::bundle::{Estimate, Load, Point, Profile, Run, Statistic};

use super::progress::name;
use super::scores;

/// What stands where nothing was measured.
pub(super) const ABSENT: &str = "–";

/// The points of a run, one a row, and what is to be said about them.
pub fn run(run: &Run) -> String {
    if let Some(quality) = &run.quality {
        return scores::table(run, quality);
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(columns(run.profile).iter().map(|(header, _)| *header));
    for point in &run.points {
        table.add_row(columns(run.profile).iter().map(|(_, value)| value(point)));
    }
    for i in 1..columns(run.profile).len() {
        if let Some(column) = table.column_mut(i) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut text = table.to_string();
    for point in run.points.iter().filter(|p| !p.valid) {
        text.push_str(&format!(
            "\ninvalid: {}: {}",
            name(&point.load),
            point.invalid.join("; ")
        ));
    }
    for point in &run.points {
        if !point.counts.failures.is_empty() {
            let kinds: Vec<String> = point
                .counts
                .failures
                .iter()
                .map(|(kind, n)| format!("{n} {kind}"))
                .collect();
            text.push_str(&format!("\nfailed: {}: {}", name(&point.load), kinds.join(", ")));
        }
    }
    if let Some(knee) = &run.knee {
        let rate = |rate: Option<f64>| rate.map_or_else(|| ABSENT.to_owned(), |r| format!("{r} req/s"));
        text.push_str(&format!(
            "\nknee: {} (completed/offered ≥ {}); overloaded at {}",
            rate(knee.rate_req_per_s),
            knee.threshold,
            rate(knee.overloaded_at_req_per_s)
        ));
    }
    text
}

type Column = (&'static str, fn(&Point) -> String);

fn columns(profile: Profile) -> Vec<Column> {
    let mut columns: Vec<Column> = match profile {
        Profile::Arrivals => vec![
            ("rate", |p| match &p.load {
                Load::Open {
                    rate_req_per_s: Some(rate),
                    ..
                } => rate.to_string(),
                load => name(load),
            }),
            ("offered\nreq/s", |p| mean(p.rates.offered_req_per_s, 3)),
            ("req/s", |p| mean(p.rates.request_throughput_req_per_s, 3)),
            ("completed/\noffered", |p| mean(p.rates.completed_per_offered, 2)),
            ("drain\ns", |p| mean(p.rates.drain_tail_s, 2)),
        ],
        Profile::Concurrency => vec![
            ("in flight", |p| match p.load {
                Load::Closed { concurrency } => concurrency.to_string(),
                ref load => name(load),
            }),
            ("req/s", |p| mean(p.rates.request_throughput_req_per_s, 3)),
            ("decode\ntok/s", |p| mean(p.rates.aggregate_decode_tok_per_s, 1)),
            ("a request\ntok/s", |p| p50(p.latency.decode_tok_per_s, 1)),
        ],
        // Its scores have a table of their own.
        Profile::Quality => Vec::new(),
    };
    columns.extend::<[Column; 5]>([
        ("output\ntok/s", |p| mean(p.rates.output_throughput_tok_per_s, 1)),
        ("TTFT ms\np50 p99", |p| pair(p.latency.ttft_ms, 1)),
        ("TPOT ms\np50 p99", |p| pair(p.latency.tpot_ms, 1)),
        ("E2E s\np50 p99", |p| pair(p.latency.e2e_s, 2)),
        ("failed", |p| format!("{}/{}", p.counts.failed, p.counts.requests)),
    ]);
    if profile == Profile::Arrivals {
        columns.insert(9, ("E2E s, due\np50 p99", |p| pair(p.latency.e2e_from_schedule_s, 2)));
    }
    columns
}

fn mean(estimate: Option<Estimate>, digits: usize) -> String {
    estimate.map_or_else(|| ABSENT.to_owned(), |e| format!("{:.digits$}", e.mean))
}

fn p50(statistic: Option<Statistic>, digits: usize) -> String {
    statistic.map_or_else(|| ABSENT.to_owned(), |s| format!("{:.digits$}", s.p50))
}

fn pair(statistic: Option<Statistic>, digits: usize) -> String {
    statistic.map_or_else(
        || ABSENT.to_owned(),
        |s| format!("{:.digits$} {:.digits$}", s.p50, s.p99),
    )
}
