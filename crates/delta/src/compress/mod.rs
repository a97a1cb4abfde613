//! The pipeline: compare → calibrate → factor → allocate bits → quantise V → correct and quantise U → pack.
//!
//! It is parallel over the distinct linear inputs of the model (q/k/v share one, gate/up share one), each of which one
//! thread works through alone with the same sums in the same order: the artifact is byte for byte the same for any
//! number of threads.

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
#[cfg(test)]
mod golden;
mod gptq;
mod linalg;
mod low_rank;
pub(crate) mod matrix;
mod measure;
mod options;
mod polish;
mod prinmix;
pub(crate) mod quantise;
mod samples;
mod text_files;
mod write;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use deltamux_kernels::Threads;
use deltamux_model::{Checkpoint, CpuBackend, LinearId, layout};
use rayon::prelude::*;

use crate::artifact::{CalibrationInfo, MANIFEST_FILE, Manifest, Packed, RelError, Target};
use calibrate::{Calibration, InputId, calibrate};
use linalg::{LinalgError, Matrix, quadratic};
use matrix::{Candidates, Kind};
use quantise::InputMoments;

pub use compare::LARGEST_DIFFERENCE;
pub use embeddings::EmbeddingPolicy;
pub use error::CompressError;
pub use measure::{Measured, measure};
pub use options::{Budget, CompressOptions, DEFAULT_RATIO, Method};
pub use samples::CalibrationSource;

/// What the pipeline is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Reading and comparing the checkpoints; counted in steps.
    Read,
    /// Running calibration texts; counted in texts.
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

/// A compressed linear with its errors.
struct Finished {
    id: LinearId,
    packed: Packed,
    error: RelError,
}

/// Compresses the difference between `finetuned` and `base` into the artifact directory `out`. On an error nothing is
/// left at `out`.
pub fn compress(
    base: &Path,
    finetuned: &Path,
    out: &Path,
    options: &CompressOptions,
    progress: Progress<'_>,
) -> Result<Compressed, CompressError> {
    options.check()?;
    let name = variant_name(out, options)?;
    let threads = Threads::new(options.threads);
    threads.install(|| run(base, finetuned, out, &name, options, &threads, progress))
}

