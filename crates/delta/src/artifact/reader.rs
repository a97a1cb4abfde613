//! Turns a verified artifact into weights: every name and shape is held against the base before anything is used.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use deltamux_kernels::{PackedMatrix, Threads};
use deltamux_model::weights_file::{self, StoredTensor};
use deltamux_model::{DType, TensorView};
use deltamux_model::{EmbeddingDelta, LinearId, MatrixDelta, ModelConfig, VariantWeights};
use half::bf16;

use super::layout::Owner;
use super::packed::decode_window;
use super::verify::{check_embedding, check_stored};
use super::{Artifact, ArtifactError, DELTA_FILE, EmbeddingInfo, MANIFEST_FILE};

/// Length of every norm and bias of the base, by tensor name.
pub(crate) fn vector_lengths(config: &ModelConfig) -> BTreeMap<String, usize> {
    config
        .tensors()
        .into_iter()
        .filter_map(|(name, shape)| match shape[..] {
            [length] => Some((name, length)),
            _ => None,
        })
        .collect()
}

/// Names of a matrix's packed factors or signs, exact rows with their indices, or whole replacement.
pub(crate) struct EmbeddingNames {
    pub factors: &'static str,
    pub rows: &'static str,
    pub row_ids: &'static str,
    pub full: &'static str,
}

/// The input embedding.
pub(crate) const EMBEDDING: EmbeddingNames = EmbeddingNames {
    factors: "model.embed_tokens",
    rows: "model.embed_tokens.rows",
    row_ids: "model.embed_tokens.row_ids",
    full: "model.embed_tokens.weight",
};

/// An untied output head.
pub(crate) const HEAD: EmbeddingNames = EmbeddingNames {
    factors: "lm_head",
    rows: "lm_head.rows",
    row_ids: "lm_head.row_ids",
    full: "lm_head.weight",
};

/// A mapped file.
pub(crate) struct Mapped(Owner);

impl Mapped {
    pub fn open(path: &Path) -> Result<Self, ArtifactError> {
        let file = fs_err::File::open(path)?;
        if file.metadata()?.len() == 0 {
            return Err(ArtifactError::invalid(path, "is empty; copy the artifact again"));
        }
        // SAFETY: artifacts are replaced by renaming a new directory over the old one, never written in place, so the
        // mapped bytes do not change; a foreign process that truncates the file breaks every mapping of it, ours too.
        let map = unsafe { memmap2::Mmap::map(file.file()) }?;
        Ok(Self(Arc::new(map)))
    }

    fn bytes(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

/// The parsed header of a packed file.
pub(crate) struct Tensors<'a> {
    path: &'a Path,
    mapped: &'a Mapped,
    data: usize,
    entries: BTreeMap<String, StoredTensor>,
}

/// One tensor of a packed file.
pub(crate) struct Tensor<'a> {
    tensors: &'a Tensors<'a>,
    entry: &'a StoredTensor,
}

impl<'a> Tensors<'a> {
    pub fn parse(mapped: &'a Mapped, path: &'a Path) -> Result<Self, ArtifactError> {
        let (data, header) = weights_file::parse(mapped.bytes()).map_err(|e| ArtifactError::invalid(path, e))?;
        Ok(Self {
            path,
            mapped,
            data,
            entries: header.tensors,
        })
    }

