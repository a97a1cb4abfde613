//! The quality profile: how many answers were right, and how near predictions are to a full fine-tune's.

use deltamux_bench::bundle::{Proportion, Quality, Run, Score};

use super::{Block, Headline, Section, outlook};
use crate::chart::{Axis, Chart, Dot, Exhibit, Series};
use crate::language::Texts;
use crate::number;
use crate::source::Source;
use crate::table::{Cell, Column, Table, TableBuilder};

/// Answers that were not right and are shown at most; the raw bundle has all.
const SHOWN: usize = 200;

/// The chapter's sections; without an evaluation they say so.
pub fn sections(texts: &Texts, source: &Source) -> Vec<Section> {
    let run = &source.run;
    let Some(quality) = &run.quality else {
        return outlook::quality(texts);
    };
    let scores: Vec<Line<'_>> = quality
        .scores
        .iter()
        .enumerate()
        .map(|(i, score)| Line::of(run, quality, i, score))
        .collect();
    let mut blocks = Vec::new();
    let reasons = cautions(texts, &scores);
    if !reasons.is_empty() {
        blocks.push(Block::Notice {
            title: texts.get("figure.cautions"),
            reasons,
        });
    }
    match exact_match(texts, &scores) {
        Some(exhibit) => blocks.push(Block::Exhibit {
            exhibit: Box::new(exhibit),
        }),
        None => blocks.push(Block::Absent {
            text: texts.get("answers.none"),
        }),
    }
    blocks.push(Block::Table {
        table: divergence(texts, &scores),
        summary: String::new(),
        note: texts.get("divergence.note"),
    });
    if let Some(table) = not_right(texts, source) {
        blocks.push(Block::Table {
            table,
            summary: texts.get("answers.wrong"),
            note: texts.get("answers.wrong_note"),
        });
    }
    let size = match by_size(texts, &scores) {
        Some(exhibit) => Block::Exhibit {
            exhibit: Box::new(exhibit),
        },
        None => Block::Absent {
            text: texts.get("quality_speed.none"),
        },
    };
    vec![
        Section::new(texts, "answers", blocks),
        Section::new(texts, "quality_speed", vec![size]),
    ]
}

/// A score with what stands beside it.
struct Line<'a> {
    score: &'a Score,
    /// Name of the file of tasks.
    tasks: &'a str,
    /// Bytes of the model in memory, as the server lists it.
    bytes: Option<u64>,
    /// Output throughput while these tasks were asked, tok/s.
    throughput: Option<f64>,
}

impl<'a> Line<'a> {
    fn of(run: &'a Run, quality: &'a Quality, index: usize, score: &'a Score) -> Self {
        Self {
            score,
            tasks: quality
                .tasks
                .get(score.tasks as usize)
                .map_or("", |file| file.name.as_str()),
            bytes: run.models.iter().find(|m| m.name == score.model).and_then(|m| m.bytes),
            throughput: run
                .points
                .get(index)
                .and_then(|point| point.rates.output_throughput_tok_per_s.map(|e| e.mean)),
        }
    }

    fn name(&self) -> String {
        format!("{} · {}", self.score.model, self.tasks)
    }
}

fn percent(share: f64) -> f64 {
    100.0 * share
}

fn shown_percent(texts: &Texts, share: f64) -> String {
    let text = number::fixed(texts.language(), percent(share), 1).unwrap_or_default();
    number::with_unit(texts.language(), &text, "%")
}

fn interval(texts: &Texts, p: &Proportion) -> String {
    let (low, high) = (shown_percent(texts, p.low), shown_percent(texts, p.high));
    texts.with("answers.interval_of", &[("low", &low), ("high", &high)])
}

