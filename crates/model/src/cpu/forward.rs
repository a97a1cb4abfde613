//! The decoder layers over a batch's rows.

use std::ops::Range;

use deltamux_kernels::attention::{self, Columns, PagedCache, Rotation};
use deltamux_kernels::ops::{self, Rope};
use deltamux_kernels::{Product, Threads, lowrank, multiply, signs};

use super::batch::{Batch, Segment};
use super::weights::{Layer, Linear, Vector};
use super::{CpuBackend, Observer};
use crate::ModelConfig;
use crate::linear::LinearKind;
use crate::variant::{EmbeddingDelta, MatrixDelta, VariantWeights};

/// Room for what a layer computes over a batch's rows.
pub(super) struct Buffers {
    normed: Vec<f32>,
    qkv: Vec<f32>,
    mixed: Vec<f32>,
    gate_up: Vec<f32>,
    gated: Vec<f32>,
    out: Vec<f32>,
}

impl Buffers {
    pub(super) fn new(config: &ModelConfig, rows: usize) -> Self {
        let (hidden, intermediate) = (config.hidden_size, config.intermediate_size);
        let q_width = config.num_heads * config.head_dim;
        let kv_width = config.num_kv_heads * config.head_dim;
        Self {
            normed: vec![0.0; rows * hidden],
            qkv: vec![0.0; rows * (q_width + 2 * kv_width)],
            mixed: vec![0.0; rows * q_width],
            gate_up: vec![0.0; rows * 2 * intermediate],
            gated: vec![0.0; rows * intermediate],
            out: vec![0.0; rows * hidden],
        }
    }
}

/// One decoder layer: adds to the hidden states `x` `[rows, hidden]` what its attention and its MLP give, and writes
/// the rows' keys and values.
pub(super) fn run_layer(
    pass: &Pass<'_>,
    layer: &Layer,
    cache: &mut PagedCache,
    x: &mut [f32],
    buffers: &mut Buffers,
    mut observe: Option<Observer<'_>>,
) {
    let &Pass {
        config,
        batch,
        ref cos,
        ref sin,
        threads,
    } = pass;
    let Buffers {
        normed,
        qkv,
        mixed,
        gate_up,
        gated,
        out,
    } = buffers;
    let (hidden, intermediate) = (config.hidden_size, config.intermediate_size);
    let (q_width, kv_width) = (
        config.num_heads * config.head_dim,
        config.num_kv_heads * config.head_dim,
    );
    let stride = q_width + 2 * kv_width;
    let rotation = Some(Rotation { cos, sin });
    let mut run = |kinds: &[LinearKind], x: &[f32], y: &mut [f32]| {
        if let Some(observe) = observe.as_mut() {
            kinds.iter().for_each(|kind| observe(layer.linear(*kind).id, x));
        }
        apply_linears(layer, kinds, batch, x, y, threads);
    };

    norm(&layer.input_norm, config.rms_norm_eps, batch, x, normed, threads);
    run(&[LinearKind::Q, LinearKind::K, LinearKind::V], normed, qkv);
    if let Some((q_norm, k_norm)) = &layer.qk_norm {
        let epsilon = config.rms_norm_eps;
        head_norm(q_norm, epsilon, batch, 0..q_width, stride, qkv);
        head_norm(k_norm, epsilon, batch, q_width..q_width + kv_width, stride, qkv);
    }
    let columns = |from, width| Columns {
        matrix: &qkv[..],
        stride,
        from,
        width,
    };
    let (keys, values) = (columns(q_width, kv_width), columns(q_width + kv_width, kv_width));
    cache.store(&batch.queries, keys, values, rotation, threads);
    let queries = columns(0, q_width);
    attention::attend(cache, &batch.queries, queries, rotation, mixed, threads);
    run(&[LinearKind::O], mixed, out);
    ops::add_rows(out, x, hidden, threads);

    let post_norm = &layer.post_attention_norm;
    norm(post_norm, config.rms_norm_eps, batch, x, normed, threads);
    run(&[LinearKind::Gate, LinearKind::Up], normed, gate_up);
    ops::swiglu(gate_up, gated, intermediate, threads);
    run(&[LinearKind::Down], gated, out);
    ops::add_rows(out, x, hidden, threads);
}

/// What all layers of one pass over a batch share.
pub(super) struct Pass<'a> {
    config: &'a ModelConfig,
    batch: &'a Batch<'a>,
    /// Cosines of every row's position, `[rows, head_dim / 2]`.
    cos: Vec<f32>,
    /// Sines, of the same shape.
    sin: Vec<f32>,
    threads: &'a Threads,
}

impl<'a> Pass<'a> {
    pub(super) fn new(config: &'a ModelConfig, rope: &Rope, batch: &'a Batch<'a>, threads: &'a Threads) -> Self {
        let pairs = rope.pairs();
        let (mut cos, mut sin) = (vec![0.0; batch.rows * pairs], vec![0.0; batch.rows * pairs]);
        let rows = cos.chunks_exact_mut(pairs).zip(sin.chunks_exact_mut(pairs));
        for (position, (cos, sin)) in batch.positions.iter().zip(rows) {
            rope.angles(*position, cos, sin);
        }
        Self {
            config,
            batch,
            cos,
            sin,
            threads,
        }
    }
}

