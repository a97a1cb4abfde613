//! U of codes of 3 and 2 bits for one row, two groups of outputs at a time, on AVX-512 VNNI.
//!
//! Two groups of four ranks fill whole registers: their packed bytes are brought side by side by eight shuffles, and as
//! any order of the outputs will do until a block's sums are complete, none crosses a register's quarters. Codes are
//! masked where they are and not shifted down: a plane's sum is then a power of four times what it should be, exactly.

use super::coefficients::Coefficients;
use super::factor::Factor;
use super::tile::Ahead;
use super::vnni::transpose_quarters;
use crate::lowbit::GROUP;
use std::arch::x86_64::*;

/// Planes of a 2-bit code in a byte.
const PLANES: usize = 4;

/// `y += Σ coefficient · weight` for the outputs of the group `lane` of the coefficients and of the one after it. Rows
/// that will be needed next are brought near.
///
/// # Safety
/// The machine has AVX-512 (F, BW, DQ, VL), VNNI, AVX2 and FMA; `u` has codes of `BITS` bits, 3 or 2, the
/// coefficients' ranks, and both groups, which are whole.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
pub(super) unsafe fn mix<const BITS: usize>(
    u: &Factor<'_>,
    coefficients: &Coefficients,
    lane: usize,
    ahead: Ahead,
    y: &mut [f32; 2 * GROUP],
) {
    let ranks = coefficients.ranks();
    let (codes, stride) = (
        u.codes_from(ranks.start, coefficients.first_group() + lane).as_ptr(),
        u.stride(),
    );
    let last = ranks.len() - 1;
    let mut sums = [[_mm512_setzero_si512(); 4]; PLANES];
    for (i, weights) in coefficients.quads().iter().enumerate() {
        let [first, second] = [lane, lane + 1].map(|lane| weights[0][lane]);
        let weights = _mm512_mask_set1_epi32(_mm512_set1_epi32(first), 0xff00, second);
        // Ranks beyond the last are the last; their coefficients are 0.
        let rows = std::array::from_fn(|j| codes.wrapping_add((4 * i + j).min(last) * stride));
        // SAFETY: two whole groups of each row.
        let codes = unsafe {
            let low = quarters(rows.map(|row| low_bits::<BITS>(row)));
            if BITS == 3 {
                with_third_bits(low, rows.map(|row| third_bits(row)))
            } else {
                planes(low)
            }
        };
        for (sums, codes) in sums.iter_mut().zip(codes) {
            for (sum, codes) in sums.iter_mut().zip(codes) {
                *sum = _mm512_dpbusd_epi32(*sum, codes, weights);
            }
        }
        ahead.codes(4 * i..4 * i + 4);
        if BITS == 3 {
            // Two groups take one and a half lines.
            ahead.after(64).codes(4 * i..4 * i + 4);
        }
    }
    let [zeros, scales] = [
        [lane, lane + 1].map(|lane| _mm512_set1_epi32(coefficients.zero(lane))),
        [lane, lane + 1].map(|lane| _mm512_castps_si512(_mm512_set1_ps(coefficients.scale(lane)))),
    ];
    for (plane, sums) in sums.into_iter().enumerate() {
        // Twice the sum, as zero points are in half steps.
        let twice = sums.map(|sum| match plane {
            0 => _mm512_slli_epi32::<1>(sum),
            1 => _mm512_srai_epi32::<1>(sum),
            // The third bits of the last plane would not fit in a byte: it is shifted down to the place of the third.
            3 if BITS == 2 => _mm512_srai_epi32::<5>(sum),
            _ => _mm512_srai_epi32::<3>(sum),
        });
        for (quarter, sum) in transpose_quarters(twice).into_iter().enumerate() {
            let group = quarter / 2;
            let sum = _mm512_cvtepi32_ps(_mm512_sub_epi32(sum, zeros[group]));
            let y = &mut y[group * GROUP + 32 * plane + 16 * (quarter % 2)..][..16];
            let scale = _mm512_castsi512_ps(scales[group]);
            // SAFETY: 16 values.
            unsafe { _mm512_storeu_ps(y.as_mut_ptr(), _mm512_fmadd_ps(sum, scale, _mm512_loadu_ps(y.as_ptr()))) };
        }
    }
}

