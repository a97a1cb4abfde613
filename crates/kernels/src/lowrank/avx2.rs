//! The integer kernels on AVX2.
//!
//! V multiplies codes with the bytes of x by `maddubs`, whose sums of two products of at most 15 · 128 are collected in
//! 16 bits over a group. U lays the packed words of two ranks side by side, so that a shift and a mask leave both
//! ranks' codes of one output as the two halves of `madd`.

use super::activations::{CHUNK, InputGroup, InputRow, LARGEST, SHIFT, SMALLEST};
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
                sum_each(parts),
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

    /// Adds a chunk of `groups` groups, or 8 if there are more. `parts` has the groups' `Σ code · value`, `scales` and
    /// `zeros` those of V, `sums` and `x_scales` those of x.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn add(
        &mut self,
        parts: __m256i,
        scales: &[f32],
        zeros: &[u16],
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

/// Coefficients of the ranks whose `s ⊙ (V x)` is `h`, with the integers of 2 or 4 ranks together.
///
/// # Safety
/// The machine has AVX2; `u` has codes, these ranks and groups.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn quantise<const TOGETHER: usize>(to: &mut Coefficients, u: &Factor<'_>, h: &[f32], ahead: Ahead) {
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
    let scale = _mm256_mul_ps(largest, _mm256_set1_ps(1.0 / LARGEST));
    // SAFETY: as above.
    unsafe { _mm256_storeu_ps(to.scales.as_mut_ptr(), scale) };
    let shift = _mm256_set1_ps(SHIFT);
    let mut zeros = _mm256_setzero_si256();
    for start in (0..h.len()).step_by(TOGETHER) {
        let mut integers = [_mm256_setzero_si256(); TOGETHER];
        for (i, integer) in integers.iter_mut().enumerate().take(h.len() - start) {
            let rounded = _mm256_add_ps(_mm256_mul_ps(values[start + i], inverse), shift);
            *integer = _mm256_sub_epi32(_mm256_castps_si256(rounded), _mm256_castps_si256(shift));
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
        if TOGETHER == 2 {
            store(&mut to.integers.pairs[start / 2], words(0, 1));
        } else {
            let (even, odd) = (words(0, TOGETHER - 2), words(1, TOGETHER - 1));
            let low_bytes = _mm256_set1_epi16(0xff);
            let low = _mm256_or_si256(_mm256_and_si256(even, low_bytes), _mm256_slli_epi16::<8>(odd));
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

/// Fills a tile: the packed words of two ranks side by side, pair after pair within a group.
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
                unsafe { interleave::<BITS>(codes.map(|codes| codes.add(lane * 16 * BITS)), to.add(pair * 32 * BITS)) };
            } else {
                let codes = rows.map(|rank| unpack_tail::<BITS>(u.group(rank, group)));
                // SAFETY: as above, with codes of 8 bits; a row's last group is the tile's last too.
                unsafe { interleave::<8>(codes.each_ref().map(|codes| codes.as_ptr()), to.add(pair * 32 * 8)) };
            }
        }
    }
}

/// Brings the packed words of two ranks side by side.
///
/// # Safety
/// 16 · `BITS` bytes are readable at each row, and 32 · `BITS` writable at `to`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn interleave<const BITS: usize>(rows: [*const u8; 2], to: *mut u8) {
    for i in 0..BITS / 2 {
        // SAFETY: 32 bytes of each row, and 64 of the tile.
        unsafe {
            let [a, b] = rows.map(|row| _mm256_loadu_si256(row.add(32 * i).cast()));
            let (low, high) = (_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b));
            let to: *mut __m256i = to.add(64 * i).cast();
            _mm256_store_si256(to, _mm256_permute2x128_si256::<0x20>(low, high));
            _mm256_store_si256(to.add(1), _mm256_permute2x128_si256::<0x31>(low, high));
        }
    }
    if BITS == 3 {
        // SAFETY: 16 bytes of each row after the 2-bit plane, and 32 of the tile.
        unsafe {
            let [a, b] = rows.map(|row| _mm_loadu_si128(row.add(32).cast()));
            let to: *mut __m128i = to.add(64).cast();
            _mm_store_si128(to, _mm_unpacklo_epi16(a, b));
            _mm_store_si128(to.add(1), _mm_unpackhi_epi16(a, b));
        }
    }
}

