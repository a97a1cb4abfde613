//! A difference of signs to a linear: `y += scale ⊙ (B x)`, where every weight of `B` is 1 or −1 and takes one bit.
//!
//! Four inputs have sixteen combinations of signs. Their sums are computed once for a row of x, a *table* for every four
//! inputs; a code of four bits then finds the sum of four products at once, and a register of codes those of sixteen
//! outputs. So one look-up and one addition replace 64 multiply-adds, and activations stay f32.
//!
//! Each output adds its look-ups in the order of the inputs, whatever the number of rows, of threads and the
//! instruction set: only additions and one fused multiply-add by the scale are needed, and these give the same bits
//! everywhere.

mod dense;
mod layout;
mod sums;
mod tables;
mod terms;
#[cfg(test)]
mod tests;

pub use layout::{code_bytes, pack, padding_is_zero};
pub use terms::{Term, add_terms};

use crate::Threads;
use crate::bytes::Bytes;

/// Outputs whose codes lie side by side.
const PANEL: usize = 16;

/// Inputs whose signs are one word.
const GROUP: usize = 32;

/// The signs of one linear's difference and what they are multiplied with.
#[derive(Debug, Clone)]
pub struct SignDelta {
    /// Length of an input row.
    pub inputs: usize,
    /// Length of an output row.
    pub outputs: usize,
    /// One scale for the matrix, or one for each output.
    pub scales: Vec<f32>,
    /// The signs as [`pack`] lays them out, [`code_bytes`] bytes.
    pub codes: Bytes,
}

impl SignDelta {
    /// Bytes of codes and scales in memory.
    pub fn bytes(&self) -> usize {
        self.codes.len() + size_of_val(&*self.scales)
    }

    /// Adds the difference: `y[m] += scale ⊙ (B x[m])` for each of the `rows` rows; `x` is `[rows, inputs]`, `y`
    /// `[rows, outputs]`.
    ///
    /// # Panics
    /// If `x` or `y` has another length, or the scales or the codes do not fit the shape.
    pub fn add_to(&self, x: &[f32], rows: usize, y: &mut [f32], threads: &Threads) {
        let term = Term {
            delta: self,
            rows: 0..rows,
            column: 0,
        };
        add_terms(x, rows, &[term], y, self.outputs, threads);
    }

    /// The scale of an output.
    fn scale(&self, output: usize) -> f32 {
        match *self.scales {
            [one] => one,
            _ => self.scales[output],
        }
    }

    /// Refuses parts that do not fit the shape.
    ///
    /// # Panics
    /// If the scales or the codes have another length.
    fn check(&self) {
        assert_eq!(
            Some(self.codes.len()),
            code_bytes(self.inputs, self.outputs),
            "signs are 64 bytes for each 32 inputs of 16 outputs"
        );
        let scales = self.scales.len();
        assert!(
            scales == 1 || scales == self.outputs,
            "there is one scale, or one for each output"
        );
    }
}
