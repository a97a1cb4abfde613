//! What each rank contributes to a group of outputs, as integers.
//!
//! Over a block of [`BLOCK`] ranks `h ⊙ s ⊙ scale` shares one scale for each group of outputs. The error of a
//! coefficient is 2⁻¹⁶ of the block's largest, so that of their sum is small beside the result, whose largest
//! summands are that coefficient's; sums, doubled as zero points are in half steps, stay below
//! 2 · 32 · 255 · 32,639 < 2³¹. For codes of 3 and 2 bits the high bytes alone are the coefficients, as with the
//! activations ([`coarse`](super::activations::coarse)).

use super::activations::{CHUNK, coarse};
use super::arithmetic::Arithmetic;
#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::factor::Factor;
use super::portable;
use super::tile::Ahead;
use std::ops::Range;

/// Ranks that share a scale, and whose products are summed as integers.
pub(super) const BLOCK: usize = 32;

/// One value for each group of a chunk.
type Lanes = [i32; CHUNK];

/// The coefficients of a block of ranks for a chunk of groups of outputs.
pub(super) struct Coefficients {
    pub(super) first_rank: usize,
    pub(super) ranks: usize,
    pub(super) first_group: usize,
    pub(super) integers: Integers,
    pub(super) zeros: Lanes,
    pub(super) scales: [f32; CHUNK],
}

/// The integers as the instructions take them; 0 beyond the last rank.
#[repr(align(64))]
pub(super) struct Integers {
    /// One by one.
    pub(super) single: [Lanes; BLOCK],
    /// Ranks `2i` and `2i + 1` as two i16, or, if coarse, as two bytes, twice.
    pub(super) pairs: [Lanes; BLOCK / 2],
    /// High bytes and low bytes, signed, of ranks `4i` to `4i + 3`; if coarse, the low bytes mean nothing.
    pub(super) quads: [[Lanes; 2]; BLOCK / 4],
}

impl Coefficients {
    pub(super) const ZERO: Self = Self {
        first_rank: 0,
        ranks: 0,
        first_group: 0,
        integers: Integers {
            single: [[0; CHUNK]; BLOCK],
            pairs: [[0; CHUNK]; BLOCK / 2],
            quads: [[[0; CHUNK]; 2]; BLOCK / 4],
        },
        zeros: [0; CHUNK],
        scales: [0.0; CHUNK],
    };

    /// Computes the coefficients of the ranks from `first_rank` on, whose `s ⊙ (V x)` is `h`, for the groups from
    /// `first_group` on.
    ///
    /// # Panics
    /// If `h` is longer than a block, or a rank or the first group is not of `u`.
    pub(super) fn quantise(
        &mut self,
        arithmetic: Arithmetic,
        u: &Factor<'_>,
        h: &[f32],
        first_rank: usize,
        first_group: usize,
        ahead: Ahead,
    ) {
        assert!(h.len() <= BLOCK && first_rank + h.len() <= u.ranks() && first_group < u.groups());
        (self.first_rank, self.ranks, self.first_group) = (first_rank, h.len(), first_group);
        match arithmetic {
            Arithmetic::Portable => portable::quantise(self, u, h),
            // SAFETY: the instructions exist, and the ranks and groups are `u`'s.
            #[cfg(target_arch = "x86_64")]
            Arithmetic::Avx2 if coarse(u.bits()) => unsafe { avx2::quantise::<2, true>(self, u, h, ahead) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Arithmetic::Avx2 => unsafe { avx2::quantise::<2, false>(self, u, h, ahead) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Arithmetic::Vnni if coarse(u.bits()) => unsafe { avx2::quantise::<4, true>(self, u, h, ahead) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Arithmetic::Vnni => unsafe { avx2::quantise::<4, false>(self, u, h, ahead) },
        }
    }

    /// The ranks of the factor that the coefficients belong to.
    #[inline(always)]
    pub(super) fn ranks(&self) -> Range<usize> {
        self.first_rank..self.first_rank + self.ranks
    }

    /// The group of lane 0.
    #[inline(always)]
    pub(super) fn first_group(&self) -> usize {
        self.first_group
    }

    /// The integer of the block's rank `i`.
    pub(super) fn integer(&self, i: usize, lane: usize) -> i32 {
        self.integers.single[i][lane]
    }

    /// Integers of the block's ranks, two by two, or their bytes.
    #[inline(always)]
    #[cfg(target_arch = "x86_64")]
    pub(super) fn pairs(&self) -> &[Lanes] {
        &self.integers.pairs[..self.ranks.div_ceil(2)]
    }

    /// High and low bytes of the block's ranks, four by four.
    #[inline(always)]
    #[cfg(target_arch = "x86_64")]
    pub(super) fn quads(&self) -> &[[Lanes; 2]] {
        &self.integers.quads[..self.ranks.div_ceil(4)]
    }

    /// Sum of the integers, each times its rank's zero point in half steps.
    #[inline(always)]
    pub(super) fn zero(&self, lane: usize) -> i32 {
        self.zeros[lane]
    }

    /// What an integer is worth.
    #[inline(always)]
    pub(super) fn scale(&self, lane: usize) -> f32 {
        self.scales[lane]
    }
}

/// The first values of a slice, completed with zeros.
#[inline(always)]
pub(super) fn first<T: Copy + Default>(values: &[T]) -> [T; CHUNK] {
    match values.first_chunk() {
        Some(values) => *values,
        None => {
            let mut padded = [T::default(); CHUNK];
            padded[..values.len()].copy_from_slice(values);
            padded
        }
    }
}
