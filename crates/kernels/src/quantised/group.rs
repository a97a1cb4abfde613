//! One group of activations in 8 bits.

use super::layout::{GROUP, QUAD};
use crate::isa::{Isa, isa};

/// Groups whose largest activation is below this count as 0: 127 over it would not be finite.
const SMALLEST: f32 = 7.523_164e-37;

/// Adding 1.5 · 2²³ to a number rounds it to the nearest integer, ties to even, which then sits in the low bits.
const ROUND: f32 = 12_582_912.0;

/// Codes of a group of activations: `round(x / scale)`.
pub(super) struct Codes<'a> {
    pub(super) codes: &'a mut [i8; GROUP],
    /// If asked for, the codes as i16, in each quad inputs 0, 2, 1, 3.
    pub(super) wide: Option<&'a mut [i16; GROUP]>,
}

/// Writes the codes of a group; its scale and the sum of the codes. A group that is not finite has codes of 0 and a
/// scale of NaN.
#[inline]
pub(super) fn quantise(x: &[f32; GROUP], codes: Codes<'_>) -> (f32, i32) {
    match isa() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: these instruction sets include AVX2.
        Isa::Avx2 | Isa::Avx512 => unsafe { quantise_avx2(x, codes) },
        _ => quantise_portable(x, codes),
    }
}

/// Scale, and what an activation is multiplied by; from the bits of the largest magnitude.
#[inline(always)]
fn scale(largest: u32) -> (f32, f32) {
    let largest = f32::from_bits(largest);
    match largest {
        _ if !largest.is_finite() => (f32::NAN, 0.0),
        _ if largest < SMALLEST => (0.0, 0.0),
        _ => (largest / 127.0, 127.0 / largest),
    }
}

fn quantise_portable(x: &[f32; GROUP], Codes { codes, wide }: Codes<'_>) -> (f32, i32) {
    // As integers, so that NaN counts as the largest.
    let largest = x.iter().fold(0, |bits, x| bits.max(x.to_bits() & 0x7fff_ffff));
    let (scale, inverse) = scale(largest);
    if inverse == 0.0 {
        codes.fill(0);
    } else {
        for (code, x) in codes.iter_mut().zip(x) {
            *code = (x * inverse + ROUND).to_bits() as i8;
        }
    }
    if let Some(wide) = wide {
        for (wide, codes) in wide
            .as_chunks_mut::<QUAD>()
            .0
            .iter_mut()
            .zip(codes.as_chunks::<QUAD>().0)
        {
            *wide = [codes[0], codes[2], codes[1], codes[3]].map(i16::from);
        }
    }
    (scale, codes.iter().map(|code| i32::from(*code)).sum())
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn quantise_avx2(x: &[f32; GROUP], Codes { codes, wide }: Codes<'_>) -> (f32, i32) {
    use std::arch::x86_64::*;

    // SAFETY: eight elements are as wide as the register.
    let x: [__m256; 4] = std::array::from_fn(|i| unsafe { _mm256_loadu_ps(x.as_chunks::<8>().0[i].as_ptr()) });
    let magnitude = x.map(|x| _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fff_ffff)));
    let largest = _mm256_max_epu32(
        _mm256_max_epu32(magnitude[0], magnitude[1]),
        _mm256_max_epu32(magnitude[2], magnitude[3]),
    );
    let largest = _mm_max_epu32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256::<1>(largest));
    let largest = _mm_max_epu32(largest, _mm_unpackhi_epi64(largest, largest));
    let largest = _mm_max_epu32(largest, _mm_shuffle_epi32::<1>(largest));
    let (scale, inverse) = scale(_mm_cvtsi128_si32(largest) as u32);
    let (factor, round) = (_mm256_set1_ps(inverse), _mm256_set1_ps(ROUND));
    let integers = match inverse {
        0.0 => [_mm256_setzero_si256(); 4],
        _ => x.map(|x| {
            let rounded = _mm256_castps_si256(_mm256_add_ps(_mm256_mul_ps(x, factor), round));
            _mm256_sub_epi32(rounded, _mm256_castps_si256(round))
        }),
    };
    // Packing interleaves the halves of the registers.
    let pack = |a, b| _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(a, b));
    let words = [pack(integers[0], integers[1]), pack(integers[2], integers[3])];
    let bytes = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi16(words[0], words[1]));
    // SAFETY: the codes are as wide as the register.
    unsafe { _mm256_storeu_si256(codes.as_mut_ptr().cast(), bytes) };
    if let Some(wide) = wide {
        for (wide, words) in wide.as_chunks_mut::<{ GROUP / 2 }>().0.iter_mut().zip(words) {
            let words = _mm256_shufflelo_epi16::<0b11_01_10_00>(words);
            let words = _mm256_shufflehi_epi16::<0b11_01_10_00>(words);
            // SAFETY: sixteen elements are as wide as the register.
            unsafe { _mm256_storeu_si256(wide.as_mut_ptr().cast(), words) };
        }
    }
    let sums = _mm256_madd_epi16(_mm256_add_epi16(words[0], words[1]), _mm256_set1_epi16(1));
    let sums = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
    let sums = _mm_add_epi32(sums, _mm_unpackhi_epi64(sums, sums));
    let sums = _mm_add_epi32(sums, _mm_shuffle_epi32::<1>(sums));
    (scale, _mm_cvtsi128_si32(sums))
}
