//! A model of which one layer at a time is in memory: for passes over many texts that need what each layer sees.

use deltamux_kernels::Threads;
use deltamux_kernels::attention::PagedCache;
use deltamux_kernels::ops::Rope;

use super::batch::Batch;
use super::forward::{Buffers, Pass, run_layer};
use super::load::{LoadOptions, Loader, Replaced};
use super::rope;
use super::weights::Layer;
use crate::backend::{ForwardError, LogitRows, PAGE_TOKENS, SequenceChunk};
use crate::{Checkpoint, CheckpointError, LinearId, layout};

/// A checkpoint that is run layer by layer. Hidden states are the caller's, so that memory holds one layer's weights
/// and whatever texts the caller has at hand; they equal those of [`super::CpuBackend`] bit for bit.
pub struct LayerwiseModel<'a> {
    checkpoint: &'a Checkpoint,
    replaced: &'a Replaced<'a>,
    rope: Rope,
    threads: Threads,
    /// Keys and values of one layer.
    kv: Option<PagedCache>,
}

impl std::fmt::Debug for LayerwiseModel<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LayerwiseModel")
            .field("checkpoint", &self.checkpoint.dir())
            .finish_non_exhaustive()
    }
}

/// The weights of one layer in memory.
#[derive(Debug)]
pub struct LayerWeights(Layer);

impl<'a> LayerwiseModel<'a> {
    /// The checkpoint as it is stored, but with the weights that `replaced` gives for a tensor's name (`[outputs,
    /// inputs]` row-major, or a vector) in place of the tensor's own.
    pub fn new(checkpoint: &'a Checkpoint, replaced: &'a Replaced<'a>, threads: Threads) -> Self {
        Self {
            checkpoint,
            replaced,
            rope: Rope::new(rope::frequencies(checkpoint.config())),
            threads,
            kv: None,
        }
    }

    /// Embeddings of `tokens`, `[tokens, hidden]`.
    ///
    /// # Errors
    /// A token that the embedding has no row for.
    pub fn embed(&self, tokens: &[u32], x: &mut [f32]) -> Result<(), CheckpointError> {
        let config = self.checkpoint.config();
        let (vocabulary, hidden) = (config.vocab_size, config.hidden_size);
        assert_eq!(
            x.len(),
            tokens.len() * hidden,
            "room for the embeddings of {} tokens",
            tokens.len()
        );
        let replaced = (self.replaced)(layout::EMBEDDING);
        let stored = self.checkpoint.expect(layout::EMBEDDING, &[vocabulary, hidden])?;
        let rows = replaced.as_ref().map_or(vocabulary, |weights| weights.len() / hidden);
        for (&token, out) in tokens.iter().zip(x.chunks_exact_mut(hidden)) {
            let token = token as usize;
            if token >= rows {
                return Err(CheckpointError::Invalid {
                    path: self.checkpoint.dir().to_path_buf(),
                    what: format!(
                        "the tokenizer gives token {token}, but the embedding has {rows} rows; tokenizer and weights do not belong together"
                    ),
                });
            }
            match &replaced {
                Some(weights) => out.copy_from_slice(&weights[token * hidden..][..hidden]),
                None => stored.read_row(token, out),
            }
        }
        Ok(())
    }

    /// Reads and packs the weights of a layer.
    pub fn layer(&self, index: usize) -> Result<LayerWeights, CheckpointError> {
        let options = LoadOptions::default();
        let loader = Loader::new(self.checkpoint, &options, &self.threads, None).with_replaced(self.replaced);
        Layer::load(&loader, index).map(LayerWeights)
    }

    /// Runs whole texts of these `lengths` in tokens through a layer: `x` `[tokens of all texts, hidden]` goes in and
    /// comes out; `observe` sees the input rows `[tokens, inputs]` of each linear before it runs (q, k and v share theirs, as do gate and up, and
    /// each is shown).
    pub fn run(
        &mut self,
        layer: &LayerWeights,
        lengths: &[usize],
        x: &mut [f32],
        observe: &mut dyn FnMut(LinearId, &[f32]),
    ) -> Result<(), ForwardError> {
        let config = self.checkpoint.config();
        let mut pages = Vec::new();
        let mut next = 0u32;
        for length in lengths {
            let count = length.div_ceil(PAGE_TOKENS) as u32;
            pages.push((next..next + count).collect::<Vec<u32>>());
            next += count;
        }
        // A layer does not look at tokens.
        let tokens = vec![0; lengths.iter().copied().max().unwrap_or(0)];
        let chunks: Vec<SequenceChunk<'_>> = lengths
            .iter()
            .zip(&pages)
            .map(|(&length, pages)| SequenceChunk {
                tokens: &tokens[..length],
                start: 0,
                pages,
                variant: None,
                logits: LogitRows::None,
            })
            .collect();
        let batch = Batch::new(&chunks, config, next as usize)?;
        let fits = |kv: &PagedCache| kv.pages() >= next as usize;
        let kv = match self.kv.take().filter(fits) {
            Some(kv) => kv,
            None => PagedCache::new(next as usize, PAGE_TOKENS, config.num_kv_heads, config.head_dim),
        };
        let kv = self.kv.insert(kv);
        let pass = Pass::new(config, &self.rope, &batch, &self.threads);
        let mut buffers = Buffers::new(config, batch.rows);
        run_layer(&pass, &layer.0, kv, x, &mut buffers, Some(observe));
        Ok(())
    }
}
