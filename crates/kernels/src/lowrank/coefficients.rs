//! What each rank contributes to a group of outputs, in 16 bits.
//!
//! Over a block of [`BLOCK`] ranks `h ⊙ s ⊙ scale` shares one scale for each group of outputs. The error of a
//! coefficient is 2⁻¹⁶ of the block's largest, so that of their sum is small beside the result, whose largest
//! summands are that coefficient's; sums stay below 32 · 255 · 32,639 < 2³¹.

use super::activations::{CHUNK, magnitude, round, scale};
use super::arithmetic::Arithmetic;
use super::factor::Factor;
use crate::isa::for_each_isa;
use std::ops::Range;

/// Ranks that share a scale, and whose products are summed as integers.
pub(super) const BLOCK: usize = 32;

/// One value for each group of a chunk.
type Lanes = [i32; CHUNK];

/// The coefficients of a block of ranks for a chunk of groups of outputs.
pub(super) struct Coefficients {
    first_rank: usize,
    ranks: usize,
    first_group: usize,
    integers: [Lanes; BLOCK],
    /// Integers of ranks `2i` and `2i + 1` as two i16 (AVX2).
    pairs: [Lanes; BLOCK / 2],
    /// High bytes of ranks `4i` to `4i + 3` (VNNI).
    high: [Lanes; BLOCK / 4],
    /// Low bytes of the same, signed.
    low: [Lanes; BLOCK / 4],
    zeros: Lanes,
    scales: [f32; CHUNK],
}

impl Coefficients {
    pub(super) fn new() -> Self {
        Self {
            first_rank: 0,
            ranks: 0,
            first_group: 0,
            integers: [[0; CHUNK]; BLOCK],
            pairs: [[0; CHUNK]; BLOCK / 2],
            high: [[0; CHUNK]; BLOCK / 4],
            low: [[0; CHUNK]; BLOCK / 4],
            zeros: [0; CHUNK],
            scales: [0.0; CHUNK],
        }
    }

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
    ) {
        assert!(h.len() <= BLOCK && first_rank + h.len() <= u.ranks() && first_group < u.groups());
        (self.first_rank, self.ranks, self.first_group) = (first_rank, h.len(), first_group);
        quantise(self, u, h);
        match arithmetic {
            Arithmetic::Portable => {}
            #[cfg(target_arch = "x86_64")]
            Arithmetic::Avx2 => pack_pairs(self),
            #[cfg(target_arch = "x86_64")]
            Arithmetic::Vnni => pack_bytes(self),
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
        self.integers[i][lane]
    }

    /// Integers of the block's ranks `2i` and `2i + 1` as two i16; 0 beyond the last rank.
    #[inline(always)]
    #[cfg(target_arch = "x86_64")]
    pub(super) fn pair(&self, i: usize, lane: usize) -> i32 {
        self.pairs[i][lane]
    }

    /// High and low bytes of the block's ranks `4i` to `4i + 3`; 0 beyond the last rank.
    #[inline(always)]
    #[cfg(target_arch = "x86_64")]
    pub(super) fn bytes(&self, i: usize, lane: usize) -> (i32, i32) {
        (self.high[i][lane], self.low[i][lane])
    }

    /// Sum of the integers, each times its rank's zero point.
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

for_each_isa! {
    /// Integers, zero points and scales.
    fn quantise(to: &mut Coefficients, u: &Factor<'_>, h: &[f32]) {
        let lanes = (u.groups() - to.first_group).min(CHUNK);
        let mut values = [[0.0f32; CHUNK]; BLOCK];
        let mut zeros = [[0u8; CHUNK]; BLOCK];
        let mut largest = [0u32; CHUNK];
        for (i, h) in h.iter().enumerate() {
            let (scales, points) = (u.scales(to.first_rank + i, to.first_group), u.zeros(to.first_rank + i, to.first_group));
            if lanes == CHUNK {
                values[i].copy_from_slice(&scales[..CHUNK]);
                zeros[i].copy_from_slice(&points[..CHUNK]);
            } else {
                values[i][..lanes].copy_from_slice(&scales[..lanes]);
                zeros[i][..lanes].copy_from_slice(&points[..lanes]);
            }
            for lane in 0..CHUNK {
                values[i][lane] *= h;
                largest[lane] = largest[lane].max(magnitude(values[i][lane]));
            }
        }
        let mut inverses = [0.0f32; CHUNK];
        for lane in 0..CHUNK {
            (to.scales[lane], inverses[lane]) = scale(f32::from_bits(largest[lane]));
        }
        let mut sums = [0i32; CHUNK];
        for i in 0..h.len().next_multiple_of(4) {
            for lane in 0..CHUNK {
                let integer = round(values[i][lane] * inverses[lane]);
                to.integers[i][lane] = integer;
                sums[lane] = sums[lane].wrapping_add(integer.wrapping_mul(i32::from(zeros[i][lane])));
            }
        }
        to.zeros = sums;
    }
}

#[cfg(target_arch = "x86_64")]
for_each_isa! {
    /// Integers as pairs of i16.
    fn pack_pairs(to: &mut Coefficients) {
        for i in 0..to.ranks.div_ceil(2) {
            for lane in 0..CHUNK {
                to.pairs[i][lane] = (to.integers[2 * i][lane] & 0xffff) | to.integers[2 * i + 1][lane] << 16;
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
for_each_isa! {
    /// Integers as high and low bytes, four ranks together.
    fn pack_bytes(to: &mut Coefficients) {
        for i in 0..to.ranks.div_ceil(4) {
            let (mut high, mut low) = ([0i32; CHUNK], [0i32; CHUNK]);
            for j in 0..4 {
                for lane in 0..CHUNK {
                    let integer = to.integers[4 * i + j][lane];
                    // Rounded to the nearest multiple of 256, which leaves a signed low byte.
                    high[lane] |= (integer.wrapping_add(128) >> 8 & 0xff) << (8 * j);
                    low[lane] |= (integer & 0xff) << (8 * j);
                }
            }
            (to.high[i], to.low[i]) = (high, low);
        }
    }
}
