//! From hidden states to logits.

use std::collections::BTreeMap;
use std::ops::Range;

use deltamux_kernels::{PackedMatrix, ops};

use super::CpuBackend;
use super::batch::Batch;
use super::forward::replaced;
use crate::variant::{EmbeddingDelta, VariantWeights};

/// Wanted rows of one segment.
struct Group<'a> {
    variant: Option<&'a VariantWeights>,
    /// How the head differs from the base's.
    delta: &'a EmbeddingDelta,
    /// Places in the batch's `wanted`.
    slots: Vec<usize>,
    /// Rows in the gathered matrix.
    rows: Range<usize>,
}

impl CpuBackend {
    /// Logits of the wanted rows, in the batch's order.
    pub(super) fn logits(&self, batch: &Batch<'_>, hidden: &[f32]) -> Vec<Vec<f32>> {
        let width = self.config.hidden_size;
        let (groups, shared) = self.groups(batch);
        let mut normed = vec![0.0; batch.wanted.len() * width];
        for group in &groups {
            let weight = replaced(&self.weights.final_norm, group.variant);
            for (slot, row) in group.slots.iter().zip(group.rows.clone()) {
                let x = &hidden[batch.wanted[*slot] * width..][..width];
                let normed = &mut normed[row * width..][..width];
                ops::rms_norm(x, weight, self.config.rms_norm_eps, normed, &self.threads);
            }
        }
        // One pass over the base's head for everybody who uses it.
        let base = self.weights.head.as_ref().unwrap_or(&self.weights.embedding);
        let mut logits = vec![0.0; shared * base.outputs()];
        base.matmul(&normed[..shared * width], shared, &mut logits, &self.threads);

        let mut results = vec![Vec::new(); batch.wanted.len()];
        for group in &groups {
            let x = &normed[group.rows.start * width..group.rows.end * width];
            let mut own = Vec::new();
            let (matrix, logits): (&PackedMatrix, &mut [f32]) = match group.delta {
                EmbeddingDelta::Full(matrix) => {
                    own.resize(group.rows.len() * matrix.outputs(), 0.0);
                    matrix.matmul(x, group.rows.len(), &mut own, &self.threads);
                    (matrix, &mut own)
                }
                _ => (
                    base,
                    &mut logits[group.rows.start * base.outputs()..group.rows.end * base.outputs()],
                ),
            };
            if let EmbeddingDelta::Added(delta, _) = group.delta {
                delta.add_to(x, group.rows.len(), logits, &self.threads);
            }
            let vocabulary = group
                .variant
                .and_then(|v| v.vocab_size)
                .unwrap_or(self.config.vocab_size);
            let rows = logits.chunks_exact(matrix.outputs()).zip(x.chunks_exact(width));
            for (slot, (logits, x)) in group.slots.iter().zip(rows) {
                let mut logits = logits.to_vec();
                logits.resize(vocabulary, f32::NEG_INFINITY);
                if let EmbeddingDelta::Rows(exact) | EmbeddingDelta::Added(_, exact) = group.delta {
                    replace_rows(exact, x, &mut logits);
                }
                results[*slot] = logits;
            }
        }
        results
    }

    /// The wanted rows by segment, those that use the base's head first, and how many these are.
    fn groups<'a>(&'a self, batch: &'a Batch<'_>) -> (Vec<Group<'a>>, usize) {
        let mut groups: Vec<Group<'a>> = Vec::new();
        for segment in &batch.segments {
            let mine = |slot: &usize| segment.rows.contains(&batch.wanted[*slot]);
            let slots: Vec<usize> = (0..batch.wanted.len()).filter(mine).collect();
            if !slots.is_empty() {
                groups.push(Group {
                    variant: segment.variant,
                    delta: self.head_delta(segment.variant),
                    slots,
                    rows: 0..0,
                });
            }
        }
        let owns_head = |group: &Group<'_>| matches!(group.delta, EmbeddingDelta::Full(_));
        groups.sort_by_key(owns_head);
        let (mut next, mut shared) = (0, 0);
        for group in &mut groups {
            group.rows = next..next + group.slots.len();
            next = group.rows.end;
            if !owns_head(group) {
                shared = next;
            }
        }
        (groups, shared)
    }

    /// How a variant's head differs: a tied head follows the embedding.
    fn head_delta<'a>(&self, variant: Option<&'a VariantWeights>) -> &'a EmbeddingDelta {
        match variant {
            None => &EmbeddingDelta::Unchanged,
            Some(variant) if self.weights.head.is_none() => &variant.embedding,
            Some(variant) => variant.head.as_ref().unwrap_or(&EmbeddingDelta::Unchanged),
        }
    }
}

/// Logits of the rows that a variant holds exactly.
fn replace_rows(exact: &BTreeMap<u32, Vec<f32>>, x: &[f32], logits: &mut [f32]) {
    for (token, weights) in exact {
        if let Some(logit) = logits.get_mut(*token as usize) {
            *logit = ops::dot(weights, x);
        }
    }
}
