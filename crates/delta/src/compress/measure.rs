//! Errors of several methods on some linears, from one calibration: what `compress` would reach, without an artifact.

use std::path::Path;

use deltamux_kernels::Threads;
use deltamux_model::{Checkpoint, CpuBackend, LinearId};

use super::calibrate::{InputId, calibrate};
use super::error::CompressError;
use super::options::CompressOptions;
use super::{Progress, Stage, compare, compress_linears};
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
    let base = Checkpoint::open(base)?;
    let finetuned = Checkpoint::open(finetuned)?;
    compare::check_configs(&base, &finetuned)?;
    let limit = first.max_text_tokens.min(finetuned.config().max_position_embeddings);
    let samples = first.calibration.tokenise(finetuned.dir(), limit)?;
    let texts = samples.calibration.len() + samples.heldout.len();
    let threads = Threads::new(first.threads);
    threads.install(|| {
        let mut model = CpuBackend::load(&finetuned, threads.clone())?;
        let wanted = linears.iter().copied().map(InputId::of).collect();
        let calibration = calibrate(&mut model, &samples, &wanted, &|done| {
            progress(Stage::Calibrate, done, texts)
        })?;
        drop(model);
        runs.iter()
            .map(|options| {
                let (finished, _) = compress_linears(&base, &finetuned, linears, &calibration, options, progress)?;
                let measured = finished.into_iter().map(|f| {
                    let bytes = f.packed.encode().len();
                    Measured {
                        id: f.id,
                        error: f.error,
                        bytes: (bytes + header_entry_bytes(&f.id.to_string(), bytes, 0)) as u64,
                    }
                });
                Ok(measured.collect())
            })
            .collect()
    })
}
