//! The coefficients of U.

use super::super::activations::{CHUNK, COARSE, LARGEST, SHIFT, SMALLEST};
use super::super::coefficients::{BLOCK, Coefficients, first};
use super::super::factor::Factor;
use super::super::tile::Ahead;
use std::arch::x86_64::*;

/// Coefficients of the ranks whose `s ⊙ (V x)` is `h`, with the integers of 2 or 4 ranks together; of their high bytes
/// alone if they are `SHORT`.
///
/// # Safety
/// The machine has AVX2; `u` has codes, these ranks and groups.
#[target_feature(enable = "avx2")]
pub(in super::super) unsafe fn quantise<const TOGETHER: usize, const SHORT: bool>(
    to: &mut Coefficients,
    u: &Factor<'_>,
    h: &[f32],
    ahead: Ahead,
) {
    // SAFETY: an array of as many values as a vector has lanes.
    let float = |values: &[f32; CHUNK]| unsafe { _mm256_loadu_ps(values.as_ptr()) };
    // SAFETY: as above.
    let store = |to: &mut [i32; CHUNK], lanes| unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), lanes) };
    let absolute = _mm256_set1_epi32(0x7fff_ffff);
    let mut values = [_mm256_setzero_ps(); BLOCK];
    let mut largest = _mm256_setzero_si256();
    for (i, h) in h.iter().enumerate() {
        ahead.scales(i);
        // Lanes beyond the row may hold anything: no lane reads another.
        values[i] = _mm256_mul_ps(
            float(&first(u.scales(to.first_rank + i, to.first_group))),
            _mm256_set1_ps(*h),
        );
        largest = _mm256_max_epu32(largest, _mm256_and_si256(_mm256_castps_si256(values[i]), absolute));
    }
    let largest = _mm256_castsi256_ps(largest);
    let whole = _mm256_cmp_ps::<_CMP_GT_OQ>(largest, _mm256_set1_ps(SMALLEST));
    let inverse = _mm256_and_ps(whole, _mm256_div_ps(_mm256_set1_ps(LARGEST), largest));
    let mut scale = _mm256_mul_ps(largest, _mm256_set1_ps(1.0 / LARGEST));
    if SHORT {
        scale = _mm256_mul_ps(scale, _mm256_set1_ps(COARSE));
    }
    // SAFETY: as above.
    unsafe { _mm256_storeu_ps(to.scales.as_mut_ptr(), scale) };
    let shift = _mm256_set1_ps(SHIFT);
    let mut zeros = _mm256_setzero_si256();
    for start in (0..h.len()).step_by(TOGETHER) {
        let mut integers = [_mm256_setzero_si256(); TOGETHER];
        for (i, integer) in integers.iter_mut().enumerate().take(h.len() - start) {
            let rounded = _mm256_add_ps(_mm256_mul_ps(values[start + i], inverse), shift);
            *integer = _mm256_sub_epi32(_mm256_castps_si256(rounded), _mm256_castps_si256(shift));
            if SHORT {
                *integer = _mm256_srai_epi32::<8>(_mm256_add_epi32(*integer, _mm256_set1_epi32(128)));
            }
            let points = first(u.zeros(to.first_rank + start + i, to.first_group));
            // SAFETY: 8 values.
            let points = unsafe { _mm_loadu_si128(points.as_ptr().cast()) };
            let points = _mm256_cvtepu16_epi32(points);
            // Integers fit in the low words.
            zeros = _mm256_add_epi32(zeros, _mm256_madd_epi16(*integer, points));
        }
        let words = |low: usize, high: usize| {
            _mm256_blend_epi16::<0b1010_1010>(integers[low], _mm256_slli_epi32::<16>(integers[high]))
        };
        let low_bytes = _mm256_set1_epi16(0xff);
        let low_bytes_of = |even, odd| _mm256_or_si256(_mm256_and_si256(even, low_bytes), _mm256_slli_epi16::<8>(odd));
        if TOGETHER == 2 {
            let pair = if SHORT {
                low_bytes_of(words(0, 0), words(1, 1))
            } else {
                words(0, 1)
            };
            store(&mut to.integers.pairs[start / 2], pair);
        } else {
            let (even, odd) = (words(0, TOGETHER - 2), words(1, TOGETHER - 1));
            let low = low_bytes_of(even, odd);
            if SHORT {
                store(&mut to.integers.quads[start / 4][0], low);
                continue;
            }
            // Rounded to the nearest multiple of 256, which leaves a signed low byte.
            let half = _mm256_set1_epi16(128);
            let (even, odd) = (_mm256_add_epi16(even, half), _mm256_add_epi16(odd, half));
            let high = _mm256_or_si256(_mm256_srli_epi16::<8>(even), _mm256_andnot_si256(low_bytes, odd));
            let [to_high, to_low] = &mut to.integers.quads[start / 4];
            store(to_high, high);
            store(to_low, low);
        }
    }
    store(&mut to.zeros, zeros);
}
