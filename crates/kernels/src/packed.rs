//! Weight matrices packed in panels of output columns.

use crate::Threads;
use half::bf16;

/// A weight matrix `[outputs, inputs]`, packed for `y = x Wᵀ`.
#[derive(Debug, Clone)]
pub struct PackedMatrix {
    outputs: usize,
    inputs: usize,
}

impl PackedMatrix {
    /// Packs a row-major bf16 matrix, exactly.
    pub fn from_bf16(_weights: &[bf16], _outputs: usize, _inputs: usize) -> Self {
        todo!()
    }

    /// Packs a row-major f32 matrix, exactly (4 bytes a weight).
    pub fn from_f32(_weights: &[f32], _outputs: usize, _inputs: usize) -> Self {
        todo!()
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
        todo!()
    }

    /// `y[m] = W x[m]`; `x` is `[rows, inputs]`, `y` `[rows, outputs]`.
    pub fn matmul(&self, _x: &[f32], _rows: usize, _y: &mut [f32], _threads: &Threads) {
        todo!()
    }

    /// Writes weight row `output` to `row` (length `inputs`): an embedding look-up.
    pub fn row(&self, _output: usize, _row: &mut [f32]) {
        todo!()
    }
}
