//! What a variant adds to its base.

use deltamux_kernels::{LowRankDelta, PackedMatrix};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::LinearId;

/// A variant's weights, ready for the forward pass: quantised differences of linears, exact vectors, embeddings.
#[derive(Debug, Default)]
pub struct VariantWeights {
    /// Content digest of the artifact: the variant's generation, part of every cache key.
    pub generation: String,
    /// `y += U (s ⊙ (V x))` for each linear that changed.
    pub linears: HashMap<LinearId, LowRankDelta>,
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
    /// Low-rank difference over the base's rows `[vocabulary, hidden]`, then exact rows on top.
    Factored(LowRankDelta, BTreeMap<u32, Vec<f32>>),
}
