//! U: coefficients times codes, pairs of ranks at a time.

use super::super::activations::{COARSEST, coarse};
use super::super::coefficients::{BLOCK, Coefficients};
use super::super::factor::Factor;
use super::super::tile::{Ahead, Tile};
use super::unpack::unpack_tail;
use crate::lowbit::GROUP;
use std::arch::x86_64::*;
use std::ops::Range;

/// Fills a tile: the packed words of two ranks side by side, or their bytes if coarse, pair after pair within a group.
///
/// # Safety
/// The machine has AVX2; `u` has codes of `BITS` bits, these ranks and groups, and the tile has room for them.
#[target_feature(enable = "avx2")]
pub(in super::super) unsafe fn fill<const BITS: usize>(
    tile: &mut Tile,
    u: &Factor<'_>,
    ranks: Range<usize>,
    groups: Range<usize>,
) {
    for pair in 0..ranks.len().div_ceil(2) {
        // An odd last rank is paired with itself; the coefficient of the second is 0.
        let rows = [0, 1].map(|i| (ranks.start + 2 * pair + i).min(ranks.end - 1));
        let codes = rows.map(|rank| u.codes_from(rank, groups.start).as_ptr());
        for (lane, group) in groups.clone().enumerate() {
            let to = tile.group_mut::<BITS>(lane);
            if u.group_len(group) == GROUP {
                // SAFETY: the group is whole in each row, and a group of the tile has room for 16 pairs.
                unsafe {
                    let planes = interleave::<BITS, BITS>(codes.map(|codes| codes.add(lane * 16 * BITS)));
                    store::<BITS>(planes, to.add(pair * 32 * BITS));
                }
            } else {
                let codes = rows.map(|rank| unpack_tail::<BITS>(u.group(rank, group)));
                // SAFETY: as above, with codes of 8 bits; a row's last group is the tile's last too.
                unsafe {
                    let planes = interleave::<BITS, 8>(codes.each_ref().map(|codes| codes.as_ptr()));
                    store::<8>(planes, to.add(pair * 32 * 8));
                }
            }
        }
    }
}

/// # Safety
/// 32 · `PACKED` bytes are writable at `to`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store<const PACKED: usize>(planes: [__m256i; 8], to: *mut u8) {
    for (i, plane) in planes.into_iter().enumerate().take(PACKED) {
        // SAFETY: by the contract; the tile's pairs are aligned.
        unsafe { _mm256_store_si256(to.add(32 * i).cast(), plane) };
    }
}

/// # Safety
/// 32 · `PACKED` bytes are readable at `pair`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load<const PACKED: usize>(pair: *const u8) -> [__m256i; 8] {
    let mut planes = [_mm256_setzero_si256(); 8];
    for (i, plane) in planes.iter_mut().enumerate().take(PACKED) {
        // SAFETY: by the contract; the tile's pairs are aligned.
        *plane = unsafe { _mm256_load_si256(pair.add(32 * i).cast()) };
    }
    planes
}

/// The packed words (bytes if coarse) of one group in two ranks side by side, in the `PACKED` first vectors: for codes
/// of `BITS` bits that are packed in `PACKED`.
///
/// # Safety
/// 16 · `PACKED` bytes are readable at each row.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn interleave<const BITS: usize, const PACKED: usize>(rows: [*const u8; 2]) -> [__m256i; 8] {
    let mut planes = [_mm256_setzero_si256(); 8];
    for i in 0..PACKED / 2 {
        // SAFETY: 32 bytes of each row.
        let [a, b] = rows.map(|row| unsafe { _mm256_loadu_si256(row.add(32 * i).cast()) });
        let (low, high) = if coarse(BITS as u8) {
            (_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b))
        } else {
            (_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b))
        };
        planes[2 * i] = _mm256_permute2x128_si256::<0x20>(low, high);
        planes[2 * i + 1] = _mm256_permute2x128_si256::<0x31>(low, high);
    }
    if PACKED == 3 {
        // SAFETY: 16 bytes of each row after the 2-bit plane.
        let [a, b] = rows.map(|row| unsafe { _mm_loadu_si128(row.add(32).cast()) });
        planes[2] =
            _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(_mm_unpacklo_epi8(a, b)), _mm_unpackhi_epi8(a, b));
    }
    planes
}