/// `y += Σ coefficient · weight` for the outputs of one group.
///
/// # Safety
/// The machine has AVX2 and FMA; the tile holds the coefficients' ranks and groups.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn mix<const BITS: usize>(
    tile: &Tile,
    coefficients: &Coefficients,
    lane: usize,
    ahead: Ahead,
    y: &mut [f32],
) {
    let pairs = tile.group::<BITS>(lane);
    if let Ok(y) = y.try_into() {
        // SAFETY: the tile holds them.
        unsafe { mix_group::<BITS>(pairs, coefficients, lane, ahead, y) };
    } else {
        let mut padded = [0.0; GROUP];
        padded[..y.len()].copy_from_slice(y);
        // SAFETY: `fill` brings groups that are not whole to 8 bits.
        unsafe { mix_group::<8>(pairs, coefficients, lane, ahead, &mut padded) };
        y.copy_from_slice(&padded[..y.len()]);
    }
}

/// [`mix`] for a whole group.
///
/// # Safety
/// At `pairs` are the coefficients' ranks, two by two, each pair 32 · `BITS` bytes.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn mix_group<const BITS: usize>(
    pairs: *const u8,
    coefficients: &Coefficients,
    lane: usize,
    ahead: Ahead,
    y: &mut [f32; GROUP],
) {
    let planes = if BITS == 3 { 4 } else { 8 / BITS };
    // The distance between the outputs of neighbouring planes.
    let step = GROUP / planes;
    let zero = _mm256_set1_epi32(coefficients.zero(lane));
    let scale = _mm256_set1_ps(coefficients.scale(lane));
    // 16 bytes of each rank at a time: more sums than registers otherwise.
    for part in 0..step / 16 {
        let mut sums = [[_mm256_setzero_si256(); 2]; 4];
        for (i, weights) in coefficients.pairs().iter().enumerate() {
            if part == 0 {
                ahead.codes(2 * i..2 * i + 2);
            }
            // SAFETY: `part` counts the 32 bytes of a pair's (low) planes.
            let words = unsafe { _mm256_load_si256(pairs.add(i * 32 * BITS + 32 * part).cast()) };
            let weights = _mm256_set1_epi32(weights[lane]);
            let third = if BITS == 3 {
                // SAFETY: 32 bytes after the 2-bit planes.
                let third = unsafe { _mm256_load_si256(pairs.add(i * 32 * BITS + 64).cast()) };
                // Bit 2i of byte j belongs to code j + 32i, bit 2i + 1 to code j + 16 + 32i.
                if part == 0 {
                    third
                } else {
                    _mm256_srli_epi16::<1>(third)
                }
            } else {
                _mm256_setzero_si256()
            };
            macro_rules! add_plane {
                ($plane:literal, $odd:literal, $shift:literal) => {
                    let mut codes = mask::<BITS>(_mm256_srli_epi16::<$shift>(words));
                    if BITS == 3 {
                        let bit = if $shift == 0 {
                            _mm256_slli_epi16::<2>(third)
                        } else {
                            _mm256_srli_epi16::<{ if $shift == 0 { 0 } else { $shift - 2 } }>(third)
                        };
                        codes = _mm256_or_si256(codes, _mm256_and_si256(bit, _mm256_set1_epi16(4)));
                    }
                    let product = _mm256_madd_epi16(codes, weights);
                    sums[$plane][$odd] = _mm256_add_epi32(sums[$plane][$odd], product);
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
