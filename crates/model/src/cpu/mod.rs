//! The model in main memory, computed by this machine's cores.

mod batch;
pub mod cache;
mod forward;
mod layerwise;
mod load;
mod logits;
mod rope;
mod weights;

use deltamux_kernels::attention::PagedCache;
use deltamux_kernels::ops::Rope;
use deltamux_kernels::{PackedMatrix, Threads};

use crate::backend::{Backend, ForwardError, PAGE_TOKENS, SequenceChunk};
use crate::{Checkpoint, CheckpointError, LinearId, ModelConfig, Precision};
use batch::Batch;
use cache::{CacheUse, Slot};
pub use layerwise::{LayerWeights, LayerwiseModel};
pub use load::{LoadOptions, Replaced};
use weights::Weights;

/// A model in main memory with its KV pages.
///
/// bf16 weights stay bf16, f16 and f32 weights become f32; arithmetic is f32; keys and values are kept as f16, whose
/// 11 bits of precision cost a tenth of bf16's rounding at the same size.
#[derive(Debug)]
pub struct CpuBackend {
    config: ModelConfig,
    weights: Weights,
    rope: Rope,
    /// Keys and values of each layer.
    kv: Vec<PagedCache>,
    threads: Threads,
    cache: CacheUse,
}

/// Sees the input rows `[rows, inputs]` of a linear before it runs.
type Observer<'a> = &'a mut dyn FnMut(LinearId, &[f32]);

impl CpuBackend {
    /// Loads the weights of a checkpoint as they are stored; KV pages are allocated later.
    pub fn load(checkpoint: &Checkpoint, threads: Threads) -> Result<Self, CheckpointError> {
        Self::load_with(checkpoint, threads, &LoadOptions::default())
    }

    /// Loads the weights of a checkpoint; KV pages are allocated later. The largest matrices are packed first, and the
    /// memory that a matrix's file took is given back before the next one is read, so that loading takes little more
    /// memory than the model.
    ///
    /// With a cache that holds this checkpoint's packed matrices, they are read from it. Whatever is wrong with the
    /// cache is a warning, not an error.
    pub fn load_with(
        checkpoint: &Checkpoint,
        threads: Threads,
        options: &LoadOptions<'_>,
    ) -> Result<Self, CheckpointError> {
        load::check_precision(checkpoint, options.precision)?;
        let (weights, cache) = match Slot::new(options.cache, checkpoint, options.precision) {
            Ok(Some(slot)) => load_cached(checkpoint, options, &threads, slot)?,
            Ok(None) => (load_files(checkpoint, options, &threads)?, CacheUse::Off),
            Err(failed) => (load_files(checkpoint, options, &threads)?, failed),
        };
        let config = checkpoint.config().clone();
        let rope = Rope::new(rope::frequencies(&config));
        Ok(Self {
            config,
            weights,
            rope,
            kv: Vec::new(),
            threads,
            cache,
        })
    }

    /// What became of the cache of packed weights when this model was loaded.
    pub fn cache_use(&self) -> CacheUse {
        self.cache
    }

    /// Bytes of the weights in memory once a checkpoint is loaded.
    pub fn resident_bytes(checkpoint: &Checkpoint, precision: Precision) -> u64 {
        weights::resident_bytes(checkpoint, precision)
    }

    /// Bytes of weights that every step reads: all linears and the head.
    pub fn step_weight_bytes(&self) -> usize {
        self.weights.read_by_every_step().map(PackedMatrix::bytes).sum()
    }

    /// The packed weights that every step reads.
    pub fn step_weights(&self) -> Vec<&[u8]> {
        self.weights
            .read_by_every_step()
            .map(|matrix| &matrix.packed()[..])
            .collect()
    }

    /// Multiply-adds with weights in a step of `rows` rows, of which `logit_rows` want logits.
    pub fn multiply_adds(&self, rows: usize, logit_rows: usize) -> usize {
        let shapes = self.config.linears().map(|id| self.config.linear_shape(id.kind));
        let linears: usize = shapes.map(|(outputs, inputs)| outputs * inputs).sum();
        rows * linears + logit_rows * self.config.vocab_size * self.config.hidden_size
    }

    fn run(&mut self, chunks: &[SequenceChunk<'_>]) -> Result<Vec<Vec<f32>>, ForwardError> {
        let pages = self.kv.first().map_or(0, PagedCache::pages);
        let batch = Batch::new(chunks, &self.config, pages)?;
        if batch.rows == 0 {
            return Ok(Vec::new());
        }
        let hidden = self.hidden_states(&batch);
        Ok(self.logits(&batch, &hidden))
    }
}

/// From the checkpoint's files.
fn load_files(
    checkpoint: &Checkpoint,
    options: &LoadOptions<'_>,
    threads: &Threads,
) -> Result<Weights, CheckpointError> {
    if options.check_finite {
        checkpoint.check_finite()?;
    }
    Weights::load(checkpoint, options, threads, None)
}

/// From the cache if it holds them; else from the checkpoint's files, and into the cache.
fn load_cached(
    checkpoint: &Checkpoint,
    options: &LoadOptions<'_>,
    threads: &Threads,
    slot: Slot<'_>,
) -> Result<(Weights, CacheUse), CheckpointError> {
    if let Some(stored) = slot.read(threads, options.progress) {
        let weights = Weights::load(checkpoint, options, threads, Some(stored.matrices))?;
        return Ok((weights, CacheUse::Read));
    }
    let settled = slot.settle();
    let options = LoadOptions {
        check_finite: options.check_finite || settled,
        ..*options
    };
    let weights = load_files(checkpoint, &options, threads)?;
    if !settled {
        return Ok((weights, CacheUse::NotWritten));
    }
    let matrices = weights.matrices();
    let cache = slot.write(|name| matrices.get(name).copied(), threads);
    drop(matrices);
    Ok((weights, cache))
}

impl Backend for CpuBackend {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn kv_page_bytes(&self) -> usize {
        2 * self.config.num_layers * PAGE_TOKENS * self.config.num_kv_heads * self.config.head_dim * 2
    }

    fn allocate_kv(&mut self, pages: usize) {
        let (heads, dim) = (self.config.num_kv_heads, self.config.head_dim);
        self.kv.clear();
        self.kv
            .extend((0..self.config.num_layers).map(|_| PagedCache::new(pages, PAGE_TOKENS, heads, dim)));
    }

    fn copy_kv_page(&mut self, from: u32, to: u32) {
        for layer in &mut self.kv {
            layer.copy_page(from, to);
        }
    }

    fn weight_bytes(&self) -> usize {
        self.weights.bytes()
    }

    fn forward(&mut self, batch: &[SequenceChunk<'_>]) -> Result<Vec<Vec<f32>>, ForwardError> {
        self.run(batch)
    }
}
