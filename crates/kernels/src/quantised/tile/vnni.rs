//! AVX-512 VNNI: dot products of four unsigned codes of a weight with four signed codes of an activation.

use std::arch::x86_64::*;

use super::super::layout::{BLOCK, Bits, CHUNK, GROUP, SCALE_BYTES};
use super::super::rows::RowGroup;
use super::Ahead;
use crate::lanes::Lanes;
use crate::quantised::layout::PANEL;

/// See [`Kernel::accumulate`](super::Kernel::accumulate).
///
/// # Safety
/// The machine has the features below; `blocks` is a number of whole blocks, `x` has as many of 1 to 8 rows, `acc` a
/// place for each row.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn accumulate(bits: Bits, blocks: &[u8], x: RowGroup<'_>, acc: &mut [Lanes], ahead: &[u8]) {
    macro_rules! tile {
        ($($rows:literal)*) => {
            match (bits, x.rows) {
                $(
                    // SAFETY: as the caller promises.
                    (Bits::Eight, $rows) => unsafe { eight::<$rows>(blocks, x, acc, ahead) },
                    // SAFETY: as the caller promises.
                    (Bits::Four, $rows) => unsafe { four::<$rows>(blocks, x, acc, ahead) },
                )*
                (_, rows) => unreachable!("{rows} rows in a group"),
            }
        };
    }
    tile!(1 2 3 4 5 6 7 8)
}

/// # Safety
/// As for [`accumulate`], with `ROWS` rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn eight<const ROWS: usize>(blocks: &[u8], x: RowGroup<'_>, acc: &mut [Lanes], ahead: &[u8]) {
    let acc = &mut acc.as_chunks_mut::<ROWS>().0[0];
    let mut ahead = Ahead::new(ahead, blocks.len() / Bits::Eight.block_bytes());
    let (mut codes, mut scales, mut biases) = (x.codes.as_ptr(), x.scales.as_ptr(), x.biases.as_ptr());
    // SAFETY: every read lies in a block of the weights or of the rows, which the caller counted.
    unsafe {
        let mut total: [__m512; ROWS] = std::array::from_fn(|r| _mm512_loadu_ps(acc[r].as_ptr()));
        for block in blocks.chunks_exact(Bits::Eight.block_bytes()) {
            let block = block.as_ptr();
            ahead.fetch();
            for half in 0..BLOCK / GROUP {
                let weights = block.add(SCALE_BYTES + half * GROUP * PANEL);
                // The codes are 128 too large.
                let mut dot: [__m512i; ROWS] = std::array::from_fn(|r| _mm512_set1_epi32(*biases.add(r)));
                for quad in 0..GROUP / 4 {
                    let w = _mm512_loadu_si512(weights.add(quad * CHUNK).cast());
                    for (r, dot) in dot.iter_mut().enumerate() {
                        let x = codes.add(r * BLOCK + half * GROUP + quad * 4);
                        *dot = _mm512_dpbusd_epi32(*dot, w, quad_of(x));
                    }
                }
                let scale = _mm256_loadu_si256(block.add(half * 2 * PANEL).cast());
                let scale = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(scale)));
                for r in 0..ROWS {
                    let scale = _mm512_mul_ps(scale, _mm512_set1_ps(*scales.add(r)));
                    total[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r]), scale, total[r]);
                }
                (scales, biases) = (scales.add(ROWS), biases.add(ROWS));
            }
            codes = codes.add(ROWS * BLOCK);
        }
        for (acc, total) in acc.iter_mut().zip(total) {
            _mm512_storeu_ps(acc.as_mut_ptr(), total);
        }
    }
}

/// # Safety
/// As for [`accumulate`], with `ROWS` rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn four<const ROWS: usize>(blocks: &[u8], x: RowGroup<'_>, acc: &mut [Lanes], ahead: &[u8]) {
    let acc = &mut acc.as_chunks_mut::<ROWS>().0[0];
    let mut ahead = Ahead::new(ahead, blocks.len() / Bits::Four.block_bytes());
    let (mut codes, mut scales, mut sums) = (x.codes.as_ptr(), x.scales.as_ptr(), x.sums.as_ptr());
    let low = _mm512_set1_epi8(15);
    let sixteenth = _mm512_set1_ps(-1.0 / 16.0);
    // SAFETY: every read lies in a block of the weights or of the rows, which the caller counted.
    unsafe {
        let mut total: [__m512; ROWS] = std::array::from_fn(|r| _mm512_loadu_ps(acc[r].as_ptr()));
        for block in blocks.chunks_exact(Bits::Four.block_bytes()) {
            let block = block.as_ptr();
            ahead.fetch();
            for half in 0..BLOCK / GROUP {
                let weights = block.add(SCALE_BYTES + half * GROUP * PANEL / 2);
                let scale = bytes(block.add(half * 2 * PANEL));
                let zero = _mm512_mul_ps(
                    _mm512_mul_ps(bytes(block.add(half * 2 * PANEL + PANEL)), sixteenth),
                    scale,
                );
                for (r, total) in total.iter_mut().enumerate() {
                    *total = _mm512_fmadd_ps(zero, _mm512_set1_ps(*sums.add(r)), *total);
                }
                let mut dot = [_mm512_setzero_si512(); ROWS];
                for chunk in 0..GROUP / 8 {
                    let w = _mm512_loadu_si512(weights.add(chunk * CHUNK).cast());
                    let (w0, w1) = (
                        _mm512_and_si512(w, low),
                        _mm512_and_si512(_mm512_srli_epi16::<4>(w), low),
                    );
                    for (r, dot) in dot.iter_mut().enumerate() {
                        let x = codes.add(r * BLOCK + half * GROUP + chunk * 8);
                        *dot = _mm512_dpbusd_epi32(*dot, w0, quad_of(x));
                        *dot = _mm512_dpbusd_epi32(*dot, w1, quad_of(x.add(4)));
                    }
                }
                for r in 0..ROWS {
                    let scale = _mm512_mul_ps(scale, _mm512_set1_ps(*scales.add(r)));
                    total[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r]), scale, total[r]);
                }
                (scales, sums) = (scales.add(ROWS), sums.add(ROWS));
            }
            codes = codes.add(ROWS * BLOCK);
        }
        for (acc, total) in acc.iter_mut().zip(total) {
            _mm512_storeu_ps(acc.as_mut_ptr(), total);
        }
    }
}

/// Four codes, in every lane.
///
/// # Safety
/// Four codes lie at `codes`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn quad_of(codes: *const i8) -> __m512i {
    // SAFETY: as the caller promises.
    _mm512_set1_epi32(unsafe { codes.cast::<i32>().read_unaligned() })
}

/// Sixteen bytes as numbers.
///
/// # Safety
/// They lie at `bytes`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn bytes(bytes: *const u8) -> __m512 {
    // SAFETY: as the caller promises.
    _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(unsafe { _mm_loadu_si128(bytes.cast()) }))
}
