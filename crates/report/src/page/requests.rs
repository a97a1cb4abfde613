//! What only the raw events show: each variant's share, and every request of the heaviest point.

use std::collections::BTreeMap;

use deltamux_bench::bundle::{Load, Outcome, Profile, RequestRecord};

use super::figures::{load_value, median};
use super::{Block, Section};
use crate::chart::{Axis, Chart, Dot, Exhibit, Series};
use crate::language::Texts;
use crate::number;
use crate::source::Source;
use crate::table::{Cell, Column, TableBuilder};

/// Requests that one chart shows at most; beyond it every k-th is shown, and the note says so.
const MOST_REQUESTS: usize = 600;

/// The sections; none when the bundle's events cannot be read.
pub fn sections(texts: &Texts, source: &Source) -> Vec<Section> {
    let Some(events) = &source.events else {
        return vec![Section::new(
            texts,
            "requests",
            vec![Block::Absent {
                text: texts.get("absent.no_events"),
            }],
        )];
    };
    let measured: Vec<&RequestRecord> = events.iter().filter(|request| !request.warmup).collect();
    let mut sections = Vec::new();
    if !measured.is_empty() {
        sections.push(Section::new(texts, "by_variant", vec![by_variant(texts, &measured)]));
    }
    // All points of the quality profile are at one load, so none stands for the others.
    if source.run.profile == Profile::Quality {
        return sections;
    }
    if let Some(exhibit) = one_by_one(texts, source, &measured) {
        sections.push(Section::new(
            texts,
            "requests",
            vec![Block::Exhibit {
                exhibit: Box::new(exhibit),
            }],
        ));
    }
    sections
}

fn seconds(from: i64, to: i64) -> f64 {
    (to - from) as f64 * 1e-9
}

/// End-to-end latency from the moment of sending; completed requests only.
fn e2e_s(request: &RequestRecord) -> Option<f64> {
    request
        .completed()
        .then_some(seconds(request.t_send_ns?, request.t_done_ns))
}

/// Time to the first token from the moment of sending; completed requests only.
fn ttft_ms(request: &RequestRecord) -> Option<f64> {
    request
        .completed()
        .then_some(seconds(request.t_send_ns?, request.t_first_ns()?) * 1e3)
}

fn by_variant(texts: &Texts, measured: &[&RequestRecord]) -> Block {
    let mut groups: BTreeMap<&str, Vec<&RequestRecord>> = BTreeMap::new();
    for request in measured {
        groups.entry(&request.model).or_default().push(request);
    }
    let groups: Vec<_> = groups.into_iter().collect();
    let label = |key: &str| texts.get(&format!("figure.{key}"));
    let medians = |of: fn(&RequestRecord) -> Option<f64>| {
        groups
            .iter()
            .map(|(_, all)| median(all.iter().filter_map(|r| of(r))))
            .collect::<Vec<_>>()
    };
    let mut table = TableBuilder::new(texts, groups.len());
    table.cells(
        Column::text("model", texts.get("model.name")),
        groups.iter().map(|(name, _)| Cell::text(*name)),
    );
    table.counts(
        Column::number("requests", label("requests"), ""),
        groups.iter().map(|(_, all)| all.len() as u64),
    );
    table.counts(
        Column::number("completed", label("completed"), ""),
        groups
            .iter()
            .map(|(_, all)| all.iter().filter(|r| r.completed()).count() as u64),
    );
    table.counts(
        Column::number("failed", label("failed"), ""),
        groups
            .iter()
            .map(|(_, all)| all.iter().filter(|r| !r.completed()).count() as u64),
    );
    table.figures(
        Column::number("ttft_p50_ms", texts.get("figure.label.ttft_p50_ms"), "ms"),
        medians(ttft_ms),
    );
    table.figures(
        Column::number("e2e_p50_s", texts.get("figure.label.e2e_p50_s"), "s"),
        medians(e2e_s),
    );
    table.figures(
        Column::number(
            "completion_tokens_p50",
            texts.get("figure.label.completion_tokens_p50"),
            &label("tokens"),
        ),
        medians(|r| r.completion_tokens.filter(|_| r.completed()).map(f64::from)),
    );
    Block::Table {
        table: table.build("by-variant", texts.get("by_variant.title")),
        summary: String::new(),
        note: String::new(),
    }
}

