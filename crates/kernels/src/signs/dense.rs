//! The dense difference in f32, weight by weight.

use super::layout::{is_negative, word};
use super::{GROUP, SignDelta};

impl SignDelta {
    /// Adds row `output` of the dense difference to `row` (length `inputs`): what an embedding look-up needs.
    ///
    /// # Panics
    /// If `output` is not below `outputs`, `row` has another length, or the scales or the codes do not fit the shape.
    pub fn add_dense_row(&self, output: usize, row: &mut [f32]) {
        assert!(output < self.outputs, "the output is below outputs");
        assert_eq!(row.len(), self.inputs, "the row is [inputs]");
        self.check();
        let scale = self.scale(output);
        for (group, part) in row.chunks_mut(GROUP).enumerate() {
            let word = word(&self.codes, self.inputs, output, group);
            for (i, value) in part.iter_mut().enumerate() {
                *value += if is_negative(word, i) { -scale } else { scale };
            }
        }
    }

    /// The dense difference `[outputs, inputs]`, row-major.
    ///
    /// # Panics
    /// If the scales or the codes do not fit the shape.
    pub fn to_dense(&self) -> Vec<f32> {
        let mut dense = vec![0.0; self.outputs * self.inputs];
        for (output, row) in dense.chunks_exact_mut(self.inputs.max(1)).enumerate() {
            self.add_dense_row(output, row);
        }
        dense
    }
}
