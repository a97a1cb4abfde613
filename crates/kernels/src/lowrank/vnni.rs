//! The integer kernels on AVX-512 VNNI: codes times the bytes of 16-bit integers by `dpbusd`.
//!
//! V multiplies a group's codes with both bytes of x. U lays the packed bytes of four ranks side by side, so that a
//! shift and a mask leave four ranks' codes of one output as the four bytes of a lane.

use super::activations::{CHUNK, InputGroup, InputRow};
use super::avx2::{DotSums, bytes, unpack, unpack_tail};
use super::coefficients::{BLOCK, Coefficients};
use super::factor::Factor;
use crate::lowbit::GROUP;
use std::arch::x86_64::*;
use std::ops::Range;

/// `out[i] = V[ranks.start + i] · x`.
///
/// # Safety
/// The machine has AVX-512 (F, BW, DQ, VL), VNNI, AVX2 and FMA; `v` has codes of `BITS` bits and these ranks, `x` as
/// many groups.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
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
#[target_feature(enable = "avx512f,avx512vl,avx512vnni,avx2")]
unsafe fn group_sum<const BITS: usize>(packed: *const u8, x: &InputGroup) -> __m256i {
    // SAFETY: by the contract.
    let codes = unsafe { unpack::<BITS>(packed) };
    let (mut high, mut low) = (_mm256_setzero_si256(), _mm256_setzero_si256());
    for (i, codes) in codes.iter().enumerate() {
        high = _mm256_dpbusd_epi32(high, *codes, bytes(&x.high, i));
        low = _mm256_dpbusd_epi32(low, *codes, bytes(&x.low, i));
    }
    _mm256_add_epi32(_mm256_slli_epi32::<8>(high), low)
}

/// `y += Σ coefficient · weight` for the outputs of one group.
///
/// # Safety
/// The machine has AVX-512 (F, BW, DQ, VL), VNNI, AVX2 and FMA; `u` has codes of `BITS` bits, the coefficients' ranks
/// and their group `lane`, and `y` is as long as that group.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
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
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
unsafe fn mix_group<const BITS: usize>(
    codes: *const u8,
    stride: usize,
    coefficients: &Coefficients,
    lane: usize,
    y: &mut [f32; GROUP],
) {
    let ranks = coefficients.ranks().len();
    let (mut high, mut low) = ([_mm512_setzero_si512(); 8], [_mm512_setzero_si512(); 8]);
    for quad in 0..ranks.div_ceil(4) {
        // Ranks beyond the last are the last; their coefficients are 0.
        // SAFETY: all are ranks of the block.
        let rows = std::array::from_fn(|i| unsafe { codes.add((4 * quad + i).min(ranks - 1) * stride) });
        // SAFETY: each row has a group's bytes.
        let codes = unsafe { unpack_quad::<BITS>(rows) };
        let (weights_high, weights_low) = coefficients.bytes(quad, lane);
        let (weights_high, weights_low) = (_mm512_set1_epi32(weights_high), _mm512_set1_epi32(weights_low));
        for i in 0..8 {
            high[i] = _mm512_dpbusd_epi32(high[i], codes[i], weights_high);
            low[i] = _mm512_dpbusd_epi32(low[i], codes[i], weights_low);
        }
    }
    let zero = _mm512_set1_epi32(coefficients.zero(lane));
    let scale = _mm512_set1_ps(coefficients.scale(lane));
    let sums = std::array::from_fn(|i| {
        let sum = _mm512_add_epi32(_mm512_slli_epi32::<8>(high[i]), low[i]);
        _mm512_sub_epi32(sum, zero)
    });
    for (y, sum) in y.as_chunks_mut::<16>().0.iter_mut().zip(in_order::<BITS>(sums)) {
        // SAFETY: 16 values.
        unsafe {
            let sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, _mm512_loadu_ps(y.as_ptr()));
            _mm512_storeu_ps(y.as_mut_ptr(), sum);
        }
    }
}

