//! The forward pass of a model, step by step: prefill and decode, of the base and of many variants at once.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use deltamux_delta::{Artifact, artifact};
use deltamux_kernels::Threads;
use deltamux_model::{
    Backend, CacheUse, Checkpoint, CpuBackend, EmbeddingDelta, LoadOptions, LogitRows, PAGE_TOKENS, Precision,
    SequenceChunk, VariantWeights, WeightCache,
};

use super::limits::{Limits, Machine};
use super::timing::{median, seconds};

/// What to measure.
#[derive(Debug, Clone)]
pub struct ForwardOptions {
    /// Directory of the base.
    pub base: PathBuf,
    /// Artifacts of variants; decode steps in which each sequence is another variant's are measured if there are any.
    pub variants: Vec<PathBuf>,
    /// Prompt lengths of prefill steps, tokens.
    pub prefill: Vec<usize>,
    /// Numbers of sequences of decode steps.
    pub sequences: Vec<usize>,
    /// Tokens of each sequence before a decode step.
    pub context: usize,
    /// How the base's matrices are kept.
    pub precision: Precision,
    /// Where the base's packed matrices are kept for the next time.
    pub weight_cache: WeightCache,
    /// Steps that a median is taken of.
    pub steps: usize,
    /// Threads; 0 means one for each core.
    pub threads: usize,
}

/// What was measured.
#[derive(Debug, serde::Serialize)]
pub struct ForwardReport {
    /// The machine's limits in the same run.
    pub machine: Machine,
    /// Time of loading the base, seconds.
    pub load_seconds: f64,
    /// What became of the cache of the base's packed matrices.
    pub weight_cache: CacheUse,
    /// One entry a kind of step.
    pub steps: Vec<Measurement>,
}

/// Steps of one kind, medians.
#[derive(Debug, serde::Serialize)]
pub struct Measurement {
    /// `prefill` or `decode`.
    pub kind: &'static str,
    /// Sequences in the step.
    pub sequences: usize,
    /// Tokens of each sequence in the step.
    pub tokens: usize,
    /// Tokens of each sequence before the step.
    pub context: usize,
    /// Different variants that answer; 0 for the base alone.
    pub variants: usize,
    /// Time of one step, milliseconds.
    pub step_ms: f64,
    /// All sequences together, tokens a second.
    pub tokens_per_second: f64,
    /// Bytes that a step must read: weights, variants' factors, keys and values.
    pub bytes: u64,
    /// `bytes` over the step's time as a share of the read bandwidth measured between the steps.
    pub share_of_read_bandwidth: f64,
    /// Multiply-adds with weights over the step's time as a share of the f32 peak measured between the steps.
    pub share_of_f32_peak: f64,
    /// Time of the step over that of the base alone with as many sequences, measured in turn; only with variants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times_the_base: Option<f64>,
}

/// Why a measurement could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ForwardError {
    /// The base cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] deltamux_model::CheckpointError),
    /// A variant cannot be used.
    #[error(transparent)]
    Artifact(#[from] deltamux_delta::ArtifactError),
    /// The model refuses the steps asked for.
    #[error("a step of {tokens} tokens after {context}: {source}")]
    Step {
        /// Tokens of each sequence.
        tokens: usize,
        /// Tokens before them.
        context: usize,
        /// Why.
        source: deltamux_model::ForwardError,
    },
}

/// Runs the steps; `progress(done, total)` is called after each kind.
pub fn forward(options: &ForwardOptions, progress: &dyn Fn(usize, usize)) -> Result<ForwardReport, ForwardError> {
    let threads = Threads::new(options.threads);
    let begun = Instant::now();
    let checkpoint = Checkpoint::open(&options.base)?;
    let load = LoadOptions {
        precision: options.precision,
        cache: &options.weight_cache,
        ..LoadOptions::default()
    };
    let backend = CpuBackend::load_with(&checkpoint, threads.clone(), &load)?;
    let load_seconds = begun.elapsed().as_secs_f64();
    let weight_cache = backend.cache_use();
    let variants = load_variants(&options.variants, &checkpoint)?;
    let mut bench = Bench {
        backend,
        limits: Limits::new(threads),
        steps: options.steps.max(1),
    };
    let base = |kind, sequences, tokens, context| Shape {
        kind,
        sequences,
        tokens,
        context,
    };
    let prefill = options.prefill.iter().map(|tokens| base("prefill", 1, *tokens, 0));
    let decode = options.sequences.iter().map(|n| base("decode", *n, 1, options.context));
    let shapes: Vec<Shape> = prefill.chain(decode).collect();
    let mixed: Vec<&Shape> = shapes
        .iter()
        .filter(|shape| shape.kind == "decode" && !variants.is_empty())
        .collect();
    let total = shapes.len() + mixed.len();
    let mut steps = Vec::new();
    for shape in &shapes {
        steps.push(bench.alone(shape)?);
        progress(steps.len(), total);
    }
    for shape in mixed {
        steps.push(bench.mixed(shape, &variants)?);
        progress(steps.len(), total);
    }
    let machine = bench.limits.machine();
    Ok(ForwardReport {
        machine,
        load_seconds,
        weight_cache,
        steps,
    })
}

fn load_variants(folders: &[PathBuf], base: &Checkpoint) -> Result<Vec<Arc<VariantWeights>>, ForwardError> {
    if folders.is_empty() {
        return Ok(Vec::new());
    }
    let digest = base.digest();
    let load = |folder: &PathBuf| Ok(Arc::new(Artifact::open(folder)?.load(base.config(), &digest)?));
    folders.iter().map(load).collect()
}

struct Shape {
    kind: &'static str,
    sequences: usize,
    tokens: usize,
    context: usize,
}

