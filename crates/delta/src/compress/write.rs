//! The last step: embeddings, vectors, text files and the manifest, into the target directory; of a shard, its part.

use deltamux_model::Checkpoint;

use super::embeddings::{self, Plan};
use super::error::CompressError;
use super::finetuned::Finetuned;
use super::linalg::{Matrix, dot};
use super::linears::{Allocated, Allocations, Finished};
use super::merge::ShardManifest;
use super::options::{CompressOptions, Method};
use super::quantise::{Approximation, InputMoments};
use super::work::Inputs;
use super::{Compressed, Progress, Stage, bitdelta, matrix};
use crate::artifact::{
    ArtifactWriter, BaseInfo, CalibrationInfo, EMBEDDING, EmbeddingInfo, EmbeddingNames, FORMAT_VERSION, HEAD,
    LinearInfo, Manifest, RelError, Target, Totals,
};

/// Everything that goes into an artifact.
pub(super) struct Parts<'a> {
    pub base: &'a Checkpoint,
    pub finetuned: &'a Finetuned,
    pub name: &'a str,
    pub options: &'a CompressOptions,
    pub inputs: &'a Inputs,
    pub linears: Vec<Finished>,
    pub allocations: Allocations,
    pub embedding: Plan,
    pub head: Option<Plan>,
    /// Names and contents.
    pub text_files: Vec<(&'static str, Vec<u8>)>,
    pub calibration: CalibrationInfo,
}

/// Writes the artifact and makes it appear.
pub(super) fn write(parts: Parts<'_>, target: Target, progress: Progress<'_>) -> Result<Compressed, CompressError> {
    progress(Stage::Write, 0, 3);
    let (base, finetuned) = (parts.base, parts.finetuned);
    let mut writer = ArtifactWriter::new();
    let shard = parts.options.shard;
    let mut linears = Vec::new();
    for Finished { id, bytes, about } in parts.linears {
        // A linear whose share of the budget holds no rank stores nothing.
        if about.info.is_stored() {
            writer.raw(&id.to_string(), "U8", vec![bytes.len()], bytes);
        }
        linears.push(about.info);
    }
    let embedding = store(
        &parts.embedding,
        &EMBEDDING,
        base,
        finetuned,
        parts.options,
        &mut writer,
    )?;
    let head = parts
        .head
        .as_ref()
        .map(|plan| store(plan, &HEAD, base, finetuned, parts.options, &mut writer))
        .transpose()?;
    let vectors = match shard.is_first() {
        true => vectors(base, finetuned, &mut writer)?,
        false => Vec::new(),
    };
    progress(Stage::Write, 1, 3);

    let (delta, sizes) = writer.write(&target)?;
    let mut files = vec![delta];
    for (name, text) in &parts.text_files {
        files.push(target.write(name, text)?);
    }
    LinearInfo::set_bytes(&mut linears, &sizes);
    let config = base.config();
    let totals = Totals::of(&linears, &files);
    // Signs take what they take: that is what was asked for by their name.
    let own = parts.options.ratio.is_none() && parts.options.method == Method::Bitdelta;
    let manifest = Manifest {
        format_version: FORMAT_VERSION,
        name: parts.name.to_string(),
        method: parts.options.method.name().to_string(),
        ratio: totals.linear_ratio.filter(|_| own).unwrap_or(parts.options.ratio()),
        budget: parts.options.budget.name().to_string(),
        base: BaseInfo::of(base),
        vocab_size: (finetuned.config().vocab_size != config.vocab_size).then_some(finetuned.config().vocab_size),
        unchanged_linears: config.linears().filter(|id| shard.has(*id)).count() - linears.len(),
        rel_output_error: mean_error(&linears),
        totals,
        linears,
        embedding,
        head,
        vectors,
        allocation_gap: Allocated::gap(parts.allocations.iter().map(|(_, a)| *a)),
        calibration: parts.calibration,
        files,
    };
    let written = if shard.is_part() {
        let shard = ShardManifest {
            format_version: FORMAT_VERSION,
            inputs: parts.inputs.clone(),
            allocations: parts.allocations,
            manifest: manifest.clone(),
        };
        shard.write(&target)?
    } else {
        manifest.write(&target)?
    };
    progress(Stage::Write, 2, 3);
    target.publish()?;
    progress(Stage::Write, 3, 3);
    let total_bytes = manifest.files.iter().map(|f| f.bytes).sum::<u64>() + written.bytes;
    Ok(Compressed { manifest, total_bytes })
}