/// The codes of one group in four ranks, those of one output side by side; outputs in the order that [`in_order`]
/// undoes.
///
/// # Safety
/// 16 · `BITS` bytes are readable at each row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
unsafe fn unpack_quad<const BITS: usize>(rows: [*const u8; 4]) -> [__m512i; 8] {
    if BITS >= 4 {
        // SAFETY: `i` is below BITS / 4.
        let quads = |i: usize| unsafe {
            let [a, b, c, d] = rows.map(|row| _mm512_loadu_si512(row.add(64 * i).cast()));
            let (ab, ab_high) = (_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b));
            let (cd, cd_high) = (_mm512_unpacklo_epi8(c, d), _mm512_unpackhi_epi8(c, d));
            [
                _mm512_unpacklo_epi16(ab, cd),
                _mm512_unpackhi_epi16(ab, cd),
                _mm512_unpacklo_epi16(ab_high, cd_high),
                _mm512_unpackhi_epi16(ab_high, cd_high),
            ]
        };
        let first = quads(0);
        let (first, second) = if BITS == 8 {
            (first, quads(1))
        } else {
            let nibble = _mm512_set1_epi8(15);
            (
                first.map(|q| _mm512_and_si512(q, nibble)),
                first.map(|q| _mm512_and_si512(_mm512_srli_epi16::<4>(q), nibble)),
            )
        };
        return [
            first[0], first[1], first[2], first[3], second[0], second[1], second[2], second[3],
        ];
    }
    // SAFETY: 32 bytes of each row's 2-bit plane.
    let [first, second] = quads_of_32(unsafe { rows.map(|row| _mm256_loadu_si256(row.cast())) });
    let two = _mm512_set1_epi8(3);
    let mut codes = [
        _mm512_and_si512(first, two),
        _mm512_and_si512(second, two),
        _mm512_and_si512(_mm512_srli_epi16::<2>(first), two),
        _mm512_and_si512(_mm512_srli_epi16::<2>(second), two),
        _mm512_and_si512(_mm512_srli_epi16::<4>(first), two),
        _mm512_and_si512(_mm512_srli_epi16::<4>(second), two),
        _mm512_and_si512(_mm512_srli_epi16::<6>(first), two),
        _mm512_and_si512(_mm512_srli_epi16::<6>(second), two),
    ];
    if BITS == 3 {
        // SAFETY: 16 bytes after each row's 2-bit plane.
        let high = unsafe { rows.map(|row| _mm256_broadcastsi128_si256(_mm_loadu_si128(row.add(32).cast()))) };
        // The odd quarters are for codes j + 16, whose bits are the odd ones.
        let odd = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1);
        let third = _mm512_set1_epi8(4);
        for (i, high) in quads_of_32(high).into_iter().enumerate() {
            let high = _mm512_srlv_epi32(high, odd);
            let bit = |shifted| _mm512_and_si512(shifted, third);
            codes[i] = _mm512_or_si512(codes[i], bit(_mm512_slli_epi16::<2>(high)));
            codes[i + 2] = _mm512_or_si512(codes[i + 2], bit(high));
            codes[i + 4] = _mm512_or_si512(codes[i + 4], bit(_mm512_srli_epi16::<2>(high)));
            codes[i + 6] = _mm512_or_si512(codes[i + 6], bit(_mm512_srli_epi16::<4>(high)));
        }
    }
    codes
}

/// Bytes `j` of four rows side by side; quarter `k` of vector `q` has `j` from `8 q + 4 (k / 2) + 16 (k % 2)` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
fn quads_of_32([a, b, c, d]: [__m256i; 4]) -> [__m512i; 2] {
    let (ab, ab_high) = (_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b));
    let (cd, cd_high) = (_mm256_unpacklo_epi8(c, d), _mm256_unpackhi_epi8(c, d));
    let join = |a, b| _mm512_inserti64x4::<1>(_mm512_castsi256_si512(a), b);
    [
        join(_mm256_unpacklo_epi16(ab, cd), _mm256_unpackhi_epi16(ab, cd)),
        join(
            _mm256_unpacklo_epi16(ab_high, cd_high),
            _mm256_unpackhi_epi16(ab_high, cd_high),
        ),
    ]
}

/// Brings sums over the codes of [`unpack_quad`] into the order of the outputs.
#[inline]
#[target_feature(enable = "avx512f")]
fn in_order<const BITS: usize>(sums: [__m512i; 8]) -> [__m512i; 8] {
    let [a, b, c, d, e, f, g, h] = sums;
    if BITS >= 4 {
        let [a, b, c, d] = transpose_quarters([a, b, c, d]);
        let [e, f, g, h] = transpose_quarters([e, f, g, h]);
        return [a, b, c, d, e, f, g, h];
    }
    let even = |a, b| _mm512_shuffle_i32x4::<0b10_00_10_00>(a, b);
    let odd = |a, b| _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b);
    [
        even(a, b),
        odd(a, b),
        even(c, d),
        odd(c, d),
        even(e, f),
        odd(e, f),
        even(g, h),
        odd(g, h),
    ]
}

/// Quarter `i` of vector `j` becomes quarter `j` of vector `i`.
#[inline]
#[target_feature(enable = "avx512f")]
fn transpose_quarters([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let (ab, ab_high) = (_mm512_shuffle_i32x4::<0x44>(a, b), _mm512_shuffle_i32x4::<0xee>(a, b));
    let (cd, cd_high) = (_mm512_shuffle_i32x4::<0x44>(c, d), _mm512_shuffle_i32x4::<0xee>(c, d));
    [
        _mm512_shuffle_i32x4::<0x88>(ab, cd),
        _mm512_shuffle_i32x4::<0xdd>(ab, cd),
        _mm512_shuffle_i32x4::<0x88>(ab_high, cd_high),
        _mm512_shuffle_i32x4::<0xdd>(ab_high, cd_high),
    ]
}