fn variant_name(out: &Path, options: &CompressOptions) -> Result<String, CompressError> {
    if let Some(name) = &options.name {
        return Ok(name.clone());
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
    let base = Checkpoint::open(base)?;
    let finetuned = Checkpoint::open(finetuned)?;
    compare::check_configs(&base, &finetuned)?;
    if options.force && out.join(MANIFEST_FILE).is_file() {
        // Other tools have files of this name too: only what is an artifact is replaced.
        Manifest::read(out)?;
    }
    let target = Target::new(out, options.force, MANIFEST_FILE)?;
    finetuned.check_finite()?;
    base.check_finite()?;
    progress(Stage::Read, 1, 3);
    let (changed, relative) = compare::changed_linears(&base, &finetuned)?;
    compare::check_difference(&base, &finetuned, relative, options.force)?;
    if options.method == Method::Bitdelta {
        let shape = |&id: &LinearId| (id, base.config().linear_shape(id.kind));
        bitdelta::check_ratio(options.ratio, changed.iter().map(shape))?;
    }
    let embedding = embeddings::plan(layout::EMBEDDING, &base, &finetuned, options.embeddings)?;
    let head = (!base.config().tie_word_embeddings)
        .then(|| embeddings::plan(layout::HEAD, &base, &finetuned, options.embeddings))
        .transpose()?;
    progress(Stage::Read, 2, 3);
    let samples = options.calibration.tokenise(
        finetuned.dir(),
        options.max_text_tokens.min(finetuned.config().max_position_embeddings),
    )?;
    progress(Stage::Read, 3, 3);

    let mut calibration_info = CalibrationInfo {
        source: options.calibration.kind().to_string(),
        sha256: samples.sha256.clone(),
        texts: samples.calibration.len(),
        tokens: samples.calibration.iter().map(Vec::len).sum(),
        heldout_texts: samples.heldout.len(),
        heldout_tokens: samples.heldout.iter().map(Vec::len).sum(),
    };
    let calibration = if changed.is_empty() {
        (calibration_info.tokens, calibration_info.heldout_tokens) = (0, 0);
        Calibration::default()
    } else {
        let texts = samples.calibration.len() + samples.heldout.len();
        progress(Stage::Calibrate, 0, texts);
        let mut model = CpuBackend::load(&finetuned, threads.clone())?;
        let wanted = changed.iter().copied().map(InputId::of).collect();
        calibrate(&mut model, &samples, &wanted, &|done| {
            progress(Stage::Calibrate, done, texts)
        })?
    };

    let (linears, allocation_gap) = compress_linears(&base, &finetuned, &changed, &calibration, options, progress)?;
    drop(calibration);
    if !linears.is_empty() && linears.iter().all(|linear| linear.packed.is_empty()) {
        return Err(CompressError::Option(format!(
            "ratio {} leaves no room for a single rank of any linear: raise --ratio",
            options.ratio()
        )));
    }
    write::write(
        write::Parts {
            base: &base,
            finetuned: &finetuned,
            name,
            options,
            linears,
            allocation_gap,
            embedding,
            head,
            calibration: calibration_info,
        },
        target,
        progress,
    )
}

/// The linears that read one input.
struct Group {
    input: InputId,
    linears: Vec<LinearId>,
}

fn groups(changed: &[LinearId]) -> Vec<Group> {
    let mut groups: BTreeMap<InputId, Vec<LinearId>> = BTreeMap::new();
    for &id in changed {
        groups.entry(InputId::of(id)).or_default().push(id);
    }
    groups
        .into_iter()
        .map(|(input, linears)| Group { input, linears })
        .collect()
}

/// A linear between the two steps.
struct Prepared {
    id: LinearId,
    candidates: Candidates,
    /// `tr(ΔW C ΔWᵀ)` on the calibration activations.
    energy: f64,
    /// Bits for its ranks.
    budget: u64,
    /// Bits that it takes without any, beyond its budget.
    debt: u64,
}

fn compress_linears(
    base: &Checkpoint,
    finetuned: &Checkpoint,
    changed: &[LinearId],
    calibration: &Calibration,
    options: &CompressOptions,
    progress: Progress<'_>,
) -> Result<(Vec<Finished>, Option<f64>), CompressError> {
    let groups = groups(changed);
    let counter = AtomicUsize::new(0);
    let advance = |stage: Stage| {
        let done = counter.fetch_add(1, Ordering::Relaxed) + 1;
        progress(stage, done, changed.len());
    };

    progress(Stage::Factor, 0, changed.len());
    let prepared: Vec<Vec<Prepared>> = groups
        .par_iter()
        .map(|group| {
            let moments = moments(calibration, group)?;
            let c = moments.c.to_f32();
            let mut done = Vec::new();
            for &id in &group.linears {
                let delta = compare::difference(base, finetuned, id)?;
                let energy = quadratic(&delta, &c);
                let (budget, debt) = matrix::own_budget(&id.to_string(), delta.cols, delta.rows, options.ratio());
                // Inputs that are zero on all calibration texts: any approximation will do, and any scale.
                let scale = if energy > 0.0 { energy } else { 1.0 };
                let candidates =
                    matrix::prepare(&delta, &moments, options.method, budget, scale).map_err(|e| numerics(id, e))?;
                done.push(Prepared {
                    id,
                    candidates,
                    energy,
                    budget,
                    debt,
                });
                advance(Stage::Factor);
            }
            Ok(done)
        })
        .collect::<Result<_, CompressError>>()?;

    let (choices, gap) = choose(&prepared, options.budget);
    counter.store(0, Ordering::Relaxed);
    progress(Stage::Quantise, 0, changed.len());
    let finished: Vec<Vec<Finished>> = groups
        .par_iter()
        .zip(&prepared)
        .zip(&choices)
        .map(|((group, prepared), choices)| {
            let moments = moments(calibration, group)?;
            let c = moments.c.to_f32();
            let heldout = calibration.heldout.get(&group.input).map(|m| m.mean().to_f32());
            let mut done = Vec::new();
            for (linear, choices) in prepared.iter().zip(choices) {
                let delta = compare::difference(base, finetuned, linear.id)?;
                let approximation = linear
                    .candidates
                    .quantise(&delta, &moments, choices)
                    .map_err(|e| numerics(linear.id, e))?;
                let heldout_energy = heldout.as_ref().map(|c| quadratic(&delta, c));
                let mut rest = delta;
                rest.data
                    .iter_mut()
                    .zip(&approximation.dense.data)
                    .for_each(|(d, a)| *d -= a);
                let relative = |energy: f64, c: &Matrix<f32>| (energy > 0.0).then(|| quadratic(&rest, c) / energy);
                let error = RelError {
                    calibration: relative(linear.energy, &c),
                    heldout: heldout.as_ref().zip(heldout_energy).and_then(|(c, e)| relative(e, c)),
                };
                done.push(Finished {
                    id: linear.id,
                    packed: approximation.packed,
                    error,
                });
                advance(Stage::Quantise);
            }
            Ok(done)
        })
        .collect::<Result<_, CompressError>>()?;
    let mut finished: Vec<Finished> = finished.into_iter().flatten().collect();
    finished.sort_by_key(|f| f.id);
    Ok((finished, gap))
}

/// The choices of every linear's ranks, and the allocation's gap if there was one to make.
fn choose(prepared: &[Vec<Prepared>], budget: Budget) -> (Vec<Vec<Vec<usize>>>, Option<f64>) {
    match budget {
        Budget::Matrix => {
            let (mut error, mut bound) = (0.0, 0.0);
            let choices = prepared
                .iter()
                .map(|group| {
                    let each = group.iter().map(|p| match p.candidates.allocate(p.budget) {
                        Some(allocation) => {
                            error += allocation.error;
                            bound += allocation.bound;
                            allocation.choices
                        }
                        None => Vec::new(),
                    });
                    each.collect()
                })
                .collect();
            (choices, (bound > 0.0).then(|| (error / bound - 1.0).max(0.0)))
        }
        Budget::Model => {
            let items = |p: &Prepared| match &p.candidates.kind {
                Kind::Open(items) => items.clone(),
                Kind::Fixed(_) | Kind::Halves | Kind::Signs => Vec::new(),
            };
            let all: Vec<_> = prepared.iter().flatten().flat_map(items).collect();
            let sum = |bits: fn(&Prepared) -> u64| prepared.iter().flatten().map(bits).sum::<u64>();
            let total = sum(|p| p.budget).saturating_sub(sum(|p| p.debt));
            let allocation = allocate::allocate(&all, total);
            let mut rest = allocation.choices.as_slice();
            let choices = prepared
                .iter()
                .map(|group| {
                    let each = group.iter().map(|p| {
                        let (mine, after) = rest.split_at(items(p).len());
                        rest = after;
                        mine.to_vec()
                    });
                    each.collect()
                })
                .collect();
            (choices, if all.is_empty() { None } else { allocation.gap() })
        }
    }
}

fn moments(calibration: &Calibration, group: &Group) -> Result<InputMoments, CompressError> {
    let numerics = |what: String| CompressError::Numerics {
        tensor: group.linears.first().map(LinearId::weight).unwrap_or_default(),
        what,
    };
    let moments = calibration
        .calibration
        .get(&group.input)
        .ok_or_else(|| numerics("calibration never showed its inputs".to_string()))?;
    InputMoments::new(moments.mean()).map_err(|e| numerics(e.to_string()))
}

fn numerics(id: LinearId, error: LinalgError) -> CompressError {
    CompressError::Numerics {
        tensor: id.weight(),
        what: error.to_string(),
    }
}