/// The 2-bit planes of two groups of a row, one after the other.
///
/// # Safety
/// 32 · `BITS` bytes are readable at `row`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn low_bits<const BITS: usize>(row: *const u8) -> __m512i {
    // SAFETY: by the contract.
    unsafe {
        if BITS == 2 {
            return _mm512_loadu_si512(row.cast());
        }
        let first = _mm512_castsi256_si512(_mm256_loadu_si256(row.cast()));
        _mm512_inserti64x4::<1>(first, _mm256_loadu_si256(row.add(16 * BITS).cast()))
    }
}

/// The planes of third bits of two groups of a row, one after the other.
///
/// # Safety
/// 96 bytes are readable at `row`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn third_bits(row: *const u8) -> __m256i {
    // SAFETY: by the contract.
    unsafe { _mm256_loadu2_m128i(row.add(48 + 32).cast(), row.add(32).cast()) }
}

/// The bytes of four rows side by side: quarter `q` of vector `i` has bytes `16q + 4i` to `16q + 4i + 3`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn quarters([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let (ab, ab_high) = (_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b));
    let (cd, cd_high) = (_mm512_unpacklo_epi8(c, d), _mm512_unpackhi_epi8(c, d));
    [
        _mm512_unpacklo_epi16(ab, cd),
        _mm512_unpackhi_epi16(ab, cd),
        _mm512_unpacklo_epi16(ab_high, cd_high),
        _mm512_unpackhi_epi16(ab_high, cd_high),
    ]
}

/// The 2-bit codes of each plane, where they are in their bytes.
#[inline]
#[target_feature(enable = "avx512f")]
fn planes(low: [__m512i; 4]) -> [[__m512i; 4]; PLANES] {
    let mut codes = [low; PLANES];
    for (codes, mask) in codes.iter_mut().zip([0x03, 0x0c, 0x30, 0xc0u8]) {
        let mask = _mm512_set1_epi8(mask as i8);
        for codes in codes {
            *codes = _mm512_and_si512(*codes, mask);
        }
    }
    codes
}

/// The 3-bit codes of each plane, the last one two places further down.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx2")]
fn with_third_bits(low: [__m512i; 4], [a, b, c, d]: [__m256i; 4]) -> [[__m512i; 4]; PLANES] {
    let (ab, ab_high) = (_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b));
    let (cd, cd_high) = (_mm256_unpacklo_epi8(c, d), _mm256_unpackhi_epi8(c, d));
    let third = [
        _mm256_unpacklo_epi16(ab, cd),
        _mm256_unpackhi_epi16(ab, cd),
        _mm256_unpacklo_epi16(ab_high, cd_high),
        _mm256_unpackhi_epi16(ab_high, cd_high),
    ];
    // A group's third bits belong to both of its quarters: bit 2p of byte j to code j of plane p, bit 2p + 1 to code
    // j + 16.
    let third = third.map(|third| {
        let third = _mm512_castsi256_si512(third);
        _mm512_shuffle_i64x2::<0b01_01_00_00>(third, third)
    });
    let per_quarter = |even, odd| _mm512_setr_epi64(even, even, odd, odd, even, even, odd, odd);
    let (one, two) = (0x0001_0001_0001_0001, 0x0002_0002_0002_0002);
    // Above the two low bits of planes 0 to 2, and of plane 3 shifted down.
    let up = third.map(|third| _mm512_sllv_epi16(third, per_quarter(two, one)));
    let down = third.map(|third| _mm512_srlv_epi16(third, per_quarter(0, one)));
    let merge = |low: __m512i, low_mask: i8, third: __m512i, third_mask: i8| {
        let low = _mm512_and_si512(low, _mm512_set1_epi8(low_mask));
        // low | (third & mask)
        _mm512_ternarylogic_epi32::<0xf8>(low, third, _mm512_set1_epi8(third_mask))
    };
    [
        std::array::from_fn(|i| merge(low[i], 0x03, up[i], 0x04)),
        std::array::from_fn(|i| merge(low[i], 0x0c, up[i], 0x10)),
        std::array::from_fn(|i| merge(low[i], 0x30, up[i], 0x40)),
        std::array::from_fn(|i| merge(_mm512_srli_epi16::<2>(low[i]), 0x30, down[i], 0x40)),
    ]
}