/// `y += Σ coefficient · weight` for the outputs of one group, from a tile, or for a whole group of coarse codes from
/// the rows themselves.
///
/// # Safety
/// The machine has AVX2 and FMA; `u` has codes of `BITS` bits, the coefficients' ranks and their group `lane`, and a
/// tile, if there is one, holds them.
#[target_feature(enable = "avx2,fma")]
pub(in super::super) unsafe fn mix<const BITS: usize>(
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
                let pairs = tile.group::<BITS>(lane);
                if coarse(BITS as u8) {
                    mix_bytes::<BITS>(|i| load::<BITS>(pairs.add(i * 32 * BITS)), coefficients, lane, ahead, y);
                } else {
                    mix_words::<BITS>(pairs, coefficients, lane, ahead, y);
                }
            }
            (Ok(y), None) => {
                assert!(coarse(BITS as u8), "words come from a tile");
                let (codes, stride) = (
                    u.codes_from(ranks.start, coefficients.first_group() + lane).as_ptr(),
                    u.stride(),
                );
                let last = ranks.len() - 1;
                // An odd last rank is paired with itself; the coefficient of the second is 0.
                let pair = |i: usize| [0, 1].map(|j| codes.add((2 * i + j).min(last) * stride));
                mix_bytes::<BITS>(|i| interleave::<BITS, BITS>(pair(i)), coefficients, lane, ahead, y);
            }
            (Err(_), Some(tile)) => {
                let pairs = tile.group::<BITS>(lane);
                let mut padded = [0.0; GROUP];
                padded[..y.len()].copy_from_slice(y);
                if coarse(BITS as u8) {
                    let planes = |i| load::<8>(pairs.add(i * 32 * 8));
                    mix_bytes::<8>(planes, coefficients, lane, ahead, &mut padded);
                } else {
                    mix_words::<8>(pairs, coefficients, lane, ahead, &mut padded);
                }
                y.copy_from_slice(&padded[..y.len()]);
            }
            (Err(_), None) => panic!("a group that is not whole comes from a tile"),
        }
    }
}

/// [`mix`] for a whole group of coarse codes, packed in `PACKED`, whose planes in the coefficients' `i`-th two ranks are
/// `planes(i)`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn mix_bytes<const PACKED: usize>(
    planes: impl Fn(usize) -> [__m256i; 8],
    coefficients: &Coefficients,
    lane: usize,
    ahead: Ahead,
    y: &mut [f32; GROUP],
) {
    // 16 outputs each, summed in 16 bits over a block.
    const { assert!(BLOCK * COARSEST * 128 <= i16::MAX as usize) };
    let mut sums = [_mm256_setzero_si256(); 8];
    for (i, weights) in coefficients.pairs().iter().enumerate() {
        let codes = unpack_pair::<PACKED>(planes(i));
        let weights = _mm256_set1_epi32(weights[lane]);
        for (sum, codes) in sums.iter_mut().zip(codes) {
            *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(codes, weights));
        }
        ahead.codes(2 * i..2 * i + 2);
    }
    let zero = _mm256_set1_epi32(coefficients.zero(lane));
    let scale = _mm256_set1_ps(coefficients.scale(lane));
    for (y, sum) in y.as_chunks_mut::<16>().0.iter_mut().zip(sums) {
        let halves = [_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum)];
        for (y, sum) in y.as_chunks_mut::<8>().0.iter_mut().zip(halves) {
            let sum = _mm256_cvtepi32_ps(_mm256_sub_epi32(
                _mm256_slli_epi32::<1>(_mm256_cvtepi16_epi32(sum)),
                zero,
            ));
            // SAFETY: 8 values.
            unsafe { _mm256_storeu_ps(y.as_mut_ptr(), _mm256_fmadd_ps(sum, scale, _mm256_loadu_ps(y.as_ptr()))) };
        }
    }
}

