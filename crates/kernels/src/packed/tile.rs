//! The inner loops: a tile of rows times a panel, one accumulator an output element.

use crate::isa::bf16_dot;
use crate::lanes::{LANES, Lanes};
use crate::vector::{Vector, for_each_vector};

use super::PANEL;
use super::rows::MAX_ROWS;

/// Vectors of a panel.
const VECTORS: usize = PANEL / LANES;

/// Accumulators of a tile: rows times a panel.
pub(super) type Accumulators = [[Lanes; VECTORS]; MAX_ROWS];

/// `(panel, x, rows, sums)`: adds the products of consecutive inputs to the first `rows` of `sums`. `panel` holds as many
/// pairs of inputs as `x` (`[inputs, rows]` in f32, `[pairs, rows]` in bf16).
pub(super) type TileKernel<P, E> = fn(&[P], &[E], usize, &mut Accumulators);

/// Two inputs of a panel.
pub(super) trait Pair: bytemuck::AnyBitPattern {
    /// Weights of the first (0) or second (1) of them in a vector's columns.
    fn input<V: Vector>(&self, half: usize, vector: usize) -> V;
}

/// bf16: for each column a word with the first input in its low half.
pub(super) type Bf16Pair = [[u32; LANES]; VECTORS];

impl Pair for Bf16Pair {
    #[inline(always)]
    fn input<V: Vector>(&self, half: usize, vector: usize) -> V {
        match half {
            0 => V::bf16_low(&self[vector]),
            _ => V::bf16_high(&self[vector]),
        }
    }
}

/// f32: the first input's columns, then the second's.
pub(super) type F32Pair = [[Lanes; VECTORS]; 2];

impl Pair for F32Pair {
    #[inline(always)]
    fn input<V: Vector>(&self, half: usize, vector: usize) -> V {
        V::load(&self[half][vector])
    }
}

for_each_vector! {
    pub(super) fn bf16_tile<vector V>(panel: &[Bf16Pair], x: &[f32], rows: usize, sums: &mut Accumulators) {
        rows_of::<V, Bf16Pair>(panel, x, rows, sums)
    }
}

for_each_vector! {
    pub(super) fn f32_tile<vector V>(panel: &[F32Pair], x: &[f32], rows: usize, sums: &mut Accumulators) {
        rows_of::<V, F32Pair>(panel, x, rows, sums)
    }
}

/// Picks the tile of this height; as wide as the registers allow.
#[inline(always)]
fn rows_of<V: Vector, P: Pair>(panel: &[P], x: &[f32], rows: usize, sums: &mut Accumulators) {
    if V::REGISTERS >= 32 {
        match rows {
            1 => wide::<V, P, 1>(panel, x, sums),
            2 => wide::<V, P, 2>(panel, x, sums),
            3 => wide::<V, P, 3>(panel, x, sums),
            4 => wide::<V, P, 4>(panel, x, sums),
            6 => wide::<V, P, 6>(panel, x, sums),
            8 => wide::<V, P, 8>(panel, x, sums),
            12 => wide::<V, P, 12>(panel, x, sums),
            _ => unreachable!("no tile has {rows} rows"),
        }
    } else {
        match rows {
            1 => wide::<V, P, 1>(panel, x, sums),
            2 => wide::<V, P, 2>(panel, x, sums),
            3 => narrow::<V, P, 3>(panel, x, sums),
            4 => narrow::<V, P, 4>(panel, x, sums),
            6 => narrow::<V, P, 6>(panel, x, sums),
            _ => unreachable!("no tile has {rows} rows"),
        }
    }
}

/// All columns at once.
#[inline(always)]
fn wide<V: Vector, P: Pair, const ROWS: usize>(panel: &[P], x: &[f32], sums: &mut Accumulators) {
    tile::<V, P, ROWS, VECTORS>(panel, x, 0, sums);
}

/// One vector's columns after the other's.
#[inline(always)]
fn narrow<V: Vector, P: Pair, const ROWS: usize>(panel: &[P], x: &[f32], sums: &mut Accumulators) {
    for vector in 0..VECTORS {
        tile::<V, P, ROWS, 1>(panel, x, vector, sums);
    }
}

