//! AVX2: 8-bit weights as pairs of 16-bit integers, 4-bit weights as bytes whose products add up in 16 bits.

use std::arch::x86_64::*;

use super::super::layout::{BLOCK, Bits, CHUNK, GROUP, SCALE_BYTES};
use super::super::rows::RowGroup;
use super::Ahead;
use crate::lanes::Lanes;
use crate::quantised::layout::PANEL;

/// Rows that fit in the registers together.
pub(super) const TILE: usize = 4;

/// See [`Kernel::accumulate`](super::Kernel::accumulate).
///
/// # Safety
/// The machine has the features below; `blocks` is a number of whole blocks, `x` has as many of 1 to 8 rows and a wide
/// copy of them, `acc` a place for each row.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn accumulate(bits: Bits, blocks: &[u8], x: RowGroup<'_>, acc: &mut [Lanes], ahead: &[u8]) {
    let share = ahead.len().div_ceil(acc.len().div_ceil(TILE)).max(1);
    let mut ahead = ahead.chunks(share);
    for (i, acc) in acc.chunks_mut(TILE).enumerate() {
        let (first, ahead) = (i * TILE, ahead.next().unwrap_or_default());
        // SAFETY: rows `first ..` are as many as `acc` has, the rest is as the caller promises.
        unsafe {
            match (bits, acc.len()) {
                (Bits::Eight, 1) => eight::<1>(blocks, x, first, acc, ahead),
                (Bits::Eight, 2) => eight::<2>(blocks, x, first, acc, ahead),
                (Bits::Eight, 3) => eight::<3>(blocks, x, first, acc, ahead),
                (Bits::Eight, _) => eight::<TILE>(blocks, x, first, acc, ahead),
                (Bits::Four, 1) => four::<1>(blocks, x, first, acc, ahead),
                (Bits::Four, 2) => four::<2>(blocks, x, first, acc, ahead),
                (Bits::Four, 3) => four::<3>(blocks, x, first, acc, ahead),
                (Bits::Four, _) => four::<TILE>(blocks, x, first, acc, ahead),
            }
        }
    }
}

/// # Safety
/// As for [`accumulate`], with rows `first .. first + ROWS`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn eight<const ROWS: usize>(blocks: &[u8], x: RowGroup<'_>, first: usize, acc: &mut [Lanes], ahead: &[u8]) {
    let low = _mm256_set1_epi16(0xff);
    let acc = &mut acc.as_chunks_mut::<ROWS>().0[0];
    let mut ahead = Ahead::new(ahead, blocks.len() / Bits::Eight.block_bytes());
    // SAFETY: every read lies in a block of the weights or of the rows, which the caller counted.
    unsafe {
        let mut codes = x.wide.as_ptr().add(first * BLOCK);
        let (mut scales, mut biases) = (x.scales.as_ptr().add(first), x.biases.as_ptr().add(first));
        for block in blocks.chunks_exact(Bits::Eight.block_bytes()) {
            let block = block.as_ptr();
            ahead.fetch();
            for half in 0..BLOCK / GROUP {
                let weights = block.add(SCALE_BYTES + half * GROUP * PANEL);
                let mut dot: [[__m256i; 2]; ROWS] = std::array::from_fn(|r| [_mm256_set1_epi32(*biases.add(r)); 2]);
                for quad in 0..GROUP / 4 {
                    let w = load(weights.add(quad * CHUNK));
                    // Inputs 0 and 2, 1 and 3.
                    let even = w.map(|w| _mm256_and_si256(w, low));
                    let odd = w.map(|w| _mm256_srli_epi16::<8>(w));
                    for (r, dot) in dot.iter_mut().enumerate() {
                        let x = four_bytes(codes.add(r * BLOCK + half * GROUP + quad * 4).cast());
                        for p in 0..2 {
                            dot[p] = _mm256_add_epi32(dot[p], _mm256_madd_epi16(even[p], x[0]));
                            dot[p] = pin(_mm256_add_epi32(dot[p], _mm256_madd_epi16(odd[p], x[1])));
                        }
                    }
                }
                for p in 0..2 {
                    let scale = _mm_loadu_si128(block.add(half * 2 * PANEL + p * PANEL).cast());
                    let scale = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(scale)));
                    for (r, (acc, dot)) in acc.iter_mut().zip(&dot).enumerate() {
                        let acc = acc.as_mut_ptr().add(p * PANEL / 2);
                        let scale = _mm256_mul_ps(scale, _mm256_set1_ps(*scales.add(r)));
                        let sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[p]), scale, _mm256_loadu_ps(acc));
                        _mm256_storeu_ps(acc, sum);
                    }
                }
                (scales, biases) = (scales.add(x.rows), biases.add(x.rows));
            }
            codes = codes.add(x.rows * BLOCK);
        }
    }
}

