//! Look-ups on AVX-512: a table is one register, and `vpermps` finds sixteen sums in it by the low four bits of each
//! word.

use super::Sums;
use crate::signs::layout::{CODE, GROUP_BYTES};
use crate::signs::tables::{TABLES, Table};
use std::arch::x86_64::*;

/// `sums[panel][row] += Σ table[code]`, tables in order.
///
/// # Safety
/// The machine has AVX-512 F; each of the `P` panels, `stride` bytes apart, has codes for as many groups as there are
/// tables for.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn add<const P: usize, const R: usize>(
    codes: &[u8],
    stride: usize,
    tables: &[[Table; R]],
    sums: &mut [[Sums; R]; P],
) {
    let mut acc = [[_mm512_setzero_ps(); R]; P];
    for (acc, sums) in acc.iter_mut().flatten().zip(sums.iter().flatten()) {
        // SAFETY: sixteen floats.
        *acc = unsafe { _mm512_loadu_ps(sums.as_ptr()) };
    }
    for (group, tables) in tables.as_chunks::<TABLES>().0.iter().enumerate() {
        let mut words: [__m512i; P] = std::array::from_fn(|panel| {
            // SAFETY: the panel has codes for this group.
            unsafe { _mm512_loadu_si512(codes.as_ptr().add(panel * stride + group * GROUP_BYTES).cast()) }
        });
        for tables in tables {
            for row in 0..R {
                // SAFETY: a table is one register's worth of floats, aligned to it.
                let table = unsafe { _mm512_load_ps(tables[row].0.as_ptr()) };
                for panel in 0..P {
                    let found = _mm512_permutexvar_ps(words[panel], table);
                    acc[panel][row] = _mm512_add_ps(acc[panel][row], found);
                }
            }
            for words in &mut words {
                *words = _mm512_srli_epi32::<{ CODE as u32 }>(*words);
            }
        }
    }
    for (acc, sums) in acc.iter().flatten().zip(sums.iter_mut().flatten()) {
        // SAFETY: sixteen floats.
        unsafe { _mm512_storeu_ps(sums.as_mut_ptr(), *acc) };
    }
}
