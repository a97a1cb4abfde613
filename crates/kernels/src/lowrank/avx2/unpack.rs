//! From packed bytes to codes, one a byte.

use crate::lowbit::{GROUP, unpack_group};
use std::arch::x86_64::*;

/// Bytes `32 i ..` of a group.
#[inline]
#[target_feature(enable = "avx2")]
pub(in super::super) fn bytes(group: &[i8; GROUP], i: usize) -> __m256i {
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
pub(in super::super) unsafe fn unpack<const BITS: usize>(packed: *const u8) -> [__m256i; 4] {
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
pub(in super::super) fn unpack_tail<const BITS: usize>(packed: &[u8]) -> [u8; GROUP] {
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
