//! The pipeline: compare → calibrate → factor → allocate bits → quantise V → correct and quantise U → pack.
//!
//! Sums are taken in the same order whatever the number of threads, and nothing depends on how often a run was
//! interrupted: the artifact is byte for byte the same. What is finished lies in a folder beside the artifact
//! ([`work_dir`]) until the artifact is there.

pub(crate) mod account;
pub(crate) mod allocate;
mod best;
mod bitdelta;
mod calibrate;
mod compare;
mod delta_come;
mod embeddings;
mod error;
mod factor;
mod finetuned;
#[cfg(test)]
mod golden;
mod gptq;
mod gram;
mod linalg;
mod linears;
mod low_rank;
pub(crate) mod matrix;
mod measure;
mod merge;
mod moments;
mod options;
mod permits;
mod polish;
mod prinmix;
pub(crate) mod quantise;
mod samples;
mod shard;
mod subspace;
mod text_files;
mod widths;
mod work;
mod write;

use std::path::Path;

use deltamux_kernels::Threads;
use deltamux_model::{Checkpoint, LayerwiseModel, LinearId, layout};

use crate::artifact::{CalibrationInfo, MANIFEST_FILE, Manifest, SHARD_FILE, Target};
use calibrate::{Calibration, InputId, calibrate};
use embeddings::Plan;
use finetuned::Finetuned;
use linears::Job;
use samples::Samples;
use work::{Inputs, PIPELINE_VERSION, Work};

pub use compare::LARGEST_DIFFERENCE;
pub use embeddings::EmbeddingPolicy;
pub use error::CompressError;
pub use measure::{Measured, measure};
pub use merge::merge;
pub use options::{Budget, CompressOptions, DEFAULT_RATIO, Method};
pub use samples::CalibrationSource;
pub use shard::Shard;
pub use widths::WidthLimits;
pub use work::work_dir;

/// What the pipeline is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Reading and comparing the checkpoints; counted in steps.
    Read,
    /// Running calibration texts; counted in layers.
    Calibrate,
    /// Factoring differences; counted in linears.
    Factor,
    /// Quantising factors; counted in linears.
    Quantise,
    /// Writing the artifact; counted in steps.
    Write,
}

/// Told how far a stage is: stage, done, total.
pub type Progress<'a> = &'a (dyn Fn(Stage, usize, usize) + Sync);

/// A written artifact.
#[derive(Debug, Clone)]
pub struct Compressed {
    /// Its manifest.
    pub manifest: Manifest,
    /// Bytes of the whole directory, the manifest included.
    pub total_bytes: u64,
}

/// Compresses the difference between `finetuned` and `base` into the artifact directory `out`. On an error nothing is
/// left at `out`; finished work stays in [`work_dir`] for a run with [`CompressOptions::resume`].
///
/// A [`Shard`] of several becomes a directory for [`merge()`] instead.
pub fn compress(
    base: &Path,
    finetuned: &Path,
    out: &Path,
    options: &CompressOptions,
    progress: Progress<'_>,
) -> Result<Compressed, CompressError> {
    options.check()?;
    let name = variant_name(out, options.name.as_deref())?;
    let threads = Threads::new(options.threads);
    threads.install(|| run(base, finetuned, out, &name, options, &threads, progress))
}

fn variant_name(out: &Path, name: Option<&str>) -> Result<String, CompressError> {
    if let Some(name) = name {
        crate::artifact::check_name(name).map_err(CompressError::Option)?;
        return Ok(name.to_string());
    }
    let name = out
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    crate::artifact::check_name(&name).map_err(|e| CompressError::Option(format!("{e}; or give --name")))?;
    Ok(name)
}