/// What makes the shares less than they seem: failures, answers that were cut off, shares that are absent.
fn cautions(texts: &Texts, lines: &[Line<'_>]) -> Vec<String> {
    let count = |n| number::count(texts.language(), n);
    let mut out = Vec::new();
    for line in lines {
        let (score, place) = (line.score, line.name());
        let all = count(score.items);
        if score.failed > 0 {
            let failed = count(score.failed);
            out.push(texts.with(
                "answers.failures",
                &[("place", &place), ("failed", &failed), ("all", &all)],
            ));
        }
        if score.cut > 0 {
            let cut = count(score.cut);
            out.push(texts.with("answers.cuts", &[("place", &place), ("cut", &cut)]));
        }
        for (what, reason) in [
            ("answers.exact_match", &score.exact_match_absent),
            ("answers.mean_kl", &score.divergence_absent),
        ] {
            if let Some(reason) = reason {
                let what = texts.get(what);
                out.push(texts.with(
                    "answers.absent",
                    &[("place", &place), ("what", &what), ("reason", reason)],
                ));
            }
        }
    }
    out
}

/// The columns that say what a row is of.
fn conditions(table: &mut TableBuilder<'_>, texts: &Texts, lines: &[Line<'_>]) {
    table.cells(
        Column::text("model", texts.get("model.name")),
        lines.iter().map(|line| Cell::text(&line.score.model)),
    );
    table.cells(
        Column::text("tasks", texts.get("answers.tasks")),
        lines.iter().map(|line| Cell::text(line.tasks)),
    );
    table.cells(
        Column::text("precision", texts.get("masthead.precision")),
        lines.iter().map(|line| Cell::maybe(line.score.precision.as_deref())),
    );
    table.cells(
        Column::number("model_bytes", texts.get("model.bytes"), "").meaning(texts.get("answers.bytes_meaning")),
        lines.iter().map(|line| {
            line.bytes.map_or_else(Cell::absent, |n| {
                Cell::number(n as f64, number::bytes(texts.language(), n))
            })
        }),
    );
}

fn share_columns(table: &mut TableBuilder<'_>, texts: &Texts, lines: &[Line<'_>]) {
    struct Part(&'static str, &'static str, fn(&Proportion) -> f64);
    let parts = [
        Part("exact_match_percent", "answers.exact_match", |p| p.share),
        Part("exact_match_low_percent", "figure.ci95_low", |p| p.low),
        Part("exact_match_high_percent", "figure.ci95_high", |p| p.high),
    ];
    for Part(csv, label, of) in parts {
        let column = Column::number(csv, texts.get(label), "%").meaning(texts.get("answers.exact_match_meaning"));
        table.cells(
            column,
            lines.iter().map(|line| match &line.score.exact_match {
                Some(p) => {
                    let text = number::fixed(texts.language(), percent(of(p)), 1).unwrap_or_default();
                    Cell::number(percent(of(p)), text)
                }
                None => Cell::absent(),
            }),
        );
    }
}

