//! Weights of a checkpoint, packed for the kernels.

use std::collections::BTreeMap;

use deltamux_kernels::{PackedMatrix, Threads};

use crate::linear::{LinearId, LinearKind};
use crate::{Checkpoint, CheckpointError, Precision, layout};

use super::load::{LoadOptions, Loader, packed_precision};

/// All weights of a model.
#[derive(Debug)]
pub(super) struct Weights {
    pub(super) embedding: PackedMatrix,
    /// Absent when the embedding is the head.
    pub(super) head: Option<PackedMatrix>,
    pub(super) final_norm: Vector,
    pub(super) layers: Vec<Layer>,
}

/// One decoder layer.
#[derive(Debug)]
pub(super) struct Layer {
    /// In the order of [`LinearKind::ALL`].
    linears: Vec<Linear>,
    pub(super) input_norm: Vector,
    pub(super) post_attention_norm: Vector,
    /// Norms on the heads of q and k.
    pub(super) qk_norm: Option<(Vector, Vector)>,
}

impl Layer {
    pub(super) fn linear(&self, kind: LinearKind) -> &Linear {
        &self.linears[kind as usize]
    }
}

/// A linear with its identity.
#[derive(Debug)]
pub(super) struct Linear {
    pub(super) id: LinearId,
    pub(super) matrix: PackedMatrix,
    pub(super) bias: Option<Vector>,
}

/// A norm weight or bias with its tensor name, under which variants replace it.
#[derive(Debug)]
pub(super) struct Vector {
    pub(super) name: String,
    pub(super) values: Vec<f32>,
}

impl Weights {
    /// With `stored`, matrices come from there.
    pub(super) fn load(
        checkpoint: &Checkpoint,
        options: &LoadOptions<'_>,
        threads: &Threads,
        stored: Option<BTreeMap<String, PackedMatrix>>,
    ) -> Result<Self, CheckpointError> {
        let config = checkpoint.config();
        let loader = Loader::new(checkpoint, options, threads, stored);
        let (vocabulary, hidden) = (config.vocab_size, config.hidden_size);
        // Largest first: while the last matrix is packed, its file's memory comes on top of all the others.
        let embedding = loader.matrix(layout::EMBEDDING, vocabulary, hidden)?;
        let head = match config.tie_word_embeddings {
            true => None,
            false => Some(loader.matrix(layout::HEAD, vocabulary, hidden)?),
        };
        let final_norm = vector(&loader, layout::FINAL_NORM.to_owned(), hidden)?;
        let layers = (0..config.num_layers)
            .map(|i| Layer::load(&loader, i))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            embedding,
            head,
            final_norm,
            layers,
        })
    }

    /// All matrices by name.
    pub(super) fn matrices(&self) -> BTreeMap<String, &PackedMatrix> {
        let linears = self.layers.iter().flat_map(|l| &l.linears);
        let linears = linears.map(|linear| (linear.id.weight(), &linear.matrix));
        let head = self.head.iter().map(|head| (layout::HEAD.to_owned(), head));
        let embedding = [(layout::EMBEDDING.to_owned(), &self.embedding)];
        embedding.into_iter().chain(head).chain(linears).collect()
    }

    /// All linears and the head.
    pub(super) fn read_by_every_step(&self) -> impl Iterator<Item = &PackedMatrix> {
        let linears = self.layers.iter().flat_map(|l| &l.linears).map(|l| &l.matrix);
        linears.chain([self.head.as_ref().unwrap_or(&self.embedding)])
    }

    pub(super) fn bytes(&self) -> usize {
        let linears = self.layers.iter().flat_map(|l| &l.linears).map(|l| l.matrix.bytes());
        self.embedding.bytes() + self.head.as_ref().map_or(0, PackedMatrix::bytes) + linears.sum::<usize>()
    }
}

impl Layer {
    pub(super) fn load(loader: &Loader<'_>, layer: usize) -> Result<Self, CheckpointError> {
        let config = loader.checkpoint.config();
        let norm = |module: &str, len| vector(loader, format!("model.layers.{layer}.{module}.weight"), len);
        let linears = LinearKind::ALL.into_iter().map(|kind| {
            let id = LinearId { layer, kind };
            let (outputs, inputs) = config.linear_shape(kind);
            let matrix = loader.matrix(&id.weight(), outputs, inputs)?;
            let bias = if config.linear_has_bias(kind) {
                Some(vector(loader, id.bias(), outputs)?)
            } else {
                None
            };
            Ok(Linear { id, matrix, bias })
        });
        Ok(Self {
            linears: linears.collect::<Result<_, CheckpointError>>()?,
            input_norm: norm("input_layernorm", config.hidden_size)?,
            post_attention_norm: norm("post_attention_layernorm", config.hidden_size)?,
            qk_norm: match config.qk_norm {
                true => Some((
                    norm("self_attn.q_norm", config.head_dim)?,
                    norm("self_attn.k_norm", config.head_dim)?,
                )),
                false => None,
            },
        })
    }
}

fn vector(loader: &Loader<'_>, name: String, len: usize) -> Result<Vector, CheckpointError> {
    let values = loader.vector(&name, len)?;
    Ok(Vector { name, values })
}

/// Bytes of a checkpoint's matrices in memory.
pub(super) fn resident_bytes(checkpoint: &Checkpoint, precision: Precision) -> u64 {
    let matrices = checkpoint.config().tensors().into_iter().filter_map(|(name, shape)| {
        let &[outputs, inputs] = shape.as_slice() else {
            return None;
        };
        let kept = packed_precision(precision, &name, checkpoint.tensor(&name)?.dtype);
        Some(kept.packed_bytes(outputs, inputs) as u64)
    });
    matrices.sum()
}
