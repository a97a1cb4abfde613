//! The integer kernels on AVX-512 VNNI: codes times the bytes of 16-bit integers by `dpbusd`.
//!
//! V multiplies a group's codes with the bytes of x. U works on tiles in which the packed bytes of four ranks lie side
//! by side, so that a shift and a mask leave four ranks' codes of one output as the four bytes of a lane.

use super::activations::{CHUNK, InputGroup, InputRow, coarse};
use super::avx2::{DotSums, bytes, sum_each, unpack, unpack_tail};
use super::coefficients::Coefficients;
use super::factor::Factor;
use super::tile::{Ahead, Tile, prefetch};
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
    let (whole, groups) = (v.len() / GROUP, v.groups());
    for (rank, out) in ranks.zip(out) {
        let codes = v.codes_from(rank, 0).as_ptr();
        let tail = if whole < groups {
            let tail = unpack_tail::<BITS>(v.group(rank, whole));
            // SAFETY: a whole group of 8-bit codes.
            unsafe { group_sum::<BITS, 8>(tail.as_ptr(), &x.values[whole]) }
        } else {
            _mm256_setzero_si256()
        };
        let mut sums = DotSums::new();
        for (chunk, x_chunk) in x.chunks.iter().enumerate() {
            let first = chunk * CHUNK;
            // SAFETY: the row and x have these whole groups.
            let parts = unsafe {
                let (codes, x) = (codes.add(first * 16 * BITS), x.values.as_ptr().add(first));
                for line in 0..BITS * 2 {
                    prefetch(codes.wrapping_add(2048 + 64 * line));
                }
                match whole - first {
                    0 => chunk_sums::<BITS, 0>(codes, x, tail),
                    1 => chunk_sums::<BITS, 1>(codes, x, tail),
                    2 => chunk_sums::<BITS, 2>(codes, x, tail),
                    3 => chunk_sums::<BITS, 3>(codes, x, tail),
                    4 => chunk_sums::<BITS, 4>(codes, x, tail),
                    5 => chunk_sums::<BITS, 5>(codes, x, tail),
                    6 => chunk_sums::<BITS, 6>(codes, x, tail),
                    7 => chunk_sums::<BITS, 7>(codes, x, tail),
                    _ => chunk_sums::<BITS, 8>(codes, x, tail),
                }
            };
            sums.add::<BITS>(
                parts,
                v.scales(rank, first),
                v.zeros(rank, first),
                groups - first,
                x_chunk,
            );
        }
        *out = sums.total();
    }
}

/// `Σ code · value` of `WHOLE` groups, and that of the group after them from `tail`.
///
/// # Safety
/// `WHOLE` groups are readable at `codes` and at `x`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2")]
unsafe fn chunk_sums<const BITS: usize, const WHOLE: usize>(
    codes: *const u8,
    x: *const InputGroup,
    tail: __m256i,
) -> __m256i {
    let part = |g: usize| {
        if g < WHOLE {
            // SAFETY: by the contract.
            unsafe { group_sum::<BITS, BITS>(codes.add(g * 16 * BITS), x.add(g)) }
        } else if g == WHOLE {
            tail
        } else {
            _mm256_setzero_si256()
        }
    };
    sum_each([part(0), part(1), part(2), part(3), part(4), part(5), part(6), part(7)])
}

/// `Σ code · value` of one group, spread over the lanes, for codes of `BITS` bits that are packed in `PACKED`.
///
/// # Safety
/// 16 · `PACKED` bytes are readable at `packed`, and `x` is readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2")]
unsafe fn group_sum<const BITS: usize, const PACKED: usize>(packed: *const u8, x: *const InputGroup) -> __m256i {
    // SAFETY: by the contract.
    let (codes, x) = unsafe { (unpack::<PACKED>(packed), &*x) };
    let (mut high, mut low) = (_mm256_setzero_si256(), _mm256_setzero_si256());
    for (i, codes) in codes.into_iter().enumerate() {
        high = _mm256_dpbusd_epi32(high, codes, bytes(&x.high, i));
        if !coarse(BITS as u8) {
            low = _mm256_dpbusd_epi32(low, codes, bytes(&x.low, i));
        }
    }
    if coarse(BITS as u8) {
        return high;
    }
    _mm256_add_epi32(_mm256_slli_epi32::<8>(high), low)
}

