//! Look-ups on AVX2: a register holds the half of a table whose first weight is positive; bit 3 of a code becomes the
//! sign of what is found there.

use super::Sums;
use crate::signs::layout::{CODE, GROUP_BYTES};
use crate::signs::tables::{TABLES, Table};
use std::arch::x86_64::*;

/// Outputs of a register.
const HALF: usize = 8;

/// `sums[panel][row] += Σ table[code]`, tables in order.
///
/// # Safety
/// The machine has AVX2; each of the `P` panels, `stride` bytes apart, has codes for as many groups as there are tables
/// for.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn add<const P: usize, const R: usize>(
    codes: &[u8],
    stride: usize,
    tables: &[[Table; R]],
    sums: &mut [[Sums; R]; P],
) {
    let sign = _mm256_set1_epi32(i32::MIN);
    for (panel, sums) in sums.iter_mut().enumerate() {
        // The sums of one panel are as many as registers hold.
        let mut acc = [[_mm256_setzero_ps(); 2]; R];
        for (acc, sums) in acc.iter_mut().zip(sums.iter()) {
            for (half, acc) in acc.iter_mut().enumerate() {
                // SAFETY: eight of sixteen floats.
                *acc = unsafe { _mm256_loadu_ps(sums.as_ptr().add(half * HALF)) };
            }
        }
        for (group, tables) in tables.as_chunks::<TABLES>().0.iter().enumerate() {
            let at = panel * stride + group * GROUP_BYTES;
            let mut words: [__m256i; 2] = std::array::from_fn(|half| {
                // SAFETY: the panel has codes for this group.
                unsafe { _mm256_loadu_si256(codes.as_ptr().add(at + half * GROUP_BYTES / 2).cast()) }
            });
            for tables in tables {
                let signs = words.map(|words| {
                    let shifted = _mm256_slli_epi32::<{ 32 - CODE as i32 }>(words);
                    _mm256_castsi256_ps(_mm256_and_si256(shifted, sign))
                });
                for row in 0..R {
                    // SAFETY: the first eight of sixteen floats, aligned to all of them.
                    let table = unsafe { _mm256_load_ps(tables[row].0.as_ptr()) };
                    for half in 0..2 {
                        let found = _mm256_permutevar8x32_ps(table, words[half]);
                        acc[row][half] = _mm256_add_ps(acc[row][half], _mm256_xor_ps(found, signs[half]));
                    }
                }
                words = words.map(|words| _mm256_srli_epi32::<{ CODE as i32 }>(words));
            }
        }
        for (acc, sums) in acc.iter().zip(sums) {
            for (half, acc) in acc.iter().enumerate() {
                // SAFETY: eight of sixteen floats.
                unsafe { _mm256_storeu_ps(sums.as_mut_ptr().add(half * HALF), *acc) };
            }
        }
    }
}
