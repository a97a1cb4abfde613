//! Compressing the family and counting what its answers are worth.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use deltamux_bench::tasks;
use deltamux_delta::compress::{CalibrationSource, CompressOptions, Method, compress};
use deltamux_engine::EngineConfig;

use super::family::{Family, VARIANTS};
use crate::answers;
use crate::demo::Steps;

/// Methods that are compared in serving, with their labels.
pub const METHODS: [(Method, &str); 2] = [(Method::DeltaCome, "Delta-CoMe"), (Method::Prinmix, "PrinMix")];

/// Part of the size that artifacts may take.
const RATIO: f64 = 1.0 / 16.0;

/// Completion tokens at most; the longest right answer of the family has fewer.
const MAX_TOKENS: usize = 96;

/// One variant: what it costs and what its answers are worth.
#[derive(Debug, Clone, serde::Serialize)]
pub struct VariantRow {
    /// Variant.
    pub variant: String,
    /// Share of right answers of the full fine-tune.
    pub exact_match_full: f64,
    /// Of the PrinMix artifact.
    pub exact_match_compressed: f64,
    /// Of the base.
    pub exact_match_base: f64,
    /// Held-out tasks.
    pub tasks: usize,
    /// Bytes of the full fine-tune's weights.
    pub full_bytes: u64,
    /// Bytes of the whole PrinMix artifact.
    pub artifact_bytes: u64,
    /// Stored bytes of the compressed linears over their bf16 bytes.
    pub linear_ratio: Option<f64>,
}

/// Folder of a method's artifacts.
pub fn artifacts(out: &Path, method: Method) -> PathBuf {
    out.join("variants").join(method.name())
}

/// Compresses every variant with every method and evaluates the PrinMix ones.
pub fn run(family: &Family, out: &Path, steps: &Steps) -> anyhow::Result<Vec<VariantRow>> {
    let bar = steps.step("Compressing", (METHODS.len() * VARIANTS.len()) as u64);
    let mut sizes = Vec::new();
    for (method, _) in METHODS {
        for variant in VARIANTS {
            bar.set_message(format!("{variant}, {}", method.name()));
            let options = CompressOptions {
                method,
                ratio: Some(RATIO),
                calibration: CalibrationSource::File(family.calibration(variant)),
                name: Some(variant.to_owned()),
                ..CompressOptions::new()
            };
            let target = artifacts(out, method).join(variant);
            fs_err::create_dir_all(artifacts(out, method))?;
            let done = compress(&family.base(), &family.full(variant), &target, &options, &|_, _, _| {})
                .with_context(|| format!("compressing {variant}"))?;
            if method == Method::Prinmix {
                sizes.push((done.manifest.totals.linear_ratio, done.total_bytes));
            }
            bar.inc(1);
        }
    }
    bar.finish();

    let bar = steps.step("Checking answers", 3 * VARIANTS.len() as u64);
    let mut rows = Vec::new();
    for (variant, (linear_ratio, artifact_bytes)) in VARIANTS.into_iter().zip(sizes) {
        let tasks = tasks::read_tasks(&family.tasks(variant), None)?;
        let exact_match = |base: PathBuf, artifact: Option<PathBuf>| -> anyhow::Result<f64> {
            bar.set_message(variant);
            let answers = answers::greedy(EngineConfig::new(base), artifact.as_deref(), &tasks, MAX_TOKENS, || {})?;
            bar.inc(1);
            Ok(tasks::score(&tasks, &answers.texts)
                .context("the family has tasks")?
                .exact_match)
        };
        rows.push(VariantRow {
            variant: variant.to_owned(),
            exact_match_full: exact_match(family.full(variant), None)?,
            exact_match_compressed: exact_match(family.base(), Some(artifacts(out, Method::Prinmix).join(variant)))?,
            exact_match_base: exact_match(family.base(), None)?,
            tasks: tasks.len(),
            full_bytes: fs_err::metadata(family.full(variant).join("model.safetensors"))?.len(),
            artifact_bytes,
            linear_ratio,
        });
    }
    bar.finish();
    Ok(rows)
}
