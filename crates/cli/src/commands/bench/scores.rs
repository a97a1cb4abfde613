//! A run of the quality profile as a text table.

use comfy_table::{CellAlignment, Table, presets};
use deltamux_bench::bundle::{Quality, Run, Score};

use super::table::ABSENT;

/// The scores of a run, one a row, and what is to be said about them.
pub fn table(run: &Run, quality: &Quality) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "model",
        "tasks",
        "precision",
        "MiB",
        "right",
        "exact match\n95 % interval",
        "failed",
        "cut",
        "mean KL\nnats",
        "same\ntoken",
        "perplexity\n(reference)",
        "s",
    ]);
    for score in &quality.scores {
        table.add_row(row(run, quality, score));
    }
    for i in 3..12 {
        if let Some(column) = table.column_mut(i) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut text = table.to_string();
    for point in run.points.iter().zip(&quality.scores) {
        let (point, score) = point;
        if !point.counts.failures.is_empty() {
            let kinds = point.counts.failures.iter().map(|(kind, n)| format!("{n} {kind}"));
            let kinds: Vec<String> = kinds.collect();
            text.push_str(&format!("\nfailed: {}: {}", score.model, kinds.join(", ")));
        }
    }
    let reasons: std::collections::BTreeSet<&str> = quality
        .scores
        .iter()
        .filter_map(|score| score.divergence_absent.as_deref())
        .collect();
    for reason in reasons {
        text.push_str(&format!("\nnot compared with a full fine-tune: {reason}"));
    }
    text
}

fn row(run: &Run, quality: &Quality, score: &Score) -> Vec<String> {
    let shown = |text: Option<String>| text.unwrap_or_else(|| ABSENT.to_owned());
    let tasks = quality.tasks.get(score.tasks as usize).map(|file| file.name.clone());
    let bytes = run.models.iter().find(|m| m.name == score.model).and_then(|m| m.bytes);
    let near = score.divergence.as_ref();
    vec![
        score.model.clone(),
        shown(tasks),
        shown(score.precision.clone()),
        shown(bytes.map(|n| format!("{:.1}", n as f64 / f64::from(1 << 20)))),
        format!("{}/{}", score.correct, score.answered),
        shown(score.exact_match.map(|p| {
            let percent = |x: f64| 100.0 * x;
            format!(
                "{:.1} %\n{:.1} … {:.1}",
                percent(p.share),
                percent(p.low),
                percent(p.high)
            )
        })),
        score.failed.to_string(),
        score.cut.to_string(),
        shown(near.map(|d| format!("{:.5}", d.mean_kl_nats))),
        shown(near.map(|d| format!("{:.2} %", 100.0 * d.top1_agreement))),
        shown(near.map(|d| format!("{:.4}\n({:.4})", d.perplexity, d.reference_perplexity))),
        shown(score.duration_s.map(|s| format!("{s:.1}"))),
    ]
}
