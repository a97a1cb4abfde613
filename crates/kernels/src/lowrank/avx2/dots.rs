//! V: codes times the bytes of x.

use super::super::activations::{CHUNK, COARSE, InputChunk, InputGroup, InputRow, coarse};
use super::super::coefficients::first;
use super::super::factor::Factor;
use super::unpack::{bytes, unpack, unpack_tail};
use crate::lowbit::GROUP;
use std::arch::x86_64::*;
use std::ops::Range;

/// `out[i] = V[ranks.start + i] · x`.
///
/// # Safety
/// The machine has AVX2 and FMA; `v` has codes of `BITS` bits and these ranks, `x` as many groups.
#[target_feature(enable = "avx2,fma")]
pub(in super::super) unsafe fn dots<const BITS: usize>(
    v: &Factor<'_>,
    ranks: Range<usize>,
    x: InputRow<'_>,
    out: &mut [f32],
) {
    let whole = v.len() / GROUP;
    for (rank, out) in ranks.zip(out) {
        let codes = v.codes_from(rank, 0);
        let mut sums = DotSums::new();
        for (chunk, x_chunk) in x.chunks.iter().enumerate() {
            let first = chunk * CHUNK;
            let mut parts = [_mm256_setzero_si256(); CHUNK];
            for g in first..(first + CHUNK).min(whole) {
                // SAFETY: group `g` is whole, so its 16 · BITS bytes are in the row.
                parts[g - first] = unsafe { group_sum::<BITS, BITS>(codes.as_ptr().add(g * 16 * BITS), &x.values[g]) };
            }
            if whole < v.groups() && whole / CHUNK == chunk {
                let tail = unpack_tail::<BITS>(v.group(rank, whole));
                // SAFETY: a whole group of 8-bit codes.
                parts[whole - first] = unsafe { group_sum::<BITS, 8>(tail.as_ptr(), &x.values[whole]) };
            }
            sums.add::<BITS>(
                sum_each(parts),
                v.scales(rank, first),
                v.zeros(rank, first),
                v.groups() - first,
                x_chunk,
            );
        }
        *out = sums.total();
    }
}

/// `Σ code · value` of one group, spread over the lanes, for codes of `BITS` bits that are packed in `PACKED`.
///
/// # Safety
/// 16 · `PACKED` bytes are readable at `packed`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn group_sum<const BITS: usize, const PACKED: usize>(packed: *const u8, x: &InputGroup) -> __m256i {
    // SAFETY: by the contract.
    let codes = unsafe { unpack::<PACKED>(packed) };
    if coarse(BITS as u8) {
        // At most 4 · 2 · 7 · 127 in 16 bits.
        let products = |i: usize| _mm256_maddubs_epi16(codes[i], bytes(&x.high, i));
        let sum = _mm256_add_epi16(
            _mm256_add_epi16(products(0), products(1)),
            _mm256_add_epi16(products(2), products(3)),
        );
        return _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
    }
    if BITS == 8 {
        let mut sum = _mm256_setzero_si256();
        for (i, codes) in codes.iter().enumerate() {
            let (high, low) = (bytes(&x.high, i), bytes(&x.low, i));
            let halves = [
                (
                    _mm256_castsi256_si128(*codes),
                    _mm256_castsi256_si128(high),
                    _mm256_castsi256_si128(low),
                ),
                (
                    _mm256_extracti128_si256::<1>(*codes),
                    _mm256_extracti128_si256::<1>(high),
                    _mm256_extracti128_si256::<1>(low),
                ),
            ];
            for (codes, high, low) in halves {
                let high = _mm256_slli_epi16::<8>(_mm256_cvtepi8_epi16(high));
                let values = _mm256_add_epi16(high, _mm256_cvtepi8_epi16(low));
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_cvtepu8_epi16(codes), values));
            }
        }
        return sum;
    }
    let (mut high, mut low) = (_mm256_setzero_si256(), _mm256_setzero_si256());
    for (i, codes) in codes.iter().enumerate() {
        high = _mm256_add_epi16(high, _mm256_maddubs_epi16(*codes, bytes(&x.high, i)));
        low = _mm256_add_epi16(low, _mm256_maddubs_epi16(*codes, bytes(&x.low, i)));
    }
    _mm256_add_epi32(
        _mm256_madd_epi16(high, _mm256_set1_epi16(256)),
        _mm256_madd_epi16(low, _mm256_set1_epi16(1)),
    )
}

/// The float side of a dot product: lane `j` sums groups `j`, `j + 8`, ….
#[derive(Clone, Copy)]
pub(in super::super) struct DotSums(__m256);

impl DotSums {
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub(in super::super) fn new() -> Self {
        Self(_mm256_setzero_ps())
    }

    /// Adds a chunk of `groups` groups, or 8 if there are more. `parts` has the groups' `Σ code · value`, `scales` and
    /// `zeros` those of V, whose codes have `BITS` bits, `x` is the chunk of x.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub(in super::super) fn add<const BITS: usize>(
        &mut self,
        parts: __m256i,
        scales: &[f32],
        zeros: &[u16],
        groups: usize,
        x: &InputChunk,
    ) {
        let sums = if coarse(BITS as u8) { &x.coarse_sums } else { &x.sums };
        // SAFETY: 8 values each.
        let (sums, mut x_scales) = unsafe {
            (
                _mm256_loadu_si256(sums.as_ptr().cast()),
                _mm256_loadu_ps(x.scales.as_ptr()),
            )
        };
        if coarse(BITS as u8) {
            x_scales = _mm256_mul_ps(x_scales, _mm256_set1_ps(COARSE));
        }
        // Beyond the row the sums and scales of x are 0, so whatever stands there as a zero point does not matter; a
        // scale might be infinite.
        let zeros = first(zeros);
        // SAFETY: 8 values.
        let zeros = unsafe { _mm_loadu_si128(zeros.as_ptr().cast()) };
        let scales = if groups >= CHUNK {
            // SAFETY: the slice is checked to have 8 values.
            unsafe { _mm256_loadu_ps(scales[..CHUNK].as_ptr()) }
        } else {
            let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let present = _mm256_cmpgt_epi32(_mm256_set1_epi32(groups as i32), lanes);
            // SAFETY: reads only the lanes before `groups`, which the slice is checked to have.
            unsafe { _mm256_maskload_ps(scales[..groups].as_ptr(), present) }
        };
        let zeros = _mm256_mullo_epi32(_mm256_cvtepu16_epi32(zeros), sums);
        let integers = _mm256_sub_epi32(_mm256_slli_epi32::<1>(parts), zeros);
        self.0 = _mm256_fmadd_ps(_mm256_cvtepi32_ps(integers), _mm256_mul_ps(scales, x_scales), self.0);
    }

    /// The sum of the lanes, as a fixed tree.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub(in super::super) fn total(self) -> f32 {
        let four = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }
}

/// Lane `j` of the result is the sum of the lanes of `parts[j]`.
#[inline]
#[target_feature(enable = "avx2")]
pub(in super::super) fn sum_each(parts: [__m256i; 8]) -> __m256i {
    let two = |a, b| _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let four = |a, b| _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    let [a, b, c, d, e, f, g, h] = parts;
    let first = four(two(a, b), two(c, d));
    let second = four(two(e, f), two(g, h));
    _mm256_add_epi32(
        _mm256_permute2x128_si256::<0x20>(first, second),
        _mm256_permute2x128_si256::<0x31>(first, second),
    )
}
