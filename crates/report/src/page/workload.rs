//! The conditions of a run: what was asked, of which models, at which loads.

use deltamux_bench::bundle::{Api, Load, Run};

use super::{Block, Fact, Section};
use crate::language::Texts;
use crate::number;
use crate::table::{Cell, Column, TableBuilder};

/// The section of conditions.
pub fn section(texts: &Texts, run: &Run) -> Section {
    let language = texts.language();
    let w = &run.workload;
    let limit =
        |ms: Option<f64>| ms.and_then(|ms| Some(number::with_unit(language, &number::plain(language, ms)?, "ms")));
    let mut facts = vec![
        Fact::stated(texts, "workload.loop", load_words(texts, run)),
        Fact::stated(texts, "workload.variants", w.variants.as_ref().map(ToString::to_string)),
        Fact::stated(
            texts,
            "workload.models",
            Some(number::count(language, run.models.len() as u64)),
        ),
        Fact::stated(
            texts,
            "workload.input",
            w.input_tokens.as_ref().map(|n| tokens(texts, n)),
        ),
        Fact::stated(
            texts,
            "workload.output",
            w.output_tokens.as_ref().map(|n| tokens(texts, n)),
        ),
        Fact::stated(texts, "workload.eos", Some(yes_no(texts, w.ignore_eos))),
        Fact::stated(texts, "workload.seed", Some(run.seed.to_string())),
        Fact::stated(
            texts,
            "workload.timeout",
            number::plain(language, w.timeout_s).map(|s| number::with_unit(language, &s, "s")),
        ),
        Fact::stated(
            texts,
            "workload.api",
            Some(texts.get(match run.target.api {
                Api::Chat => "workload.api_chat",
                Api::Completions => "workload.api_completions",
            })),
        ),
        Fact::stated(texts, "workload.url", Some(run.target.url.clone())).mono(),
    ];
    if let Some(limits) = &run.limits {
        facts.push(Fact::stated(texts, "workload.limit_ttft", limit(limits.ttft_ms)));
        facts.push(Fact::stated(texts, "workload.limit_tpot", limit(limits.tpot_ms)));
    }
    if let Some(file) = &w.file {
        facts.push(Fact::stated(texts, "workload.file", Some(file.name.clone())));
        facts.push(Fact::stated(texts, "workload.file_digest", Some(file.sha256.clone())).mono());
    }
    if let Some(quality) = &run.quality {
        facts.push(Fact::stated(
            texts,
            "workload.output_limit",
            Some(tokens(texts, &number::count(language, u64::from(quality.max_tokens)))),
        ));
        for file in &quality.tasks {
            facts.push(Fact::stated(texts, "workload.tasks", Some(file.name.clone())));
            facts.push(Fact::stated(texts, "workload.tasks_digest", Some(file.sha256.clone())).mono());
        }
    }
    if let Some(most) = w.max_in_flight {
        facts.push(Fact::stated(
            texts,
            "workload.in_flight",
            Some(number::count(language, u64::from(most))),
        ));
    }
    let mut blocks = vec![Block::Facts { facts }];
    if !run.models.is_empty() {
        let mut table = TableBuilder::new(texts, run.models.len());
        table.cells(
            Column::text("model", texts.get("model.name")),
            run.models.iter().map(|m| Cell::text(&m.name)),
        );
        table.cells(
            Column::text("parent", texts.get("model.parent")),
            run.models.iter().map(|m| Cell::maybe(m.parent.as_deref())),
        );
        table.cells(
            Column::text("digest", texts.get("model.digest")).wrapping(),
            run.models
                .iter()
                .map(|m| m.digest.as_deref().map_or_else(Cell::absent, Cell::digest)),
        );
        if run.models.iter().any(|m| m.bytes.is_some()) {
            table.cells(
                Column::number("bytes", texts.get("model.bytes"), ""),
                run.models.iter().map(|m| {
                    m.bytes
                        .map_or_else(Cell::absent, |n| Cell::number(n as f64, number::bytes(language, n)))
                }),
            );
        }
        blocks.push(Block::Table {
            table: table.build("models", texts.get("model.title")),
            summary: texts.get("model.title"),
            note: texts.get("model.note"),
        });
    }
    Section::new(texts, "workload", blocks)
}

fn tokens(texts: &Texts, lengths: &impl ToString) -> String {
    format!("{} {}", lengths.to_string(), texts.get("figure.tokens"))
}

fn yes_no(texts: &Texts, yes: bool) -> String {
    texts.get(if yes { "word.yes" } else { "word.no" })
}

/// Open or closed, and the arrival process.
fn load_words(texts: &Texts, run: &Run) -> Option<String> {
    Some(match &run.points.first()?.load {
        Load::Open { arrivals, .. } => texts.with("workload.open", &[("process", &arrivals.to_string())]),
        Load::Closed { .. } => texts.get("workload.closed"),
    })
}