impl CpuBackend {
    /// Hidden states `[rows, hidden]` after the last layer, before the final norm; writes the KV pages.
    pub(super) fn hidden_states(&mut self, batch: &Batch<'_>) -> Vec<f32> {
        let mut x = self.embed(batch);
        let pass = Pass::new(&self.config, &self.rope, batch, &self.threads);
        let mut buffers = Buffers::new(&self.config, batch.rows);
        for (layer, cache) in self.weights.layers.iter().zip(&mut self.kv) {
            run_layer(&pass, layer, cache, &mut x, &mut buffers, None);
        }
        x
    }

    /// Embedding rows `[rows, hidden]`.
    fn embed(&self, batch: &Batch<'_>) -> Vec<f32> {
        let hidden = self.config.hidden_size;
        let mut x = vec![0.0; batch.rows * hidden];
        for segment in &batch.segments {
            let delta = segment.variant.map_or(&EmbeddingDelta::Unchanged, |v| &v.embedding);
            for row in segment.rows.clone() {
                let (token, out) = (batch.tokens[row], &mut x[row * hidden..][..hidden]);
                let base = |out: &mut [f32]| self.weights.embedding.row(token as usize, out);
                match delta {
                    EmbeddingDelta::Unchanged => base(out),
                    EmbeddingDelta::Rows(rows) => match rows.get(&token) {
                        Some(exact) => out.copy_from_slice(exact),
                        None => base(out),
                    },
                    EmbeddingDelta::Full(matrix) => matrix.row(token as usize, out),
                    EmbeddingDelta::Added(delta, rows) => match rows.get(&token) {
                        Some(exact) => out.copy_from_slice(exact),
                        None => {
                            base(out);
                            delta.add_dense_row(token as usize, out);
                        }
                    },
                }
            }
        }
        x
    }
}

/// `y = W x + b` for linears that share their input, side by side in the columns of `y`, and for each variant's rows its
/// differences and its own biases.
fn apply_linears(layer: &Layer, kinds: &[LinearKind], batch: &Batch<'_>, x: &[f32], y: &mut [f32], threads: &Threads) {
    let mut stride = 0;
    let linears: Vec<(&Linear, usize)> = kinds
        .iter()
        .map(|kind| {
            let linear = layer.linear(*kind);
            let column = stride;
            stride += linear.matrix.outputs();
            (linear, column)
        })
        .collect();
    let products: Vec<_> = linears
        .iter()
        .map(|&(Linear { matrix, .. }, column)| Product { matrix, column })
        .collect();
    multiply(&products, x, batch.rows, y, stride, threads);

    let (mut factors, mut of_signs) = (Vec::new(), Vec::new());
    for Segment { variant, rows } in &batch.segments {
        let Some(variant) = variant else { continue };
        for &(linear, column) in &linears {
            let rows = rows.clone();
            match variant.linears.get(&linear.id) {
                Some(MatrixDelta::LowRank(delta)) => factors.push(lowrank::Term { delta, rows, column }),
                Some(MatrixDelta::Signs(delta)) => of_signs.push(signs::Term { delta, rows, column }),
                None => {}
            }
        }
    }
    // A row's variant has one difference a linear, so the order of the two adds nothing up differently.
    lowrank::add_terms(x, batch.rows, &factors, y, stride, threads);
    signs::add_terms(x, batch.rows, &of_signs, y, stride, threads);

    for (linear, column) in linears {
        let Some(bias) = &linear.bias else { continue };
        for Segment { variant, rows } in &batch.segments {
            let bias = replaced(bias, *variant);
            for row in y[rows.start * stride..rows.end * stride].chunks_exact_mut(stride) {
                ops::add(bias, &mut row[column..column + bias.len()]);
            }
        }
    }
}

/// A norm weight or bias as the variant has it.
pub(super) fn replaced<'a>(base: &'a Vector, variant: Option<&'a VariantWeights>) -> &'a [f32] {
    variant.and_then(|v| v.vectors.get(&base.name)).unwrap_or(&base.values)
}

/// RMS norm of every row, with each variant's own weight.
fn norm(weight: &Vector, epsilon: f32, batch: &Batch<'_>, x: &[f32], out: &mut [f32], threads: &Threads) {
    let width = weight.values.len();
    for Segment { variant, rows } in &batch.segments {
        let range = rows.start * width..rows.end * width;
        let weight = replaced(weight, *variant);
        ops::rms_norm(&x[range.clone()], weight, epsilon, &mut out[range], threads);
    }
}

/// RMS norm of every head in these columns of every row, in place.
fn head_norm(weight: &Vector, epsilon: f32, batch: &Batch<'_>, columns: Range<usize>, stride: usize, x: &mut [f32]) {
    for Segment { variant, rows } in &batch.segments {
        let weight = replaced(weight, *variant);
        for row in x[rows.start * stride..rows.end * stride].chunks_exact_mut(stride) {
            ops::rms_norm_in_place(&mut row[columns.clone()], weight, epsilon);
        }
    }
}