    /// Names of all tensors, sorted.
    pub fn names(&'a self) -> impl Iterator<Item = &'a str> {
        self.entries.keys().map(String::as_str)
    }

    pub fn get(&'a self, name: &str) -> Option<Tensor<'a>> {
        self.entries.get(name).map(|entry| Tensor { tensors: self, entry })
    }

    pub fn expect(&'a self, name: &str) -> Result<Tensor<'a>, ArtifactError> {
        self.get(name).ok_or_else(|| {
            ArtifactError::invalid(
                self.path,
                format!("tensor `{name}` is missing, but the manifest lists it; compress again"),
            )
        })
    }

    fn invalid(&self, what: impl Into<String>) -> ArtifactError {
        ArtifactError::invalid(self.path, what)
    }
}

impl<'a> Tensor<'a> {
    pub fn len(&self) -> usize {
        self.entry.end - self.entry.begin
    }

    pub fn offset(&self) -> usize {
        self.entry.begin
    }

    pub fn bytes(&self) -> &'a [u8] {
        &self.tensors.mapped.bytes()[self.tensors.data..][self.entry.begin..self.entry.end]
    }

    pub fn dtype(&self) -> &str {
        &self.entry.dtype
    }

    pub fn shape(&self) -> &[usize] {
        &self.entry.shape
    }

    fn packed(&self, inputs: usize, outputs: usize) -> Result<MatrixDelta, String> {
        if self.entry.dtype != "U8" {
            return Err(format!(
                "has type {}, but packed factors and signs are U8",
                self.entry.dtype
            ));
        }
        let start = self.tensors.data + self.entry.begin;
        decode_window(&self.tensors.mapped.0, start, self.len(), inputs, outputs)
    }

    /// Elements of a float tensor; NaN and infinity are refused.
    fn floats(&self) -> Result<Vec<f32>, String> {
        let dtype = DType::from_name(&self.entry.dtype)
            .ok_or_else(|| format!("has type {}, but exact weights are BF16, F16 or F32", self.entry.dtype))?;
        let view = TensorView {
            dtype,
            shape: self.shape(),
            bytes: self.bytes(),
        };
        match view.first_non_finite() {
            Some((at, value)) => Err(format!("holds {value} at index {at}")),
            None => Ok(view.to_f32()),
        }
    }
}

/// Maps the packed file of `artifact` and checks it against `base`.
pub(crate) fn load(artifact: &Artifact, base: &ModelConfig) -> Result<VariantWeights, ArtifactError> {
    let path: PathBuf = artifact.dir.join(DELTA_FILE);
    let mapped = Mapped::open(&path)?;
    let tensors = Tensors::parse(&mapped, &path)?;
    let manifest = &artifact.manifest;
    let vocab = manifest.vocab_size.unwrap_or(base.vocab_size);
    // Memory is counted from these before anything is loaded.
    let of_base = &manifest.base;
    if (of_base.hidden_size, of_base.vocab_size) != (base.hidden_size, base.vocab_size) {
        return Err(ArtifactError::invalid(
            artifact.dir.join(MANIFEST_FILE),
            format!(
                "says that the base has a hidden size of {} and a vocabulary of {}, but it has {} and {}; compress again",
                of_base.hidden_size, of_base.vocab_size, base.hidden_size, base.vocab_size
            ),
        ));
    }
    refuse_foreign(&tensors, base)?;

    let mut linears = HashMap::new();
    for info in &manifest.linears {
        let id = LinearId::from_weight(&format!("{}.weight", info.name))
            .filter(|id| id.layer < base.num_layers)
            .ok_or_else(|| tensors.invalid(format!("the base has no linear `{}`", info.name)))?;
        let (outputs, inputs) = base.linear_shape(id.kind);
        if info.shape != [outputs, inputs] {
            return Err(tensors.invalid(format!(
                "`{}` has shape {:?}, but the base's is [{outputs}, {inputs}]",
                info.name, info.shape
            )));
        }
        if !info.is_stored() {
            continue; // its share of the budget held no rank: nothing is stored
        }
        let tensor = tensors.expect(&info.name)?;
        let named = |e: String| tensors.invalid(format!("`{}`: {e}", info.name));
        check_stored(info, tensor.bytes()).map_err(|e| tensors.invalid(e))?;
        linears.insert(id, tensor.packed(inputs, outputs).map_err(named)?);
    }
    let stored = manifest.linears.iter().filter(|l| l.is_stored());
    let listed: BTreeSet<&str> = stored.map(|l| l.name.as_str()).collect();
    let extra: Vec<&str> = tensors
        .entries
        .keys()
        .map(String::as_str)
        .filter(|name| LinearId::from_weight(&format!("{name}.weight")).is_some() && !listed.contains(name))
        .collect();
    if !extra.is_empty() {
        return Err(tensors.invalid(format!("tensors that the manifest does not list: {}", list(&extra))));
    }

    let shapes = vector_lengths(base);
    let mut vectors = HashMap::new();
    for name in &manifest.vectors {
        let tensor = tensors.expect(name)?;
        let Some(&length) = shapes.get(name.as_str()) else {
            return Err(tensors.invalid(format!("the base has no norm or bias `{name}`")));
        };
        if tensor.shape() != [length] {
            return Err(tensors.invalid(format!(
                "`{name}` has shape {:?}, but the base's is [{length}]",
                tensor.shape()
            )));
        }
        let values = tensor.floats().map_err(|e| tensors.invalid(format!("`{name}` {e}")))?;
        vectors.insert(name.clone(), values);
    }

    check_embedding(&tensors, &EMBEDDING, &manifest.embedding).map_err(|e| tensors.invalid(e))?;
    check_embedding(
        &tensors,
        &HEAD,
        manifest.head.as_ref().unwrap_or(&EmbeddingInfo::Unchanged),
    )
    .map_err(|e| tensors.invalid(e))?;
    let embedding = embedding(&tensors, &EMBEDDING, base, vocab)?;
    let head = if base.tie_word_embeddings {
        None
    } else {
        Some(self::embedding(&tensors, &HEAD, base, vocab)?)
    };
    Ok(VariantWeights {
        generation: artifact.generation.clone(),
        linears,
        vectors,
        embedding,
        head,
        vocab_size: manifest.vocab_size,
    })
}

/// Refuses tensors that belong to no part of the base, before a missing one is reported: a foreign prefix makes both.
fn refuse_foreign(tensors: &Tensors<'_>, base: &ModelConfig) -> Result<(), ArtifactError> {
    let vectors = vector_lengths(base);
    let mut known: BTreeSet<&str> = vectors.keys().map(String::as_str).collect();
    for names in [&EMBEDDING, &HEAD] {
        known.extend([names.factors, names.rows, names.row_ids, names.full]);
    }
    let foreign: Vec<&str> = tensors
        .entries
        .keys()
        .map(String::as_str)
        .filter(|name| {
            let linear = LinearId::from_weight(&format!("{name}.weight")).is_some_and(|id| id.layer < base.num_layers);
            !linear && !known.contains(name)
        })
        .collect();
    if foreign.is_empty() {
        return Ok(());
    }
    Err(tensors.invalid(format!(
        "{} of {} tensors match nothing in the base: {}; names look like `model.layers.0.self_attn.q_proj`",
        foreign.len(),
        tensors.entries.len(),
        list(&foreign)
    )))
}

fn list(names: &[&str]) -> String {
    let shown: Vec<String> = names
        .iter()
        .take(5)
        .map(|n| format!("`{}`", n.escape_debug()))
        .collect();
    let more = names.len().saturating_sub(shown.len());
    let tail = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    shown.join(", ") + &tail
}

fn embedding(
    tensors: &Tensors<'_>,
    names: &EmbeddingNames,
    base: &ModelConfig,
    vocab: usize,
) -> Result<EmbeddingDelta, ArtifactError> {
    let hidden = base.hidden_size;
    let rows = rows(tensors, names, hidden, vocab)?;
    if let Some(tensor) = tensors.get(names.full) {
        if tensor.shape() != [vocab, hidden] || rows.is_some() || tensors.get(names.factors).is_some() {
            return Err(tensors.invalid(format!(
                "`{}` has shape {:?}; expected [{vocab}, {hidden}] and no rows or factors beside it",
                names.full,
                tensor.shape()
            )));
        }
        let values = tensor
            .floats()
            .map_err(|e| tensors.invalid(format!("`{}` {e}", names.full)))?;
        let packed = if tensor.entry.dtype == DType::Bf16.name() {
            let exact: Vec<bf16> = values.into_iter().map(bf16::from_f32).collect();
            PackedMatrix::from_bf16(&exact, vocab, hidden, &Threads::new(1))
        } else {
            PackedMatrix::from_f32(&values, vocab, hidden, &Threads::new(1))
        };
        return Ok(EmbeddingDelta::Full(Arc::new(packed)));
    }
    let missing = |row: &usize| !rows.as_ref().is_some_and(|r| r.contains_key(&(*row as u32)));
    if let Some(row) = (base.vocab_size..vocab).find(missing) {
        return Err(tensors.invalid(format!(
            "the variant's vocabulary has {vocab} rows, but row {row} is in neither the base nor `{}`",
            names.rows
        )));
    }
    if let Some(tensor) = tensors.get(names.factors) {
        let delta = tensor
            .packed(hidden, base.vocab_size)
            .map_err(|e| tensors.invalid(format!("`{}`: {e}", names.factors)))?;
        return Ok(EmbeddingDelta::Added(delta, rows.unwrap_or_default()));
    }
    Ok(rows.map_or(EmbeddingDelta::Unchanged, EmbeddingDelta::Rows))
}

fn rows(
    tensors: &Tensors<'_>,
    names: &EmbeddingNames,
    hidden: usize,
    vocab: usize,
) -> Result<Option<BTreeMap<u32, Vec<f32>>>, ArtifactError> {
    let (values, ids) = match (tensors.get(names.rows), tensors.get(names.row_ids)) {
        (None, None) => return Ok(None),
        (Some(values), Some(ids)) => (values, ids),
        _ => {
            return Err(tensors.invalid(format!(
                "`{}` and `{}` belong together, but one is missing",
                names.rows, names.row_ids
            )));
        }
    };
    let &[count, width] = values.shape() else {
        return Err(tensors.invalid(format!("`{}` is not a matrix", names.rows)));
    };
    if width != hidden || ids.shape() != [count] || ids.entry.dtype != "U32" {
        return Err(tensors.invalid(format!(
            "`{}` has shape {:?} and `{}` {:?} of type {}; expected [n, {hidden}] and [n] of type U32",
            names.rows,
            values.shape(),
            names.row_ids,
            ids.shape(),
            ids.entry.dtype
        )));
    }
    let floats = values
        .floats()
        .map_err(|e| tensors.invalid(format!("`{}` {e}", names.rows)))?;
    let mut map = BTreeMap::new();
    for (id, row) in ids.bytes().chunks_exact(4).zip(floats.chunks_exact(hidden.max(1))) {
        let id = u32::from_le_bytes([id[0], id[1], id[2], id[3]]);
        if id as usize >= vocab {
            return Err(tensors.invalid(format!(
                "`{}` names row {id}, but the vocabulary has {vocab} rows",
                names.row_ids
            )));
        }
        map.insert(id, row.to_vec());
    }
    Ok(Some(map))
}