/// The requests of the point with the highest load: when each was due (or sent), and how long it took.
fn one_by_one(texts: &Texts, source: &Source, measured: &[&RequestRecord]) -> Option<Exhibit> {
    let points = &source.run.points;
    let (index, point) = points
        .iter()
        .enumerate()
        .filter(|(_, point)| load_value(point).is_some())
        .max_by(|a, b| {
            load_value(a.1)
                .unwrap_or(0.0)
                .total_cmp(&load_value(b.1).unwrap_or(0.0))
        })?;
    let open = matches!(point.load, Load::Open { .. });
    let mut requests: Vec<&RequestRecord> = measured
        .iter()
        .copied()
        .filter(|request| usize::try_from(request.point) == Ok(index))
        .collect();
    requests.sort_by_key(|request| (request.repeat, request.t_sched_ns, request.request));
    let all = requests.len();
    let stride = all.div_ceil(MOST_REQUESTS).max(1);
    let mut starts: BTreeMap<u32, i64> = BTreeMap::new();
    for request in &requests {
        let start = starts.entry(request.repeat).or_insert(request.t_sched_ns);
        *start = (*start).min(request.t_sched_ns);
    }
    let shown: Vec<&RequestRecord> = requests.into_iter().step_by(stride).collect();
    let began = |request: &RequestRecord| seconds(starts[&request.repeat], request.t_sched_ns);
    // From the schedule: a queue at the client or the server shows in it.
    let took = |request: &RequestRecord| {
        request
            .completed()
            .then(|| seconds(request.t_sched_ns, request.t_done_ns))
    };

    let series: Vec<Series> = starts
        .keys()
        .map(|repeat| {
            let dots = shown
                .iter()
                .filter(|request| request.repeat == *repeat)
                .filter_map(|request| Some(Dot(began(request), took(request)?, request.model.clone())))
                .collect();
            let name = texts.with("figure.repeat", &[("n", &(repeat + 1).to_string())]);
            Series::dots(name, *repeat as usize, dots)
        })
        .filter(|series| !series.points.is_empty())
        .collect();
    if series.is_empty() {
        return None;
    }
    let values: Vec<f64> = series
        .iter()
        .flat_map(|series| series.points.iter().map(|dot| dot.1))
        .collect();

    let language = texts.language();
    let load = number::plain(language, load_value(point)?)?;
    let mut note = texts.with(
        if open {
            "requests.note_open"
        } else {
            "requests.note_closed"
        },
        &[("load", &load)],
    );
    if stride > 1 {
        let stride = number::count(language, stride as u64);
        let all = number::count(language, all as u64);
        note.push(' ');
        note.push_str(&texts.with("requests.thinned", &[("stride", &stride), ("all", &all)]));
    }

    let label = |key: &str| texts.get(&format!("figure.{key}"));
    let mut table = TableBuilder::new(texts, shown.len());
    table.counts(
        Column::number("repeat", label("repeat_heading"), ""),
        shown.iter().map(|r| u64::from(r.repeat) + 1),
    );
    table.counts(
        Column::number("request", label("request"), ""),
        shown.iter().map(|r| u64::from(r.request) + 1),
    );
    table.cells(
        Column::text("model", texts.get("model.name")),
        shown.iter().map(|r| Cell::text(&r.model)),
    );
    table.figures(
        Column::number("due_s", label("due"), "s"),
        shown.iter().map(|r| Some(began(r))),
    );
    table.figures(
        Column::number("ttft_ms", "TTFT", "ms"),
        shown.iter().map(|r| ttft_ms(r)),
    );
    table.figures(
        Column::number("e2e_from_schedule_s", "E2E", "s"),
        shown.iter().map(|r| took(r)),
    );
    let tokens = |of: fn(&RequestRecord) -> Option<u32>| -> Vec<Cell> {
        shown
            .iter()
            .map(|r| of(r).map_or_else(Cell::absent, |n| Cell::count(texts, u64::from(n))))
            .collect()
    };
    table.cells(
        Column::number("prompt_tokens", "ISL", &label("tokens")),
        tokens(|r| r.prompt_tokens),
    );
    table.cells(
        Column::number("completion_tokens", "OSL", &label("tokens")),
        tokens(|r| r.completion_tokens),
    );
    table.cells(
        Column::text("outcome", label("outcome")),
        shown.iter().map(|r| match &r.outcome {
            Outcome::Completed => Cell::text(texts.get("figure.completed")),
            Outcome::Failed { kind, .. } => Cell::text(kind),
        }),
    );
    for (row, request) in shown.iter().enumerate() {
        if !request.completed() {
            table.flag(row);
        }
    }
    let title = texts.get("requests.chart");
    Some(Exhibit {
        chart: Chart {
            id: "requests".to_owned(),
            summary: title.clone(),
            x: Axis {
                decimals: 2,
                ..Axis::linear(texts.get("requests.x"), "s")
            },
            y: Axis::fitting(texts.get("requests.y"), &texts.get("figure.logarithmic"), "s", &values),
            series,
            marks: Vec::new(),
        },
        table: table.build("requests", &title),
        title,
        note,
        side: false,
    })
}
