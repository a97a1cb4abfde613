//! What a variant adds to its base.

use deltamux_kernels::{LowRankDelta, PackedMatrix, SignDelta, Threads};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::LinearId;

/// The difference of one matrix, added to what the base's gives.
#[derive(Debug, Clone)]
pub enum MatrixDelta {
    /// Quantised factors: `y += U (s ⊙ (V x))`.
    LowRank(LowRankDelta),
    /// Signs and a scale: `y += scale ⊙ (B x)`.
    Signs(SignDelta),
}

impl MatrixDelta {
    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        match self {
            Self::LowRank(delta) => delta.bytes(),
            Self::Signs(delta) => delta.bytes(),
        }
    }

    /// `y[m] += ΔW x[m]` for each of the `rows` rows; `x` is `[rows, inputs]`, `y` `[rows, outputs]`.
    ///
    /// # Panics
    /// If `x` or `y` has another length.
    pub fn add_to(&self, x: &[f32], rows: usize, y: &mut [f32], threads: &Threads) {
        match self {
            Self::LowRank(delta) => delta.add_to(x, rows, y, threads),
            Self::Signs(delta) => delta.add_to(x, rows, y, threads),
        }
    }

    /// Adds row `output` of the dense difference to `row` (length `inputs`).
    ///
    /// # Panics
    /// If `output` is not below the outputs or `row` has another length.
    pub fn add_dense_row(&self, output: usize, row: &mut [f32]) {
        match self {
            Self::LowRank(delta) => delta.add_dense_row(output, row),
            Self::Signs(delta) => delta.add_dense_row(output, row),
        }
    }

    /// The dense difference `[outputs, inputs]`, row-major.
    pub fn to_dense(&self) -> Vec<f32> {
        match self {
            Self::LowRank(delta) => delta.to_dense(),
            Self::Signs(delta) => delta.to_dense(),
        }
    }
}

/// A variant's weights, ready for the forward pass: quantised differences of linears, exact vectors, embeddings.
#[derive(Debug, Default)]
pub struct VariantWeights {
    /// Content digest of the artifact: the variant's generation, part of every cache key.
    pub generation: String,
    /// The difference of each linear that changed.
    pub linears: HashMap<LinearId, MatrixDelta>,
    /// Norm weights and biases that replace the base's, by tensor name, exact.
    pub vectors: HashMap<String, Vec<f32>>,
    /// Change of the input embedding `[vocabulary, hidden]`.
    pub embedding: EmbeddingDelta,
    /// Change of an untied output head; `None` for a tied head, which follows the embedding.
    pub head: Option<EmbeddingDelta>,
    /// Vocabulary of the variant where it differs from the base's (added tokens).
    pub vocab_size: Option<usize>,
}

/// How an embedding (or head) matrix differs from the base's.
#[derive(Debug, Default, Clone)]
pub enum EmbeddingDelta {
    /// Not at all.
    #[default]
    Unchanged,
    /// These rows replace the base's or extend it, exact: row index → `hidden` weights.
    Rows(BTreeMap<u32, Vec<f32>>),
    /// The whole matrix replaces the base's, exact.
    Full(Arc<PackedMatrix>),
    /// A difference over the base's rows `[vocabulary, hidden]`, then exact rows on top.
    Added(MatrixDelta, BTreeMap<u32, Vec<f32>>),
}
