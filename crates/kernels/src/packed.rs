//! Weight matrices packed in panels of output columns.
//!
//! A panel holds [`PANEL`] consecutive output columns, interleaved: its element `k · PANEL + j` is the weight of input
//! `k` for the panel's column `j`. A product keeps one accumulator for each output element and adds the inputs in
//! order, so the result does not depend on how many rows or panels are computed together.

use std::sync::Arc;

use half::bf16;

use crate::Threads;
use crate::isa::for_each_isa;
use crate::lanes::{self, LANES, Lanes};
use crate::threads::DisjointRows;

/// Output columns of a panel.
pub const PANEL: usize = LANES;

/// Panels that one task computes: enough work to pay for handing it to a thread.
const TASK_PANELS: usize = 4;

#[derive(Debug, Clone)]
enum Storage {
    Bf16(Arc<[u16]>),
    F32(Arc<[f32]>),
}

/// A weight matrix `[outputs, inputs]`, packed for `y = x Wᵀ`. Cloning shares the weights.
#[derive(Debug, Clone)]
pub struct PackedMatrix {
    outputs: usize,
    inputs: usize,
    storage: Storage,
}

impl PackedMatrix {
    /// Packs a row-major bf16 matrix, exactly.
    ///
    /// # Panics
    /// If `weights` does not have `outputs · inputs` elements.
    pub fn from_bf16(weights: &[bf16], outputs: usize, inputs: usize) -> Self {
        let storage = Storage::Bf16(pack(weights, outputs, inputs, |w| w.to_bits()));
        Self {
            outputs,
            inputs,
            storage,
        }
    }

