//! The packed weights.

use half::bf16;

use super::tile::{Bf16Pair, F32Pair};
use super::{PANEL, Product, multiply};
use crate::isa::bf16_dot;
use crate::threads::DisjointRows;
use crate::{AlignedBytes, Bytes, Threads};

/// How the weights are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// bf16, exact; activations in f32.
    Bf16,
    /// bf16, exact; activations rounded to bf16, for processors that multiply pairs of bf16 (twice the speed).
    Bf16Activations,
    /// f32, exact.
    F32,
}

impl Precision {
    /// Bytes of two inputs of a panel.
    const fn pair_bytes(self) -> usize {
        match self {
            Self::Bf16 | Self::Bf16Activations => size_of::<Bf16Pair>(),
            Self::F32 => size_of::<F32Pair>(),
        }
    }
}

/// A weight matrix `[outputs, inputs]`, packed for `y = x Wᵀ`. Cloning shares the weights.
#[derive(Debug, Clone)]
pub struct PackedMatrix {
    outputs: usize,
    inputs: usize,
    precision: Precision,
    /// Panels one after another; each `[inputs / 2]` pairs, the last one filled up with zeros.
    data: Bytes,
}

impl PackedMatrix {
    /// Packs a row-major bf16 matrix, exactly.
    ///
    /// # Panics
    /// If `weights` does not have `outputs · inputs` elements.
    pub fn from_bf16(weights: &[bf16], outputs: usize, inputs: usize, threads: &Threads) -> Self {
        Self::from_bf16_bytes(bytemuck::cast_slice(weights), outputs, inputs, threads)
    }

    /// As [`PackedMatrix::from_bf16`], from little-endian bytes as they lie in a file, aligned or not.
    ///
    /// # Panics
    /// If `weights` does not have `2 · outputs · inputs` bytes.
    pub fn from_bf16_bytes(weights: &[u8], outputs: usize, inputs: usize, threads: &Threads) -> Self {
        assert_eq!(
            weights.len(),
            2 * outputs * inputs,
            "weights are [outputs, inputs] in bf16"
        );
        let weights = weights.as_chunks::<2>().0;
        Self::pack(Precision::Bf16, outputs, inputs, threads, |first, columns, panel| {
            let panel: &mut [[[u16; 2]; PANEL]] = bytemuck::cast_slice_mut(panel);
            for j in 0..columns {
                let row = &weights[(first + j) * inputs..][..inputs];
                let (pairs, rest) = row.as_chunks::<2>();
                for (out, pair) in panel.iter_mut().zip(pairs) {
                    out[j] = pair.map(u16::from_le_bytes);
                }
                if let [last] = rest {
                    panel[pairs.len()][j][0] = u16::from_le_bytes(*last);
                }
            }
        })
    }

    /// Packs a row-major f32 matrix, exactly (4 bytes a weight).
    ///
    /// # Panics
    /// If `weights` does not have `outputs · inputs` elements.
    pub fn from_f32(weights: &[f32], outputs: usize, inputs: usize, threads: &Threads) -> Self {
        assert_eq!(weights.len(), outputs * inputs, "weights are [outputs, inputs]");
        let row = |o: usize, out: &mut [f32]| out.copy_from_slice(&weights[o * inputs..][..inputs]);
        Self::from_f32_rows(outputs, inputs, threads, row)
    }

    /// As [`PackedMatrix::from_f32`]; `row(output, out)` writes each row, in any order and from several threads.
    pub fn from_f32_rows(
        outputs: usize,
        inputs: usize,
        threads: &Threads,
        row: impl Fn(usize, &mut [f32]) + Sync,
    ) -> Self {
        Self::pack(Precision::F32, outputs, inputs, threads, |first, columns, panel| {
            let panel: &mut [[f32; PANEL]] = bytemuck::cast_slice_mut(panel);
            let mut weights = vec![0.0; inputs];
            for j in 0..columns {
                row(first + j, &mut weights);
                for (out, w) in panel.iter_mut().zip(&weights) {
                    out[j] = *w;
                }
            }
        })
    }

    /// The same weights for activations that are rounded to bf16; `None` if the processor has no dot product of bf16
    /// pairs (AVX512_BF16) or the weights are not bf16.
    pub fn with_bf16_activations(mut self) -> Option<Self> {
        let possible = bf16_dot() && self.precision == Precision::Bf16;
        self.precision = Precision::Bf16Activations;
        possible.then_some(self)
    }

    /// Lets `fill(first column, columns, bytes)` write each panel, in parallel.
    fn pack(
        precision: Precision,
        outputs: usize,
        inputs: usize,
        threads: &Threads,
        fill: impl Fn(usize, usize, &mut [u8]) + Sync,
    ) -> Self {
        let panel = inputs.div_ceil(2) * precision.pair_bytes();
        let panels = outputs.div_ceil(PANEL);
        let mut data = AlignedBytes::zeroed(panels * panel);
        let parts = DisjointRows::new(&mut data[..], panel);
        threads.for_each(panels, outputs * inputs, |p| {
            // SAFETY: each panel's bytes are handed out once.
            let bytes = unsafe { parts.rows(p, 1) };
            fill(p * PANEL, (outputs - p * PANEL).min(PANEL), bytes);
        });
        Self {
            outputs,
            inputs,
            precision,
            data: data.into(),
        }
    }

    /// Length of an output row.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Length of an input row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// How the weights are stored.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Bytes that the packed weights occupy.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    /// Panels, the last one perhaps partly filled.
    pub(super) fn panels(&self) -> usize {
        self.outputs.div_ceil(PANEL)
    }

    /// All pairs of the weights, panel after panel; the caller knows the precision.
    pub(super) fn pairs<P: bytemuck::AnyBitPattern>(&self) -> &[P] {
        debug_assert_eq!(size_of::<P>(), self.precision.pair_bytes());
        bytemuck::cast_slice(&self.data)
    }

    /// `y[m] = W x[m]`; `x` is `[rows, inputs]`, `y` `[rows, outputs]`.
    ///
    /// # Panics
    /// If `x` or `y` has another length.
    pub fn matmul(&self, x: &[f32], rows: usize, y: &mut [f32], threads: &Threads) {
        let product = Product {
            matrix: self,
            column: 0,
        };
        multiply(&[product], x, rows, y, self.outputs, threads);
    }

    /// Writes weight row `output` to `row` (length `inputs`): an embedding look-up.
    ///
    /// # Panics
    /// If `output` is not below `outputs` or `row` has another length.
    pub fn row(&self, output: usize, row: &mut [f32]) {
        assert!(output < self.outputs, "row {output} of {} outputs", self.outputs);
        assert_eq!(row.len(), self.inputs, "row is [inputs]");
        let pairs = self.inputs.div_ceil(2);
        let (panel, column) = (output / PANEL * pairs, output % PANEL);
        let out = row.chunks_mut(2);
        match self.precision {
            Precision::Bf16 | Precision::Bf16Activations => {
                let panel: &[Bf16Pair] = &self.pairs()[panel..panel + pairs];
                for (out, pair) in out.zip(panel) {
                    let wide = [pair[column] << 16, pair[column] & 0xffff_0000];
                    for (out, wide) in out.iter_mut().zip(wide) {
                        *out = f32::from_bits(wide);
                    }
                }
            }
            Precision::F32 => {
                let panel: &[F32Pair] = &self.pairs()[panel..panel + pairs];
                for (out, pair) in out.zip(panel) {
                    for (out, wide) in out.iter_mut().zip(pair) {
                        *out = wide[column];
                    }
                }
            }
        }
    }
}