/// Means over the linears.
pub(super) fn mean_error(linears: &[LinearInfo]) -> RelError {
    RelError {
        calibration: mean(linears.iter().map(|l| l.rel_output_error.calibration)),
        heldout: mean(linears.iter().map(|l| l.rel_output_error.heldout)),
    }
}

/// Mean of the values that exist; absent when none does.
fn mean(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let present: Vec<f64> = values.flatten().collect();
    (!present.is_empty()).then(|| present.iter().sum::<f64>() / present.len() as f64)
}

/// Stores an embedding or head by its plan.
fn store(
    plan: &Plan,
    names: &EmbeddingNames,
    base: &Checkpoint,
    finetuned: &Finetuned,
    options: &CompressOptions,
    writer: &mut ArtifactWriter,
) -> Result<EmbeddingInfo, CompressError> {
    let exact = embeddings::store_exact(plan, names, finetuned, writer)?;
    let (Plan::Factored(changed, _), EmbeddingInfo::Factored { rows, bytes, .. }) = (plan, &exact) else {
        return Ok(exact);
    };
    let difference = embeddings::difference(names.full, base, finetuned, changed)?;
    let approximation = factor_alone(&difference, names.factors, options)?;
    let packed = approximation.packed;
    let mut rest = difference.clone();
    rest.data
        .iter_mut()
        .zip(&approximation.dense.data)
        .for_each(|(d, a)| *d -= a);
    let before = writer.bytes();
    if !packed.is_empty() {
        writer.packed(names.factors, &packed);
    }
    let (rows, bytes) = (*rows, bytes + (writer.bytes() - before));
    let rel_error = Some(dot(&rest.data, &rest.data) / dot(&difference.data, &difference.data));
    Ok(match packed.ranks() {
        Some(ranks) => EmbeddingInfo::Factored {
            ranks,
            rows,
            bytes,
            rel_error,
        },
        None => EmbeddingInfo::Signs { rows, bytes, rel_error },
    })
}

/// Factors and quantises a matrix whose inputs were not observed: every direction counts the same.
fn factor_alone(
    difference: &Matrix<f32>,
    name: &str,
    options: &CompressOptions,
) -> Result<Approximation, CompressError> {
    let (method, ratio) = (options.method, options.ratio());
    let numerics = |e: super::linalg::LinalgError| CompressError::Numerics {
        tensor: name.to_string(),
        what: e.to_string(),
    };
    if method == Method::Bitdelta {
        return Ok(bitdelta::quantise_rows(difference));
    }
    let inputs = difference.cols;
    let mut identity = Matrix::zeros(inputs, inputs);
    for i in 0..inputs {
        identity.row_mut(i)[i] = 1.0;
    }
    let moments = InputMoments::new(identity).map_err(numerics)?;
    let (budget, _) = matrix::own_budget(name, inputs, difference.rows, ratio);
    let energy = dot(&difference.data, &difference.data);
    let candidates = matrix::prepare(difference, &moments, method, budget).map_err(numerics)?;
    let own = candidates.allocate(&moments, energy, budget, &options.widths);
    let choices = own.map(|own| own.choices).unwrap_or_default();
    candidates.quantise(difference, &moments, &choices).map_err(numerics)
}

/// Stores the norms and biases that changed, exactly; returns their names.
fn vectors(
    base: &Checkpoint,
    finetuned: &Finetuned,
    writer: &mut ArtifactWriter,
) -> Result<Vec<String>, CompressError> {
    let mut changed = Vec::new();
    for (name, length) in crate::artifact::vector_lengths(base.config()) {
        let ours = base.expect(&name, &[length])?;
        let theirs = finetuned.expect(&name, &[length])?;
        let theirs = theirs.view();
        if ours.to_f32() != theirs.to_f32() {
            writer.raw(&name, theirs.dtype.name(), vec![length], theirs.bytes.to_vec());
            changed.push(name);
        }
    }
    Ok(changed)
}