    /// Packs a row-major f32 matrix, exactly (4 bytes a weight).
    ///
    /// # Panics
    /// If `weights` does not have `outputs · inputs` elements.
    pub fn from_f32(weights: &[f32], outputs: usize, inputs: usize) -> Self {
        let storage = Storage::F32(pack(weights, outputs, inputs, |w| w));
        Self {
            outputs,
            inputs,
            storage,
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

    /// Bytes that the packed weights occupy.
    pub fn bytes(&self) -> usize {
        match &self.storage {
            Storage::Bf16(w) => size_of_val::<[u16]>(w),
            Storage::F32(w) => size_of_val::<[f32]>(w),
        }
    }

    /// `y[m] = W x[m]`; `x` is `[rows, inputs]`, `y` `[rows, outputs]`.
    ///
    /// # Panics
    /// If `x` or `y` has another length.
    pub fn matmul(&self, x: &[f32], rows: usize, y: &mut [f32], threads: &Threads) {
        assert_eq!(x.len(), rows * self.inputs, "x is [rows, inputs]");
        assert_eq!(y.len(), rows * self.outputs, "y is [rows, outputs]");
        if rows == 0 || self.inputs == 0 {
            y.fill(0.0);
            return;
        }
        let y = DisjointRows::new(y, self.outputs);
        let panels = self.outputs.div_ceil(PANEL);
        threads.for_each(
            panels.div_ceil(TASK_PANELS),
            rows * self.inputs * self.outputs,
            |task| {
                for panel in (task * TASK_PANELS..panels.min((task + 1) * TASK_PANELS)).step_by(2) {
                    let count = (panels - panel).min(2);
                    match &self.storage {
                        Storage::Bf16(w) => self.panels(w, panel, count, x, rows, &y, bf16_panels),
                        Storage::F32(w) => self.panels(w, panel, count, x, rows, &y, f32_panels),
                    }
                }
            },
        );
    }

    /// Computes one or two neighbouring panels for all rows.
    #[allow(clippy::too_many_arguments)]
    fn panels<W>(
        &self,
        weights: &[W],
        first: usize,
        count: usize,
        x: &[f32],
        rows: usize,
        y: &DisjointRows<'_>,
        kernel: PanelKernel<W>,
    ) {
        let size = self.inputs * PANEL;
        let panel = &weights[first * size..(first + count) * size];
        let columns = (self.outputs - first * PANEL).min(count * PANEL);
        let mut tile = [[[0.0; LANES]; 2]; MAX_ROWS];
        for start in (0..rows).step_by(MAX_ROWS) {
            let n = (rows - start).min(MAX_ROWS);
            kernel(panel, count, &x[start * self.inputs..], self.inputs, n, &mut tile[..n]);
            for (m, sums) in tile[..n].iter().enumerate() {
                // SAFETY: tasks own different columns of y, and this one writes each row's part once.
                let out = unsafe { y.part(start + m, first * PANEL, columns) };
                out.copy_from_slice(&sums.as_flattened()[..columns]);
            }
        }
    }

    /// Writes weight row `output` to `row` (length `inputs`): an embedding look-up.
    ///
    /// # Panics
    /// If `output` is not below `outputs` or `row` has another length.
    pub fn row(&self, output: usize, row: &mut [f32]) {
        assert!(output < self.outputs && row.len() == self.inputs);
        let start = output / PANEL * PANEL * self.inputs + output % PANEL;
        for (k, r) in row.iter_mut().enumerate() {
            *r = match &self.storage {
                Storage::Bf16(w) => widen(w[start + k * PANEL]),
                Storage::F32(w) => w[start + k * PANEL],
            };
        }
    }
}

/// `(weights, panels, x, inputs, rows, out)`: one or two panels times at most [`MAX_ROWS`] rows.
type PanelKernel<W> = fn(&[W], usize, &[f32], usize, usize, &mut [[Lanes; 2]]);

/// Rows that one call of a kernel computes.
const MAX_ROWS: usize = 8;

#[inline(always)]
fn widen(w: u16) -> f32 {
    f32::from_bits(u32::from(w) << 16)
}

fn pack<A: Copy, B: Copy + Default>(weights: &[A], outputs: usize, inputs: usize, to: impl Fn(A) -> B) -> Arc<[B]> {
    assert_eq!(weights.len(), outputs * inputs, "weights are [outputs, inputs]");
    let mut packed = vec![B::default(); outputs.div_ceil(PANEL) * PANEL * inputs];
    for (o, row) in weights.chunks_exact(inputs.max(1)).enumerate() {
        let panel = &mut packed[o / PANEL * PANEL * inputs..];
        for (k, w) in row.iter().enumerate() {
            panel[k * PANEL + o % PANEL] = to(*w);
        }
    }
    packed.into()
}

/// `ROWS` rows times `PANELS` panels: one accumulator an output element, inputs in order.
macro_rules! panel_kernel {
    ($name:ident, $weight:ty, $widen:expr) => {
        for_each_isa! {
            fn $name(weights: &[$weight], panels: usize, x: &[f32], inputs: usize, rows: usize, out: &mut [[Lanes; 2]]) {
                #[inline(always)]
                fn tile<const ROWS: usize, const PANELS: usize>(
                    weights: &[$weight],
                    x: &[f32],
                    inputs: usize,
                    out: &mut [[Lanes; 2]],
                ) {
                    let mut acc = [[[0.0f32; LANES]; PANELS]; ROWS];
                    let panel: [&[[$weight; LANES]]; PANELS] =
                        std::array::from_fn(|p| &weights[p * inputs * LANES..].as_chunks::<LANES>().0[..inputs]);
                    let x: [&[f32]; ROWS] = std::array::from_fn(|m| &x[m * inputs..][..inputs]);
                    for k in 0..inputs {
                        for p in 0..PANELS {
                            let mut w = [0.0f32; LANES];
                            for j in 0..LANES {
                                w[j] = $widen(panel[p][k][j]);
                            }
                            for m in 0..ROWS {
                                lanes::fma(&mut acc[m][p], x[m][k], &w);
                            }
                        }
                    }
                    for m in 0..ROWS {
                        for p in 0..PANELS {
                            out[m][p] = acc[m][p];
                        }
                    }
                }
                match (rows, panels) {
                    (8, 2) => tile::<8, 2>(weights, x, inputs, out),
                    (8, 1) => tile::<8, 1>(weights, x, inputs, out),
                    _ => {
                        let mut m = 0;
                        while m < rows {
                            let (x, out) = (&x[m * inputs..], &mut out[m..]);
                            let step = match rows - m {
                                1 => 1,
                                2 | 3 => 2,
                                _ => 4,
                            };
                            match (step, panels) {
                                (1, 1) => tile::<1, 1>(weights, x, inputs, out),
                                (1, _) => tile::<1, 2>(weights, x, inputs, out),
                                (2, 1) => tile::<2, 1>(weights, x, inputs, out),
                                (2, _) => tile::<2, 2>(weights, x, inputs, out),
                                (_, 1) => tile::<4, 1>(weights, x, inputs, out),
                                (_, _) => tile::<4, 2>(weights, x, inputs, out),
                            }
                            m += step;
                        }
                    }
                }
            }
        }
    };
}

panel_kernel!(bf16_panels, u16, widen);
panel_kernel!(f32_panels, f32, |w: f32| w);

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    fn random(n: usize, rng: &mut ChaCha8Rng) -> Vec<f32> {
        (0..n).map(|_| rng.random_range(-1.0..1.0)).collect()
    }

    fn both(weights: &[f32], outputs: usize, inputs: usize) -> [PackedMatrix; 2] {
        let exact: Vec<bf16> = weights.iter().map(|w| bf16::from_f32(*w)).collect();
        [
            PackedMatrix::from_bf16(&exact, outputs, inputs),
            PackedMatrix::from_f32(weights, outputs, inputs),
        ]
    }

    #[test]
    fn products_match_f64_arithmetic() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let threads = Threads::new(2);
        for (outputs, inputs) in [(16, 8), (1, 1), (33, 70), (192, 576), (100, 31)] {
            let weights = random(outputs * inputs, &mut rng);
            for matrix in both(&weights, outputs, inputs) {
                let mut row = vec![0.0; inputs];
                for rows in [1, 2, 3, 5, 7, 8, 9, 21] {
                    let x = random(rows * inputs, &mut rng);
                    let mut y = vec![f32::NAN; rows * outputs];
                    matrix.matmul(&x, rows, &mut y, &threads);
                    for (x, y) in x.chunks_exact(inputs).zip(y.chunks_exact(outputs)) {
                        for (o, y) in y.iter().enumerate() {
                            matrix.row(o, &mut row);
                            let exact: f64 = row.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                            assert!((f64::from(*y) - exact).abs() < 1e-4, "{outputs}x{inputs}, {rows} rows");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_is_the_same_alone_and_in_a_batch() {
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        // Large enough to be spread over threads.
        let (outputs, inputs, rows) = (275, 130, 23);
        for matrix in both(&random(outputs * inputs, &mut rng), outputs, inputs) {
            let x = random(rows * inputs, &mut rng);
            let mut together = vec![0.0; rows * outputs];
            matrix.matmul(&x, rows, &mut together, &Threads::new(3));
            for (x, expected) in x.chunks_exact(inputs).zip(together.chunks_exact(outputs)) {
                let mut alone = vec![0.0; outputs];
                matrix.matmul(x, 1, &mut alone, &Threads::new(1));
                assert_eq!(alone, expected);
            }
        }
    }

    /// The scalar twin: one fused multiply-add an input, in order.
    #[test]
    fn every_instruction_set_gives_the_scalar_result() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let (outputs, inputs, rows) = (40, 57, 11);
        for matrix in both(&random(outputs * inputs, &mut rng), outputs, inputs) {
            let x = random(rows * inputs, &mut rng);
            let mut y = vec![0.0; rows * outputs];
            matrix.matmul(&x, rows, &mut y, &Threads::new(2));
            let mut row = vec![0.0; inputs];
            for (x, y) in x.chunks_exact(inputs).zip(y.chunks_exact(outputs)) {
                for (o, y) in y.iter().enumerate() {
                    matrix.row(o, &mut row);
                    let scalar = row.iter().zip(x).fold(0.0f32, |acc, (w, x)| x.mul_add(*w, acc));
                    assert_eq!(*y, scalar);
                }
            }
        }
    }
}
