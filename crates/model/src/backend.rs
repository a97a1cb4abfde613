//! The seam between engine and device: a model with its KV pages, stepped over ragged batches.

use std::sync::Arc;

use crate::{ModelConfig, VariantWeights};

/// Tokens that one KV page holds.
pub const PAGE_TOKENS: usize = 16;

/// Which positions of a chunk need logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitRows {
    /// None: a prefill chunk before the last.
    None,
    /// The last position only.
    Last,
    /// Every position of the chunk.
    All,
}

/// A run of consecutive tokens of one sequence, in one step.
#[derive(Debug, Clone)]
pub struct SequenceChunk<'a> {
    /// Token ids of the chunk; at least one.
    pub tokens: &'a [u32],
    /// Position of `tokens[0]` in the sequence: everything before it is in the KV pages already.
    pub start: usize,
    /// KV pages of the sequence, in order; they cover `start + tokens.len()` positions.
    pub pages: &'a [u32],
    /// The variant that answers, or the base.
    pub variant: Option<&'a Arc<VariantWeights>>,
    /// Which positions need logits.
    pub logits: LogitRows,
}

/// Why a forward pass was refused.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// The batch breaks the contract of [`SequenceChunk`].
    #[error("sequence {sequence} of the batch: {what}")]
    Batch {
        /// Index in the batch.
        sequence: usize,
        /// What is wrong with it.
        what: String,
    },
}

/// A model on a device, with its KV pages.
///
/// **Invariant.** The logits of a position depend on its sequence and variant only, bit for bit: not on what else is
/// in the batch, nor on how the sequence was cut into chunks, nor on the number of threads.
pub trait Backend: Send {
    /// Configuration of the model.
    fn config(&self) -> &ModelConfig;

    /// Bytes that one KV page ([`PAGE_TOKENS`] tokens, all layers) occupies.
    fn kv_page_bytes(&self) -> usize;

    /// Sets aside `pages` KV pages; drops what earlier pages held.
    fn allocate_kv(&mut self, pages: usize);

    /// Copies KV page `from` to `to` (copy-on-write of a shared page).
    fn copy_kv_page(&mut self, from: u32, to: u32);

    /// Bytes of the resident weights.
    fn weight_bytes(&self) -> usize;

    /// Runs one step: writes the chunks' keys and values to their pages and returns the wanted logits, one `Vec` of
    /// vocabulary length for each wanted row, chunks in the batch's order, positions ascending.
    fn forward(&mut self, batch: &[SequenceChunk<'_>]) -> Result<Vec<Vec<f32>>, ForwardError>;
}
