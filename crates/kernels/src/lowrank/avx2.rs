//! The integer kernels on AVX2.
//!
//! V multiplies codes with the bytes of x by `maddubs`, whose sums of two products of at most 15 · 128 are collected in
//! 16 bits over a group. U lays the packed words of two ranks side by side, so that a shift and a mask leave both
//! ranks' codes of one output as the two halves of `madd`; for codes of 3 and 2 bits, whose coefficients are bytes, it
//! lays the packed bytes side by side for `maddubs`, and collects a block's sums in 16 bits.

use super::activations::{CHUNK, COARSE, InputChunk, InputGroup, InputRow, LARGEST, SHIFT, SMALLEST, coarse};
use super::coefficients::{BLOCK, Coefficients, first};
use super::factor::Factor;
use super::tile::{Ahead, Tile};
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

    /// Adds a chunk of `groups` groups, or 8 if there are more. `parts` has the groups' `Σ code · value`, `scales` and
    /// `zeros` those of V, whose codes have `BITS` bits, `x` is the chunk of x.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn add<const BITS: usize>(
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
    pub(super) fn total(self) -> f32 {
        let four = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }
}

/// Lane `j` of the result is the sum of the lanes of `parts[j]`.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn sum_each(parts: [__m256i; 8]) -> __m256i {
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

/// Coefficients of the ranks whose `s ⊙ (V x)` is `h`, with the integers of 2 or 4 ranks together; of their high bytes
/// alone if they are `SHORT`.
///
/// # Safety
/// The machine has AVX2; `u` has codes, these ranks and groups.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn quantise<const TOGETHER: usize, const SHORT: bool>(
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

/// Fills a tile: the packed words of two ranks side by side, or their bytes if coarse, pair after pair within a group.
///
/// # Safety
/// The machine has AVX2; `u` has codes of `BITS` bits, these ranks and groups, and the tile has room for them.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn fill<const BITS: usize>(
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
/// tile holds them.
#[target_feature(enable = "avx2,fma")]
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
    // 16 outputs each; at most 32 · 7 · 127 in 16 bits.
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
