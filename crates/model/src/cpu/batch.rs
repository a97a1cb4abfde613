//! A ragged batch laid out as rows: checked, and ordered by variant.

use std::ops::Range;
use std::sync::Arc;

use deltamux_kernels::attention::QueryRow;

use crate::backend::{ForwardError, LogitRows, PAGE_TOKENS, SequenceChunk};
use crate::{ModelConfig, VariantWeights};

/// The rows of a step. Chunks of one variant lie together, so that each variant's weights are read once a layer.
pub(super) struct Batch<'a> {
    pub(super) rows: usize,
    /// Token of each row.
    pub(super) tokens: Vec<u32>,
    /// Position of each row in its sequence.
    pub(super) positions: Vec<usize>,
    /// What each row's attention sees.
    pub(super) queries: Vec<QueryRow<'a>>,
    /// Rows of the base and of each variant.
    pub(super) segments: Vec<Segment<'a>>,
    /// Rows whose logits are wanted, in the order in which they are returned.
    pub(super) wanted: Vec<usize>,
}

/// Neighbouring rows that one variant (or the base) answers.
pub(super) struct Segment<'a> {
    pub(super) variant: Option<&'a VariantWeights>,
    pub(super) rows: Range<usize>,
}

impl<'a> Batch<'a> {
    pub(super) fn new(
        chunks: &[SequenceChunk<'a>],
        config: &ModelConfig,
        total_pages: usize,
    ) -> Result<Self, ForwardError> {
        for (sequence, chunk) in chunks.iter().enumerate() {
            check(chunk, config, total_pages).map_err(|what| ForwardError::Batch { sequence, what })?;
        }
        let address = |chunk: &SequenceChunk<'_>| chunk.variant.map_or(0, |v| Arc::as_ptr(v) as usize);
        let mut order: Vec<usize> = (0..chunks.len()).collect();
        order.sort_by_key(|i| address(&chunks[*i]));

        let mut batch = Batch {
            rows: 0,
            tokens: Vec::new(),
            positions: Vec::new(),
            queries: Vec::new(),
            segments: Vec::new(),
            wanted: Vec::new(),
        };
        let mut first_row = vec![0; chunks.len()];
        let mut previous = None;
        for i in order {
            let chunk = &chunks[i];
            first_row[i] = batch.rows;
            if previous != Some(address(chunk)) {
                previous = Some(address(chunk));
                let variant = chunk.variant.map(Arc::as_ref);
                batch.segments.push(Segment {
                    variant,
                    rows: batch.rows..batch.rows,
                });
            }
            for (offset, token) in chunk.tokens.iter().enumerate() {
                let position = chunk.start + offset;
                batch.tokens.push(*token);
                batch.positions.push(position);
                batch.queries.push(QueryRow {
                    pages: chunk.pages,
                    count: position + 1,
                });
            }
            batch.rows += chunk.tokens.len();
            if let Some(segment) = batch.segments.last_mut() {
                segment.rows.end = batch.rows;
            }
        }
        for (chunk, first) in chunks.iter().zip(first_row) {
            let n = chunk.tokens.len();
            match chunk.logits {
                LogitRows::None => {}
                LogitRows::Last => batch.wanted.push(first + n - 1),
                LogitRows::All => batch.wanted.extend(first..first + n),
            }
        }
        Ok(batch)
    }
}

fn check(chunk: &SequenceChunk<'_>, config: &ModelConfig, total_pages: usize) -> Result<(), String> {
    let vocabulary = chunk.variant.and_then(|v| v.vocab_size).unwrap_or(config.vocab_size);
    if chunk.tokens.is_empty() {
        return Err("has no tokens".into());
    }
    if let Some(token) = chunk.tokens.iter().find(|t| **t as usize >= vocabulary) {
        return Err(format!("token id {token} is beyond the vocabulary of {vocabulary}"));
    }
    let end = chunk.start + chunk.tokens.len();
    if end > config.max_position_embeddings {
        return Err(format!(
            "position {end} is beyond the context of {}",
            config.max_position_embeddings
        ));
    }
    if chunk.pages.len() * PAGE_TOKENS < end {
        return Err(format!("{} pages do not cover {end} positions", chunk.pages.len()));
    }
    if let Some(page) = chunk.pages.iter().find(|p| **p as usize >= total_pages) {
        return Err(format!("page {page} is beyond the {total_pages} allocated"));
    }
    Ok(())
}