/// `COUNT` vectors of the panel's columns from `first` on.
#[inline(always)]
fn tile<V: Vector, P: Pair, const ROWS: usize, const COUNT: usize>(
    panel: &[P],
    x: &[f32],
    first: usize,
    sums: &mut Accumulators,
) {
    let x: &[[[f32; ROWS]; 2]] = &x.as_chunks::<ROWS>().0.as_chunks::<2>().0[..panel.len()];
    let mut acc = [[V::splat(0.0); COUNT]; ROWS];
    for (acc, sums) in acc.iter_mut().zip(sums.iter()) {
        for (acc, sums) in acc.iter_mut().zip(&sums[first..]) {
            *acc = V::load(sums);
        }
    }
    for (pair, x) in panel.iter().zip(x) {
        for half in 0..2 {
            let mut weights = [V::splat(0.0); COUNT];
            for (v, w) in weights.iter_mut().enumerate() {
                *w = pair.input(half, first + v);
            }
            for m in 0..ROWS {
                let x = V::splat(x[half][m]);
                for v in 0..COUNT {
                    acc[m][v] = acc[m][v].fma(x, weights[v]);
                }
            }
        }
    }
    for (acc, sums) in acc.iter().zip(sums) {
        for (acc, sums) in acc.iter().zip(&mut sums[first..]) {
            acc.store(sums);
        }
    }
}

/// As [`bf16_tile`] for activations in bf16: a pair is multiplied and added by one instruction, which flushes subnormal
/// numbers and adds the pair's two products one after the other.
///
/// # Panics
/// If the processor has no AVX512_BF16.
pub(super) fn bf16_dot_tile(panel: &[Bf16Pair], x: &[u32], rows: usize, sums: &mut Accumulators) {
    assert!(bf16_dot(), "the processor multiplies pairs of bf16");
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the features were detected.
    unsafe {
        dot::rows_of(panel, x, rows, sums);
    }
}

#[cfg(target_arch = "x86_64")]
mod dot {
    use std::arch::x86_64::*;

    use super::{Accumulators, Bf16Pair, VECTORS};
    use crate::vector::Vector;

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    pub(super) fn rows_of(panel: &[Bf16Pair], x: &[u32], rows: usize, sums: &mut Accumulators) {
        match rows {
            1 => tile::<1>(panel, x, sums),
            2 => tile::<2>(panel, x, sums),
            3 => tile::<3>(panel, x, sums),
            4 => tile::<4>(panel, x, sums),
            6 => tile::<6>(panel, x, sums),
            8 => tile::<8>(panel, x, sums),
            12 => tile::<12>(panel, x, sums),
            _ => unreachable!("no tile has {rows} rows"),
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    fn tile<const ROWS: usize>(panel: &[Bf16Pair], x: &[u32], sums: &mut Accumulators) {
        let x = &x.as_chunks::<ROWS>().0[..panel.len()];
        let mut acc = [[_mm512_setzero_ps(); VECTORS]; ROWS];
        for (acc, sums) in acc.iter_mut().zip(sums.iter()) {
            for (acc, sums) in acc.iter_mut().zip(sums) {
                *acc = Vector::load(sums);
            }
        }
        for (pair, x) in panel.iter().zip(x) {
            let mut weights = [_mm512_setzero_si512(); VECTORS];
            for (w, words) in weights.iter_mut().zip(pair) {
                // SAFETY: the reference covers sixteen words.
                *w = unsafe { _mm512_loadu_si512(words.as_ptr().cast()) };
            }
            for m in 0..ROWS {
                let x = bf16s(_mm512_set1_epi32(x[m] as i32));
                for v in 0..VECTORS {
                    acc[m][v] = _mm512_dpbf16_ps(acc[m][v], bf16s(weights[v]), x);
                }
            }
        }
        for (acc, sums) in acc.iter().zip(sums) {
            for (acc, sums) in acc.iter().zip(sums) {
                acc.store(sums);
            }
        }
    }

    #[inline(always)]
    fn bf16s(words: __m512i) -> __m512bh {
        // SAFETY: both are 512 bits of plain data.
        unsafe { std::mem::transmute::<__m512i, __m512bh>(words) }
    }
}