/// The codes of one group in two ranks, those of one output side by side, 16 outputs a vector, from their planes.
#[inline]
#[target_feature(enable = "avx2")]
fn unpack_pair<const PACKED: usize>(planes: [__m256i; 8]) -> [__m256i; 8] {
    if PACKED == 8 {
        return planes;
    }
    let [first, second, third, ..] = planes;
    let two = _mm256_set1_epi8(3);
    let codes = [
        _mm256_and_si256(first, two),
        _mm256_and_si256(second, two),
        _mm256_and_si256(_mm256_srli_epi16::<2>(first), two),
        _mm256_and_si256(_mm256_srli_epi16::<2>(second), two),
        _mm256_and_si256(_mm256_srli_epi16::<4>(first), two),
        _mm256_and_si256(_mm256_srli_epi16::<4>(second), two),
        _mm256_and_si256(_mm256_srli_epi16::<6>(first), two),
        _mm256_and_si256(_mm256_srli_epi16::<6>(second), two),
    ];
    if PACKED == 2 {
        return codes;
    }
    // Bit i of byte j belongs to code j + 16i, the codes of vector i.
    let shifted = [
        _mm256_slli_epi16::<2>(third),
        _mm256_slli_epi16::<1>(third),
        third,
        _mm256_srli_epi16::<1>(third),
        _mm256_srli_epi16::<2>(third),
        _mm256_srli_epi16::<3>(third),
        _mm256_srli_epi16::<4>(third),
        _mm256_srli_epi16::<5>(third),
    ];
    let four = _mm256_set1_epi8(4);
    std::array::from_fn(|i| _mm256_or_si256(codes[i], _mm256_and_si256(shifted[i], four)))
}

/// [`mix`] for a whole group of codes of 8 or 4 bits, packed in `PACKED`.
///
/// # Safety
/// At `pairs` are the coefficients' ranks, two by two, each pair 32 · `PACKED` bytes.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn mix_words<const PACKED: usize>(
    pairs: *const u8,
    coefficients: &Coefficients,
    lane: usize,
    ahead: Ahead,
    y: &mut [f32; GROUP],
) {
    let planes = 8 / PACKED;
    // The distance between the outputs of neighbouring planes.
    let step = GROUP / planes;
    let zero = _mm256_set1_epi32(coefficients.zero(lane));
    let scale = _mm256_set1_ps(coefficients.scale(lane));
    let mask = _mm256_set1_epi16(if PACKED == 8 { 255 } else { 15 });
    // 16 bytes of each rank at a time: more sums than registers otherwise.
    for part in 0..step / 16 {
        let mut sums = [[_mm256_setzero_si256(); 2]; 2];
        for (i, weights) in coefficients.pairs().iter().enumerate() {
            if part == 0 {
                ahead.codes(2 * i..2 * i + 2);
            }
            // SAFETY: `part` counts the 32 bytes of a pair's planes.
            let words = unsafe { _mm256_load_si256(pairs.add(i * 32 * PACKED + 32 * part).cast()) };
            let weights = _mm256_set1_epi32(weights[lane]);
            let mut add = |plane: usize, odd: usize, shifted| {
                let product = _mm256_madd_epi16(_mm256_and_si256(shifted, mask), weights);
                sums[plane][odd] = _mm256_add_epi32(sums[plane][odd], product);
            };
            add(0, 0, words);
            add(0, 1, _mm256_srli_epi16::<8>(words));
            if PACKED == 4 {
                add(1, 0, _mm256_srli_epi16::<4>(words));
                add(1, 1, _mm256_srli_epi16::<12>(words));
            }
        }
        for (plane, [even, odd]) in sums.into_iter().enumerate().take(planes) {
            let (low, high) = (_mm256_unpacklo_epi32(even, odd), _mm256_unpackhi_epi32(even, odd));
            let in_order = [
                _mm256_permute2x128_si256::<0x20>(low, high),
                _mm256_permute2x128_si256::<0x31>(low, high),
            ];
            for (i, sum) in in_order.into_iter().enumerate() {
                let y = &mut y[plane * step + 16 * part + 8 * i..][..8];
                let sum = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_slli_epi32::<1>(sum), zero));
                // SAFETY: 8 values.
                unsafe { _mm256_storeu_ps(y.as_mut_ptr(), _mm256_fmadd_ps(sum, scale, _mm256_loadu_ps(y.as_ptr()))) };
            }
        }
    }
}