fn run(
    base: &Path,
    finetuned: &Path,
    out: &Path,
    name: &str,
    options: &CompressOptions,
    threads: &Threads,
    progress: Progress<'_>,
) -> Result<Compressed, CompressError> {
    progress(Stage::Read, 0, 3);
    let finetuned = Finetuned::open(finetuned, base)?;
    let base = Checkpoint::open(base)?;
    compare::check_configs(&base, &finetuned)?;
    let marker = if options.shard.is_part() {
        SHARD_FILE
    } else {
        MANIFEST_FILE
    };
    let there = options.shard.is_part() && options.resume && !options.force && out.join(marker).is_file();
    if !there {
        check_target(out, options.force, marker)?;
    }
    finetuned.check_finite()?;
    base.check_finite()?;
    progress(Stage::Read, 1, 3);
    let (mut changed, relative) = compare::changed_linears(&base, &finetuned)?;
    compare::check_difference(&base, &finetuned, relative, options.force)?;
    changed.retain(|id| options.shard.has(*id));
    if options.method == Method::Bitdelta {
        let shape = |&id: &LinearId| (id, base.config().linear_shape(id.kind));
        bitdelta::check_ratio(options.ratio, changed.iter().map(shape))?;
    }
    let plan = |name| embeddings::plan(name, &base, &finetuned, options.embeddings);
    let (embedding, head) = match options.shard.is_first() {
        true => {
            let untied = !base.config().tie_word_embeddings;
            (
                plan(layout::EMBEDDING)?,
                untied.then(|| plan(layout::HEAD)).transpose()?,
            )
        }
        false => (Plan::Unchanged, None),
    };
    let text_files = match options.shard.is_first() {
        true => text_files::differing(base.dir(), finetuned.dir(), matches!(finetuned, Finetuned::Adapter(_)))?,
        false => Vec::new(),
    };
    progress(Stage::Read, 2, 3);
    let samples = options.calibration.tokenise(
        &finetuned,
        options.max_text_tokens.min(finetuned.config().max_position_embeddings),
    )?;
    let finetuned_digest = finetuned.digest()?;
    let inputs = Inputs {
        pipeline: PIPELINE_VERSION,
        base: base.digest(),
        calibration: calibrate::digest(&finetuned_digest, &samples),
        finetuned: finetuned_digest,
        method: options.method.name().to_string(),
        ratio: match options.method {
            Method::Bitdelta => options.ratio,
            _ => Some(options.ratio()),
        },
        budget: options.budget.name().to_string(),
        widths: options.widths.to_string(),
        embeddings: options.embeddings.name().to_string(),
        shard: options.shard,
    };
    progress(Stage::Read, 3, 3);

    if there {
        return merge::finished(out, &inputs);
    }
    let work = Work::open(out, &inputs, options.resume)?;
    let made = calibrated(
        &finetuned, &changed, &samples, &inputs, &work, options, threads, progress,
    )
    .and_then(|calibration| {
        let job = Job {
            base: &base,
            finetuned: &finetuned,
            calibration: &calibration,
            options,
            work: Some(&work),
            progress,
        };
        job.run(&changed)
    })
    .and_then(|(linears, allocations)| {
        if !options.shard.is_part()
            && !linears.is_empty()
            && linears.iter().all(|linear| !linear.about.info.is_stored())
        {
            return Err(CompressError::Option(format!(
                "ratio {} leaves no room for a single rank of any linear: raise --ratio",
                options.ratio()
            )));
        }
        let parts = write::Parts {
            base: &base,
            finetuned: &finetuned,
            name,
            options,
            inputs: &inputs,
            linears,
            allocations,
            embedding,
            head,
            text_files,
            calibration: calibration_info(options, &samples, !changed.is_empty()),
        };
        write::write(parts, Target::new(out, options.force, marker)?, progress)
    });
    match &made {
        Err(error) if error.may_pass() => work.remove_if_unused(),
        _ => work.remove(),
    }
    made
}

/// Refuses an `out` that is not ours to make or to replace.
fn check_target(out: &Path, force: bool, marker: &str) -> Result<(), CompressError> {
    if force && out.join(marker).is_file() {
        // Other tools have files of these names, too: only what is an artifact or a shard is replaced.
        match marker {
            SHARD_FILE => drop(merge::ShardManifest::read(out)?),
            _ => drop(Manifest::read(out)?),
        }
    }
    Target::check(out, force, marker)?;
    Ok(())
}

/// The second moments of the inputs of all `changed` linears.
#[expect(clippy::too_many_arguments, reason = "the parts of one run")]
fn calibrated(
    finetuned: &Finetuned,
    changed: &[LinearId],
    samples: &Samples,
    inputs: &Inputs,
    work: &Work,
    options: &CompressOptions,
    threads: &Threads,
    progress: Progress<'_>,
) -> Result<Calibration, CompressError> {
    let dir = match &options.calibration_cache {
        Some(cache) => cache.join(&inputs.calibration),
        None => work.calibration_dir(),
    };
    let wanted = changed.iter().copied().map(InputId::of).collect();
    let (layers, replaced) = finetuned.layers();
    let mut model = LayerwiseModel::new(layers, &replaced, threads.clone());
    calibrate(
        &mut model,
        finetuned.config(),
        samples,
        &wanted,
        &dir,
        &|done, total| {
            progress(Stage::Calibrate, done, total);
        },
    )
}

/// What the manifest says of the texts; without a changed linear none of them was looked at.
fn calibration_info(options: &CompressOptions, samples: &Samples, used: bool) -> CalibrationInfo {
    let tokens = |texts: &[Vec<u32>]| if used { texts.iter().map(Vec::len).sum() } else { 0 };
    CalibrationInfo {
        source: options.calibration.kind().to_string(),
        sha256: samples.sha256.clone(),
        texts: samples.calibration.len(),
        tokens: tokens(&samples.calibration),
        heldout_texts: samples.heldout.len(),
        heldout_tokens: tokens(&samples.heldout),
    }
}
