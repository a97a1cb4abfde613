//! Turns an artifact back into a full checkpoint for other engines.

use std::collections::BTreeMap;
use std::path::Path;

use deltamux_model::{Checkpoint, DType, EmbeddingDelta, LinearId, MatrixDelta, VariantWeights, layout};
use half::{bf16, f16};

use crate::artifact::{Artifact, ArtifactError, TEXT_FILES, Target};
use crate::tensor_file::{TensorFileWriter, TensorSpec};

/// The weights of a restored checkpoint; also what marks a directory that `restore` may replace.
const WEIGHTS_FILE: &str = "model.safetensors";

/// Why a checkpoint could not be restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The file system.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The base was refused.
    #[error(transparent)]
    Checkpoint(#[from] deltamux_model::CheckpointError),
    /// The artifact was refused, or the target cannot be written.
    #[error(transparent)]
    Artifact(#[from] ArtifactError),
}

/// A restored checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// Name of the variant.
    pub name: String,
    /// Number of tensors.
    pub tensors: usize,
    /// Bytes of the weights file.
    pub bytes: u64,
}

/// Writes the checkpoint `base + artifact` to the directory `out`: every tensor in the base's type, the variant's own
/// text files and the base's for the rest. `progress` gets tensors done and their number.
pub fn restore(
    base: &Path,
    artifact: &Path,
    out: &Path,
    force: bool,
    progress: &dyn Fn(usize, usize),
) -> Result<Restored, RestoreError> {
    let base = Checkpoint::open(base)?;
    let artifact = Artifact::open(artifact)?;
    if fs_err::canonicalize(out).is_ok_and(|out| fs_err::canonicalize(base.dir()).is_ok_and(|base| base == out)) {
        return Err(ArtifactError::invalid(out, "is the base itself; choose another --out").into());
    }
    let target = Target::new(out, force, WEIGHTS_FILE)?;
    let variant = artifact.load(base.config(), &base.digest())?;
    let vocab = variant.vocab_size.unwrap_or(base.config().vocab_size);

    let mut config = base.config().clone();
    config.vocab_size = vocab;
    let mut tensors: BTreeMap<String, Vec<usize>> = config.tensors().into_iter().collect();
    // A tied model may be stored as its head alone; other engines expect the embedding.
    let mut specs = Vec::new();
    for (name, shape) in &mut tensors {
        let view = stored(&base, name)?;
        specs.push(TensorSpec {
            name: name.clone(),
            dtype: view.dtype.name(),
            shape: shape.clone(),
            bytes: shape.iter().product::<usize>() * view.dtype.bytes(),
        });
    }
    let mut writer = TensorFileWriter::create(&target.dir().join(WEIGHTS_FILE), specs)?;
    for (done, (name, shape)) in tensors.iter().enumerate() {
        progress(done, tensors.len());
        writer.tensor(&tensor(&base, &variant, name, shape)?)?;
    }
    progress(tensors.len(), tensors.len());
    let (bytes, _) = writer.finish()?;
    copy_text(&base, &artifact, vocab, &target)?;
    target.publish()?;
    Ok(Restored {
        name: artifact.name().to_string(),
        tensors: tensors.len(),
        bytes,
    })
}

fn stored<'a>(base: &'a Checkpoint, name: &str) -> Result<deltamux_model::TensorView<'a>, RestoreError> {
    base.tensor(name)
        .ok_or_else(|| ArtifactError::invalid(base.dir(), format!("tensor `{name}` is missing from the base")).into())
}

/// The bytes of a restored tensor.
fn tensor(base: &Checkpoint, variant: &VariantWeights, name: &str, shape: &[usize]) -> Result<Vec<u8>, RestoreError> {
    let view = stored(base, name)?;
    if let Some(values) = variant.vectors.get(name) {
        return Ok(narrow(values, view.dtype));
    }
    if let Some(delta) = LinearId::from_weight(name).and_then(|id| variant.linears.get(&id)) {
        let mut values = view.to_f32();
        add(&mut values, delta);
        return Ok(narrow(&values, view.dtype));
    }
    let delta = match name {
        layout::EMBEDDING => Some(&variant.embedding),
        layout::HEAD => variant.head.as_ref(),
        _ => None,
    };
    match (delta, shape) {
        (Some(delta), &[vocab, hidden]) if vocab != view.shape[0] || !matches!(delta, EmbeddingDelta::Unchanged) => {
            Ok(narrow(&embedding(&view.to_f32(), delta, vocab, hidden), view.dtype))
        }
        _ => Ok(view.bytes.to_vec()),
    }
}

fn add(values: &mut [f32], delta: &MatrixDelta) {
    values.iter_mut().zip(delta.to_dense()).for_each(|(w, d)| *w += d);
}

fn embedding(base: &[f32], delta: &EmbeddingDelta, vocab: usize, hidden: usize) -> Vec<f32> {
    let mut values = base.to_vec();
    let rows = match delta {
        EmbeddingDelta::Unchanged => None,
        EmbeddingDelta::Rows(rows) => Some(rows),
        EmbeddingDelta::Added(delta, rows) => {
            add(&mut values, delta);
            Some(rows)
        }
        EmbeddingDelta::Full(matrix) => {
            values.resize(vocab * hidden, 0.0);
            for (i, row) in values.chunks_exact_mut(hidden).enumerate() {
                matrix.row(i, row);
            }
            None
        }
    };
    values.resize(vocab * hidden, 0.0);
    for (&id, row) in rows.into_iter().flatten() {
        values[id as usize * hidden..(id as usize + 1) * hidden].copy_from_slice(row);
    }
    values
}

fn narrow(values: &[f32], dtype: DType) -> Vec<u8> {
    match dtype {
        DType::Bf16 => values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
        DType::F16 => values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
        DType::F32 => values.iter().flat_map(|&x| x.to_le_bytes()).collect(),
    }
}

/// The variant's own text files, the base's for the rest, and a configuration with the right vocabulary.
fn copy_text(base: &Checkpoint, artifact: &Artifact, vocab: usize, target: &Target) -> Result<(), RestoreError> {
    for name in TEXT_FILES {
        let path = artifact.text_file(name).unwrap_or_else(|| base.dir().join(name));
        if !path.is_file() {
            continue;
        }
        let mut bytes = fs_err::read(&path)?;
        if name == "config.json" {
            let mut config: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&bytes)
                .map_err(|e| ArtifactError::invalid(&path, format!("not a JSON object: {e}")))?;
            config.insert("vocab_size".to_owned(), vocab.into());
            if let Some(dtype) = base.tensor(layout::EMBEDDING).map(|t| t.dtype) {
                let dtype = match dtype {
                    DType::Bf16 => "bfloat16",
                    DType::F16 => "float16",
                    DType::F32 => "float32",
                };
                let key = if config.contains_key("dtype") {
                    "dtype"
                } else {
                    "torch_dtype"
                };
                config.insert(key.to_owned(), dtype.into());
            }
            bytes = serde_json::to_vec_pretty(&config).map_err(std::io::Error::from)?;
            bytes.push(b'\n');
        }
        target.write(name, &bytes)?;
    }
    Ok(())
}