/// Fills a tile: the packed bytes of four ranks side by side, quad after quad within a group.
///
/// # Safety
/// The machine has AVX-512 (F, BW, DQ, VL) and AVX2; `u` has codes of `BITS` bits, these ranks and groups, and the tile
/// has room for them.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
pub(super) unsafe fn fill<const BITS: usize>(
    tile: &mut Tile,
    u: &Factor<'_>,
    ranks: Range<usize>,
    groups: Range<usize>,
) {
    for quad in 0..ranks.len().div_ceil(4) {
        // Ranks beyond the last are the last; their coefficients are 0.
        let rows = std::array::from_fn(|i| (ranks.start + 4 * quad + i).min(ranks.end - 1));
        let codes = rows.map(|rank| u.codes_from(rank, groups.start).as_ptr());
        for (lane, group) in groups.clone().enumerate() {
            let to = tile.group_mut::<BITS>(lane);
            if u.group_len(group) == GROUP {
                // SAFETY: the group is whole in each row, and a group of the tile has room for eight quads.
                unsafe {
                    let planes = interleave::<BITS>(codes.map(|codes| codes.add(lane * 16 * BITS)));
                    store::<BITS>(planes, to.add(quad * 64 * BITS));
                }
            } else {
                let codes = rows.map(|rank| unpack_tail::<BITS>(u.group(rank, group)));
                // SAFETY: as above, with codes of 8 bits; a row's last group is the tile's last too.
                unsafe {
                    let planes = interleave::<8>(codes.each_ref().map(|codes| codes.as_ptr()));
                    store::<8>(planes, to.add(quad * 64 * 8));
                }
            }
        }
    }
}

/// # Safety
/// 64 · `BITS` bytes are writable at `to`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store<const BITS: usize>(planes: [__m512i; 8], to: *mut u8) {
    for (i, plane) in planes.into_iter().enumerate().take(BITS) {
        // SAFETY: by the contract; the tile's quads are aligned.
        unsafe { _mm512_store_si512(to.add(64 * i).cast(), plane) };
    }
}

/// The packed bytes of one group in four ranks side by side: byte `j` of rank `i` becomes byte `4j + i` of the `BITS`
/// first vectors.
///
/// # Safety
/// 16 · `BITS` bytes are readable at each row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
unsafe fn interleave<const BITS: usize>(rows: [*const u8; 4]) -> [__m512i; 8] {
    let mut planes = [_mm512_setzero_si512(); 8];
    if BITS >= 4 {
        for i in 0..BITS / 4 {
            // SAFETY: 64 bytes of each row.
            let [a, b, c, d] = rows.map(|row| unsafe { _mm512_loadu_si512(row.add(64 * i).cast()) });
            let (ab, ab_high) = (_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b));
            let (cd, cd_high) = (_mm512_unpacklo_epi8(c, d), _mm512_unpackhi_epi8(c, d));
            let quads = transpose_quarters([
                _mm512_unpacklo_epi16(ab, cd),
                _mm512_unpackhi_epi16(ab, cd),
                _mm512_unpacklo_epi16(ab_high, cd_high),
                _mm512_unpackhi_epi16(ab_high, cd_high),
            ]);
            planes[4 * i..4 * i + 4].copy_from_slice(&quads);
        }
        return planes;
    }
    // SAFETY: 32 bytes of each row.
    let [a, b, c, d] = rows.map(|row| unsafe { _mm256_loadu_si256(row.cast()) });
    let (ab, ab_high) = (_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b));
    let (cd, cd_high) = (_mm256_unpacklo_epi8(c, d), _mm256_unpackhi_epi8(c, d));
    let join = |a, b| _mm512_inserti64x4::<1>(_mm512_castsi256_si512(a), b);
    // The even quarters have bytes 0 to 15, the odd ones bytes 16 to 31.
    let first = join(_mm256_unpacklo_epi16(ab, cd), _mm256_unpackhi_epi16(ab, cd));
    let second = join(
        _mm256_unpacklo_epi16(ab_high, cd_high),
        _mm256_unpackhi_epi16(ab_high, cd_high),
    );
    planes[0] = _mm512_shuffle_i32x4::<0b10_00_10_00>(first, second);
    planes[1] = _mm512_shuffle_i32x4::<0b11_01_11_01>(first, second);
    if BITS == 3 {
        // SAFETY: 16 bytes of each row after the 2-bit plane.
        let [a, b, c, d] = rows.map(|row| unsafe { _mm_loadu_si128(row.add(32).cast()) });
        let (ab, ab_high) = (_mm_unpacklo_epi8(a, b), _mm_unpackhi_epi8(a, b));
        let (cd, cd_high) = (_mm_unpacklo_epi8(c, d), _mm_unpackhi_epi8(c, d));
        let join256 = |a, b| _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(a), b);
        planes[2] = join(
            join256(_mm_unpacklo_epi16(ab, cd), _mm_unpackhi_epi16(ab, cd)),
            join256(
                _mm_unpacklo_epi16(ab_high, cd_high),
                _mm_unpackhi_epi16(ab_high, cd_high),
            ),
        );
    }
    planes
}