/// Shares with their intervals; none when nothing was answered.
fn exact_match(texts: &Texts, lines: &[Line<'_>]) -> Option<Exhibit> {
    let measured: Vec<(f64, &Proportion)> = (0u32..)
        .zip(lines)
        .filter_map(|(i, line)| Some((f64::from(i), line.score.exact_match.as_ref()?)))
        .collect();
    if measured.is_empty() {
        return None;
    }
    let dots = measured
        .iter()
        .map(|(x, p)| Dot(*x, percent(p.share), interval(texts, p)))
        .collect();
    let ends = measured
        .iter()
        .flat_map(|(x, p)| [Dot::at(*x, percent(p.low)), Dot::at(*x, percent(p.high))])
        .collect();
    let label = |key: &str| texts.get(&format!("figure.{key}"));
    let mut table = TableBuilder::new(texts, lines.len());
    conditions(&mut table, texts, lines);
    share_columns(&mut table, texts, lines);
    table.counts(
        Column::number("correct", texts.get("answers.correct"), ""),
        lines.iter().map(|line| line.score.correct),
    );
    table.counts(
        Column::number("answered", texts.get("answers.answered"), ""),
        lines.iter().map(|line| line.score.answered),
    );
    table.counts(
        Column::number("failed", label("failed"), ""),
        lines.iter().map(|line| line.score.failed),
    );
    table.counts(
        Column::number("cut", texts.get("answers.cut"), "").meaning(texts.get("answers.cut_meaning")),
        lines.iter().map(|line| line.score.cut),
    );
    table.figures(
        Column::number("duration_s", texts.get("answers.duration"), "s"),
        lines.iter().map(|line| line.score.duration_s),
    );
    for (row, line) in lines.iter().enumerate() {
        if line.score.failed > 0 {
            table.flag(row);
        }
    }
    let title = texts.get("answers.chart");
    Some(Exhibit {
        chart: Chart {
            id: "exact-match".to_owned(),
            summary: title.clone(),
            x: Axis::named(texts.get("answers.x"), lines.iter().map(Line::name).collect()),
            y: Axis {
                decimals: 1,
                ..Axis::linear(texts.get("answers.exact_match"), "%")
            },
            series: vec![
                Series::dots(texts.get("answers.exact_match"), 0, dots),
                Series::ranges(texts.get("answers.interval"), 0, ends),
            ],
            marks: Vec::new(),
        },
        table: table.build("exact-match", &title),
        title,
        note: texts.get("answers.chart_note"),
        side: false,
    })
}

fn divergence(texts: &Texts, lines: &[Line<'_>]) -> Table {
    let near = |of: fn(&deltamux_bench::bundle::Divergence) -> f64| -> Vec<Option<f64>> {
        lines
            .iter()
            .map(|line| line.score.divergence.as_ref().map(of))
            .collect()
    };
    let mut table = TableBuilder::new(texts, lines.len());
    conditions(&mut table, texts, lines);
    table.cells(
        Column::text("reference", texts.get("answers.reference")),
        lines
            .iter()
            .map(|line| Cell::maybe(line.score.divergence.as_ref().map(|d| d.reference.name.as_str()))),
    );
    // Divergences of good variants are small: all their digits count.
    table.cells(
        Column::number("mean_kl_nats", texts.get("answers.mean_kl"), "nats").meaning(texts.get("answers.kl_meaning")),
        near(|d| d.mean_kl_nats).into_iter().map(|value| match value {
            Some(x) => number::fixed(texts.language(), x, 5).map_or_else(Cell::absent, |text| Cell::number(x, text)),
            None => Cell::absent(),
        }),
    );
    let column = |csv: &str, key: &str, unit: &str| {
        Column::number(csv, texts.get(&format!("answers.{key}")), unit)
            .meaning(texts.get(&format!("answers.{key}_meaning")))
    };
    table.figures(
        column("top1_agreement_percent", "agreement", "%"),
        near(|d| percent(d.top1_agreement)),
    );
    table.figures(column("perplexity", "perplexity", ""), near(|d| d.perplexity));
    table.figures(
        column("reference_perplexity", "reference_perplexity", ""),
        near(|d| d.reference_perplexity),
    );
    table.cells(
        Column::number("positions", texts.get("answers.positions"), ""),
        lines.iter().map(|line| {
            line.score
                .divergence
                .as_ref()
                .map_or_else(Cell::absent, |d| Cell::count(texts, d.positions))
        }),
    );
    table.build("divergence", texts.get("divergence.title"))
}

/// Shares by what the models take in memory; none when the server does not say.
fn by_size(texts: &Texts, lines: &[Line<'_>]) -> Option<Exhibit> {
    let mib = |line: &Line<'_>| line.bytes.map(|n| n as f64 / f64::from(1 << 20));
    let mut files: Vec<&str> = lines.iter().map(|line| line.tasks).collect();
    files.sort_unstable();
    files.dedup();
    let series: Vec<Series> = files
        .iter()
        .enumerate()
        .map(|(color, file)| {
            let dots = lines.iter().filter(|line| line.tasks == *file).filter_map(|line| {
                let share = line.score.exact_match.as_ref()?.share;
                Some(Dot(mib(line)?, percent(share), line.score.model.clone()))
            });
            Series::dots(*file, color, dots.collect())
        })
        .filter(|series| !series.points.is_empty())
        .collect();
    if series.is_empty() {
        return None;
    }
    let sizes: Vec<f64> = lines.iter().filter_map(mib).collect();
    let mut table = TableBuilder::new(texts, lines.len());
    conditions(&mut table, texts, lines);
    share_columns(&mut table, texts, lines);
    table.figures(
        Column::number(
            "output_throughput_tok_per_s",
            texts.get("figure.output_throughput"),
            "tok/s",
        )
        .meaning(texts.get("meaning.output_throughput")),
        lines.iter().map(|line| line.throughput),
    );
    let title = texts.get("quality_speed.chart");
    Some(Exhibit {
        chart: Chart {
            id: "quality-by-size".to_owned(),
            summary: title.clone(),
            x: Axis::fitting(
                texts.get("model.bytes"),
                &texts.get("figure.logarithmic"),
                "MiB",
                &sizes,
            ),
            y: Axis {
                decimals: 1,
                ..Axis::linear(texts.get("answers.exact_match"), "%")
            },
            series,
            marks: Vec::new(),
        },
        table: table.build("quality-by-size", &title),
        title,
        note: texts.get("quality_speed.note"),
        side: false,
    })
}

/// Wrong answers and failures with what was expected; none when all were right or the answers cannot be read.
fn not_right(texts: &Texts, source: &Source) -> Option<Table> {
    let answers = source.answers.as_ref()?;
    let files = source.run.quality.iter().flat_map(|quality| &quality.tasks);
    let names: std::collections::BTreeMap<&str, &str> = files.map(|f| (f.sha256.as_str(), f.name.as_str())).collect();
    let rows: Vec<_> = answers.iter().filter(|a| a.matches != Some(true)).take(SHOWN).collect();
    if rows.is_empty() {
        return None;
    }
    let mut table = TableBuilder::new(texts, rows.len());
    table.cells(
        Column::text("model", texts.get("model.name")),
        rows.iter().map(|a| Cell::text(&a.model)),
    );
    table.cells(
        Column::text("tasks", texts.get("answers.tasks")),
        rows.iter()
            .map(|a| Cell::maybe(names.get(a.tasks_sha256.as_str()).copied())),
    );
    table.counts(
        Column::number("line", texts.get("answers.line"), ""),
        rows.iter().map(|a| a.line),
    );
    table.cells(
        Column::text("expected", texts.get("answers.expected")).wrapping(),
        rows.iter().map(|a| Cell::text(a.expected.trim())),
    );
    table.cells(
        Column::text("answer", texts.get("answers.answer")).wrapping(),
        rows.iter()
            .map(|a| Cell::text(a.answer.as_deref().unwrap_or(&a.outcome).trim())),
    );
    for (row, answer) in rows.iter().enumerate() {
        if answer.answer.is_none() {
            table.flag(row);
        }
    }
    Some(table.build("not-right", texts.get("answers.wrong")))
}

/// The best share of a run, for the list.
pub struct Best {
    /// The share with its unit.
    pub text: String,
    /// Per cent.
    pub value: f64,
    /// Of what.
    pub at: String,
}

/// The highest share of right answers; none in other profiles.
pub fn best(texts: &Texts, run: &Run) -> Option<Best> {
    let (line, p) = extreme(run, |new, old| new > old)?;
    Some(Best {
        text: shown_percent(texts, p.share),
        value: percent(p.share),
        at: line.name(),
    })
}

fn extreme(run: &Run, better: fn(f64, f64) -> bool) -> Option<(Line<'_>, Proportion)> {
    let quality = run.quality.as_ref()?;
    let mut found: Option<(usize, &Score, Proportion)> = None;
    for (i, score) in quality.scores.iter().enumerate() {
        if let Some(p) = score.exact_match
            && found.is_none_or(|(_, _, old)| better(p.share, old.share))
        {
            found = Some((i, score, p));
        }
    }
    found.map(|(i, score, p)| (Line::of(run, quality, i, score), p))
}

/// The figures to remember: the range of the shares, and how far the furthest variant is from its fine-tune.
pub fn headlines(texts: &Texts, run: &Run) -> Vec<Headline> {
    let share = |label: &str, found: Option<(Line<'_>, Proportion)>| Headline {
        label: texts.get(label),
        value: found
            .as_ref()
            .and_then(|(_, p)| number::fixed(texts.language(), percent(p.share), 1)),
        unit: "%".to_owned(),
        condition: found.map_or_else(String::new, |(line, p)| {
            format!("{}, {}", line.name(), interval(texts, &p))
        }),
    };
    let scores = run.quality.iter().flat_map(|quality| &quality.scores);
    let furthest = scores
        .clone()
        .filter_map(|score| Some((score, score.divergence.as_ref()?)))
        .max_by(|a, b| a.1.mean_kl_nats.total_cmp(&b.1.mean_kl_nats));
    let answered: u64 = scores.clone().map(|score| score.answered).sum();
    let failed: u64 = scores.map(|score| score.failed).sum();
    vec![
        share("headline.highest_match", extreme(run, |new, old| new > old)),
        share("headline.lowest_match", extreme(run, |new, old| new < old)),
        Headline {
            label: texts.get("headline.furthest"),
            value: furthest.and_then(|(_, d)| number::fixed(texts.language(), d.mean_kl_nats, 5)),
            unit: "nats".to_owned(),
            condition: furthest.map_or_else(String::new, |(score, d)| {
                texts.with(
                    "headline.against",
                    &[("model", &score.model), ("reference", &d.reference.name)],
                )
            }),
        },
        Headline {
            label: texts.get("headline.answered"),
            value: (answered > 0).then(|| number::count(texts.language(), answered)),
            unit: String::new(),
            condition: texts.with("headline.failed", &[("n", &number::count(texts.language(), failed))]),
        },
    ]
}
