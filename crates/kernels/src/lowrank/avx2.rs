//! The integer kernels on AVX2.
//!
//! V multiplies codes with the bytes of x by `maddubs`, whose sums of two products of at most 15 · 128 are collected in
//! 16 bits over a group. U lays the packed words of two ranks side by side, so that a shift and a mask leave both
//! ranks' codes of one output as the two halves of `madd`.

use super::activations::{CHUNK, InputGroup, InputRow};
use super::coefficients::{BLOCK, Coefficients};
use super::factor::Factor;
use crate::lowbit::{GROUP, unpack_group};
use std::arch::x86_64::*;
use std::ops::Range;

/// `out[i] = V[ranks.start + i] · x`.
///
/// # Safety
/// The machine has AVX2 and FMA; `v` has codes of `BITS` bits and these ranks, `x` as many groups.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn dots<const BITS: usize>(v: &Factor<'_>, ranks: Range<usize>, x: InputRow<'_>, out: &mut [f32]) {
    let whole = v.len() / GROUP;
    for (rank, out) in ranks.zip(out) {
        let codes = v.codes_from(rank, 0);
        let mut sums = DotSums::new();
        for chunk in 0..x.sums.len() {
            let first = chunk * CHUNK;
            let mut parts = [_mm256_setzero_si256(); CHUNK];
            for g in first..(first + CHUNK).min(whole) {
                // SAFETY: group `g` is whole, so its 16 · BITS bytes are in the row.
                parts[g - first] = unsafe { group_sum::<BITS>(codes.as_ptr().add(g * 16 * BITS), &x.values[g]) };
            }
            if whole < v.groups() && whole / CHUNK == chunk {
                let tail = unpack_tail::<BITS>(v.group(rank, whole));
                // SAFETY: a whole group of 8-bit codes.
                parts[whole - first] = unsafe { group_sum::<8>(tail.as_ptr(), &x.values[whole]) };
            }
            sums.add(
                parts,
                v.scales(rank, first),
                v.zeros(rank, first),
                v.groups() - first,
                &x.sums[chunk],
                &x.scales[chunk],
            );
        }
        *out = sums.total();
    }
}

/// `Σ code · value` of one group, spread over the lanes.
///
/// # Safety
/// 16 · `BITS` bytes are readable at `packed`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn group_sum<const BITS: usize>(packed: *const u8, x: &InputGroup) -> __m256i {
    // SAFETY: by the contract.
    let codes = unsafe { unpack::<BITS>(packed) };
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

/// Bytes `32 i ..` of a group.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn bytes(group: &[i8; GROUP], i: usize) -> __m256i {
    let part = &group.as_chunks::<32>().0[i];
    // SAFETY: 32 bytes.
    unsafe { _mm256_loadu_si256(part.as_ptr().cast()) }
}

/// The 128 codes of a group, in order.
///
/// # Safety
/// 16 · `BITS` bytes are readable at `packed`.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn unpack<const BITS: usize>(packed: *const u8) -> [__m256i; 4] {
    // SAFETY: `i` stays below BITS / 2.
    let load = |i: usize| unsafe { _mm256_loadu_si256(packed.add(32 * i).cast()) };
    let two = _mm256_set1_epi8(3);
    let nibble = _mm256_set1_epi8(15);
    match BITS {
        8 => [load(0), load(1), load(2), load(3)],
        4 => {
            let (a, b) = (load(0), load(1));
            [
                _mm256_and_si256(a, nibble),
                _mm256_and_si256(b, nibble),
                _mm256_and_si256(_mm256_srli_epi16::<4>(a), nibble),
                _mm256_and_si256(_mm256_srli_epi16::<4>(b), nibble),
            ]
        }
        _ => {
            let a = load(0);
            let low = [
                _mm256_and_si256(a, two),
                _mm256_and_si256(_mm256_srli_epi16::<2>(a), two),
                _mm256_and_si256(_mm256_srli_epi16::<4>(a), two),
                _mm256_and_si256(_mm256_srli_epi16::<6>(a), two),
            ];
            if BITS == 2 {
                return low;
            }
            // SAFETY: 16 bytes after the 2-bit plane.
            let high = unsafe { _mm_loadu_si128(packed.add(32).cast()) };
            // Bit 2i of a byte belongs to code j + 32i, bit 2i + 1 to code j + 16 + 32i.
            let high = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(high), _mm_srli_epi16::<1>(high));
            let third = _mm256_set1_epi8(4);
            let bit = |shifted| _mm256_and_si256(shifted, third);
            [
                _mm256_or_si256(low[0], bit(_mm256_slli_epi16::<2>(high))),
                _mm256_or_si256(low[1], bit(high)),
                _mm256_or_si256(low[2], bit(_mm256_srli_epi16::<2>(high))),
                _mm256_or_si256(low[3], bit(_mm256_srli_epi16::<4>(high))),
            ]
        }
    }
}

