//! The decoder layers over a batch's rows.

use deltamux_kernels::Threads;
use deltamux_kernels::attention::{self, Columns, Rotation};
use deltamux_kernels::ops;

use super::batch::{Batch, Segment};
use super::weights::{Layer, Vector};
use super::{CpuBackend, Observer};
use crate::linear::LinearKind;
use crate::variant::{EmbeddingDelta, VariantWeights};

impl CpuBackend {
    /// Hidden states `[rows, hidden]` after the last layer, before the final norm; writes the KV pages.
    pub(super) fn hidden_states(&mut self, batch: &Batch<'_>, mut observe: Option<Observer<'_>>) -> Vec<f32> {
        let config = self.config.clone();
        let (rows, hidden) = (batch.rows, config.hidden_size);
        let (q_width, kv_width) = (
            config.num_heads * config.head_dim,
            config.num_kv_heads * config.head_dim,
        );
        let (cos, sin) = self.angles(batch);
        let rotation = Some(Rotation { cos: &cos, sin: &sin });
        let mut x = self.embed(batch);
        let mut normed = vec![0.0; rows * hidden];
        let mut q = vec![0.0; rows * q_width];
        let mut k = vec![0.0; rows * kv_width];
        let mut v = vec![0.0; rows * kv_width];
        let mut mixed = vec![0.0; rows * q_width];
        let mut gate = vec![0.0; rows * config.intermediate_size];
        let mut up = vec![0.0; rows * config.intermediate_size];
        let mut out = vec![0.0; rows * hidden];

        let Self {
            weights, kv, threads, ..
        } = self;
        for (layer, cache) in weights.layers.iter().zip(kv) {
            let mut run = |kind, x: &[f32], y: &mut [f32]| {
                if let Some(observe) = observe.as_mut() {
                    observe(layer.linear(kind).id, x);
                }
                apply_linear(layer, kind, batch, x, y, threads);
            };

            norm(&layer.input_norm, config.rms_norm_eps, batch, &x, &mut normed);
            run(LinearKind::Q, &normed, &mut q);
            run(LinearKind::K, &normed, &mut k);
            run(LinearKind::V, &normed, &mut v);
            if let Some((q_norm, k_norm)) = &layer.qk_norm {
                head_norm(q_norm, config.rms_norm_eps, batch, q_width, &mut q);
                head_norm(k_norm, config.rms_norm_eps, batch, kv_width, &mut k);
            }
            let (keys, values) = (Columns::whole(&k, kv_width), Columns::whole(&v, kv_width));
            cache.store(&batch.queries, keys, values, rotation, threads);
            let queries = Columns::whole(&q, q_width);
            attention::attend(cache, &batch.queries, queries, rotation, &mut mixed, threads);
            run(LinearKind::O, &mixed, &mut out);
            ops::add(&out, &mut x);

            norm(&layer.post_attention_norm, config.rms_norm_eps, batch, &x, &mut normed);
            run(LinearKind::Gate, &normed, &mut gate);
            run(LinearKind::Up, &normed, &mut up);
            let width = config.intermediate_size;
            for (gate, up) in gate.chunks_exact_mut(width).zip(up.chunks_exact(width)) {
                ops::swiglu(gate, up);
            }
            run(LinearKind::Down, &gate, &mut out);
            ops::add(&out, &mut x);
        }
        x
    }

    /// Cosines and sines of every row's position, `[rows, head_dim / 2]` each.
    fn angles(&self, batch: &Batch<'_>) -> (Vec<f32>, Vec<f32>) {
        let pairs = self.rope.pairs();
        let (mut cos, mut sin) = (vec![0.0; batch.rows * pairs], vec![0.0; batch.rows * pairs]);
        let rows = cos.chunks_exact_mut(pairs).zip(sin.chunks_exact_mut(pairs));
        for (position, (cos, sin)) in batch.positions.iter().zip(rows) {
            self.rope.angles(*position, cos, sin);
        }
        (cos, sin)
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
                    EmbeddingDelta::Factored(factors, rows) => match rows.get(&token) {
                        Some(exact) => out.copy_from_slice(exact),
                        None => {
                            base(out);
                            factors.add_dense_row(token as usize, out);
                        }
                    },
                }
            }
        }
        x
    }
}

/// `y = W x + b`, and for each variant's rows its difference and its own bias.
fn apply_linear(layer: &Layer, kind: LinearKind, batch: &Batch<'_>, x: &[f32], y: &mut [f32], threads: &Threads) {
    let linear = layer.linear(kind);
    let (inputs, outputs) = (linear.matrix.inputs(), linear.matrix.outputs());
    linear.matrix.matmul(x, batch.rows, y, threads);
    for Segment { variant, rows } in &batch.segments {
        let y = &mut y[rows.start * outputs..rows.end * outputs];
        if let Some(delta) = variant.and_then(|v| v.linears.get(&linear.id)) {
            delta.add_to(&x[rows.start * inputs..rows.end * inputs], rows.len(), y, threads);
        }
        if let Some(bias) = &linear.bias {
            let bias = replaced(bias, *variant);
            for row in y.chunks_exact_mut(outputs) {
                ops::add(bias, row);
            }
        }
    }
}

/// A norm weight or bias as the variant has it.
pub(super) fn replaced<'a>(base: &'a Vector, variant: Option<&'a VariantWeights>) -> &'a [f32] {
    variant.and_then(|v| v.vectors.get(&base.name)).unwrap_or(&base.values)
}

/// RMS norm of every row, with each variant's own weight.
fn norm(weight: &Vector, epsilon: f32, batch: &Batch<'_>, x: &[f32], out: &mut [f32]) {
    let width = weight.values.len();
    for Segment { variant, rows } in &batch.segments {
        let range = rows.start * width..rows.end * width;
        ops::rms_norm(&x[range.clone()], replaced(weight, *variant), epsilon, &mut out[range]);
    }
}

/// RMS norm of every head of every row, in place.
fn head_norm(weight: &Vector, epsilon: f32, batch: &Batch<'_>, width: usize, x: &mut [f32]) {
    for Segment { variant, rows } in &batch.segments {
        ops::rms_norm_in_place(
            &mut x[rows.start * width..rows.end * width],
            replaced(weight, *variant),
            epsilon,
        );
    }
}
