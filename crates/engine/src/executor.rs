//! Runs planned chunks on the right model.

use std::sync::Weak;

use deltamux_model::{Backend, ForwardError, LogitRows, SequenceChunk};

use crate::loader::Weights;
use crate::residency::{Lease, Loaded};
use crate::sync::lock;

/// One chunk of a step.
pub(crate) struct Work<'a> {
    /// Tokens of the chunk.
    pub(crate) tokens: &'a [u32],
    /// Position of the first one.
    pub(crate) start: usize,
    /// Pages of the sequence.
    pub(crate) pages: &'a [u32],
    /// What answers; `None`: the shared base.
    pub(crate) weights: Option<&'a Lease<Weights>>,
    /// Whether the last position's logits are wanted.
    pub(crate) samples: bool,
}

/// The models that can step.
pub(crate) enum Executor {
    /// One base with its KV pages; variants come with the chunks.
    Shared(Box<dyn Backend>),
    /// Full models that take turns; the one whose turn it is has the KV pages.
    Turns {
        /// KV pages of the model whose turn it is.
        pages: usize,
        /// That model.
        current: Weak<Loaded<Weights>>,
    },
}

impl Executor {
    /// One step. All chunks of a turn-taking executor belong to one model.
    pub(crate) fn forward(&mut self, batch: &[Work<'_>]) -> Result<Vec<Vec<f32>>, ForwardError> {
        match self {
            Self::Shared(base) => base.forward(&batch.iter().map(Work::chunk).collect::<Vec<_>>()),
            Self::Turns { pages, current } => {
                let Some(lease) = batch.first().and_then(|work| work.weights) else {
                    return Ok(Vec::new());
                };
                let Weights::Full(backend) = &lease.weights else {
                    unreachable!("in swap mode every model is a full one");
                };
                if current.as_ptr() != std::sync::Arc::as_ptr(lease) {
                    if let Some(previous) = current.upgrade()
                        && let Weights::Full(previous) = &previous.weights
                    {
                        lock(previous).allocate_kv(0);
                    }
                    lock(backend).allocate_kv(*pages);
                    *current = std::sync::Arc::downgrade(lease);
                }
                lock(backend).forward(&batch.iter().map(Work::chunk).collect::<Vec<_>>())
            }
        }
    }
}

impl Work<'_> {
    fn chunk(&self) -> SequenceChunk<'_> {
        SequenceChunk {
            tokens: self.tokens,
            start: self.start,
            pages: self.pages,
            variant: match self.weights.map(|lease| &lease.weights) {
                Some(Weights::Variant(variant)) => Some(variant),
                Some(Weights::Full(_)) | None => None,
            },
            logits: if self.samples { LogitRows::Last } else { LogitRows::None },
        }
    }
}