/// The codes of a row's last group, shorter than 128, completed with zeros.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn unpack_tail<const BITS: usize>(packed: &[u8]) -> [u8; GROUP] {
    let mut codes = [0; GROUP];
    let len = packed.len() * 8 / BITS;
    if len == GROUP / 2 && BITS < 8 {
        // SAFETY: 64 codes take 8 · BITS bytes, and there is room for them.
        unsafe { unpack_half::<BITS>(packed.as_ptr(), codes.as_mut_ptr()) };
    } else {
        unpack_group(packed, BITS as u8, &mut codes[..len]);
    }
    codes
}

/// The codes of a group of 64: widths of common models are odd multiples of it.
///
/// # Safety
/// 8 · `BITS` bytes are readable at `packed`, 64 writable at `codes`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn unpack_half<const BITS: usize>(packed: *const u8, codes: *mut u8) {
    let [first, second] = if BITS == 4 {
        // SAFETY: 32 bytes.
        let a = unsafe { _mm256_loadu_si256(packed.cast()) };
        let nibble = _mm256_set1_epi8(15);
        [
            _mm256_and_si256(a, nibble),
            _mm256_and_si256(_mm256_srli_epi16::<4>(a), nibble),
        ]
    } else {
        // SAFETY: 16 bytes.
        let a = unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(packed.cast())) };
        // Bits 0 and 1 belong to code j, bits 2 and 3 to code j + 16, and so on.
        let a = _mm256_srlv_epi64(a, _mm256_setr_epi64x(0, 0, 2, 2));
        let two = _mm256_set1_epi8(3);
        let low = [
            _mm256_and_si256(a, two),
            _mm256_and_si256(_mm256_srli_epi16::<4>(a), two),
        ];
        if BITS == 2 {
            low
        } else {
            // SAFETY: 8 bytes after the 2-bit plane.
            let high = unsafe { _mm_loadl_epi64(packed.add(16).cast()) };
            // Bit i belongs to code j + 8i.
            let high = _mm256_srlv_epi64(_mm256_broadcastq_epi64(high), _mm256_setr_epi64x(0, 1, 2, 3));
            let third = _mm256_set1_epi8(4);
            [
                _mm256_or_si256(low[0], _mm256_and_si256(_mm256_slli_epi16::<2>(high), third)),
                _mm256_or_si256(low[1], _mm256_and_si256(_mm256_srli_epi16::<2>(high), third)),
            ]
        }
    };
    // SAFETY: 64 bytes.
    unsafe {
        _mm256_storeu_si256(codes.cast(), first);
        _mm256_storeu_si256(codes.add(32).cast(), second);
    }
}

/// The float side of a dot product: lane `j` sums groups `j`, `j + 8`, ….
#[derive(Clone, Copy)]
pub(super) struct DotSums(__m256);

impl DotSums {
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn new() -> Self {
        Self(_mm256_setzero_ps())
    }