struct Bench {
    backend: CpuBackend,
    limits: Limits,
    steps: usize,
}

impl Bench {
    /// Steps of the base alone.
    fn alone(&mut self, shape: &Shape) -> Result<Measurement, ForwardError> {
        self.prepare(shape);
        self.step(shape, &[])?;
        let mut times = Vec::new();
        let (mut reads, mut peaks) = (Vec::new(), Vec::new());
        for _ in 0..self.steps {
            let before = self.limit();
            let time = self.step(shape, &[])?;
            let after = self.limit();
            times.push(time);
            reads.push(time * (before.0 + after.0) / 2.0);
            peaks.push(time * (before.1 + after.1) / 2.0);
        }
        Ok(self.measurement(shape, &[], times, reads, peaks, None))
    }

    /// Steps in which each sequence is another variant's, in turn with steps of the base alone.
    fn mixed(&mut self, shape: &Shape, variants: &[Arc<VariantWeights>]) -> Result<Measurement, ForwardError> {
        let variants = &variants[..variants.len().min(shape.sequences)];
        self.prepare(shape);
        self.step(shape, variants)?;
        let (mut times, mut ratios) = (Vec::new(), Vec::new());
        let (mut reads, mut peaks) = (Vec::new(), Vec::new());
        for _ in 0..self.steps {
            let before = self.step(shape, &[])?;
            let time = self.step(shape, variants)?;
            let after = self.step(shape, &[])?;
            times.push(time);
            ratios.push(2.0 * time / (before + after));
            let (read, peak) = self.limit();
            reads.push(time * read);
            peaks.push(time * peak);
        }
        Ok(self.measurement(shape, variants, times, reads, peaks, median(ratios)))
    }

    /// Bytes a second of reading the weights, and multiply-adds a second, now.
    fn limit(&self) -> (f64, f64) {
        let weights = self.backend.step_weights();
        (self.limits.read_of(&weights), self.limits.f32())
    }

    fn prepare(&mut self, shape: &Shape) {
        self.backend.allocate_kv(shape.sequences * pages(shape));
    }

    /// Seconds of one step. The keys and values before it are zeros: they take as long to read as any others.
    fn step(&mut self, shape: &Shape, variants: &[Arc<VariantWeights>]) -> Result<f64, ForwardError> {
        let tokens: Vec<u32> = (0..shape.tokens as u32).map(|i| 1 + i % 200).collect();
        let pages: Vec<Vec<u32>> = (0..shape.sequences)
            .map(|i| (i * pages(shape)..(i + 1) * pages(shape)).map(|p| p as u32).collect())
            .collect();
        let chunks: Vec<SequenceChunk<'_>> = pages
            .iter()
            .enumerate()
            .map(|(i, pages)| SequenceChunk {
                tokens: &tokens,
                start: shape.context,
                pages,
                variant: (!variants.is_empty()).then(|| &variants[i % variants.len()]),
                logits: LogitRows::Last,
            })
            .collect();
        let mut result = Ok(Vec::new());
        let time = seconds(|| result = self.backend.forward(&chunks));
        result.map_err(|source| ForwardError::Step {
            tokens: shape.tokens,
            context: shape.context,
            source,
        })?;
        Ok(time)
    }

    /// `reads` and `peaks` hold what the limit allowed in each step's time: bytes, and multiply-adds.
    fn measurement(
        &self,
        shape: &Shape,
        variants: &[Arc<VariantWeights>],
        times: Vec<f64>,
        reads: Vec<f64>,
        peaks: Vec<f64>,
        times_the_base: Option<f64>,
    ) -> Measurement {
        let rows = shape.sequences * shape.tokens;
        let positions = shape.context + shape.tokens;
        let kv = shape.sequences * positions * self.backend.kv_page_bytes() / PAGE_TOKENS;
        let bytes = self.backend.step_weight_bytes() + variants.iter().map(|v| delta_bytes(v)).sum::<usize>() + kv;
        let multiply_adds = self.backend.multiply_adds(rows, shape.sequences);
        let share = |work: usize, allowed| median(allowed).map_or(0.0, |allowed: f64| work as f64 / allowed);
        let time = median(times).unwrap_or_default();
        Measurement {
            kind: shape.kind,
            sequences: shape.sequences,
            tokens: shape.tokens,
            context: shape.context,
            variants: variants.len(),
            step_ms: time * 1e3,
            tokens_per_second: rows as f64 / time,
            bytes: bytes as u64,
            share_of_read_bandwidth: share(bytes, reads),
            share_of_f32_peak: share(multiply_adds, peaks),
            times_the_base,
        }
    }
}

/// Bytes of a variant's differences that a step reads: those of the linears and of a tied or own head.
fn delta_bytes(variant: &VariantWeights) -> usize {
    let head = match variant.head.as_ref().unwrap_or(&variant.embedding) {
        EmbeddingDelta::Added(delta, _) => delta.bytes(),
        EmbeddingDelta::Full(matrix) => matrix.bytes(),
        EmbeddingDelta::Unchanged | EmbeddingDelta::Rows(_) => 0,
    };
    head + variant.linears.values().map(|delta| delta.bytes()).sum::<usize>()
}

/// KV pages of one sequence.
fn pages(shape: &Shape) -> usize {
    (shape.context + shape.tokens).div_ceil(PAGE_TOKENS)
}

/// The artifacts in `folder`, sorted by name.
pub fn artifacts_in(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs_err::read_dir(folder)? {
        let path = entry?.path();
        // Names with a dot are work in progress, as servers see it.
        let hidden = path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if !hidden && path.is_dir() && path.join(artifact::MANIFEST_FILE).is_file() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