/// Quarter `i` of vector `j` becomes quarter `j` of vector `i`.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn transpose_quarters([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let (ab, ab_high) = (_mm512_shuffle_i32x4::<0x44>(a, b), _mm512_shuffle_i32x4::<0xee>(a, b));
    let (cd, cd_high) = (_mm512_shuffle_i32x4::<0x44>(c, d), _mm512_shuffle_i32x4::<0xee>(c, d));
    [
        _mm512_shuffle_i32x4::<0x88>(ab, cd),
        _mm512_shuffle_i32x4::<0xdd>(ab, cd),
        _mm512_shuffle_i32x4::<0x88>(ab_high, cd_high),
        _mm512_shuffle_i32x4::<0xdd>(ab_high, cd_high),
    ]
}

/// `y += Σ coefficient · weight` for the outputs of one group, from a tile, or for a whole group from the rows
/// themselves.
///
/// # Safety
/// The machine has AVX-512 (F, BW, DQ, VL), VNNI, AVX2 and FMA; `u` has codes of `BITS` bits, the coefficients' ranks
/// and their group `lane`, and a tile, if there is one, holds them.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
pub(super) unsafe fn mix<const BITS: usize>(
    u: &Factor<'_>,
    tile: Option<&Tile>,
    coefficients: &Coefficients,
    lane: usize,
    ahead: Ahead,
    y: &mut [f32],
) {
    let ranks = coefficients.ranks();
    // SAFETY: the tile or the rows have a group's bytes for each of the ranks; `fill` brings groups that are not whole
    // to 8 bits.
    unsafe {
        match (y.try_into(), tile) {
            (Ok(y), Some(tile)) => {
                let quads = tile.group::<BITS>(lane);
                mix_group::<BITS, BITS>(|i| load::<BITS>(quads.add(i * 64 * BITS)), coefficients, lane, ahead, y);
            }
            (Ok(y), None) => {
                let (codes, stride) = (
                    u.codes_from(ranks.start, coefficients.first_group() + lane).as_ptr(),
                    u.stride(),
                );
                let last = ranks.len() - 1;
                // Ranks beyond the last are the last; their coefficients are 0.
                let quad = |i: usize| std::array::from_fn(|j| codes.add((4 * i + j).min(last) * stride));
                mix_group::<BITS, BITS>(|i| interleave::<BITS>(quad(i)), coefficients, lane, ahead, y);
            }
            (Err(_), Some(tile)) => {
                let quads = tile.group::<BITS>(lane);
                let mut padded = [0.0; GROUP];
                padded[..y.len()].copy_from_slice(y);
                mix_group::<BITS, 8>(
                    |i| load::<8>(quads.add(i * 64 * 8)),
                    coefficients,
                    lane,
                    ahead,
                    &mut padded,
                );
                y.copy_from_slice(&padded[..y.len()]);
            }
            (Err(_), None) => panic!("a group that is not whole comes from a tile"),
        }
    }
}