    /// Adds a chunk of `groups` groups, or 8 if there are more. `parts` are the groups' `Σ code · value`, `scales` and
    /// `zeros` those of V, `sums` and `x_scales` those of x.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn add(
        &mut self,
        parts: [__m256i; CHUNK],
        scales: &[f32],
        zeros: &[u8],
        groups: usize,
        sums: &[i32; CHUNK],
        x_scales: &[f32; CHUNK],
    ) {
        // SAFETY: 8 values each.
        let (sums, x_scales) = unsafe {
            (
                _mm256_loadu_si256(sums.as_ptr().cast()),
                _mm256_loadu_ps(x_scales.as_ptr()),
            )
        };
        // Beyond the row the sums and scales of x are 0, so whatever stands there as a zero point does not matter; a
        // scale might be infinite.
        let zeros = match zeros.as_chunks::<CHUNK>().0.first() {
            Some(zeros) => u64::from_le_bytes(*zeros),
            None => zeros.iter().rev().fold(0, |all, zero| all << 8 | u64::from(*zero)),
        };
        let scales = if groups >= CHUNK {
            // SAFETY: the slice is checked to have 8 values.
            unsafe { _mm256_loadu_ps(scales[..CHUNK].as_ptr()) }
        } else {
            let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let present = _mm256_cmpgt_epi32(_mm256_set1_epi32(groups as i32), lanes);
            // SAFETY: reads only the lanes before `groups`, which the slice is checked to have.
            unsafe { _mm256_maskload_ps(scales[..groups].as_ptr(), present) }
        };
        let zeros = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(zeros as i64));
        let integers = _mm256_sub_epi32(sum_each(parts), _mm256_mullo_epi32(zeros, sums));
        self.0 = _mm256_fmadd_ps(_mm256_cvtepi32_ps(integers), _mm256_mul_ps(scales, x_scales), self.0);
    }

    /// The sum of the lanes, as a fixed tree.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn total(self) -> f32 {
        let four = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }
}

/// Lane `j` of the result is the sum of the lanes of `parts[j]`.
#[inline]
#[target_feature(enable = "avx2")]
fn sum_each(parts: [__m256i; 8]) -> __m256i {
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

/// `y += Σ coefficient · weight` for the outputs of one group.
///
/// # Safety
/// The machine has AVX2 and FMA; `u` has codes of `BITS` bits, the coefficients' ranks and their group `lane`, and `y`
/// is as long as that group.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn mix<const BITS: usize>(u: &Factor<'_>, coefficients: &Coefficients, lane: usize, y: &mut [f32]) {
    let (ranks, group) = (coefficients.ranks(), coefficients.first_group() + lane);
    if let Ok(y) = y.try_into() {
        let codes = u.codes_from(ranks.start, group).as_ptr();
        // SAFETY: the group is whole, and so it is in each of the ranks' rows, which lie one stride apart.
        unsafe { mix_group::<BITS>(codes, u.stride(), coefficients, lane, y) };
    } else {
        let mut codes = [[0; GROUP]; BLOCK];
        for (codes, rank) in codes.iter_mut().zip(ranks) {
            *codes = unpack_tail::<BITS>(u.group(rank, group));
        }
        let mut padded = [0.0; GROUP];
        padded[..y.len()].copy_from_slice(y);
        // SAFETY: one whole group of 8-bit codes for each rank.
        unsafe { mix_group::<8>(codes.as_ptr().cast(), GROUP, coefficients, lane, &mut padded) };
        y.copy_from_slice(&padded[..y.len()]);
    }
}

