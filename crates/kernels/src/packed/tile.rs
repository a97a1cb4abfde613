//! The inner loops: a tile of rows times one or two panels, one accumulator an output element.

use crate::isa::bf16_dot;
use crate::lanes::{LANES, Lanes};
use crate::vector::{Vector, for_each_vector};

use super::rows::MAX_ROWS;

/// Accumulators of a tile: rows times two panels.
pub(super) type Accumulators = [[Lanes; 2]; MAX_ROWS];

/// `(panels, x, rows, sums)`: adds the products of consecutive inputs to the first `rows` of `sums`. `panels` holds one
/// or two slices of as many pairs of inputs as `x` has (`[inputs, rows]` in f32, `[pairs, rows]` in bf16); the second
/// is empty for one.
pub(super) type TileKernel<P, E> = fn([&[P]; 2], &[E], usize, &mut Accumulators);

/// Two inputs of a panel.
pub(super) trait Pair: bytemuck::AnyBitPattern {
    /// Weights of the first (0) or second (1) of them.
    fn input<V: Vector>(&self, half: usize) -> V;
}

/// bf16: for each column a word with the first input in its low half.
pub(super) type Bf16Pair = [u32; LANES];

impl Pair for Bf16Pair {
    #[inline(always)]
    fn input<V: Vector>(&self, half: usize) -> V {
        if half == 0 {
            V::bf16_low(self)
        } else {
            V::bf16_high(self)
        }
    }
}

/// f32: the first input's columns, then the second's.
pub(super) type F32Pair = [Lanes; 2];

impl Pair for F32Pair {
    #[inline(always)]
    fn input<V: Vector>(&self, half: usize) -> V {
        V::load(&self[half])
    }
}

for_each_vector! {
    pub(super) fn bf16_tile<vector V>(panels: [&[Bf16Pair]; 2], x: &[f32], rows: usize, sums: &mut Accumulators) {
        rows_of::<V, Bf16Pair>(panels, x, rows, sums)
    }
}

for_each_vector! {
    pub(super) fn f32_tile<vector V>(panels: [&[F32Pair]; 2], x: &[f32], rows: usize, sums: &mut Accumulators) {
        rows_of::<V, F32Pair>(panels, x, rows, sums)
    }
}

/// Picks the tile of this height; as wide as the registers allow.
#[inline(always)]
fn rows_of<V: Vector, P: Pair>(panels: [&[P]; 2], x: &[f32], rows: usize, sums: &mut Accumulators) {
    if V::REGISTERS >= 32 {
        match rows {
            1 => wide::<V, P, 1>(panels, x, sums),
            2 => wide::<V, P, 2>(panels, x, sums),
            3 => wide::<V, P, 3>(panels, x, sums),
            4 => wide::<V, P, 4>(panels, x, sums),
            6 => wide::<V, P, 6>(panels, x, sums),
            8 => wide::<V, P, 8>(panels, x, sums),
            12 => wide::<V, P, 12>(panels, x, sums),
            _ => unreachable!("no tile has {rows} rows"),
        }
    } else {
        match rows {
            1 => wide::<V, P, 1>(panels, x, sums),
            2 => wide::<V, P, 2>(panels, x, sums),
            3 => narrow::<V, P, 3>(panels, x, sums),
            4 => narrow::<V, P, 4>(panels, x, sums),
            6 => narrow::<V, P, 6>(panels, x, sums),
            _ => unreachable!("no tile has {rows} rows"),
        }
    }
}

/// Both panels at once.
#[inline(always)]
fn wide<V: Vector, P: Pair, const ROWS: usize>(panels: [&[P]; 2], x: &[f32], sums: &mut Accumulators) {
    if panels[1].is_empty() {
        tile::<V, P, ROWS, 1>([panels[0]], x, 0, sums);
    } else {
        tile::<V, P, ROWS, 2>(panels, x, 0, sums);
    }
}

/// One panel after the other.
#[inline(always)]
fn narrow<V: Vector, P: Pair, const ROWS: usize>(panels: [&[P]; 2], x: &[f32], sums: &mut Accumulators) {
    tile::<V, P, ROWS, 1>([panels[0]], x, 0, sums);
    if !panels[1].is_empty() {
        tile::<V, P, ROWS, 1>([panels[1]], x, 1, sums);
    }
}