/// # Safety
/// 64 · `BITS` bytes are readable at `quad`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load<const BITS: usize>(quad: *const u8) -> [__m512i; 8] {
    let mut planes = [_mm512_setzero_si512(); 8];
    for (i, plane) in planes.iter_mut().enumerate().take(BITS) {
        // SAFETY: by the contract; the tile's quads are aligned.
        *plane = unsafe { _mm512_load_si512(quad.add(64 * i).cast()) };
    }
    planes
}

/// [`mix`] for a whole group of codes of `BITS` bits, packed in `PACKED`, whose planes in the coefficients' `i`-th four
/// ranks are `planes(i)`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
fn mix_group<const BITS: usize, const PACKED: usize>(
    planes: impl Fn(usize) -> [__m512i; 8],
    coefficients: &Coefficients,
    lane: usize,
    ahead: Ahead,
    y: &mut [f32; GROUP],
) {
    let (mut high, mut low) = ([_mm512_setzero_si512(); 8], [_mm512_setzero_si512(); 8]);
    for (i, weights) in coefficients.quads().iter().enumerate() {
        let codes = unpack_quad::<PACKED>(planes(i));
        let (weights_high, weights_low) = (_mm512_set1_epi32(weights[0][lane]), _mm512_set1_epi32(weights[1][lane]));
        for i in 0..8 {
            high[i] = _mm512_dpbusd_epi32(high[i], codes[i], weights_high);
            if !coarse(BITS as u8) {
                low[i] = _mm512_dpbusd_epi32(low[i], codes[i], weights_low);
            }
        }
        ahead.codes(4 * i..4 * i + 4);
    }
    let zero = _mm512_set1_epi32(coefficients.zero(lane));
    let scale = _mm512_set1_ps(coefficients.scale(lane));
    for (i, y) in y.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let sum = if coarse(BITS as u8) {
            _mm512_slli_epi32::<1>(high[i])
        } else {
            _mm512_add_epi32(_mm512_slli_epi32::<9>(high[i]), _mm512_slli_epi32::<1>(low[i]))
        };
        let sum = _mm512_cvtepi32_ps(_mm512_sub_epi32(sum, zero));
        // SAFETY: 16 values.
        unsafe { _mm512_storeu_ps(y.as_mut_ptr(), _mm512_fmadd_ps(sum, scale, _mm512_loadu_ps(y.as_ptr()))) };
    }
}

/// The codes of one group in four ranks, those of one output side by side, 16 outputs a vector, from their planes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
fn unpack_quad<const BITS: usize>(planes: [__m512i; 8]) -> [__m512i; 8] {
    if BITS == 8 {
        return planes;
    }
    let [first, second, third, fourth, ..] = planes;
    if BITS == 4 {
        let nibble = _mm512_set1_epi8(15);
        let low = |plane| _mm512_and_si512(plane, nibble);
        let high = |plane| _mm512_and_si512(_mm512_srli_epi16::<4>(plane), nibble);
        return [
            low(first),
            low(second),
            low(third),
            low(fourth),
            high(first),
            high(second),
            high(third),
            high(fourth),
        ];
    }
    let two = _mm512_set1_epi8(3);
    let codes = [
        _mm512_and_si512(first, two),
        _mm512_and_si512(second, two),
        _mm512_and_si512(_mm512_srli_epi16::<2>(first), two),
        _mm512_and_si512(_mm512_srli_epi16::<2>(second), two),
        _mm512_and_si512(_mm512_srli_epi16::<4>(first), two),
        _mm512_and_si512(_mm512_srli_epi16::<4>(second), two),
        _mm512_and_si512(_mm512_srli_epi16::<6>(first), two),
        _mm512_and_si512(_mm512_srli_epi16::<6>(second), two),
    ];
    if BITS == 2 {
        return codes;
    }
    // Bit i of byte j belongs to code j + 16i, the codes of vector i.
    let shifted = [
        _mm512_slli_epi16::<2>(third),
        _mm512_slli_epi16::<1>(third),
        third,
        _mm512_srli_epi16::<1>(third),
        _mm512_srli_epi16::<2>(third),
        _mm512_srli_epi16::<3>(third),
        _mm512_srli_epi16::<4>(third),
        _mm512_srli_epi16::<5>(third),
    ];
    let four = _mm512_set1_epi8(4);
    std::array::from_fn(|i| _mm512_or_si512(codes[i], _mm512_and_si512(shifted[i], four)))
}
