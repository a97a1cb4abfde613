//! A quantised low-rank difference to a linear: `y += U (s ⊙ (V x))`.
//!
//! Both factors are stored as rows, one a rank: V's rows along the inputs, Uᵀ's along the outputs. The codes are
//! multiplied as the integers they are, straight from their packed bytes, so that one row is bound by memory:
//!
//! * **V x**: a row of x is quantised to 16 bits, each group of inputs with a scale of its own. For each rank the
//!   products of a group are summed exactly; lane `j` of eight accumulates groups `j`, `j + 8`, … in order, each with
//!   one fused multiply-add by both scales, and a fixed tree sums the lanes.
//! * **U h**: for each block of 32 ranks and group of outputs `h ⊙ scale` is quantised to 16 bits with one scale. The
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

pub use terms::{Term, add_terms};

use crate::Threads;
use crate::bytes::Bytes;
use factor::Factor;

/// The ranks of one width, in order of falling singular value.
#[derive(Debug, Clone)]
pub struct Band {
    /// Bits a weight: 8, 4, 3 or 2; or 16, little-endian f16 without scales and zero points.
    pub bits: u8,
    /// Number of ranks.
    pub ranks: usize,
    /// Codes of V: `ranks` rows of `inputs` weights, laid out as [`crate::lowbit`] says.
    pub v_codes: Bytes,
    /// Scales of V, `[ranks, groups(inputs)]`.
    pub v_scales: Vec<f32>,
    /// Zero points of V, same shape.
    pub v_zeros: Vec<u8>,
    /// Codes of Uᵀ: `ranks` rows of `outputs` weights.
    pub u_codes: Bytes,
    /// Scales of Uᵀ, `[ranks, groups(outputs)]`.
    pub u_scales: Vec<f32>,
    /// Zero points of Uᵀ, same shape.
    pub u_zeros: Vec<u8>,
}

/// The quantised factors of one linear's difference.
#[derive(Debug, Clone)]
pub struct LowRankDelta {
    /// Length of an input row.
    pub inputs: usize,
    /// Length of an output row.
    pub outputs: usize,
    /// Singular value of each rank, bands one after another.
    pub s: Vec<f32>,
    /// Bands, widest first.
    pub bands: Vec<Band>,
}

impl LowRankDelta {
    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.s.len()
    }

    /// Bytes of codes, scales, zero points and singular values in memory.
    pub fn bytes(&self) -> usize {
        let band = |b: &Band| {
            b.v_codes.len()
                + b.u_codes.len()
                + size_of_val(&*b.v_scales)
                + size_of_val(&*b.u_scales)
                + b.v_zeros.len()
                + b.u_zeros.len()
        };
        size_of_val(&*self.s) + self.bands.iter().map(band).sum::<usize>()
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

    /// V of a band.
    fn v<'a>(&self, band: &'a Band) -> Factor<'a> {
        Factor::new(band, self.inputs, &band.v_codes, &band.v_scales, &band.v_zeros)
    }

    /// Uᵀ of a band.
    fn u<'a>(&self, band: &'a Band) -> Factor<'a> {
        Factor::new(band, self.outputs, &band.u_codes, &band.u_scales, &band.u_zeros)
    }
}
