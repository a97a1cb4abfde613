//! The demo: everything on the bundled tiny family, with the real binary, server and load generator.

mod compression;
mod family;
mod server;
mod serving;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use comfy_table::{CellAlignment, Table};
use compression::VariantRow;
use deltamux_bench::verify::{Status, verify};
use family::Family;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serving::ServingRow;

/// The demo's own report; it also marks a folder that the demo made, the only kind that is ever replaced.
const REPORT_FILE: &str = ".deltamux-demo.json";

/// Everything the demo found out.
#[derive(Debug, serde::Serialize)]
pub struct Report {
    /// Whether every check passed.
    pub ok: bool,
    /// The site's first page.
    pub site: PathBuf,
    /// Folders of the run bundles.
    pub runs: Vec<PathBuf>,
    /// Answers that were the same alone and among others.
    pub answers_checked: usize,
    /// Quality and size by variant.
    pub variants: Vec<VariantRow>,
    /// Speed by engine and rate.
    pub serving: Vec<ServingRow>,
    /// How long it took, s.
    pub seconds: f64,
}

/// The steps' bars, one under the other on stderr.
pub struct Steps {
    bars: MultiProgress,
}

impl Steps {
    /// A new step of `length` parts.
    pub fn step(&self, name: &str, length: u64) -> ProgressBar {
        let style = ProgressStyle::with_template("{prefix:>28} [{bar:30}] {pos:>3}/{len:3} {elapsed:>3} {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("=> ");
        let bar = self
            .bars
            .add(ProgressBar::new(length).with_style(style).with_prefix(name.to_owned()));
        bar.enable_steady_tick(Duration::from_millis(250));
        bar
    }
}

/// Runs the demo; the result lies at `out`, where it replaces an earlier demo's once everything has gone well.
pub fn run(out: &Path, family: Option<&Path>) -> anyhow::Result<Report> {
    let started = Instant::now();
    let family = Family::find(family)?;
    check_replaceable(out)?;
    let parent = match out.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    fs_err::create_dir_all(parent)?;
    let parent = fs_err::canonicalize(parent)?;
    let name = out
        .file_name()
        .with_context(|| format!("{} is not a directory name: give another --out DIR", out.display()))?;
    let work = tempfile::Builder::new().prefix(".deltamux-demo-").tempdir_in(&parent)?;

    let steps = Steps {
        bars: MultiProgress::new(),
    };
    let variants = compression::run(&family, work.path(), &steps)?;
    let served = serving::run(&family, work.path(), &steps)?;
    let bar = steps.step("Verifying bundles", served.bundles.len() as u64);
    for bundle in &served.bundles {
        let verification = verify(bundle)?;
        if verification.status != Status::Validated {
            bail!(crate::output::Internal(format!(
                "{} does not verify: {}",
                bundle.display(),
                verification.reasons.join("; ")
            )));
        }
        bar.inc(1);
    }
    bar.finish();
    let failed: u64 = served.rows.iter().map(|row| row.failed).sum();
    if failed > 0 || served.answers_checked == 0 {
        bail!(crate::output::Internal(format!("{failed} requests failed")));
    }
    let site = deltamux_report::build(&deltamux_report::BuildOptions {
        bundles: served.bundles.clone(),
        out: work.path().join("site"),
        language: None,
    })?;

    let target = parent.join(name);
    let moved = |path: &Path| {
        path.strip_prefix(work.path())
            .map_or(path.to_owned(), |inner| target.join(inner))
    };
    let report = Report {
        ok: true,
        site: moved(&site.index),
        runs: served.bundles.iter().map(|bundle| moved(bundle)).collect(),
        answers_checked: served.answers_checked,
        variants,
        serving: served.rows,
        seconds: started.elapsed().as_secs_f64(),
    };
    fs_err::write(
        work.path().join(REPORT_FILE),
        serde_json::to_string_pretty(&report)? + "\n",
    )?;
    if target.exists() {
        fs_err::remove_dir_all(&target)?;
    }
    fs_err::rename(work.keep(), &target)?;
    Ok(report)
}

/// Refuses to replace anything but what an earlier demo left, or an empty folder.
fn check_replaceable(out: &Path) -> anyhow::Result<()> {
    let ours = |path: &Path| {
        let report = fs_err::read(path.join(REPORT_FILE)).ok();
        report
            .and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok())
            .is_some_and(|r| r["ok"] == true)
    };
    if !out.exists() || ours(out) || out.is_dir() && fs_err::read_dir(out)?.next().is_none() {
        return Ok(());
    }
    bail!(
        "{} exists and was not made by the demo: give another --out DIR",
        out.display()
    )
}

/// The report as two short tables.
pub fn tables(report: &Report) -> String {
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let figure = |value: Option<f64>, digits| value.map_or("not measured".into(), |v| format!("{v:.digits$}"));
    let mut quality = table(&[
        "variant",
        "exact match: full",
        "compressed",
        "base",
        "full",
        "artifact",
        "linears at",
    ]);
    for row in &report.variants {
        quality.add_row([
            row.variant.clone(),
            percent(row.exact_match_full),
            percent(row.exact_match_compressed),
            percent(row.exact_match_base),
            format!("{:.2} MB", row.full_bytes as f64 / 1e6),
            format!("{:.2} MB", row.artifact_bytes as f64 / 1e6),
            row.linear_ratio
                .map_or("unchanged".into(), |ratio| format!("1/{:.1}", 1.0 / ratio)),
        ]);
    }
    let mut speed = table(&[
        "method",
        "offered req/s",
        "req/s",
        "E2E mean, ms",
        "E2E p95, ms",
        "failed",
    ]);
    for row in &report.serving {
        speed.add_row([
            row.method.clone(),
            figure(row.offered_req_per_s, 1),
            figure(row.throughput_req_per_s, 1),
            figure(row.e2e_mean_s.map(|s| 1e3 * s), 1),
            figure(row.e2e_p95_s.map(|s| 1e3 * s), 1),
            row.failed.to_string(),
        ]);
    }
    format!(
        "{quality}\n\n{speed}\nNaive swaps full checkpoints of 5 MB, a matter of milliseconds; those of real models take seconds.\n\n{} answers were the same alone and among other requests.\n{} run bundles verified. The \
         site: {}\n{:.0} s in all.",
        report.answers_checked,
        report.runs.len(),
        report.site.display(),
        report.seconds
    )
}

/// A table whose columns after the first are numbers.
fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(comfy_table::presets::UTF8_FULL_CONDENSED)
        .set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