/// `PANELS` panels into the columns of `sums` from `at` on.
#[inline(always)]
fn tile<V: Vector, P: Pair, const ROWS: usize, const PANELS: usize>(
    panels: [&[P]; PANELS],
    x: &[f32],
    at: usize,
    sums: &mut Accumulators,
) {
    let pairs = panels[0].len();
    let panels = panels.map(|panel| &panel[..pairs]);
    let x: &[[[f32; ROWS]; 2]] = &x.as_chunks::<ROWS>().0.as_chunks::<2>().0[..pairs];
    let mut acc = [[V::splat(0.0); PANELS]; ROWS];
    for (acc, sums) in acc.iter_mut().zip(sums.iter()) {
        for (acc, sums) in acc.iter_mut().zip(&sums[at..]) {
            *acc = V::load(sums);
        }
    }
    for (b, x) in x.iter().enumerate() {
        for half in 0..2 {
            let mut weights = [V::splat(0.0); PANELS];
            for (w, panel) in weights.iter_mut().zip(&panels) {
                *w = panel[b].input(half);
            }
            for m in 0..ROWS {
                let x = V::splat(x[half][m]);
                for p in 0..PANELS {
                    acc[m][p] = acc[m][p].fma(x, weights[p]);
                }
            }
        }
    }
    for (acc, sums) in acc.iter().zip(sums) {
        for (acc, sums) in acc.iter().zip(&mut sums[at..]) {
            acc.store(sums);
        }
    }
}

/// As [`bf16_tile`] for activations in bf16: a pair is multiplied and added by one instruction, which flushes subnormal
/// numbers and adds the pair's two products one after the other.
///
/// # Panics
/// If the processor has no AVX512_BF16.
pub(super) fn bf16_dot_tile(panels: [&[Bf16Pair]; 2], x: &[u32], rows: usize, sums: &mut Accumulators) {
    assert!(bf16_dot(), "the processor multiplies pairs of bf16");
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the features were detected.
    unsafe {
        dot::rows_of(panels, x, rows, sums);
    }
}

#[cfg(target_arch = "x86_64")]
mod dot {
    use std::arch::x86_64::*;

    use super::{Accumulators, Bf16Pair};
    use crate::vector::Vector;

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    pub(super) fn rows_of(panels: [&[Bf16Pair]; 2], x: &[u32], rows: usize, sums: &mut Accumulators) {
        match rows {
            1 => either::<1>(panels, x, sums),
            2 => either::<2>(panels, x, sums),
            3 => either::<3>(panels, x, sums),
            4 => either::<4>(panels, x, sums),
            6 => either::<6>(panels, x, sums),
            8 => either::<8>(panels, x, sums),
            12 => either::<12>(panels, x, sums),
            _ => unreachable!("no tile has {rows} rows"),
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    fn either<const ROWS: usize>(panels: [&[Bf16Pair]; 2], x: &[u32], sums: &mut Accumulators) {
        if panels[1].is_empty() {
            tile::<ROWS, 1>([panels[0]], x, sums);
        } else {
            tile::<ROWS, 2>(panels, x, sums);
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    fn tile<const ROWS: usize, const PANELS: usize>(panels: [&[Bf16Pair]; PANELS], x: &[u32], sums: &mut Accumulators) {
        let pairs = panels[0].len();
        let panels = panels.map(|panel| &panel[..pairs]);
        let x = &x.as_chunks::<ROWS>().0[..pairs];
        let mut acc = [[_mm512_setzero_ps(); PANELS]; ROWS];
        for (acc, sums) in acc.iter_mut().zip(sums.iter()) {
            for (acc, sums) in acc.iter_mut().zip(sums) {
                *acc = Vector::load(sums);
            }
        }
        for (b, x) in x.iter().enumerate() {
            let mut weights = [_mm512_setzero_si512(); PANELS];
            for (w, panel) in weights.iter_mut().zip(&panels) {
                // SAFETY: the reference covers sixteen words.
                *w = unsafe { _mm512_loadu_si512(panel[b].as_ptr().cast()) };
            }
            for m in 0..ROWS {
                let x = bf16s(_mm512_set1_epi32(x[m] as i32));
                for p in 0..PANELS {
                    acc[m][p] = _mm512_dpbf16_ps(acc[m][p], bf16s(weights[p]), x);
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