/// [`mix`] for a whole group, whose codes in the coefficients' first rank are at `codes`.
///
/// # Safety
/// A group's bytes are readable at `codes` and at each of the other ranks' multiples of `stride` after it.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn mix_group<const BITS: usize>(
    codes: *const u8,
    stride: usize,
    coefficients: &Coefficients,
    lane: usize,
    y: &mut [f32; GROUP],
) {
    let ranks = coefficients.ranks().len();
    let planes = if BITS == 3 { 4 } else { 8 / BITS };
    // The distance between the outputs of neighbouring planes.
    let step = GROUP / planes;
    let zero = _mm256_set1_epi32(coefficients.zero(lane));
    let scale = _mm256_set1_ps(coefficients.scale(lane));
    // 32 bytes of packed codes at a time, of them 2 × 8 at a time.
    for block in 0..step / 32 {
        for half in 0..2 {
            let mut sums = [[_mm256_setzero_si256(); 2]; 4];
            for pair in 0..ranks.div_ceil(2) {
                // An odd last rank is paired with itself; the coefficient of the second is 0.
                // SAFETY: both are ranks of the block.
                let (a, b) = unsafe {
                    (
                        codes.add(2 * pair * stride),
                        codes.add((2 * pair + 1).min(ranks - 1) * stride),
                    )
                };
                let weights = _mm256_set1_epi32(coefficients.pair(pair, lane));
                // SAFETY: 32 bytes of the plane, `block` counts them.
                let (low_a, low_b) = unsafe {
                    (
                        _mm256_loadu_si256(a.add(32 * block).cast()),
                        _mm256_loadu_si256(b.add(32 * block).cast()),
                    )
                };
                let words = interleave(low_a, low_b, half);
                let third = if BITS == 3 {
                    // SAFETY: 16 bytes after the 2-bit plane.
                    let (a, b) = unsafe {
                        (
                            _mm256_broadcastsi128_si256(_mm_loadu_si128(a.add(32).cast())),
                            _mm256_broadcastsi128_si256(_mm_loadu_si128(b.add(32).cast())),
                        )
                    };
                    // The upper half is for codes j + 16, whose bits are the odd ones.
                    _mm256_srlv_epi32(interleave(a, b, half), _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1))
                } else {
                    _mm256_setzero_si256()
                };
                macro_rules! add_plane {
                    ($plane:literal, $byte:literal, $shift:expr) => {
                        let mut both = mask::<BITS>(_mm256_srli_epi16::<{ $shift }>(words));
                        if BITS == 3 {
                            let bit = if $shift == 0 {
                                _mm256_slli_epi16::<2>(third)
                            } else {
                                _mm256_srli_epi16::<{ if $shift == 0 { 0 } else { $shift - 2 } }>(third)
                            };
                            both = _mm256_or_si256(both, _mm256_and_si256(bit, _mm256_set1_epi16(4)));
                        }
                        sums[$plane][$byte] = _mm256_add_epi32(sums[$plane][$byte], _mm256_madd_epi16(both, weights));
                    };
                }
                add_plane!(0, 0, 0);
                add_plane!(0, 1, 8);
                if BITS == 4 {
                    add_plane!(1, 0, 4);
                    add_plane!(1, 1, 12);
                } else if BITS < 4 {
                    add_plane!(1, 0, 2);
                    add_plane!(1, 1, 10);
                    add_plane!(2, 0, 4);
                    add_plane!(2, 1, 12);
                    add_plane!(3, 0, 6);
                    add_plane!(3, 1, 14);
                }
            }
            for (plane, [even, odd]) in sums.into_iter().enumerate().take(planes) {
                let (first, second) = (_mm256_unpacklo_epi32(even, odd), _mm256_unpackhi_epi32(even, odd));
                let natural = [
                    _mm256_permute2x128_si256::<0x20>(first, second),
                    _mm256_permute2x128_si256::<0x31>(first, second),
                ];
                for (i, sum) in natural.into_iter().enumerate() {
                    let y = &mut y[plane * step + 32 * block + 16 * i + 8 * half..][..8];
                    // SAFETY: 8 values.
                    unsafe {
                        let sum = _mm256_cvtepi32_ps(_mm256_sub_epi32(sum, zero));
                        _mm256_storeu_ps(y.as_mut_ptr(), _mm256_fmadd_ps(sum, scale, _mm256_loadu_ps(y.as_ptr())));
                    }
                }
            }
        }
    }
}

/// Words of `a` and `b` side by side: in each half of the vector the lower four of both, or the upper.
#[inline]
#[target_feature(enable = "avx2")]
fn interleave(a: __m256i, b: __m256i, half: usize) -> __m256i {
    if half == 0 {
        _mm256_unpacklo_epi16(a, b)
    } else {
        _mm256_unpackhi_epi16(a, b)
    }
}

/// The lowest code, or its lower two bits, of each word.
#[inline]
#[target_feature(enable = "avx2")]
fn mask<const BITS: usize>(words: __m256i) -> __m256i {
    _mm256_and_si256(
        words,
        _mm256_set1_epi16(match BITS {
            8 => 255,
            4 => 15,
            _ => 3,
        }),
    )
}