/// # Safety
/// As for [`accumulate`], with rows `first .. first + ROWS`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn four<const ROWS: usize>(blocks: &[u8], x: RowGroup<'_>, first: usize, acc: &mut [Lanes], ahead: &[u8]) {
    let (low, one, sixteenth) = (_mm256_set1_epi8(15), _mm256_set1_epi16(1), _mm256_set1_ps(-1.0 / 16.0));
    let acc = &mut acc.as_chunks_mut::<ROWS>().0[0];
    let mut ahead = Ahead::new(ahead, blocks.len() / Bits::Four.block_bytes());
    // SAFETY: every read lies in a block of the weights or of the rows, which the caller counted.
    unsafe {
        let mut codes = x.codes.as_ptr().add(first * BLOCK);
        let (mut scales, mut sums) = (x.scales.as_ptr().add(first), x.sums.as_ptr().add(first));
        for block in blocks.chunks_exact(Bits::Four.block_bytes()) {
            let block = block.as_ptr();
            ahead.fetch();
            for half in 0..BLOCK / GROUP {
                let weights = block.add(SCALE_BYTES + half * GROUP * PANEL / 2);
                // At most 15 · 128 · 16 in magnitude: no overflow.
                let mut dot = [[_mm256_setzero_si256(); 2]; ROWS];
                for chunk in 0..GROUP / 8 {
                    let w = load(weights.add(chunk * CHUNK));
                    let w0 = w.map(|w| _mm256_and_si256(w, low));
                    let w1 = w.map(|w| _mm256_and_si256(_mm256_srli_epi16::<4>(w), low));
                    for (r, dot) in dot.iter_mut().enumerate() {
                        let x = four_bytes(codes.add(r * BLOCK + half * GROUP + chunk * 8).cast());
                        for p in 0..2 {
                            dot[p] = _mm256_add_epi16(dot[p], _mm256_maddubs_epi16(w0[p], x[0]));
                            dot[p] = pin(_mm256_add_epi16(dot[p], _mm256_maddubs_epi16(w1[p], x[1])));
                        }
                    }
                }
                for p in 0..2 {
                    let parameters = block.add(half * 2 * PANEL + p * PANEL / 2);
                    let scale = bytes(parameters);
                    let zero = _mm256_mul_ps(_mm256_mul_ps(bytes(parameters.add(PANEL)), sixteenth), scale);
                    for (r, (acc, dot)) in acc.iter_mut().zip(&dot).enumerate() {
                        let acc = acc.as_mut_ptr().add(p * PANEL / 2);
                        let scale = _mm256_mul_ps(scale, _mm256_set1_ps(*scales.add(r)));
                        let dot = _mm256_cvtepi32_ps(_mm256_madd_epi16(dot[p], one));
                        let sum = _mm256_fmadd_ps(zero, _mm256_set1_ps(*sums.add(r)), _mm256_loadu_ps(acc));
                        _mm256_storeu_ps(acc, _mm256_fmadd_ps(dot, scale, sum));
                    }
                }
                (scales, sums) = (scales.add(x.rows), sums.add(x.rows));
            }
            codes = codes.add(x.rows * BLOCK);
        }
    }
}

/// A chunk: columns 0 to 7, 8 to 15.
///
/// # Safety
/// A chunk lies at `chunk`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load(chunk: *const u8) -> [__m256i; 2] {
    // SAFETY: as the caller promises.
    unsafe {
        [
            _mm256_loadu_si256(chunk.cast()),
            _mm256_loadu_si256(chunk.add(CHUNK / 2).cast()),
        ]
    }
}

/// Four bytes in every lane, and the next four.
///
/// # Safety
/// They lie at `x`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn four_bytes(x: *const i32) -> [__m256i; 2] {
    // SAFETY: as the caller promises.
    unsafe {
        [
            _mm256_set1_epi32(x.read_unaligned()),
            _mm256_set1_epi32(x.add(1).read_unaligned()),
        ]
    }
}

/// Eight bytes as numbers.
///
/// # Safety
/// They lie at `bytes`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn bytes(bytes: *const u8) -> __m256 {
    // SAFETY: as the caller promises.
    _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(unsafe { _mm_loadl_epi64(bytes.cast()) }))
}

/// `sum`, of which the compiler knows nothing: otherwise it adds up in another order, for which there are not enough
/// registers.
#[inline]
#[target_feature(enable = "avx2")]
fn pin(mut sum: __m256i) -> __m256i {
    // SAFETY: no instruction.
    unsafe { std::arch::asm!("/* {} */", inout(ymm_reg) sum, options(nomem, nostack, preserves_flags)) };
    sum
}
