//! A quantised low-rank difference to a linear: `y += U (s ⊙ (V x))`.
//!
//! Both factors are stored as rows, one a rank: V's rows along the inputs, Uᵀ's along the outputs. The codes are
//! multiplied as the integers they are, straight from their packed bytes, so that one row is bound by memory:
//!
//! * **V x**: a row of x is quantised to 16 bits, each group of inputs with a scale of its own; codes of 3 and 2 bits are
//!   multiplied with the high bytes alone, whose error is still far below theirs. For each rank the
//!   products of a group are summed exactly; lane `j` of eight accumulates groups `j`, `j + 8`, … in order, each with
//!   one fused multiply-add by both scales, and a fixed tree sums the lanes.
//! * **U h**: for each block of 32 ranks and group of outputs `h ⊙ scale` is quantised likewise with one scale. The
//!   products are summed exactly over the block and added to y with one fused multiply-add, blocks in order.
//!
//! Sums of integers do not depend on their order, so every instruction set and every tiling gives the same bits, and
//! none of it depends on the number of rows in the call. Ranks of 16 bits are multiplied as f32: V in the lanes' fixed
//! order, U rank after rank.

mod activations;
mod arithmetic;
#[cfg(target_arch = "x86_64")]
mod avx2;
mod coefficients;
mod exact;
mod factor;
mod portable;
mod terms;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod tile;
#[cfg(target_arch = "x86_64")]
mod vnni;
#[cfg(target_arch = "x86_64")]
mod vnni_two;

pub use terms::{Term, add_terms};

use crate::Threads;
use crate::bytes::Bytes;
use factor::Factor;

/// Rows of one factor at one width.
///
/// A weight is `(2 · code − zero) · scale`: zero points are in half steps, so that levels may lie evenly around 0.
#[derive(Debug, Clone)]
pub struct Band {
    /// Bits a weight: 8, 4, 3 or 2; or 16, little-endian f16 without scales and zero points.
    pub bits: u8,
    /// Number of ranks, each a row.
    pub ranks: usize,
    /// Codes of the rows, laid out as [`crate::lowbit`] says.
    pub codes: Bytes,
    /// Half the step of each group, `[ranks, groups(length of a row)]`.
    pub scales: Vec<f32>,
    /// Zero points in half steps, at most 2 · (2^bits − 1); same shape.
    pub zeros: Vec<u16>,
}

/// The quantised factors of one linear's difference.
#[derive(Debug, Clone)]
pub struct LowRankDelta {
    /// Length of an input row.
    pub inputs: usize,
    /// Length of an output row.
    pub outputs: usize,
    /// Singular value of each rank.
    pub s: Vec<f32>,
    /// V: bands of rows of `inputs` weights, one after another in the order of the ranks.
    pub v: Vec<Band>,
    /// Uᵀ: bands of rows of `outputs` weights, for the same ranks in the same order. A rank's width may be another here
    /// than in V.
    pub u: Vec<Band>,
}

impl LowRankDelta {
    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.s.len()
    }

    /// Bytes of codes, scales, zero points and singular values in memory.
    pub fn bytes(&self) -> usize {
        let band = |b: &Band| b.codes.len() + size_of_val(&*b.scales) + size_of_val(&*b.zeros);
        size_of_val(&*self.s) + self.v.iter().chain(&self.u).map(band).sum::<usize>()
    }

    /// Adds the difference: `y[m] += U (s ⊙ (V x[m]))` for each of the `rows` rows; `x` is `[rows, inputs]`, `y`
    /// `[rows, outputs]`.
    ///
    /// # Panics
    /// If `x` or `y` has another length, or a band's parts do not fit the shape.
    pub fn add_to(&self, x: &[f32], rows: usize, y: &mut [f32], threads: &Threads) {
        let term = Term {
            delta: self,
            rows: 0..rows,
            column: 0,
        };
        add_terms(x, rows, &[term], y, self.outputs, threads);
    }

    /// The bands of V, checked.
    fn v_factors(&self) -> impl Iterator<Item = Factor<'_>> {
        self.v.iter().map(|band| Factor::new(band, self.inputs))
    }

    /// The bands of Uᵀ, checked.
    fn u_factors(&self) -> impl Iterator<Item = Factor<'_>> {
        self.u.iter().map(|band| Factor::new(band, self.outputs))
    }
}
