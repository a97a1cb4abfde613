//! Errors of several methods on some linears, from one calibration: what `compress` would reach, without an artifact.

use std::path::Path;

use deltamux_kernels::Threads;
use deltamux_model::{Checkpoint, LayerwiseModel, LinearId};

use super::calibrate::{InputId, calibrate};
use super::error::CompressError;
use super::finetuned::Finetuned;
use super::linears::Job;
use super::options::CompressOptions;
use super::{Progress, Stage, compare};
use crate::artifact::{RelError, header_entry_bytes};

/// One linear under one set of options.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// The linear.
    pub id: LinearId,
    /// Its relative output errors.
    pub error: RelError,
    /// Its stored bytes, its part of the header included.
    pub bytes: u64,
}

/// Compresses `linears` of `finetuned` under each of `runs`, which share the calibration of the first; one list for
/// each run, in model order.
pub fn measure(
    base: &Path,
    finetuned: &Path,
    linears: &[LinearId],
    runs: &[CompressOptions],
    progress: Progress<'_>,
) -> Result<Vec<Vec<Measured>>, CompressError> {
    let Some(first) = runs.first() else {
        return Ok(Vec::new());
    };
    runs.iter().try_for_each(CompressOptions::check)?;
    let finetuned = Finetuned::open(finetuned, base)?;
    let base = Checkpoint::open(base)?;
    compare::check_configs(&base, &finetuned)?;
    let limit = first.max_text_tokens.min(finetuned.config().max_position_embeddings);
    let samples = first.calibration.tokenise(&finetuned, limit)?;
    let threads = Threads::new(first.threads);
    let dir = tempfile::tempdir()?;
    threads.install(|| {
        let wanted = linears.iter().copied().map(InputId::of).collect();
        let (layers, replaced) = finetuned.layers();
        let mut model = LayerwiseModel::new(layers, &replaced, threads.clone());
        let calibration = calibrate(
            &mut model,
            finetuned.config(),
            &samples,
            &wanted,
            dir.path(),
            &|done, total| progress(Stage::Calibrate, done, total),
        )?;
        runs.iter()
            .map(|options| {
                let job = Job {
                    base: &base,
                    finetuned: &finetuned,
                    calibration: &calibration,
                    options,
                    work: None,
                    progress,
                };
                let (finished, _) = job.run(linears)?;
                let measured = finished.into_iter().map(|f| {
                    let bytes = f.bytes.len();
                    Measured {
                        id: f.id,
                        error: f.about.info.rel_output_error,
                        bytes: (bytes + header_entry_bytes(&f.id.to_string(), bytes, 0)) as u64,
                    }
                });
                Ok(measured.collect())
            })
            .collect()
    })
}
